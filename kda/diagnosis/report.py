"""The report of a failed law: one screen that says what is wrong, where it went wrong, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kda.case import Case
from kda.diagnosis import race
from kda.diagnosis.layout import fitted
from kda.diagnosis.picture import picture
from kda.diagnosis.reduce import reduced
from kda.diagnosis.resemblance import Resemblance, resemblance
from kda.diagnosis.stages import ORDER, Staged, first_wrong_stage
from kda.diagnosis.wrong import Examined, Wrong, examined, wrong_run
from kda.suite.failure import explain
from kda.suite.laws import Disagreement, Law, Subject

if TYPE_CHECKING:
    from kda.suite.finding import Finding
    from kda.suite.watch import Watch

__all__ = ["Report", "reported", "understood"]

#: Characters of a case line that a report has room for.
LONGEST = 400


@dataclass(frozen=True)
class Report:
    """What is known of one failure.

    lines: the screen; error: what the law raised; seen: the case under the law once more; wrong, staged: its run that
    is wrong by itself, and what the probes of the kernel saw there; like: the mistake it looks like.
    """

    lines: list[str]
    error: Exception
    seen: Examined
    wrong: Wrong | None = None
    staged: Staged | None = None
    like: Resemblance | None = None

    def write_page(self, folder: Path) -> Path:
        """Write a page with pictures into `folder`, and say where."""
        from kda.diagnosis.page import failure_of, write_page

        return write_page(folder, failure_of(self.seen, self.wrong, self.lines, self.staged))


def understood(
    law: Law, subject: Subject, found: Finding, root: Path, watch: Watch | None = None, shrink: bool = True
) -> Report:
    """The report of what a search ended with: a case made smaller still (where `shrink`), then looked into.

    root: the folder that paths are written relative to. watch: told of every case before it runs, and of what is known
    already, in case one of them ends the process.
    """
    standing = "\n".join([_headline(found.error), *law.notes(subject, str(found.case))])
    with watch.standing(standing) if watch is not None else nullcontext():
        if not found.steady:
            return _of_a_race(law, subject, *race.measured(law, subject, found, watch, shrink), root, watch)
        if not shrink:
            return reported(law, subject, found.case, found.error, root, watch)
        smallest = reduced(law, subject, found.case, found.error, watch=watch)
        if len(str(smallest.case)) > max(LONGEST, len(str(found.case))):  # cut short: the kinds say more in less
            return reported(law, subject, found.case, found.error, root, watch)
        before = (law, found.case) if smallest.case != found.case else None
        return reported(smallest.law, subject, smallest.case, smallest.error, root, watch, smallest.said, before)


def reported(
    law: Law,
    subject: Subject,
    case: Case,
    error: Exception,
    root: Path,
    watch: Watch | None = None,
    said: str = "",
    before: tuple[Law, Case] | None = None,
) -> Report:
    """The report of one case that `law` does not hold for, as it is.

    said: on how it was found. before: what it was before it was reduced, and the law that it was found by.
    """
    with _watched(watch):
        seen = examined(law, subject, case)
        wrong = wrong_run(seen)
        staged, stages = _stages(wrong)
        if staged is not None and before is not None:
            staged, stages = _earlier(staged, stages, subject, *before)
        like, mistake = _likeness(seen, wrong)
        sections = [_cells(error, wrong), stages, mistake]
    notes = law.notes(subject, str(case))
    lines = [*_explained(error, root), *notes[:2], *([said] if said else ())]
    lines += [line for section in sections if section for line in ("", *section)]
    return Report(fitted([*lines, "", *notes[2:]], str(case)), error, seen, wrong, staged, like)


@contextmanager
def _watched(watch: Watch | None) -> Iterator[None]:
    """Runs that no law announces: what stands says what they are about."""
    if watch is not None:
        watch.begin("while it was being looked into")
    try:
        yield
    finally:
        if watch is not None:
            watch.end()


def _of_a_race(
    law: Law, subject: Subject, case: Case, repeats: race.Repeats, root: Path, watch: Watch | None = None
) -> Report:
    assert repeats.error is not None
    with _watched(watch):
        seen = examined(law, subject, case)
        wrong = wrong_run(seen)
        staged, stages = _stages(wrong)
    first, *others = repeats.lines()
    # One run may hold; `kda diagnose` makes many.
    notes = [note.replace("kda check ", "kda diagnose ") for note in law.notes(subject, str(case))]
    lines = [first, *notes[:2], *others, *_explained(repeats.error, root)]
    if staged is not None and staged.stage is not None:
        lines += ["", "in one more run, with probes in the kernel, which may change who waits for whom:", *stages]
    return Report(fitted([*lines, "", *notes[2:]], str(case)), repeats.error, seen, wrong, staged)


def _explained(error: Exception, root: Path) -> list[str]:
    lines = explain(error, root) or [_headline(error)]
    # The notes come later; what pytest adds to an assertion is the values of its parts, whole arrays among them.
    return [line for line in lines if not line.startswith((*_NOTES, " + "))]


_NOTES = ("law: ", "case: ", "rerun: ", "write: ", "keep: ", "guard: ")


def _headline(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _cells(error: Exception, wrong: Wrong | None) -> list[str]:
    if wrong is None:
        if not isinstance(error, Disagreement):
            return []
        return _section(lambda: picture(error.got, error.expected, error.budget, None))
    drawn = _section(lambda: picture(wrong.got, wrong.expected, wrong.budget, wrong.tile))
    if isinstance(error, Disagreement) and wrong.got.equals(error.got) and wrong.expected.equals(error.expected):
        return drawn
    return [f"one of its runs is wrong by itself; beside {wrong.against}:", *drawn]


def _stages(wrong: Wrong | None) -> tuple[Staged | None, list[str]]:
    if wrong is None:
        return None, []
    try:
        staged = first_wrong_stage(wrong)
    except Exception as error:
        return None, [_failed("the first wrong stage", error)]
    return staged, staged.lines()


def _earlier(staged: Staged, lines: list[str], subject: Subject, law: Law, case: Case) -> tuple[Staged, list[str]]:
    """The first wrong stage before the case was reduced, where that is an earlier one: zeros look right anywhere."""
    try:
        wrong = wrong_run(examined(law, subject, case))
        other = first_wrong_stage(wrong) if wrong is not None else staged
    except Exception:  # of what was seen already, one is enough
        return staged, lines
    if other.stage is None or (staged.stage is not None and ORDER.index(staged.stage) <= ORDER.index(other.stage)):
        return staged, lines
    at = f"(before it was reduced, on {case}; in the case above, "
    at += f"{staged.stage} is the first: what comes before it is zero there)" if staged.stage else "none is wrong)"
    return other, [*other.lines(), at]


def _likeness(seen: Examined, wrong: Wrong | None) -> tuple[Resemblance | None, list[str]]:
    try:
        like = resemblance(seen, wrong)
    except Exception as error:
        return None, [_failed("the likeness to known mistakes", error)]
    return like, like.lines()


def _section(make: Callable[[], list[str]]) -> list[str]:
    """The lines of one section; what it raises becomes its line, for the failure itself must be seen."""
    try:
        return make()
    except Exception as error:
        return [_failed("this part of the report", error)]


def _failed(what: str, error: Exception) -> str:
    return f"{what} could not be made: {type(error).__name__}: {_headline(error)}"
