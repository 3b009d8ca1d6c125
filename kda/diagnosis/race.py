"""Failures that do not repeat: the same inputs are run again and again, and what changes is named.

A search cannot shrink them, for a smaller case that holds may have held by luck. Here a case is run several times, and
counts as failing if any run fails, or if any two differ in a bit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from kda.case import Case
from kda.diagnosis.wrong import Run, recording
from kda.numerics.compare import unequal
from kda.problem import AXES, AXIS_WORDS, Outputs
from kda.suite.laws import Disagreement, Law, Subject
from kda.suite.record import Record
from kda.suite.smaller import smaller

if TYPE_CHECKING:
    from kda.suite.finding import Finding
    from kda.suite.watch import Watch

__all__ = ["DECIDING", "MEASURING", "Repeats", "measured", "repeated", "smaller_race"]

#: Runs that decide whether a failure repeats, and runs that its rate is measured over.
DECIDING, MEASURING = 10, 100
#: Runs of one candidate while a case is made smaller; how many candidates, and seconds of this process for all of them.
TRYING, CANDIDATES, LONGEST = 12, 400, 8.0


@dataclass(frozen=True)
class Repeats:
    """One case put under one law several times.

    failed: how many times it did not hold; error: what it raised first. tensor, differing: where the results of one
    and the same run were not always the same bits, the run in which they differ in most elements; "" and empty where
    they never do. ended: how many times a run of the implementation ended otherwise than the first time (it raised).
    """

    times: int
    failed: int
    error: Exception | None
    tensor: str
    differing: np.ndarray
    ended: int

    @property
    def steady(self) -> bool:
        """Whether all were alike: in every bit, unless what was raised is not about the outputs."""
        if self.failed == self.times and not isinstance(self.error, Disagreement):
            return True  # what should have been refused reads what it likes, and is wrong every time
        return self.failed in (0, self.times) and not self.tensor and not self.ended

    def lines(self) -> list[str]:
        """What a reader needs to know of it."""
        said = [
            f"race: the same inputs give different results, and the law fails in {self.failed} of {self.times} runs "
            "(lanes that do not wait for each other, or memory that is read before it is written)"
        ]
        if self.tensor:
            count, size = int(self.differing.sum()), self.differing.size
            said.append(f"{self.tensor} differs from run to run in {count} of {size} elements: {self._where()}")
        if self.ended:
            said.append(f"{self.ended} runs ended otherwise than the first one: they raised, or did not")
        return said

    def _where(self) -> str:
        places = np.argwhere(self.differing)
        axes = zip(AXES[self.tensor], places.T, strict=True)
        return ", ".join(f"{AXIS_WORDS[axis]} {ranges(along)}" for axis, along in axes)


def ranges(numbers: np.ndarray) -> str:
    """`0..3, 7`: the numbers that occur, in runs; at most four of them."""
    runs = []
    for _, run in groupby(enumerate(np.unique(numbers)), key=lambda pair: pair[1] - pair[0]):
        inside = [int(number) for _, number in run]
        runs.append(f"{inside[0]}..{inside[-1]}" if len(inside) > 1 else str(inside[0]))
    return ", ".join([*runs[:4], "..."] if len(runs) > 5 else runs)


def repeated(law: Law, subject: Subject, case: Case, times: int, watch: Watch | None = None) -> Repeats:
    """Put `case` under `law` so many times, and compare what it ran."""
    first: list[Run] = []
    differing: dict[tuple[int, str], np.ndarray] = {}
    errors: list[Exception] = []
    record = Record(law.name, subject.id)
    ended = 0
    for _ in range(times):
        runs: list[Run] = []
        watched = replace(subject, implementation=recording(subject.implementation, runs.append))
        try:
            law.holds_for(watched, case, record, watch)
        except Exception as error:
            errors.append(error)
        first = first or runs
        for number, (mine, other) in enumerate(zip(runs, first, strict=False)):
            if not (isinstance(mine.outcome, Outputs) and isinstance(other.outcome, Outputs)):
                ended += type(mine.outcome) is not type(other.outcome)
                continue
            for (tensor, one), (_, two) in zip(mine.outcome.tensors(), other.outcome.tensors(), strict=True):
                unlike = unequal(one, two)
                if unlike.any():
                    differing[number, tensor] = unlike | differing.get((number, tensor), False)
    (_, tensor), cells = max(differing.items(), key=lambda item: item[1].sum(), default=((0, ""), np.zeros(0, bool)))
    return Repeats(times, len(errors), errors[0] if errors else None, tensor, cells, ended)


def measured(law: Law, subject: Subject, found: Finding, watch: Watch | None, shrink: bool) -> tuple[Case, Repeats]:
    """A case as small as could be found (where `shrink`), and how often it fails; that of `found` where none does."""
    case = smaller_race(law, subject, found.case, watch) if shrink else found.case
    if case != found.case:
        repeats = repeated(law, subject, case, MEASURING, watch)
        if repeats.failed:
            return case, repeats
    repeats = repeated(law, subject, found.case, MEASURING, watch)
    failed, times = repeats.failed + found.failed, repeats.times + found.times
    return found.case, replace(repeats, failed=failed, times=times, error=repeats.error or found.error)


def smaller_race(law: Law, subject: Subject, case: Case, watch: Watch | None = None) -> Case:
    """A smaller case that fails in some of a few runs; `case` where none was found in `LONGEST` seconds."""
    ends = time.process_time() + LONGEST
    shows = _differs(subject, case, watch)

    def fails(candidate: Case) -> bool:
        if time.process_time() > ends or law.excludes(subject, candidate) is not None:
            return False
        # The law costs its references: it is asked where the bits of the implementation alone differ, if they ever did.
        if shows and not _differs(subject, candidate, watch):
            return False
        return any(_fails(law, subject, candidate, watch) for _ in range(TRYING))

    return smaller(case, fails, CANDIDATES)


def _differs(subject: Subject, case: Case, watch: Watch | None) -> bool:
    """Whether a few runs of the implementation on the inputs of `case` are not all the same bits."""
    if watch is not None:
        watch.begin(f"case:  {case}")
    try:
        inputs = case.inputs()
        first = subject.run(inputs, case.tile)
        return any(not subject.run(inputs, case.tile).equals(first) for _ in range(TRYING))
    except Exception:
        return False
    finally:
        if watch is not None:
            watch.end()


def _fails(law: Law, subject: Subject, case: Case, watch: Watch | None) -> bool:
    try:
        law.holds_for(subject, case, Record(law.name, subject.id), watch)
    except Exception:
        return True
    return False
