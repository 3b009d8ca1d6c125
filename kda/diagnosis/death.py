"""Cases that end their process or never end: examined in a process of their own, and made smaller there."""

from __future__ import annotations

import functools
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from kda.case import Case
from kda.diagnosis.layout import fitted, fitted_notes
from kda.implementations import Implementation
from kda.kernels import compile as compiling
from kda.mutation.campaign import server
from kda.suite import watch
from kda.suite.laws import Subject
from kda.suite.record import Record
from kda.suite.smaller import smaller

__all__ = ["Death", "Question", "death_of", "retold", "smallest_death"]

#: Seconds that one case may take in a process of its own, which may have to compile, and a smaller one after it.
SECONDS, SECONDS_AFTER = 20.0, 5.0
#: How many smaller cases are tried, and for how long, of one that dies and of one that hangs: the one takes its process
#: along, the other all of its seconds.
TRIES, LONGEST, LONGEST_HANG = 120, 30.0, 10.0
_GPU_LOST = 70


@dataclass(frozen=True)
class Question:
    """One law about one implementation, as plain data: where the laws are, and what each is found by.

    seconds: that a case may take; SECONDS where None.
    """

    folder: Path
    implementation: str
    target: str
    unchecked: bool = False
    law: str = ""
    seconds: float | None = None

    @classmethod
    def of(
        cls, folder: Path, chosen: Implementation, target: str, law: str = "", seconds: float | None = None
    ) -> Question:
        """The question that `law`, of those in `folder`, asks about an implementation."""
        # Absolute, for the process that answers may stand in another folder.
        place, colon, name = (chosen.address or chosen.name).rpartition(":")
        address = f"{Path(place).resolve()}:{name}" if place.endswith(".py") else f"{place}{colon}{name}"
        return cls(folder.resolve(), address, target, not chosen.checks_domain, law, seconds)


@dataclass(frozen=True)
class Death:
    """How a process ended that examined `case`."""

    case: Case
    how: str

    @property
    def hung(self) -> bool:
        """Whether it had to be ended."""
        return self.how.startswith("it did not end")


def death_of(question: Question, case: Case) -> Death | None:
    """How the process that examines `case` ends, where it does not end well; None where it only fails or holds."""
    with _pool() as pool:
        return _death(pool, question, case)


def smallest_death(question: Question, death: Death) -> Death:
    """A smaller case that dies as well, and how."""
    with _pool() as pool:
        ends = time.monotonic() + (LONGEST_HANG if death.hung else LONGEST)

        def dies(candidate: Case) -> bool:
            nonlocal death
            if time.monotonic() > ends:
                return False
            found = _death(pool, question, candidate, SECONDS_AFTER)
            if found is None or found.hung != death.hung:
                return False
            death = found
            return True

        smaller(death.case, dies, TRIES)
    return death


def retold(question: Question, text: str, shrink: bool = True, death: Death | None = None) -> list[str]:
    """What was under way when a process ended, as `Watch` keeps it, with a smaller case where one dies as well.

    question: its law is read from `text`. death: how the case ends, where that is known.
    """
    lines = text.splitlines()
    cases = [line.split()[1] for line in lines if line.startswith("case: ")]
    laws = [line.split()[1].rstrip(":") for line in lines if line.startswith("law: ")]
    if not cases or not laws:
        return fitted_notes(text)
    # Where a failure was being made smaller, the last case is the one that ended it.
    question, line = replace(question, law=laws[-1]), cases[-1]
    death = death or death_of(question, Case.parse(line))
    if death is None:
        lines.append("in a process of its own the case does not end it: what was run before it matters")
        return fitted(lines, line)
    smallest = smallest_death(question, death) if shrink else death
    smaller_line = str(smallest.case)
    return fitted([smallest.how, *(said.replace(line, smaller_line) for said in lines)], smaller_line)


def _pool() -> ProcessPool:
    return ProcessPool(1, context=server())


def _death(pool: ProcessPool, question: Question, case: Case, seconds: float | None = None) -> Death | None:
    seconds = seconds or question.seconds or SECONDS
    future = pool.schedule(_examine, [question, str(case)], timeout=seconds)
    try:
        future.result()
    except TimeoutError:
        return Death(case, f"it did not end within {seconds:g} s")
    except ProcessExpired as error:
        if error.exitcode == _GPU_LOST:
            return Death(case, "the CUDA context broke")
        signal = f"signal {-error.exitcode}" if error.exitcode < 0 else f"exit status {error.exitcode}"
        return Death(case, f"its process died ({signal})")
    return None


def _examine(question: Question, line: str) -> None:
    """In the child: what the law raises is of no interest here."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.close(quiet)
    warm: Any = sys.modules.get("kda.mutation.warm")
    if warm is not None:  # the kernel under test, and not one that compiles faster
        compiling.C_FLAGS = warm.SHIPPED
    law, subjects = _loaded(question)
    case = Case.parse(line)
    for subject in subjects:
        if law.excludes(subject, case) is not None:
            continue
        try:
            law.holds_for(subject, case, Record(law.name, subject.id))
        except Exception:
            if watch.cuda_is_broken():
                os._exit(_GPU_LOST)


@functools.cache
def _loaded(question: Question) -> tuple[Any, list[Subject]]:
    from kda.implementations import implementation
    from kda.suite.laws import load_laws

    room = question.law.partition(".")[0]
    alone = (question.folder / f"test_{room}.py").is_file()
    law = load_laws(question.folder, room if alone else None)[question.law]
    chosen = implementation(question.implementation)
    bold = chosen.unchecked() if question.unchecked else None
    return law, law.subjects(bold or chosen, question.target)
