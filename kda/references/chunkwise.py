"""Reference B: chunk by chunk, with the per-channel UT transform (article, section 3.2).

Within a chunk, gam_r is the sum of g over tokens 1..r of the chunk, and

    M[c,i] = (k_c * exp(gam_c - gam_i)) . k_i            i < c
    L[c,i] = beta_i M[c,i],   T = (I + L)^-1,   A_hat = diag(beta) T
    W = A_hat (K * e^gam),    U = A_hat V,      Vt = U - W S
    A_qk[c,j] = (q_c * exp(gam_c - gam_j)) . k_j         j <= c
    O = (Q * e^gam) S + A_qk Vt
    S <- Diag(e^gam_C) S + (K * e^(gam_C - gam))^T Vt

Only differences gam_c - gam_i <= 0 are ever exponentiated, so that nothing overflows however closed the gate is.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from kda.problem import InputError, Inputs, Outputs
from kda.references._layout import chunks, heads_first

__all__ = ["Pairing", "ref_B", "ref_B_fast"]

#: Where beta goes in the triangular system. The first two are equivalent; "mixed" takes L from the first and A_hat from
#: the second, the mistake of section 3.3, and is right only where beta is the same for every token of a chunk.
Pairing = Literal["diag_beta_T", "T_diag_beta", "mixed"]


def ref_B(inputs: Inputs, C: int, *, pairing: Pairing = "diag_beta_T") -> Outputs:
    """The chunkwise form as it is written: pairwise loops for M and A_qk, an explicit inverse.

    C: chunk length in tokens; the last chunk may be short. pairing: `diag_beta_T` (L = beta_i M with diag(beta) T),
    `T_diag_beta` (L = beta_c M with T diag(beta)), or `mixed` (see `Pairing`).
    o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`. Raises InputError if `inputs` are malformed, C < 1 or `pairing`
    is unknown. Article, section 3.2.
    """
    sizes = inputs.check()
    if pairing not in ("diag_beta_T", "T_diag_beta", "mixed"):
        raise InputError(f"pairing is {pairing!r}; expected diag_beta_T, T_diag_beta or mixed")
    state = inputs.state()
    o = np.zeros(sizes.shape("o"))
    for b in range(sizes.B):
        for h in range(sizes.H):
            S = state[b, h]
            for rows in chunks(sizes.N, C):
                Qc, Kc, Vc = inputs.q[b, rows, h], inputs.k[b, rows, h], inputs.v[b, rows, h]
                gc, be = inputs.g[b, rows, h], inputs.beta[b, rows, h]
                length = len(be)

                gam = np.cumsum(gc, axis=0)
                gam_C = gam[-1]

                M = np.zeros((length, length))
                for c in range(length):
                    for i in range(c):
                        M[c, i] = np.dot(Kc[c] * np.exp(gam[c] - gam[i]), Kc[i])

                L = be[:, None] * M if pairing == "T_diag_beta" else be[None, :] * M
                # Lower triangular, as its inverse; inv leaves rounding errors above, which would let later tokens in.
                T = np.tril(np.linalg.inv(np.eye(length) + L))
                A_hat = be[:, None] * T if pairing == "diag_beta_T" else T * be[None, :]

                W = A_hat @ (Kc * np.exp(gam))
                U = A_hat @ Vc
                Vt = U - W @ S

                A_qk = np.zeros((length, length))
                for c in range(length):
                    for j in range(c + 1):
                        A_qk[c, j] = np.dot(Qc[c] * np.exp(gam[c] - gam[j]), Kc[j])

                o[b, rows, h] = (Qc * np.exp(gam)) @ S + A_qk @ Vt
                S = np.diag(np.exp(gam_C)) @ S + (Kc * np.exp(gam_C - gam)).T @ Vt
            state[b, h] = S
    return Outputs(o, state)


def ref_B_fast(inputs: Inputs, C: int) -> Outputs:
    """`ref_B` for all heads at once, with the C x C x DK decay table written out.

    C: chunk length in tokens; the last chunk may be short. o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`.
    Raises InputError if `inputs` are malformed or C < 1. Article, section 3.2.
    """
    sizes = inputs.check()
    q, k, v, g = heads_first(inputs.q), heads_first(inputs.k), heads_first(inputs.v), heads_first(inputs.g)
    beta = heads_first(inputs.beta)
    S = inputs.state()
    o = np.zeros((sizes.B, sizes.H, sizes.N, sizes.DV))
    for rows in chunks(sizes.N, C):
        Qc, Kc, Vc = q[:, :, rows], k[:, :, rows], v[:, :, rows]
        gc, be = g[:, :, rows], beta[:, :, rows]
        length = be.shape[-1]
        lower = np.tri(length, dtype=bool)

        gam = np.cumsum(gc, axis=-2)
        gam_C = gam[..., -1:, :]
        # Masked before exp: above the diagonal the difference is positive and may overflow.
        difference = np.where(lower[..., None], gam[..., :, None, :] - gam[..., None, :, :], -np.inf)
        decayed_k = np.exp(difference) * Kc[..., None, :, :]  # [B, H, c, i, DK]: k_i as token c sees it

        M = np.tril((decayed_k @ Kc[..., None])[..., 0], -1)
        L = be[..., None, :] * M
        T = np.tril(np.linalg.inv(np.eye(length) + L))
        A_hat = be[..., :, None] * T

        W = A_hat @ (Kc * np.exp(gam))
        U = A_hat @ Vc
        Vt = U - W @ S

        A_qk = (decayed_k @ Qc[..., None])[..., 0]
        o[:, :, rows] = (Qc * np.exp(gam)) @ S + A_qk @ Vt
        S = np.exp(gam_C).swapaxes(-1, -2) * S + (Kc * np.exp(gam_C - gam)).swapaxes(-1, -2) @ Vt
    return Outputs(np.ascontiguousarray(np.moveaxis(o, 1, 2)), S)
