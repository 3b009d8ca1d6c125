"""How far a correct kernel may be from reference A, computed beside reference A.

`judge` runs the recurrence in float64 and carries, per value column e, a bound E[e] on the 2-norm of the error of that
column of the state. It rests on |I - beta k k^T|_2 <= 1 for unit keys and beta in [0, 2]: an error is never amplified
from token to token, it only fades with the gate. docs/tolerances.md derives every term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from kda.formats import BF16, F32, F64, Format
from kda.numerics.domain import chunk_gamma, gate_window
from kda.numerics.inverse import Roundings, inverse_error
from kda.numerics.recurrence import run_chunk
from kda.problem import Inputs, Outputs
from kda.references.hopper import NEAR, NEAR_FORMATS

__all__ = ["Budget", "Judged", "Units", "accumulated", "doubling_units", "judge", "mirror_units", "operand_units"]


#: What a tensor core leaves out of a float32 operand that it reads as tf32, relative to it, at most.
TF32_CUT = 2.0**-10

#: Roundoffs in k e^-gamma beyond those of the decay to a later token: the reciprocal, off by up to a unit in the last
#: place, and the product with k.
RECIPROCAL = 2 + 1


@dataclass(frozen=True)
class Units:
    """The sizes of single errors, relative and absolute.

    operand: relative error of a product after its factors were rounded to the operand format. tiny: absolute error of
    a rounding below `normal`, the smallest number of full precision. output: relative error of the last rounding, of o.
    state: the same for the decay of the carried state over one chunk; floor: the smallest number that the accumulators
    hold. step: what each token adds to the relative error of the state; reference A's own, where it counts. merge: the
    relative error of a factor of the last merge of an inverse; steep: that of what is kept as the sum of two operands.
    near: what every channel of a row has kept since the chunk began, at least, where keys grow back to that beginning.
    roundoff: one rounding of the accumulators, for a kernel that goes token by token (`kda.numerics.steps`).
    """

    operand: float
    tiny: float
    normal: float
    output: float
    state: float
    floor: float
    step: float = 0.0
    merge: float = 0.0
    steep: float = 0.0
    near: float = inf
    roundoff: float = 0.0


@dataclass(frozen=True)
class Budget:
    """The largest allowed 2-norm (over DV) of the error of each row: o `[B, N, H]`, final_state `[B, H, DK]`."""

    o: np.ndarray
    final_state: np.ndarray

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


def _accumulation(inputs: Inputs, C: int, dtype: Format, inverse: bool) -> float:
    """The relative error of one number that went through the accumulators, in units of their roundoff.

    Sums of n terms in any order err by about sqrt(n) roundoffs (Higham and Mary, 2019; n is the worst case): DK terms
    in M, A_qk, W S and Q S, C terms in the substitution, in A_qk V~ and in the state. An absolute error of gamma is a
    relative one of e^gamma. inverse: e^gamma is a product, of e^g.
    """
    sizes, accumulator = inputs.sizes, _accumulator(dtype)
    length = min(C, sizes.N)
    of_decays = (_product_error if inverse else _gamma_error)(inputs.g, C, accumulator)
    if of_decays and _near(dtype, inverse) < inf:
        of_decays += RECIPROCAL
    roundings = 2 + sqrt(sizes.DK) + 2 * sqrt(length) + of_decays
    # Against float64, reference A's own error counts: its e^gamma is a product of rounded factors. So does that of an
    # explicit inverse (reference B), where equal keys and beta near 2 make its entries as large as they come.
    return roundings + length if accumulator is F64 else roundings


def _gamma_error(g: np.ndarray, C: int, accumulator: Format) -> float:
    """The largest error of gamma log2(e), in roundoffs of the accumulator.

    The rounding errors of a sum of equal gates all point the same way, so no law of square roots holds: the sum is made
    in the accumulator's format, token after token, on these very gates, and its error measured.
    """
    if not g.any():
        return 0.0
    gamma, wrong = _summed(_in_chunks(g, C), accumulator)
    # e^gamma is 0 in the accumulator from here on, and no error of gamma shows any more.
    zero = log(accumulator.min_subnormal)
    measured = float(wrong[gamma > zero].max(initial=0.0)) / accumulator.unit_roundoff
    largest = min(float(-gamma.min()), -zero)
    return 2 * largest + max(1.5 * measured, largest * sqrt(min(C, g.shape[1])) / 2)


def _summed(g: np.ndarray, accumulator: Format) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative sums over axis 2 of g `[B, chunks, C, H, DK]`, and how far those made in `accumulator` are off."""
    if accumulator is not F64:
        gamma = np.cumsum(g, axis=2)
        return gamma, np.abs(np.cumsum(g, axis=2, dtype=accumulator.numpy).astype(np.float64) - gamma)
    gamma, off = np.empty_like(g), np.empty_like(g)
    total, error = np.zeros_like(g[:, :, 0]), np.zeros_like(g[:, :, 0])
    for t in range(g.shape[2]):  # what each addition loses is known exactly (Knuth's TwoSum)
        added = g[:, :, t]
        new = total + added
        part = new - total
        error = error + ((total - (new - part)) + (added - part))
        total = new
        gamma[:, :, t], off[:, :, t] = new, np.abs(error)
    return gamma, off


