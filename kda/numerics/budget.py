"""How far a correct kernel may be from reference A, computed beside reference A.

`judge` runs the recurrence in float64 and carries, per value column e, a bound E[e] on the 2-norm of the error of that
column of the state. It rests on |I - beta k k^T|_2 <= 1 for unit keys and beta in [0, 2]: an error is never amplified
from token to token, it only fades with the gate. docs/tolerances.md derives every term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from kda.formats import F32, F64, Format
from kda.numerics.domain import chunk_gamma
from kda.problem import Inputs, Outputs

__all__ = ["Budget", "Judged", "judge", "mirror_units", "operand_units", "underflow_units"]


@dataclass(frozen=True)
class Units:
    """The sizes of single errors, relative and absolute.

    operand: relative error of a product after its factors were rounded to the operand format. tiny: absolute error of
    a rounding below the smallest normal number. output: relative error of the last rounding, of o. state: the same for
    the decay of the carried state over one chunk; floor: the smallest number that its format holds.
    """

    operand: float
    tiny: float
    output: float
    state: float
    floor: float


@dataclass(frozen=True)
class Budget:
    """The largest allowed 2-norm (over DV) of the error of each row: o `[B, N, H]`, final_state `[B, H, DK]`."""

    o: np.ndarray
    final_state: np.ndarray

    def at_least(self, other: Budget) -> Budget:
        """The larger of both, row by row."""
        return Budget(np.maximum(self.o, other.o), np.maximum(self.final_state, other.final_state))

    def after(self, token: int) -> Budget:
        """The budget of o from `token` on, and of the final state."""
        return Budget(self.o[:, token:], self.final_state)

    def mixing_rows(self) -> Budget:
        """The budget of a state whose rows were mixed by an orthogonal matrix: any row may hold the error of all."""
        whole = np.sqrt((self.final_state**2).sum(-1, keepdims=True))
        return Budget(self.o, np.broadcast_to(whole, self.final_state.shape))

    def __add__(self, other: Budget) -> Budget:
        return Budget(self.o + other.o, self.final_state + other.final_state)


@dataclass(frozen=True)
class Judged:
    """Reference A's outputs and the budget of a kernel that computed the same in a narrower format."""

    outputs: Outputs
    budget: Budget


def _accumulation(inputs: Inputs, C: int, accumulator: Format) -> float:
    """The relative error of one number that went through the accumulators, in units of their roundoff.

    Sums of n terms in any order err by about sqrt(n) roundoffs (Higham and Mary, 2019; n is the worst case): DK terms in
    M, A_qk, W S and Q S, C terms in the substitution, in A_qk V~ and in the state. An absolute error of gamma is a
    relative one of e^gamma.
    """
    sizes = inputs.sizes
    length = min(C, sizes.N)
    roundings = 2 + sqrt(sizes.DK) + 2 * sqrt(length) + _gamma_error(inputs.g, C, accumulator)
    # Against a float64 kernel, reference A's own error counts: its e^gamma is a product of rounded factors.
    return roundings + length if accumulator is F64 and inputs.g.any() else roundings


