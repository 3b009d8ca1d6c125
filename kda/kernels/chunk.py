"""`kda_chunk`: the article's kernel (section 4), for the CPU and for CUDA.

One program walks one head of one batch from its first chunk to its last and carries a [DK, block_DV] slice of the
state in its accumulators. Per chunk, with gamma_r = g_1 + ... + g_r since the chunk began:

    M     = strict_lower((K e^gamma) (K e^-gamma)^T)            4.2   the exponent split: one GEMM, no C x C x DK table
    A_qk  =        lower((Q e^gamma) (K e^-gamma)^T)
    [W|U] = diag(beta) (I + L)^-1 [K e^gamma | V],  L = M beta  4.3   one forward substitution for both
    V~    = U - W S
    O     = (Q e^gamma) S + A_qk V~                             4.4
    S    <- Diag(e^gamma_C) S + (K e^(gamma_C - gamma))^T V~

The article's seven ordering constraints (section 4.5) are marked (1) to (7) where they bite. Where this differs from
the article's listing, and why, is in docs/kernel.md.
"""

from __future__ import annotations

from typing import Any

import tilelang.language as T

from kda.kernels.dialect import ACCUM, Dialect

LOG2_E = 1.4426950408889634


def kda_chunk(on: Dialect, DK: int, DV: int, C: int, block_DV: int, num_stages: int) -> Any:
    """The TileLang program for one tile; B, N and H stay symbolic.

    Q, K: [B, N, H, DK]; V, O: [B, N, H, DV] in the operand format. G: [B, N, H, DK] natural-log gate, Beta: [B, N, H],
    S_0, S_N: [B, H, DK, DV], all float32.
    """
    B, N, H = T.dynamic("B, N, H")
    columns = DK + block_DV

    @T.prim_func
    def program(
        Q: T.Tensor([B, N, H, DK], on.operand),
        K: T.Tensor([B, N, H, DK], on.operand),
        V: T.Tensor([B, N, H, DV], on.operand),
        G: T.Tensor([B, N, H, DK], ACCUM),
        Beta: T.Tensor([B, N, H], ACCUM),
        S_0: T.Tensor([B, H, DK, DV], ACCUM),
        O: T.Tensor([B, N, H, DV], on.operand),  # noqa: E741
        S_N: T.Tensor([B, H, DK, DV], ACCUM),
    ):
        with on.launch(T.ceildiv(DV, block_DV), H, B) as (bv, bh, bb):
            dv0 = bv * block_DV

            Q_s = on.shared([C, DK], on.operand)
            K_s = on.shared([C, DK], on.operand)
            V_s = on.shared([C, block_DV], on.operand)
            Ep_s = on.shared([C, DK], ACCUM)  # e^gamma
            Em_s = on.shared([C, DK], ACCUM)  # e^-gamma
            Qp_s = on.shared([C, DK], on.operand)  # q e^gamma
            Km_s = on.shared([C, DK], on.operand)  # k e^-gamma
            Kp_s = on.shared([C, DK], on.operand)  # k e^gamma; once M is formed, W; at the end, k e^(gamma_C - gamma)
            Lt_s = on.shared([C, C], ACCUM)  # L, transposed
            A_s = on.shared([C, C], on.operand)  # A_qk
            U_s = on.shared([C, block_DV], ACCUM)
            Vt_s = on.shared([C, block_DV], on.operand)  # V~
            S_s = on.shared([DK, block_DV], on.operand)
            beta_s = on.shared([C], ACCUM)

            S_f = on.fragment([DK, block_DV], ACCUM)  # the state, carried from chunk to chunk
            M_f = on.fragment([C, C], ACCUM)
            A_f = on.fragment([C, C], ACCUM)
            WS_f = on.fragment([C, block_DV], ACCUM)
            O_f = on.fragment([C, block_DV], ACCUM)

            lane = on.lane()
            gamma = T.alloc_local([1], ACCUM)
            x = T.alloc_local([C], ACCUM)  # one column, a number per token: first of G, then of the triangular system

            # (7) the state is set outside the loop over chunks; every other accumulator is cleared inside it.
            T.copy(S_0[bb, bh, :, dv0 : dv0 + block_DV], S_f)

            for i_s in T.Pipelined(T.ceildiv(N, C), num_stages=num_stages):
                s0 = i_s * C

                # Rows past N read as zero: with k = v = beta = g = 0 a token changes nothing.
                T.copy(Q[bb, s0 : s0 + C, bh, :], Q_s)
                T.copy(K[bb, s0 : s0 + C, bh, :], K_s)
                T.copy(V[bb, s0 : s0 + C, bh, dv0 : dv0 + block_DV], V_s)
                for r in on.parallel(C):
                    beta_s[r] = T.if_then_else(s0 + r < N, Beta[bb, s0 + r, bh], 0.0)

                # 4.1 gamma: serial over the tokens of the chunk, all channels side by side, one channel per lane.
                for part in T.serial(T.ceildiv(DK, on.lanes)):
                    d = part * on.lanes + lane
                    if d < DK:
                        for r in on.steps(C):
                            x[r] = T.if_then_else(s0 + r < N, G[bb, s0 + r, bh, d], 0.0)
                        gamma[0] = 0.0
                        for r in on.steps(C):
                            gamma[0] = gamma[0] + x[r]
                            Ep_s[r, d] = T.exp2(gamma[0] * LOG2_E)
                            Em_s[r, d] = T.exp2(-gamma[0] * LOG2_E)

                # (5) K_s is only ever read: each derived tile is written to a buffer of its own.
                # (3) so is Q_s; A_qk and the term between chunks both take q e^gamma, so no second load of Q is needed.
                for r, d in on.parallel(C, DK):
                    Kp_s[r, d] = on.round(T.Cast(ACCUM, K_s[r, d]) * Ep_s[r, d])
                    Km_s[r, d] = on.round(T.Cast(ACCUM, K_s[r, d]) * Em_s[r, d])
                    Qp_s[r, d] = on.round(T.Cast(ACCUM, Q_s[r, d]) * Ep_s[r, d])

                # 4.2 the exponent split: two GEMMs in place of C^2 / 2 weighted inner products.
                # (4) L is strictly lower (j < i), A_qk keeps its diagonal (j <= i): a token sees itself undecayed.
                on.gemm(Kp_s, Km_s, M_f, transpose_B=True, clear_accum=True)
                for i, j in on.parallel(C, C):
                    Lt_s[j, i] = T.if_then_else(j < i, beta_s[j] * M_f[i, j], 0.0)

                on.gemm(Qp_s, Km_s, A_f, transpose_B=True, clear_accum=True)
                for i, j in on.parallel(C, C):
                    A_s[i, j] = on.round(T.if_then_else(j <= i, A_f[i, j], 0.0))

                # 4.3 forward substitution, one column of [K e^gamma | V] per lane, W and U in the same pass.
                for part in T.serial(T.ceildiv(columns, on.lanes)):
                    col = part * on.lanes + lane
                    if col < columns:
                        if col < DK:
                            for r in on.steps(C):
                                x[r] = T.Cast(ACCUM, K_s[r, col]) * Ep_s[r, col]
                        else:
                            for r in on.steps(C):
                                x[r] = T.Cast(ACCUM, V_s[r, col - DK])

                        for j in on.steps(C):
                            for later in on.steps(C - 1 - j):
                                x[j + 1 + later] = x[j + 1 + later] - Lt_s[j, j + 1 + later] * x[j]

                        # (6) beta multiplies the solution, never the right-hand side: A_hat = diag(beta) T, which goes
                        # with L = M beta (column j). Multiplied before, it would be T diag(beta), the other pairing.
                        if col < DK:
                            for r in on.steps(C):
                                Kp_s[r, col] = on.round(beta_s[r] * x[r])  # W
                        else:
                            for r in on.steps(C):
                                U_s[r, col - DK] = beta_s[r] * x[r]

                for d, j in on.parallel(DK, block_DV):
                    S_s[d, j] = on.round(S_f[d, j])
                on.gemm(Kp_s, S_s, WS_f, clear_accum=True)
                for r, j in on.parallel(C, block_DV):
                    Vt_s[r, j] = on.round(U_s[r, j] - WS_f[r, j])

                # 4.4 output: between chunks, then within the chunk, on one accumulator.
                on.gemm(Qp_s, S_s, O_f, clear_accum=True)
                on.gemm(A_s, Vt_s, O_f)
                for r, j in on.parallel(C, block_DV):
                    if s0 + r < N:
                        O[bb, s0 + r, bh, dv0 + j] = on.round(O_f[r, j])

                # (1) the state moves on only after the output has used it.
                # (2) it decays, each key channel at its own rate, before the chunk's writes are added.
                for d, j in on.parallel(DK, block_DV):
                    S_f[d, j] = S_f[d, j] * Ep_s[C - 1, d]
                for r, d in on.parallel(C, DK):
                    Kp_s[r, d] = on.round(T.Cast(ACCUM, K_s[r, d]) * (Ep_s[C - 1, d] * Em_s[r, d]))
                on.gemm(Kp_s, Vt_s, S_f, transpose_A=True)

            T.copy(S_f, S_N[bb, bh, :, dv0 : dv0 + block_DV])

    return program
