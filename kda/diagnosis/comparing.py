"""Two implementations on the same cases: in how many they agree, and the smallest case in which they do not.

Each may be off by its own budget, so two that are right differ by the sum of both at most.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given

from kda.case import Case
from kda.diagnosis.picture import picture
from kda.formats import Format
from kda.implementations import Implementation
from kda.mutation.hunt import hunt
from kda.numerics.budget import Budget
from kda.numerics.compare import Verdict, compare
from kda.problem import InputError, Outputs
from kda.suite.laws import Law, Subject, within
from kda.support import Support
from strategies import cases

__all__ = [
    "DIFFERENT",
    "STATUSES",
    "Compared",
    "Comparison",
    "Pair",
    "common_support",
    "drawn",
    "pairs",
]

SAME, WITHIN, OUTSIDE, REFUSED, RAISED = "same bits", "within", "outside", "refused", "raised"
#: What may come of a case: the same bits; a difference within the sum of both budgets, or outside; both refused it; one
#: raised what the other did not.
STATUSES = (SAME, WITHIN, OUTSIDE, REFUSED, RAISED)
#: Those that two right implementations never have.
DIFFERENT = (OUTSIDE, RAISED)

#: Cases of one Hypothesis run; short runs with seeds of their own are spread wider than one long run.
_BATCH = 250


@dataclass(frozen=True)
class Compared:
    """What came of one case.

    verdicts: of the first's outputs beside the second's, a ratio being difference / sum of the budgets; none where one
    of the two raised. said: what was raised, and by which. drawing: the picture of a difference.
    """

    case: Case
    status: str
    verdicts: tuple[Verdict, ...] = ()
    said: str = ""
    drawing: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The worst ratio; 0 where one of the two raised."""
        return max((verdict.ratio for verdict in self.verdicts), default=0.0)

    @property
    def trusted(self) -> bool:
        """Whether the budgets are below the signal: else it says little that they agree."""
        return any(verdict.trusted for verdict in self.verdicts)


@dataclass(frozen=True)
class Pair:
    """Two implementations with one operand format, each on its target; support: the cases that both can run."""

    first: Subject
    second: Subject
    support: Support

    @property
    def names(self) -> tuple[str, str]:
        """What each was asked for by."""
        first, second = self.first.implementation, self.second.implementation
        return first.address or first.name, second.address or second.name

    @functools.cached_property
    def cases(self) -> Any:
        """The strategy for cases that both can run."""
        return cases(self.support, self.first.dtype)

    def compared(self, case: Case) -> Compared:
        """Run `case` on both."""
        got, expected = (_outcome(subject, case) for subject in (self.first, self.second))
        if isinstance(got, Outputs) and isinstance(expected, Outputs):
            budget = self._budget(case)
            verdicts = tuple(compare(got, expected, budget))
            if got.equals(expected):
                return Compared(case, SAME, verdicts)
            if all(verdict.passed for verdict in verdicts):
                return Compared(case, WITHIN, verdicts)
            return Compared(case, OUTSIDE, verdicts, drawing=tuple(picture(got, expected, budget, case.tile)))
        if isinstance(got, InputError) and isinstance(expected, InputError):
            return Compared(case, REFUSED, said=str(got))
        said = (f"{name} {_in_a_line(outcome)}" for name, outcome in zip(self.names, (got, expected), strict=True))
        return Compared(case, RAISED, said="; ".join(said))

    @property
    def law(self) -> Law:
        """That they agree, as a law about the first: cases that break it can be hunted and shrunk."""

        def body(subject: Subject, case: Case) -> None:
            __tracebackhide__ = True
            got, expected = (_outcome(one, case) for one in (subject, self.second))
            if isinstance(got, Outputs) and isinstance(expected, Outputs):
                within(got, expected, self._budget(case))
                return
            raised = [outcome for outcome in (got, expected) if isinstance(outcome, Exception)]
            errors = [error for error in raised if not isinstance(error, InputError)]
            if errors or len(raised) == 1:
                raise (errors or raised)[0]

        sentence = f"{' and '.join(self.names)} differ by at most the sum of their budgets"
        return Law("compare", sentence, lambda support, dtype: self.cases, {}, body, (), lambda subject: True, 1.0)

    def _budget(self, case: Case) -> Budget:
        inputs = case.inputs()
        return self.first.judge(inputs, case.tile).budget + self.second.judge(inputs, case.tile).budget


