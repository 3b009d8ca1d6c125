"""Cases as the properties draw them, many and at fixed seeds."""

from __future__ import annotations

import hypothesis

from kda.case import Case
from kda.suite.laws import Subject
from strategies import cases

#: Examples of one Hypothesis run. Short runs with seeds of their own are spread wider than one long run, which comes
#: back to what it has already seen.
BATCH = 250


def drawn(subject: Subject, number: int, seed: int) -> list[Case]:
    """`number` cases that `subject` supports, drawn from `seed`."""
    found: list[Case] = []
    for batch in range(-(-number // BATCH)):

        @hypothesis.seed(seed + batch)
        @hypothesis.settings(
            max_examples=min(BATCH, number - batch * BATCH),
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=cases(subject.support, subject.dtype))
        def draw(case: Case) -> None:
            found.append(case)

        draw()
    return found
