"""`kda_steps`: the recurrence itself, token by token (article, section 3.1), for sequences too short to fill a chunk.

    S <- Diag(e^g_t) S;   w = beta_t (v_t - k_t^T S);   S <- S + k_t w^T;   o_t = scale q_t^T S

All in float32; o alone is rounded. What such a call costs is to read the states and to write them: one program takes
one value head of one sequence and a [DK, block_DV] slice of its state, which stays in registers from the first token to
the last. Tokens are loaded C at a time, and widened to float32 then.

On CUDA the slice is spread over 2 block_DV lanes. Eight lanes of a warp share four value channels and own a quad of key
channels in turn; each has the same entries whichever axis of a state is contiguous, moves them 16 bytes at a time
either way, and adds them up in the same order. Each makes one of the four sums k^T S for all of them; what each has of
q^T S waits in shared memory until C tokens are done. Neither block_DV nor C enters a sum, so that no bit hangs on them.
On a CPU one lane has all of it, and k^T S and q^T S are sums over key channels in ascending order.
"""

from functools import reduce
from math import gcd
from operator import add
from typing import Any

import tilelang.language as T

from kda.kernels.chunk import LOG2_E
from kda.kernels.dialect import ACCUM, APART, Dialect
from kda.kernels.form import Form
from kda.kernels.prologue import divide_by_norms, exp, log_gate, rate
from kda.references.prologue import NORM_PART

__all__ = ["LANES_PER_CHANNEL", "QUAD", "kda_steps"]

#: Numbers of 32 bits that a lane of a GPU loads at once.
QUAD = 4
#: Lanes of a GPU that share a value channel.
LANES_PER_CHANNEL = 8
#: Lanes that a multiprocessor has registers for: 128 each, half of which are a lane's entries of a state with DK = 128.
RESIDENT = 512


