"""Initial states."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kda.case import Kind
from strategies._pick import pick, pick_name

__all__ = ["states"]

_WEIGHTS = {"none": 6, "zeros": 1, "ones": 1, "small_int": 2, "gauss": 4, "large": 1}


@st.composite
def states(draw: st.DrawFn, *, names: Sequence[str] | None = None) -> Kind:
    """A kind of initial state, `none` about every second time. names: only these."""
    name = draw(pick_name(_WEIGHTS, names))
    if name == "small_int":
        return Kind(name, (draw(pick((1, 2, 4, 8))),))
    if name == "large":
        return Kind(name, (draw(pick((64.0, 1024.0))),))
    return Kind(name)
