"""Calls of the operation: packed sequences, grouped heads, raw gates and logits, rows to be normalised."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from kda.case import Kind
from kda.formats import Format
from kda.operation_case import OperationCase
from kda.operation_support import FormChoice, OperationSupport
from strategies._pick import pick
from strategies.betas import betas
from strategies.gates import gates
from strategies.states import states
from strategies.vectors import keys, queries, values
from strategies.wild import wild_gates

__all__ = ["lengths", "operations", "raw_gates"]

# A sequence of one token is the simplest; an empty one is a border of its own. The others are beside the borders of a
# sub-chunk and of a chunk, or beyond one, two, three, four and five chunks of 64, as long as support goes.
_LENGTHS = (1, 1, 0, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 80, 128, 130, 200, 257, 321)
_SHORT = (1, 0, 2, 3)
_TAILS = (0, 0, 0, 1, 5)
_SCALES = (None, None, 1.0, 2.0, 0.5, 0.1, -1.0, -0.3, 2.0**-10)
_LOWER_BOUNDS = (-5.0, -1.0, -20.0)
_BOOLS = (False, True)
_FREE: dict[str, tuple[Any, ...]] = {
    "packed": _BOOLS,
    "state": _BOOLS,
    "final": (True, True, False),
    "v_first": _BOOLS,
    "normalise": _BOOLS,
    "gate": ("log", "log", "softplus", "bounded"),
    "rate": ("value", "logits", "doubled"),
    "narrow_g": _BOOLS,
    "narrow_beta": _BOOLS,
}

# Ordinary ones are of a model: a Gaussian of unit variance or a few. softplus(-20) is 2e-9 and softplus(100) is 100.
_RAW_GATES = (
    Kind("zeros"),
    *(Kind("gauss", (s,)) for s in (1.0, 1.0, 3.0)),
    Kind("small_int", (8,)),
    Kind("small_int", (100,)),
    Kind("small_int", (100,)),
    *(Kind("constant", (x,)) for x in (-1.0, -20.0, -100.0, 20.0, 100.0)),
)
# Open and shut side by side: -1000 is zero in every format.
_SHUT = (Kind("alternating", (-1000.0,)), Kind("spike", (0, -1000.0)), Kind("log", (-1000.0,)))
_A_LOGS = (Kind("model"), Kind("model"), *(Kind("constant", (x,)) for x in (0.0, -4.0, 3.0)))
_BIASES = (Kind("none"), Kind("model"), Kind("model"), *(Kind("constant", (x,)) for x in (1.0, -5.0)))
# A sigmoid is 0 or 1 in every format from about 90 on.
_LOGITS = (
    Kind("zeros"),
    *(Kind("gauss", (s,)) for s in (1.0, 1.0, 4.0)),
    Kind("small_int", (8,)),
    Kind("small_int", (100,)),
    *(Kind("constant", (x,)) for x in (2.0, -2.0, 100.0, -100.0)),
)
# Unit rows again and again: only they are nearly equal beside what makes a triangular solve hard.
_ROWS = (
    Kind("unit"),
    Kind("unit"),
    *(Kind("times", (s,)) for s in (8.0, 0.001, 1e-5)),
    Kind("wide", (4,)),
    Kind("wide", (10,)),
    Kind("holes", (0.3,)),
)
_PLAIN_ROWS = (Kind("unit"), Kind("unit"), Kind("unit"), Kind("holes", (0.3,)))
_STATES = ("zeros", "ones", "small_int", "gauss", "large")
#: Tokens over which the depth of a gate is drawn, and the most value heads.
_CHUNK, _MOST_HEADS = 64, 8
_SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def lengths(
    draw: st.DrawFn, max_tokens: int = 140, max_sequences: int = 5, *, min_sequences: int = 1, empty: bool = False
) -> tuple[int, ...]:
    """The lengths of packed sequences: empty, of one token, beside the borders of chunks; now and then many short ones.

    empty: one of them is. Shrinks to as few as may be, of one token each.
    """
    usual = tuple(n for n in _LENGTHS if n <= max_tokens)
    least = draw(pick((1, 1, 1, 1, 1, 1, 7, 30)))
    one, most = (usual, max_sequences) if least == 1 else (_SHORT, least + 10)
    least = max(least, min_sequences)
    drawn = draw(st.lists(pick(one), min_size=least, max_size=max(most, least)))
    if empty and 0 not in drawn:
        drawn.insert(draw(st.integers(0, len(drawn))), 0)
    return tuple(drawn)


_kept_lengths = lru_cache(maxsize=64)(lengths)
_kept_gates = lru_cache(maxsize=64)(gates)
_kept_wild_gates = lru_cache(maxsize=64)(wild_gates)
_kept_keys = lru_cache(maxsize=256)(keys)
_values, _queries, _states, _betas = values(), queries(), states(names=_STATES), betas(2.0)


def raw_gates() -> st.SearchStrategy[Kind]:
    """A kind of raw gate, before softplus or sigmoid: zero, as models have it, or so large that either saturates."""
    return pick(_RAW_GATES)


def operations(
    support: OperationSupport,
    dtype: Format | None = None,
    *,
    few: int | None = None,
    min_sequences: int = 1,
    min_tokens: int = 1,
    min_heads: int = 1,
    min_groups: int = 1,
    empty: bool = False,
    tail: bool = False,
    **wanted: Collection[Any],
) -> st.SearchStrategy[OperationCase]:
    """A call that `support` can run; structure only, the arrays come from `OperationCase.operation`.

    dtype: this format instead of any that is supported. wanted: the values that fields of its form may have, by the
    names of `FormChoice`; few: only so many entries of the palette. min_tokens: of the longest sequence. min_heads,
    min_groups: of q and k, and of value heads for each. empty: one sequence has no tokens; tail: some tokens belong to
    no sequence (both for packed forms). ValueError where the palette has no such form.

    Shrinks to one token, one head, no decay, beta one, one-hot q and k, v ones, no state, seed 0.
    """
    forms = support.forms_with(wanted)
    if forms is not None and not forms:
        raise ValueError(f"no form of the palette has {wanted}; expected at least one")
    if forms is None:
        channels = pick(support.channels)
        every = {name: tuple(v for v in values if v in wanted.get(name, values)) for name, values in _FREE.items()}
        free = {name: pick(values) for name, values in every.items()}
        choices = st.builds(FormChoice, DK=channels, DV=channels, **free)
    else:
        choices = pick(forms[:few])
    dtypes = pick(support.dtypes if dtype is None else (dtype,))
    return _operations(support, dtypes, choices, min_sequences, min_tokens, min_heads, min_groups, empty, tail)


@st.composite
def _operations(
    draw: st.DrawFn,
    support: OperationSupport,
    dtypes: st.SearchStrategy[Format],
    choices: st.SearchStrategy[FormChoice],
    min_sequences: int,
    min_tokens: int,
    min_heads: int,
    min_groups: int,
    empty: bool,
    tail: bool,
) -> OperationCase:
    dtype = draw(dtypes)
    form = draw(choices)
    drawn = draw(_kept_lengths(support.max_tokens, support.max_sequences, min_sequences=min_sequences, empty=empty))
    longest = max(*drawn, min_tokens, 1)
    sizes: dict[str, Any] = {"B": len(drawn), "N": longest}
    if form.packed:
        if max(drawn) < min_tokens:
            drawn = (*drawn, min_tokens)
        behind = max(draw(pick(_TAILS)), 1 if tail or not any(drawn) else 0)
        sizes = {"lengths": drawn, "tail": behind}
    elif len(drawn) > support.max_sequences:  # many are for packed calls, where they are short
        sizes["B"] = support.max_sequences
    groups = draw(pick(tuple(n for n in support.groups if n >= min_groups)))
    H = draw(st.integers(min_heads, max(min_heads, min(support.max_heads, _MOST_HEADS // groups))))
    # The seed comes before the kinds: their draws vary in number, and a seed that moves with them is lost in shrinking.
    seed = draw(_SEEDS)
    return OperationCase(
        **sizes,
        H=H,
        groups=groups,
        **form.settled(dtype),
        scale=draw(pick(_SCALES)),
        **_draw_gate(draw, form, longest),
        beta=draw(_betas if form.rate == "value" else pick(_LOGITS)),
        q=draw(_queries),
        k=draw(_kept_keys(longest)),
        rows=draw(pick(_ROWS if form.normalise else _PLAIN_ROWS)),
        v=draw(_values),
        state=draw(_states) if form.state else Kind("none"),
        seed=seed,
    )


def _draw_gate(draw: st.DrawFn, form: FormChoice, tokens: int) -> dict[str, Any]:
    """The fields of the gate: a log gate of a model or of any depth, or what becomes one."""
    if form.gate == "log":
        how = draw(pick(("usual", "usual", "usual", "wild", "wild", "shut")))
        if how == "shut":
            return {"g": draw(pick(_SHUT))}
        return {"g": draw((_kept_wild_gates if how == "wild" else _kept_gates)(_CHUNK, tokens=tokens))}
    bounded = form.gate == "bounded"
    return {
        "g": draw(raw_gates()),
        "A_log": draw(pick((Kind("none"), *_A_LOGS) if bounded else _A_LOGS)),
        "dt_bias": draw(pick(_BIASES)),
        "lower_bound": draw(pick(_LOWER_BOUNDS)) if bounded else None,
    }
