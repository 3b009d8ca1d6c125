"""What a call of `kda_forward` may ask for besides the recurrence: packed sequences, grouped heads, the prologue."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.rewrite import Edit
from kda.operation_support import FormChoice

__all__ = ["CALLS"]

OPERATION = "operation.matches_the_float64_operation"

_PACKED = FormChoice(16, 16, packed=True, state=True)
_SOFTPLUS, _BOUNDED = FormChoice(16, 16, gate="softplus"), FormChoice(16, 16, gate="bounded")
_NORM = FormChoice(16, 16, normalise=True)
_V_FIRST = FormChoice(16, 32, state=True, v_first=True)

_BIASED = "biased_g = _g + T.if_then_else(biased > 0, _b, 0.0)"


def _kernel(call: FormChoice, *edits: Edit) -> InForward:
    return InForward(kernel=edits, call=call)


def _prologue(call: FormChoice, function: str, what: str, find: str, put: str) -> InForward:
    return InForward(prologue=(Edit(what, find, put, function=function),), call=call)


CALLS = (
    Mistake(
        "sequences-start-one-token-late",
        "the first token of every packed sequence is skipped",
        "FLA #103 (offsets of packed sequences)",
        forward=_kernel(_PACKED, Edit("where a sequence starts", "Starts[s]", "Starts[s] + 1")),
        law=OPERATION,
    ),
    Mistake(
        "sequences-as-long-as-the-first",
        "every packed sequence is taken to be as long as the first one",
        "vLLM #50649 (sequences of one token among longer ones)",
        forward=_kernel(_PACKED, Edit("the length of a sequence", "Starts[s + 1] - start", "Starts[1] - Starts[0]")),
        law=OPERATION,
        members=2,
        tokens=2,
    ),
    Mistake(
        "tail-reads-the-next-sequence",
        "the rows behind a packed sequence are loaded as long as there are tokens: those of the next one",
        "cuLA #43, FLA #794 (what lies behind a tail)",
        forward=_kernel(
            _PACKED,
            Edit(
                "the mask of k",
                "T.if_then_else(_r < left, K[_t, hk, _d], _z)",
                "T.if_then_else(first + _r < N, K[_t, hk, _d], _z)",
            ),
            Edit(
                "the mask of v",
                "T.if_then_else(_r < left, V[_t, hv, _j], _z)",
                "T.if_then_else(first + _r < N, V[_t, hv, _j], _z)",
            ),
            Edit(
                "the mask of beta",
                "beta_s[_r] = T.if_then_else(_r < left, _b, 0.0)",
                "beta_s[_r] = T.if_then_else(first + _r < N, T.Cast(ACCUM, Beta[first + _r, hv]), 0.0)",
            ),
        ),
        law="operation.no_sequence_sees_another",
        members=2,
    ),
    Mistake(
        "tail-writes-behind-its-sequence",
        "the rows behind a packed sequence are stored as long as there are tokens, which may be those of no sequence",
        "FLA #673 (tail rows)",
        forward=_kernel(
            _PACKED, Edit("the mask of the store", "_r < left", "first + _r < N", "if _c:\n    O[_, _, _] = _")
        ),
        law="operation.tokens_of_no_sequence_are_neither_read_nor_written",
    ),
    Mistake(
        "empty-sequence-without-a-state",
        "a packed sequence without tokens writes no final state",
        "FLA #103 (empty sequences)",
        forward=_kernel(
            _PACKED,
            Edit("the store of the final state", "if form.final_state:\n    _store", "if tokens > 0:\n    _store"),
        ),
        law="operation.an_empty_sequence_hands_its_state_on",
        members=2,
    ),
    Mistake(
        "states-of-the-sequence-before",
        "the final state of a packed sequence is stored where that of the one before it belongs",
        "FlashInfer #3230, tpu-inference #2408 (the state of another slot)",
        forward=_kernel(
            _PACKED,
            Edit("the store of the final state", "S_N[s, hv, _d, dv0 + _j]", "S_N[T.max(s - 1, 0), hv, _d, dv0 + _j]"),
        ),
        law=OPERATION,
        members=2,
    ),
    Mistake(
        "head-by-remainder",
        "value head h reads q and k of head h mod H instead of h // (HV / H)",
        "FLA #624 (grouped heads)",
        forward=_kernel(FormChoice(), Edit("the head of q and k", "hv // (HV // H)", "hv % H")),
        law="operation.grouped_heads_are_repeated_heads",
        members=8,
    ),
    Mistake(
        "gate-of-the-query-head",
        "value heads of one group decay by the gate of one head",
        "FLA #624 (grouped heads: g and beta are of the value heads)",
        forward=_kernel(
            FormChoice(),
            Edit(
                "the gate that is read",
                "G[first + _r, hv, _d]",
                "G[first + _r, hk, _d]",
                "G_s[_r, _d] = T.if_then_else(_r < left, T.Cast(ACCUM, _g), 0.0)",
            ),
        ),
        law=OPERATION,
        members=8,
        tokens=2,
    ),
    Mistake(
        "beta-of-the-query-head",
        "value heads of one group write with the beta of one head",
        "FLA #624 (grouped heads: g and beta are of the value heads)",
        forward=_kernel(FormChoice(), Edit("the beta that is read", "Beta[first + _r, hv]", "Beta[first + _r, hk]")),
        law=OPERATION,
        members=8,
    ),
    Mistake(
        "A_log-negated",
        "the factor of the gate is e^-A_log",
        "docs/forward.md (a = e^A_log)",
        forward=_kernel(_SOFTPLUS, Edit("e^A_log", "exp(A_log[hv])", "exp(-A_log[hv])")),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "A_log-not-exponentiated",
        "the factor of the gate is A_log",
        "docs/forward.md (a = e^A_log)",
        forward=_kernel(_SOFTPLUS, Edit("e^A_log", "exp(A_log[hv])", "A_log[hv]")),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "bias-left-out",
        "the gate is softplus of g without dt_bias",
        "SGLang #38383 (an argument that is swallowed)",
        forward=_kernel(_SOFTPLUS, Edit("g + dt_bias", _BIASED, "biased_g = _g")),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "bias-of-head-0",
        "every head takes the dt_bias of head 0",
        "GLM thread on chunk_kda (a dt_bias of another length)",
        forward=_kernel(_SOFTPLUS, Edit("dt_bias", "dt_bias[hv, _d]", "dt_bias[0, _d]")),
        law=OPERATION,
        members=8,
        tokens=2,
    ),
    Mistake(
        "A_log-of-the-query-head",
        "value heads take the A_log of the head whose q they read, and not their own",
        "FLA #624 (grouped heads: A_log is of the value heads)",
        forward=_kernel(_SOFTPLUS, Edit("A_log", "exp(A_log[hv])", "exp(A_log[hk])")),
        law=OPERATION,
        members=8,
        tokens=2,
    ),
    Mistake(
        "padding-activated",
        "rows behind a sequence have g = 0 before the activation, not after it: they decay the state",
        "transformers #46190 (padding that touches the state)",
        forward=_kernel(
            _SOFTPLUS,
            Edit("the mask of the gate", "G_s[_r, _d] = T.if_then_else(_r < left, gate, 0.0)", "G_s[_r, _d] = gate"),
        ),
        law=OPERATION,
    ),
    Mistake(
        "softplus-overflows",
        "softplus is log(1 + e^x) as it is written: infinite where e^x is",
        "FLA #122 (an exponential that overflows)",
        forward=_prologue(
            _SOFTPLUS, "softplus", "softplus", "return T.max(x, 0.0) + z * series", "return T.log(1.0 + exp(x))"
        ),
        law=OPERATION,
        tokens=16,  # which of its large numbers are large enough is chance
    ),
    Mistake(
        "softplus-without-its-linear-part",
        "softplus is log(1 + e^-|x|): right for x < 0 alone",
        "FLA #122 (an exponential that overflows)",
        forward=_prologue(_SOFTPLUS, "softplus", "softplus", "T.max(x, 0.0) + z * series", "z * series"),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "softplus-series-cut-short",
        "the series of log(1 + u) ends after three of its terms",
        "kda/references/prologue.py (eight terms)",
        forward=_prologue(_SOFTPLUS, "softplus", "the series", "LOG1P_TERMS[1:]", "LOG1P_TERMS[6:]"),
        law=OPERATION,
        dtype="f32",
        tokens=2,
    ),
    Mistake(
        "factor-outside-the-sigmoid",
        "the bounded gate is lower_bound a sigmoid(x) instead of lower_bound sigmoid(a x)",
        "tokenspeed #847 (a safe gate of another form)",
        forward=_prologue(_BOUNDED, "log_gate", "the bounded gate", "sigmoid(a * x)", "a * sigmoid(x)"),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "clamp-for-sigmoid",
        "the bounded gate is -a softplus(x), clamped at lower_bound",
        "tokenspeed #847 (clamp of a softplus instead of a sigmoid)",
        forward=_prologue(
            _BOUNDED,
            "log_gate",
            "the bounded gate",
            "return lower_bound * _s",
            "return T.max(-a * softplus(x), lower_bound)",
        ),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "bound-negated",
        "the bounded gate grows the state: -lower_bound sigmoid(a x)",
        "docs/forward.md (lower_bound < 0)",
        forward=_prologue(_BOUNDED, "log_gate", "the bounded gate", "lower_bound * _s", "-lower_bound * _s"),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "sigmoid-of-minus-x",
        "the sigmoid is 1 / (1 + e^x): the bounded gate is deep where it should be shallow",
        "docs/forward.md (sigmoid)",
        forward=_prologue(_BOUNDED, "sigmoid", "the sigmoid", "exp(-x)", "exp(x)"),
        law=OPERATION,
        tokens=2,
    ),
    Mistake(
        "beta-never-activated",
        "logits of beta are taken for beta",
        "SGLang #38383",
        forward=_kernel(FormChoice(16, 16, rate="logits"), Edit("beta", "rate(form.beta, raw)", "raw")),
        law=OPERATION,
    ),
    Mistake(
        "beta-not-doubled",
        "with negative eigenvalues allowed beta is sigmoid(b), and not twice that",
        "SGLang #38383 (a flag that is swallowed)",
        forward=_prologue(FormChoice(16, 16, rate="doubled"), "rate", "beta", "2.0 * sigmoid(raw)", "sigmoid(raw)"),
        law=OPERATION,
    ),
    Mistake(
        "k-not-normalised",
        "q is divided by its norm, k is not",
        "FLA (use_qk_l2norm_in_kernel: both)",
        forward=_kernel(
            _NORM,
            Edit(
                "the norm of k",
                "normalise(on, K, first, left, hk, _s, _t, K_s)",
                "for r, d in on.parallel(C, DK):\n"
                "    K_s[r, d] = T.if_then_else(r < left, K[first + r, hk, d], T.Cast(on.operand, 0.0))",
            ),
        ),
        law=OPERATION,
    ),
    Mistake(
        "norm-without-epsilon",
        "nothing is added to |x|^2: a row of zeros is divided by zero",
        "docs/forward.md (sqrt(|x|^2 + 1e-6))",
        forward=_prologue(_NORM, "divide_by_norms", "the norm", "T.sqrt(total[0] + EPSILON)", "T.sqrt(total[0])"),
        law=OPERATION,
    ),
    Mistake(
        "epsilon-outside-the-root",
        "1e-6 is added to |x| instead of |x|^2",
        "docs/forward.md (sqrt(|x|^2 + 1e-6))",
        forward=_prologue(
            _NORM, "divide_by_norms", "the norm", "T.sqrt(total[0] + EPSILON)", "(T.sqrt(total[0]) + EPSILON)"
        ),
        law=OPERATION,
    ),
    Mistake(
        "mean-for-sum-in-the-norm",
        "rows are divided by the root of their mean square, as in an RMS norm",
        "FLA (use_qk_l2norm_in_kernel: the sum of squares)",
        forward=_prologue(
            _NORM, "divide_by_norms", "the norm", "T.sqrt(total[0] + EPSILON)", "T.sqrt(total[0] / DK + EPSILON)"
        ),
        law=OPERATION,
    ),
    Mistake(
        "norm-of-the-first-channels",
        "the norm is that of the first 16 channels",
        "FLA #1135 (channels past a bound)",
        forward=_prologue(
            FormChoice(32, 16, normalise=True),
            "divide_by_norms",
            "the sum over parts",
            "on.steps(parts)",
            "on.steps(1)",
        ),
        law=OPERATION,
    ),
    Mistake(
        "scale-twice",
        "o is multiplied by the scale, then once more",
        "FLA (its default scale)",
        forward=_kernel(FormChoice(), Edit("the scale", "scale * O_f[_r, _j]", "scale * scale * O_f[_r, _j]")),
        law=OPERATION,
    ),
    Mistake(
        "scale-ignored",
        "o is not multiplied by the scale",
        "FLA (its default scale)",
        forward=_kernel(FormChoice(), Edit("the scale", "scale * O_f[_r, _j]", "O_f[_r, _j]")),
        law=OPERATION,
    ),
    Mistake(
        "v-first-ignored-in-the-initial-state",
        "an initial state with values first is read as if keys came first",
        "vLLM #41292",
        forward=_kernel(
            _V_FIRST,
            Edit(
                "where the state is set",
                "S_0[s, hv, dv0 + _j, _d]",
                "S_0[s, hv, (_d * DV + dv0 + _j) // DK, (_d * DV + dv0 + _j) % DK]",
            ),
        ),
        law="operation.states_with_values_first_are_transposed",
    ),
    Mistake(
        "v-first-ignored-in-the-final-state",
        "a final state with values first is stored as if keys came first",
        "vLLM #41292",
        forward=_kernel(
            _V_FIRST,
            Edit(
                "the store of the final state",
                "S_N[s, hv, dv0 + _j, _d] = _s",
                "S_N[s, hv, (_d * DV + dv0 + _j) // DK, (_d * DV + dv0 + _j) % DK] = _s",
            ),
        ),
        law="operation.states_with_values_first_are_transposed",
    ),
)
