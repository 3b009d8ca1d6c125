"""The triangular system and its forward substitution (article 3.2, 3.3, 4.3)."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import Mistake
from kda.mutation.catalogue.places import RHS, RHS_LOOPS
from kda.mutation.rewrite import Edit

__all__ = ["SOLVE"]

SOLVE = (
    Mistake(
        "substitution-one-short",
        "the substitution runs over j < r - 1: each row misses the one just before it",
        "article 3.3",
        kernel=(
            Edit(
                "the substitution",
                "x[_a] = x[_a] - Lt_s[_j, _a] * x[_j]",
                "x[_a] = x[_a] - T.if_then_else(_a > _j + 1, Lt_s[_j, _a] * x[_j], 0.0)",
            ),
        ),
        mirror=(
            Edit(
                "the substitution",
                "X[..., s + 1:, :] -= L[..., s + 1:, s, None] * _x",
                "X[..., s + 2:, :] -= L[..., s + 2:, s, None] * _x",
            ),
        ),
        tokens=2,
    ),
    Mistake(
        "substitution-without-the-last-row",
        "the substitution leaves out the last row of a full chunk",
        "article 3.3",
        kernel=(
            Edit(
                "the substitution",
                "x[_a] = x[_a] - Lt_s[_j, _a] * x[_j]",
                "x[_a] = x[_a] - T.if_then_else(_a < C - 1, Lt_s[_j, _a] * x[_j], 0.0)",
            ),
        ),
        mirror=(
            Edit(
                "the substitution",
                "X[..., s + 1:, :] -= L[..., s + 1:, s, None] * _x",
                "X[..., s + 1:C - 1, :] -= L[..., s + 1:C - 1, s, None] * _x",
            ),
        ),
        tokens=16,
    ),
    Mistake(
        "substitution-with-plus",
        "the substitution adds what it must take away: (I - L)^-1",
        "article 3.2",
        kernel=(Edit("the substitution", "x[_a] - Lt_s[_j, _a] * x[_j]", "x[_a] + Lt_s[_j, _a] * x[_j]"),),
        mirror=(Edit("the substitution", "X[..., s + 1:, :] -= _x", "X[..., s + 1:, :] += _x"),),
        tokens=2,
    ),
    Mistake(
        "substitution-left-out",
        "T = I: tokens of a chunk do not delete what the others wrote",
        "article 3.2",
        kernel=(Edit("the substitution", "x[_a] = x[_a] - Lt_s[_j, _a] * x[_j]", "x[_a] = x[_a]"),),
        mirror=(Edit("the substitution", "X[..., s + 1:, :] -= _x", "X[..., s + 1:, :] -= 0 * _x"),),
        tokens=2,
    ),
    Mistake(
        "first-order-inverse",
        "T = I - L: the substitution uses the right-hand sides instead of the solutions (the Neumann series cut short)",
        "tt-metal #54813 (an inverse that is not one)",
        kernel=(
            Edit("x", "x = T.alloc_local([C], ACCUM)", "x = T.alloc_local([C], ACCUM)\ny = T.alloc_local([C], ACCUM)"),
            Edit(
                "the substitution",
                "for _j in on.steps(C):\n"
                "    for _l in on.steps(C - 1 - _j):\n"
                "        x[_a] = x[_a] - Lt_s[_j, _a] * x[_j]",
                "for _j in on.steps(C):\n"
                "    y[_j] = x[_j]\n"
                "for _j in on.steps(C):\n"
                "    for _l in on.steps(C - 1 - _j):\n"
                "        x[_a] = x[_a] - Lt_s[_j, _a] * y[_j]",
            ),
        ),
        mirror=(
            Edit("the right-hand sides", RHS, RHS + "\nR = X.copy()"),
            Edit(
                "the substitution",
                "L[..., s + 1:, s, None] * X[..., s, None, :]",
                "L[..., s + 1:, s, None] * R[..., s, None, :]",
            ),
        ),
        tokens=3,
    ),
    Mistake(
        "W-and-U-swapped",
        "the columns of W are solved for V, and those of U for K e^gamma",
        "article 4.3",
        kernel=(
            Edit(
                "the right-hand sides",
                "if _c < DK:\n"
                "    for _r in on.steps(C):\n"
                "        x[_r] = T.Cast(ACCUM, K_s[_r, _c]) * Ep_s[_r, _c]\n"
                "else:\n"
                "    for _r in on.steps(C):\n"
                "        x[_r] = T.Cast(ACCUM, V_s[_r, _v])",
                "if _c < DK:\n"
                "    for _r in on.steps(C):\n"
                "        x[_r] = T.Cast(ACCUM, V_s[_r, _c % block_DV])\n"
                "else:\n"
                "    for _r in on.steps(C):\n"
                "        x[_r] = T.Cast(ACCUM, K_s[_r, (_v) % DK]) * Ep_s[_r, (_v) % DK]",
            ),
        ),
        loops=(
            Edit(
                "the right-hand sides",
                RHS_LOOPS,
                "for_W, for_U = np.arange(sizes.DK) % width, np.arange(width) % sizes.DK\n"
                "X = np.concatenate([Vc[:, for_W], (Kc * Ep)[:, for_U]], axis=1)",
            ),
        ),
    ),
)
