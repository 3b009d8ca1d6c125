"""`kda_forward`: KDA for any gate, from exactly 0 to -1000 per token, for the CPU and for CUDA.

`kda_chunk` splits e^(gamma_i - gamma_j) = e^gamma_i e^-gamma_j over a whole chunk, and e^-gamma bounds the gates that
it can take. Here no decay, and no factor of one, is above 1. A chunk is cut into sub-chunks of 16 tokens, and the decay
from token j to token i is

    in one sub-chunk    e^(g_{j+1} + ... + g_i), for every pair and channel in float32
    across a border b   e^(g_b + ... + g_i) e^(g_{j+1} + ... + g_{b-1}), where b is the first token of i's sub-chunk

so that M and A_qk are matrix products below the diagonal blocks and inner products of their own inside them. Every
exponent is a sum of gates, all of one sign. The same number as a difference, gamma_i - gamma_j, would cancel behind a
closed gate, where |gamma| is large and what counts is small. Tokens after i enter none of these numbers.

Otherwise, per chunk, with gamma summed since the chunk began, all is the article's (3.2, 4):

    [W|U] = diag(beta) (I + L)^-1 [K e^gamma | V],  L = M beta    forward substitution, sub-chunk by sub-chunk
    V~    = U - W S
    O     = (Q e^gamma) S + A_qk V~
    S    <- Diag(e^gamma_C) S + (K e^(g_{j+1} + ... + g_C))^T V~  the keys, carried to the border where the chunk ends

As in `kda_chunk`, one program walks one value head of one sequence and carries a [DK, block_DV] slice of the state.
What else a call may ask for (kda/kernels/form.py) is done where tiles are loaded and where results are stored; nothing
between the two knows of it.
"""

from typing import Any

import tilelang.language as T

from kda.kernels.chunk import LOG2_E
from kda.kernels.dialect import ACCUM, Dialect
from kda.kernels.form import Form
from kda.kernels.prologue import exp, log_gate, normalise, rate
from kda.references.forward import SUB_CHUNK

__all__ = ["kda_forward"]


@T.macro
def _carry_keys(on, K_s, G_s, border, total, Kc_s):  # type: ignore[no-untyped-def]
    # k_j e^(g_{j+1} + ... + g_{border-1}) for j < border: from the border backwards, one channel per lane.
    for part in T.serial(T.ceildiv(K_s.shape[1], on.lanes)):
        d = part * on.lanes + on.lane()
        if d < K_s.shape[1]:
            total[0] = 0.0
            for back in T.serial(border):
                j = border - 1 - back
                Kc_s[j, d] = on.round(T.Cast(ACCUM, K_s[j, d]) * T.exp2(total[0] * LOG2_E))
                total[0] = total[0] + G_s[j, d]