def _product_error(g: np.ndarray, C: int, accumulator: Format) -> float:
    """The largest relative error of a product of e^g over tokens of one chunk, in roundoffs of the accumulator.

    Equal gates have equal errors, so these are added: of each factor that of the machine's 2^x, up to two units in the
    last place or four roundoffs, and the rounding of the product; of all together what the roundings of g log2(e), the
    constant and the product, make of gamma.
    """
    gates = _in_chunks(g, C)
    zero = log(accumulator.min_normal)  # e^gamma below it errs by an absolute amount
    factors = ((gates < 0) & (gates > zero)).sum(axis=2).max()
    largest = min(float(-gates.sum(axis=2).min()), -zero)
    return 1.25 * largest + 5.0 * float(factors)


def _in_chunks(g: np.ndarray, C: int) -> np.ndarray:
    """Gates `[B, N, H, DK]`, with zeros up to a whole chunk, as `[B, chunks, C, H, DK]`."""
    B, N, H, DK = g.shape
    padded = np.zeros((B, -(-N // C) * C, H, DK))
    padded[:, :N] = g
    return padded.reshape(B, -1, C, H, DK)


def operand_units(inputs: Inputs, C: int, dtype: Format, inverse: bool = False) -> Units:
    """The errors of a kernel with `dtype` operands and float32 accumulators (float64 where dtype is), against exact.

    inverse: see `judge`.
    """
    delta = accumulated(inputs, C, dtype, inverse)
    return Units(
        operand=dtype.unit_roundoff + delta,
        tiny=dtype.min_subnormal / 2,
        normal=dtype.min_normal,
        output=dtype.unit_roundoff,
        state=delta,
        floor=_floor(dtype, inverse),
        step=2 * F64.unit_roundoff if dtype is F64 else 0.0,
        merge=TF32_CUT + delta if dtype is BF16 else delta,
        steep=dtype.unit_roundoff**2 + delta,
        near=_near(dtype, inverse),
        roundoff=_accumulator(dtype).unit_roundoff,
    )


def accumulated(inputs: Inputs, C: int, dtype: Format, inverse: bool = False) -> float:
    """The relative difference of two numbers that left the accumulators of a kernel with `dtype` operands."""
    return _accumulator(dtype).unit_roundoff * _accumulation(inputs, C, dtype, inverse)


def mirror_units(inputs: Inputs, C: int, dtype: Format, inverse: bool = False) -> Units:
    """The errors of the same kernel against its mirror, which rounds in the same places but adds in another order.

    The accumulators of both differ by delta (see `accumulated`). A rounding to the operand format behind them then goes
    the other way with probability delta / 2u and is off by 2u: sqrt(2 u delta) in the mean square, and once in a while
    one whole unit in a single element (the output's own). Both multiply their decays in the same order, so that the
    same rows are near. inverse: see `judge`.
    """
    delta = accumulated(inputs, C, dtype, inverse)
    flips = sqrt(2 * dtype.unit_roundoff * delta)
    return Units(
        operand=flips + delta,
        tiny=dtype.min_subnormal,
        normal=dtype.min_normal,
        output=2 * dtype.unit_roundoff,
        state=delta,
        floor=_floor(dtype, inverse),
        merge=sqrt(TF32_CUT * delta) + delta if dtype is BF16 else delta,
        steep=dtype.unit_roundoff**2 + delta,
        near=_near(dtype, inverse),
        roundoff=2 * _accumulator(dtype).unit_roundoff,
    )


def doubling_units(inputs: Inputs, C: int, dtype: Format, inverse: bool = False) -> Units:
    """The errors between a run and one whose values are twice as large: every rounding is the same but for underflow.

    In float16 small values do underflow, and the difference can turn a rounding elsewhere the other way: there the two
    are as far apart as a kernel and its mirror. Which rows are near, M and A_qk hang on no value. inverse: see `judge`.
    """
    if dtype.min_exponent > -100:
        return mirror_units(inputs, C, dtype, inverse)
    return Units(
        operand=0.0,
        tiny=dtype.min_subnormal,
        normal=dtype.min_normal,
        output=0.0,
        state=0.0,
        floor=2 * _floor(dtype, inverse),
    )


def _accumulator(dtype: Format) -> Format:
    return F64 if dtype is F64 else F32


def _near(dtype: Format, inverse: bool) -> float:
    return NEAR if inverse and dtype in NEAR_FORMATS else inf


def _floor(dtype: Format, inverse: bool) -> float:
    accumulator = _accumulator(dtype)
    return 2 * accumulator.min_normal if inverse else accumulator.min_subnormal


def judge(
    inputs: Inputs, C: int, units: Units, sub_C: int | None = None, pairs: bool = False, inverse: bool = False
) -> Judged:
    """Reference A on `inputs` (float64), and the budget of a kernel with chunks of C tokens whose errors are `units`.

    sub_C: the length of the sub-chunks over which the exponent is split, C where None. pairs: it is not split inside
    them; the decay of each pair of tokens is formed in the accumulators. inverse: W and U are products with the rounded
    inverse of the triangular system, not its solution; every decay is a product of e^g, not e to a sum; below the
    sub-chunks, blocks of sub_C, 2 sub_C, ... tokens are split, each at its own border, and near rows at the chunk's
    beginning; and what is subnormal in an accumulator may be flushed to zero (the Hopper program). Arrays inside: S
    `[B, H, DK, DV]`, E `[B, H, DV]`, R `[B, H, DK]`.
    """
    sizes = inputs.sizes
    # Products that underflow in an accumulator: DK of them in M, A_qk, W S and Q S, C in the substitution, in A_qk V~
    # and in the state. Their errors are equal where the inputs are, so they do not cancel.
    lost = units.floor / 2 * (sizes.DK + min(C, sizes.N) + 1)
    u, tiny = units.operand, units.tiny + lost
    root = sqrt(sizes.DK)
    S = inputs.state()
    E = np.zeros((sizes.B, sizes.H, sizes.DV))  # error of each column of the state, 2-norm over DK
    R = np.zeros((sizes.B, sizes.H, sizes.DK))  # error of each row of the state, 2-norm over DV
    o = np.empty((sizes.B, sizes.N, sizes.H, sizes.DV))
    row = np.empty((sizes.B, sizes.N, sizes.H))

    # Below, what has tokens has them on its first axis: those of a chunk are looked at together.
    o_by_token, row_by_token = np.moveaxis(o, 1, 0), np.moveaxis(row, 1, 0)
    q, k, v, a = (np.moveaxis(x, 1, 0) for x in (inputs.q, inputs.k, inputs.v, np.exp(inputs.g)))
    beta = np.moveaxis(inputs.beta, 1, 0)[..., None]
    q_abs, k_abs = np.abs(q), np.abs(k)
    k_norm, q_norm = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (k, q))
    growth = np.maximum(1.0, np.abs(1.0 - beta * k_norm**2))  # |I - beta k k^T|_2; 1 for unit keys
    a_max = a.max(axis=-1, keepdims=True)
    # q e^gamma and k e^gamma where they are subnormal: q_lost `[N, B, H, DK]` meets the state that has not decayed and
    # k e^-gamma, k_lost k e^-gamma alone. A gate with a deeper gamma is refused by a kernel that splits the exponent.
    window = gate_window(C, sub_C)

    def decayed(window: int, least: float) -> np.ndarray:
        return np.moveaxis(np.exp(np.maximum(chunk_gamma(inputs.g, window), least)), 1, 0)

    least = log(units.normal)
    small = decayed(window, least)
    q_lost, k_lost = (_underflow(x * small, units) for x in (q_abs, k_abs))
    border = 2 * window if inverse else C
    while border < C:  # a token that was not near the border of a sub-chunk may be near that of a larger block
        since = decayed(border, least)
        q_lost, k_lost = (
            np.maximum(lost_, _underflow(x * since, units)) for lost_, x in ((q_lost, q_abs), (k_lost, k_abs))
        )
        border *= 2
    q_lost_norm = np.linalg.norm(q_lost, axis=-1, keepdims=True)
    if window < C or pairs:  # the state has not decayed since the chunk began, whatever gamma started anew since
        q_lost_norm = np.linalg.norm(_underflow(q_abs * decayed(C, -inf), units), axis=-1, keepdims=True)
    # In units of `normal`, for e^-gamma overflows nearly in every format.
    q_lost_max, k_lost_max = (x.max(axis=-1, keepdims=True) / units.normal for x in (q_lost, k_lost))
    weights = (k_abs * (units.normal / small)).sum(-1, keepdims=True)
    if pairs:  # no k e^-gamma: what is lost of k e^gamma and q e^gamma meets keys of earlier sub-chunks alone
        weights = np.zeros_like(weights)
    q_flushed = k_flushed = back = np.zeros_like(k_norm)
    if units.near < inf:
        q_flushed, k_flushed, back = _near_rows(q_abs, k_abs, np.moveaxis(chunk_gamma(inputs.g, C), 1, 0), units)

    for begin in range(0, sizes.N, C):
        at = slice(begin, begin + C)
        at_start = np.sqrt(np.einsum("bhde,bhde->bhe", S, S))
        if inverse:
            sizes_of_errors = Roundings(u, tiny, units.normal, units.merge, units.steep)
            of_inverse = np.moveaxis(inverse_error(inputs.tokens(begin, begin + C), S, sizes_of_errors), 2, 0)
        chunk = run_chunk(q[at], k[at], v[at], a[at], beta[at], S, norms=units.step > 0)
        S, o_by_token[at] = chunk.S, chunk.o

        w_abs = np.abs(chunk.w)
        written = np.cumsum(w_abs, axis=0)  # sum of |w| since the chunk began
        plain = np.cumsum(units.normal * k_abs[at].sum(-1, keepdims=True) * w_abs, axis=0)  # of |k|_1 |w|, too
        amplified = weights[at] * w_abs  # sum of |k e^-gamma|_1 |w| since the (sub-)chunk began, times `normal`
        amplified_before = np.zeros_like(w_abs)
        for first in range(0, len(w_abs), window):
            sums = amplified[first : first + window]
            if first:  # keys of earlier sub-chunks come with a factor of at most 1
                amplified_before[first] = plain[first - 1]
                sums[0] += plain[first - 1]
            np.cumsum(sums, axis=0, out=sums)
            amplified_before[first + 1 : first + window] = sums[:-1]
        grown_before = np.zeros_like(w_abs)  # sum of |k e^-gamma|_1 |w|, likewise, of near rows
        if units.near < inf:
            np.cumsum((back[at] * w_abs)[:-1], axis=0, out=grown_before[1:])
        room = w_abs if inverse else np.maximum(w_abs, beta[at] * np.abs(v[at]))
        local = u * (beta[at] * chunk.recalled + w_abs + room)
        if inverse:
            local += of_inverse + lost * np.maximum(beta[at] - 1, 0)  # beta multiplies sums that lost so much
        # V~, L and S may be subnormal, and so may W, which meets the state that has not decayed, and k e^gamma. W is
        # not zero in the channels that a key has reached.
        reached = np.logical_or.accumulate(k[at] != 0, axis=0).sum(-1, keepdims=True)
        written_before = np.concatenate([np.zeros_like(w_abs[:1]), written[:-1]])
        local += tiny * (1 + beta[at] * (k_norm[at] * root + written_before))
        local += tiny * np.sqrt(reached) * (beta[at] if inverse else beta[at] > 0) * at_start
        local += beta[at] * (k_lost_max[at] * amplified_before + k_flushed[at] * grown_before)
        if window < C:  # that factor, too, may be subnormal
            local += tiny * root * beta[at] * k_norm[at] * written_before

        row_local = np.sqrt((local * local).sum(-1, keepdims=True))
        of_columns = np.empty_like(local)
        for i, t in enumerate(range(begin, min(begin + C, sizes.N))):
            carried = a_max[t] * E
            reach = beta[t] * k_norm[t] * np.sqrt((carried * carried).sum(-1, keepdims=True)) + row_local[i]
            R = a[t] * R + k_abs[t] * reach
            E = growth[t] * carried + k_norm[t] * local[i]
            if units.step:  # S Diag(a), then + k w: each entry is rounded twice at every token
                E += units.step * chunk.columns[i]
                R += units.step * chunk.rows[i]
            of_columns[i] = E
        # The state moves on: Diag(e^gamma_C) S is rounded before the chunk's writes, which may cancel it, are added;
        # k e^(gamma_C - gamma_r) may be subnormal.
        squares = chunk.kept * chunk.kept
        E += units.state * np.sqrt(squares.sum(-2)) + root * (tiny * written[-1] + lost)
        R += units.state * np.sqrt(squares.sum(-1)) + lost * sqrt(sizes.DV)
        R += tiny * np.sqrt((written[-1] * written[-1]).sum(-1, keepdims=True))
        of_columns[-1] = E
        bound = q_norm[at] * (of_columns + tiny * root) + u * chunk.asked + tiny * (1 + written)
        bound += q_lost_norm[at] * at_start + q_lost_max[at] * amplified + q_flushed[at] * grown_before
        if window < C:
            bound += tiny * root * q_norm[at] * written
        bound += units.output * np.abs(chunk.o)
        row_by_token[at] = np.sqrt((bound * bound).sum(-1))

    state_row = np.minimum(R, np.sqrt((E * E).sum(-1))[..., None])
    return Judged(Outputs(o, S), Budget(row, state_row + tiny * root))


def _underflow(x: np.ndarray, units: Units) -> np.ndarray:
    """The largest absolute error that rounding x >= 0 can make beyond a relative one."""
    return np.where(x < units.normal, np.minimum(x, units.tiny), 0.0)


def _near_rows(q: np.ndarray, k: np.ndarray, gamma: np.ndarray, units: Units) -> tuple[np.ndarray, ...]:
    """What near rows lose of q e^gamma and of k e^gamma in a channel, at most, and their |k e^-gamma|_1, 0 in others.

    q, k >= 0, gamma `[N, B, H, DK]`, since the chunk began. What is subnormal is lost as a whole: it may be flushed.
    """
    off = units.state  # how far a decay may be off
    near = gamma.min(axis=-1, keepdims=True) >= log(units.near) - off
    since, until = (np.exp(np.where(near, x, -inf)) for x in (gamma, -gamma))
    least = (1 + off) * units.normal
    q_lost, k_lost = (np.where(x * since < least, x * since, 0.0).max(axis=-1, keepdims=True) for x in (q, k))
    return q_lost, k_lost, (k * until).sum(axis=-1, keepdims=True)
