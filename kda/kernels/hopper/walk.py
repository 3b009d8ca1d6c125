"""Second launch of the Hopper program: the state walks over the chunks that `prep` prepared, and makes the output.

    V~ = diag(beta) (A V - W S)            A and W as in `prep`, W with its sign turned; beta in float32
    O  = scale (Q_g S + A_qk V~ + diag(lost) V~)      lost: what rounding took off the diagonal of A_qk
    S <- Diag(e^gamma_C) S + K_g^T V~

One program walks one sequence of one value head and some of its value channels. Its last warpgroup loads the tiles of
the chunks to come, `stages` ahead; `full[i]` says that those of stage i are there, `empty[i]` that they have been read.

Two shapes of the same walk: `walk_wide` takes 64 value channels and keeps S^T in the registers of one warpgroup, so
that every left factor comes from registers and no state passes through shared memory; `walk_narrow` takes 16 or 32 and
splits the products of a chunk between two warpgroups, for the few heads that would leave most of the chip idle.
"""

from typing import Any

import tilelang.language as T

from kda.kernels.form import Form
from kda.kernels.hopper.prep import ACCUM, CHUNK, D

__all__ = ["walk_narrow", "walk_wide"]

WARPGROUP = 128
#: Value channels of one program of `walk_wide`: the rows of a tensor-core product.
WIDE = 64
#: Registers of a thread that loads, and of one that computes.
LOADING, COMPUTING = 24, 240


@T.macro
def _member(form, s, Starts, length, begin, tokens, chunks, slot):  # type: ignore[no-untyped-def]
    # Where sequence s starts, its tokens and chunks, and its first slot (see prep).
    if form.packed:
        begin[0] = Starts[s]
        tokens[0] = Starts[s + 1] - begin[0]
        chunks[0] = T.truncdiv(tokens[0] + CHUNK - 1, CHUNK)
        slot[0] = T.truncdiv(begin[0], CHUNK) + s
    else:
        begin[0] = s * length
        tokens[0] = length
        chunks[0] = T.truncdiv(length + CHUNK - 1, CHUNK)
        slot[0] = s * chunks[0]