def kda_forward(on: Dialect, DK: int, DV: int, C: int, block_DV: int, num_stages: int, form: Form | None = None) -> Any:
    """The TileLang program for one tile and form (None: the plain one); the number of tokens and heads stay symbolic.

    C: a multiple of 16. Tensors are those of a `Call`: N tokens in all, HV value heads, of which HV / H read one head
    of Q and K. S_0, S_N: [sequences, HV, DK, DV], or [.., DV, DK] if V-first. What a form lacks has length 0 along its
    first axis: Starts, S_0 and S_N if the form says so, A_log and dt_bias if the tensor does.
    """
    form = form or Form(on.format)
    N, H, HV = T.dynamic("N, H, HV")
    factors, biased, edges, S_in, S_out = T.dynamic("factors, biased, edges, S_in, S_out")
    state = [DV, DK] if form.state_v_first else [DK, DV]
    columns = DK + block_DV
    blocks = T.ceildiv(DV, block_DV)
    R = SUB_CHUNK

    @T.prim_func
    def program(
        Q: T.Tensor([N, H, DK], on.operand),
        K: T.Tensor([N, H, DK], on.operand),
        V: T.Tensor([N, HV, DV], on.operand),
        G: T.Tensor([N, HV, DK], on.stored(form.g_format)),
        Beta: T.Tensor([N, HV], on.stored(form.beta_format)),
        A_log: T.Tensor([factors], ACCUM),
        dt_bias: T.Tensor([biased, DK], ACCUM),
        Starts: T.Tensor([edges], "int32"),
        S_0: T.Tensor([S_in, HV, *state], ACCUM),
        O: T.Tensor([N, HV, DV], on.operand),  # noqa: E741
        S_N: T.Tensor([S_out, HV, *state], ACCUM),
        sequences: T.int32,
        length: T.int32,
        scale: T.float32,
        lower_bound: T.float32,
    ):
        # One axis, whose extent may exceed the 65,535 of the others; the blocks of one head are neighbours.
        with on.launch(blocks * HV * sequences) as place:
            # Variables, not expressions: the divisions would be repeated at every load.
            dv0 = place % blocks * block_DV
            hv = T.alloc_var("int32", init=place // blocks % HV)
            hk = T.alloc_var("int32", init=hv // (HV // H))
            s = T.alloc_var("int32", init=place // blocks // HV)
            start = T.alloc_var("int32", init=Starts[s] if form.packed else s * length)
            tokens = T.alloc_var("int32", init=Starts[s + 1] - start if form.packed else length)

            Q_s = on.shared([C, DK], on.operand)
            K_s = on.shared([C, DK], on.operand)
            V_s = on.shared([C, block_DV], on.operand)
            G_s = on.shared([C, DK], ACCUM)
            beta_s = on.shared([C], ACCUM)
            decay_s = on.shared([DK], ACCUM)  # e^gamma_C
            Qp_s = on.shared([C, DK], on.operand)  # q e^gamma
            Qb_s = on.shared([R, DK], on.operand)  # q of one sub-chunk, decayed since its border
            Kb_s = on.shared([R, DK], on.operand)  # k likewise
            Kc_s = on.shared([C, DK], on.operand)  # k carried to a border; between the last two borders, W
            Lt_s = on.shared([C, C], ACCUM)  # L, transposed
            A_s = on.shared([C, C], on.operand)  # A_qk
            U_s = on.shared([C, block_DV], ACCUM)
            Vt_s = on.shared([C, block_DV], on.operand)  # V~
            S_s = on.shared([DK, block_DV], on.operand)

            S_f = on.fragment([DK, block_DV], ACCUM)  # the state, carried from chunk to chunk
            M_f = on.fragment([R, C], ACCUM)
            A_f = on.fragment([R, C], ACCUM)
            WS_f = on.fragment([C, block_DV], ACCUM)
            O_f = on.fragment([C, block_DV], ACCUM)

            lane = on.lane()
            total = T.alloc_local([1], ACCUM)  # a sum of gates
            decayed = T.alloc_local([1], ACCUM)
            m = T.alloc_local([R], ACCUM)  # one column of a diagonal block of M, and of A_qk
            a = T.alloc_local([R], ACCUM)
            x = T.alloc_local([C], ACCUM)  # one column of the triangular system

            if form.initial_state:
                for d, j in on.parallel(DK, block_DV):
                    S_f[d, j] = S_0[s, hv, dv0 + j, d] if form.state_v_first else S_0[s, hv, d, dv0 + j]
            else:
                for d, j in on.parallel(DK, block_DV):
                    S_f[d, j] = 0.0

            factor = T.alloc_local([1], ACCUM)  # e^A_log
            if form.gate != "log":
                factor[0] = T.if_then_else(factors > 0, exp(A_log[hv]), 1.0)

            for i_s in T.Pipelined(T.ceildiv(tokens, C), num_stages=num_stages):
                s0 = i_s * C
                first = start + s0
                left = tokens - s0

                # Rows past the sequence's end, where the next one may begin, read as zero: with k = v = beta = g = 0 a
                # token changes nothing.
                if form.normalise:
                    normalise(on, Q, first, left, hk, Lt_s, total, Q_s)
                    normalise(on, K, first, left, hk, Lt_s, total, K_s)
                else:
                    for r, d in on.parallel(C, DK):
                        Q_s[r, d] = T.if_then_else(r < left, Q[first + r, hk, d], T.Cast(on.operand, 0.0))
                    for r, d in on.parallel(C, DK):
                        K_s[r, d] = T.if_then_else(r < left, K[first + r, hk, d], T.Cast(on.operand, 0.0))
                for r, j in on.parallel(C, block_DV):
                    V_s[r, j] = T.if_then_else(r < left, V[first + r, hv, dv0 + j], T.Cast(on.operand, 0.0))
                for r, d in on.parallel(C, DK):
                    if form.gate == "log":
                        G_s[r, d] = T.if_then_else(r < left, T.Cast(ACCUM, G[first + r, hv, d]), 0.0)
                    else:
                        biased_g = T.if_then_else(r < left, T.Cast(ACCUM, G[first + r, hv, d]), 0.0) + T.if_then_else(
                            biased > 0, dt_bias[hv, d], 0.0
                        )
                        gate = log_gate(form.gate, biased_g, factor[0], lower_bound)
                        G_s[r, d] = T.if_then_else(r < left, gate, 0.0)
                for r in on.parallel(C):
                    raw = T.if_then_else(r < left, T.Cast(ACCUM, Beta[first + r, hv]), 0.0)
                    beta_s[r] = T.if_then_else(r < left, rate(form.beta, raw), 0.0)

                # gamma: what meets the state has decayed since the chunk began.
                for part in T.serial(T.ceildiv(DK, on.lanes)):
                    d = part * on.lanes + lane
                    if d < DK:
                        total[0] = 0.0
                        for r in T.serial(C):
                            total[0] = total[0] + G_s[r, d]
                            Qp_s[r, d] = on.round(T.Cast(ACCUM, Q_s[r, d]) * T.exp2(total[0] * LOG2_E))
                        decay_s[d] = T.exp2(total[0] * LOG2_E)

                # M and A_qk inside a sub-chunk: one key, the column j, per lane; 16 rows at a time.
                # L is strictly lower (j < i), A_qk keeps its diagonal (j <= i): a token sees itself undecayed.
                for part in T.serial(T.ceildiv(C, on.lanes)):
                    j = part * on.lanes + lane
                    if j < C:
                        b = j // R * R
                        for i in on.steps(R):
                            m[i] = 0.0
                            a[i] = 0.0
                        for d in T.serial(DK):
                            total[0] = 0.0
                            for i in on.steps(R):
                                if b + i >= j:
                                    total[0] = total[0] + T.if_then_else(b + i > j, G_s[b + i, d], 0.0)
                                    decayed[0] = T.Cast(ACCUM, K_s[j, d]) * T.exp2(total[0] * LOG2_E)
                                    m[i] = m[i] + T.Cast(ACCUM, K_s[b + i, d]) * decayed[0]
                                    a[i] = a[i] + T.Cast(ACCUM, Q_s[b + i, d]) * decayed[0]
                        for i in on.steps(R):
                            Lt_s[j, b + i] = T.if_then_else(j < b + i, beta_s[j] * m[i], 0.0)
                            A_s[b + i, j] = on.round(T.if_then_else(j <= b + i, a[i], 0.0))
                        for i in T.serial(b):
                            A_s[i, j] = T.Cast(on.operand, 0.0)

                # M and A_qk across the border at b: the rows have decayed since, the keys until then. What Kc_s holds
                # from the border on was left there and goes into columns that are not looked at.
                for block in T.serial(1, C // R):
                    b = block * R
                    for part in T.serial(T.ceildiv(DK, on.lanes)):
                        d = part * on.lanes + lane
                        if d < DK:
                            total[0] = 0.0
                            for r in on.steps(R):
                                total[0] = total[0] + G_s[b + r, d]
                                decayed[0] = T.exp2(total[0] * LOG2_E)
                                Qb_s[r, d] = on.round(T.Cast(ACCUM, Q_s[b + r, d]) * decayed[0])
                                Kb_s[r, d] = on.round(T.Cast(ACCUM, K_s[b + r, d]) * decayed[0])
                    _carry_keys(on, K_s, G_s, b, total, Kc_s)
                    on.gemm(Kb_s, Kc_s, M_f, transpose_B=True, clear_accum=True)
                    on.gemm(Qb_s, Kc_s, A_f, transpose_B=True, clear_accum=True)
                    for i, j in on.parallel(R, C):
                        if j < b:
                            Lt_s[j, b + i] = beta_s[j] * M_f[i, j]
                            A_s[b + i, j] = on.round(A_f[i, j])

                # Forward substitution in float32, one column of [K e^gamma | V] per lane, W and U in the same pass:
                # from the rows of a sub-chunk goes what the rows before it hold, then what they hold of each other.
                for part in T.serial(T.ceildiv(columns, on.lanes)):
                    col = part * on.lanes + lane
                    if col < columns:
                        if col < DK:
                            total[0] = 0.0
                            for r in on.steps(C):
                                total[0] = total[0] + G_s[r, col]
                                x[r] = T.Cast(ACCUM, K_s[r, col]) * T.exp2(total[0] * LOG2_E)
                        else:
                            for r in on.steps(C):
                                x[r] = T.Cast(ACCUM, V_s[r, col - DK])

                        for block in on.steps(C // R):
                            for j in on.steps(block * R):
                                for r in on.steps(R):
                                    x[block * R + r] = x[block * R + r] - Lt_s[j, block * R + r] * x[j]
                            for j in on.steps(R):
                                for r in on.steps(R - 1 - j):
                                    x[block * R + j + 1 + r] = (
                                        x[block * R + j + 1 + r]
                                        - Lt_s[block * R + j, block * R + j + 1 + r] * x[block * R + j]
                                    )

                        # beta multiplies the solution, never the right-hand side: diag(beta) T goes with L = M beta.
                        if col < DK:
                            for r in on.steps(C):
                                Kc_s[r, col] = on.round(beta_s[r] * x[r])  # W
                        else:
                            for r in on.steps(C):
                                U_s[r, col - DK] = beta_s[r] * x[r]

                for d, j in on.parallel(DK, block_DV):
                    S_s[d, j] = on.round(S_f[d, j])
                on.gemm(Kc_s, S_s, WS_f, clear_accum=True)
                for r, j in on.parallel(C, block_DV):
                    Vt_s[r, j] = on.round(U_s[r, j] - WS_f[r, j])

                # Output: between chunks, then within the chunk, on one accumulator.
                on.gemm(Qp_s, S_s, O_f, clear_accum=True)
                on.gemm(A_s, Vt_s, O_f)
                for r, j in on.parallel(C, block_DV):
                    if r < left:
                        O[first + r, hv, dv0 + j] = on.round(scale * O_f[r, j])

                # The state: it decays, each key channel at its own rate, before the chunk's writes are added.
                for d, j in on.parallel(DK, block_DV):
                    S_f[d, j] = S_f[d, j] * decay_s[d]
                _carry_keys(on, K_s, G_s, C, total, Kc_s)
                on.gemm(Kc_s, Vt_s, S_f, transpose_A=True)

            if form.final_state:
                for d, j in on.parallel(DK, block_DV):
                    if form.state_v_first:
                        S_N[s, hv, dv0 + j, d] = S_f[d, j]
                    else:
                        S_N[s, hv, d, dv0 + j] = S_f[d, j]

    return program
