"""What a kernel that inverts the triangular system errs by beyond one that substitutes.

    T = (I + M diag(beta))^-1    W = T (K e^gamma)
    w = diag(beta) (T V - W S_0) = diag(beta) T y    y = V - (K e^gamma) S_0

A row of T is rounded once, and its diagonal, which is 1, and beta not at all; where a beta of the chunk up to it is
above 1, it is steep and the sum of two rounded rows.

An error of y, be it of K e^gamma, is an error of the values: the deletions that follow work on it as on any write, and
|I - beta k k^T|_2 <= 1 bounds what becomes of it. An error of T goes into w with nothing behind it to undo it, so it is
as large as the rows of T, which are known in float64. Either is multiplied by the token's beta. docs/tolerances.md
derives every term.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kda.problem import Inputs

__all__ = ["HALF", "Roundings", "inverse_error"]

#: Rows of the blocks that the last merge of the inverse joins.
HALF = 32


class Roundings(NamedTuple):
    """The sizes of single errors, as in `kda.numerics.budget.Units`."""

    operand: float
    tiny: float
    normal: float
    merge: float
    steep: float


def inverse_error(chunk: Inputs, S: np.ndarray, sizes: Roundings) -> np.ndarray:
    """How far each w of one chunk is off, by what the inverse adds: `[B, H, C, DV]`.

    chunk: its tokens alone. S: `[B, H, DK, DV]`, the state when the chunk begins.
    """
    k, v, g = (np.moveaxis(x, 2, 1) for x in (chunk.k, chunk.v, chunk.g))
    beta = np.moveaxis(chunk.beta, 2, 1)[..., None]
    gamma = np.cumsum(g, axis=-2)
    decayed = k * np.exp(gamma)
    L = _pairwise(k, gamma) * np.swapaxes(beta, -1, -2)
    T = _inverse(L)
    y = v - decayed @ S
    z = T @ y  # w before beta
    rounded = np.tril(T, -1)

    steep = np.logical_or.accumulate(beta > 1, axis=-2)

    error = np.where(steep, sizes.steep, sizes.operand) * _once(rounded, y)
    error += sizes.operand * _once(decayed, S)
    # T may be subnormal, and so may k e^gamma, which meets the state that has not decayed.
    at_start = np.sqrt((S * S).sum(-2, keepdims=True))
    missing = np.linalg.norm(_lost(np.abs(decayed), sizes), axis=-1, keepdims=True)
    error += _lost(np.abs(rounded), sizes) @ np.abs(y) + missing * at_start

    if k.shape[-2] > HALF:  # T21 = -T22 (L21 T11): errors of the first product are errors of y, those of T22 are of T
        first, second = slice(0, HALF), slice(HALF, None)
        T11, T22, L21 = rounded[..., first, first], rounded[..., second, second], L[..., second, first]
        y1, z1 = y[..., first, :], z[..., first, :]
        of_T11 = np.sqrt(L21**2 @ (T11**2 @ y1**2))
        of_y = _once(L21, z1) + of_T11 + _once(L21 @ T[..., first, first], y1)
        merge = np.where(steep[..., second, :], sizes.steep, sizes.merge)
        error[..., second, :] += merge * (of_y + _once(T22, L21 @ z1))
    return beta * error


def _once(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The error of x y, every entry of x rounded once, in unit roundoffs: independent errors, or all of them alike."""
    product = x @ y
    return np.maximum(np.sqrt(x**2 @ y**2), np.abs(product))


def _lost(x: np.ndarray, sizes: Roundings) -> np.ndarray:
    return np.where(x < sizes.normal, np.minimum(x, sizes.tiny), 0.0)


def _pairwise(k: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """M_ij = k_i . (k_j e^(gamma_i - gamma_j)), j < i: k, gamma `[B, H, C, DK]` to `[B, H, C, C]`."""
    M = np.zeros((*k.shape[:-1], k.shape[-2]))
    for i in range(1, k.shape[-2]):
        decayed = k[..., :i, :] * np.exp(gamma[..., i, None, :] - gamma[..., :i, :])
        M[..., i, :i] = (decayed @ k[..., i, :, None])[..., 0]
    return M


def _inverse(L: np.ndarray) -> np.ndarray:
    """(I + L)^-1: L `[.., C, C]` strictly lower."""
    T = np.broadcast_to(np.eye(L.shape[-1]), L.shape).copy()
    for i in range(L.shape[-1]):
        T[..., i + 1 :, :] -= L[..., i + 1 :, i, None] * T[..., i, None, :]
    return T
