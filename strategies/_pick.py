"""Choosing from short weighted lists, which shrink towards their first entry."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from kda.case import Kind

__all__ = ["pick", "pick_kind", "pick_name"]

T = TypeVar("T", bound=Hashable)


@lru_cache(maxsize=4096)
def _sampled(values: tuple[T, ...]) -> st.SearchStrategy[T]:
    return st.sampled_from(values)


def pick(values: tuple[T, ...]) -> st.SearchStrategy[T]:
    """One of `values`; the first is the simplest. A value that is repeated is drawn more often."""
    # One strategy object per list: Hypothesis validates each object anew, which costs more than the draw.
    return _sampled(values)


@lru_cache(maxsize=1024)
def _weighted(weights: tuple[tuple[str, int], ...], names: tuple[str, ...] | None) -> tuple[str, ...]:
    known = dict(weights)
    for name in names or ():
        if name not in known:
            raise ValueError(f"no kind is called {name!r}; expected some of {', '.join(known)}")
    chosen = tuple(name for name, weight in weights if names is None or name in names for _ in range(weight))
    if not chosen:
        raise ValueError(f"no kind is left to draw; expected some of {', '.join(known)}")
    return chosen


def weighted_names(weights: Mapping[str, int], names: Iterable[str] | None) -> tuple[str, ...]:
    """The kinds in `weights`, each as often as its weight says, simplest first; only those in `names` if given."""
    return _weighted(tuple(weights.items()), None if names is None else tuple(names))


def pick_name(weights: Mapping[str, int], names: Iterable[str] | None) -> st.SearchStrategy[str]:
    """One of the kinds in `weights`, as often as its weight says, simplest first; only those in `names` if given."""
    return pick(weighted_names(weights, names))


def pick_kind(kinds: tuple[Kind, ...], names: Iterable[str] | None) -> st.SearchStrategy[Kind] | None:
    """One of `kinds`, the first the simplest; only those in `names` if given, and None where that leaves none."""
    allowed = None if names is None else tuple(names)
    left = tuple(kind for kind in kinds if allowed is None or kind.name in allowed)
    return pick(left) if left else None