def kda_steps(on: Dialect, DK: int, DV: int, C: int, block_DV: int, num_stages: int, form: Form | None = None) -> Any:
    """The TileLang program for one tile and form (None: the plain one); tensors and symbols are those of `kda_forward`.

    C: the tokens that are loaded at a time. num_stages has no effect.
    """
    form = form or Form(on.format)
    N, H, HV = T.dynamic("N, H, HV")
    factors, biased, edges, S_in, S_out = T.dynamic("factors, biased, edges, S_in, S_out")
    state = [DV, DK] if form.state_v_first else [DK, DV]
    blocks = T.ceildiv(DV, block_DV)

    share = 1 if on.lanes == 1 else LANES_PER_CHANNEL
    E = block_DV * share // on.lanes  # value channels of one lane
    made = E if share == 1 else 1  # sums k^T S that it makes, for itself or for all who share them
    quads = -(-DK // (QUAD * share))  # quads of key channels of one lane, the last of which may be beyond DK
    whole = DK % (QUAD * share) == 0
    # Lanes load C rows of so many channels at once, a quad each: each stays in its row, and has one address of it.
    width = gcd(DK, max(16, QUAD * on.lanes // C // 16 * 16))
    # From a row of o_s to the next it is an odd multiple of 16 numbers: four lanes in each of two rows fill all banks.
    row = 16 * (block_DV // 16 | 1)

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
        # Grid and variables as in `kda_forward`; divisions of what is not negative, for the states wait for them.
        with on.launch(blocks * HV * sequences) as place:
            if on.lanes >= 64 and DK <= 128 and (form.normalise or form.gate != "log"):
                T.annotate_min_blocks_per_sm(RESIDENT // on.lanes)
            dv0 = place % blocks * block_DV
            s = T.alloc_var("int32", init=T.truncdiv(place // blocks, HV))
            hv = T.alloc_var("int32", init=place // blocks - s * HV)
            hk = T.alloc_var("int32", init=T.truncdiv(hv, T.truncdiv(HV, H)))
            start = T.alloc_var("int32", init=Starts[s] if form.packed else s * length)
            tokens = T.alloc_var("int32", init=Starts[s + 1] - start if form.packed else length)

            # Every access is inside its tensor. Told so, TileLang puts no branch around any: loads travel together.
            T.assume(s >= 0 and hv >= 0 and hv < HV and hk >= 0 and hk < H)
            if form.initial_state:
                T.assume(s < S_in)
            if form.final_state:
                T.assume(s < S_out)

            Q_s = on.shared([C, DK], ACCUM)
            K_s = on.shared([C, DK], ACCUM)
            V_s = on.shared([C, block_DV], ACCUM)
            a_s = on.shared([C, DK], ACCUM)  # e^g
            beta_s = on.shared([C], ACCUM)
            o_s = on.shared([C, share, row], ACCUM)  # of q^T S, what each lane has
            norm_s = on.shared([2 * DK // NORM_PART, C], ACCUM)

            S = T.alloc_local([quads * QUAD, E], ACCUM)  # this lane's entries of the state
            k = T.alloc_local([quads * QUAD], ACCUM)
            x = T.alloc_local([QUAD], ACCUM)
            w = T.alloc_local([E], ACCUM)  # k^T S, then what is written
            sums = w if share == 1 else T.alloc_local([made], ACCUM)  # those of w that this lane makes
            o = T.alloc_local([E], ACCUM)
            total = T.alloc_local([1], ACCUM)
            factor = T.alloc_local([1], ACCUM)  # e^A_log

            # Entry [c QUAD + i, j] of S is key channel (c share + member) QUAD + i and value channel dv0 + e0 + j.
            member = on.lane() // APART % share
            e0 = (on.lane() // (APART * share) * APART + on.lane() % APART) * E

            for c in on.steps(quads):
                d0 = (c * share + member) * QUAD
                if form.initial_state and form.state_v_first:
                    for j in on.steps(E):
                        for i in on.vector(QUAD):
                            x[i] = T.if_then_else(whole or d0 < DK, S_0[s, hv, dv0 + e0 + j, d0 + i], 0.0)
                        for i in on.steps(QUAD):
                            S[c * QUAD + i, j] = x[i]
                elif form.initial_state:
                    for i in on.steps(QUAD):
                        for j in on.vector(E):
                            S[c * QUAD + i, j] = T.if_then_else(whole or d0 < DK, S_0[s, hv, d0 + i, dv0 + e0 + j], 0.0)
                else:
                    for i in on.steps(QUAD):
                        for j in on.vector(E):
                            S[c * QUAD + i, j] = 0.0

            if form.gate != "log":
                factor[0] = T.if_then_else(factors > 0, exp(A_log[hv]), 1.0)

            for part in T.serial(T.ceildiv(tokens, C)):
                first = start + part * C
                left = tokens - part * C
                T.assume(first >= 0 and left > 0 and first + left <= N)

                # Rows past the sequence's end, where the next may begin, are not looked at: the last one is instead.
                for c in on.steps(DK // width):
                    for r, d in on.parallel(C, width):
                        Q_s[r, c * width + d] = T.Cast(ACCUM, Q[first + T.min(r, left - 1), hk, c * width + d])
                for c in on.steps(DK // width):
                    for r, d in on.parallel(C, width):
                        K_s[r, c * width + d] = T.Cast(ACCUM, K[first + T.min(r, left - 1), hk, c * width + d])
                for c in on.steps(DK // width):
                    for r, d in on.parallel(C, width):
                        g = T.Cast(ACCUM, G[first + T.min(r, left - 1), hv, c * width + d])
                        if form.gate == "log":
                            a_s[r, c * width + d] = T.exp2(g * LOG2_E)
                        else:
                            biased_g = g + T.if_then_else(biased > 0, dt_bias[hv, c * width + d], 0.0)
                            log_a = log_gate(form.gate, biased_g, factor[0], lower_bound)
                            a_s[r, c * width + d] = T.exp2(log_a * LOG2_E)
                for r, j in on.parallel(C, block_DV):
                    V_s[r, j] = T.Cast(ACCUM, V[first + T.min(r, left - 1), hv, dv0 + j])
                for r in on.parallel(C):
                    beta_s[r] = rate(form.beta, T.Cast(ACCUM, Beta[first + T.min(r, left - 1), hv]))
                if form.normalise:
                    divide_by_norms(on, lambda n, r, d: (Q_s, K_s)[n][r, d], norm_s, total, (Q_s, K_s))

                for r in T.serial(T.min(left, C)):
                    for j in on.steps(E):
                        w[j] = 0.0
                        o[j] = 0.0
                    for c in on.steps(quads):
                        d0 = (c * share + member) * QUAD
                        for i in on.vector(QUAD):
                            x[i] = T.if_then_else(whole or d0 < DK, a_s[r, d0 + i], 0.0)
                        for i in on.vector(QUAD):
                            k[c * QUAD + i] = T.if_then_else(whole or d0 < DK, K_s[r, d0 + i], 0.0)
                        for i in on.steps(QUAD):
                            for j in on.steps(E):
                                S[c * QUAD + i, j] = S[c * QUAD + i, j] * x[i]
                                w[j] = on.fma(k[c * QUAD + i], S[c * QUAD + i, j], w[j])
                    on.share_sums(w, member, sums)
                    for j in on.steps(made):
                        sums[j] = beta_s[r] * (V_s[r, e0 + member % E + j] - sums[j])
                    on.spread_sums(w, member, sums)

                    for c in on.steps(quads):
                        d0 = (c * share + member) * QUAD
                        for i in on.vector(QUAD):
                            x[i] = T.if_then_else(whole or d0 < DK, Q_s[r, d0 + i], 0.0)
                        for i in on.steps(QUAD):
                            for j in on.steps(E):
                                S[c * QUAD + i, j] = on.fma(k[c * QUAD + i], w[j], S[c * QUAD + i, j])
                                o[j] = on.fma(x[i], S[c * QUAD + i, j], o[j])
                    for j in on.vector(E):
                        o_s[r, member, e0 + j] = o[j]

                for r, j in on.parallel(C, block_DV):
                    if r < left:
                        O[first + r, hv, dv0 + j] = on.round(scale * _sum(o_s, r, j))

            if form.final_state:
                for c in on.steps(quads):
                    d0 = (c * share + member) * QUAD
                    if whole or d0 < DK:
                        if form.state_v_first:
                            for j in on.steps(E):
                                for i in on.steps(QUAD):
                                    x[i] = S[c * QUAD + i, j]
                                for i in on.vector(QUAD):
                                    S_N[s, hv, dv0 + e0 + j, d0 + i] = x[i]
                        else:
                            for i in on.steps(QUAD):
                                for j in on.vector(E):
                                    S_N[s, hv, d0 + i, dv0 + e0 + j] = S[c * QUAD + i, j]

    return program


def _sum(o_s: Any, r: Any, j: Any) -> Any:
    """What all lanes have in o_s[r, :, j], in ascending order."""
    return reduce(add, (o_s[r, member, j] for member in range(int(o_s.shape[1]))))
