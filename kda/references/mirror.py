"""Reference C: the control flow of the kernel, in NumPy (article, sections 3.3 and 4).

The exponential is split, e^(gam_c - gam_i) = e^gam_c * e^-gam_i, so that M and A_qk are one matrix product each; W and
U come out of one forward substitution; beta is multiplied in after the solve. In a narrow `precision` it rounds exactly
where the kernel rounds, and adds in the order in which the kernel adds:

    operands (rounded to `precision`): q, k, v, Kp, Km, Qp, A_c, W, S_s, Vt_c, Kd, o
    float32: gam, Ep, Em, M, L, A_qk, the right-hand sides, U, Vt, acc_o, S

`ref_C` is the text to read; `ref_C_fast` does the same operations on the same numbers in the same order, all heads and
value channels at once. e^-gam overflows outside the kernel's gate domain, and the mirror then gives inf and nan, as the
kernel would.
"""

from __future__ import annotations

import numpy as np

from kda.formats import F64, Format
from kda.problem import Inputs, Outputs
from kda.references._layout import chunks, heads_first
from kda.references.arithmetic import Arithmetic, Exp2, exp2_correctly_rounded
from kda.references.trace import Recorder, Trace

__all__ = ["ref_C", "ref_C_fast"]


def ref_C(
    inputs: Inputs,
    C: int,
    block_DV: int,
    precision: Format = F64,
    exp2: Exp2 | None = None,
    trace: Trace | None = None,
) -> Outputs:
    """The kernel, loop for loop: value-channel blocks, then heads, then chunks.

    C: chunk length in tokens; block_DV: value channels per program; the last chunk and the last block may be short.
    precision: the kernel's operand format. exp2: the float32 2^x of the machine under test (correctly rounded where
    None). trace: called with the `ChunkTrace` of each chunk at the end of the run.
    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed, C < 1 or
    block_DV < 1. Article, section 3.3 (float64) and section 4 (the roundings).
    """
    sizes = inputs.check()
    machine = Arithmetic(precision, exp2 or exp2_correctly_rounded)
    op, exp, gemm, accum = machine.op, machine.exp, machine.gemm, machine.accum
    recorder = Recorder(sizes) if trace else None

    state = inputs.state()
    o = np.zeros(sizes.shape("o"))
    with np.errstate(all="ignore"):
        for dv in chunks(sizes.DV, block_DV, "block_DV"):  # grid.x
            for bbh in range(sizes.B * sizes.H):  # grid.y
                b, h = bbh // sizes.H, bbh % sizes.H
                S = state[b, h, :, dv].astype(accum)
                for c, rows in enumerate(chunks(sizes.N, C)):  # T.Pipelined
                    Qc = op(inputs.q[b, rows, h])
                    Kc = op(inputs.k[b, rows, h])
                    Vc = op(inputs.v[b, rows, h, dv])
                    gc = inputs.g[b, rows, h].astype(accum)
                    be = inputs.beta[b, rows, h].astype(accum)
                    length, width = Vc.shape
                    last = length - 1
                    i, j = np.arange(length)[:, None], np.arange(length)[None, :]

                    gam = np.zeros_like(gc)
                    gam[0] = gc[0]
                    for r in range(1, length):
                        gam[r] = gam[r - 1] + gc[r]
                    Ep = exp(gam)
                    Em = exp(-gam)

                    # The exponential splits: two matrix products instead of C^2 / 2 weighted inner products.
                    Kp = op(Kc * Ep)
                    Km = op(Kc * Em)
                    Qp = op(Qc * Ep)
                    M = gemm(Kp, Km.T, machine.zeros(length, length))
                    L = np.where(j < i, be[None, :] * M, accum(0))
                    A_qk = gemm(Qp, Km.T, machine.zeros(length, length))
                    A_qk = np.where(j <= i, A_qk, accum(0))
                    A_c = op(A_qk)

                    # One solve of (I + L) X = [k e^gam | v]; beta is not in the right-hand side.
                    X = np.concatenate([Kc * Ep, Vc], axis=1)
                    for r in range(length):
                        for s in range(r):
                            X[r] -= L[r, s] * X[s]
                    X = be[:, None] * X
                    W = op(X[:, : sizes.DK])
                    U = X[:, sizes.DK :]

                    S_s = op(S)
                    WS = gemm(W, S_s, machine.zeros(length, width))
                    Vt = U - WS
                    Vt_c = op(Vt)

                    acc_o = gemm(Qp, S_s, machine.zeros(length, width))
                    acc_o = gemm(A_c, Vt_c, acc_o)
                    o_c = op(acc_o)
                    o[b, rows, h, dv] = o_c

                    S = Ep[last][:, None] * S
                    Kd = op(Kc * (Ep[last] * Em))
                    S = gemm(Kd.T, Vt_c, S)

                    if recorder:
                        recorder.put(c, rows, (b, h), dv, gamma=gam, M=np.tril(M, -1), L=L, A_qk=A_qk, W=W)
                        recorder.put(c, rows, (b, h), dv, U=U, V_tilde=Vt, o=o_c, S=S)
                state[b, h, :, dv] = S
    if recorder and trace:
        recorder.replay(trace)
    return Outputs(o, state)


