"""Hunting for the worst case of a law: a search that targets the ratios error / budget, then climbs from its worst."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import hypothesis

from kda.case import Case
from kda.problem import InputError
from kda.suite.climb import climb
from kda.suite.laws import Law, Subject
from kda.suite.neighbours import Neighbourhood
from kda.suite.record import Record
from kda.suite.watch import Watch

__all__ = ["hunt"]


def hunt(
    law: Law,
    subject: Subject,
    record: Record,
    search: Callable[[Law], None],
    most: int,
    watch: Watch | None = None,
    seed: str | None = None,
) -> None:
    """Let `search` find large ratios of `law`, then climb from the worst of `record`, over `most` cases in all.

    search: runs a Hypothesis test on the law it is given, and raises what fails. seed: of the climbs; None for another
    every time. A case that fails on the way up is made smaller, and what it raised is raised.
    """
    __tracebackhide__ = True
    drawn: list[Case] = []

    def target(case: Case, ratios: dict[str, float]) -> None:
        drawn.append(case)
        for comparison, ratio in ratios.items():
            hypothesis.target(ratio, label=comparison)

    search(law.heard_by(target))
    if not record.worst:
        return
    record.before = record.worst_ratio
    try:
        _climb(law, subject, record, drawn, most, watch, Random(seed))
    finally:
        record.after = record.worst_ratio


def _climb(
    law: Law, subject: Subject, record: Record, drawn: list[Case], most: int, watch: Watch | None, rng: Random
) -> None:
    __tracebackhide__ = True
    heard: list[dict[str, float]] = []
    listening = law.heard_by(lambda case, ratios: heard.append(ratios))

    def ratio(case: Case) -> float | None:
        __tracebackhide__ = True
        if law.excludes(subject, case) is not None:
            return None
        record.climbed += 1
        try:
            listening.holds_for(subject, case, record, watch)
        except InputError:
            return None
        return max(heard.pop().values(), default=None)

    neighbours = Neighbourhood(drawn)
    starts = [Case.parse(line) for _, line, _ in record.worst]
    for i, start in enumerate(starts):
        share = most // (len(starts) - i)
        if share:
            most -= climb(start, ratio, neighbours, share, rng).examined
