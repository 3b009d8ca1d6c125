"""Hunting a planted mistake with a law: how many cases until it is caught, and what is left after shrinking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given

from kda.case import Case
from kda.suite.laws import Law, Subject
from kda.suite.record import Record

__all__ = ["Hunt", "hunt"]


@dataclass(frozen=True)
class Hunt:
    """The outcome: cases up to and including the first failure (None: never caught), and the shrunk case."""

    cases: int | None
    case: Case | None


def hunt(law: Law, subject: Subject, seed: int, most: int = 200, strategy: Any = None) -> Hunt:
    """Search `most` cases of `law` on `subject` for a failure, from `seed`, and shrink it.

    strategy: of the cases; the law's own where None.
    """
    failures: list[tuple[int, Case]] = []
    examined = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=most,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @given(case=law.cases(subject) if strategy is None else strategy)
    def search(case: Case) -> None:
        nonlocal examined
        examined += 1
        try:
            law.holds_for(subject, case, Record(law.name, subject.id))
        except AssertionError:
            failures.append((examined, case))
            raise

    try:
        search()
    except AssertionError:
        return Hunt(failures[0][0], failures[-1][1])  # Hypothesis ends by replaying the smallest
    return Hunt(None, None)
