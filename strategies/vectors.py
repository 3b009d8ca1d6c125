"""Queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kda.case import Kind
from strategies._pick import pick, pick_kind, pick_name

__all__ = ["alike_keys", "keys", "queries", "reading_queries", "values"]

# Keys that resemble each other often: independent keys leave the triangular solve nearly diagonal.
_KEYS = {
    "onehot": 3,
    "equal": 3,
    "sign": 1,
    "orthogonal": 2,
    "parallel": 3,
    "onehot_random": 1,
    "positive": 1,
    "gauss": 5,
    "with_zero_row": 1,
    "zeros": 1,
}
_QUERIES = {
    "onehot": 3,
    "equal": 3,
    "sign": 1,
    "orthogonal": 1,
    "parallel": 2,
    "onehot_random": 1,
    "positive": 2,
    "gauss": 6,
    "zeros": 1,
}
_VALUES = {"ones": 3, "onehot": 2, "small_int": 4, "gauss": 6, "wide": 3, "zeros": 1}
_NEAR = (0.1, 0.01, 0.001, 1.0)
_ALIKE = (Kind("equal"), Kind("equal"), Kind("sign"), Kind("parallel", (0.01,)), Kind("parallel", (0.001,)))
# `equal` is the direction that alike keys share, and reads all they wrote.
_READING = (Kind("onehot"), Kind("equal"), Kind("equal"), Kind("parallel", (0.1,)), Kind("gauss"))


@st.composite
def keys(draw: st.DrawFn, tokens: int = 1, *, names: Sequence[str] | None = None) -> Kind:
    """A kind of keys for N = tokens, about every third with keys that are equal or nearly so. names: only these."""
    name = draw(pick_name(_KEYS, names))
    if name == "parallel":
        return Kind(name, (draw(pick(_NEAR)),))
    if name == "with_zero_row":
        return Kind(name, (draw(st.integers(0, tokens - 1)),))
    return Kind(name)


@st.composite
def queries(draw: st.DrawFn, *, names: Sequence[str] | None = None) -> Kind:
    """A kind of queries. names: only these."""
    name = draw(pick_name(_QUERIES, names))
    return Kind(name, (draw(pick(_NEAR)),) if name == "parallel" else ())


@st.composite
def values(draw: st.DrawFn, *, names: Sequence[str] | None = None) -> Kind:
    """A kind of values. names: only these."""
    name = draw(pick_name(_VALUES, names))
    if name == "small_int":
        return Kind(name, (draw(pick((1, 2, 4, 8))),))
    if name == "wide":
        return Kind(name, (draw(pick((1, 4, 8))),))
    return Kind(name)


def alike_keys(*, names: Sequence[str] | None = None) -> st.SearchStrategy[Kind] | None:
    """A kind of keys that all lie, up to their sign, along nearly one direction; None where `names` leaves none."""
    return pick_kind(_ALIKE, names)


def reading_queries(*, names: Sequence[str] | None = None) -> st.SearchStrategy[Kind] | None:
    """A kind of queries that mostly read along the direction of `alike_keys`; None where `names` leaves none."""
    return pick_kind(_READING, names)
