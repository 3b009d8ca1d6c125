"""One chunk of reference A, and what two roundings cost every product of a row and a state: the inner loop of `judge`.

A state depends on the one before it and is made token by token; what is read off them is read off several at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["ChunkRun", "run_chunk"]

#: Numbers of the states that are looked at together: a few tokens of a small state, and still in a core's cache.
BLOCK = 2**15


class ChunkRun(NamedTuple):
    """What a chunk of T tokens does: the first four `[T, B, H, DV]`, states `[B, H, DK, DV]`.

    w: what is written. recalled, asked: the errors of k . S and q . S whose factors were rounded, in unit roundoffs.
    S: the state behind the chunk; kept: what that leaves of the state at its start. columns `[T, B, H, DV]`, rows
    `[T, B, H, DK]`: the 2-norms of the state behind each token over DK and over DV, where they were asked for.
    """

    w: np.ndarray
    o: np.ndarray
    recalled: np.ndarray
    asked: np.ndarray
    S: np.ndarray
    kept: np.ndarray
    columns: np.ndarray
    rows: np.ndarray


def run_chunk(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, a: np.ndarray, beta: np.ndarray, S: np.ndarray, norms: bool = False
) -> ChunkRun:
    """Reference A from the state S `[B, H, DK, DV]` on T tokens: q, k, a `[T, B, H, DK]`, v, beta `[T, B, H, DV or 1]`.

    norms: whether columns and rows are asked for.
    """
    w, o, recalled, of_recalled, of_asked = (np.empty(v.shape) for _ in range(5))
    columns, rows = (np.empty(x.shape if norms else 0) for x in (v, k))
    block = max(1, min(len(k), BLOCK // S.size))
    found, left, remains = (np.empty((block, *S.shape)) for _ in range(3))
    start, decay, carries = S, np.ones((*S.shape[:-1], 1)), bool(S.any())
    for first in range(0, len(k), block):
        at = slice(first, min(first + block, len(k)))
        for i, t in enumerate(range(at.start, at.stop)):
            decay = decay * a[t, ..., None]
            np.multiply(S, a[t, ..., None], out=found[i])
            recalled[t] = _product(k[t], found[i])
            w[t] = beta[t] * (v[t] - recalled[t])
            S = np.add(found[i], k[t, ..., None] * w[t, ..., None, :], out=left[i])
            o[t] = _product(q[t], S)
            if carries:
                np.multiply(start, decay, out=remains[i])
        number = at.stop - at.start
        # What is left of the state at the chunk's start, beside which a state holds the chunk's own writes.
        kept = _Kept.of(remains[:number]) if carries else None
        of_recalled[at] = _rounded_twice(found[:number], kept, k[at], recalled[at])
        of_asked[at] = _rounded_twice(left[:number], kept, q[at], o[at])
        if norms:
            squares = left[:number] * left[:number]
            columns[at], rows[at] = np.sqrt(squares.sum(-2)), np.sqrt(squares.sum(-1))
    return ChunkRun(w, o, of_recalled, of_asked, S, start * decay, columns, rows)


class _Kept(NamedTuple):
    """A part of a state that is multiplied apart from the rest, and its squares."""

    values: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> _Kept:
        return cls(values, values * values)


def _rounded_twice(S: np.ndarray, kept: _Kept | None, x: np.ndarray, product: np.ndarray) -> np.ndarray:
    """The error of x . S `[.., DV]`, both of whose factors were rounded, in unit roundoffs.

    kept: a part of S that is multiplied apart from the rest; each may cancel the other, and not its errors. x
    `[.., DK]`; product: x . S. Of many independent errors |x| |S| is far above what remains (Cauchy and Schwarz). Where
    one term is alone, or all are equal and so are their errors, nothing averages out, and each factor costs one
    roundoff.
    """
    ones, squared = np.ones_like(x), x * x
    norm = np.linalg.norm(x, axis=-1, keepdims=True)

    def sums(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # A product with both at once, a matrix of two rows, takes four times as long.
        return _product(ones, squares), _product(squared, squares)

    spread, alone = sums(S * S)
    if kept is None:
        return np.maximum(norm * np.sqrt(spread), 2 * np.maximum(np.sqrt(alone), np.abs(product)))
    spread_kept, alone_kept = sums(kept.squares)
    spread_both, alone_both = sums(S * kept.values)
    # Of S - kept: sums of squares, which roundings may leave below 0.
    spread_rest = np.maximum(spread - 2 * spread_both + spread_kept, 0.0)
    alone_rest = np.maximum(alone - 2 * alone_both + alone_kept, 0.0)
    of_kept = _product(x, kept.values)
    terms = np.maximum(np.sqrt(alone), np.sqrt(alone_kept) + np.sqrt(alone_rest))
    total = np.maximum(np.abs(product), np.abs(of_kept) + np.abs(product - of_kept))
    return np.maximum(norm * np.sqrt(np.maximum(spread, spread_kept + spread_rest)), 2 * np.maximum(terms, total))


def _product(x: np.ndarray, S: np.ndarray) -> np.ndarray:
    """The products x . S `[.., DV]`: x `[.., DK]`, S `[.., DK, DV]`."""
    return (x[..., None, :] @ S)[..., 0, :]
