"""Two habits all references share: the order of a head's tokens in memory, and the cutting of tokens into chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kda.problem import InputError

__all__ = ["chunks", "heads_first", "tokens_first"]


def chunks(length: int, size: int, name: str = "C") -> Iterator[slice]:
    """Slices of `size` that cover 0..length-1 in order, the last one as short as it must be.

    Raises InputError if `size`, called `name` in the message, is below 1.
    """
    if size < 1:
        raise InputError(f"{name} is {size}; expected at least 1")
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def heads_first(x: np.ndarray) -> np.ndarray:
    """`[B, N, H, ...]` as a contiguous `[B, H, N, ...]`, so that a trailing matrix belongs to one head."""
    return np.ascontiguousarray(np.moveaxis(x, 2, 1))


def tokens_first(x: np.ndarray) -> np.ndarray:
    """`[B, N, H, ...]` as a contiguous `[N, B, H, ...]`, so that `x[t]` is one token of every head."""
    return np.ascontiguousarray(np.moveaxis(x, 1, 0))
