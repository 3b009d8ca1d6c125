"""Which run of a failed law is wrong: every run that a law makes is kept, and put beside reference A and the mirror."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kda.case import Case
from kda.implementations import PLAIN, Implementation, Memory
from kda.numerics.budget import Budget
from kda.numerics.compare import compare
from kda.problem import InputError, Inputs, Outputs, Tile
from kda.suite.laws import Law, Subject
from kda.suite.record import Record

__all__ = ["Examined", "Run", "Wrong", "examined", "recording", "wrong_run"]


@dataclass(frozen=True)
class Run:
    """One run of an implementation: what it was given, and what came of it, outputs or what it raised."""

    inputs: Inputs
    tile: Tile
    memory: Memory
    outcome: Outputs | Exception


@dataclass(frozen=True)
class Wrong:
    """A run with outputs that a correct implementation does not give.

    expected, budget: of `against`, "reference A" or "its mirror"; a budget of zeros where every bit must agree.
    """

    subject: Subject
    run: Run
    got: Outputs
    expected: Outputs
    budget: Budget
    against: str

    @property
    def inputs(self) -> Inputs:
        """What the implementation was given."""
        return self.run.inputs

    @property
    def tile(self) -> Tile:
        """The tile it ran with."""
        return self.run.tile


@dataclass(frozen=True)
class Examined:
    """One case put under a law: the runs that it made, in order, and what it raised (None where it holds)."""

    law: Law
    subject: Subject
    case: Case
    runs: tuple[Run, ...]
    error: Exception | None


def recording(implementation: Implementation, keep: Callable[[Run], object]) -> Implementation:
    """The same implementation, which hands every run to `keep`."""
    made: Any = copy.copy(implementation)

    def run(inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        __tracebackhide__ = True
        try:
            outputs = implementation.run(inputs, tile, target, memory)
        except Exception as error:
            keep(Run(inputs, tile, memory, error))
            raise
        keep(Run(inputs, tile, memory, outputs))
        return outputs

    def unchecked() -> Implementation | None:
        bold = implementation.unchecked()
        return None if bold is None else recording(bold, keep)

    made.run, made.unchecked = run, unchecked
    return made


def examined(law: Law, subject: Subject, case: Case) -> Examined:
    """Put `case` under `law` once more and keep what it ran."""
    runs: list[Run] = []
    watched = replace(subject, implementation=recording(subject.implementation, runs.append))
    error = None
    try:
        law.holds_for(watched, case, Record(law.name, subject.id))
    except Exception as raised:
        error = raised
    return Examined(law, subject, case, tuple(runs), error)


def wrong_run(examined: Examined) -> Wrong | None:
    """The first run that is outside the budget of reference A, else the first that parts from the mirror, else None.

    Laws feed an implementation many inputs made from one case; this finds those on which it is wrong by itself.
    """
    done = [
        (_of_its_dtype(examined.subject, run), run, run.outcome)
        for run in examined.runs
        if isinstance(run.outcome, Outputs) and _takes(run.inputs)
    ]
    for subject, run, got in done:
        judged = subject.judge(run.inputs, run.tile)
        if _outside(got, judged.outputs, judged.budget):
            return Wrong(subject, run, got, judged.outputs, judged.budget, "reference A")
    for subject, run, got in done:
        if not subject.implementation.mirrored:
            continue
        mirror = subject.judge_mirror(run.inputs, run.tile)
        budget = mirror.budget
        if subject.implementation.exact_mirror(subject.target, subject.dtype):
            budget = Budget(np.zeros_like(budget.o), np.zeros_like(budget.final_state))
        if _outside(got, mirror.outputs, budget):
            return Wrong(subject, run, got, mirror.outputs, budget, "its mirror")
    return None


def _takes(inputs: Inputs) -> bool:
    """Whether anything can be expected of `inputs`: what must be refused has no right outputs."""
    try:
        inputs.check()
    except InputError:
        return False
    return True


def _of_its_dtype(subject: Subject, run: Run) -> Subject:
    # A law may run other formats in between.
    return subject if run.tile.dtype == subject.dtype else replace(subject, dtype=run.tile.dtype)


def _outside(got: Outputs, expected: Outputs, budget: Budget) -> bool:
    try:
        return any(not verdict.passed for verdict in compare(got, expected, budget))
    except (AssertionError, InputError):  # shapes that disagree
        return True
