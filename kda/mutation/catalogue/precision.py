"""What must stay in float32 and does not; seen by the mirror, not by the budget of reference A."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import MIRROR, InForward, Mistake
from kda.mutation.catalogue.places import (
    FORWARD_DECAYED,
    FORWARD_QP,
    FORWARD_RHS_W,
    L_ACROSS,
    L_INSIDE,
    RHS,
    RHS_W,
    SOLVED_U,
    substitution,
)
from kda.mutation.rewrite import Edit

__all__ = ["PRECISION"]

PRECISION = (
    Mistake(
        "L-in-operand-precision",
        "L is rounded to the operand format",
        "article 4.6 (what must stay in float32)",
        stage="L",
        kernel=(Edit("L", "Lt_s[_j, _i] = _l", "Lt_s[_j, _i] = T.Cast(ACCUM, on.round(_l))"),),
        mirror=(Edit("L", "L = np.where(_m, _l, _z)", "L = op(np.where(_m, _l, _z))"),),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("L inside a sub-chunk", L_INSIDE, f"T.Cast(ACCUM, on.round({L_INSIDE}))"),
                Edit("L across a border", L_ACROSS, f"T.Cast(ACCUM, on.round({L_ACROSS}))"),
            ),
        ),
        law=MIRROR,
        dtype="f16",
        hidden_by=("the budget of reference A",),
        tokens=4,
    ),
    Mistake(
        "e-gamma-in-operand-precision",
        "e^gamma is rounded to the operand format before it is used",
        "article 4.1",
        stage="e^gamma",
        kernel=(Edit("e^gamma", "Ep_s[_r, _d] = _e", "Ep_s[_r, _d] = T.Cast(ACCUM, on.round(_e))"),),
        mirror=(Edit("e^gamma", "Ep = exp(gam)", "Ep = op(exp(gam))"),),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("q e^gamma", "T.exp2(_e)", "T.Cast(ACCUM, on.round(T.exp2(_e)))", FORWARD_QP),
                Edit("e^gamma_C", "decay_s[_d] = _e", "decay_s[_d] = T.Cast(ACCUM, on.round(_e))"),
                Edit("the right-hand side of W", "T.exp2(_e)", "T.Cast(ACCUM, on.round(T.exp2(_e)))", FORWARD_RHS_W),
            ),
            stage=("q e^gamma", "e^gamma_C"),
        ),
        law=MIRROR,
        dtype="f16",
    ),
    Mistake(
        "e-minus-gamma-in-operand-precision",
        "e^-gamma is rounded to the operand format before it is used",
        "article 4.1",
        stage="e^-gamma",
        kernel=(Edit("e^-gamma", "Em_s[_r, _d] = _e", "Em_s[_r, _d] = T.Cast(ACCUM, on.round(_e))"),),
        mirror=(Edit("e^-gamma", "Em = exp(-gam)", "Em = op(exp(-gam))"),),
        law=MIRROR,
        dtype="f16",
        hidden_by=("the budget of reference A",),
        tokens=2,
    ),
    Mistake(
        "gamma-in-operand-precision",
        "gamma is rounded to the operand format",
        "FlashQLA #28 (float32 staged in a narrow buffer)",
        stage="gamma",
        kernel=(
            Edit(
                "the prefix sum",
                "gamma[0] = gamma[0] + x[_r]",
                "gamma[0] = T.Cast(ACCUM, on.round(gamma[0] + x[_r]))",
            ),
        ),
        mirror=(
            Edit(
                "the prefix sum",
                "gam = np.cumsum(gc, axis=-2)",
                "gam = gc.copy()\n"
                "for r in range(length):\n"
                "    gam[..., r, :] = op(gc[..., r, :] + (gam[..., r - 1, :] if r else np.float32(0)))",
            ),
        ),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit(
                    "gamma",
                    "total[0] = total[0] + _g\nQp_s[_r, _d] = _q",
                    "total[0] = T.Cast(ACCUM, on.round(total[0] + _g))\nQp_s[_r, _d] = _q",
                ),
                Edit(
                    "gamma in the right-hand side of W",
                    "total[0] = total[0] + _g\nx[_r] = _x",
                    "total[0] = T.Cast(ACCUM, on.round(total[0] + _g))\nx[_r] = _x",
                ),
            ),
            stage=("q e^gamma", "e^gamma_C"),
        ),
        law=MIRROR,
        dtype="f16",
        tokens=3,
    ),
    Mistake(
        "solve-in-operand-precision",
        "the substitution rounds every intermediate to the operand format",
        "article 4.3 (an accumulator of low precision)",
        stage=("W", "U"),
        kernel=(Edit("the substitution", "x[_a] = x[_a] - _t", "x[_a] = T.Cast(ACCUM, on.round(x[_a] - _t))"),),
        mirror=(
            Edit(
                "the substitution",
                "X[..., s + 1:, :] -= _x",
                "X[..., s + 1:, :] = op(X[..., s + 1:, :] - _x)",
            ),
        ),
        forward=InForward(
            ("mirror",),
            kernel=substitution("x[_a] = x[_a] - _t", "x[_a] = T.Cast(ACCUM, on.round(x[_a] - _t))"),
        ),
        law=MIRROR,
        dtype="f16",
        tokens=3,
        hidden_by=("the budget of reference A",),
    ),
    Mistake(
        "decay-in-operand-precision",
        "the state decays by a rounded e^gamma_C",
        "article 4.4",
        stage="S",
        kernel=(
            Edit(
                "the decay of the state",
                "S_f[_d, _j] * Ep_s[C - 1, _d]",
                "S_f[_d, _j] * T.Cast(ACCUM, on.round(Ep_s[C - 1, _d]))",
            ),
        ),
        mirror=(Edit("the decay of the state", "Ep[..., last, :, None] * S", "op(Ep[..., last, :, None]) * S"),),
        forward=InForward(
            kernel=(
                Edit("the decay of the state", FORWARD_DECAYED, "S_f[_d, _j] * T.Cast(ACCUM, on.round(decay_s[_d]))"),
            ),
            mirror=(Edit("the decay of the state", "Ep[..., -1, :, None] * S", "op(Ep[..., -1, :, None]) * S"),),
        ),
        law=MIRROR,
        dtype="f16",
    ),
    Mistake(
        "state-in-operand-precision",
        "the state is rounded to the operand format from chunk to chunk",
        "article 4.4",
        stage="S",
        kernel=(
            Edit(
                "the decay of the state",
                "S_f[_d, _j] * Ep_s[C - 1, _d]",
                "T.Cast(ACCUM, on.round(S_f[_d, _j])) * Ep_s[C - 1, _d]",
            ),
        ),
        mirror=(Edit("the decay of the state", "Ep[..., last, :, None] * S", "Ep[..., last, :, None] * op(S)"),),
        forward=InForward(
            kernel=(
                Edit("the decay of the state", FORWARD_DECAYED, "T.Cast(ACCUM, on.round(S_f[_d, _j])) * decay_s[_d]"),
            ),
            mirror=(Edit("the decay of the state", "Ep[..., -1, :, None] * S", "Ep[..., -1, :, None] * op(S)"),),
        ),
        law=MIRROR,
        dtype="f16",
    ),
    Mistake(
        "U-in-operand-precision",
        "U is rounded to the operand format before W S is taken off",
        "article 4.3",
        stage="U",
        kernel=(Edit("U", SOLVED_U, "U_s[_r, _c] = T.Cast(ACCUM, on.round(beta_s[_r] * x[_r]))"),),
        mirror=(Edit("U", "U = X[..., sizes.DK:]", "U = op(X[..., sizes.DK:])"),),
        forward=InForward(("kernel", "mirror")),
        law=MIRROR,
        dtype="f16",
        hidden_by=("the budget of reference A",),
        tokens=2,
    ),
    Mistake(
        "beta-in-operand-precision",
        "beta is rounded to the operand format",
        "FlashInfer #4219 (formats taken for one another)",
        stage="beta",
        kernel=(Edit("beta", "beta_s[_r] = _b", "beta_s[_r] = T.Cast(ACCUM, on.round(_b))"),),
        mirror=(Edit("beta", "heads_first(inputs.beta).astype(accum)", "op(heads_first(inputs.beta).astype(accum))"),),
        forward=InForward(("kernel",), mirror=(Edit("beta", "gc, be = _g, _b", "gc, be = _g, op(_b)"),)),
        law=MIRROR,
        dtype="f16",
        hidden_by=("the budget of reference A",),
    ),
    Mistake(
        "right-hand-side-in-operand-precision",
        "the solve starts from k e^gamma as it was rounded for M",
        "article 4.3",
        stage="W",
        kernel=(
            Edit(
                "the right-hand side of W",
                RHS_W,
                "x[_r] = T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_r, _c]) * Ep_s[_r, _c]))",
            ),
        ),
        mirror=(Edit("the right-hand side of W", RHS, "X = np.concatenate([Kp, Vc], axis=-1)"),),
        forward=InForward(
            kernel=(
                Edit(
                    "the right-hand side of W",
                    FORWARD_RHS_W,
                    "x[_r] = T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_r, _c]) * T.exp2(total[0] * LOG2_E)))",
                ),
            ),
            mirror=(Edit("the right-hand side of W", RHS, "X = np.concatenate([op(Kc * Ep), Vc], axis=-1)"),),
        ),
        law=MIRROR,
        dtype="f16",
        hidden_by=("the budget of reference A",),
        tokens=2,
    ),
)