def _outcome(subject: Subject, case: Case) -> Outputs | Exception:
    try:
        return subject.run(case.inputs(), case.tile)
    except Exception as error:
        return error


def _in_a_line(outcome: Outputs | Exception) -> str:
    if isinstance(outcome, Outputs):
        return "computed it"
    return f"raised {type(outcome).__name__}: {next(iter(str(outcome).splitlines()), '')}"


def pairs(
    first: Implementation, second: Implementation, targets: tuple[str, str], dtypes: Sequence[Format] = ()
) -> list[Pair]:
    """A pair per operand format that both have, those of `dtypes` alone if any are given.

    ValueError: no such format, or no tile in common.
    """
    both = [dtype for dtype in first.dtypes(targets[0]) if dtype in second.dtypes(targets[1])]
    wanted = [dtype for dtype in both if not dtypes or dtype in dtypes]
    if not wanted:
        own = "; ".join(
            f"{one.name} has {', '.join(map(str, one.dtypes(target)))}"
            for one, target in zip((first, second), targets, strict=True)
        )
        asked = f" among {', '.join(map(str, dtypes))}" if dtypes else ""
        raise ValueError(f"{first.name} and {second.name} have no operand format in common{asked}: {own}")
    made = []
    for dtype in wanted:
        subjects = [Subject(one, target, dtype) for one, target in zip((first, second), targets, strict=True)]
        support = common_support(subjects[0].support, subjects[1].support, dtype)
        if support is None:
            raise ValueError(f"{first.name} and {second.name} have no tile in common with {dtype} operands")
        made.append(Pair(subjects[0], subjects[1], support))
    return made


def common_support(one: Support, other: Support, dtype: Format) -> Support | None:
    """The cases that both can run, gates inside both domains; None where they share no tile."""
    tiles = one.tiles if other.tiles is None else other.tiles
    if one.tiles is not None and other.tiles is not None:
        tiles = tuple(tile for tile in one.tiles if tile in other.tiles)
        if not tiles:
            return None
    limited = [support for support in (one, other) if support.max_total_gate(dtype) < inf]
    windows = [support.sub_C for support in limited]
    sizes = ("max_tokens", "max_batch", "max_heads", "max_DK", "max_DV", "max_C")
    return replace(
        one,
        dtypes=(dtype,),
        tiles=tiles,
        # The smaller total over the longer window is inside both.
        total_gates={dtype: min(support.max_total_gate(dtype) for support in limited)} if limited else {},
        sub_C=max((sub_C for sub_C in windows if sub_C is not None), default=None) if None not in windows else None,
        initial_state=one.initial_state and other.initial_state,
        **{name: min(getattr(one, name), getattr(other, name)) for name in ("max_token_gate", "max_beta", *sizes)},
    )


@dataclass(frozen=True)
class Comparison:
    """What came of the cases of a pair that were drawn from a seed."""

    pair: Pair
    seed: int
    found: tuple[Compared, ...]

    def count(self, status: str) -> int:
        """The cases of which this came."""
        return sum(one.status == status for one in self.found)

    @property
    def computed(self) -> list[Compared]:
        """The cases that both computed."""
        return [one for one in self.found if one.verdicts]

    @property
    def differs(self) -> bool:
        """Whether they are not the same, or no case could tell."""
        return not self.computed or any(one.status in DIFFERENT for one in self.found)

    def smallest_difference(self) -> Compared | None:
        """The first case that differs, shrunk; None where there is none."""
        first = next((number for number, one in enumerate(self.found) if one.status in DIFFERENT), None)
        if first is None:
            return None
        # The same seed comes by the same case again, and this time it is a failure, which Hypothesis shrinks.
        hunted = hunt(self.pair.law, self.pair.first, self.seed + first // _BATCH, _BATCH)
        again = None if hunted.case is None else self.pair.compared(hunted.case)
        return again if again is not None and again.status in DIFFERENT else self.found[first]


def drawn(pair: Pair, number: int, seed: int) -> Comparison:
    """`number` cases drawn from `seed`, each run on both."""
    found: list[Compared] = []
    for batch in range(-(-number // _BATCH)):

        @hypothesis.seed(seed + batch)
        @hypothesis.settings(
            max_examples=min(_BATCH, number - batch * _BATCH),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        @given(case=pair.cases)
        def draw(case: Case) -> None:
            found.append(pair.compared(case))

        draw()
    return Comparison(pair, seed, tuple(found))
