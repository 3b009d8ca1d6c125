"""Laws of the operation: raw inputs to outputs, every form, on what computes it.

    @operation_law(operations, packed=(True,), min_sequences=2)
    def test_a_packed_call_is_each_sequence_alone(subject, case):
        '''One sentence that states the law. Why an edit can break it.'''
        ...

As laws of a kernel (`kda.suite.laws`), but the case is an `OperationCase` and the subject an engine of the
implementation under test.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kda.formats import Format
from kda.implementations import Implementation
from kda.implementations.operation import ENGINES, OperationImplementation
from kda.numerics.budget import Judged
from kda.numerics.operation import judge_operation
from kda.operation_case import OperationCase
from kda.operation_support import FormChoice, OperationSupport
from kda.problem import Outputs
from kda.references.operation import Operation
from kda.suite.laws import Law, named, test_of

__all__ = ["OperationLaw", "OperationSubject", "operation_law", "operation_subjects", "programs_of"]


@dataclass(frozen=True)
class OperationSubject:
    """What computes the operation, on a target with a dtype. implementation: what it belongs to."""

    implementation: Implementation
    engine: OperationImplementation
    target: str
    dtype: Format

    @property
    def id(self) -> str:
        """`portable-c-f16`."""
        return f"{self.engine.name}-{self.target}-{self.dtype}"

    @functools.cached_property
    def support(self) -> OperationSupport:
        """The calls it can run."""
        return self.engine.support(self.target)

    def run(self, operation: Operation, poison: float = float("nan")) -> Outputs:
        """Its outputs, states with the key channel first. poison: what they hold before the run."""
        __tracebackhide__ = True
        return self.engine.run(operation, self.target, poison).plain()

    def judge(self, operation: Operation) -> Judged:
        """The outputs of `ref_operation`, and the error that a correct kernel may make."""
        judged = judge_operation(operation, lambda inputs: self.engine.judge(inputs, self.target))
        return Judged(judged.outputs.plain(), judged.budget)

    def others(self, case: OperationCase) -> list[OperationSubject]:
        """The other engines of `kda_forward` that can compute `case` here."""
        there = [
            OperationSubject(self.implementation, engine, self.target, self.dtype)
            for engine in ENGINES
            if engine.name != self.engine.name and self.target in engine.targets()
        ]
        return [
            other
            for other in there
            if self.dtype in other.support.dtypes and {case.DK, case.DV} <= set(other.support.channels)
        ]

    @property
    def options(self) -> str:
        """The options of the command line that choose it."""
        named = self.implementation.address or self.implementation.name
        return f"--impl {shlex.quote(named)} --target {self.target}"

    def __str__(self) -> str:
        return self.id


def operation_subjects(implementation: Implementation, target: str) -> list[OperationSubject]:
    """What computes the operation around `implementation` on `target`, with each dtype, the simplest first."""
    return [
        OperationSubject(implementation, engine, target, dtype)
        for engine in implementation.operations()
        if target in engine.targets()
        for dtype in engine.support(target).dtypes
    ]


def programs_of(subject: OperationSubject) -> list[tuple[OperationSubject, FormChoice]]:
    """What the laws of `subject` compile: each form of its palette, with its engine and with the others."""
    forms = subject.support.forms or ()
    return [(each, form) for form in forms for each in (subject, *subject.others(form.least(subject.dtype)))]


#: Conditions of a law that are not fields of a form.
_SIZES = ("few", "min_sequences", "min_tokens", "min_heads", "min_groups", "empty", "tail")


@dataclass(frozen=True)
class OperationLaw(Law):
    """One property of the operation."""

    diagnosed: ClassVar[bool] = False

    def subjects(self, implementation: Implementation, target: str) -> list[Any]:
        """What computes the operation around `implementation`, where it has the forms that the law is about."""
        found: list[Any] = operation_subjects(implementation, target)
        return [s for s in found if s.support.forms_with(self._wanted) != () and self.needs(s)]

    @property
    def _wanted(self) -> dict[str, Any]:
        return {name: values for name, values in self.narrowing.items() if name not in _SIZES}

    def excludes(self, subject: Any, case: Any) -> str | None:
        """Why `case` says nothing about this law on `subject`; None where it does."""
        if not isinstance(case, OperationCase):
            return "the line is a case of a kernel; the law is about the whole operation"
        if case.dtype != subject.dtype:
            return f"dtype is {case.dtype}; the subject's is {subject.dtype}"
        form = FormChoice.of(case)
        missed = form.misses(self._wanted)
        if missed is not None:
            return f"{missed} is {getattr(form, missed)}; the law is about {self._wanted[missed]}"
        channels = {name: getattr(case, name) for name in ("DK", "DV")}
        odd = next((name for name, number in channels.items() if number not in subject.support.channels), None)
        if odd is not None:
            return f"{odd} is {channels[odd]}; {subject.engine.name} has {subject.support.channels}"
        return self._too_small(case)

    def _too_small(self, case: OperationCase) -> str | None:
        sizes = {
            "min_sequences": len(case.sequences),
            "min_tokens": max(case.sequences),
            "min_heads": case.H,
            "min_groups": case.groups,
            "empty": int(0 in case.sequences),
            "tail": case.tail,
        }
        for name, number in sizes.items():
            if number < int(self.narrowing.get(name, 0)):
                return f"{name} is {int(self.narrowing[name])} for this law; the case has {number}"
        return None

    def notes(self, subject: Any, line: str) -> list[str]:
        """What a reader of a failure needs next: the law, the case, how to rerun it, how to keep it, as what line."""
        which = f"--property {self.name}"
        return [
            f"law:   {self.name}: {self.sentence}",
            f"case:  {line}",
            f"rerun: kda check {line} {which} {subject.options}",
            f"keep:  kda guard add {line} {which}",
            f"guard: {line} {self.name}",
        ]


def _always(subject: OperationSubject) -> bool:
    return True


def operation_law(
    strategy: Callable[..., Any],
    *,
    needs: Callable[[Any], bool] = _always,
    share: float = 1.0,
    **narrowing: Any,
) -> Callable[[Callable[[OperationSubject, OperationCase], None]], Callable[..., None]]:
    """Make a property test of a body `(subject, case)`.

    strategy: `strategies.operations`; narrowing: its keyword arguments. needs, share: as in `kda.suite.laws.law`.
    """

    def decorate(body: Callable[[OperationSubject, OperationCase], None]) -> Callable[..., None]:
        about: Any = body  # a law of another kind of subject and case
        return test_of(OperationLaw(*named(body), strategy, narrowing, about, (), needs, share))

    return decorate
