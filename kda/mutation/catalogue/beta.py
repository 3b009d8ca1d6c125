"""Where beta goes: into L, onto the solution, once (article 3.2, 3.3, 4.5 (6))."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.catalogue.places import (
    FORWARD_RHS_W,
    FORWARD_SOLVED_W,
    L_ACROSS,
    L_INSIDE,
    RHS,
    RHS_U,
    RHS_W,
    SOLVED,
    SOLVED_U,
    SOLVED_W,
    WRITES_L,
)
from kda.mutation.rewrite import Edit

__all__ = ["BETA"]

_BETA_FIRST_KERNEL = (
    Edit("the right-hand side of W", RHS_W, "x[_r] = beta_s[_r] * (T.Cast(ACCUM, K_s[_r, _c]) * Ep_s[_r, _c])"),
    Edit("the right-hand side of U", RHS_U, "x[_r] = beta_s[_r] * T.Cast(ACCUM, V_s[_r, _c])"),
    Edit("beta on the solution for W", SOLVED_W, "Kp_s[_r, _c] = on.round(x[_r])"),
    Edit("beta on the solution for U", SOLVED_U, "U_s[_r, _c] = x[_r]"),
)
_BETA_FIRST_MIRROR = (
    Edit("the right-hand sides", RHS, "X = be[..., None] * np.concatenate([Kc * Ep, Vc], axis=-1)"),
    Edit("beta on the solution", SOLVED, ""),
)
_BETA_FIRST_FORWARD = (
    Edit(
        "the right-hand side of W",
        FORWARD_RHS_W,
        "x[_r] = beta_s[_r] * (T.Cast(ACCUM, K_s[_r, _c]) * T.exp2(total[0] * LOG2_E))",
    ),
    _BETA_FIRST_KERNEL[1],
    Edit("beta on the solution for W", FORWARD_SOLVED_W, "Kc_s[_r, _c] = on.round(x[_r])"),
    _BETA_FIRST_KERNEL[3],
)
_BETA_C_KERNEL = (Edit("beta in L", "beta_s[_j] * M_f[_i, _j]", "beta_s[_i] * M_f[_i, _j]", WRITES_L),)
_BETA_C_FORWARD = (
    Edit(
        "beta in L inside a sub-chunk",
        "T.if_then_else(_j < _i, beta_s[_j] * m[_r], 0.0)",
        "T.if_then_else(_j < _i, beta_s[_i] * m[_r], 0.0)",
    ),
    Edit(
        "beta in L across a border",
        "Lt_s[_j, _i] = beta_s[_j] * M_f[_r, _j]",
        "Lt_s[_j, _i] = beta_s[_i] * M_f[_r, _j]",
    ),
)
_BETA_C_MIRROR = (Edit("beta in L", "be[..., None, :] * M", "be[..., :, None] * M"),)

BETA = (
    Mistake(
        "beta-before-solve",
        "T diag(beta) with L = beta_i M: beta multiplies the right-hand side, before the solve",
        "article 3.3, 4.5 (6)",
        stage="W",
        kernel=_BETA_FIRST_KERNEL,
        mirror=_BETA_FIRST_MIRROR,
        forward=InForward(("mirror",), kernel=_BETA_FIRST_FORWARD),
        tokens=2,
        hidden_by=("equal betas",),
    ),
    Mistake(
        "beta-of-the-row-in-L",
        "diag(beta) T with L = beta_c M: L takes beta of its row, as the other pairing would",
        "article 3.2",
        stage="L",
        kernel=_BETA_C_KERNEL,
        mirror=_BETA_C_MIRROR,
        forward=InForward(("mirror",), kernel=_BETA_C_FORWARD),
        tokens=2,
        hidden_by=("equal betas",),
    ),
    Mistake(
        "beta-of-the-column-under-T-diag-beta",
        "T diag(beta) with L = beta_i M, in the reference that offers both pairings",
        "article 3.2",
        reference=(Edit("beta in L of the pairing T diag(beta)", "be[:, None] * M", "be[None, :] * M"),),
        law="references.both_beta_pairings_agree",
        tokens=2,
    ),
    Mistake(
        "beta-before-solve-in-W",
        "W is T diag(beta) K e^gamma, U is diag(beta) T V: one of the two right-hand sides took beta early",
        "article 3.3",
        stage="W",
        kernel=(_BETA_FIRST_KERNEL[0], _BETA_FIRST_KERNEL[2]),
        mirror=(
            Edit("the right-hand side of W", RHS, "X = np.concatenate([be[..., None] * (Kc * Ep), Vc], axis=-1)"),
            Edit("beta on the solution for W", "W = op(_w)", "W = op(_w / 1)"),
            Edit(
                "beta on the solution",
                SOLVED,
                "X = np.concatenate([X[..., :sizes.DK], be[..., None] * X[..., sizes.DK:]], axis=-1)",
            ),
        ),
        forward=InForward(("mirror",), kernel=(_BETA_FIRST_FORWARD[0], _BETA_FIRST_FORWARD[2])),
        hidden_by=("equal betas",),
        tokens=2,
    ),
    Mistake(
        "beta-twice",
        "beta multiplies the right-hand side and the solution",
        "article 4.5 (6)",
        stage="W",
        kernel=_BETA_FIRST_KERNEL[:2],
        mirror=_BETA_FIRST_MIRROR[:1],
        forward=InForward(("mirror",), kernel=_BETA_FIRST_FORWARD[:2]),
    ),
    Mistake(
        "beta-dropped-from-L",
        "L = M: what an earlier token wrote is deleted with full strength",
        "article 3.2",
        stage="L",
        kernel=(Edit("beta in L", "beta_s[_j] * M_f[_i, _j]", "M_f[_i, _j]", WRITES_L),),
        mirror=(Edit("beta in L", "be[..., None, :] * M", "M"),),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("beta in L inside a sub-chunk", L_INSIDE, "m[_i]"),
                Edit("beta in L across a border", L_ACROSS, "M_f[_i, _j]"),
            ),
        ),
        tokens=3,
    ),
    Mistake(
        "beta-dropped-from-W",
        "W = T K e^gamma: the old state is deleted with full strength",
        "article 3.2",
        stage="W",
        kernel=(Edit("beta on the solution for W", SOLVED_W, "Kp_s[_r, _c] = on.round(x[_r])"),),
        mirror=(
            Edit(
                "beta on the solution for W",
                SOLVED,
                "X = np.concatenate([X[..., :sizes.DK], be[..., None] * X[..., sizes.DK:]], axis=-1)",
            ),
        ),
        forward=InForward(("mirror",), kernel=(_BETA_FIRST_FORWARD[2],)),
        tokens=2,
    ),
    Mistake(
        "beta-dropped-from-U",
        "U = T V: values are written with full strength",
        "article 3.2",
        stage="U",
        kernel=(Edit("beta on the solution for U", SOLVED_U, "U_s[_r, _c] = x[_r]"),),
        mirror=(
            Edit(
                "beta on the solution for U",
                SOLVED,
                "X = np.concatenate([be[..., None] * X[..., :sizes.DK], X[..., sizes.DK:]], axis=-1)",
            ),
        ),
        forward=InForward(("kernel", "mirror")),
        tokens=2,
    ),
    Mistake(
        "the-other-right-pairing",
        "T diag(beta) with L = beta_c M",
        "article 3.2",
        kernel=(*_BETA_FIRST_KERNEL, *_BETA_C_KERNEL),
        mirror=(*_BETA_FIRST_MIRROR, *_BETA_C_MIRROR),
        forward=InForward(("mirror",), kernel=(*_BETA_FIRST_FORWARD, *_BETA_C_FORWARD)),
        harmless="diag(beta) (I + M diag(beta))^-1 = (I + diag(beta) M)^-1 diag(beta): it is the same matrix (3.2)",
    ),
)
