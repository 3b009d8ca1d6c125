"""Which pairs of tokens L and A_qk keep (article 4.5 (4))."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.catalogue.places import GUARDED, WRITES_A, WRITES_L
from kda.mutation.rewrite import Edit

__all__ = ["MASKS"]

MASKS = (
    Mistake(
        "L-with-diagonal",
        "L is masked j <= i",
        "article 4.5 (4)",
        kernel=(Edit("the strict mask on L", "_j < _i", "_j <= _i", WRITES_L),),
        mirror=(Edit("the strict mask on L", "j < i", "j <= i", "L = _"),),
        forward=InForward(("mirror",), kernel=(Edit("the strict mask on L", "_j < _b + _i", "_j <= _b + _i"),)),
        harmless="the substitution reads L[r, j] for j < r alone: row r takes x[j] of earlier rows, never its own",
    ),
    Mistake(
        "L-with-diagonal-where-it-is-read",
        "L is masked j <= i, and the solve reads the diagonal (in reference B: the explicit inverse does)",
        "article 4.5 (4)",
        stage="L",
        kernel=(
            Edit("the strict mask on L", "_j < _i", "_j <= _i", WRITES_L),
            Edit(
                "the substitution",
                "for _l in on.steps(C - 1 - _j):\n    x[_j + 1 + _l] = _x",
                "for _l in on.steps(C - _j):\n    x[_j + _l] = x[_j + _l] - Lt_s[_j, _j + _l] * x[_j]",
            ),
        ),
        mirror=(
            Edit("the strict mask on L", "j < i", "j <= i", "L = _"),
            Edit(
                "the substitution",
                "for s in range(last):\n    X[..., s + 1:, :] -= _",
                "for s in range(length):\n"
                "    X[..., s, :] -= L[..., s, s, None] * X[..., s, :]\n"
                "    X[..., s + 1:, :] -= L[..., s + 1:, s, None] * X[..., s, None, :]",
            ),
        ),
        reference=(Edit("the strict mask on M", "range(c)", "range(c + 1)", "for i in range(c):\n    M[c, i] = _"),),
        forward=InForward(
            kernel=(
                Edit("the strict mask on L", "_j < _b + _i", "_j <= _b + _i"),
                Edit(
                    "the substitution",
                    "for _j in on.steps(R):\n    for _r in on.steps(R - 1 - _j):\n        x[_n * R + _j + 1 + _r] = _x",
                    "for _j in on.steps(R):\n"
                    "    for _r in on.steps(R - _j):\n"
                    "        x[_n * R + _j + _r] = ("
                    "x[_n * R + _j + _r] - Lt_s[_n * R + _j, _n * R + _j + _r] * x[_n * R + _j])",
                ),
            ),
            mirror=(
                Edit("the strict mask on L", "j < i", "j <= i", "L = _"),
                Edit(
                    "the substitution",
                    "for s in range(length - 1):\n    X[..., s + 1:, :] -= _",
                    "for s in range(length):\n"
                    "    X[..., s, :] -= L[..., s, s, None] * X[..., s, :]\n"
                    "    X[..., s + 1:, :] -= L[..., s + 1:, s, None] * X[..., s, None, :]",
                ),
            ),
        ),
    ),
    Mistake(
        "A_qk-without-diagonal",
        "A_qk is masked j < i: no token sees itself",
        "article 4.5 (4)",
        stage="A_qk",
        kernel=(Edit("the mask on A_qk", "_j <= _i", "_j < _i", WRITES_A),),
        mirror=(Edit("the mask on A_qk", "j <= i", "j < i", "A_qk = np.where(_, _, _)"),),
        forward=InForward(("mirror",), kernel=(Edit("the mask on A_qk", "_j <= _b + _i", "_j < _b + _i"),)),
    ),
    Mistake(
        "both-masks-transposed",
        "L and A_qk keep their upper triangles",
        "article 4.5 (4)",
        stage=("L", "A_qk"),
        kernel=(
            Edit("the strict mask on L", "_j < _i", "_i < _j", WRITES_L),
            Edit("the mask on A_qk", "_j <= _i", "_i <= _j", WRITES_A),
        ),
        mirror=(
            Edit("the strict mask on L", "j < i", "i < j", "L = _"),
            Edit("the mask on A_qk", "j <= i", "i <= j", "A_qk = np.where(_, _, _)"),
        ),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("the pairs that are made", GUARDED, "_pair"),
                Edit("the strict mask on L", "_j < _b + _i", "_b + _i < _j"),
                Edit("the mask on A_qk", "_j <= _b + _i", "_b + _i <= _j"),
            ),
        ),
        tokens=2,
    ),
    Mistake(
        "A_qk-unmasked",
        "A_qk keeps the pairs with later tokens",
        "article 4.5 (4)",
        stage="A_qk",
        kernel=(Edit("the mask on A_qk", "T.if_then_else(_j <= _i, _a, 0.0)", "_a", WRITES_A),),
        mirror=(Edit("the mask on A_qk", "A_qk = np.where(_m, _a, _)", "A_qk = _a"),),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("the pairs that are made", GUARDED, "_pair"),
                Edit("the mask on A_qk", "T.if_then_else(_j <= _i, a[_r], 0.0)", "a[_r]"),
            ),
        ),
        tokens=2,
    ),
    Mistake(
        "A_qk-one-token-ahead",
        "A_qk is masked j <= i + 1: each token sees the next one",
        "FLA #1240 (a past output depends on the future)",
        stage="A_qk",
        kernel=(Edit("the mask on A_qk", "_j <= _i", "_j <= _i + 1", WRITES_A),),
        mirror=(Edit("the mask on A_qk", "j <= i", "j <= i + 1", "A_qk = np.where(_, _, _)"),),
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit("the pairs that are made", GUARDED, "if _b + _i + 1 >= _j:\n    _pair"),
                Edit("the mask on A_qk", "_j <= _b + _i", "_j <= _b + _i + 1"),
            ),
        ),
        law="time.the_future_does_not_change_the_past",
        tokens=2,
    ),
)
