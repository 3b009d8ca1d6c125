"""How small the failures of known mistakes become: each is hunted, reduced, tried for one number less, written down.

    campaign.run(plan_catalogue("kernel", "c", [1], names).tasks, workers, work=smallest)

gives a `Smallest` for each mutant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kda.case import Case
from kda.diagnosis.explicit import active_tokens, cut_out, numbers, token_of
from kda.diagnosis.reduce import CLEAR, Reduced, reduced, strength
from kda.diagnosis.script import script
from kda.formats import format_named
from kda.mutation.campaign import CASE_SECONDS, KILLED, Row, Task, laws
from kda.mutation.hunt import hunt
from kda.suite.laws import Subject
from kda.suite.record import Record
from kda.suite.watch import Watch

__all__ = ["NUMBERS", "REASONS", "TOKENS", "Smallest", "removals", "smallest"]

#: The most tokens, and numbers of one tensor, that are not zero in a failure that a person takes in at a glance.
TOKENS, NUMBERS = 2, 4

#: Why a mistake needs more than that.
REASONS = {
    "first-order-inverse": "the first power of L that it drops is L^2, which is zero with fewer than three tokens",
    "M-accumulates": "an entry of M takes two tokens: two of one chunk leave it behind, two of the next read it",
    "doubling-product": (
        "in exact arithmetic it is no mistake: its rounding errors grow with the powers of L, which takes alike keys"
    ),
    "doubling-product-in-operand-precision": (
        "in exact arithmetic it is no mistake: its rounding errors grow with the powers of L, which takes alike keys"
    ),
}


@dataclass(frozen=True)
class Smallest(Row):
    """What is left of one mutant's failure, beside its row.

    tokens: that are not all zero; numbers: not zero, by tensor; tried, reducing: cases and seconds of the reduction;
    left: removals of a single token, number or sequence that still fail, and as clearly (none where the case is as
    small as it gets); barely: those that do with an error of less than CLEAR budgets. text: the script.
    """

    tokens: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    tried: int = 0
    reducing: float = 0.0
    complete: bool = False
    dropped: str = ""
    left: int = 0
    barely: int = 0
    text: str = ""

    @property
    def takes_a_glance(self) -> bool:
        """Whether it is within TOKENS and NUMBERS."""
        return self.tokens <= TOKENS and max(self.numbers.values(), default=0) <= NUMBERS

    def data(self) -> dict[str, Any]:
        """The row as it is written to a file, without the script."""
        more = ("tokens", "numbers", "tried", "reducing", "complete", "left", "barely")
        return super().data() | {name: getattr(self, name) for name in more} | {"lines": self.text.count("\n")}


def smallest(task: Task, folder: Path, worker: str) -> list[Row]:
    """Hunt the task's mutant with each of its searches, and reduce what is found; a row per seed."""
    implementation = task.mutant.planted()
    watch = Watch(folder, worker, CASE_SECONDS)
    rows: list[Row] = []
    for seed in task.seeds:
        rows.append(Row(task.mutant.name, "survived"))
        for search in task.searches:
            law = laws()[search.law]
            subject = Subject(implementation, task.target, format_named(search.dtype), (task.tile,))
            found = hunt(law, subject, seed, search.cases, watch=watch)
            if found.case is not None:
                rows[-1] = _row(task.mutant.name, law.name, subject, found.case, watch)
                break
    return rows


def _row(name: str, law: str, subject: Subject, case: Case, watch: Watch) -> Row:
    asked, record = laws()[law], Record(law, subject.id)
    try:
        asked.holds_for(subject, case, record, watch)
    except Exception as error:
        found = reduced(asked, subject, case, error, 4 * CASE_SECONDS, watch)
    else:
        return Row(name, "survived", law, case=str(case), said="it did not fail again")
    inputs = found.case.inputs()
    still = _still_failing(found, subject)
    return Smallest(
        name,
        KILLED,
        found.law.name,
        seconds=found.seconds,
        case=str(found.case),
        said=next(iter(str(found.error).splitlines()), ""),
        tokens=active_tokens(inputs),
        numbers=numbers(inputs),
        tried=found.tried,
        reducing=found.seconds,
        complete=found.complete,
        dropped=found.dropped,
        left=sum(clearly >= min(CLEAR, strength(found.error)) for clearly in still),
        barely=sum(clearly < CLEAR for clearly in still),
        text=script(found.law, subject, found.case, found.error),
    )


def _still_failing(found: Reduced, subject: Subject) -> list[float]:
    """How clearly removals of a single thing still fail, of those that raise an exception of the same type."""
    clearly = []
    for candidate in removals(found.case):
        if found.law.excludes(subject, candidate) is None:
            try:
                found.law.holds_for(subject, candidate, Record(found.law.name, subject.id))
            except Exception as error:
                if type(error) is type(found.error):
                    clearly.append(strength(error))
    return clearly


def removals(case: Case) -> Iterator[Case]:
    """`case` without one number, without the numbers of one token, and without one token, batch or head."""
    for edit in case.edits:
        yield case.replace(edits=tuple(other for other in case.edits if other != edit))
    for token in sorted({t for edit in case.edits if (t := token_of(edit)) is not None}):
        yield case.replace(edits=tuple(edit for edit in case.edits if token_of(edit) != token))
    for axis in ("N", "B", "H"):
        for index in range(getattr(case, axis) if getattr(case, axis) > 1 else 0):
            yield cut_out(case, axis, index, index + 1)