def ref_C_fast(
    inputs: Inputs,
    C: int,
    block_DV: int,
    precision: Format = F64,
    exp2: Exp2 | None = None,
    trace: Trace | None = None,
    lean: float = 0.0,
) -> Outputs:
    """`ref_C` for all heads and value channels at once; the same bits in a narrow `precision`.

    Arguments, outputs and errors are those of `ref_C`. block_DV is checked and otherwise without effect, for no value
    channel enters the arithmetic of another. lean: see `Arithmetic`. Article, section 3.3 (float64) and section 4 (the
    roundings).
    """
    sizes = inputs.check()
    chunks(sizes.DV, block_DV, "block_DV")
    machine = Arithmetic(precision, exp2 or exp2_correctly_rounded, lean)
    op, exp, gemm, accum = machine.op, machine.exp, machine.gemm, machine.accum
    recorder = Recorder(sizes) if trace else None
    every = slice(None)

    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    with np.errstate(all="ignore"):
        q, k, v = op(heads_first(inputs.q)), op(heads_first(inputs.k)), op(heads_first(inputs.v))
        g, beta = heads_first(inputs.g).astype(accum), heads_first(inputs.beta).astype(accum)
        S = inputs.state().astype(accum)
        for c, rows in enumerate(chunks(sizes.N, C)):
            Qc, Kc, Vc = q[:, :, rows], k[:, :, rows], v[:, :, rows]
            gc, be = g[:, :, rows], beta[:, :, rows]
            length = be.shape[-1]
            last = length - 1
            i, j = np.arange(length)[:, None], np.arange(length)[None, :]

            gam = np.cumsum(gc, axis=-2)
            Ep = exp(gam)
            Em = exp(-gam)

            Kp = op(Kc * Ep)
            Km = op(Kc * Em)
            Qp = op(Qc * Ep)
            Km_T = Km.swapaxes(-1, -2)
            M = gemm(Kp, Km_T, machine.zeros(sizes.B, sizes.H, length, length))
            L = np.where(j < i, be[..., None, :] * M, accum(0))
            A_qk = gemm(Qp, Km_T, machine.zeros(sizes.B, sizes.H, length, length))
            A_qk = np.where(j <= i, A_qk, accum(0))
            A_c = op(A_qk)

            # Right-looking: row s is final when its turn comes, and every later row still loses s = 0, 1, ... in order.
            X = np.concatenate([Kc * Ep, Vc], axis=-1)
            for s in range(last):
                X[..., s + 1 :, :] -= L[..., s + 1 :, s, None] * X[..., s, None, :]
            X = be[..., None] * X
            W = op(X[..., : sizes.DK])
            U = X[..., sizes.DK :]

            S_s = op(S)
            WS = gemm(W, S_s, machine.zeros(sizes.B, sizes.H, length, sizes.DV))
            Vt = U - WS
            Vt_c = op(Vt)

            acc_o = gemm(Qp, S_s, machine.zeros(sizes.B, sizes.H, length, sizes.DV))
            acc_o = gemm(A_c, Vt_c, acc_o)
            o_c = op(acc_o)
            o[:, :, rows] = o_c

            S = Ep[..., last, :, None] * S
            Kd = op(Kc * (Ep[..., last, None, :] * Em))
            S = gemm(Kd.swapaxes(-1, -2), Vt_c, S)

            if recorder:
                recorder.put(c, rows, (every, every), every, gamma=gam, M=np.tril(M, -1), L=L, A_qk=A_qk, W=W)
                recorder.put(c, rows, (every, every), every, U=U, V_tilde=Vt, o=o_c, S=S)
    if recorder and trace:
        recorder.replay(trace)
    return Outputs(np.ascontiguousarray(np.moveaxis(o, 1, 2)), S.astype(np.float64))
