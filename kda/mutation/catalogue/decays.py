"""The exponent split: gamma, e^gamma, e^-gamma, and the tiles they weigh (article 1, 4.1, 4.2)."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.catalogue.places import FORWARD_QP, FORWARD_RHS_W, KD, KM, KP, QP, RHS, RHS_W
from kda.mutation.rewrite import Edit

__all__ = ["DECAYS"]

DECAYS = (
    Mistake(
        "Q-without-decay",
        "q enters without e^gamma, in A_qk and in the term between chunks",
        "article 4.5 (3)",
        stage="q e^gamma",
        kernel=(Edit("q e^gamma", QP, "Qp_s[_r, _d] = on.round(T.Cast(ACCUM, Q_s[_r, _d]))"),),
        mirror=(Edit("q e^gamma", "Qp = op(Qc * Ep)", "Qp = op(Qc)"),),
        forward=InForward(
            ("mirror",), kernel=(Edit("q e^gamma", FORWARD_QP, "Qp_s[_r, _d] = on.round(T.Cast(ACCUM, Q_s[_r, _d]))"),)
        ),
    ),
    Mistake(
        "Q-weighted-twice",
        "q is multiplied by e^gamma, then once more",
        "article 4.5 (3)",
        stage="q e^gamma",
        kernel=(
            Edit("q e^gamma", QP, "Qp_s[_r, _d] = on.round(T.Cast(ACCUM, Q_s[_r, _d]) * Ep_s[_r, _d] * Ep_s[_r, _d])"),
        ),
        mirror=(Edit("q e^gamma", "Qp = op(Qc * Ep)", "Qp = op(Qc * Ep * Ep)"),),
        forward=InForward(
            ("mirror",),
            kernel=(Edit("q e^gamma", "T.exp2(_e)", "T.exp2(_e) * T.exp2(_e)", FORWARD_QP),),
        ),
    ),
    Mistake(
        "K-in-place-before-e-gamma",
        "k was overwritten by k e^-gamma before k e^gamma is formed: both factors of M carry e^-gamma and e^gamma",
        "article 4.5 (5)",
        stage="k e^gamma",
        kernel=(
            Edit(
                "k e^gamma",
                KP,
                "Kp_s[_r, _d] = on.round("
                "T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_r, _d]) * Em_s[_r, _d])) * Ep_s[_r, _d])",
            ),
        ),
        mirror=(Edit("k e^gamma", "Kp = op(Kc * Ep)", "Kp = op(op(Kc * Em) * Ep)"),),
        tokens=2,
    ),
    Mistake(
        "K-in-place-before-e-minus-gamma",
        "k was overwritten by k e^gamma before k e^-gamma is formed: the decay cancels",
        "article 4.5 (5)",
        stage="k e^-gamma",
        kernel=(
            Edit(
                "k e^-gamma",
                KM,
                "Km_s[_r, _d] = on.round("
                "T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_r, _d]) * Ep_s[_r, _d])) * Em_s[_r, _d])",
            ),
        ),
        mirror=(Edit("k e^-gamma", "Km = op(Kc * Em)", "Km = op(op(Kc * Ep) * Em)"),),
    ),
    Mistake(
        "K-in-place-before-the-solve",
        "k was overwritten by k e^gamma before the right-hand side of W is formed: weighted twice",
        "article 4.5 (5)",
        stage="W",
        kernel=(
            Edit(
                "the right-hand side of W",
                RHS_W,
                "x[_r] = T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_r, _c]) * Ep_s[_r, _c])) * Ep_s[_r, _c]",
            ),
        ),
        mirror=(Edit("the right-hand side of W", RHS, "X = np.concatenate([op(Kc * Ep) * Ep, Vc], axis=-1)"),),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit(
                    "the right-hand side of W",
                    FORWARD_RHS_W,
                    "x[_r] = T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_r, _c]) * T.exp2(total[0] * LOG2_E)))"
                    " * T.exp2(total[0] * LOG2_E)",
                ),
            ),
        ),
    ),
    Mistake(
        "K-in-place-before-the-state",
        "k was overwritten by k e^gamma before it enters the state: it arrives with e^gamma_C",
        "article 4.5 (5)",
        stage="k e^(gamma_C - gamma)",
        kernel=(
            Edit(
                "k e^(gamma_C - gamma)",
                KD,
                "Kp_s[_r, _d] = on.round(T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_r, _d]) * Ep_s[_r, _d]))"
                " * (Ep_s[C - 1, _d] * Em_s[_r, _d]))",
            ),
        ),
        mirror=(Edit("k e^(gamma_C - gamma)", "Kd = op(Kc * _f)", "Kd = op(op(Kc * Ep) * _f)"),),
    ),
    Mistake(
        "e-gamma-for-e-minus-gamma",
        "k e^gamma stands where k e^-gamma belongs",
        "article 1.2",
        stage="k e^-gamma",
        kernel=(Edit("k e^-gamma", "Em_s[_r, _d]", "Ep_s[_r, _d]", "Km_s[_r, _d] = _"),),
        mirror=(Edit("k e^-gamma", "Km = op(Kc * Em)", "Km = op(Kc * Ep)"),),
    ),
    Mistake(
        "e-minus-gamma-for-e-gamma",
        "k e^-gamma stands where k e^gamma belongs, in M",
        "article 1.2",
        stage="k e^gamma",
        kernel=(Edit("k e^gamma", KP, "Kp_s[_r, _d] = on.round(T.Cast(ACCUM, K_s[_r, _d]) * Em_s[_r, _d])"),),
        mirror=(Edit("k e^gamma", "Kp = op(Kc * Ep)", "Kp = op(Kc * Em)"),),
        tokens=2,
    ),
    Mistake(
        "decay-to-the-end-inverted",
        "keys enter the state with e^(gamma - gamma_C), the inverse of their decay to the end of the chunk",
        "article 4.4",
        stage="k e^(gamma_C - gamma)",
        kernel=(
            Edit(
                "k e^(gamma_C - gamma)",
                KD,
                "Kp_s[_r, _d] = on.round(T.Cast(ACCUM, K_s[_r, _d]) * (Em_s[C - 1, _d] * Ep_s[_r, _d]))",
            ),
        ),
        mirror=(
            Edit(
                "k e^(gamma_C - gamma)",
                "Ep[..., last, None, :] * Em",
                "Em[..., last, None, :] * Ep",
            ),
        ),
        tokens=2,
    ),
    Mistake(
        "keys-enter-the-state-undecayed",
        "the state takes K^T V~ without the decay to the end of the chunk",
        "article 4.4",
        stage="k e^(gamma_C - gamma)",
        kernel=(Edit("k e^(gamma_C - gamma)", KD, "Kp_s[_r, _d] = on.round(T.Cast(ACCUM, K_s[_r, _d]))"),),
        mirror=(Edit("k e^(gamma_C - gamma)", "Kd = op(_k)", "Kd = op(Kc)"),),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit(
                    "the last use of Kc_s",
                    "_carry_keys(*_a)\non.gemm(Kc_s, Vt_s, S_f, transpose_A=True)",
                    "on.gemm(K_s, Vt_s, S_f, transpose_A=True)",
                ),
            ),
            stage="S",
        ),
        tokens=2,
    ),
    Mistake(
        "log2e-forgotten",
        "gamma goes to exp2 as it is: decays are 2^gamma, in both factors",
        "article 4.1",
        stage="e^gamma",
        kernel=(
            Edit("e^gamma", "T.exp2(gamma[0] * LOG2_E)", "T.exp2(gamma[0])"),
            Edit("e^-gamma", "T.exp2(-gamma[0] * LOG2_E)", "T.exp2(-gamma[0])"),
        ),
        mirror=(
            Edit("e^gamma", "Ep = exp(gam)", "Ep = exp(gam * np.float32(np.log(2)))"),
            Edit("e^-gamma", "Em = exp(-gam)", "Em = exp(-gam * np.float32(np.log(2)))"),
        ),
    ),
    Mistake(
        "log2e-forgotten-in-e-minus-gamma",
        "log2 e is missing in one of the two exponentials",
        "article 4.1",
        stage="e^-gamma",
        kernel=(Edit("e^-gamma", "T.exp2(-gamma[0] * LOG2_E)", "T.exp2(-gamma[0])"),),
        mirror=(Edit("e^-gamma", "Em = exp(-gam)", "Em = exp(-gam * np.float32(np.log(2)))"),),
    ),
    Mistake(
        "log2e-forgotten-in-e-gamma",
        "log2 e is missing in the other of the two exponentials",
        "article 4.1",
        stage="e^gamma",
        kernel=(Edit("e^gamma", "T.exp2(gamma[0] * LOG2_E)", "T.exp2(gamma[0])"),),
        mirror=(Edit("e^gamma", "Ep = exp(gam)", "Ep = exp(gam * np.float32(np.log(2)))"),),
    ),
    Mistake(
        "exclusive-cumsum",
        "gamma_r stops before token r: a token's own gate comes one token late",
        "article 1.1",
        stage="gamma",
        kernel=(
            Edit(
                "the prefix sum",
                "gamma[0] = gamma[0] + x[_r]\n_exponentials\nEm_s[_r, _d] = _e",
                "_exponentials\nEm_s[_r, _d] = _e\ngamma[0] = gamma[0] + x[_r]",
            ),
        ),
        mirror=(
            Edit(
                "the prefix sum",
                "gam = np.cumsum(gc, axis=-2)",
                "gam = np.cumsum(np.concatenate([0 * gc[..., :1, :], gc[..., :-1, :]], axis=-2), axis=-2)",
            ),
            # Past a ragged tail gamma has taken up the last gate, and the last row of the chunk is one of those.
            Edit(
                "e^-gamma",
                "Em = exp(-gam)",
                "Em = exp(-gam)\n"
                "E_last = Ep[..., last, :] if length == C else exp(gam[..., last, :] + gc[..., last, :])",
            ),
            Edit("the decay of the state", "Ep[..., last, :, None] * S", "E_last[..., :, None] * S"),
            Edit("k e^(gamma_C - gamma)", "Ep[..., last, None, :] * Em", "E_last[..., None, :] * Em"),
        ),
    ),
    Mistake(
        "cumsum-not-reset",
        "gamma goes on from the chunk before",
        "article 4.1",
        stage="gamma",
        kernel=(
            Edit(
                "gamma",
                "gamma = T.alloc_local([1], ACCUM)",
                "gamma = T.alloc_local([1], ACCUM)\ncarried = on.shared([DK], ACCUM)",
            ),
            Edit(
                "the prefix sum",
                "gamma[0] = 0.0\n"
                "for _r in on.steps(C):\n"
                "    gamma[0] = gamma[0] + x[_r]\n"
                "    Ep_s[_r, _d] = _p\n"
                "    _rest",
                "gamma[0] = T.if_then_else(i_s > 0, carried[_d], 0.0)\n"
                "for _r in on.steps(C):\n"
                "    gamma[0] = gamma[0] + x[_r]\n"
                "    Ep_s[_r, _d] = _p\n"
                "    _rest\n"
                "carried[_d] = gamma[0]",
            ),
        ),
        mirror=(
            Edit(
                "the prefix sum",
                "gam = np.cumsum(gc, axis=-2)",
                "gc = gc + (0 * gc if c == 0 else np.concatenate([gam[..., -1:, :], 0 * gc[..., 1:, :]], axis=-2))\n"
                "gam = np.cumsum(gc, axis=-2)",
            ),
        ),
        tokens=17,
        hidden_by=("one chunk",),
    ),
    Mistake(
        "channel-for-position-in-the-split",
        "k e^-gamma takes the decay of the channel whose number is the token's: e^-gamma[r, r] for e^-gamma[r, d]",
        "article 1.2, 3.4",
        stage="k e^-gamma",
        kernel=(Edit("k e^-gamma", "Em_s[_r, _d]", "Em_s[_r, _r % DK]", "Km_s[_r, _d] = _"),),
        mirror=(
            Edit(
                "k e^-gamma",
                "Km = op(Kc * Em)",
                "Km = op(Kc * np.einsum('...rr->...r', Em[..., np.arange(length) % sizes.DK])[..., None])",
            ),
        ),
        hidden_by=("a shared gate",),
        tokens=2,
    ),
    Mistake(
        "gate-of-one-channel",
        "every channel decays as channel 0 does: a scalar gate",
        "article 3.4",
        stage="g",
        kernel=(Edit("the gate that is read", "G[bb, s0 + _r, bh, _d]", "G[bb, s0 + _r, bh, 0]"),),
        mirror=(
            Edit(
                "the gate that is read",
                "heads_first(inputs.g)",
                "heads_first(np.broadcast_to(inputs.g[..., :1], inputs.g.shape))",
            ),
        ),
        hidden_by=("a shared gate",),
    ),
)
