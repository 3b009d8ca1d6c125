"""How good the reports are: each known mistake is made in the kernel, searched for, and its report is held to account.

    campaign.run(plan_catalogue("kernel", "c", [1], names).tasks, workers, work=measure)

gives a `Measured` for each: the stage and the mistake that were named, what is left of the case, what its script does
with the mistake and without, and the seconds from the first failing example to the finished report.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given

from kda.case import Case
from kda.diagnosis.explicit import active_tokens, cut_out, numbers, token_of
from kda.diagnosis.reduce import CLEAR, NUMBERS, TOKENS, strength
from kda.diagnosis.report import Report, understood
from kda.diagnosis.script import script
from kda.formats import format_named
from kda.kernels import compile as compiling
from kda.mutation.campaign import CASE_SECONDS, CRASH, KILLED, SURVIVED, Row, Task, laws
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.catalogue.mistake import form_in
from kda.suite.finding import find
from kda.suite.laws import Law, Subject
from kda.suite.record import Record
from kda.suite.watch import GpuLost, Watch

__all__ = ["REASONS", "Measured", "measure", "removals"]

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
class Measured(Row):
    """The row of a mutant, and what its report is worth.

    form: of ORIGINALS, what the mistake was made in. stage: the first wrong one, "" where none was named; mistakes:
    those it was said to look like. same_bits: the probes changed none of the kernel's. tokens, numbers: not zero in the
    reduced case, numbers by tensor; left: removals of one number, token or sequence that fail as clearly (none where
    the case is as small as it gets). lines, width: of the report; scripted: the exit status of the script with the
    mistake, and without. reporting: seconds from the first failing example to the finished report. race: it does not
    fail every time.
    """

    form: str = "kernel"
    stage: str = ""
    mistakes: tuple[str, ...] = ()
    same_bits: bool = True
    left: int = 0
    tokens: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    width: int = 0
    scripted: tuple[int, int] = (0, 0)
    script_lines: int = 0
    reporting: float = 0.0
    race: bool = False
    report: str = ""

    @property
    def right_stage(self) -> bool:
        """Whether it names what the catalogue says, or nothing where the catalogue names nothing."""
        stages = CATALOGUE[self.name].of(self.form).stages
        return self.race or (self.stage in stages if stages else not self.stage)

    @property
    def right_mistake(self) -> bool:
        """Whether it is among those that the failure was said to look like."""
        return self.race or self.name in self.mistakes

    @property
    def small(self) -> bool:
        """Whether its case is within TOKENS and NUMBERS, or is known to need more."""
        few = self.tokens <= TOKENS and max(self.numbers.values(), default=0) <= NUMBERS
        return self.race or few or (not self.left and self.name in REASONS)

    @property
    def fits(self) -> bool:
        """Whether report and script are as short as they should be, and the script tells right from wrong."""
        return self.lines < 40 and self.width <= 100 and self.script_lines < 40 and self.scripted == (1, 0)

    def data(self) -> dict[str, Any]:
        """The row as it is written to a file, without the report."""
        return super().data() | {name: getattr(self, name) for name in self.__match_args__ if name != "report"}


def measure(task: Task, folder: Path, worker: str) -> list[Row]:
    """Search for the task's mutant as a property test would, report it, and run its script; one search and seed."""
    warm: Any = sys.modules.get("kda.mutation.warm")
    if warm is not None:  # compile as the property tests do: that is what is timed
        compiling.C_FLAGS = warm.SHIPPED
    (search, *_), (seed, *_) = task.searches, task.seeds
    law = laws()[search.law]
    subject = Subject(task.mutant.planted(), task.target, format_named(search.dtype), (task.tile,))
    plain = task.tile.of(Case(dtype=subject.dtype))
    subject.implementation.prepare(plain.inputs(), plain.tile, task.target)
    watch, record, failed = Watch(folder, worker, CASE_SECONDS), Record(law.name, subject.id), list[float]()

    def searching(law: Law) -> None:
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=search.cases,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
            verbosity=hypothesis.Verbosity.quiet,
        )
        @given(case=law.cases(subject))
        def look(case: Case) -> None:
            law.holds_for(subject, case, record, watch)

        look()

    try:
        found = find(law.failing_to(lambda case, error: failed.append(time.perf_counter())), subject, searching, watch)
    except GpuLost as error:  # and with it this process; pytest tells the case
        return [Row(task.mutant.name, KILLED, CRASH, record.cases, said=str(error).partition("\n")[0])]
    if found is None:
        return [Row(task.mutant.name, SURVIVED, None, record.cases)]
    report = understood(law, subject, found, folder, watch)
    seconds = time.perf_counter() - failed[0]
    return [_row(task, report, subject, record.cases, seconds, found.steady, folder / worker)]


