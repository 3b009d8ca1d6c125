"""What a search ends with: the case that failed last, which is the smallest, and whether that failure repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis.errors import Flaky

from kda.case import Case
from kda.suite import watch as watching
from kda.suite.laws import Law, Subject
from kda.suite.watch import Watch

if TYPE_CHECKING:
    from kda.diagnosis.race import Repeats

__all__ = ["Finding", "find"]


@dataclass(frozen=True)
class Finding:
    """A case that a law does not hold for, what it raised there, and whether it does so every time, with the same bits.

    failed, times: how often it failed in how many runs, where it was repeated.
    """

    case: Case
    error: Exception
    steady: bool = True
    failed: int = 1
    times: int = 1


class _Race(BaseException):
    """Out of a search that cannot shrink what it found; no `Exception`, which the search would try again."""

    def __init__(self, found: Finding) -> None:
        super().__init__()
        self.found = found


def find(law: Law, subject: Subject, search: Callable[[Law], None], watch: Watch | None = None) -> Finding | None:
    """Let `search` look for a case that fails; None where it ends without one.

    The first failure of a law that is `diagnosed` is repeated before anything is shrunk: one that does not fail every
    time, with the same bits, ends the search.
    """
    found: list[tuple[Case, Exception]] = []

    def hear(case: Case, error: Exception) -> None:
        found.append((case, error))
        if law.diagnosed and len(found) == 1 and not watching.cuda_is_broken():
            repeats = _repeats(law, subject, case, watch)
            if not (repeats.steady and repeats.failed):
                raise _Race(Finding(case, error, False, 1 + repeats.failed, 1 + repeats.times))

    try:
        search(law.failing_to(hear))
    except _Race as race:
        return race.found
    except Exception as error:
        if not found:
            raise
        return Finding(*found[-1], steady=not isinstance(error, Flaky))
    return None


def _repeats(law: Law, subject: Subject, case: Case, watch: Watch | None) -> Repeats:
    # Here and not above: Hypothesis also draws the numbers in the source of what is loaded, and no search may depend on
    # whether something failed before it.
    from kda.diagnosis.race import DECIDING, repeated

    return repeated(law, subject, case, DECIDING, watch)
