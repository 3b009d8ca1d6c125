"""Sub-chunks: pairs inside one, factors across a border, and what is carried to it (`kda_forward` alone)."""

from __future__ import annotations

import textwrap

from kda.mutation.catalogue.mistake import MIRROR, InForward, Mistake
from kda.mutation.catalogue.places import (
    A_ACROSS,
    AMONG,
    BORDERED,
    FORWARD_QP,
    FORWARD_WRITE_GEMM,
    FROM_EARLIER,
    M_ACROSS,
    PRODUCT,
    SUBSTITUTED,
)
from kda.mutation.rewrite import Edit

__all__ = ["BORDERS"]

#: A pair's exponent grows by the gate of its row, before the row takes the key.
_GROWS = "total[0] = total[0] + T.if_then_else(_b + _i > _j, G_s[_b + _i, _d], 0.0)"
_USES = "decayed[0] = _k\nm[_i] = _m\na[_i] = _a"
#: The rows of a sub-chunk, from its border on.
_ROW_GROWS = "total[0] = total[0] + G_s[_b + _r, _d]\ndecayed[0] = T.exp2(total[0] * LOG2_E)"
_ROWS = f"for _r in on.steps(R):\n{textwrap.indent(_ROW_GROWS, '    ')}\n    _uses"
_CARRIED = "Kc_s[_j, _d] = on.round(T.Cast(ACCUM, K_s[_j, _d]) * T.exp2(total[0] * LOG2_E))"
_KEYS_TO_BORDER = f"_carry_keys(on, K_s, G_s, _b, total, Kc_s)\n{M_ACROSS}"
_KEYS_TO_END = f"_carry_keys(on, K_s, G_s, C, total, Kc_s)\n{FORWARD_WRITE_GEMM}"


def _carrying(find: str, put: str) -> Edit:
    return Edit("the decay of a key", find, put, function="_carry_keys")


def _between(put: str) -> Edit:
    return Edit("the exponents of pairs", "return sums", f"return {put}", function="_between")


