"""The control flow of a kernel that splits the exponent over sub-chunks (article, section 2.3), in NumPy.

Within a sub-chunk, M and A_qk are formed as in the mirror, with gamma counted from the sub-chunk's first token. For the
keys of earlier sub-chunks the exponent is split at the border where the row's own sub-chunk begins, the anchor:

    e^(gamma_c - gamma_i) = e^(gamma_c - gamma_anchor) e^(gamma_anchor - gamma_i)           both factors at most 1

so that nothing there overflows, and what underflows was too small to matter. Every exponent is a sum of gates of one
sign, never a difference of two long sums, which would cancel behind a deep gate. The solve, the state and the output
are the mirror's, and so are the roundings.
"""

from __future__ import annotations

import numpy as np

from kda.formats import F64, Format
from kda.problem import InputError, Inputs, Outputs
from kda.references._layout import chunks, heads_first
from kda.references.arithmetic import Arithmetic, Exp2, exp2_correctly_rounded

__all__ = ["ref_C_sub"]


def ref_C_sub(inputs: Inputs, C: int, sub_C: int, precision: Format = F64, exp2: Exp2 | None = None) -> Outputs:
    """Reference C with sub-chunks of sub_C tokens, all heads and value channels at once.

    C: chunk length, a multiple of sub_C (or at most sub_C: then the exponent is split over the whole chunk). precision,
    exp2, outputs: as in `ref_C`. Raises InputError if `inputs` are malformed or sub_C does not divide C.
    """
    sizes = inputs.check()
    if sub_C < 1 or (sub_C < C and C % sub_C):
        raise InputError(f"sub_C is {sub_C}; expected a divisor of C = {C}")
    machine = Arithmetic(precision, exp2 or exp2_correctly_rounded)
    op, exp, gemm, accum = machine.op, machine.exp, machine.gemm, machine.accum

    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    with np.errstate(all="ignore"):
        q, k, v = op(heads_first(inputs.q)), op(heads_first(inputs.k)), op(heads_first(inputs.v))
        g, beta = heads_first(inputs.g).astype(accum), heads_first(inputs.beta).astype(accum)
        S = inputs.state().astype(accum)
        for rows in chunks(sizes.N, C):
            Qc, Kc, Vc, be = q[:, :, rows], k[:, :, rows], v[:, :, rows], beta[:, :, rows]
            length = be.shape[-1]

            gam = np.empty_like(Kc)  # from the first token of the chunk to r
            ahead = np.empty_like(Kc)  # from r + 1 to the end of what has been walked: the anchor, at last the chunk
            M = machine.zeros(sizes.B, sizes.H, length, length)
            A_qk = machine.zeros(sizes.B, sizes.H, length, length)
            so_far = np.zeros_like(Kc[:, :, 0])
            for sub in chunks(length, sub_C, "sub_C"):
                local = np.cumsum(g[:, :, rows][:, :, sub], axis=-2)
                Kp, Qp = op(Kc[:, :, sub] * exp(local)), op(Qc[:, :, sub] * exp(local))
                own = op(Kc[:, :, sub] * exp(-local))
                earlier = op(Kc[:, :, : sub.start] * exp(ahead[:, :, : sub.start]))
                keys = np.concatenate([earlier, own], axis=-2).swapaxes(-1, -2)
                for product, factor in ((M, Kp), (A_qk, Qp)):
                    product[:, :, sub, : sub.stop] = gemm(factor, keys, product[:, :, sub, : sub.stop])
                total = local[:, :, -1]
                ahead[:, :, : sub.start] += total[:, :, None]
                ahead[:, :, sub] = total[:, :, None] - local
                gam[:, :, sub] = so_far[:, :, None] + local
                so_far = so_far + total

            i, j = np.arange(length)[:, None], np.arange(length)[None, :]
            L = np.where(j < i, be[..., None, :] * M, accum(0))
            A_c = op(np.where(j <= i, A_qk, accum(0)))

            Ep = exp(gam)
            X = np.concatenate([Kc * Ep, Vc], axis=-1)
            for s in range(length - 1):
                X[..., s + 1 :, :] -= L[..., s + 1 :, s, None] * X[..., s, None, :]
            X = be[..., None] * X
            W, U = op(X[..., : sizes.DK]), X[..., sizes.DK :]

            S_s = op(S)
            Vt_c = op(U - gemm(W, S_s, machine.zeros(sizes.B, sizes.H, length, sizes.DV)))
            acc_o = gemm(op(Qc * Ep), S_s, machine.zeros(sizes.B, sizes.H, length, sizes.DV))
            o[:, :, rows] = op(gemm(A_c, Vt_c, acc_o))

            S = gemm(op(Kc * exp(ahead)).swapaxes(-1, -2), Vt_c, Ep[..., -1, :, None] * S)
    return Outputs(np.ascontiguousarray(np.moveaxis(o, 1, 2)), S.astype(np.float64))
