"""The arithmetic of `kda_forward`'s Hopper program in NumPy: any gate, an inverse without division.

A chunk has 64 tokens, in groups of 8. Each gate is exponentiated once, a = e^g, and every other decay is a product of
a's: from the beginning of a group to a token (P), from a token to the end of its group (until), of whole groups (t).
The decay from token j to token i is

    in one group of 8             a_{j+1} ... a_i, for every pair and channel in float32
    across an anchor at row r     (a_{j+1} ... a_{r-1}) (a_r ... a_i), with r the middle of the smallest of the aligned
                                  blocks of 64, 32 and 16 tokens that holds both

so that below the diagonal blocks of 8, M and A_qk are one block of 32 rows, two of 16 and four of 8, each a matrix
product. But a bf16 has room for more: row i is *near* if every channel still has 2^-60 or more of what it had when the
chunk began, and its one anchor is then that beginning,

    M_ij, and A_qk,ij of an earlier group's j     (k_i e^gamma_i) (k_j e^-gamma_j), and with q_i

one product each for all near rows, which leaves the groups of A_qk. Decays only fall: near rows are a chunk's first,
and no later gate has a say in it. Where the portable program substitutes [K e^gamma | V], this one makes the inverse
first:

    L = M diag(beta),   T = (I + L)^-1,   W = T (K e^gamma),   V~ = diag(beta) (T V - W S)

blocks of 16 by substitution, merged two by two: T21 = -T22 (L21 T11). The diagonal of T is 1, which every format holds,
and beta is never rounded. A row of T is steep where a beta of the chunk up to it is above 1: its entries need not fade,
and it is the sum of two rounded rows. So is the diagonal of A_qk, each token's q.k, on which a first token's output
hangs alone. In a narrow `precision` the roundings are:

    operands (rounded to `precision`): q, k, v, QG, KE, KG, KB (K e^-gamma, as far as rows are near), the rows and keys
        of every level, A_qk, and what that took off its diagonal, T (T1, and T2 = T - T1 of steep rows), W, S, V~, o
    tf32 (bf16 operands, rows that are not steep): the factors of the last merge, truncated as a tensor core reads them
    float32: a, every product of a's and the reciprocals of KB, the diagonal blocks (of near rows those of A_qk), M,
        beta x of the substitution, L of the merges, the blocks of 16 and their merge to 32, T V - W S on one
        accumulator and its product with beta before it is rounded, S

Sums run over the inner index in ascending order, which on tensor cores they do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from kda.formats import BF16, F32, F64, Format
from kda.problem import Inputs, Outputs
from kda.references._layout import chunks, heads_first
from kda.references.arithmetic import Arithmetic, Exp2, exp2_correctly_rounded
from kda.references.trace import Recorder, Trace

__all__ = ["BLOCK", "CHUNK", "GROUP", "NEAR", "NEAR_FORMATS", "ref_hopper"]

#: Tokens of a chunk, and of a group: a thread's share, and the diagonal blocks whose decays are formed pair by pair.
CHUNK, GROUP = 64, 8

#: Rows of the diagonal blocks of T that are made by substitution.
BLOCK = 16

#: What every channel of a near row has kept since the chunk began, at least. A bf16 has float32's exponents, -126 to
#: 127: e^gamma and e^-gamma, at most 2^60, multiply a q or k from 2^-66 to 2^67 without underflow or overflow.
NEAR = 2.0**-60

#: The operand formats in which rows are near; the exponents of float16 are too few. (No program has float32 operands.
#: The order of its products shows in them.)
NEAR_FORMATS = (BF16, F32)


def ref_hopper(
    inputs: Inputs,
    precision: Format = F64,
    exp2: Exp2 | None = None,
    trace: Trace | None = None,
    lean: float = 0.0,
    scale: float = 1.0,
) -> Outputs:
    """The Hopper program of `kda_forward`, all heads and value channels at once.

    precision: the program's operand format; in float64 nothing is rounded. exp2: the float32 2^x of the machine under
    test (correctly rounded where None). trace: called with the `ChunkTrace` of each chunk at the end of the run, but
    for gamma and U, which are not made here; its W is multiplied by beta. lean: see `Arithmetic`. scale multiplies o
    before it is rounded. Raises InputError if `inputs` are malformed.
    """
    sizes = inputs.check()
    machine = Arithmetic(precision, exp2 or exp2_correctly_rounded, lean)
    op, gemm, accum, zeros = machine.op, machine.gemm, machine.accum, machine.zeros
    recorder = Recorder(sizes) if trace else None
    every = slice(None)
    heads = (sizes.B, sizes.H)
    of_group = np.arange(CHUNK) // GROUP
    earlier = of_group[:, None] > of_group

    def whole(x: np.ndarray) -> np.ndarray:
        # Tokens past N, to the end of a chunk, have k = v = beta = g = 0 and change nothing.
        padding = [(0, 0), (0, 0), (0, -sizes.N % CHUNK)] + [(0, 0)] * (x.ndim - 3)
        return np.pad(x, padding)

    o = np.zeros((*heads, sizes.N, sizes.DV))
    with np.errstate(all="ignore"):
        q, k, v = (whole(op(heads_first(x))) for x in (inputs.q, inputs.k, inputs.v))
        g, beta = (whole(heads_first(x).astype(accum)) for x in (inputs.g, inputs.beta))
        decays, S = machine.exp(g), inputs.state().astype(accum)
        for c, rows in enumerate(chunks(q.shape[2], CHUNK)):
            Qc, Kc, Vc, be = q[:, :, rows], k[:, :, rows], v[:, :, rows], beta[:, :, rows]
            a = decays[:, :, rows]

            # Prep. Decays inside groups, and of groups: t[G] decays over all of group G.
            P, until = _since_group_began(a), _until_group_ends(a)
            QP, KP, KM = Qc * P, Kc * P, Kc * until
            t = [P[:, :, last] for last in range(GROUP - 1, CHUNK, GROUP)]
            pre = _of_groups(t, [range(G) for G in range(8)])
            post = _of_groups(t, [range(G + 1, 8) for G in range(8)])
            decay = _since_group_began(a, pre)
            QG, KE, KG = op(Qc * decay), op(Kc * decay), op(KM * post)
            dec = pre[:, :, -1] * t[-1]

            # Across an anchor: rows have decayed since, keys until then.
            M, A_qk = zeros(*heads, CHUNK, CHUNK), zeros(*heads, CHUNK, CHUNK)
            for level in (32, 16, 8):
                for anchor in range(level, CHUNK, 2 * level):
                    below, before = slice(anchor, anchor + level), slice(anchor - level, anchor)
                    r, width = anchor // GROUP, level // GROUP
                    since = _of_groups(t, [range(r, G) for G in range(r, r + width)])
                    ahead = _of_groups(t, [range(G + 1, r) for G in range(r - width, r)])
                    keys = op(KM[:, :, before] * ahead).swapaxes(-1, -2)
                    for product, factor in ((M, KP), (A_qk, QP)):
                        product[:, :, below, before] = gemm(
                            op(factor[:, :, below] * since), keys, zeros(*heads, level, level)
                        )

            # Inside a group: row i against column j, [.., i, j, DK].
            for group in chunks(CHUNK, GROUP):
                decayed = _grown(Kc[:, :, group], a[:, :, group]).swapaxes(-1, -2)
                for product, factor in ((M, Kc), (A_qk, Qc)):
                    pairs = gemm(factor[:, :, group, None, :], decayed, zeros(*heads, GROUP, 1, GROUP))
                    product[:, :, group, group] = pairs[..., 0, :]

            # Near rows: they have decayed since the chunk began, and keys grow back to it.
            if precision in NEAR_FORMATS:
                near = (decay >= NEAR).all(axis=-1, keepdims=True)
                KB = op(Kc * (1 / np.where(near, decay, accum(1)))).swapaxes(-1, -2)
                M = np.where(near, gemm(KE, KB, zeros(*heads, CHUNK, CHUNK)), M)
                A_qk = np.where(near & earlier, gemm(QG, KB, zeros(*heads, CHUNK, CHUNK)), A_qk)
            M, A_qk = np.tril(M, -1), np.tril(A_qk)
            A_c = op(A_qk)
            lost = op(np.einsum("...ii->...i", A_qk - A_c))

            # Later tokens have no say in it, so that they change no bit of an earlier one.
            steep = np.logical_or.accumulate(be > 1, axis=-1)[..., None]
            T = _inverse(M, be[..., None], steep, machine)
            T1 = op(T)
            T2 = op(np.where(steep, T - T1, accum(0)))
            W = op(gemm(T2, KE, gemm(T1, KE, zeros(*heads, CHUNK, sizes.DK))))

            # Walk.
            S_s = op(S)
            of_values = gemm(T1, Vc, zeros(*heads, CHUNK, sizes.DV))
            Vt = be[..., None] * gemm(T2, Vc, gemm(-W, S_s, of_values))
            Vt_c = op(Vt)
            acc_o = gemm(A_c, Vt_c, gemm(QG, S_s, zeros(*heads, CHUNK, sizes.DV)))
            o_c = op(accum(scale) * (acc_o + lost[..., None] * Vt_c))
            real = slice(rows.start, min(rows.stop, sizes.N))
            tokens = slice(0, real.stop - real.start)
            o[:, :, real] = o_c[:, :, tokens]
            S = gemm(KG.swapaxes(-1, -2), Vt_c, dec[..., None] * S)

            if recorder:
                by_pair = {"M": M, "L": M * be[..., None, :], "A_qk": A_qk}
                square = {stage: value[:, :, tokens, tokens] for stage, value in by_pair.items()}
                by_row = {"W": be[..., None] * W, "V_tilde": Vt, "o": o_c}
                tall = {stage: value[:, :, tokens] for stage, value in by_row.items()}
                recorder.put(c, real, (every, every), every, **square, **tall, S=S)
    if recorder and trace:
        recorder.replay(trace)
    return Outputs(np.ascontiguousarray(np.moveaxis(o, 1, 2)), S.astype(np.float64))


def _since_group_began(a: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
    """a_first ... a_i of each group, multiplied forwards, onto `before` if given: a `[.., C, DK]` to the same shape."""
    decay = a.copy()
    if before is not None:
        decay[..., ::GROUP, :] *= before[..., ::GROUP, :]
    for i in range(1, GROUP):
        decay[..., i::GROUP, :] *= decay[..., i - 1 :: GROUP, :]
    return decay


def _until_group_ends(a: np.ndarray) -> np.ndarray:
    """a_{j+1} ... a_last of each group, multiplied backwards: a `[.., C, DK]` to the same shape."""
    decay = np.ones_like(a)
    for j in reversed(range(GROUP - 1)):
        decay[..., j::GROUP, :] = decay[..., j + 1 :: GROUP, :] * a[..., j + 1 :: GROUP, :]
    return decay


def _of_groups(t: Sequence[np.ndarray], groups: Sequence[range]) -> np.ndarray:
    """For each token of a run of groups the product of t over `groups` of its own, ascending: `[.., tokens, DK]`."""
    one = np.ones_like(t[0])
    products = [functools.reduce(np.multiply, (t[G] for G in each), one) for each in groups]
    return np.repeat(np.stack(products, axis=-2), GROUP, axis=-2)


def _grown(k: np.ndarray, a: np.ndarray) -> np.ndarray:
    """k_j a_{j+1} ... a_i, one factor at a time: k, a `[.., R, DK]` to `[.., i, j, DK]`, 0 where j > i."""
    R = k.shape[-2]
    grown = np.zeros((*k.shape[:-2], R, R, k.shape[-1]), k.dtype)
    for i in range(R):
        grown[..., i, :i, :] = grown[..., i - 1, :i, :] * a[..., i, None, :]
        grown[..., i, i, :] = k[..., i, :]
    return grown


def _inverse(M: np.ndarray, beta: np.ndarray, steep: np.ndarray, machine: Arithmetic) -> np.ndarray:
    """(I + M diag(beta))^-1: M `[.., C, C]` strictly lower, beta and steep `[.., C, 1]`."""
    T, L = np.zeros_like(M), M * beta.swapaxes(-1, -2)
    for block in chunks(CHUNK, BLOCK):
        of_block, rate = M[..., block, block], beta[..., block, :]
        x = np.broadcast_to(np.eye(BLOCK, dtype=M.dtype), of_block.shape).copy()
        for j in range(BLOCK):
            x[..., j + 1 :, :] -= of_block[..., j + 1 :, j, None] * (rate[..., j, None, :] * x[..., j, None, :])
        T[..., block, block] = x
    for half in (16, 32):
        for start in range(0, CHUNK, 2 * half):
            first, second = slice(start, start + half), slice(start + half, start + 2 * half)
            blocks = L[..., second, first], T[..., first, first], T[..., second, second]
            T21 = _merged(*blocks, machine)
            if half == 32 and machine.precision == BF16:
                T21 = np.where(steep[..., second, :], T21, _merged(*blocks, machine, _tf32))
            T[..., second, first] = T21
    return T


def _merged(
    L21: np.ndarray,
    T11: np.ndarray,
    T22: np.ndarray,
    machine: Arithmetic,
    read: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> np.ndarray:
    """-T22 (L21 T11), every factor as `read` gives it to its product."""
    cleared = machine.zeros(*L21.shape)
    return -machine.gemm(read(T22), read(machine.gemm(read(L21), read(T11), cleared)), cleared)


def _tf32(x: np.ndarray) -> np.ndarray:
    """float32 `x` as a tensor core reads it: the lowest 13 of 23 bits are left out."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
