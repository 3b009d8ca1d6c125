"""The Hopper program of `kda_forward` (kda/kernels/hopper): its blocks and merges, halves of A, slots, and waits."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import MATCHES_A, MIRROR, InHopper, Mistake
from kda.mutation.rewrite import Edit
from kda.operation_support import FormChoice
from kda.support import TileChoice

__all__ = ["HOPPER"]

OPERATION = "operation.matches_the_float64_operation"
FUTURE = "time.the_future_does_not_change_the_past"

#: The walk of 64 value channels; the tile of an entry that names none has the narrowest.
_WIDE = TileChoice(DK=128, DV=128, C=64, block_DV=64)
#: As long as any case: the tiles of the fourth chunk lie where those of the first did.
_ROUND = 321

_PLAIN = FormChoice(128, 128, state=True)
_PACKED = FormChoice(128, 128, packed=True, state=True)
_SOFTPLUS = FormChoice(128, 128, state=True, gate="softplus")
_NORM = FormChoice(128, 128, normalise=True)
_V_FIRST = FormChoice(128, 128, state=True, v_first=True)

_X32 = "T.wgmma_gemm(X32[0:64, :], X32[64:96, :], f32, transpose_B=True, clear_accum=True)"
_FULL = "T.barrier_wait(full[t % stages], (t // stages) & 1)"
_FULL_AT_ONCE = "T.barrier_wait(full[t % stages], (t // stages) & 1 ^ 1)"
_Q_S = "T.wgmma_gemm(Qg_s[t % stages, :, :], state_s, o_f, clear_accum=True)"
#: What becomes of a fence before a barrier: TileLang's own pass puts one in where what threads wrote is read.
_FENCED = (
    "TileLang puts a fence between the barrier and what reads: one anywhere on the way from write to read orders both"
)
_O_STORE = "if (t + 1) * CHUNK <= tokens[0]:\n    _whole\nelse:\n    _rows"
_SECOND = "if above[0] != 0:\n    _second"
_FIRST_HALF = "T.tma_copy(A_s, A[x, 0, :, :], leader_scope_threads=_n, eviction_policy=_p)"
_LOST = "for _i, _j in T.Parallel(32, 32):\n    A_s[32 + _i, _j] = T.if_then_else(_c, _l, _z)"
_ZEROED = "for _i, _e in T.Parallel(_r, _c):\n    if _behind:\n        V_s[_s, _i, _e] = _z"
_ABOVE = Edit("whether a beta is above 1", "T.any_sync(_beta > 1.0)", "T.any_sync(_beta > 2.0)")
#: What token r of a group has decayed by since its group began, onto one of its rows.
_IN_ITS_GROUP = "for n in T.unroll(GROUP):\n    if n <= r:\n        {0}[_e] = {0}[_e] * a[n, _e]"
_NEAR_FLAGS = "deep[0] = T.call_extern('int32', 'kda_first_of_64', _a == 0.0, _b == 0.0)"
_SMALLEST = "least[0] = T.min(T.min({0}[0], {0}[1]), T.min({0}[2], {0}[3]))"
_BETA = "by[0] = y[_j] * total_s[GROUPS, _c]"

#: A_qk below the diagonal blocks, where all rows are near.
_BELOW = "T.if_then_else(_i // 8 > _j // 8, fQ[_i, _j], 0.0)"
#: beta left out of what a merge of 16 reads of near rows.
_L_NEAR = Edit("L of near rows below 16", "M_s[_i, _j] = -fK[_i, _j] * beta_f[_j]", "M_s[_i, _j] = -fK[_i, _j]")
_FIRST_SLOT = Edit(
    "the first slot", "T.truncdiv(begin[0], CHUNK) + s", "T.truncdiv(begin[0], CHUNK)", function="_member"
)


def _prep(what: str, find: str, put: str, function: str | None = None) -> InHopper:
    return InHopper(prep=(Edit(what, find, put, function=function),))


def _wide(what: str, find: str, put: str, function: str | None = None) -> InHopper:
    return InHopper(walk_wide=(Edit(what, find, put, function=function),))


def _narrow(what: str, find: str, put: str) -> InHopper:
    return InHopper(walk_narrow=(Edit(what, find, put),))


def _walks(edit: Edit, call: FormChoice | None = None) -> InHopper:
    return InHopper(walk_wide=(edit,), walk_narrow=(edit,), call=call)


def _behind_the_tail(what: str, find: str, put: str) -> InHopper:
    """An edit of what the walks do with the values behind a packed sequence."""
    wide, narrow = (Edit(what, find, put, function=name) for name in ("_arrived", None))
    return InHopper(walk_wide=(wide,), walk_narrow=(narrow,), call=_PACKED)


def _own_values(what: str, wide: str, narrow: str) -> InHopper:
    """An edit of A V, which the wide walk has transposed."""
    return InHopper(
        walk_wide=(
            Edit(
                what,
                "T.wgmma_gemm(_v, _a, vt_f, transpose_A=True, transpose_B=True, clear_accum=True)",
                wide,
                function="_own_values",
            ),
        ),
        walk_narrow=(Edit(what, "T.wgmma_gemm(_a, _v, vt_f, clear_accum=True)", narrow),),
    )


def _of_queries(*edits: tuple[str, str, str]) -> InHopper:
    """Edits of how the diagonal block of A_qk is stored."""
    return InHopper(prep=tuple(Edit(*edit, function="_store_queries") for edit in edits))


def _of_calls(call: FormChoice, what: str, find: str, put: str) -> InHopper:
    return InHopper(prep=(Edit(what, find, put),), call=call)


def _mistake(
    name: str,
    sentence: str,
    source: str,
    hopper: InHopper,
    law: str = MATCHES_A,
    dtype: str = "f16",
    tokens: int = 1,
    members: int = 1,
    tile: TileChoice | None = None,
    harmless: str = "",
) -> Mistake:
    return Mistake(
        name,
        sentence,
        source,
        hopper=hopper,
        law=law,
        dtype=dtype,
        tokens=tokens,
        members=members,
        tile=tile,
        targets=("cuda",),
        harmless=harmless,
    )


def _state(what: str, wide: tuple[str, str], upper: tuple[str, str], call: FormChoice) -> InHopper:
    """An edit of the state as a whole: in the narrow walk of its upper half, and of the lower one."""
    lower = tuple(text.replace("upper_f", "lower_f") for text in upper)
    return InHopper(
        walk_wide=(Edit(what, *wide),), walk_narrow=(Edit(what, *upper), Edit(what, lower[0], lower[1])), call=call
    )


HOPPER = (
    # Decays: products of groups and inside one.
    _mistake(
        "border-one-group-early",
        "the blocks across the border at 32 are anchored at token 24: keys 24 to 31 decay twice on their way",
        "article 1.1 (which gates lie between two tokens)",
        _prep(
            "the groups up to the border at 32",
            "other // 4 == group // 4",
            "(other + 1) // 4 == group // 4",
            "_to_borders",
        ),
        tokens=33,
    ),
    _mistake(
        "group-decays-itself-to-its-border",
        "the product up to the border at 16 or 48 takes the group itself, whose tokens have their own",
        "FLA #1240 (which gates lie between two tokens)",
        _prep(
            "the groups up to the borders at 16 and 48",
            "(_o - _g) * (_g // 2 % 2 * 2 - 1) < 0",
            "(_o - _g) * (_g // 2 % 2 * 2 - 1) <= 0",
            "_to_borders",
        ),
        tokens=17,
    ),
    _mistake(
        "keys-carried-to-the-end-of-their-group",
        "K_g decays a key until the end of its group and not of its chunk",
        "article 4.4",
        _prep("the groups behind", "post[_e] = post[_e] * f[_e]", "post[_e] = 1.0"),
        tokens=9,
    ),
    _mistake(
        "queries-decayed-since-their-group",
        "Q_g decays a query since its group began and not its chunk",
        "article 4.4",
        _prep("Q_g", "qp[_e] = _q * pre[_e]", f"qp[_e] = _q\n{_IN_ITS_GROUP.format('qp')}", "_operands"),
        tokens=9,
    ),
    _mistake(
        "keys-decayed-since-their-group",
        "W takes keys that are decayed since their group began and not their chunk",
        "article 3.3",
        _prep("K e^gamma", "kp[_e] = -_k * pre[_e]", f"kp[_e] = -_k\n{_IN_ITS_GROUP.format('kp')}", "_operands"),
        tokens=9,
    ),
    _mistake(
        "decay-without-the-last-group",
        "the state decays by the tokens up to the last group but one: its last row is that of group 6",
        "FLA #1240 (which gates lie between two tokens)",
        _prep("the last group", "decay[x, c0 + _e] = whole[_e]", "decay[x, c0 + _e] = pre[_e]"),
        tokens=57,
    ),
    _mistake(
        "pair-without-the-decay-of-its-row",
        "on the diagonal the decay from token j to token i stops before token i",
        "article 1.1 (an exclusive sum)",
        _prep(
            "the decay of a pair",
            "for _r in T.unroll(GROUP - 1 - j):\n    decayed[0] = _d\n    _sums",
            "for _r in T.unroll(GROUP - 1 - j):\n    _sums\n    decayed[0] = _d",
            function="_column",
        ),
        tokens=2,
    ),
    _mistake(
        "pair-decayed-by-its-key",
        "on the diagonal the decay from token j to token i is that of tokens j to i - 1",
        "FLA #1240 (which gates lie between two tokens)",
        _prep("the decay of a pair", "a[j + 1 + _r, e]", "a[j + _r, e]", function="_column"),
        tokens=2,
    ),
    # Scores: where a block of M or A_qk comes from.
    _mistake(
        "A_qk-without-its-diagonal",
        "no token sees what it has just written",
        "article 4.5 (2)",
        _of_queries(
            ("tokens 0 to 3 of a group", "_c(operand, four[0])", "_c(operand, T.if_then_else(i > j, four[0], 0.0))"),
            ("tokens 4 to 7", "_c(operand, own[0])", "_c(operand, 0.0)"),
        ),
    ),
    _mistake(
        "diagonal-counted-twice",
        "what goes beside A_qk is its diagonal, not what rounding took off it",
        "kda/references/hopper.py (what rounding takes off the diagonal)",
        _of_queries(
            ("what rounding took off tokens 0 to 3", "_lost(four[0], operand)", "T.Cast(operand, four[0])"),
            ("what it took off tokens 4 to 7", "_lost(own[0], operand)", "T.Cast(operand, own[0])"),
        ),
    ),
    _mistake(
        "q-k-of-the-last-four-tokens-reversed",
        "on the diagonal of A_qk tokens 4 to 7 of a group stand at each other's places, the last first",
        "kda/kernels/hopper/prep.py (a lane has q.k of token 7 - n % 4)",
        _of_queries(
            ("where it stands", "own_s[row + 7 - lane, 7 - lane] = _v", "own_s[row + 4 + lane, 4 + lane] = _v"),
            (
                "where what rounding took off stands",
                "kept[GROUPS, CHUNK + row + 7 - lane] = _v",
                "kept[GROUPS, CHUNK + row + 4 + lane] = _v",
            ),
        ),
        tokens=5,
    ),
    _mistake(
        "A_qk-not-cleared-above-the-diagonal",
        "above the diagonal A_qk is what lay there before: a token sees later ones",
        "article 4.5 (2)",
        _prep(
            "A_qk above the diagonal",
            "_c(tx, Aqk_s, op)",
            "",
        ),
        tokens=64,  # what lies there hangs on the operands
    ),
    _mistake(
        "A_qk-not-cleared-inside-its-blocks",
        "above the diagonal blocks of 8 keep what lay there before: a token sees later ones of its group",
        "article 4.5 (2)",
        _prep(
            "A_qk above the diagonal of a block",
            "eight[_e] = T.if_then_else(_e > r % GROUP, _zero, eight[_e])",
            "eight[_e] = eight[_e]",
            function="_put_own",
        ),
        tokens=64,  # what lies there hangs on the operands
    ),
    _mistake(
        "M-of-the-queries",
        "across the borders at 16 and 48 M is taken from the upper half of the product: the rows of q, not of k",
        "kda/kernels/hopper/prep.py (a level's rows are q, then k)",
        _prep(
            "M of the level of 16",
            "if _i // 16 == _j // 16 + 2 and 16 + (_i - 32) // 16 * 32 + _i % 16 >= deep[0]:\n"
            "    M_s[16 + (_i - 32) // 16 * 32 + _i % 16, _c] = f16[_i, _j] * _b",
            "if _i // 16 == _j // 16 and 16 + _i // 16 * 32 + _i % 16 >= deep[0]:\n"
            "    M_s[16 + _i // 16 * 32 + _i % 16, _c] = f16[_i, _j] * _b",
        ),
        tokens=17,
    ),
    _mistake(
        "A_qk-of-the-keys",
        "across the borders of groups A_qk is taken from the lower half of the product: the rows of k, not of q",
        "kda/kernels/hopper/prep.py (a level's rows are q, then k)",
        _prep(
            "A_qk of the level of 8",
            "if _i // 8 == _j // 8 and 8 + _i // 8 * 16 + _i % 8 >= deep[0]:\n"
            "    Aqk_s[8 + _i // 8 * 16 + _i % 8, _c] = T.Cast(op, f8[_i, _j])",
            "if _i // 8 == _j // 8 + 4 and 8 + (_i - 32) // 8 * 16 + _i % 8 >= deep[0]:\n"
            "    Aqk_s[8 + (_i - 32) // 8 * 16 + _i % 8, _c] = T.Cast(op, f8[_i, _j])",
        ),
        tokens=9,
    ),
    # Near rows of bf16: which rows they are, and their scores.
    _mistake(
        "near-rows-all-or-none",
        "where the last row of a chunk is not near, none is: earlier rows are made another way for a later gate",
        "FLA #1240 (later tokens that enter by rounding)",
        _prep(
            "the first row that is not near",
            _NEAR_FLAGS,
            f"{_NEAR_FLAGS}\ndeep[0] = T.if_then_else(deep[0] < CHUNK, 0, CHUNK)",
        ),
        law=FUTURE,
        dtype="bf16",
        tokens=64,  # which entries another rounding changes is chance
    ),
    _mistake(
        "flags-of-near-rows-in-the-other-order",
        "the flags of rows 32 and up are taken for those of rows 0 to 31: rows are counted from the wrong half",
        "kda/kernels/hopper/prep.py (the first of 64 flags: the low half comes first)",
        _prep("the flags", _NEAR_FLAGS, _NEAR_FLAGS.replace("_a == 0.0, _b == 0.0", "_b == 0.0, _a == 0.0")),
        law=FUTURE,  # too few rows are near, which later gates decide
        dtype="bf16",
        tokens=64,  # which entries another rounding changes is chance
        members=3,
    ),
    _mistake(
        "near-rows-without-a-bound",
        "every row is near whatever its gates are: e^-gamma overflows",
        "kda/references/hopper.py (near rows: how far a bf16 reaches)",
        InHopper(
            prep=(
                Edit("the bound of a chunk", "least[0] >= 2 * NEAR", "least[0] >= 0.0"),
                Edit("the bound of a row", "least[0] >= NEAR", "least[0] >= 0.0"),
            )
        ),
        dtype="bf16",
        tokens=39,  # float32 ends at e^-gamma = 10^38.5
    ),
    _mistake(
        "near-rows-by-one-of-four-channels",
        "whether a row is near is asked of one of a thread's four channels: the others may overflow",
        "article 3.4 (the channel of a decay)",
        InHopper(
            prep=tuple(
                Edit(what, _SMALLEST.format(name), f"least[0] = {name}[0]")
                for what, name in (("the least of a chunk", "whole"), ("the least of a row", "since"))
            )
        ),
        dtype="bf16",
        tokens=30,  # of 1/e^3 each in odd channels: few cases have channels this far apart
    ),
    _mistake(
        "keys-carried-back-to-their-group",
        "K_b carries a key back to the beginning of its group and not of its chunk",
        "article 4.4",
        _prep(
            "K_b",
            "grown[_e] = _k * T.call_extern(ACCUM, 'kda_reciprocal', pre[_e])",
            f"grown[_e] = 1.0\n{_IN_ITS_GROUP.format('grown')}\n"
            "grown[_e] = _k * T.call_extern(ACCUM, 'kda_reciprocal', grown[_e])",
            "_operands",
        ),
        dtype="bf16",
        tokens=16,  # the second group
    ),
    _mistake(
        "M-of-near-rows-with-the-other-sign",
        "M of near rows has the sign of -K e^gamma, by which it is made",
        "article 4.3",
        InHopper(
            prep=tuple(
                Edit(what, f"{tile} = -fK[_i, _j]{beta}", f"{tile} = fK[_i, _j]{beta}")
                for what, tile, beta in (
                    ("inside blocks of 16", "M_s[_i, _j]", ""),
                    ("below 16", "M_s[_i, _j]", " * beta_f[_j]"),
                    ("below 32", "M32_s[_r, _j]", " * beta_f[_j]"),
                )
            )
        ),
        dtype="bf16",
        tokens=2,
    ),
    _mistake(
        "beta-left-out-of-a-merge-of-near-rows",
        "A_21 = -A_22 M_21 A_11 of the blocks of 16 in near rows",
        "article 3.2",
        InHopper(prep=(_L_NEAR,)),
        dtype="bf16",
        tokens=18,
    ),
    _mistake(
        "beta-left-out-of-the-last-merge-of-near-rows",
        "A_21 = -A_22 M_21 A_11 of the blocks of 32 in near rows",
        "article 3.2",
        _prep("L of near rows below 32", "M32_s[_r, _j] = -fK[_i, _j] * beta_f[_j]", "M32_s[_r, _j] = -fK[_i, _j]"),
        dtype="bf16",
        tokens=34,
    ),
    _mistake(
        "A_qk-of-near-rows-without-the-group-before",
        "A_qk of near rows is 0 between the two groups of a block of 16",
        "article 4.5 (2)",
        _prep("A_qk below the diagonal blocks", _BELOW, "T.if_then_else(_i // 16 > _j // 16, fQ[_i, _j], 0.0)"),
        dtype="bf16",
        tokens=9,
    ),
    _mistake(
        "A_qk-of-near-rows-of-the-keys",
        "the second product of near rows is the first one again, whose rows are keys and not queries",
        "kda/kernels/hopper/prep.py (K e^gamma and Q e^gamma against K_b)",
        _prep(
            "the rows of A_qk",
            "T.wgmma_gemm(Qg_s, Kb_s, _f, transpose_B=True, clear_accum=True)",
            "T.wgmma_gemm(Ke_s, Kb_s, _f, transpose_B=True, clear_accum=True)",
        ),
        dtype="bf16",
        tokens=9,
    ),
    _mistake(
        "A_qk-of-near-rows-not-cleared",
        "where all rows are near a token sees those of later groups",
        "article 4.5 (2)",
        _prep("A_qk above the diagonal blocks", _BELOW, "fQ[_i, _j]"),
        dtype="bf16",
        tokens=9,
    ),
    _mistake(
        "diagonal-blocks-of-A_qk-at-the-first-keys",
        "every diagonal block of A_qk stands at the keys of the first group",
        "article 4.5 (2)",
        _prep(
            "the columns of a diagonal block",
            "tile[r, r // GROUP * GROUP + _e] = eight[_e]",
            "tile[r, _e] = eight[_e]",
            function="_put_own",
        ),
        tokens=9,
    ),
    # The solve, and the merges of its blocks.
    _mistake(
        "beta-left-out-of-the-blocks",
        "the blocks of 16 are (I + M)^-1: beta is 1",
        "article 3.2",
        _prep("beta in the blocks", _BETA, "by[0] = y[_j]"),
        tokens=2,
    ),
    _mistake(
        "beta-twice-in-the-blocks",
        "the blocks of 16 are (I + M diag(beta)^2)^-1",
        "article 4.5 (6)",
        _prep("beta in the blocks", _BETA, "by[0] = y[_j] * total_s[GROUPS, _c] * total_s[GROUPS, _c]"),
        tokens=2,
    ),
    _mistake(
        "beta-of-the-row-in-the-blocks",
        "the blocks of 16 are (I + diag(beta) M)^-1, whose beta belongs on the other side of V",
        "article 3.3, 4.5 (6)",
        InHopper(
            prep=(
                Edit("beta of the column", _BETA, "by[0] = y[_j]"),
                Edit(
                    "beta of the row",
                    "M_s[_b + _j + 1 + _r, _b + _j] * by[0]",
                    "M_s[_b + _j + 1 + _r, _b + _j] * total_s[GROUPS, _b + _j + 1 + _r] * by[0]",
                ),
            )
        ),
        tokens=2,
    ),
    _mistake(
        "beta-twice-across-the-borders-of-groups",
        "the blocks of 8 are multiplied by beta like those that a merge reads, and then in the substitution again",
        "article 4.5 (6)",
        InHopper(
            prep=(
                Edit(
                    "M of the level of 8",
                    "M_s[8 + (_i - 32) // 8 * 16 + _i % 8, _c] = f8[_i, _j]",
                    "M_s[8 + (_i - 32) // 8 * 16 + _i % 8, _c] = f8[_i, _j] * total_s[GROUPS, _c]",
                ),
                Edit(
                    "M of near rows inside blocks of 16",
                    "M_s[_i, _j] = -fK[_i, _j]",
                    "M_s[_i, _j] = -fK[_i, _j] * T.if_then_else(_i // 8 > _j // 8, beta_f[_j], 1.0)",
                ),
            )
        ),
        tokens=9,
    ),
    _mistake(
        "beta-left-out-of-a-merge",
        "A_21 = -A_22 M_21 A_11 of the blocks of 16",
        "article 3.2",
        InHopper(
            prep=(Edit("L of the level of 16", "M_s[_r, _c] = f16[_i, _j] * _b", "M_s[_r, _c] = f16[_i, _j]"), _L_NEAR)
        ),
        tokens=18,
    ),
    _mistake(
        "beta-of-the-row-in-the-last-merge",
        "A_21 = -A_22 diag(beta) M_21 A_11 of the blocks of 32",
        "article 3.3, 4.5 (6)",
        InHopper(
            prep=(
                Edit("L of the level of 32", "f32[_i, _j] * total_s[GROUPS, _j]", "f32[_i, _j] * total_s[GROUPS, _i]"),
                Edit(
                    "L of near rows below 32",
                    "M32_s[_r, _j] = -fK[_i, _j] * beta_f[_j]",
                    "M32_s[_r, _j] = -fK[_i, _j] * total_s[GROUPS, _i]",
                ),
            )
        ),
        tokens=33,
    ),
    _mistake(
        "substitution-reads-the-row-before",
        "the substitution takes row i - 1 of M for row i: for the first the diagonal, which is no part of M",
        "article 4.5 (2)",
        _prep("M in the substitution", "M_s[_b + _j + 1 + _r, _b + _j]", "M_s[_b + _j + _r, _b + _j]"),
        tokens=2,
    ),
    _mistake(
        "blocks-not-cleared-above-the-diagonal",
        "above the diagonal of blocks of 16 the inverse is what lay there before",
        "article 4.5 (2)",
        _prep("the inverse above its diagonal", "for _r in T.unroll(16):\n    Ai_s[_i, _j] = 0.0", "pass"),
        dtype="bf16",  # operands lie there, and a pair of float16 is next to 0 in float32
        tokens=64,
    ),
    _mistake(
        "A-not-cleared-above-its-blocks",
        "above the diagonal of blocks of 32 A is what lay there before",
        "article 4.5 (2)",
        _prep("A above its blocks", "for _i, _j in T.Parallel(32, 32):\n    A_s[_i, 32 + _j] = _z", ""),
        tokens=64,  # what lies there hangs on the operands
    ),
    _mistake(
        "merge-with-the-other-sign",
        "A_21 = A_22 L_21 A_11 of the blocks of 16",
        "article 4.3",
        _prep(
            "the block of a merge",
            "z[_e] - Ai_s[_i, _j] * T16_s[_k, _c]",
            "z[_e] + Ai_s[_i, _j] * T16_s[_k, _c]",
            "_merge",
        ),
        tokens=17,
    ),
    _mistake(
        "merge-in-the-other-order",
        "A_21 = -A_11 L_21 A_22 of the blocks of 16",
        "article 4.3",
        InHopper(
            prep=(
                Edit(
                    "the right factor",
                    "M_s[_b * 32 + 16 + _i, _b * 32 + _n] * Ai_s[_b * 32 + _n, c + _e]",
                    "M_s[_b * 32 + 16 + _i, _b * 32 + _n] * Ai_s[_b * 32 + 16 + _n, 16 + c + _e]",
                    function="_merge",
                ),
                Edit(
                    "the left factor",
                    "Ai_s[_b * 32 + 16 + _i, 16 + _n] * T16_s[_b * 16 + _n, c + _e]",
                    "Ai_s[_b * 32 + _i, _n] * T16_s[_b * 16 + _n, c + _e]",
                    function="_merge",
                ),
            )
        ),
        tokens=17,
    ),
    _mistake(
        "last-merge-with-the-other-sign",
        "A_21 = A_22 L_21 A_11 of the blocks of 32",
        "article 4.3",
        InHopper(
            prep=(
                Edit("in tf32", "A21_s[_i, _j] = -fA[_i, _j]", "A21_s[_i, _j] = fA[_i, _j]"),
                Edit(
                    "in float32, behind a beta above 1",
                    "_p(tx, Ai_s, T32_s, 32, A21_s, f, -1.0, _s - 32)",
                    "_p(tx, Ai_s, T32_s, 32, A21_s, f, 1.0, _s - 32)",
                ),
                Edit(
                    "in float32",
                    "_p(tx, Ai_s, T32_s, 32, A21_s, f, -1.0, 0)",
                    "_p(tx, Ai_s, T32_s, 32, A21_s, f, 1.0, 0)",
                ),
            )
        ),
        dtype="bf16",
        tokens=33,
    ),
    _mistake(
        "beta-above-1-not-noticed",
        "behind a beta above 1 A is rounded once and merged in tf32, as if its entries faded along a row",
        "kda/references/hopper.py (steep rows)",
        InHopper(
            prep=(
                Edit(
                    "what is above 1",
                    "T.call_extern('int32', 'kda_first_of_64', _a > 1.0, _b > 1.0)",
                    "T.call_extern('int32', 'kda_first_of_64', _a > 2.0, _b > 2.0)",
                ),
            ),
            walk_wide=(_ABOVE,),
            walk_narrow=(_ABOVE,),
        ),
        law=MIRROR,
        dtype="bf16",
        tokens=64,  # how much of A is lost is chance
    ),
    _mistake(
        "beta-above-1-noticed-before-it-comes",
        "a beta above 1 makes every row of its chunk one of two rounded parts, earlier ones too",
        "FLA #1240 (later tokens that enter by rounding)",
        _prep(
            "the first row behind a beta above 1",
            "steep[0] = _first",
            "steep[0] = _first\nsteep[0] = T.if_then_else(steep[0] < CHUNK, 0, CHUNK)",
        ),
        law=FUTURE,
        dtype="bf16",
        tokens=64,  # which entries of A lose something is chance
    ),
    # A where a beta is above 1: what is rounded, and what rounding takes off.
    _mistake(
        "W-of-the-second-half-alone",
        "the second half of A clears the accumulator that has W of the first",
        "gpuemu (= for +=)",
        _prep(
            "the second half in W",
            "T.wgmma_gemm(A_s, Ke_s, fW, clear_accum=False)",
            "T.wgmma_gemm(A_s, Ke_s, fW, clear_accum=True)",
        ),
    ),
    _mistake(
        "second-half-stored-over-the-first",
        "behind a beta above 1 both halves of A are stored in the place of the first",
        "kda/kernels/hopper/prep.py (of a steep chunk the first half is there already)",
        _prep("the half that is stored last", "A[x, T.if_then_else(steep[0] < CHUNK, 1, 0), :, :]", "A[x, 0, :, :]"),
    ),
    _mistake(
        "first-half-not-stored",
        "behind a beta above 1 A is stored once, when its tile has the second half",
        "kda/kernels/hopper/prep.py (of a steep chunk the first half is there already)",
        _prep("the store of the first half", f"{_FIRST_HALF}\nT.tma_store_wait(0, True)", ""),
    ),
    _mistake(
        "second-half-left-out",
        "the narrow walk multiplies V by the first half of A alone",
        "kda/references/hopper.py (steep rows)",
        _narrow("the second half", _SECOND, ""),
        law=MIRROR,
        dtype="bf16",
        tokens=64,  # how much of A is lost is chance
    ),
    _mistake(
        "second-half-left-out-of-the-wide-walk",
        "the wide walk multiplies V by the first half of A alone",
        "kda/references/hopper.py (steep rows)",
        _wide("the second half", _SECOND, ""),
        law=MIRROR,
        dtype="bf16",
        tokens=64,  # how much of A is lost is chance
        tile=_WIDE,
    ),
    _mistake(
        "first-half-read-twice-by-the-narrow-walk",
        "the first half of A is multiplied twice, the second never",
        "kda/kernels/hopper/prep.py (A: rounded, and what rounding took off)",
        _narrow("the half that is read", "A[x + t, 1, _i, _j]", "A[x + t, 0, _i, _j]"),
    ),
    _mistake(
        "first-half-read-twice-by-the-wide-walk",
        "the first half of A is multiplied twice, the second never",
        "kda/kernels/hopper/prep.py (A: rounded, and what rounding took off)",
        _wide("the half that is read", "A[x + t, 1, _i, _j]", "A[x + t, 0, _i, _j]"),
        tile=_WIDE,
    ),
    _mistake(
        "second-half-of-its-first-columns",
        "the narrow walk takes 16 columns of the second half at a time, and the same ones each time",
        "flash-linear-attention-npu #281 (a buffer that holds something else)",
        _narrow("the columns of a part", "A[x + t, 1, _i, part * block_DV + _j]", "A[x + t, 1, _i, _j]"),
        law=MIRROR,
        dtype="bf16",
        members=3,
        tokens=64,  # how much of A is lost is chance
    ),
    # Heads, gates, norms, the scale.
    _mistake(
        "query-head-by-remainder",
        "value head h reads q and k of head h mod H instead of h // (HV / H)",
        "FLA #624 (grouped heads)",
        _of_calls(FormChoice(128, 128), "the head of q and k", "T.truncdiv(h, sharing)", "T.truncmod(h, H)"),
        law="operation.grouped_heads_are_repeated_heads",
        members=8,
    ),
    _mistake(
        "bias-of-the-query-head",
        "value heads take the dt_bias of the head whose q they read, and not their own",
        "FLA #624 (grouped heads: dt_bias is of the value heads)",
        _of_calls(_SOFTPLUS, "dt_bias", "dt_bias[h, _c]", "dt_bias[hq[0], _c]"),
        law=OPERATION,
        members=8,
        tokens=2,
    ),
    _mistake(
        "A_log-left-out",
        "the factor of the gate is 1 whatever A_log is",
        "SGLang #38383 (an argument that is swallowed)",
        _of_calls(_SOFTPLUS, "e^A_log", "if HA > 0:\n    slope[0] = exp(A_log[h])", ""),
        law=OPERATION,
        tokens=2,
    ),
    _mistake(
        "rows-behind-the-tail-decay",
        "rows behind a sequence have g = 0 before the activation, not after it: they decay the state",
        "transformers #46190 (padding that touches the state)",
        _of_calls(_SOFTPLUS, "a behind the tail", "a[_r, _e] = T.if_then_else(row + _r < rows[0], a[_r, _e], 1.0)", ""),
        law=OPERATION,
    ),
    _mistake(
        "queries-not-normalised",
        "k is divided by its norm, q is not",
        "FLA (use_qk_l2norm_in_kernel: both)",
        _of_calls(_NORM, "the norm of q", "_n(Qg_s, row + _r, c0, f, sent, op)", ""),
        law=OPERATION,
    ),
    _mistake(
        "scale-left-out-of-the-walk",
        "o is not multiplied by the scale",
        "FLA (its default scale)",
        _walks(Edit("the scale", "(o_f[_a, _b] + _l) * scale", "o_f[_a, _b] + _l"), _PLAIN),
        law=OPERATION,
    ),
    # Tails, packed sequences, slots, states.
    _mistake(
        "rows-behind-the-tail-kept",
        "q and k behind a packed sequence are those of the next one: 0 times NaN is NaN",
        "cuLA #43, FLA #794 (what lies behind a tail)",
        _of_calls(
            _PACKED,
            "q and k behind the tail",
            "for _r in T.unroll(GROUP):\n    if row + _r >= rows[0]:\n        _zeros",
            "",
        ),
        law="operation.no_sequence_sees_another",
        members=2,
    ),
    _mistake(
        "values-behind-the-tail-kept",
        "v behind a packed sequence is that of the next one: 0 times NaN is NaN",
        "cuLA #43, FLA #794 (what lies behind a tail)",
        _behind_the_tail("v behind the tail", "if (t + 1) * CHUNK > tokens[0]:\n    _zeros", ""),
        law="operation.no_sequence_sees_another",
        members=2,
    ),
    _mistake(
        "first-value-behind-the-tail-kept",
        "v behind a packed sequence is cleared from the second row on",
        "cuLA #43, FLA #794 (what lies behind a tail)",
        _behind_the_tail("the first row behind the tail", "t * CHUNK + _i >= tokens[0]", "t * CHUNK + _i > tokens[0]"),
        law="operation.no_sequence_sees_another",
        members=2,
    ),
    _mistake(
        "values-cleared-in-the-stage-before",
        "the wide walk looks one chunk ahead, and clears v behind a sequence in the stage of the chunk it is at",
        "flash-linear-attention-npu #281 (a buffer that holds something else)",
        InHopper(
            walk_wide=(
                Edit(
                    "the stage that is cleared",
                    "V_s[t % stages, _i, _e]",
                    "V_s[(t + stages - 1) % stages, _i, _e]",
                    function="_arrived",
                ),
            ),
            call=_PACKED,
        ),
        law="operation.no_sequence_sees_another",
        members=2,
    ),
    _mistake(
        "gates-of-the-next-sequence",
        "a last chunk takes the gates behind it as long as there are tokens: those of the next sequence",
        "cuLA #43, FLA #794 (what lies behind a tail)",
        _of_calls(
            _PACKED,
            "the gates that are read",
            "if row + _r < rows[0]:\n    for _e in T.vectorized(E):\n        raw[_r, _e] = _g",
            "if begin[0] + row + _r < tokens:\n    for _e in T.vectorized(E):\n        raw[_r, _e] = _g",
        ),
        law=OPERATION,
        members=3,
    ),
    _mistake(
        "slots-without-the-sequence",
        "the slots of sequence s begin at starts[s] // 64: two that meet in 64 tokens share one",
        "FLA #103 (offsets of packed sequences)",
        InHopper(
            prep=(
                Edit(
                    "the search for a slot",
                    "Starts[mid[0]] // CHUNK + mid[0] <= slot",
                    "Starts[mid[0]] // CHUNK <= slot",
                    function="_chunk_of",
                ),
                Edit(
                    "the chunk of a slot",
                    "slot - Starts[lo[0]] // CHUNK - lo[0]",
                    "slot - Starts[lo[0]] // CHUNK",
                    function="_chunk_of",
                ),
            ),
            walk_wide=(_FIRST_SLOT,),
            walk_narrow=(_FIRST_SLOT,),
            call=_PACKED,
        ),
        law=OPERATION,
        tokens=2,
        members=2,
    ),
    _mistake(
        "walk-from-the-slot-of-another",
        "a walk begins at starts[s] // 64, which is the slot of an earlier sequence",
        "FlashInfer #3230, tpu-inference #2408 (the state of another slot)",
        _walks(_FIRST_SLOT, _PACKED),
        law=OPERATION,
        tokens=2,
        members=2,
    ),
    _mistake(
        "first-slot-of-the-sequence-before",
        "the search for a slot is off by one: the first of a sequence goes to the one before it, and is never filled",
        "FLA #103 (offsets of packed sequences)",
        InHopper(
            prep=(Edit("the search for a slot", "_first <= slot", "_first < slot", function="_chunk_of"),), call=_PACKED
        ),
        law=OPERATION,
        members=2,
    ),
    _mistake(
        "slots-of-one-chunk",
        "sequence s of a dense call begins at slot s, as if each had one chunk",
        "FlashInfer #3230, tpu-inference #2408 (the state of another slot)",
        _walks(Edit("the first slot", "s * chunks[0]", "s", function="_member")),
        tokens=65,
        members=2,
    ),
    _mistake(
        "slots-of-head-0",
        "every head walks over what was prepared for head 0",
        "cuLA #66 (the offset of a head)",
        _walks(Edit("the first slot of a head", "h * slots + slot[0]", "slot[0]")),
        members=2,
    ),
    _mistake(
        "slots-of-the-whole-call",
        "a walk reads K_g at slot t of the call instead of slot t of its sequence and head",
        "FlashInfer #3230, tpu-inference #2408 (the state of another slot)",
        _walks(Edit("the load of K_g", "K_g[x + t, :, :]", "K_g[t, :, :]")),
        members=2,
    ),
    _mistake(
        "tail-stored-over-the-next-sequence",
        "a last chunk is stored whole: its rows behind the tail land on tokens of the next sequence, or of none",
        "FLA #673 (tail rows)",
        _walks(Edit("whether a chunk is full", "(t + 1) * CHUNK <= tokens[0]", "t * CHUNK < tokens[0]"), _PACKED),
        law="operation.tokens_of_no_sequence_are_neither_read_nor_written",
    ),
    _mistake(
        "state-lost-by-an-empty-sequence",
        "a packed sequence without tokens writes no final state",
        "FLA #103 (empty sequences)",
        _state(
            "the store of the final state",
            (
                "S_N[s, h, _c, e0 + _e] = state_f[_e, _d]",
                "if chunks[0] > 0:\n    S_N[s, h, _c, e0 + _e] = state_f[_e, _d]",
            ),
            (
                "S_N[s, h, _c, e0 + _e] = upper_f[_d, _e]",
                "if chunks[0] > 0:\n    S_N[s, h, _c, e0 + _e] = upper_f[_d, _e]",
            ),
            _PACKED,
        ),
        law="operation.an_empty_sequence_hands_its_state_on",
        members=2,
    ),
    _mistake(
        "values-first-read-as-keys-first",
        "an initial state with values first is read as if keys came first",
        "vLLM #41292 (equal DK and DV hid it)",
        _state(
            "where the state is set",
            ("state_f[_e, _d] = S_0[s, h, e0 + _e, _c]", "state_f[_e, _d] = S_0[s, h, _c, e0 + _e]"),
            ("upper_f[_d, _e] = S_0[s, h, e0 + _e, _c]", "upper_f[_d, _e] = S_0[s, h, _c, e0 + _e]"),
            _V_FIRST,
        ),
        law="operation.states_with_values_first_are_transposed",
    ),
    _mistake(
        "values-first-stored-as-keys-first",
        "a final state with values first is stored as if keys came first",
        "vLLM #41292 (equal DK and DV hid it)",
        _state(
            "the store of the final state",
            ("S_N[s, h, e0 + _e, _c] = state_f[_e, _d]", "S_N[s, h, _c, e0 + _e] = state_f[_e, _d]"),
            ("S_N[s, h, e0 + _e, _c] = upper_f[_d, _e]", "S_N[s, h, _c, e0 + _e] = upper_f[_d, _e]"),
            _V_FIRST,
        ),
        law="operation.states_with_values_first_are_transposed",
    ),
    # The walk.
    _mistake(
        "W-not-turned",
        "W keeps its sign on its way to a walk that adds: what a key held is written again",
        "article 4.3 (V~ = U - W S)",
        _prep(
            "the sign of W",
            "T.copy(fW, W_s)",
            "for i, d in T.Parallel(CHUNK, D):\n    W_s[i, d] = T.Cast(op, -fW[i, d])",
        ),
    ),
    _mistake(
        "V-tilde-without-beta",
        "V~ = A V - W S: every token writes as if its beta were 1",
        "article 3.2",
        _walks(Edit("beta of V~", "T.Cast(op, vt_f[_a, _b] * beta_f[_i])", "T.Cast(op, vt_f[_a, _b])")),
    ),
    _mistake(
        "beta-of-the-next-chunk",
        "the walk takes the beta of the stage after its own",
        "flash-linear-attention-npu #281 (a buffer that holds something else)",
        _walks(
            Edit(
                "the stage of beta",
                "T.copy(beta_s[t % stages, :], beta_f)",
                "T.copy(beta_s[(t + 1) % stages, :], beta_f)",
            )
        ),
        tokens=65,
    ),
    _mistake(
        "beta-over-one-that-is-still-read",
        "beta is loaded into a stage that has not been given back: the walk reads that of three chunks later",
        "flash-linear-attention-npu #281 (a buffer overwritten while it is read)",
        _walks(
            Edit(
                "when beta is written",
                "T.barrier_wait(empty[_s], _p)\n_copies\nbeta_s[_r, lane] = coming[0]",
                "beta_s[_r, lane] = coming[0]\nT.barrier_wait(empty[_s], _p)\n_copies",
            )
        ),
        tokens=_ROUND,
    ),
    _mistake(
        "values-cleared-before-the-state",
        "W S clears the accumulator that has A V",
        "gpuemu (= for +=)",
        InHopper(
            walk_wide=(
                Edit(
                    "the product of W and S",
                    "T.wgmma_gemm(state_op, W_s[_s, :, :], vt_f, transpose_B=True)",
                    "T.wgmma_gemm(state_op, W_s[_s, :, :], vt_f, transpose_B=True, clear_accum=True)",
                ),
            ),
            walk_narrow=(
                Edit(
                    "the product of W and S",
                    "T.wgmma_gemm(W_s[_s, :, :], state_s, vt_f)",
                    "T.wgmma_gemm(W_s[_s, :, :], state_s, vt_f, clear_accum=True)",
                ),
            ),
        ),
    ),
    _mistake(
        "values-onto-those-of-the-chunk-before",
        "A V does not clear the accumulator that had V~ of the chunk before",
        "gpuemu (= for +=)",
        _own_values(
            "the product of A and V",
            "T.wgmma_gemm(_v, _a, vt_f, transpose_A=True, transpose_B=True)",
            "T.wgmma_gemm(_a, _v, vt_f)",
        ),
        tokens=65,
    ),
    _mistake(
        "A-transposed",
        "V is multiplied by the transpose of A: a token writes what later ones should",
        "article 4.3",
        _own_values(
            "the product of A and V",
            "T.wgmma_gemm(_v, _a, vt_f, transpose_A=True, clear_accum=True)",
            "T.wgmma_gemm(_a, _v, vt_f, transpose_A=True, clear_accum=True)",
        ),
        tokens=2,
    ),
    _mistake(
        "values-of-the-next-chunk-from-this-stage",
        "A V of the next chunk is made of the tiles of this one",
        "flash-linear-attention-npu #281 (a buffer that holds something else)",
        _wide("the stage of the next chunk", "_o((t + 1) % stages, V_s, A_s, vt_f)", "_o(t % stages, V_s, A_s, vt_f)"),
        tokens=65,
        tile=_WIDE,
    ),
    _mistake(
        "values-of-the-next-chunk-too-soon",
        "A V of the next chunk is on the accumulator before V~ of this one has been taken from it",
        "flash-linear-attention-npu #281 (a buffer overwritten while it is read)",
        _wide(
            "when A V of the next chunk is made",
            "T.wait_wgmma(1)\n_taken\n_a(t + 1, *_x)\n_o((t + 1) % stages, *_y)",
            "_a(t + 1, *_x)\n_o((t + 1) % stages, *_y)\nT.wait_wgmma(0)\n_taken",
        ),
        tile=_WIDE,
    ),
    _mistake(
        "values-of-the-first-block",
        "every program of a head takes its first value channels",
        "cuLA #66 (the offset of a head)",
        _walks(Edit("the value channels that are loaded", "V[_r, h, e0:e0 + _w]", "V[_r, h, 0:_w]")),
    ),
    _mistake(
        "values-of-the-first-sequence",
        "a walk loads the values of the first sequence: prep, which knew where its own began, has them no more",
        "FLA #103 (offsets of packed sequences)",
        _walks(
            Edit(
                "the tokens whose values are loaded",
                "V[begin[0] + t * CHUNK:begin[0] + (t + 1) * CHUNK, _h, _e]",
                "V[t * CHUNK:(t + 1) * CHUNK, _h, _e]",
            )
        ),
        members=2,
    ),
    _mistake(
        "writes-decayed-with-the-state",
        "the state decays after a chunk has been written to it, and the chunk's own writes with it",
        "article 4.4",
        _wide(
            "the decay of the state",
            "for _e, _d in T.Parallel(WIDE, D):\n    state_f[_e, _d] = _decayed\n"
            "_writes\nT.wait_wgmma(0)\nT.barrier_arrive(empty[_s])",
            "_writes\nT.wait_wgmma(0)\nfor _e, _d in T.Parallel(WIDE, D):\n    state_f[_e, _d] = _decayed\n"
            "T.barrier_arrive(empty[_s])",
        ),
        tile=_WIDE,
    ),
    _mistake(
        "decay-of-the-upper-half",
        "key channels 64 and up decay like channels 0 to 63",
        "article 3.4 (the channel of a decay)",
        _narrow("the decay of the lower half", "decay_s[_s, 64 + _d]", "decay_s[_s, _d]"),
    ),
    # What lies between the launches.
    _mistake(
        "A-over-A_qk",
        "A lies where A_qk does: who counts the squares of a chunk leaves out the first",
        "flash-linear-attention-npu #281 (a buffer that holds something else)",
        InHopper(
            launching=(Edit("where A begins", "X * (3 * tile + square)", "X * (3 * tile)", function="_planned"),),
        ),
        tokens=_ROUND,  # which of the two is stored last is chance
        members=3,
    ),
    _mistake(
        "keys-in-place-of-values",
        "the walk is given k where it takes v, which has the same shape",
        "SGLang #38383 (an argument that is swallowed)",
        InHopper(
            launching=(Edit("what the walk is given", "_step(*between, v, *_rest)", "_step(*between, k, *_rest)"),)
        ),
    ),
    # Waits. Which of the numbers are there in time is chance, and so are the lengths that show it.
    _mistake(
        "queries-and-keys-not-waited-for",
        "q and k are read while they are under way",
        "cuLA #77, tilelang #2699",
        _prep("the wait for q and k", "T.barrier_wait(qk_here[0], 0)", ""),
        tokens=64,
    ),
    _mistake(
        "scores-without-a-fence",
        "the operands of the scores are written by threads and read by tensor cores with no fence between the two",
        "cuLA #77 (a missing fence between proxies)",
        _prep(
            "the fence before the scores",
            f"T.fence_proxy_async()\nT.sync_threads()\n{_X32}",
            f"T.sync_threads()\n{_X32}",
        ),
        harmless=_FENCED,
    ),
    _mistake(
        "merge-before-the-blocks-are-solved",
        "the merge to 32 starts while two warps still solve the blocks of 16",
        "tilelang #2699, cuLA #77",
        _prep(
            "the wait before the merge", "T.sync_threads()\n_m(tx, M_s, Ai_s, T16_s, z)", "_m(tx, M_s, Ai_s, T16_s, z)"
        ),
        tokens=64,
    ),
    _mistake(
        "first-half-overwritten-while-it-is-stored",
        "what rounding takes off A is written over A before that has been read by the copy engine",
        "flash-linear-attention-npu #281 (a buffer overwritten while it is read)",
        _prep("the wait for the store", f"{_FIRST_HALF}\nT.tma_store_wait(0, True)", _FIRST_HALF),
        tokens=_ROUND,
    ),
    _mistake(
        "first-half-overwritten-by-other-warps",
        "one warp waits until A has been stored; the others write what rounding takes off it at once",
        "tilelang #2699, cuLA #77",
        _prep("the wait before the second half", f"T.sync_threads()\n{_LOST}", _LOST),
        tokens=_ROUND,
    ),
    _mistake(
        "full-waited-for-with-the-other-parity",
        "the walk waits for the tiles of the round before: the first ones it takes as they lie there",
        "cuLA #77, flash-linear-attention-npu #281 (event flags)",
        _wide("the wait for the tiles", _FULL, _FULL_AT_ONCE, "_arrived"),
        tokens=64,
        tile=_WIDE,
    ),
    _mistake(
        "full-not-waited-for-by-the-second",
        "the second warpgroup takes q as it lies there; the first waits",
        "cuLA #77, flash-linear-attention-npu #281 (event flags)",
        _narrow(
            "the wait for the tiles",
            f"{_FULL}\nT.barrier_wait(state_here, t & 1)\n{_Q_S}",
            f"T.barrier_wait(state_here, t & 1)\n{_Q_S}",
        ),
        tokens=64,
    ),
    _mistake(
        "walk-waits-for-a-chunk-that-never-comes",
        "the wide walk, one chunk ahead, waits for one behind the last",
        "cuLA #77, flash-linear-attention-npu #281 (event flags)",
        _wide("the chunks that are waited for", "if t < chunks[0]:\n    _wait", "_wait", "_arrived"),
        tokens=_ROUND,  # a run that has no end is not shrunk
        members=3,
        tile=_WIDE,
    ),
    _mistake(
        "tiles-given-back-too-soon",
        "the walk says that tiles have been read when they are there, and the loader fills them again",
        "flash-linear-attention-npu #281 (a buffer overwritten while it is read)",
        _wide(
            "when tiles are given back",
            "T.copy(state_f, state_op)\n_products\nT.wait_wgmma(0)\nT.barrier_arrive(empty[_s])",
            "T.copy(state_f, state_op)\nT.barrier_arrive(empty[_s])\n_products\nT.wait_wgmma(0)",
        ),
        tokens=_ROUND,
        tile=_WIDE,
    ),
    _mistake(
        "V-tilde-not-waited-for-by-the-second",
        "the second warpgroup multiplies by V~ while the first still makes it",
        "tilelang #2699, cuLA #77",
        _narrow(
            "the wait for V~",
            "T.barrier_arrive(state_read)\nT.barrier_wait(vt_here, t & 1)",
            "T.barrier_arrive(state_read)",
        ),
        tokens=64,
    ),
    _mistake(
        "state-overwritten-while-it-is-read",
        "the first warpgroup hands its half of the state on while the second may still multiply by the one before",
        "flash-linear-attention-npu #281 (a buffer overwritten while it is read)",
        _narrow("the wait for the readers of the state", "T.barrier_wait(state_read, t & 1)", ""),
        tokens=_ROUND,
    ),
    _mistake(
        "values-cleared-without-a-fence",
        "zeros behind a sequence are written by threads and read by tensor cores with no fence between the two",
        "cuLA #77 (a missing fence between proxies)",
        _behind_the_tail("the fence behind the zeros", f"{_ZEROED}\nT.fence_proxy_async()", _ZEROED),
        law="operation.no_sequence_sees_another",
        harmless=_FENCED,
    ),
    _mistake(
        "o-stored-without-a-fence",
        "o is written by threads and stored by the copy engine with no fence between the two",
        "cuLA #77 (a missing fence between proxies)",
        _walks(
            Edit(
                "the fence before the store of o",
                f"T.fence_proxy_async()\nT.sync_threads(6, WARPGROUP)\n{_O_STORE}",
                f"T.sync_threads(6, WARPGROUP)\n{_O_STORE}",
            )
        ),
        harmless=_FENCED,
    ),
    _mistake(
        "tiles-of-a-walk-share-bytes",
        "the compiler gives buffers of a walk the same bytes: it does not see that warpgroups run side by side",
        "kda/kernels/hopper/launching.py (found when a walk had U: o over it, wrong from the fourth chunk on)",
        InHopper(
            launching=(Edit("the passes of a walk", "WALK_PASSES: _t = _p", "WALK_PASSES: _t = PASSES", function=""),)
        ),
        tokens=_ROUND,
    ),
)