@T.macro
def _arrived(t, chunks, tokens, full, V_s, stages, operand):  # type: ignore[no-untyped-def]
    # The tiles of chunk t, if there is one. What follows the tokens of a last chunk is another sequence's.
    if t < chunks[0]:
        T.barrier_wait(full[t % stages], (t // stages) & 1)
        if (t + 1) * CHUNK > tokens[0]:
            for i, e in T.Parallel(CHUNK, WIDE):
                if t * CHUNK + i >= tokens[0]:
                    V_s[t % stages, i, e] = T.Cast(operand, 0.0)
            T.fence_proxy_async()
            T.sync_threads(7, WARPGROUP)


@T.macro
def _own_values(stage, V_s, A_s, vt_f):  # type: ignore[no-untyped-def]
    # A V, transposed.
    T.wgmma_gemm(V_s[stage, :, :], A_s[stage, :, :], vt_f, transpose_A=True, transpose_B=True, clear_accum=True)


@T.macro
def _product(x, y):  # type: ignore[no-untyped-def]
    return T.Cast(ACCUM, x) * T.Cast(ACCUM, y)


def walk_wide(form: Form, stages: int = 3) -> Any:
    """The TileLang program of one form for 64 value channels each; all tensors as in `prep` and `Call`."""
    op = form.operand.name
    tokens_all, HV, S1, X, SI, SF = T.dynamic("tokens, HV, S1, X, SI, SF")
    state = [D, D]

    @T.prim_func
    def kda_walk_wide(
        W: T.Tensor([X, CHUNK, D], op),
        A: T.Tensor([X, 2, CHUNK, CHUNK], op),
        Q_g: T.Tensor([X, CHUNK, D], op),
        K_g: T.Tensor([X, CHUNK, D], op),
        A_qk: T.Tensor([X, CHUNK, CHUNK], op),
        lost: T.Tensor([X, CHUNK], op),
        decay: T.Tensor([X, D + CHUNK], ACCUM),
        V: T.Tensor([tokens_all, HV, D], op),
        Starts: T.Tensor([S1], "int32"),
        S_0: T.Tensor([SI, HV, *state], ACCUM),
        O: T.Tensor([tokens_all, HV, D], op),  # noqa: E741
        S_N: T.Tensor([SF, HV, *state], ACCUM),
        sequences: T.int32,
        slots: T.int32,
        length: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(D // WIDE * HV * sequences, threads=2 * WARPGROUP) as program_id:
            bv = program_id % (D // WIDE)
            h = T.truncmod(T.truncdiv(program_id, D // WIDE), HV)
            s = T.truncdiv(T.truncdiv(program_id, D // WIDE), HV)
            e0 = bv * WIDE

            W_s = T.alloc_shared([stages, CHUNK, D], op)
            Qg_s = T.alloc_shared([stages, CHUNK, D], op)
            Kg_s = T.alloc_shared([stages, CHUNK, D], op)
            V_s = T.alloc_shared([stages, CHUNK, WIDE], op)
            A_s = T.alloc_shared([stages, CHUNK, CHUNK], op)
            Aqk_s = T.alloc_shared([stages, CHUNK, CHUNK], op)
            lost_s = T.alloc_shared([stages, CHUNK], op)
            decay_s = T.alloc_shared([stages, D], ACCUM)
            beta_s = T.alloc_shared([stages, CHUNK], ACCUM, scope="shared")  # in the KiB that the barriers take
            O_s = T.alloc_shared([CHUNK, WIDE], op)
            full = T.alloc_barrier([WARPGROUP] * stages)
            empty = T.alloc_barrier([WARPGROUP] * stages)

            begin = T.alloc_local([1], "int32")
            tokens = T.alloc_local([1], "int32")
            chunks = T.alloc_local([1], "int32")
            slot = T.alloc_local([1], "int32")
            coming = T.alloc_local([1], ACCUM)  # a beta on its way
            above = T.alloc_local([1], "int32")  # whether a beta is above 1
            state_f = T.alloc_fragment([WIDE, D], ACCUM)  # S^T
            state_op = T.alloc_fragment([WIDE, D], op)
            vt_f = T.alloc_fragment([WIDE, CHUNK], ACCUM)
            vt_op = T.alloc_fragment([WIDE, CHUNK], op)
            beta_f = T.alloc_fragment([CHUNK], ACCUM)
            lost_f = T.alloc_fragment([CHUNK], op)
            o_f = T.alloc_fragment([WIDE, CHUNK], ACCUM)

            _member(form, s, Starts, length, begin, tokens, chunks, slot)
            x = h * slots + slot[0]
            lane = T.get_thread_binding(0) % CHUNK

            with T.ws(1):
                T.dec_max_nreg(LOADING)
                for t in T.serial(chunks[0]):
                    coming[0] = decay[x + t, D + lane]
                    T.barrier_wait(empty[t % stages], ((t // stages) & 1) ^ 1)
                    T.tma_copy(W[x + t, :, :], W_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(A[x + t, 0, :, :], A_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(
                        V[begin[0] + t * CHUNK : begin[0] + (t + 1) * CHUNK, h, e0 : e0 + WIDE],
                        V_s[t % stages, :, :],
                        barrier=full[t % stages],
                    )
                    T.tma_copy(K_g[x + t, :, :], Kg_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(Q_g[x + t, :, :], Qg_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(A_qk[x + t, :, :], Aqk_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(lost[x + t, :], lost_s[t % stages, :], barrier=full[t % stages])
                    T.tma_copy(decay[x + t, 0:D], decay_s[t % stages, :], barrier=full[t % stages])
                    beta_s[t % stages, lane] = coming[0]
                    T.barrier_arrive(full[t % stages])

            with T.ws(0):
                T.inc_max_nreg(COMPUTING)
                if form.initial_state:
                    for e, d in T.Parallel(WIDE, D):
                        if form.state_v_first:
                            state_f[e, d] = S_0[s, h, e0 + e, d]
                        else:
                            state_f[e, d] = S_0[s, h, d, e0 + e]
                else:
                    T.clear(state_f)
                _arrived(0, chunks, tokens, full, V_s, stages, op)
                _own_values(0, V_s, A_s, vt_f)
                T.wait_wgmma(0)
                for t in T.serial(chunks[0]):
                    # A V - W S: the first product is on the accumulator already; prep has turned the sign of W.
                    T.copy(state_f, state_op)
                    T.wgmma_gemm(state_op, W_s[t % stages, :, :], vt_f, transpose_B=True)
                    T.wgmma_gemm(state_op, Qg_s[t % stages, :, :], o_f, transpose_B=True, clear_accum=True)
                    # The state decays, each key channel at its own rate, before the chunk's writes are added.
                    for e, d in T.Parallel(WIDE, D):
                        state_f[e, d] = state_f[e, d] * decay_s[t % stages, d]
                    T.copy(beta_s[t % stages, :], beta_f)
                    above[0] = T.any_sync(
                        T.max(beta_s[t % stages, lane % 32], beta_s[t % stages, 32 + lane % 32]) > 1.0
                    )
                    if above[0] != 0:  # A has a second half (see prep)
                        T.tma_store_wait(0, True)
                        T.sync_threads(5, WARPGROUP)
                        for i, j in T.Parallel(CHUNK, CHUNK):
                            O_s[i, j] = A[x + t, 1, i, j]
                        T.fence_proxy_async()
                        T.sync_threads(6, WARPGROUP)
                        T.wgmma_gemm(V_s[t % stages, :, :], O_s, vt_f, transpose_A=True, transpose_B=True)
                        T.wait_wgmma(0)
                    T.wait_wgmma(1)
                    for e, i in T.Parallel(WIDE, CHUNK):
                        vt_op[e, i] = T.Cast(op, vt_f[e, i] * beta_f[i])
                    T.wgmma_gemm(vt_op, Kg_s[t % stages, :, :], state_f)
                    T.wgmma_gemm(vt_op, Aqk_s[t % stages, :, :], o_f, transpose_B=True)
                    # Of the next chunk; after the last one, of what is left of an earlier one, for nobody.
                    _arrived(t + 1, chunks, tokens, full, V_s, stages, op)
                    _own_values((t + 1) % stages, V_s, A_s, vt_f)
                    T.copy(lost_s[t % stages, :], lost_f)
                    T.wait_wgmma(0)
                    T.barrier_arrive(empty[t % stages])

                    T.tma_store_wait(0, True)
                    T.sync_threads(5, WARPGROUP)
                    for e, i in T.Parallel(WIDE, CHUNK):
                        O_s[i, e] = T.Cast(op, (o_f[e, i] + _product(lost_f[i], vt_op[e, i])) * scale)
                    T.fence_proxy_async()
                    T.sync_threads(6, WARPGROUP)
                    if (t + 1) * CHUNK <= tokens[0]:
                        T.tma_copy(O_s, O[begin[0] + t * CHUNK : begin[0] + (t + 1) * CHUNK, h, e0 : e0 + WIDE])
                    else:
                        for i, e in T.Parallel(CHUNK, WIDE):
                            if t * CHUNK + i < tokens[0]:
                                O[begin[0] + t * CHUNK + i, h, e0 + e] = O_s[i, e]
                T.tma_store_wait(0, True)
                if form.final_state:
                    for e, d in T.Parallel(WIDE, D):
                        if form.state_v_first:
                            S_N[s, h, e0 + e, d] = state_f[e, d]
                        else:
                            S_N[s, h, d, e0 + e] = state_f[e, d]

    return kda_walk_wide


def walk_narrow(form: Form, block_DV: int = 16, stages: int = 3) -> Any:
    """The TileLang program of one form for `block_DV` value channels each; all tensors as in `walk_wide`."""
    op = form.operand.name
    tokens_all, HV, S1, X, SI, SF = T.dynamic("tokens, HV, S1, X, SI, SF")
    state = [D, D]

    @T.prim_func
    def kda_walk_narrow(
        W: T.Tensor([X, CHUNK, D], op),
        A: T.Tensor([X, 2, CHUNK, CHUNK], op),
        Q_g: T.Tensor([X, CHUNK, D], op),
        K_g: T.Tensor([X, CHUNK, D], op),
        A_qk: T.Tensor([X, CHUNK, CHUNK], op),
        lost: T.Tensor([X, CHUNK], op),
        decay: T.Tensor([X, D + CHUNK], ACCUM),
        V: T.Tensor([tokens_all, HV, D], op),
        Starts: T.Tensor([S1], "int32"),
        S_0: T.Tensor([SI, HV, *state], ACCUM),
        O: T.Tensor([tokens_all, HV, D], op),  # noqa: E741
        S_N: T.Tensor([SF, HV, *state], ACCUM),
        sequences: T.int32,
        slots: T.int32,
        length: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(D // block_DV * HV * sequences, threads=3 * WARPGROUP) as program_id:
            bv = program_id % (D // block_DV)
            h = T.truncmod(T.truncdiv(program_id, D // block_DV), HV)
            s = T.truncdiv(T.truncdiv(program_id, D // block_DV), HV)
            e0 = bv * block_DV

            W_s = T.alloc_shared([stages, CHUNK, D], op)
            Qg_s = T.alloc_shared([stages, CHUNK, D], op)
            Kg_s = T.alloc_shared([stages, CHUNK, D], op)
            V_s = T.alloc_shared([stages, CHUNK, block_DV], op)
            A_s = T.alloc_shared([stages, CHUNK, CHUNK], op)
            Aqk_s = T.alloc_shared([stages, CHUNK, CHUNK], op)
            lost_s = T.alloc_shared([stages, CHUNK], op)
            decay_s = T.alloc_shared([stages, D], ACCUM)
            beta_s = T.alloc_shared([stages, CHUNK], ACCUM, scope="shared")  # in the KiB that the barriers take
            state_s = T.alloc_shared([D, block_DV], op)
            vt_s = T.alloc_shared([2, CHUNK, block_DV], op)
            O_s = T.alloc_shared([CHUNK, block_DV], op)
            full = T.alloc_barrier([WARPGROUP] * stages)
            empty = T.alloc_barrier([2 * WARPGROUP] * stages)
            state_here = T.alloc_barrier([2 * WARPGROUP])
            state_read = T.alloc_barrier([WARPGROUP])
            vt_here = T.alloc_barrier([WARPGROUP])

            begin = T.alloc_local([1], "int32")
            tokens = T.alloc_local([1], "int32")
            chunks = T.alloc_local([1], "int32")
            slot = T.alloc_local([1], "int32")
            coming = T.alloc_local([1], ACCUM)  # a beta on its way
            above = T.alloc_local([1], "int32")  # whether a beta is above 1
            upper_f = T.alloc_fragment([64, block_DV], ACCUM)  # key channels ..63 of S
            lower_f = T.alloc_fragment([64, block_DV], ACCUM)  # and 64..
            vt_f = T.alloc_fragment([CHUNK, block_DV], ACCUM)
            beta_f = T.alloc_fragment([CHUNK], ACCUM)
            lost_f = T.alloc_fragment([CHUNK], op)
            vt_op = T.alloc_fragment([CHUNK, block_DV], op)
            o_f = T.alloc_fragment([CHUNK, block_DV], ACCUM)

            _member(form, s, Starts, length, begin, tokens, chunks, slot)
            x = h * slots + slot[0]
            lane = T.get_thread_binding(0) % CHUNK

            with T.ws(2):
                T.dec_max_nreg(LOADING)
                for t in T.serial(chunks[0]):
                    coming[0] = decay[x + t, D + lane]
                    T.barrier_wait(empty[t % stages], ((t // stages) & 1) ^ 1)
                    T.tma_copy(W[x + t, :, :], W_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(A[x + t, 0, :, :], A_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(
                        V[begin[0] + t * CHUNK : begin[0] + (t + 1) * CHUNK, h, e0 : e0 + block_DV],
                        V_s[t % stages, :, :],
                        barrier=full[t % stages],
                    )
                    T.tma_copy(K_g[x + t, :, :], Kg_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(Q_g[x + t, :, :], Qg_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(A_qk[x + t, :, :], Aqk_s[t % stages, :, :], barrier=full[t % stages])
                    T.tma_copy(lost[x + t, :], lost_s[t % stages, :], barrier=full[t % stages])
                    T.tma_copy(decay[x + t, 0:D], decay_s[t % stages, :], barrier=full[t % stages])
                    beta_s[t % stages, lane] = coming[0]
                    T.barrier_arrive(full[t % stages])

            # The first warpgroup: V~, and the upper half of the state.
            with T.ws(0):
                T.inc_max_nreg(COMPUTING)
                if form.initial_state:
                    for d, e in T.Parallel(64, block_DV):
                        if form.state_v_first:
                            upper_f[d, e] = S_0[s, h, e0 + e, d]
                        else:
                            upper_f[d, e] = S_0[s, h, d, e0 + e]
                else:
                    T.clear(upper_f)
                T.copy(upper_f, state_s[0:64, :])
                T.fence_proxy_async()
                T.barrier_arrive(state_here)
                for t in T.serial(chunks[0]):
                    T.barrier_wait(full[t % stages], (t // stages) & 1)
                    if (t + 1) * CHUNK > tokens[0]:  # what follows a last chunk is another sequence's
                        for i, e in T.Parallel(CHUNK, block_DV):
                            if t * CHUNK + i >= tokens[0]:
                                V_s[t % stages, i, e] = T.Cast(op, 0.0)
                        T.fence_proxy_async()
                        T.sync_threads(7, WARPGROUP)
                    # A V - W S on one accumulator; prep has turned the sign of W.
                    T.wgmma_gemm(A_s[t % stages, :, :], V_s[t % stages, :, :], vt_f, clear_accum=True)
                    T.barrier_wait(state_here, t & 1)
                    T.wgmma_gemm(W_s[t % stages, :, :], state_s, vt_f)
                    for d, e in T.Parallel(64, block_DV):
                        upper_f[d, e] = upper_f[d, e] * decay_s[t % stages, d]
                    T.copy(beta_s[t % stages, :], beta_f)
                    above[0] = T.any_sync(
                        T.max(beta_s[t % stages, lane % 32], beta_s[t % stages, 32 + lane % 32]) > 1.0
                    )
                    T.wait_wgmma(0)
                    if above[0] != 0:  # A has a second half (see prep)
                        # Through the tile that V~ will be in, as many columns at a time as it has.
                        for part in T.unroll(CHUNK // block_DV):
                            for i, j in T.Parallel(CHUNK, block_DV):
                                vt_s[t % 2, i, j] = A[x + t, 1, i, part * block_DV + j]
                            T.fence_proxy_async()
                            T.sync_threads(7, WARPGROUP)
                            T.wgmma_gemm(
                                vt_s[t % 2, :, :],
                                V_s[t % stages, part * block_DV : (part + 1) * block_DV, :],
                                vt_f,
                            )
                            T.wait_wgmma(0)
                            T.sync_threads(7, WARPGROUP)
                    for i, e in T.Parallel(CHUNK, block_DV):
                        vt_s[t % 2, i, e] = T.Cast(op, vt_f[i, e] * beta_f[i])
                    T.fence_proxy_async()
                    T.barrier_arrive(vt_here)
                    T.barrier_wait(vt_here, t & 1)
                    T.wgmma_gemm(Kg_s[t % stages, :, 0:64], vt_s[t % 2, :, :], upper_f, transpose_A=True)
                    T.wait_wgmma(0)
                    T.barrier_wait(state_read, t & 1)
                    T.copy(upper_f, state_s[0:64, :])
                    T.fence_proxy_async()
                    T.barrier_arrive(state_here)
                    T.barrier_arrive(empty[t % stages])
                if form.final_state:
                    for d, e in T.Parallel(64, block_DV):
                        if form.state_v_first:
                            S_N[s, h, e0 + e, d] = upper_f[d, e]
                        else:
                            S_N[s, h, d, e0 + e] = upper_f[d, e]

            # The second: the output, and the lower half.
            with T.ws(1):
                T.inc_max_nreg(COMPUTING)
                if form.initial_state:
                    for d, e in T.Parallel(64, block_DV):
                        if form.state_v_first:
                            lower_f[d, e] = S_0[s, h, e0 + e, 64 + d]
                        else:
                            lower_f[d, e] = S_0[s, h, 64 + d, e0 + e]
                else:
                    T.clear(lower_f)
                T.copy(lower_f, state_s[64:128, :])
                T.fence_proxy_async()
                T.barrier_arrive(state_here)
                for t in T.serial(chunks[0]):
                    T.barrier_wait(full[t % stages], (t // stages) & 1)
                    T.barrier_wait(state_here, t & 1)
                    T.wgmma_gemm(Qg_s[t % stages, :, :], state_s, o_f, clear_accum=True)
                    for d, e in T.Parallel(64, block_DV):
                        lower_f[d, e] = lower_f[d, e] * decay_s[t % stages, 64 + d]
                    T.wait_wgmma(0)
                    T.barrier_arrive(state_read)
                    # V~ is there after the first warpgroup has read the state, too.
                    T.barrier_wait(vt_here, t & 1)
                    # The next chunk waits for the state, nobody for the output.
                    T.wgmma_gemm(Kg_s[t % stages, :, 64:128], vt_s[t % 2, :, :], lower_f, transpose_A=True)
                    T.wgmma_gemm(Aqk_s[t % stages, :, :], vt_s[t % 2, :, :], o_f)
                    T.copy(lost_s[t % stages, :], lost_f)
                    T.copy(vt_s[t % 2, :, :], vt_op)
                    T.wait_wgmma(1)
                    T.copy(lower_f, state_s[64:128, :])
                    T.fence_proxy_async()
                    T.barrier_arrive(state_here)
                    T.wait_wgmma(0)
                    T.barrier_arrive(empty[t % stages])
                    T.tma_store_wait(0, True)
                    T.sync_threads(5, WARPGROUP)
                    for i, e in T.Parallel(CHUNK, block_DV):
                        O_s[i, e] = T.Cast(op, (o_f[i, e] + _product(lost_f[i], vt_op[i, e])) * scale)
                    T.fence_proxy_async()
                    T.sync_threads(6, WARPGROUP)
                    if (t + 1) * CHUNK <= tokens[0]:
                        T.tma_copy(O_s, O[begin[0] + t * CHUNK : begin[0] + (t + 1) * CHUNK, h, e0 : e0 + block_DV])
                    else:  # what follows a last chunk is another sequence's
                        for i, e in T.Parallel(CHUNK, block_DV):
                            if t * CHUNK + i < tokens[0]:
                                O[begin[0] + t * CHUNK + i, h, e0 + e] = O_s[i, e]
                T.tma_store_wait(0, True)
                if form.final_state:
                    for d, e in T.Parallel(64, block_DV):
                        if form.state_v_first:
                            S_N[s, h, e0 + e, 64 + d] = lower_f[d, e]
                        else:
                            S_N[s, h, 64 + d, e0 + e] = lower_f[d, e]

    return kda_walk_narrow
