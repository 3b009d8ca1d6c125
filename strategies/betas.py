"""Write strengths: the borders 0 and 1, their neighbourhoods, and up to 2 where an implementation allows it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kda.case import Kind
from strategies._pick import pick, pick_name

__all__ = ["betas"]

# `one` and its neighbourhood often: there the triangular solve is hardest. `zero` seldom: it writes nothing.
_WEIGHTS = {
    "one": 4,
    "constant": 2,
    "alternating": 2,
    "binary": 2,
    "uniform": 4,
    "near1": 2,
    "near0": 1,
    "zero": 1,
}


@st.composite
def betas(draw: st.DrawFn, max_beta: float = 1.0, *, names: Sequence[str] | None = None) -> Kind:
    """A beta kind with every value in [0, max_beta]; max_beta is 1 to 2. names: only these kinds."""
    name = draw(pick_name(_WEIGHTS, names))
    if name == "constant":
        return Kind(name, (draw(pick((0.5, 0.9, max_beta))),))
    if name == "alternating":
        return Kind(name, (draw(pick((1.0, 0.0, 0.5))), draw(pick((0.0, 1.0, max_beta)))))
    if name == "binary":
        return Kind(name, (draw(pick((0.5, 0.9, 0.1))),))
    if name == "uniform":
        return Kind(name, draw(pick(((0.1, 0.9), (0.0, 1.0), (0.9, 1.0), (0.5, max_beta)))))
    return Kind(name)