def _row(
    task: Task, report: Report, subject: Subject, cases: int, seconds: float, steady: bool, folder: Path
) -> Measured:
    seen = report.seen
    inputs = seen.case.inputs()
    text = script(seen.law, subject, seen.case, report.error, unsteady=not steady)
    like = report.like
    named = [m.name for m in (like.claimed, *like.twins) if m is not None] if like is not None else []
    return Measured(
        task.mutant.name,
        KILLED,
        seen.law.name,
        cases,
        seconds,
        str(seen.case),
        next(iter(str(report.error).splitlines()), ""),
        form=form_in(subject.implementation),
        stage=(report.staged.stage or "") if report.staged is not None else "",
        mistakes=tuple(named),
        tokens=active_tokens(inputs),
        numbers=numbers(inputs),
        left=_left(report, subject),
        same_bits=report.staged is None or report.staged.same_bits,
        lines=len(report.lines),
        width=max(map(len, report.lines)),
        scripted=_scripted(task, text, folder),
        script_lines=text.count("\n"),
        reporting=seconds,
        race=not steady,
        report="\n".join(report.lines),
    )


def _scripted(task: Task, text: str, folder: Path) -> tuple[int, int]:
    """The exit status of a script, in a process of its own: with the mistake, and with the kernel as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "repro.py").write_text(text, "utf-8")
    (folder / "planted.py").write_text(
        f"from kda.mutation.mutant import Mutant\n\nmutant = {task.mutant!r}.planted()\n", "utf-8"
    )
    of = [f"{folder / 'planted.py'}:mutant", task.mutant.implementation]
    command = [sys.executable, str(folder / "repro.py")]
    runs = [subprocess.run([*command, address], capture_output=True, timeout=300, check=False) for address in of]
    return runs[0].returncode, runs[1].returncode


def _left(report: Report, subject: Subject) -> int:
    """How many single removals still fail with the same exception, and as clearly."""
    law, error = report.seen.law, report.error
    return sum(
        type(raised) is type(error) and strength(raised) >= min(CLEAR, strength(error))
        for raised in (_raised(law, subject, candidate) for candidate in removals(report.seen.case))
        if raised is not None
    )


def _raised(law: Law, subject: Subject, case: Case) -> Exception | None:
    if law.excludes(subject, case) is None:
        try:
            law.holds_for(subject, case, Record(law.name, subject.id))
        except Exception as error:
            return error
    return None


def removals(case: Case) -> Iterator[Case]:
    """`case` without one number, without the numbers of one token, and without one token, batch or head."""
    for edit in case.edits:
        yield case.replace(edits=tuple(other for other in case.edits if other != edit))
    for token in sorted({t for edit in case.edits if (t := token_of(edit)) is not None}):
        yield case.replace(edits=tuple(edit for edit in case.edits if token_of(edit) != token))
    for axis in ("N", "B", "H"):
        for index in range(getattr(case, axis) if getattr(case, axis) > 1 else 0):
            yield cut_out(case, axis, index, index + 1)
