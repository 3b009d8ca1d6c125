"""Climbing from a case to worse ones: a local search that takes every neighbour with a larger ratio error / budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from kda.case import Case

__all__ = ["Climb", "climb"]


@dataclass(frozen=True)
class Climb:
    """Where a climb ended: the case, its ratio (0 where none was to be had), and how many cases were examined."""

    case: Case
    ratio: float
    examined: int


def climb(
    case: Case,
    ratio: Callable[[Case], float | None],
    neighbours: Callable[[Case, Random], Iterable[Case]],
    most: int,
    rng: Random,
) -> Climb:
    """Climb from `case`, at most `most` cases long; deterministic where `ratio` is, for an `rng` of the same seed.

    ratio: of a case; None where it says nothing, and such a case is not moved to. neighbours: of a case, in any order;
    those met before are not examined again. Ends early where all neighbours of a case were met and none is worse.
    """
    met: set[Case] = {case}
    best = ratio(case) or 0.0
    climbing = True
    while climbing:
        climbing = False
        for candidate in neighbours(case, rng):
            if len(met) >= most:
                break
            if candidate in met:
                continue
            met.add(candidate)
            climbing = True  # another round may bring other neighbours
            found = ratio(candidate) or 0.0
            if found > best:
                case, best = candidate, found
                break
        climbing &= len(met) < most
    return Climb(case, best, len(met))
