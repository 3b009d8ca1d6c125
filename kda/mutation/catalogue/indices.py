"""Heads, batches, blocks, chunks, tails: which element is read and which is written."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.catalogue.places import FORWARD_QP, QP
from kda.mutation.rewrite import Edit

__all__ = ["INDICES"]

#: Where kda_forward takes the gate as it is.
_LOG_GATE = "G_s[_r, _d] = T.if_then_else(_r < left, T.Cast(ACCUM, _g), 0.0)"

INDICES = (
    Mistake(
        "gate-of-head-0",
        "every head decays by the gate of head 0",
        "FLA #624 (heads of another number)",
        stage="g",
        kernel=(Edit("the gate that is read", "G[bb, s0 + _r, bh, _d]", "G[bb, s0 + _r, 0, _d]"),),
        loops=(Edit("the gate that is read", "inputs.g[b, rows, h]", "inputs.g[b, rows, 0]"),),
        forward=InForward(
            kernel=(Edit("the gate that is read", "G[first + _r, hv, _d]", "G[first + _r, 0, _d]", _LOG_GATE),),
            mirror=(
                Edit(
                    "the gate that is read",
                    "(inputs.g, inputs.beta)",
                    "(np.broadcast_to(inputs.g[:, :, :1], inputs.g.shape), inputs.beta)",
                ),
            ),
        ),
        members=2,
        hidden_by=("one head",),
    ),
    Mistake(
        "beta-of-head-0",
        "every head writes with the beta of head 0",
        "FLA #624 (heads of another number)",
        stage="beta",
        kernel=(Edit("the beta that is read", "Beta[bb, s0 + _r, bh]", "Beta[bb, s0 + _r, 0]"),),
        loops=(Edit("the beta that is read", "inputs.beta[b, rows, h]", "inputs.beta[b, rows, 0]"),),
        forward=InForward(
            kernel=(Edit("the beta that is read", "Beta[first + _r, hv]", "Beta[first + _r, 0]"),),
            mirror=(
                Edit(
                    "the beta that is read",
                    "(inputs.g, inputs.beta)",
                    "(inputs.g, np.broadcast_to(inputs.beta[:, :, :1], inputs.beta.shape))",
                ),
            ),
        ),
        members=2,
        hidden_by=("one head",),
    ),
    Mistake(
        "state-of-batch-0",
        "every batch starts from the state of batch 0",
        "tpu-inference #2408 (the state of another slot)",
        stage="S at the start",
        kernel=(
            Edit(
                "where the state is set",
                "T.copy(S_0[bb, bh, :, dv0:dv0 + block_DV], S_f)",
                "T.copy(S_0[0, bh, :, dv0:dv0 + block_DV], S_f)",
            ),
        ),
        loops=(
            Edit(
                "where the state is set",
                "S = state[b, h, :, dv].astype(accum)",
                "S = inputs.state()[0, h, :, dv].astype(accum)",
            ),
        ),
        forward=InForward(
            kernel=(Edit("where the state is set", "S_0[s, hv, _d, dv0 + _j]", "S_0[0, hv, _d, dv0 + _j]"),),
            mirror=(
                Edit(
                    "where the state is set",
                    "inputs.state().astype(accum)",
                    "np.broadcast_to(inputs.state()[:1], inputs.state().shape).astype(accum)",
                ),
            ),
        ),
        members=2,
        hidden_by=("one batch",),
    ),
    Mistake(
        "batch-and-head-exchanged",
        "v is read at [head, token, batch]",
        "FLA #692 (strides)",
        stage="v",
        kernel=(Edit("the load of v", "V[bb, _t, bh, _j]", "V[bh % B, _t, bb % H, _j]"),),
        loops=(Edit("the load of v", "inputs.v[b, rows, h, dv]", "inputs.v[h % sizes.B, rows, b % sizes.H, dv]"),),
        forward=InForward(
            kernel=(
                Edit(
                    "the load of v",
                    "V[first + _r, hv, _j]",
                    "V[hv % sequences * length + s0 + _r, s % HV, _j]",
                ),
            ),
            mirror=(
                Edit(
                    "the load of v",
                    "q, k, v = _x",
                    "q, k, v = _x\nv = v[np.arange(sizes.H) % sizes.B, np.arange(sizes.B)[:, None] % sizes.H]",
                ),
            ),
        ),
        members=2,
        hidden_by=("one batch and one head",),
    ),
    Mistake(
        "stride-of-batch-for-stride-of-head",
        "the state's offset is batch * B + head: the stride is the batch count, not the head count",
        "FLA #692 (strides)",
        stage="S at the start",
        kernel=(
            Edit(
                "where the state is set",
                "T.copy(S_0[bb, bh, :, dv0:dv0 + block_DV], S_f)",
                "T.copy(S_0[(bb * B + bh) // H % B, (bb * B + bh) % H, :, dv0:dv0 + block_DV], S_f)",
            ),
        ),
        loops=(
            Edit(
                "where the state is set",
                "S = state[b, h, :, dv].astype(accum)",
                "at = b * sizes.B + h\nS = inputs.state()[at // sizes.H % sizes.B, at % sizes.H, :, dv].astype(accum)",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "where the state is set",
                    "S_0[s, hv, _d, dv0 + _j]",
                    "S_0[(s * sequences + hv) // HV % sequences, (s * sequences + hv) % HV, _d, dv0 + _j]",
                ),
            ),
            mirror=(
                Edit(
                    "where the state is set",
                    "S = inputs.state().astype(accum)",
                    "at = np.arange(sizes.B)[:, None] * sizes.B + np.arange(sizes.H)\n"
                    "S = inputs.state()[at // sizes.H % sizes.B, at % sizes.H].astype(accum)",
                ),
            ),
        ),
        hidden_by=("one batch",),
        members=2,
    ),
    Mistake(
        "tokens-read-head-first",
        "k is read as [B, H, N, DK]: token and head are exchanged in its offset",
        "FLA #627 (a layout that is assumed)",
        stage="k",
        kernel=(
            Edit(
                "the load of k",
                "T.copy(K[bb, s0:s0 + C, bh, :], K_s)",
                "for r, d in on.parallel(C, DK):\n"
                "    K_s[r, d] = T.if_then_else("
                "s0 + r < N, K[bb, (bh * N + s0 + r) // H % N, (bh * N + s0 + r) % H, d], T.Cast(on.operand, 0.0))",
            ),
        ),
        loops=(
            Edit(
                "the load of k",
                "op(inputs.k[b, rows, h])",
                "op(inputs.k[b].reshape(-1, sizes.DK)[h * sizes.N + np.arange(rows.start, rows.stop)])",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the load of k",
                    "K[first + _r, hk, _d]",
                    "K[start + (hk * length + s0 + _r) // H, (hk * length + s0 + _r) % H, _d]",
                ),
            ),
            mirror=(
                Edit(
                    "the load of k",
                    "q, k, v = _x",
                    "q, k, v = _x\nk = whole(op(inputs.k.reshape(sizes.B, sizes.H, sizes.N, sizes.DK)))",
                ),
            ),
        ),
        tokens=2,
        members=2,
        hidden_by=("one head",),
    ),
    Mistake(
        "block-offset-forgotten-in-V",
        "every program reads the first block of value channels",
        "article 4.0",
        stage="v",
        kernel=(Edit("the load of v", "V[bb, _t, bh, dv0:dv0 + block_DV]", "V[bb, _t, bh, 0:block_DV]"),),
        loops=(Edit("the load of v", "inputs.v[b, rows, h, dv]", "inputs.v[b, rows, h, :dv.stop - dv.start]"),),
        forward=InForward(
            kernel=(Edit("the load of v", "V[first + _r, hv, dv0 + _j]", "V[first + _r, hv, _j]"),),
            mirror=(Edit("the load of v", "q, k, v = _x", "q, k, v = _x\nv = v[..., np.arange(sizes.DV) % block_DV]"),),
        ),
        hidden_by=("one block of value channels",),
    ),
    Mistake(
        "block-offset-forgotten-in-o",
        "every program writes the first block of value channels",
        "article 4.0",
        stage="o as stored",
        kernel=(Edit("the store of o", "O[bb, _t, bh, dv0 + _j]", "O[bb, _t, bh, _j]"),),
        loops=(
            Edit(
                "the store of o", "o[b, rows, h, dv]", "o[b, rows, h, :dv.stop - dv.start]", "o[b, rows, h, dv] = o_c"
            ),
        ),
        forward=InForward(
            kernel=(Edit("the store of o", "O[first + _r, hv, dv0 + _j]", "O[first + _r, hv, _j]"),),
            mirror=(
                Edit(
                    "the store of o", "o[:, :, real] = _o", "o[:, :, real, :block_DV] = o_c[:, :, tokens, -block_DV:]"
                ),
            ),
        ),
        hidden_by=("one block of value channels",),
    ),
    Mistake(
        "block-offset-forgotten-in-the-initial-state",
        "every program starts from the first block of the state",
        "article 4.0",
        stage="S at the start",
        kernel=(Edit("where the state is set", "S_0[bb, bh, :, dv0:dv0 + block_DV]", "S_0[bb, bh, :, 0:block_DV]"),),
        loops=(
            Edit(
                "where the state is set",
                "state[b, h, :, dv].astype(accum)",
                "inputs.state()[b, h, :, :dv.stop - dv.start].astype(accum)",
            ),
        ),
        forward=InForward(
            kernel=(Edit("where the state is set", "S_0[s, hv, _d, dv0 + _j]", "S_0[s, hv, _d, _j]"),),
            mirror=(
                Edit(
                    "where the state is set",
                    "inputs.state().astype(accum)",
                    "inputs.state()[..., np.arange(sizes.DV) % block_DV].astype(accum)",
                ),
            ),
        ),
        hidden_by=("one block of value channels", "no initial state"),
    ),
    Mistake(
        "block-offset-forgotten-in-the-final-state",
        "every program stores the first block of the state",
        "article 4.0",
        stage="final state as stored",
        kernel=(
            Edit("the store of the final state", "S_N[bb, bh, :, dv0:dv0 + block_DV]", "S_N[bb, bh, :, 0:block_DV]"),
        ),
        loops=(
            Edit("the store of the final state", "state[b, h, :, dv] = S", "state[b, h, :, :dv.stop - dv.start] = S"),
        ),
        forward=InForward(
            kernel=(Edit("the store of the final state", "S_N[s, hv, _d, dv0 + _j] = _s", "S_N[s, hv, _d, _j] = _s"),),
            mirror=(
                Edit(
                    "the store of the final state",
                    "S.astype(np.float64)",
                    "np.append(S[..., -block_DV:], np.nan * S[..., block_DV:], axis=-1).astype(np.float64)",
                ),
            ),
        ),
        hidden_by=("one block of value channels",),
    ),
    Mistake(
        "blocks-counted-by-DK",
        "the grid has DK / block_DV programs: value channels past DK are never written",
        "vLLM #41292 (equal DK and DV hid it)",
        stage="grid",
        kernel=(Edit("the grid", "T.ceildiv(DV, block_DV)", "T.ceildiv(DK + 0 * DV, block_DV)"),),
        loops=(
            Edit(
                "the grid",
                'chunks(sizes.DV, block_DV, "block_DV")',
                'chunks(min(sizes.DK, sizes.DV), block_DV, "block_DV")',
            ),
        ),
        forward=InForward(
            kernel=(Edit("the grid", "T.ceildiv(DV, block_DV)", "T.ceildiv(DK + 0 * DV, block_DV)"),),
            mirror=(
                Edit(
                    "the store of o",
                    "o[:, :, real] = _o",
                    "o[:, :, real, :-(-sizes.DK // block_DV) * block_DV] = "
                    "o_c[:, :, tokens, :-(-sizes.DK // block_DV) * block_DV]",
                ),
                Edit(
                    "the store of the final state",
                    "S.astype(np.float64)",
                    "np.where(np.arange(sizes.DV) < -(-sizes.DK // block_DV) * block_DV, S, np.nan).astype(np.float64)",
                ),
            ),
        ),
        hidden_by=("DK = DV",),
    ),
    Mistake(
        "chunk-length-hard-coded",
        "chunks start every 64 tokens whatever C is",
        "FLA #876",
        stage="q",
        kernel=(Edit("the head of the loop", "s0 = i_s * C", "s0 = i_s * 64"),),
        mirror=(
            Edit(
                "the rows of a chunk",
                "enumerate(chunks(sizes.N, C))",
                "enumerate([r for r in chunks(sizes.N, C) if r.start % 64 == 0])",
            ),
        ),
        forward=InForward(
            kernel=(Edit("the head of the loop", "s0 = i_s * C", "s0 = i_s * 64"),),
            mirror=(
                Edit(
                    "the rows of a chunk",
                    "enumerate(chunks(q.shape[2], C))",
                    "enumerate([r for r in chunks(q.shape[2], C) if r.start % 64 == 0])",
                ),
            ),
        ),
        tokens=17,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "tokens-past-a-bound-ignored",
        "the loop over chunks ends at a bound that is smaller than N",
        "FLA #906 (rows after 65536)",
        stage="loop over chunks",
        kernel=(Edit("the loop over chunks", "T.ceildiv(N, C)", "T.ceildiv(T.min(N, 96), C)"),),
        mirror=(
            Edit(
                "the rows of a chunk",
                "enumerate(chunks(sizes.N, C))",
                "enumerate([r for r in chunks(sizes.N, C) if r.start < 96])",
            ),
        ),
        forward=InForward(
            kernel=(Edit("the loop over chunks", "T.ceildiv(tokens, C)", "T.ceildiv(T.min(tokens, 96), C)"),),
            mirror=(
                Edit(
                    "the rows of a chunk",
                    "enumerate(chunks(q.shape[2], C))",
                    "enumerate([r for r in chunks(q.shape[2], C) if r.start < 96])",
                ),
            ),
        ),
        tokens=97,
    ),
    Mistake(
        "output-rows-past-N-written",
        "rows past N go to the next sequence of the batch: the store knows no bound",
        "FLA #673 (tail rows)",
        stage="o as stored",
        kernel=(
            Edit(
                "the store of o",
                "if s0 + _r < N:\n    O[bb, s0 + _r, bh, _j] = _o",
                "if s0 + _r < N:\n    O[bb, s0 + _r, bh, _j] = _o\n"
                "else:\n    O[T.min(bb + 1, B - 1), (s0 + _r) % N, bh, _j] = _o",
            ),
        ),
        loops=(
            Edit(
                "the store of o",
                "o[b, rows, h, dv] = o_c",
                "o[b, rows, h, dv] = o_c\n"
                "past = (rows.start + np.arange(length, C)) % sizes.N\n"
                "o[min(b + 1, sizes.B - 1), past, h, dv] = 0",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the store of o",
                    "if _r < left:\n    O[first + _r, hv, _j] = _o",
                    "O[(first + _r) % N, hv, _j] = _o",
                ),
            ),
            # What the sequences after it do not overwrite: the last one's rows, from the first token of the first on.
            mirror=(
                Edit(
                    "o",
                    "np.moveaxis(o, 1, 2)",
                    "np.where(np.arange(sizes.B * sizes.N).reshape(sizes.B, sizes.N, 1, 1) < -sizes.N % C, 0, "
                    "np.moveaxis(o, 1, 2))",
                ),
            ),
        ),
        hidden_by=("full chunks alone",),
    ),
    Mistake(
        "last-row-written-by-padding",
        "the store clamps its row: the rows past N overwrite the last token",
        "FLA #673 (tail rows)",
        stage="o as stored",
        kernel=(
            Edit(
                "the store of o",
                "if s0 + _r < N:\n    O[bb, s0 + _r, bh, _j] = _o",
                "O[bb, T.min(s0 + _r, N - 1), bh, _j] = _o",
            ),
        ),
        mirror=(
            Edit(
                "the store of o",
                "o[:, :, rows] = o_c",
                "o[:, :, rows] = o_c\no[:, :, -1] *= sizes.N % C == 0",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the store of o",
                    "if _r < left:\n    O[first + _r, hv, _j] = _o",
                    "O[first + T.min(_r, left - 1), hv, _j] = _o",
                ),
            ),
            mirror=(
                Edit("the store of o", "o[:, :, real] = _o", "o[:, :, real] = _o\no[:, :, -1] *= sizes.N % C == 0"),
            ),
        ),
        targets=("c",),  # on CUDA the lanes race for that row
        hidden_by=("full chunks alone",),
    ),
    Mistake(
        "last-token-not-written",
        "o is written up to N - 1",
        "FLA #673 (tail rows)",
        stage="o as stored",
        kernel=(Edit("the mask of the store", "s0 + _r < N", "s0 + _r < N - 1", "if _c:\n    O[_, _, _, _] = _"),),
        mirror=(
            Edit(
                "the store of o",
                "o[:, :, rows] = o_c",
                "o[:, :, rows] = o_c\no[:, :, -1] = np.nan",
            ),
        ),
        forward=InForward(
            kernel=(Edit("the mask of the store", "_r < left", "_r < left - 1", "if _c:\n    O[_, _, _] = _"),),
            mirror=(Edit("the store of o", "o[:, :, real] = _o", "o[:, :, real] = _o\no[:, :, -1] = np.nan"),),
        ),
    ),
    Mistake(
        "inputs-overwritten",
        "the gate is summed up in place, in the caller's tensor",
        "GLM thread on chunk_kda (v and g overwritten)",
        kernel=(
            Edit(
                "the prefix sum",
                "Em_s[_r, _d] = T.exp2(_x)",
                "Em_s[_r, _d] = T.exp2(_x)\nif s0 + _r < N:\n    G[bb, s0 + _r, bh, _d] = gamma[0]",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "gamma",
                    FORWARD_QP,
                    FORWARD_QP + "\nif _r < left:\n    G[first + _r, hv, _d] = total[0]",
                ),
            ),
        ),
        law="machine.inputs_stay_untouched",
        targets=("c",),  # on CUDA the value-channel blocks race for G
        tokens=2,
    ),
    Mistake(
        "scale-applied",
        "q is scaled by DK^-1/2, which is the caller's to do",
        "FLA (its default scale)",
        stage="q e^gamma",
        kernel=(
            Edit("q e^gamma", QP, "Qp_s[_r, _d] = on.round(T.Cast(ACCUM, Q_s[_r, _d]) * Ep_s[_r, _d] * DK ** -0.5)"),
        ),
        mirror=(Edit("q e^gamma", "Qp = op(Qc * Ep)", "Qp = op(Qc * Ep * np.float32(sizes.DK ** -0.5))"),),
        forward=InForward(
            kernel=(Edit("the store of o", "on.round(scale * _o)", "on.round(scale * DK ** -0.5 * _o)"),),
            mirror=(
                Edit(
                    "the store of o",
                    "gemm(A_c, Vt_c, acc_o)",
                    "np.float32(sizes.DK ** -0.5) * gemm(A_c, Vt_c, acc_o)",
                ),
            ),
            stage="o as stored",
        ),
    ),
    Mistake(
        "gate-in-linear-space",
        "the gate is taken for a decay: gamma sums log(1 + g)",
        "FlashInfer #2490",
        stage="g",
        kernel=(
            Edit(
                "the gate that is read", "G[bb, s0 + _r, bh, _d]", "T.log(T.max(1.0 + G[bb, s0 + _r, bh, _d], 0.001))"
            ),
        ),
        mirror=(
            Edit(
                "the gate that is read",
                "heads_first(inputs.g).astype(accum)",
                "np.log(np.maximum(1 + heads_first(inputs.g), 0.001)).astype(accum)",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the gate that is read",
                    "T.Cast(ACCUM, G[first + _r, hv, _d])",
                    "T.log(T.max(1.0 + T.Cast(ACCUM, G[first + _r, hv, _d]), 0.001))",
                    _LOG_GATE,
                ),
            ),
            mirror=(
                Edit(
                    "the gate that is read",
                    "(inputs.g, inputs.beta)",
                    "(np.log(np.maximum(1 + inputs.g, 0.001)), inputs.beta)",
                ),
            ),
        ),
    ),
)