BORDERS = (
    Mistake(
        "gate-of-the-row-left-out-of-a-pair",
        "inside a sub-chunk the decay from token j to token i stops before g_i",
        "article 1.1 (an exclusive sum)",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(Edit("the exponent of a pair", f"{_GROWS}\n{_USES}", f"{_USES}\n{_GROWS}"),),
            mirror=(_between("np.concatenate([0 * sums[..., :1, :, :], sums[..., :-1, :, :]], axis=-3)"),),
        ),
        tokens=2,
    ),
    Mistake(
        "gate-of-the-key-taken-into-a-pair",
        "inside a sub-chunk the decay from token j to token i takes g_j too, so that a token sees itself decayed",
        "FLA #1240 (which gates lie between two tokens)",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(Edit("the exponent of a pair", "_b + _i > _j", "_b + _i >= _j", _GROWS),),
            mirror=(_between("np.where(np.tri(R, dtype=bool)[..., None], sums + g[..., None, :, :], sums)"),),
        ),
    ),
    Mistake(
        "pairs-not-decayed",
        "inside a sub-chunk a token meets the keys before it as they were written",
        "article 4.5 (3)",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(
                Edit(
                    "the key of a pair",
                    "decayed[0] = T.Cast(ACCUM, K_s[_j, _d]) * T.exp2(_e)",
                    "decayed[0] = T.Cast(ACCUM, K_s[_j, _d])",
                ),
            ),
            mirror=(
                Edit(
                    "the keys of pairs", "Kr[:, :, None] * exp(_between(gr))", "Kr[:, :, None] * exp(0 * _between(gr))"
                ),
            ),
        ),
        tokens=2,
    ),
    Mistake(
        "log2e-forgotten-in-pairs",
        "log2 e is missing where the decay of a pair is formed: inside a sub-chunk decays are 2^g",
        "article 4.1",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(
                Edit(
                    "the key of a pair",
                    "decayed[0] = T.Cast(ACCUM, K_s[_j, _d]) * T.exp2(total[0] * LOG2_E)",
                    "decayed[0] = T.Cast(ACCUM, K_s[_j, _d]) * T.exp2(total[0])",
                ),
            ),
            mirror=(Edit("the keys of pairs", "exp(_between(gr))", "exp(_between(gr) * np.float32(np.log(2)))"),),
        ),
        tokens=2,
    ),
    Mistake(
        "pairs-as-differences",
        "the decay of a pair is e^(gamma_i - gamma_j): behind a closed gate the difference of two long sums cancels",
        "kda/kernels/forward.py (why every exponent is a sum of gates of one sign)",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(
                Edit(
                    "gamma",
                    "decay_s = on.shared(_shape, ACCUM)",
                    "decay_s = on.shared(_shape, ACCUM)\ngamma_s = on.shared([C, DK], ACCUM)",
                ),
                Edit("gamma where it is summed", FORWARD_QP, f"{FORWARD_QP}\ngamma_s[_r, _d] = total[0]"),
                Edit(
                    "the exponent of a pair",
                    "total[0] * LOG2_E",
                    "(gamma_s[b + i, d] - gamma_s[j, d]) * LOG2_E",
                    "decayed[0] = T.Cast(ACCUM, K_s[_, _]) * _",
                ),
            ),
            mirror=(
                Edit(
                    "the keys of pairs",
                    "exp(_between(gr))",
                    "exp(np.minimum(gam[:, :, sub][..., :, None, :] - gam[:, :, sub][..., None, :, :], 0))",
                ),
            ),
        ),
        law=MIRROR,
        tokens=16,  # which sums round differently is chance
    ),
    Mistake(
        "pairs-anchored-at-the-last-row",
        "the decay of a pair is formed against the last row of its sub-chunk, and later gates enter it by rounding",
        "FLA #1240, attention-gym #337 (an anchor that cancels on paper)",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(
                Edit(
                    "the totals",
                    "decayed = T.alloc_local(_s, ACCUM)",
                    "decayed = T.alloc_local(_s, ACCUM)\nwhole = T.alloc_local([1], ACCUM)",
                ),
                Edit(
                    "the sums of a pair",
                    f"total[0] = 0.0\nfor _i in on.steps(R):\n    if _b + _i >= _j:\n        {_GROWS}\n        _uses",
                    "whole[0] = 0.0\n"
                    "for _i in on.steps(R):\n"
                    "    whole[0] = whole[0] + T.if_then_else(_b + _i > _j, G_s[_b + _i, _d], 0.0)\n"
                    f"total[0] = 0.0\nfor _i in on.steps(R):\n    if _b + _i >= _j:\n        {_GROWS}\n        _uses",
                ),
                Edit(
                    "the exponent of a pair",
                    "total[0] * LOG2_E",
                    "(whole[0] - (whole[0] - total[0])) * LOG2_E",
                    "decayed[0] = T.Cast(ACCUM, K_s[_, _]) * _",
                ),
            ),
            mirror=(_between("sums[..., -1:, :, :] - (sums[..., -1:, :, :] - sums)"),),
        ),
        law="time.the_future_does_not_change_the_past",
        tokens=16,  # which later gates take a bit away is chance
    ),
    Mistake(
        "pairs-in-operand-precision",
        "the decayed key of a pair is rounded to the operand format, as it would be for a tensor core",
        "article 4.6 (what must stay in float32)",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(
                Edit(
                    "the key of a pair",
                    "decayed[0] = T.Cast(ACCUM, K_s[_j, _d]) * _e",
                    "decayed[0] = T.Cast(ACCUM, on.round(T.Cast(ACCUM, K_s[_j, _d]) * _e))",
                ),
            ),
            mirror=(Edit("the keys of pairs", "decayed = _k", "decayed = op(_k)"),),
        ),
        law=MIRROR,
        dtype="f16",
        tokens=2,
    ),
    Mistake(
        "rows-decayed-from-one-row-later",
        "across a border rows have decayed since the token after it: each lacks its own gate",
        "attention-gym #337 (the row of the anchor)",
        stage=("q since its border", "k since its border"),
        forward=InForward(
            kernel=(
                Edit(
                    "the decay of a row",
                    _ROW_GROWS,
                    "decayed[0] = T.exp2(total[0] * LOG2_E)\ntotal[0] = total[0] + G_s[_b + _r, _d]",
                ),
            ),
            mirror=(
                Edit(
                    "the decay of rows",
                    "since = exp(_s)",
                    "since = exp(np.cumsum(np.concatenate([0 * gr[..., :1, :], gr[..., :-1, :]], axis=-2), axis=-2))",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "rows-decayed-from-one-row-earlier",
        "across a border rows have decayed since the token before it, whose gate the keys have taken too",
        "attention-gym #337 (the row of the anchor)",
        stage=("q since its border", "k since its border"),
        forward=InForward(
            kernel=(
                Edit(
                    "the decay of a row",
                    f"total[0] = 0.0\n{_ROWS}",
                    f"total[0] = G_s[_b - 1, _d]\n{_ROWS}",
                ),
            ),
            mirror=(
                Edit(
                    "the decay of rows",
                    "since = exp(np.cumsum(_g, axis=-2))",
                    "since = exp(np.cumsum("
                    "np.concatenate([gc[:, :, [max(sub.start - 1, 0)]], gr], axis=-2), axis=-2)[..., 1:, :])",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "rows-decayed-by-the-sub-chunk-before",
        "across a border rows decay by the gates of the sub-chunk before theirs",
        "attention-gym #337 (the row of the anchor)",
        stage=("q since its border", "k since its border"),
        forward=InForward(
            kernel=(Edit("the decay of a row", "G_s[_b + _r, _d]", "G_s[_b - R + _r, _d]", _ROW_GROWS),),
            mirror=(
                Edit(
                    "the decay of rows",
                    "since = exp(np.cumsum(_g, axis=-2))",
                    "since = exp(np.cumsum(gc[:, :, sub.start - SUB_CHUNK : sub.start] if sub.start else _g, axis=-2))",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "rows-not-decayed-across-a-border",
        "across a border rows meet the keys as if no gate had come since",
        "article 4.5 (3)",
        stage=("q since its border", "k since its border"),
        forward=InForward(
            kernel=(Edit("the decay of a row", _ROW_GROWS, "decayed[0] = 1.0"),),
            mirror=(Edit("the decay of rows", "since = exp(_s)", "since = exp(0 * _s)"),),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "keys-carried-one-token-short",
        "keys are carried to the token before the border: the last gate before it is left out",
        "cuLA #38 (the row to which keys are carried)",
        stage=("k to its border", "k e^(gamma_C - gamma)"),
        forward=InForward(
            kernel=(
                _carrying(
                    "total[0] = total[0] + G_s[_j, _d]",
                    "total[0] = total[0] + T.if_then_else(_j < border - 1, G_s[_j, _d], 0.0)",
                ),
            ),
            mirror=(
                Edit(
                    "the decays of keys",
                    "g[..., :0:-1, :]",
                    "np.concatenate([0 * g[..., -1:, :], g[..., -2:0:-1, :]], axis=-2)",
                    function="_until_end",
                ),
            ),
        ),
        tokens=16,
    ),
    Mistake(
        "keys-carried-from-one-token-early",
        "keys are carried from the token before them: each takes its own gate",
        "cuLA #38 (the row to which keys are carried)",
        stage=("k to its border", "k e^(gamma_C - gamma)"),
        forward=InForward(
            kernel=(
                _carrying(
                    f"{_CARRIED}\ntotal[0] = total[0] + G_s[_j, _d]",
                    f"total[0] = total[0] + G_s[_j, _d]\n{_CARRIED}",
                ),
            ),
            mirror=(
                Edit(
                    "the decays of keys",
                    "return sums",
                    "return np.cumsum(g[..., ::-1, :], axis=-2)[..., ::-1, :]",
                    function="_until_end",
                ),
            ),
        ),
    ),
    Mistake(
        "keys-carried-past-their-border",
        "keys are carried to the token after the border, whose gate the rows have taken too",
        "attention-gym #337 (the row of the anchor)",
        stage="k to its border",
        forward=InForward(
            kernel=(
                Edit(
                    "the keys at a border",
                    _KEYS_TO_BORDER,
                    _KEYS_TO_BORDER.replace("_b,", "_b + 1,"),
                ),
            ),
            mirror=(
                Edit(
                    "the keys at a border",
                    "exp(_until_end(gc[:, :, earlier]))",
                    "exp(_until_end(gc[:, :, : sub.start + 1])[..., :-1, :])",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "keys-not-carried-to-their-border",
        "the products across a border take the keys as they were written",
        "article 4.5 (3)",
        stage=("k to its border", "L", "A_qk"),
        forward=InForward(
            kernel=(
                Edit("the keys of M", M_ACROSS, M_ACROSS.replace("Kc_s", "K_s")),
                Edit("the keys of A_qk", A_ACROSS, A_ACROSS.replace("Kc_s", "K_s")),
            ),
            mirror=(
                Edit(
                    "the keys at a border",
                    "Kc[:, :, earlier] * exp(_until_end(_g))",
                    "Kc[:, :, earlier] * exp(0 * _until_end(_g))",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=18,
    ),
    Mistake(
        "state-takes-what-was-carried-before",
        "the keys are not carried to the end of the chunk: the state takes W, which lay there",
        "flash-linear-attention-npu #281 (a buffer that holds something else)",
        stage="k e^(gamma_C - gamma)",
        forward=InForward(
            kernel=(Edit("the last use of Kc_s", _KEYS_TO_END, FORWARD_WRITE_GEMM),),
            mirror=(Edit("the last use of Kc_s", "Kd = op(_k)", "Kd = W"),),
        ),
    ),
    Mistake(
        "blocks-below-the-diagonal-left-out",
        "tokens of different sub-chunks of one chunk do not meet",
        "FLA #673 (blocks beside the diagonal)",
        stage=("L", "A_qk"),
        forward=InForward(
            kernel=(
                Edit("L across a border", "Lt_s[_j, _i] = beta_s[_j] * _m", "Lt_s[_j, _i] = 0.0"),
                Edit(
                    "A_qk across a border",
                    "A_s[_i, _j] = on.round(A_f[_r, _j])",
                    "A_s[_i, _j] = on.round(0.0)",
                ),
            ),
            mirror=(Edit("the products across a border", PRODUCT, "product[:, :, sub, earlier] = 0"),),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "blocks-above-the-diagonal-too",
        "the block of A_qk below the diagonal is stored above it as well: rows see the sub-chunk after theirs",
        "FLA #1240 (a past output depends on the future)",
        stage="A_qk",
        forward=InForward(
            kernel=(
                Edit(
                    "A_qk across a border",
                    "A_s[_i, _j] = on.round(A_f[_r, _j])",
                    "A_s[_i, _j] = on.round(A_f[_r, _j])\nA_s[_j, _i] = on.round(A_f[_r, _j])",
                ),
            ),
            mirror=(
                Edit(
                    "A_qk",
                    "A_qk = np.where(j <= i, A_qk, _z)",
                    "same = i // SUB_CHUNK == j // SUB_CHUNK\n"
                    "A_qk = np.where(j <= i, A_qk, np.where(same, _z, A_qk.swapaxes(-1, -2)))",
                ),
            ),
        ),
        law="time.the_future_does_not_change_the_past",
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "sub-chunks-solved-before-they-are-reduced",
        "the rows of a sub-chunk are solved among each other before they lose what the earlier sub-chunks hold",
        "docs/forward.md (the order of the substitution)",
        stage="W",
        forward=InForward(
            kernel=(
                Edit(
                    "the order of the two loops",
                    f"{FROM_EARLIER.replace('_body', '_first')}\n{AMONG.replace('_j', '_i')}",
                    f"{AMONG.replace('_j', '_i')}\n{FROM_EARLIER.replace('_body', '_first')}",
                ),
            ),
            mirror=(
                Edit(
                    "the substitution",
                    "for s in range(length - 1):\n    X[..., s + 1:, :] -= _x",
                    "for sub in chunks(length, SUB_CHUNK):\n"
                    "    for s in range(sub.start, sub.stop - 1):\n"
                    "        X[..., s + 1 : sub.stop, :] -= L[..., s + 1 : sub.stop, s, None] * X[..., s, None, :]\n"
                    "    for s in range(sub.start):\n"
                    "        X[..., sub, :] -= L[..., sub, s, None] * X[..., s, None, :]",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=18,
    ),
    Mistake(
        "substitution-ends-at-a-border",
        "each sub-chunk is solved by itself: no row loses what earlier sub-chunks hold",
        "FLA #673 (blocks beside the diagonal)",
        stage="W",
        forward=InForward(
            kernel=(Edit("what earlier sub-chunks hold", SUBSTITUTED, "x[_a] = x[_a]", FROM_EARLIER),),
            mirror=(
                Edit(
                    "the substitution",
                    "X[..., s + 1:, :] -= L[..., s + 1:, s, None] * _x",
                    "own = slice(s + 1, s - s % SUB_CHUNK + SUB_CHUNK)\nX[..., own, :] -= L[..., own, s, None] * _x",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "substitution-with-the-first-sub-chunk",
        "across a border the substitution takes L from the rows of the first sub-chunk",
        "FLA #673 (the rows of a block)",
        stage="W",
        forward=InForward(
            kernel=(
                Edit(
                    "what earlier sub-chunks hold",
                    "x[_n * R + _r] = _x - Lt_s[_j, _n * R + _r] * x[_j]",
                    "x[_n * R + _r] = _x - Lt_s[_j, _r] * x[_j]",
                    FROM_EARLIER,
                ),
            ),
            mirror=(
                Edit(
                    "the substitution",
                    "for s in range(length - 1):\n    _body",
                    "row = np.arange(length)\n"
                    "for s in range(length - 1):\n"
                    "    taken = np.where(row < s - s % SUB_CHUNK + SUB_CHUNK, row, row % SUB_CHUNK)[s + 1 :]\n"
                    "    X[..., s + 1 :, :] -= L[..., taken, s, None] * X[..., s, None, :]",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=17,
    ),
    Mistake(
        "substitution-with-the-wrong-rows",
        "across a border the substitution takes the rows of the earlier sub-chunks from the last to the first",
        "FLA #673 (the rows of a block)",
        stage="W",
        forward=InForward(
            kernel=(
                Edit(
                    "what earlier sub-chunks hold",
                    "x[_n * R + _r] = _x - _l * x[_j]",
                    "x[_n * R + _r] = _x - _l * x[_n * R - 1 - _j]",
                    FROM_EARLIER,
                ),
            ),
            mirror=(
                Edit(
                    "the substitution",
                    "for s in range(length - 1):\n    _body",
                    "for sub in chunks(length, SUB_CHUNK):\n"
                    "    for s in range(sub.start):\n"
                    "        X[..., sub, :] -= L[..., sub, s, None] * X[..., sub.start - 1 - s, None, :]\n"
                    "    for s in range(sub.start, sub.stop - 1):\n"
                    "        X[..., s + 1 : sub.stop, :] -= L[..., s + 1 : sub.stop, s, None] * X[..., s, None, :]",
                ),
            ),
        ),
        tile=BORDERED,
        tokens=17,
    ),
)
