"""The control flow of `kda_forward` in NumPy: any gate, no factor of any product above 1.

The decay between two tokens of a sub-chunk of 16 is formed for that pair, in float32; across the border of a sub-chunk
it is split there. Every exponent is a sum of gates in the order in which the kernel adds them: forwards from the first
token of the chunk (gamma), forwards from a border (rows) and backwards from it (keys). In a narrow `precision` the
roundings are exactly the kernel's, and so is the order of every sum:

    operands (rounded to `precision`): q, k, v, Qp, Qb, Kb, Kc, A_c, W, S_s, Vt_c, Kd, o
    float32: every sum of gates and its exponential, the diagonal blocks, M, L, A_qk, the right-hand sides, U, Vt, S
"""

from __future__ import annotations

import numpy as np

from kda.formats import F64, Format
from kda.problem import InputError, Inputs, Outputs
from kda.references._layout import chunks, heads_first
from kda.references.arithmetic import Arithmetic, Exp2, exp2_correctly_rounded
from kda.references.trace import Recorder, Trace

__all__ = ["SUB_CHUNK", "ref_forward"]

#: Tokens of a sub-chunk: the rows of the smallest tensor-core product, so that each block of rows has its own border.
SUB_CHUNK = 16


def ref_forward(
    inputs: Inputs,
    C: int,
    block_DV: int,
    precision: Format = F64,
    exp2: Exp2 | None = None,
    trace: Trace | None = None,
    lean: float = 0.0,
    scale: float = 1.0,
) -> Outputs:
    """`kda_forward`, all heads and value channels at once.

    C: chunk length, a multiple of 16. block_DV is checked and otherwise without effect, for no value channel enters the
    arithmetic of another. precision: the kernel's operand format. exp2: the float32 2^x of the machine under test
    (correctly rounded where None). trace: called with the `ChunkTrace` of each chunk at the end of the run. lean: see
    `Arithmetic`. scale: what o is multiplied by before it is rounded. Raises InputError if `inputs` are malformed, C is
    no multiple of 16 or block_DV < 1.
    """
    sizes = inputs.check()
    chunks(sizes.DV, block_DV, "block_DV")
    if C < 1 or C % SUB_CHUNK:
        raise InputError(f"C is {C}; expected a multiple of {SUB_CHUNK}")
    machine = Arithmetic(precision, exp2 or exp2_correctly_rounded, lean)
    op, exp, gemm, accum = machine.op, machine.exp, machine.gemm, machine.accum
    recorder = Recorder(sizes) if trace else None
    every = slice(None)

    def whole(x: np.ndarray) -> np.ndarray:
        # Tokens past N, to the end of a sub-chunk, have k = v = beta = g = 0 and change nothing.
        padding = [(0, 0), (0, 0), (0, -sizes.N % SUB_CHUNK)] + [(0, 0)] * (x.ndim - 3)
        return np.pad(x, padding)

    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    with np.errstate(all="ignore"):
        q, k, v = (whole(op(heads_first(x))) for x in (inputs.q, inputs.k, inputs.v))
        g, beta = (whole(heads_first(x).astype(accum)) for x in (inputs.g, inputs.beta))
        S = inputs.state().astype(accum)
        for c, rows in enumerate(chunks(q.shape[2], C)):
            Qc, Kc, Vc = q[:, :, rows], k[:, :, rows], v[:, :, rows]
            gc, be = g[:, :, rows], beta[:, :, rows]
            length = be.shape[-1]

            gam = np.cumsum(gc, axis=-2)
            Ep = exp(gam)
            Qp = op(Qc * Ep)

            M = machine.zeros(sizes.B, sizes.H, length, length)
            A_qk = machine.zeros(sizes.B, sizes.H, length, length)
            for sub in chunks(length, SUB_CHUNK):
                Qr, Kr, gr = Qc[:, :, sub], Kc[:, :, sub], gc[:, :, sub]

                # Inside the sub-chunk: row i against column j, [.., i, j, DK].
                decayed = Kr[:, :, None] * exp(_between(gr))
                for product, factor in ((M, Kr), (A_qk, Qr)):
                    zeros = machine.zeros(sizes.B, sizes.H, SUB_CHUNK, 1, SUB_CHUNK)
                    pairs = gemm(factor[..., None, :], decayed.swapaxes(-1, -2), zeros)
                    product[:, :, sub, sub] = pairs[..., 0, :]

                # Across its border: rows have decayed since, keys until then.
                since = exp(np.cumsum(gr, axis=-2))
                earlier = slice(0, sub.start)
                carried = op(Kc[:, :, earlier] * exp(_until_end(gc[:, :, earlier]))).swapaxes(-1, -2)
                for product, factor in ((M, op(Kr * since)), (A_qk, op(Qr * since))):
                    product[:, :, sub, earlier] = gemm(factor, carried, product[:, :, sub, earlier])

            i, j = np.arange(length)[:, None], np.arange(length)[None, :]
            L = np.where(j < i, be[..., None, :] * M, accum(0))
            A_qk = np.where(j <= i, A_qk, accum(0))
            A_c = op(A_qk)

            # Row by row or sub-chunk by sub-chunk, every row loses s = 0, 1, ... in order.
            X = np.concatenate([Kc * Ep, Vc], axis=-1)
            for s in range(length - 1):
                X[..., s + 1 :, :] -= L[..., s + 1 :, s, None] * X[..., s, None, :]
            X = be[..., None] * X
            W = op(X[..., : sizes.DK])
            U = X[..., sizes.DK :]

            S_s = op(S)
            Vt = U - gemm(W, S_s, machine.zeros(sizes.B, sizes.H, length, sizes.DV))
            Vt_c = op(Vt)

            acc_o = gemm(Qp, S_s, machine.zeros(sizes.B, sizes.H, length, sizes.DV))
            o_c = op(accum(scale) * gemm(A_c, Vt_c, acc_o))
            real = slice(rows.start, min(rows.stop, sizes.N))
            tokens = slice(0, real.stop - real.start)
            o[:, :, real] = o_c[:, :, tokens]

            Kd = op(Kc * exp(_until_end(gc)))
            S = gemm(Kd.swapaxes(-1, -2), Vt_c, Ep[..., -1, :, None] * S)

            if recorder:
                of_pairs = {"M": np.tril(M, -1), "L": L, "A_qk": A_qk}
                square = {stage: value[:, :, tokens, tokens] for stage, value in of_pairs.items()}
                by_row = {"gamma": gam, "W": W, "U": U, "V_tilde": Vt, "o": o_c}
                tall = {stage: value[:, :, tokens] for stage, value in by_row.items()}
                recorder.put(c, real, (every, every), every, **square, **tall, S=S)
    if recorder and trace:
        recorder.replay(trace)
    return Outputs(np.ascontiguousarray(np.moveaxis(o, 1, 2)), S.astype(np.float64))


def _between(g: np.ndarray) -> np.ndarray:
    """g_{j+1} + ... + g_i, added in this order: g `[.., R, DK]` to `[.., i, j, DK]`, 0 where j >= i."""
    R = g.shape[-2]
    sums = np.zeros((*g.shape[:-1], R, g.shape[-1]), g.dtype).swapaxes(-2, -3)
    for i in range(1, R):
        sums[..., i, :i, :] = sums[..., i - 1, :i, :] + g[..., i, None, :]
    return sums


def _until_end(g: np.ndarray) -> np.ndarray:
    """g_{j+1} + ... + g_last, added from the last: g `[.., R, DK]` to the same shape."""
    sums = np.zeros_like(g)
    if g.shape[-2] > 1:
        sums[..., :-1, :] = np.cumsum(g[..., :0:-1, :], axis=-2)[..., ::-1, :]
    return sums
