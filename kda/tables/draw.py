"""What the article drew at random, for many seeds at once; a seed's numbers do not depend on how many there are."""

from __future__ import annotations

import numpy as np

from kda.generate import branch, gauss, gauss_int, normalised, root, uniform
from kda.problem import Inputs

__all__ = ["TOP", "gates", "inputs", "unit_rows"]

#: The upper end of the article's gates.
TOP = 0.999


def gates(seeds: int, C: int, DK: int) -> np.ndarray:
    """U(0, 1) for the gates of one chunk, `[seeds, C, DK]`; a shorter chunk is its beginning."""
    return uniform(_keys(seeds, "g", C), DK)


def unit_rows(seeds: int, stream: str, C: int, DK: int) -> np.ndarray:
    """Gaussian rows of length 1, `[seeds, C, DK]`."""
    return normalised(gauss_int(_keys(seeds, stream, C), DK))


def inputs(seeds: int, B: int, N: int, H: int, D: int) -> Inputs:
    """Section 3.4's problem once per seed, `[seeds * B, N, H, D]`: a ~ U(0.9, 0.999), beta ~ U(0.1, 0.9).

    q and k are Gaussian of length 1. The article does not say how v was drawn: Gaussian here.
    """
    shape = (seeds * B, N, H)
    return Inputs(
        q=unit_rows(seeds, "q", B * N * H, D).reshape(*shape, D),
        k=unit_rows(seeds, "k", B * N * H, D).reshape(*shape, D),
        v=gauss(_keys(seeds, "v", B * N * H), D).reshape(*shape, D),
        g=np.log(0.9 + (TOP - 0.9) * gates(seeds, B * N * H, D)).reshape(*shape, D),
        beta=0.1 + 0.8 * uniform(_keys(seeds, "beta"), B * N * H).reshape(shape),
    )


def _keys(seeds: int, stream: str, *counts: int) -> np.ndarray:
    keys = np.stack([root(seed, stream) for seed in range(seeds)])
    for count in counts:
        keys = branch(keys, count)
    return keys
