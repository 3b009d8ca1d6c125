"""How far the recurrence in float32 may be from reference A: the budget of a kernel that goes token by token.

The recursion of `kda.numerics.budget` with the roundings of such a kernel, every one in the accumulators' format but
that of o. docs/tolerances.md derives every term.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from kda.formats import F32
from kda.numerics.budget import Budget, Judged, Units
from kda.problem import Inputs, Outputs

__all__ = ["judge_recurrent"]

#: e^g is off by so many roundoffs where g is small: two units in the last place of 2^x; the product with S is one more.
_DECAY = 4 + 1


def judge_recurrent(inputs: Inputs, units: Units) -> Judged:
    """Reference A on `inputs` (float64), and the budget of the recurrence in float32, o alone rounded once more.

    Of `units` it takes roundoff, output, tiny and floor. Arrays inside: S `[B, H, DK, DV]`, E `[B, H, DV]`, R
    `[B, H, DK]`, as in `judge`.
    """
    sizes, r, floor = inputs.sizes, units.roundoff, units.floor
    a = np.exp(inputs.g)
    # g log2(e) is rounded twice, the constant and the product: a relative error of e^g. e^0 = 1 is exact.
    decay = a * r * np.where(inputs.g < 0, 2 * np.abs(inputs.g) + _DECAY, 0.0) + floor
    k_norms, q_norms = (np.linalg.norm(x, axis=-1)[..., None] for x in (inputs.k, inputs.q))
    growth = np.maximum(1.0, np.abs(1.0 - inputs.beta[..., None] * k_norms**2))
    S = inputs.state()
    E = np.zeros((sizes.B, sizes.H, sizes.DV))
    R = np.zeros((sizes.B, sizes.H, sizes.DK))
    o = np.empty((sizes.B, sizes.N, sizes.H, sizes.DV))
    row = np.empty((sizes.B, sizes.N, sizes.H))
    for t in range(sizes.N):
        k, k_norm, beta = inputs.k[:, t], k_norms[:, t], inputs.beta[:, t, :, None]
        lost = decay[:, t, ..., None] * np.abs(S) + floor
        S *= a[:, t, ..., None]
        carried = a[:, t].max(axis=-1)[..., None] * E + _norm(lost, -2)
        recalled, of_recalled = _product(k, S, r)
        w = beta * (inputs.v[:, t] - recalled)
        # The difference and its product with beta; floor, where they are subnormal.
        local = beta * (of_recalled + floor * sizes.DK) + 2 * r * np.abs(w) + 2 * floor
        S += k[..., None] * w[:, :, None, :]
        # The product k w, and its sum with what is there.
        added = r * (np.abs(k)[..., None] * np.abs(w)[:, :, None, :] + np.abs(S)) + floor
        reach = beta[..., 0] * k_norm[..., 0] * _norm(carried, -1) + _norm(local, -1)
        R = a[:, t] * R + _norm(lost, -1) + np.abs(k) * reach[..., None] + _norm(added, -1)
        E = growth[:, t] * carried + k_norm * local + _norm(added, -2)
        o[:, t], of_o = _product(inputs.q[:, t], S, r)
        bound = q_norms[:, t] * E + of_o + floor * sizes.DK + (r + units.output) * np.abs(o[:, t]) + units.tiny
        row[:, t] = _norm(bound, -1)
    return Judged(Outputs(o, S), Budget(row, np.minimum(R, _norm(E, -1)[..., None])))


def _norm(x: np.ndarray, axis: int) -> np.ndarray:
    return np.sqrt((x * x).sum(axis))


def _product(x: np.ndarray, S: np.ndarray, roundoff: float) -> tuple[np.ndarray, np.ndarray]:
    """X . S `[B, H, DV]`, and the error of such a sum in float32.

    Products and sums, in any order, err by about 1 + sqrt(DK) roundoffs of |x| |S_e|. Equal terms are rounded in the
    same direction every time: their sum is made, and its error measured.
    """
    terms = x[..., None] * S
    exact = terms.sum(-2)
    if not roundoff:
        return exact, np.zeros_like(exact)
    summed = np.add.accumulate(terms.astype(np.float32), axis=-2)[..., -1, :]
    spread = (1 + sqrt(x.shape[-1])) * roundoff * _norm(x, -1)[..., None] * _norm(S, -2)
    return exact, spread + 1.5 * roundoff / F32.unit_roundoff * np.abs(summed - exact)
