"""How good resemblances are: a known mistake must be named, and a mistake that is not known must not be.

The mistakes of the catalogue are made in the kernel, caught by their laws, and what failed is asked what it looks like.
Generated mutants are asked the same: they look like none, unless one is the same program as a known mistake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from kda.case import Case
from kda.diagnosis.candidates import candidates
from kda.diagnosis.resemblance import resemblance
from kda.diagnosis.wrong import Wrong, examined, wrong_run
from kda.mutation.campaign import SMALLEST_TILE, Row, Search, Task, examine, laws, run
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.catalogue.mistake import MATCHES_A
from kda.mutation.hunt import hunt
from kda.mutation.plans import plan_generated, task_of
from kda.problem import InputError
from kda.suite.laws import Subject, same_bits

__all__ = ["Likeness", "Score", "known", "look", "score", "unknown"]

#: Cases that a generated mutant gets to be caught, and then to be told from the mistake that it was taken for.
CASES, MORE = 60, 300


@dataclass(frozen=True)
class Likeness(Row):
    """The row of a mutant, and what its failure was taken for.

    named: the mistake, and its twins after it; took: seconds of the resemblance; lines: of its report; same: whether,
    where another was named, nothing in `MORE` cases tells the two apart, bit for bit.
    """

    named: tuple[str, ...] = ()
    took: float = 0.0
    lines: tuple[str, ...] = ()
    same: bool = False


@dataclass(frozen=True)
class Score:
    """What became of known mistakes and of unknown ones, by name.

    right: named, alone; twins: named among twins; missed: not named, or another was; silent: not known and none was
    named; doubles: not generated for the first time, they are the program of a known mistake; false: another was named.
    """

    right: tuple[str, ...]
    twins: tuple[str, ...]
    missed: tuple[str, ...]
    silent: tuple[str, ...]
    doubles: tuple[str, ...]
    false: tuple[str, ...]


def known(target: str, names: Iterable[str] = ()) -> list[Task]:
    """The mistakes of the catalogue that change something, made in the kernel; names: only these."""
    chosen = set(names) or set(CATALOGUE)
    return [
        task_of(mistake, "kernel", target, (0,))
        for mistake in CATALOGUE.values()
        if mistake.name in chosen and "kernel" in mistake.forms and target in mistake.targets and not mistake.harmless
    ]


def unknown(target: str, every: int) -> list[Task]:
    """Every so many of the kernel's generated mutants, the first included."""
    searches = (Search(MATCHES_A, "f32", CASES),)
    made = plan_generated("kda_chunk", target, (0,)).tasks
    return [replace(task, searches=searches, tile=SMALLEST_TILE) for task in islice(made, 0, None, every)]


def look(tasks: Sequence[Task], workers: int, each: Callable[[Likeness], None] = lambda row: None) -> list[Likeness]:
    """What each mutant looks like, of those that a law catches; `workers` processes at a time."""
    found: list[Likeness] = []

    def done(task: Task, rows: list[Row]) -> None:
        for row in rows:
            if isinstance(row, Likeness):
                found.append(row)
                each(row)

    run(tasks, workers, each=done, work=_look)
    order = [task.mutant.name for task in tasks]
    return sorted(found, key=lambda row: order.index(row.name))


def score(of_known: Sequence[Likeness], of_unknown: Sequence[Likeness]) -> Score:
    """Who was named rightly. A generated mutant that lowers to the code of a known mistake is that mistake."""
    codes = {(dtype, code) for row in of_known for dtype, code in row.fingerprints.items()}
    doubles = [row for row in of_unknown if row.same or codes & set(row.fingerprints.items())]
    others = [row for row in of_unknown if row not in doubles]
    return Score(
        right=tuple(row.name for row in of_known if row.named == (row.name,)),
        twins=tuple(row.name for row in of_known if row.name in row.named and len(row.named) > 1),
        missed=tuple(row.name for row in of_known if row.name not in row.named),
        silent=tuple(row.name for row in others if not row.named),
        doubles=tuple(row.name for row in doubles),
        false=tuple(row.name for row in others if row.named),
    )


def _look(task: Task, folder: Path, worker: str) -> list[Row]:
    return [_likeness(task, row) for row in examine(task, folder, worker)]


def _likeness(task: Task, row: Row) -> Row:
    if row.law not in laws() or row.case is None:
        return row
    case = Case.parse(row.case)
    subject = Subject(task.mutant.planted(), task.target, case.dtype, (task.tile,))
    failed = examined(laws()[row.law], subject, case)
    try:
        wrong = wrong_run(failed)
    except InputError:  # what it ran is malformed
        wrong = None
    candidates()
    started = time.perf_counter()
    like = resemblance(failed, wrong)
    took = time.perf_counter() - started
    named = (like.claimed, *like.twins) if like.claimed else ()
    names = tuple(mistake.name for mistake in named)
    same = bool(names) and wrong is not None and row.name not in names and _same(wrong, names[0])
    return Likeness(**asdict(row), named=names, took=took, lines=tuple(like.lines()), same=same)


def _same(wrong: Wrong, name: str) -> bool:
    subject = wrong.subject
    candidate = next((made for made in candidates() if made.mistake.name == name), None)
    if candidate is None:
        return False

    def body(subject: Subject, case: Case) -> None:
        inputs = case.inputs()
        would = candidate.run(inputs, case.tile, subject.implementation.exp2(subject.target))
        assert would is not None
        same_bits(subject.run(inputs, case.tile), would)

    return hunt(replace(laws()[MATCHES_A], body=body), subject, 0, MORE, shrink=False).cases is None
