"""The triangular system and its forward substitution (article 3.2, 3.3, 4.3)."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.catalogue.places import RHS, RHS_LOOPS, SUBSTITUTED, substitution
from kda.mutation.rewrite import Edit
from kda.support import TileChoice

__all__ = ["SOLVE"]

# The powers of L grow with the number of tokens: what a chunk of 16 still forgives, one of 64 does not.
_LONG_CHUNK = TileChoice(DK=16, DV=32, C=64, block_DV=16)


def _doubling(store: str, tile: str) -> tuple[tuple[Edit, ...], tuple[Edit, ...]]:
    """The solve by (I + N)(I + N^2)(I + N^4)..., N = -L, in the kernel and in the mirror.

    store: how the mirror rounds what is stored between products; tile: the format of the kernel's tiles.
    """
    cast = "on.round" if tile == "on.operand" else "T.float32"
    kernel = (
        Edit(
            "L",
            "Lt_s = on.shared(_shape, ACCUM)",
            "Lt_s = on.shared(_shape, ACCUM)\n"
            f"N_s = on.shared([C, C], {tile})\n"
            f"T_s = on.shared([C, C], {tile})\n"
            "N_f = on.fragment([C, C], ACCUM)\n"
            "T_f = on.fragment([C, C], ACCUM)",
        ),
        Edit("x", "x = T.alloc_local([C], ACCUM)", "x = T.alloc_local([C], ACCUM)\ny = T.alloc_local([C], ACCUM)"),
        Edit(
            "the solve",
            "for _p in T.serial(T.ceildiv(columns, on.lanes)):\n    _body",
            "for i, j in on.parallel(C, C):\n"
            f"    N_s[i, j] = {cast}(-Lt_s[j, i])\n"
            "    T_f[i, j] = T.if_then_else(i == j, 1.0, -Lt_s[j, i])\n"
            f"    T_s[i, j] = {cast}(T_f[i, j])\n"
            "for factor in T.serial((C - 1).bit_length() - 1):\n"
            "    on.gemm(N_s, N_s, N_f, clear_accum=True)\n"
            "    for i, j in on.parallel(C, C):\n"
            f"        N_s[i, j] = {cast}(N_f[i, j])\n"
            "    on.gemm(T_s, N_s, T_f)\n"
            "    for i, j in on.parallel(C, C):\n"
            f"        T_s[i, j] = {cast}(T_f[i, j])\n"
            "for _p in T.serial(T.ceildiv(columns, on.lanes)):\n    _body",
        ),
        Edit(
            "the substitution",
            "for _j in on.steps(C):\n    for _l in on.steps(C - 1 - _j):\n        x[_a] = x[_a] - Lt_s[_j, _a] * x[_j]",
            "for r in on.steps(C):\n"
            f"    y[r] = T.Cast(ACCUM, {cast}(x[r]))\n"
            "    x[r] = 0.0\n"
            "for r in on.steps(C):\n"
            "    for j in on.steps(C):\n"
            "        x[r] = x[r] + T.Cast(ACCUM, T_s[r, j]) * y[j]",
        ),
    )
    mirror = (
        # The powers of L are of a whole chunk, rows past N included: where they overflow, 0 * inf is NaN in those too.
        Edit(
            "the rows of a chunk",
            "Qc, Kc, Vc = _q, _k, _v\ngc, be = _g, _b\nlength = be.shape[-1]",
            "Qc, Kc, Vc = _q, _k, _v\n"
            "gc, be = _g, _b\n"
            "rows = slice(rows.start, rows.stop)\n"
            "real = be.shape[-1]\n"
            "past = [(0, 0), (0, 0), (0, C - real)]\n"
            "Qc, Kc, Vc, gc = (np.pad(x, [*past, (0, 0)]) for x in (Qc, Kc, Vc, gc))\n"
            "be = np.pad(be, past)\n"
            "length = C",
        ),
        Edit("the rows of o", "o[:, :, rows] = o_c", "o[:, :, rows] = o_c[..., :real, :]"),
        Edit(
            "the substitution",
            "for _s in range(last):\n    X[..., _s + 1:, :] -= _x",
            f"N = {store}(-L)\n"
            "T = np.eye(C, dtype=accum) - L\n"
            "for factor in range((C - 1).bit_length() - 1):\n"
            f"    N = {store}(gemm(N, N, machine.zeros(*N.shape)))\n"
            f"    T = gemm({store}(T), N, T)\n"
            f"X = gemm({store}(T), {store}(X), machine.zeros(*X.shape))",
        ),
    )
    return kernel, mirror


_IN_FLOAT32 = _doubling("np.float32", "ACCUM")
_IN_OPERANDS = _doubling("op", "on.operand")

SOLVE = (
    Mistake(
        "substitution-one-short",
        "the substitution runs over j < r - 1: each row misses the one just before it",
        "article 3.3",
        stage="W",
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
        forward=InForward(
            ("mirror",),
            kernel=substitution(SUBSTITUTED, "x[_a] = x[_a] - T.if_then_else(_a > _j + 1, Lt_s[_j, _a] * x[_j], 0.0)"),
        ),
        tokens=2,
    ),
    Mistake(
        "substitution-without-the-last-row",
        "the substitution leaves out the last row of a full chunk",
        "article 3.3",
        stage="W",
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
        forward=InForward(
            ("mirror",),
            kernel=substitution(SUBSTITUTED, "x[_a] = x[_a] - T.if_then_else(_a < C - 1, Lt_s[_j, _a] * x[_j], 0.0)"),
        ),
        tokens=16,
    ),
    Mistake(
        "substitution-with-plus",
        "the substitution adds what it must take away: (I - L)^-1",
        "article 3.2",
        stage="W",
        kernel=(Edit("the substitution", "x[_a] - Lt_s[_j, _a] * x[_j]", "x[_a] + Lt_s[_j, _a] * x[_j]"),),
        mirror=(Edit("the substitution", "X[..., s + 1:, :] -= _x", "X[..., s + 1:, :] += _x"),),
        forward=InForward(("mirror",), kernel=substitution(SUBSTITUTED, "x[_a] = x[_a] + Lt_s[_j, _a] * x[_j]")),
        tokens=2,
    ),
    Mistake(
        "substitution-left-out",
        "T = I: tokens of a chunk do not delete what the others wrote",
        "article 3.2",
        stage="W",
        kernel=(Edit("the substitution", "x[_a] = x[_a] - Lt_s[_j, _a] * x[_j]", "x[_a] = x[_a]"),),
        mirror=(Edit("the substitution", "X[..., s + 1:, :] -= _x", "X[..., s + 1:, :] -= 0 * _x"),),
        forward=InForward(("mirror",), kernel=substitution(SUBSTITUTED, "x[_a] = x[_a]")),
        tokens=2,
    ),
    Mistake(
        "first-order-inverse",
        "T = I - L: the substitution uses the right-hand sides instead of the solutions (the Neumann series cut short)",
        "tt-metal #54813 (an inverse that is not one)",
        stage="W",
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
        forward=InForward(
            ("mirror",),
            kernel=(
                Edit(
                    "x", "x = T.alloc_local([C], ACCUM)", "x = T.alloc_local([C], ACCUM)\ny = T.alloc_local([C], ACCUM)"
                ),
                Edit(
                    "the solve",
                    "for _n in on.steps(C // R):\n    _substitution",
                    "for r in on.steps(C):\n    y[r] = x[r]\nfor _n in on.steps(C // R):\n    _substitution",
                ),
                *substitution(SUBSTITUTED, "x[_a] = x[_a] - Lt_s[_j, _a] * y[_j]"),
            ),
        ),
        tokens=3,
    ),
    Mistake(
        "W-and-U-swapped",
        "the columns of W are solved for V, and those of U for K e^gamma",
        "article 4.3",
        stage="W",
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
        forward=InForward(
            kernel=(
                Edit(
                    "the right-hand sides",
                    "for _r in on.steps(C):\n    total[0] = _t\n    x[_r] = _x",
                    "for _r in on.steps(C):\n    x[_r] = T.Cast(ACCUM, V_s[_r, col % block_DV])",
                ),
                Edit(
                    "the right-hand side of U",
                    "for _r in on.steps(C):\n    x[_r] = T.Cast(ACCUM, V_s[_r, _v - DK])",
                    "total[0] = 0.0\n"
                    "for _r in on.steps(C):\n"
                    "    total[0] = total[0] + G_s[_r, (_v - DK) % DK]\n"
                    "    x[_r] = T.Cast(ACCUM, K_s[_r, (_v - DK) % DK]) * T.exp2(total[0] * LOG2_E)",
                ),
            ),
        ),
    ),
    Mistake(
        "doubling-product",
        "T = (I - L)(I + L^2)(I + L^4)... over the whole chunk: right on paper, and its powers of L cancel",
        "maxtext #4577 (the inverse over a whole chunk by doubling)",
        stage="W",
        kernel=_IN_FLOAT32[0],
        mirror=_IN_FLOAT32[1],
        tokens=20,
        tile=_LONG_CHUNK,
        targets=("c",),  # a lane of CUDA would unroll C^2 steps
    ),
    Mistake(
        "doubling-product-in-operand-precision",
        "the doubling product over the whole chunk, with its powers and partial products in the operand format",
        "megagdn-pto #74 (float16 doubling over a chunk, beyond 65504 on a trained model)",
        stage="W",
        kernel=_IN_OPERANDS[0],
        mirror=_IN_OPERANDS[1],
        dtype="f16",
        tokens=20,
        tile=_LONG_CHUNK,
        targets=("c",),  # a lane of CUDA would unroll C^2 steps
    ),
)
