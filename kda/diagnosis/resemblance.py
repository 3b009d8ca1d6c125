"""Which known mistake a failure looks like: what failed, beside what every mistake of the catalogue gives.

The mistakes are made in the mirror, which costs no compiling. One is named only if it gives what the implementation
gave on the case that failed and on twelve more, and those that cannot be told apart are named together. A launch that
refuses too little or too much gives no wrong numbers: it is known by what it refuses (`kda.diagnosis.behaviour`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kda.case import Case
from kda.diagnosis.behaviour import behaviour, likely
from kda.diagnosis.candidates import Candidate, candidates
from kda.diagnosis.further import further_cases
from kda.diagnosis.wrong import Examined, Wrong
from kda.mutation.catalogue import Mistake
from kda.numerics.budget import Budget, Judged
from kda.numerics.compare import compare
from kda.problem import Inputs, Outputs, Tile
from kda.suite.laws import Subject
from kda.support import TileChoice

__all__ = ["Near", "Resemblance", "resemblance"]

#: A mistake is taken for the one that was made if what failed is that many times closer to it than to the right mirror.
CLOSER = 10.0
#: Mistakes that are listed where none is named.
NEAREST = 3
_WIDTH = 100


@dataclass(frozen=True)
class Near:
    """One mistake, and how near it comes.

    distance: of what failed to what the mistake gives, relative to its distance to what is right. agreed: the further
    cases on which the implementation gives what the mistake gives.
    """

    mistake: Mistake
    distance: float
    agreed: int


@dataclass(frozen=True)
class Resemblance:
    """The mistake that a failure looks like, or none and those that come nearest.

    twins: others that give the same on all these cases. how: in words, in which way it agrees. nearest: by distance,
    where none is named; tried, further: how many mistakes and further cases there were.
    """

    claimed: Mistake | None = None
    twins: tuple[Mistake, ...] = ()
    how: str = ""
    nearest: tuple[Near, ...] = ()
    tried: int = 0
    further: int = 0
    counted: str = "further cases"

    def lines(self) -> list[str]:
        """One to four lines of at most 100 columns."""
        if self.claimed is not None:
            twins = f"; or its twin {', '.join(twin.name for twin in self.twins)}" if self.twins else ""
            said = f"{self.claimed.sentence} ({self.claimed.source}){twins}"
            about = textwrap.wrap(said, _WIDTH - 2, max_lines=3, placeholder=" ...")
            return [f"looks like {self.claimed.name}: {self.how}", *(f"  {line}" for line in about)]
        if not self.nearest:
            return ["looks like no known mistake"]
        width = max(len(near.mistake.name) for near in self.nearest)
        return [
            f"looks like no known mistake; the nearest of {self.tried}, with distance (the right one's is 1):",
            *(
                f"  {near.mistake.name:{width}}  {near.distance:9.3g}, on {near.agreed} of {self.further} {self.counted}"
                for near in self.nearest
            ),
        ]


@dataclass
class _Compared:
    """A candidate on the case that failed, then on the further ones."""

    candidate: Candidate
    distance: float
    matches: bool
    same_bits: bool
    agreed: int = 0
    shown: int = 0


@dataclass
class _Further:
    """One more case, run when it is first asked for."""

    subject: Subject
    case: Case
    _runs: list[tuple[Inputs, Outputs | None, Judged]] = field(default_factory=list)

    def run(self) -> tuple[Inputs, Outputs | None, Judged]:
        """The inputs, what the implementation gives (None: it raises) and what is right."""
        if not self._runs:
            inputs = self.case.inputs()
            try:
                got = self.subject.run(inputs, self.case.tile)
            except Exception:
                got = None
            self._runs.append((inputs, got, _right(self.subject, inputs, self.case.tile)))
        return self._runs[0]


def resemblance(examined: Examined, wrong: Wrong | None) -> Resemblance:
    """The known mistake that a failure looks like.

    examined: the case that failed, under its law; wrong: its run that is wrong by itself (`wrong_run`), None where
    there is none.
    """
    by_outputs = _by_outputs(wrong) if wrong is not None else Resemblance()
    if by_outputs.claimed is not None:
        return by_outputs
    by_behaviour = _by_behaviour(examined)
    return by_behaviour if by_behaviour.claimed is not None or not by_outputs.nearest else by_outputs


def _by_behaviour(examined: Examined) -> Resemblance:
    seen = behaviour(examined)
    if seen is None:
        return Resemblance()
    case, probes = examined.case, len(seen.probes)
    choice = TileChoice(case.DK, case.DV, case.C, case.block_DV, case.threads, case.num_stages)
    found = likely(seen, choice)
    (first, agreed), *_ = found or [(None, 0)]
    if first is not None and agreed == probes:
        how = f"the same in {probes} of {probes} probes of what it refuses and of what memory does to it"
        return Resemblance(first, (), how, (), len(found), probes)
    near = tuple(Near(one, (probes - same) / len(seen.departures), same) for one, same in found[:NEAREST])
    return Resemblance(nearest=near, tried=len(found), further=probes, counted="probes")


def _by_outputs(wrong: Wrong) -> Resemblance:
    subject, inputs, tile = wrong.subject, wrong.inputs, wrong.tile
    try:
        right = _right(subject, inputs, tile)
        got = _with_nan_unwritten(wrong)
    except Exception:  # inputs that no reference takes, or a failure that does not repeat
        return Resemblance()
    if got.equals(right.outputs):
        return Resemblance()
    exp2 = subject.implementation.exp2(subject.target)
    made = [(candidate, candidate.run(inputs, tile, exp2)) for candidate in candidates()]
    compared = sorted(
        (_compared(candidate, would, got, right) for candidate, would in made if would is not None),
        key=lambda one: one.distance,
    )
    sizes = inputs.sizes
    choice = TileChoice(sizes.DK, sizes.DV, tile.C, tile.block_DV, tile.threads, tile.num_stages)
    further = [_Further(subject, case) for case in further_cases(choice, subject.support, subject.dtype)]
    matching = [one for one in compared if one.matches]
    for one in matching:
        _go_further(one, further)
    whole = [one for one in matching if one.agreed == len(further) and one.shown]
    if whole:
        bits = [one for one in whole if one.same_bits]
        first, *others = (one.candidate.mistake for one in bits or whole)
        how = f"{'bit for bit' if bits else 'within rounding'} on this and {len(further)} of {len(further)} further cases"
        return Resemblance(first, tuple(others), how, (), len(compared), len(further))
    nearest = compared[:NEAREST]
    for one in nearest:
        if one not in matching:
            _go_further(one, further)
    near = tuple(Near(one.candidate.mistake, one.distance, one.agreed) for one in nearest)
    return Resemblance(nearest=near, tried=len(compared), further=len(further))


def _with_nan_unwritten(wrong: Wrong) -> Outputs:
    """What the run gave, NaN where it wrote nothing."""
    memory = wrong.run.memory
    if np.isnan(memory.poison):
        return wrong.got
    return wrong.subject.run(wrong.inputs, wrong.tile, replace(memory, poison=float("nan")))


def _right(subject: Subject, inputs: Inputs, tile: Tile) -> Judged:
    """The mirror and how far another order of additions may end up; for other implementations, reference A."""
    judge = subject.judge_mirror if subject.implementation.mirrored else subject.judge
    return judge(inputs, tile)


def _compared(candidate: Candidate, would: Outputs, got: Outputs, right: Judged) -> _Compared:
    same = got.equals(would)
    distance = _distance(got, would) / _distance(got, right.outputs)
    closer = same or CLOSER * _worst(got, would, right) <= _worst(got, right.outputs, right)
    return _Compared(candidate, distance, closer and _agrees(got, would, right), same)


def _go_further(one: _Compared, further: Sequence[_Further]) -> None:
    """Count the further cases on which the implementation gives what the mistake gives, and those that show it."""
    for other in further:
        inputs, got, right = other.run()
        exp2 = other.subject.implementation.exp2(other.subject.target)
        would = one.candidate.run(inputs, other.case.tile, exp2)
        if got is None or would is None:
            continue
        same = got.equals(would)
        one.same_bits &= same
        one.agreed += same or _agrees(got, would, right)
        one.shown += not would.equals(right.outputs)


def _agrees(got: Outputs, would: Outputs, right: Judged) -> bool:
    """Whether the two differ by roundings alone."""
    return _worst(got, would, right) <= 1


def _worst(got: Outputs, would: Outputs, right: Judged) -> float:
    """The largest error / budget of a row: the right mirror's budget, larger as what the mistake gives is larger."""
    budget = Budget(
        right.budget.o * _growth(would.o, right.outputs.o),
        right.budget.final_state * _growth(would.final_state, right.outputs.final_state),
    )
    try:
        return max(verdict.ratio for verdict in compare(got, would, budget))
    except AssertionError:  # shapes that disagree
        return np.inf


def _growth(would: np.ndarray, right: np.ndarray) -> float:
    of_right = _norm(right)
    return max(1.0, _norm(would) / of_right) if of_right else 1.0


def _distance(got: Outputs, other: Outputs) -> float:
    """The 2-norm of the difference over both outputs, which counts NaN or infinity for a number as the largest one."""
    square = 0.0
    for (_, mine), (_, theirs) in zip(got.tensors(), other.tensors(), strict=True):
        if mine.shape != theirs.shape:
            return np.inf
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(mine - theirs)
        apart[(mine == theirs) | (np.isnan(mine) & np.isnan(theirs))] = 0.0
        numbers = np.abs(np.concatenate([mine.ravel(), theirs.ravel()]))
        largest = float(numbers[np.isfinite(numbers)].max(initial=0.0)) or 1.0
        apart[~np.isfinite(apart)] = largest
        square += float((apart * apart).sum())
    return float(np.sqrt(square))


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array[np.isfinite(array)]))
