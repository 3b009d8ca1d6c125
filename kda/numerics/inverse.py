"""What a kernel that inverts the triangular system errs by beyond one that substitutes.

    A = (I + diag(beta) M)^-1 diag(beta)    W = A (K e^gamma)
    w = A V - W S_0 = A y                   y = V - (K e^gamma) S_0

A row of A is rounded once; where a beta of the chunk up to it is above 1, it is steep and the sum of two rounded rows.

An error of y, be it of K e^gamma, is an error of the values: the deletions that follow work on it as on any write, and
|I - beta k k^T|_2 <= 1 bounds what becomes of it. An error of A goes into w with nothing behind it to undo it, so it is
as large as the rows of A, which are known in float64. docs/tolerances.md derives every term.
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
    M = _pairwise(k, gamma)
    A = _inverse(M, beta)
    y = v - decayed @ S
    w = A @ y

    steep = np.logical_or.accumulate(beta > 1, axis=-2)

    error = np.where(steep, sizes.steep, sizes.operand) * _once(A, y)
    error += sizes.operand * beta * _once(decayed, S)
    # A may be subnormal, and so may k e^gamma, which meets the state that has not decayed.
    at_start = np.sqrt((S * S).sum(-2, keepdims=True))
    missing = np.linalg.norm(_lost(np.abs(decayed), sizes), axis=-1, keepdims=True)
    error += _lost(np.abs(A), sizes) @ np.abs(y) + beta * missing * at_start

    if k.shape[-2] > HALF:  # A21 = -A22 (M21 A11): errors of the first product are errors of y, those of A22 are of A
        first, second = slice(0, HALF), slice(HALF, None)
        A11, A22, M21 = A[..., first, first], A[..., second, second], M[..., second, first]
        y1, w1 = y[..., first, :], w[..., first, :]
        of_A11 = np.sqrt(M21**2 @ (A11**2 @ y1**2))
        of_y = _once(M21, w1) + of_A11 + _once(M21 @ A11, y1)
        merge = np.where(steep[..., second, :], sizes.steep, sizes.merge)
        error[..., second, :] += merge * (beta[..., second, :] * of_y + _once(A22, M21 @ w1))
    return error


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


def _inverse(M: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """(I + diag(beta) M)^-1 diag(beta): M `[.., C, C]`, beta `[.., C, 1]`."""
    A = np.broadcast_to(np.eye(M.shape[-1]), M.shape).copy()
    for i in range(M.shape[-1]):
        A[..., i, :] *= beta[..., i, :]
        A[..., i + 1 :, :] -= M[..., i + 1 :, i, None] * A[..., i, None, :]
    return A
