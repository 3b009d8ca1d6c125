"""The state: what it starts from, how it decays, when it moves on, where it ends (article 4.4, 4.5)."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.catalogue.places import (
    A_ACROSS,
    BORDERED,
    DECAY_LOOP,
    FORWARD_DECAYED,
    FORWARD_WRITE_GEMM,
    KD,
    M_ACROSS,
    PRODUCT,
    WRITE_GEMM,
)
from kda.mutation.rewrite import Edit

__all__ = ["STATE"]

_READ_VALUE_FIRST_KERNEL = Edit(
    "where the state is set",
    "T.copy(S_0[bb, bh, :, dv0:dv0 + block_DV], S_f)",
    "for d, j in on.parallel(DK, block_DV):\n"
    "    S_f[d, j] = S_0[bb, bh, ((dv0 + j) * DK + d) // DV, ((dv0 + j) * DK + d) % DV]",
)
_READ_VALUE_FIRST_MIRROR = Edit(
    "where the state is set",
    "S = inputs.state().astype(accum)",
    "S = inputs.state().astype(accum).reshape(sizes.B, sizes.H, sizes.DV, sizes.DK).swapaxes(-1, -2)",
)
_WRITE_VALUE_FIRST_KERNEL = Edit(
    "the store of the final state",
    "T.copy(S_f, S_N[bb, bh, :, dv0:dv0 + block_DV])",
    "for d, j in on.parallel(DK, block_DV):\n"
    "    S_N[bb, bh, ((dv0 + j) * DK + d) // DV, ((dv0 + j) * DK + d) % DV] = S_f[d, j]",
)
_WRITE_VALUE_FIRST_MIRROR = Edit(
    "the store of the final state",
    "S.astype(np.float64)",
    "S.astype(np.float64).swapaxes(-1, -2).reshape(sizes.B, sizes.H, sizes.DK, sizes.DV)",
)

# kda_forward, where a state may be absent and either way round.
_SET_FORWARD = "if form.initial_state:\n    _read\nelse:\n    _zero"
_STORED_FORWARD = "if form.final_state:\n    _store"
_READ_FORWARD = Edit(
    "where the state is set",
    "S_0[s, hv, _d, dv0 + _j]",
    "S_0[s, hv, ((dv0 + _j) * DK + _d) // DV, ((dv0 + _j) * DK + _d) % DV]",
)
_WRITE_FORWARD = Edit(
    "the store of the final state",
    "S_N[s, hv, _d, dv0 + _j] = _s",
    "S_N[s, hv, ((dv0 + _j) * DK + _d) // DV, ((dv0 + _j) * DK + _d) % DV] = _s",
)

_ONTO = PRODUCT.replace("product[:, :, sub, earlier])", "before[:, :, sub, earlier])")
_MOVED_ON = "S = gemm(_k, Vt_c, Ep[..., -1, :, None] * S)"
_DECAY_FORWARD = "Ep[..., -1, :, None] * S"

STATE = (
    Mistake(
        "state-updated-before-the-output",
        "o reads the state that already holds this chunk",
        "article 4.5 (1)",
        stage="o",
        kernel=(
            Edit(
                "the order of output and state",
                f"on.gemm(Qp_s, S_s, O_f, clear_accum=True)\n_output\n{DECAY_LOOP}\n_keys\n{WRITE_GEMM}",
                f"{DECAY_LOOP}\n_keys\n{WRITE_GEMM}\n"
                "for _d, _j in on.parallel(DK, block_DV):\n    S_s[_d, _j] = on.round(S_f[_d, _j])\n"
                "on.gemm(Qp_s, S_s, O_f, clear_accum=True)\n_output",
            ),
        ),
        mirror=(
            Edit(
                "the order of output and state",
                "acc_o = gemm(Qp, S_s, _z)\n_output\nS = Ep[..., last, :, None] * S\n_keys\nS = gemm(_k, Vt_c, S)",
                "S = Ep[..., last, :, None] * S\n_keys\nS = gemm(_k, Vt_c, S)\nacc_o = gemm(Qp, op(S), _z)\n_output",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the order of output and state",
                    f"on.gemm(Qp_s, S_s, O_f, clear_accum=True)\n_output\n{DECAY_LOOP}\n_keys\n{FORWARD_WRITE_GEMM}",
                    f"{DECAY_LOOP}\n_keys\n{FORWARD_WRITE_GEMM}\n"
                    "for _d, _j in on.parallel(DK, block_DV):\n    S_s[_d, _j] = on.round(S_f[_d, _j])\n"
                    "on.gemm(Qp_s, S_s, O_f, clear_accum=True)\n_output",
                ),
            ),
            mirror=(
                Edit(
                    "the order of output and state",
                    f"acc_o = gemm(Qp, S_s, _z)\n_output\nKd = op(_d)\n{_MOVED_ON}",
                    f"Kd = op(_d)\n{_MOVED_ON}\nacc_o = gemm(Qp, op(S), _z)\n_output",
                ),
            ),
        ),
    ),
    Mistake(
        "decay-after-the-write",
        "the state decays after the chunk's writes were added: they decay too",
        "article 4.5 (2)",
        stage="S",
        kernel=(
            Edit(
                "the order of decay and write",
                f"{DECAY_LOOP}\n_keys\n{WRITE_GEMM}",
                f"_keys\n{WRITE_GEMM}\n{DECAY_LOOP}",
            ),
        ),
        mirror=(
            Edit(
                "the order of decay and write",
                "S = Ep[..., last, :, None] * S\n_keys\nS = gemm(_k, Vt_c, S)",
                "_keys\nS = gemm(_k, Vt_c, S)\nS = Ep[..., last, :, None] * S",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the order of decay and write",
                    f"{DECAY_LOOP}\n_keys\n{FORWARD_WRITE_GEMM}",
                    f"_keys\n{FORWARD_WRITE_GEMM}\n{DECAY_LOOP}",
                ),
            ),
            mirror=(Edit("the order of decay and write", _MOVED_ON, "S = Ep[..., -1, :, None] * gemm(_k, Vt_c, S)"),),
        ),
    ),
    Mistake(
        "state-not-decayed",
        "the state goes from chunk to chunk without its decay",
        "gpuemu (a rescale that is dropped)",
        stage="S",
        kernel=(Edit("the decay of the state", "S_f[_d, _j] * Ep_s[C - 1, _d]", "S_f[_d, _j]"),),
        mirror=(Edit("the decay of the state", "S = Ep[..., last, :, None] * S", ""),),
        forward=InForward(
            kernel=(Edit("the decay of the state", FORWARD_DECAYED, "S_f[_d, _j]"),),
            mirror=(Edit("the decay of the state", _DECAY_FORWARD, "S"),),
        ),
    ),
    Mistake(
        "state-decayed-by-channel-0",
        "the whole state decays as key channel 0 does",
        "article 4.5 (2)",
        stage="S",
        kernel=(Edit("the decay of the state", "S_f[_d, _j] * Ep_s[C - 1, _d]", "S_f[_d, _j] * Ep_s[C - 1, 0]"),),
        mirror=(Edit("the decay of the state", "Ep[..., last, :, None] * S", "Ep[..., last, :1, None] * S"),),
        forward=InForward(
            kernel=(Edit("the decay of the state", FORWARD_DECAYED, "S_f[_d, _j] * decay_s[0]"),),
            mirror=(Edit("the decay of the state", _DECAY_FORWARD, "Ep[..., -1, :1, None] * S"),),
        ),
        hidden_by=("a shared gate",),
    ),
    Mistake(
        "state-decayed-along-values",
        "Diag(a) is on the wrong side: value channels decay instead of key channels",
        "article 3.1",
        stage="S",
        kernel=(
            Edit(
                "the decay of the state",
                "S_f[_d, _j] * Ep_s[C - 1, _d]",
                "S_f[_d, _j] * Ep_s[C - 1, (dv0 + _j) % DK]",
            ),
        ),
        mirror=(
            Edit(
                "the decay of the state",
                "Ep[..., last, :, None] * S",
                "Ep[..., last, np.arange(sizes.DV) % sizes.DK][..., None, :] * S",
            ),
        ),
        forward=InForward(
            kernel=(Edit("the decay of the state", FORWARD_DECAYED, "S_f[_d, _j] * decay_s[(dv0 + _j) % DK]"),),
            mirror=(
                Edit(
                    "the decay of the state",
                    _DECAY_FORWARD,
                    "Ep[..., -1, np.arange(sizes.DV) % sizes.DK][..., None, :] * S",
                ),
            ),
        ),
        hidden_by=("a shared gate",),
    ),
    Mistake(
        "decay-of-row-C-2",
        "the state decays by the last row but one",
        "article 4.4",
        stage="S",
        kernel=(Edit("the decay of the state", "S_f[_d, _j] * Ep_s[C - 1, _d]", "S_f[_d, _j] * Ep_s[C - 2, _d]"),),
        mirror=(
            Edit(
                "the decay of the state",
                "Ep[..., last, :, None] * S",
                "Ep[..., min(last, C - 2), :, None] * S",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "e^gamma_C",
                    "total[0] = total[0] + G_s[_r, _d]\nQp_s[_r, _d] = _q",
                    "if _r == C - 1:\n"
                    "    decay_s[_d] = T.exp2(total[0] * LOG2_E)\n"
                    "total[0] = total[0] + G_s[_r, _d]\nQp_s[_r, _d] = _q",
                ),
                Edit(
                    "e^gamma_C where it was",
                    "for _r in T.serial(C):\n    _body\ndecay_s[_d] = _e",
                    "for _r in T.serial(C):\n    _body",
                ),
            ),
            mirror=(Edit("the decay of the state", _DECAY_FORWARD, "Ep[..., min(length - 1, C - 2), :, None] * S"),),
            stage="e^gamma_C",
        ),
        tokens=16,
        hidden_by=("a ragged tail alone",),
    ),
    Mistake(
        "key-decay-of-row-C-2",
        "keys enter the state decayed to the last row but one",
        "article 4.4",
        stage="k e^(gamma_C - gamma)",
        kernel=(
            Edit(
                "k e^(gamma_C - gamma)",
                KD,
                "Kp_s[_r, _d] = on.round(T.Cast(ACCUM, K_s[_r, _d]) * (Ep_s[C - 2, _d] * Em_s[_r, _d]))",
            ),
        ),
        mirror=(
            Edit(
                "k e^(gamma_C - gamma)",
                "Ep[..., last, None, :] * Em",
                "Ep[..., min(last, C - 2), None, :] * Em",
            ),
        ),
        tokens=16,
        hidden_by=("a ragged tail alone",),
    ),
    Mistake(
        "decay-past-a-ragged-tail",
        "rows past N repeat the last gate, and the state decays as if the chunk were full",
        "cuLA #38 (the decay always taken at row 63)",
        stage="g",
        kernel=(
            Edit(
                "the mask of the gate",
                "T.if_then_else(s0 + _r < N, G[bb, s0 + _r, bh, _d], 0.0)",
                "G[bb, T.min(s0 + _r, N - 1), bh, _d]",
            ),
        ),
        mirror=(
            Edit("the rows of the last chunk", "last = length - 1", "last = length - 1\nmissing = C - length"),
            Edit(
                "e^gamma",
                "Em = exp(-gam)",
                "Em = exp(-gam)\n"
                "full = gam[..., last, :]\n"
                "for again in range(missing):\n"
                "    full = full + gc[..., last, :]\n"
                "E_full = exp(full)",
            ),
            Edit("the decay of the state", "Ep[..., last, :, None] * S", "E_full[..., :, None] * S"),
            Edit("k e^(gamma_C - gamma)", "Ep[..., last, None, :] * Em", "E_full[..., None, :] * Em"),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the mask of the gate",
                    "G_s[_r, _d] = T.if_then_else(_r < left, T.Cast(ACCUM, _g), 0.0)",
                    "G_s[_r, _d] = T.Cast(ACCUM, G[first + T.min(_r, left - 1), hv, _d])",
                ),
            ),
            mirror=(
                Edit(
                    "the rows of a chunk",
                    "Qc, Kc, Vc = _q, _k, _v\ngc, be = _g, _b",
                    "Qc, Kc, Vc = _q, _k, _v\n"
                    "gc, be = _g, _b\n"
                    "last = min(rows.stop, sizes.N) - rows.start - 1\n"
                    "gc = np.concatenate([gc[:, :, :last], gc[:, :, last:last + 1].repeat(C - last, axis=2)], axis=2)\n"
                    "Qc, Kc, Vc = (np.pad(x, [(0, 0), (0, 0), (0, C - x.shape[2]), (0, 0)]) for x in (Qc, Kc, Vc))\n"
                    "be = np.pad(be, [(0, 0), (0, 0), (0, C - be.shape[2])])",
                ),
            ),
        ),
        hidden_by=("full chunks alone",),
    ),
    Mistake(
        "state-touched-by-padding",
        "rows past N repeat the last token, and write to the state once more",
        "transformers #46190",
        stage="k",
        kernel=(
            Edit(
                "the loads of k and v",
                "T.copy(K[bb, s0:s0 + C, bh, :], K_s)\nT.copy(V[bb, s0:s0 + C, bh, dv0:dv0 + block_DV], V_s)",
                "for r, d in on.parallel(C, DK):\n"
                "    K_s[r, d] = K[bb, T.min(s0 + r, N - 1), bh, d]\n"
                "for r, j in on.parallel(C, block_DV):\n"
                "    V_s[r, j] = V[bb, T.min(s0 + r, N - 1), bh, dv0 + j]",
            ),
            Edit(
                "the mask of beta",
                "T.if_then_else(s0 + _r < N, Beta[bb, s0 + _r, bh], 0.0)",
                "Beta[bb, T.min(s0 + _r, N - 1), bh]",
            ),
        ),
        mirror=(
            Edit(
                "the rows of a chunk",
                "Qc, Kc, Vc = _q, _k, _v\ngc, be = _g, _b\nlength = be.shape[-1]",
                "Qc, Kc, Vc = _q, _k, _v\n"
                "gc, be = _g, _b\n"
                "rows = slice(rows.start, rows.stop)\n"
                "real = be.shape[-1]\n"
                "if real < C:\n"
                "    again = np.minimum(np.arange(C), real - 1)\n"
                "    inside = np.arange(C) < real\n"
                "    Qc, Kc, Vc = Qc[..., again, :] * inside[:, None], Kc[..., again, :], Vc[..., again, :]\n"
                "    be = be[..., again]\n"
                "    gc = (gc[..., again, :] * inside[:, None]).astype(accum)\n"
                "length = C",
            ),
            Edit("the rows of o", "o[:, :, rows] = o_c", "o[:, :, rows] = o_c[..., :real, :]"),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the mask of k",
                    "T.if_then_else(_r < left, K[first + _r, hk, _d], _z)",
                    "K[first + T.min(_r, left - 1), hk, _d]",
                ),
                Edit(
                    "the mask of v",
                    "T.if_then_else(_r < left, V[first + _r, hv, _d], _z)",
                    "V[first + T.min(_r, left - 1), hv, _d]",
                ),
                Edit(
                    "the mask of beta",
                    "raw = T.if_then_else(_r < left, T.Cast(ACCUM, Beta[first + _r, hv]), 0.0)\n"
                    "beta_s[_r] = T.if_then_else(_r < left, rate(form.beta, raw), 0.0)",
                    "beta_s[_r] = T.Cast(ACCUM, Beta[first + T.min(_r, left - 1), hv])",
                ),
            ),
            mirror=(
                Edit(
                    "the rows of a chunk",
                    "Qc, Kc, Vc = _q, _k, _v\ngc, be = _g, _b",
                    "Qc, Kc, Vc = _q, _k, _v\n"
                    "gc, be = _g, _b\n"
                    "real = min(rows.stop, sizes.N) - rows.start\n"
                    "again = np.minimum(np.arange(C), real - 1)\n"
                    "Kc, Vc, be = Kc[:, :, again], Vc[:, :, again], be[:, :, again]\n"
                    "Qc, gc = (np.pad(x, [(0, 0), (0, 0), (0, C - x.shape[2]), (0, 0)]) for x in (Qc, gc))",
                ),
            ),
        ),
        hidden_by=("full chunks alone",),
    ),
    Mistake(
        "next-K-loaded-too-early",
        "the tile of k is refilled with the next chunk's before its last use, the write to the state",
        "flash-linear-attention-npu #281 (a buffer overwritten while it is read)",
        stage="k e^(gamma_C - gamma)",
        kernel=(
            Edit(
                "the last use of k",
                f"{DECAY_LOOP}\n_keys\n{WRITE_GEMM}",
                f"T.copy(K[bb, s0 + C:s0 + 2 * C, bh, :], K_s)\n{DECAY_LOOP}\n_keys\n{WRITE_GEMM}",
            ),
        ),
        mirror=(
            Edit(
                "the last use of k",
                "Kd = op(Kc * _f)",
                "following = k[:, :, rows.stop:rows.stop + C]\n"
                "Kc = np.concatenate([following, 0 * k[:, :, :1].repeat(C, axis=2)], axis=2)[..., :length, :]\n"
                "Kd = op(Kc * _f)",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the last use of k",
                    f"{DECAY_LOOP}\n_keys\n{FORWARD_WRITE_GEMM}",
                    "for r, d in on.parallel(C, DK):\n"
                    "    K_s[r, d] = T.if_then_else(r + C < left, K[first + r + C, hk, d], T.Cast(on.operand, 0.0))\n"
                    f"{DECAY_LOOP}\n_keys\n{FORWARD_WRITE_GEMM}",
                ),
            ),
            mirror=(
                Edit(
                    "the last use of k",
                    "Kd = op(Kc * _f)",
                    "following = k[:, :, rows.stop:rows.stop + C]\n"
                    "Kc = np.concatenate([following, 0 * k[:, :, :1].repeat(C, axis=2)], axis=2)[:, :, :length]\n"
                    "Kd = op(Kc * _f)",
                ),
            ),
        ),
    ),
    Mistake(
        "state-set-inside-the-loop",
        "every chunk starts from the initial state",
        "article 4.5 (7)",
        stage="S at the start",
        kernel=(
            Edit("where the state is set", "T.copy(S_0[bb, bh, :, dv0:dv0 + block_DV], S_f)", ""),
            Edit(
                "the head of the loop",
                "s0 = i_s * C",
                "s0 = i_s * C\nT.copy(S_0[bb, bh, :, dv0:dv0 + block_DV], S_f)",
            ),
        ),
        mirror=(
            Edit(
                "the head of the loop",
                "length = be.shape[-1]",
                "length = be.shape[-1]\nS = inputs.state().astype(accum)",
            ),
        ),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("where the state is set", _SET_FORWARD, ""),
                Edit(
                    "the head of the loop",
                    "s0 = i_s * C",
                    "s0 = i_s * C\nfor d, j in on.parallel(DK, block_DV):\n    S_f[d, j] = S_0[s, hv, d, dv0 + j]",
                ),
            ),
        ),
        tokens=17,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "state-cleared-inside-the-loop",
        "every chunk starts from a cleared state",
        "article 4.5 (7); sparkinfer #1071",
        stage="S at the start",
        kernel=(Edit("the head of the loop", "s0 = i_s * C", "s0 = i_s * C\nif i_s > 0:\n    T.clear(S_f)"),),
        mirror=(Edit("the head of the loop", "length = be.shape[-1]", "length = be.shape[-1]\nS = S * (c == 0)"),),
        forward=InForward(("kernel", "mirror")),
        tokens=17,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "M-accumulates",
        "the accumulator of M is not cleared from chunk to chunk",
        "article 4.5 (7)",
        stage="M",
        kernel=(
            Edit(
                "the clearing of M",
                "on.gemm(Kp_s, Km_s, M_f, transpose_B=True, clear_accum=True)",
                "if i_s == 0:\n    T.clear(M_f)\non.gemm(Kp_s, Km_s, M_f, transpose_B=True)",
            ),
        ),
        mirror=(
            Edit(
                "the clearing of M",
                "M = gemm(Kp, Km_T, _zeros)",
                "M = gemm(Kp, Km_T, _zeros if c == 0 else M[..., :length, :length])",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the clearing of M",
                    M_ACROSS,
                    "if i_s == 0:\n    T.clear(M_f)\non.gemm(Kb_s, Kc_s, M_f, transpose_B=True)",
                ),
            ),
            mirror=(
                Edit("the clearing of M", PRODUCT, f"before = before_M if product is M and c else product\n{_ONTO}"),
                Edit("L", "L = _l", "before_M = M\nL = _l"),
            ),
            stage="L",
            tile=BORDERED,
            tokens=49,
        ),
        tokens=18,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "A_qk-accumulates",
        "the accumulator of A_qk is not cleared from chunk to chunk",
        "article 4.5 (7)",
        stage="A_qk",
        kernel=(
            Edit(
                "the clearing of A_qk",
                "on.gemm(Qp_s, Km_s, A_f, transpose_B=True, clear_accum=True)",
                "if i_s == 0:\n    T.clear(A_f)\non.gemm(Qp_s, Km_s, A_f, transpose_B=True)",
            ),
        ),
        mirror=(
            Edit(
                "the clearing of A_qk",
                "A_qk = gemm(Qp, Km_T, _zeros)\nA_qk = np.where(_m, A_qk, _z)",
                "A_raw = gemm(Qp, Km_T, _zeros if c == 0 else A_raw[..., :length, :length])\n"
                "A_qk = np.where(_m, A_raw, _z)",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the clearing of A_qk",
                    A_ACROSS,
                    "if i_s == 0:\n    T.clear(A_f)\non.gemm(Qb_s, Kc_s, A_f, transpose_B=True)",
                ),
            ),
            mirror=(
                Edit(
                    "the clearing of A_qk",
                    PRODUCT,
                    f"before = before_A if product is A_qk and c else product\n{_ONTO}",
                ),
                Edit("A_qk", "A_qk = np.where(_m, A_qk, _z)", "before_A = A_qk\nA_qk = np.where(_m, A_qk, _z)"),
            ),
            tile=BORDERED,
            tokens=49,
        ),
        tokens=17,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "W-S-accumulates",
        "the accumulator of W S is not cleared from chunk to chunk",
        "article 4.5 (7)",
        stage="W S",
        kernel=(
            Edit(
                "the clearing of W S",
                "on.gemm(Kp_s, S_s, WS_f, clear_accum=True)",
                "if i_s == 0:\n    T.clear(WS_f)\non.gemm(Kp_s, S_s, WS_f)",
            ),
        ),
        mirror=(
            Edit(
                "the clearing of W S",
                "WS = gemm(W, S_s, _zeros)",
                "WS = gemm(W, S_s, _zeros if c == 0 else WS[..., :length, :])",
            ),
        ),
        forward=InForward(
            kernel=(
                Edit(
                    "the clearing of W S",
                    "on.gemm(Kc_s, S_s, WS_f, clear_accum=True)",
                    "if i_s == 0:\n    T.clear(WS_f)\non.gemm(Kc_s, S_s, WS_f)",
                ),
            ),
            mirror=(
                Edit(
                    "the clearing of W S",
                    "Vt = U - gemm(W, S_s, _zeros)",
                    "WS = gemm(W, S_s, _zeros if c == 0 else WS[..., :length, :])\nVt = U - WS",
                ),
            ),
        ),
        tokens=17,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "o-accumulates",
        "the accumulator of o is not cleared from chunk to chunk",
        "article 4.5 (7); gpuemu (= for +=)",
        stage="o",
        kernel=(
            Edit(
                "the clearing of o",
                "on.gemm(Qp_s, S_s, O_f, clear_accum=True)",
                "if i_s == 0:\n    T.clear(O_f)\non.gemm(Qp_s, S_s, O_f)",
            ),
        ),
        mirror=(
            Edit(
                "the clearing of o",
                "acc_o = gemm(Qp, S_s, _zeros)",
                "acc_o = gemm(Qp, S_s, _zeros if c == 0 else acc_o[..., :length, :])",
            ),
        ),
        forward=InForward(
            ("kernel",),
            mirror=(
                Edit(
                    "the clearing of o",
                    "acc_o = gemm(Qp, S_s, _zeros)",
                    "acc_o = gemm(Qp, S_s, _zeros if c == 0 else acc_o[..., :length, :])",
                ),
                Edit("o", "gemm(A_c, Vt_c, acc_o)", "(acc_o := gemm(A_c, Vt_c, acc_o))"),
            ),
        ),
        tokens=17,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "o-without-the-term-between-chunks",
        "the second product of o clears what the first one left",
        "article 4.4; gpuemu (= for +=)",
        stage="o",
        kernel=(
            Edit("the term within the chunk", "on.gemm(A_s, Vt_s, O_f)", "on.gemm(A_s, Vt_s, O_f, clear_accum=True)"),
        ),
        mirror=(
            Edit("the term within the chunk", "acc_o = gemm(A_c, Vt_c, acc_o)", "acc_o = gemm(A_c, Vt_c, 0 * acc_o)"),
        ),
        forward=InForward(
            ("kernel",),
            mirror=(Edit("the term within the chunk", "gemm(A_c, Vt_c, acc_o)", "gemm(A_c, Vt_c, 0 * acc_o)"),),
        ),
    ),
    Mistake(
        "W-S-added",
        "V~ = U + W S: what the key held is doubled instead of deleted",
        "article 3.2",
        stage="V_tilde",
        kernel=(Edit("V~", "U_s[_r, _j] - WS_f[_r, _j]", "U_s[_r, _j] + WS_f[_r, _j]"),),
        mirror=(Edit("V~", "Vt = U - WS", "Vt = U + WS"),),
        forward=InForward(("kernel",), mirror=(Edit("V~", "Vt = U - gemm(W, S_s, _z)", "Vt = U + gemm(W, S_s, _z)"),)),
    ),
    Mistake(
        "V-for-V-tilde-in-the-output",
        "o takes A_qk V: within a chunk nothing is deleted",
        "article 4.4",
        stage="o",
        kernel=(Edit("the term within the chunk", "on.gemm(A_s, Vt_s, O_f)", "on.gemm(A_s, V_s, O_f)"),),
        mirror=(Edit("the term within the chunk", "gemm(A_c, Vt_c, acc_o)", "gemm(A_c, Vc, acc_o)"),),
        forward=InForward(("kernel", "mirror")),
    ),
    Mistake(
        "U-for-V-tilde-in-the-state",
        "the state takes K^T U: it keeps what the keys held before the chunk",
        "article 4.4",
        stage="S",
        kernel=(
            Edit(
                "the write to the state",
                WRITE_GEMM,
                "for r, j in on.parallel(C, block_DV):\n    Vt_s[r, j] = on.round(U_s[r, j])\n" + WRITE_GEMM,
            ),
        ),
        mirror=(Edit("the write to the state", "gemm(_k, Vt_c, S)", "gemm(_k, op(U), S)"),),
        forward=InForward(
            kernel=(
                Edit(
                    "the write to the state",
                    FORWARD_WRITE_GEMM,
                    "for r, j in on.parallel(C, block_DV):\n    Vt_s[r, j] = on.round(U_s[r, j])\n"
                    + FORWARD_WRITE_GEMM,
                ),
            ),
            mirror=(Edit("the write to the state", _MOVED_ON, _MOVED_ON.replace("Vt_c", "op(U)")),),
        ),
    ),
    Mistake(
        "initial-state-ignored",
        "the state starts at zero whatever was passed",
        "tpu-inference #2408, cuLA #66",
        stage="S at the start",
        kernel=(Edit("where the state is set", "T.copy(S_0[bb, bh, :, dv0:dv0 + block_DV], S_f)", "T.clear(S_f)"),),
        mirror=(Edit("where the state is set", "inputs.state().astype(accum)", "0 * inputs.state().astype(accum)"),),
        forward=InForward(
            ("mirror",),
            kernel=(Edit("where the state is set", _SET_FORWARD, "T.clear(S_f)"),),
        ),
        hidden_by=("no initial state",),
    ),
    Mistake(
        "final-state-missing-at-full-chunks",
        "the final state is not written when N is a multiple of C",
        "cuLA #66 (flag plumbing)",
        stage="final state as stored",
        kernel=(
            Edit(
                "the store of the final state",
                "T.copy(S_f, S_N[bb, bh, :, dv0:dv0 + block_DV])",
                "if N % C != 0:\n    T.copy(S_f, S_N[bb, bh, :, dv0:dv0 + block_DV])",
            ),
        ),
        mirror=(
            Edit(
                "the store of the final state",
                "S.astype(np.float64)",
                "S.astype(np.float64) * (1 if sizes.N % C else np.nan)",
            ),
        ),
        forward=InForward(
            ("mirror",),
            kernel=(Edit("the store of the final state", _STORED_FORWARD, "if tokens % C != 0:\n    _store"),),
        ),
        tokens=16,
        hidden_by=("a ragged tail alone",),
    ),
    Mistake(
        "state-before-the-last-chunk",
        "the final state is stored before the last chunk was added to it",
        "transformers #46190 (the state of another moment)",
        stage="final state as stored",
        kernel=(
            Edit(
                "the head of the loop",
                "s0 = i_s * C",
                "s0 = i_s * C\nT.copy(S_f, S_N[bb, bh, :, dv0:dv0 + block_DV])",
            ),
            Edit(
                "the store of the final state",
                "for _i in T.Pipelined(_n, num_stages=_s):\n    _body\nT.copy(S_f, _to)",
                "for _i in T.Pipelined(_n, num_stages=_s):\n    _body",
            ),
        ),
        mirror=(
            Edit("the head of the loop", "length = be.shape[-1]", "length = be.shape[-1]\nS_kept = S"),
            Edit("the store of the final state", "S.astype(np.float64)", "S_kept.astype(np.float64)"),
        ),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("the store of the final state", _STORED_FORWARD, ""),
                Edit(
                    "the head of the loop",
                    "s0 = i_s * C",
                    "s0 = i_s * C\nfor d, j in on.parallel(DK, block_DV):\n    S_N[s, hv, d, dv0 + j] = S_f[d, j]",
                ),
            ),
        ),
    ),
    Mistake(
        "state-read-value-first",
        "the initial state is read as [DV, DK]",
        "vLLM #41292",
        stage="S at the start",
        kernel=(_READ_VALUE_FIRST_KERNEL,),
        mirror=(_READ_VALUE_FIRST_MIRROR,),
        forward=InForward(("mirror",), kernel=(_READ_FORWARD,)),
        hidden_by=("no initial state",),
    ),
    Mistake(
        "state-written-value-first",
        "the final state is written as [DV, DK]",
        "vLLM #41292",
        stage="final state as stored",
        kernel=(_WRITE_VALUE_FIRST_KERNEL,),
        mirror=(_WRITE_VALUE_FIRST_MIRROR,),
        forward=InForward(("mirror",), kernel=(_WRITE_FORWARD,)),
    ),
    Mistake(
        "state-value-first-throughout",
        "the state is read and written as [DV, DK]",
        "vLLM #41292 (equal DK and DV hid it)",
        stage=("S at the start", "final state as stored"),
        kernel=(
            _READ_VALUE_FIRST_KERNEL,
            _WRITE_VALUE_FIRST_KERNEL,
        ),
        mirror=(
            _READ_VALUE_FIRST_MIRROR,
            _WRITE_VALUE_FIRST_MIRROR,
        ),
        forward=InForward(("mirror",), kernel=(_READ_FORWARD, _WRITE_FORWARD)),
        hidden_by=("prefixes alone",),
    ),
)
