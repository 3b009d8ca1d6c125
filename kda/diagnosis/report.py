"""The report of a failed law: one screen that says what is wrong, where it went wrong, and how to go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kda.case import Case
from kda.diagnosis import race
from kda.diagnosis.layout import INDENT, fitted
from kda.diagnosis.picture import picture
from kda.diagnosis.resemblance import resemblance
from kda.diagnosis.stages import Staged, described, first_wrong_stage
from kda.diagnosis.wrong import Wrong, examined, wrong_run
from kda.suite.failure import explain
from kda.suite.laws import Disagreement, Law, Subject

if TYPE_CHECKING:
    from kda.suite.finding import Finding
    from kda.suite.watch import Watch

__all__ = ["Report", "reported", "understood"]


@dataclass(frozen=True)
class Report:
    """What is known of one failure: `lines` is the screen, the rest what it was made of."""

    law: Law
    subject: Subject
    case: Case
    error: Exception
    lines: list[str]
    wrong: Wrong | None = None
    staged: Staged | None = None


def understood(
    law: Law, subject: Subject, found: Finding, root: Path, watch: Watch | None = None, shrink: bool = True
) -> Report:
    """The report of what a search ended with: a case made smaller still (where `shrink`), then looked into.

    root: the folder that paths are written relative to. watch: told of every case before it runs, and of what is known
    already, in case one of them ends the process.
    """
    standing = "\n".join([_headline(found.error), *law.notes(subject, str(found.case))])
    with watch.standing(standing) if watch is not None else nullcontext():
        case, error, said = found.case, found.error, []
        if not found.steady:
            case, repeats = race.measured(law, subject, found, watch, shrink)
            return _of_a_race(law, subject, case, repeats, root)
        if shrink:
            from kda.diagnosis.reduce import reduced

            smaller = reduced(law, subject, case, error, watch=watch)
            law, case, error, said = smaller.law, smaller.case, smaller.error, smaller.lines()
        return reported(law, subject, case, error, root, watch, said)


def reported(
    law: Law,
    subject: Subject,
    case: Case,
    error: Exception,
    root: Path,
    watch: Watch | None = None,
    said: list[str] | None = None,
) -> Report:
    """The report of one case that `law` does not hold for, as it is. said: lines on how it was found."""
    if watch is not None:
        watch.begin("while it was being looked into")
    try:
        seen = examined(law, subject, case)
        wrong = wrong_run(seen)
        staged, stages = _stages(wrong)
        body = [
            *_pictured(error, wrong),
            *stages,
            *_section("mistake", lambda: resemblance(seen, wrong).lines()),
        ]
    finally:
        if watch is not None:
            watch.end()
    notes = law.notes(subject, str(case))
    head, at = _explained(error, root)
    lines = [*head, *at, *notes[:2], *(said or ()), *body, *notes[2:]]
    return Report(law, subject, case, error, fitted(lines, str(case)), wrong, staged)


def _of_a_race(law: Law, subject: Subject, case: Case, repeats: race.Repeats, root: Path) -> Report:
    assert repeats.error is not None
    head, at = _explained(repeats.error, root)
    first, *others = repeats.lines()
    # One run may hold; `kda diagnose` makes many.
    notes = [note.replace("kda check ", "kda diagnose ") for note in law.notes(subject, str(case))]
    lines = [first, *notes[:2], *(f"{INDENT}{line}" for line in others), *head, *at, *notes[2:]]
    return Report(law, subject, case, repeats.error, fitted(lines, str(case)))


def _explained(error: Exception, root: Path) -> tuple[list[str], list[str]]:
    lines = explain(error, root) or [_headline(error)]
    own = [line for line in lines if not line.startswith(NOTES)]
    at = [line for line in own if line.startswith("at ")]
    return [line for line in own if line not in at], at


NOTES = ("law: ", "case: ", "rerun: ", "write: ", "keep: ", "guard: ")


def _headline(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _pictured(error: Exception, wrong: Wrong | None) -> list[str]:
    if isinstance(error, Disagreement) and wrong is None:
        return _section("cells", lambda: picture(error.got, error.expected, error.budget, None))
    if wrong is None:
        return []
    return _section("cells", lambda: picture(wrong.got, wrong.expected, wrong.budget, wrong.tile))


def _stages(wrong: Wrong | None) -> tuple[Staged | None, list[str]]:
    if wrong is None:
        return None, []
    try:
        staged = first_wrong_stage(wrong)
    except Exception as error:
        said = _failed(error)
        return None, _section("stage", lambda: [said, *described(wrong)])
    return staged, _section("stage", staged.lines)


def _section(name: str, make: Callable[[], list[str]]) -> list[str]:
    """The lines of one section under its name; what it raises becomes its line, for the failure itself must be seen."""
    try:
        lines = make()
    except Exception as error:
        lines = [_failed(error)]
    return [f"{name + ':' if i == 0 else '':<7}{line}" for i, line in enumerate(lines)]


def _failed(error: Exception) -> str:
    return f"could not be told ({type(error).__name__}: {_headline(error)})"


def write_page(r, d):
    return "STUB"