def _gamma_error(g: np.ndarray, C: int, accumulator: Format) -> float:
    """The largest error of gamma log2(e), in roundoffs of the accumulator.

    The rounding errors of a sum of equal gates all point the same way, so no law of square roots holds: the sum is made
    in the accumulator's format, token after token, on these very gates, and its error measured.
    """
    if not g.any():
        return 0.0
    gamma = chunk_gamma(g, C)
    B, N, H, DK = g.shape
    padded = np.zeros((B, -(-N // C) * C, H, DK))
    padded[:, :N] = g
    in_order = np.cumsum(padded.reshape(B, -1, C, H, DK), axis=2, dtype=accumulator.numpy).reshape(padded.shape)[:, :N]
    measured = float(np.abs(in_order.astype(np.float64) - gamma).max()) / accumulator.unit_roundoff
    largest = float(-gamma.min())
    return 2 * largest + max(1.5 * measured, largest * sqrt(min(C, N)) / 2)


def operand_units(inputs: Inputs, C: int, dtype: Format) -> Units:
    """The errors of a kernel with `dtype` operands and float32 accumulators (float64 where dtype is), against exact."""
    accumulator = F64 if dtype is F64 else F32
    accumulated = accumulator.unit_roundoff * _accumulation(inputs, C, accumulator)
    tiny = dtype.min_subnormal / 2
    gamma = float(-chunk_gamma(inputs.g, C).min()) if inputs.g.any() else 0.0
    # k e^gamma may be subnormal: an absolute error `tiny`, then multiplied by e^-gamma.
    split = tiny * exp(min(gamma, 700.0))
    return Units(
        dtype.unit_roundoff + split + accumulated, tiny, dtype.unit_roundoff, accumulated, accumulator.min_subnormal
    )


def mirror_units(inputs: Inputs, C: int, dtype: Format) -> Units:
    """The errors of the same kernel against its mirror, which rounds in the same places but adds in another order.

    The accumulators of both differ by delta roundoffs. A rounding to the operand format behind them then goes the other
    way with probability delta / 2u and is off by 2u: sqrt(2 u delta) in the mean square, and once in a while one whole
    unit in a single element (the output's own).
    """
    accumulator = F64 if dtype is F64 else F32
    delta = accumulator.unit_roundoff * _accumulation(inputs, C, accumulator)
    flips = sqrt(2 * dtype.unit_roundoff * delta)
    return Units(flips + delta, dtype.min_subnormal, 2 * dtype.unit_roundoff, delta, accumulator.min_subnormal)


def underflow_units(dtype: Format) -> Units:
    """The errors of underflow alone: what is left when every rounding of two runs is the same but for a power of two."""
    accumulator = F64 if dtype is F64 else F32
    return Units(0.0, dtype.min_subnormal, 0.0, 0.0, 2 * accumulator.min_subnormal)


def judge(inputs: Inputs, C: int, units: Units) -> Judged:
    """Reference A on `inputs` (float64), and the budget of a kernel with chunks of C tokens whose errors are `units`.

    Arrays inside: S `[B, H, DK, DV]`, E `[B, H, DV]`, R `[B, H, DK]`.
    """
    sizes = inputs.sizes
    # A product that underflows in an accumulator is lost whole: DK of them in M, A_qk, W S and Q S, C in the
    # substitution, in A_qk V~ and in the state. They are equal where the inputs are, so they do not cancel.
    lost = units.floor / 2 * (sizes.DK + min(C, sizes.N) + 1)
    u, tiny = units.operand, units.tiny + lost
    a = np.exp(inputs.g)
    root = sqrt(sizes.DK)
    S = inputs.state()
    E = np.zeros((sizes.B, sizes.H, sizes.DV))  # error of each column of the state, 2-norm over DK
    R = np.zeros((sizes.B, sizes.H, sizes.DK))  # error of each row of the state, 2-norm over DV
    written = np.zeros_like(E)  # sum of |w| since the chunk began
    o = np.empty((sizes.B, sizes.N, sizes.H, sizes.DV))
    row = np.empty((sizes.B, sizes.N, sizes.H))

    k_norms = np.linalg.norm(inputs.k, axis=-1)
    q_norms = np.linalg.norm(inputs.q, axis=-1)
    growth = np.maximum(1.0, np.abs(1.0 - inputs.beta * k_norms**2))  # |I - beta k k^T|_2; 1 for unit keys
    a_max = a.max(axis=-1)
    v_abs = np.abs(inputs.v)
    k_abs = np.abs(inputs.k)

    for t in range(sizes.N):
        if t % C == 0:
            written[...] = 0.0
            start, decay = S.copy(), np.ones((sizes.B, sizes.H, sizes.DK, 1))
        k, beta = inputs.k[:, t], inputs.beta[:, t, :, None]
        k_norm = k_norms[:, t, :, None]
        S *= a[:, t, :, :, None]
        decay *= a[:, t, :, :, None]
        recalled = (k[:, :, None, :] @ S)[:, :, 0]
        w = beta * (inputs.v[:, t] - recalled)
        before = np.sqrt(np.einsum("bhde,bhde->bhe", S, S))
        S += k[..., None] * w[:, :, None, :]
        o[:, t] = (inputs.q[:, t][:, :, None, :] @ S)[:, :, 0]

        w_abs = np.abs(w)
        written += w_abs
        local = u * (beta * (v_abs[:, t] + k_norm * before) + w_abs) + tiny * (1 + root * before)
        carried = a_max[:, t, :, None] * E
        row_local = np.sqrt((local * local).sum(-1))
        reach = (beta[..., 0] * k_norm[..., 0]) * np.sqrt((carried * carried).sum(-1)) + row_local
        R = a[:, t] * R + k_abs[:, t] * reach[..., None]
        E = growth[:, t, :, None] * carried + k_norm * local
        columns = np.sqrt(np.einsum("bhde,bhde->bhe", S, S))
        if t % C == C - 1 or t == sizes.N - 1:
            # The state moves on: Diag(e^gamma_C) S is rounded before the chunk's writes, which may cancel it, are added;
            # k e^(gamma_C - gamma_r) may be subnormal.
            start *= decay
            squares = start * start
            E += units.state * np.sqrt(squares.sum(-2)) + root * (tiny * written + lost)
            R += units.state * np.sqrt(squares.sum(-1)) + lost * sqrt(sizes.DV)
            R += (tiny * np.sqrt((written * written).sum(-1)))[..., None]
        bound = q_norms[:, t, :, None] * (E + u * columns + tiny * root) + tiny * (1 + written)
        bound += units.output * np.abs(o[:, t])
        row[:, t] = np.sqrt((bound * bound).sum(-1))

    state_row = np.minimum(R, np.sqrt((E * E).sum(-1))[..., None])
    return Judged(Outputs(o, S), Budget(row, state_row + tiny * root))
