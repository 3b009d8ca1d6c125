"""Write strengths: the borders 0 and 1, their neighbourhoods, and up to 2 where an implementation allows it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hypothesis import strategies as st

from kda.case import Kind
from strategies._pick import pick, pick_kind, weighted_names

__all__ = ["betas", "strong_betas"]

# `one` and its neighbourhood often: there the triangular solve is hardest. `zero` seldom: it writes nothing.
_WEIGHTS = {
    "one": 4,
    "alternating": 4,
    "uniform": 4,
    "constant": 2,
    "binary": 2,
    "near1": 2,
    "near0": 1,
    "zero": 1,
}


@lru_cache(maxsize=64)
def _kinds(max_beta: float, names: tuple[str, ...] | None) -> tuple[Kind, ...]:
    params: dict[str, list[tuple[float, ...]]] = {
        "constant": [(0.5,), (0.9,), (max_beta,)],
        "alternating": [(1.0, 0.5), (0.0, 1.0), (1.0, 0.0), (0.5, max_beta)],
        "binary": [(0.5,), (0.9,), (0.1,)],
        "uniform": [(0.1, 0.9), (0.0, 1.0), (0.9, 1.0), (0.5, max_beta)],
    }
    # Each name as often as its weight says, its parameters in turn.
    kinds: list[Kind] = []
    for name in weighted_names(_WEIGHTS, names):
        choices = params.get(name, [()])
        kinds.append(Kind(name, choices[sum(k.name == name for k in kinds) % len(choices)]))
    return tuple(kinds)


def betas(max_beta: float = 1.0, *, names: Sequence[str] | None = None) -> st.SearchStrategy[Kind]:
    """A beta kind with every value in [0, max_beta]; max_beta is 1 to 2. names: only these kinds.

    One draw for the kind with its parameters: where betas must differ from token to token, a case then shrinks to the
    plainest kind that shows it, not to the one with the fewest parameters.
    """
    return pick(_kinds(max_beta, None if names is None else tuple(names)))


def strong_betas(max_beta: float = 1.0, *, names: Sequence[str] | None = None) -> st.SearchStrategy[Kind] | None:
    """A beta kind whose every write replaces nearly all its key held, or more; None where `names` leaves none."""
    one, near1, below = Kind("one"), Kind("near1"), Kind("uniform", (0.9, 1.0))
    above = (Kind("constant", (max_beta,)), Kind("uniform", (1.0, max_beta))) if max_beta > 1 else ()
    return pick_kind((one, one, near1, below, *above), names)
