"""Hunting a mistake with a law: how many cases until it is caught, and what is left after shrinking."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given

from kda.case import Case
from kda.suite.finding import find
from kda.suite.laws import Law, Subject
from kda.suite.record import Record
from kda.suite.smaller import smaller_failure
from kda.suite.watch import Watch

__all__ = ["Hunt", "hunt"]


@dataclass(frozen=True)
class Hunt:
    """The outcome of one hunt.

    cases: up to and including the first failure, or None where none failed; examined: all, those of shrinking too;
    case: the shrunk one; said: the first line of its failure; seconds: to the first failure, or to the end.
    """

    cases: int | None
    examined: int
    case: Case | None
    said: str
    seconds: float


def hunt(
    law: Law,
    subject: Subject,
    seed: int,
    most: int = 200,
    strategy: Any = None,
    watch: Watch | None = None,
    shrink: bool = True,
) -> Hunt:
    """Search `most` cases of `law` on `subject` for a failure, from `seed`, and shrink it.

    strategy: of the cases; the law's own where None. watch: told of every case before it runs.
    """
    record = Record(law.name, subject.id)
    started = time.perf_counter()
    failed: list[tuple[int, float]] = []
    timed = law.failing_to(lambda case, error: failed.append((record.cases + 1, time.perf_counter() - started)))

    def searching(law: Law) -> None:
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=most,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            verbosity=hypothesis.Verbosity.quiet,
        )
        @given(case=law.cases(subject) if strategy is None else strategy)
        def search(case: Case) -> None:
            law.holds_for(subject, case, record, watch)

        search()

    found = find(timed, subject, searching, watch)
    if found is None:
        return Hunt(None, record.cases, None, "", time.perf_counter() - started)
    case, error = found.case, found.error
    if shrink and strategy is None and law.diagnosed:
        if found.steady:
            case, error = smaller_failure(law, subject, case, error, record, watch)
        else:
            from kda.diagnosis.race import smaller_race

            case = smaller_race(law, subject, case, watch)
    first, seconds = failed[0]
    said = next(iter(str(error).splitlines()), "")
    return Hunt(first, record.cases, case, f"{type(error).__name__}: {said}", seconds)
