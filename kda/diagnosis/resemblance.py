"""Which known mistake a failure looks like: what failed, beside what every mistake of the catalogue gives.

The mistakes are made in the mirror, which costs no compiling. One is named only if it gives what the implementation
gave on the case that failed and on twelve more, and those that cannot be told apart are named together. A launch that
refuses too little or too much gives no wrong numbers: it is known by what it refuses (`kda.diagnosis.behaviour`).
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kda.diagnosis.behaviour import behaviour, likely
from kda.diagnosis.candidates import Candidate, candidates
from kda.diagnosis.further import further_cases
from kda.diagnosis.layout import WIDTH
from kda.diagnosis.wrong import Examined, Wrong
from kda.mutation.catalogue import Mistake
from kda.numerics.budget import Budget, Judged
from kda.numerics.compare import all_finite, compare, errors
from kda.problem import Inputs, Outputs, Tile
from kda.suite.laws import Subject
from kda.support import TileChoice

__all__ = ["TWINS", "Near", "Resemblance", "resemblance"]

#: A mistake is taken for the one that was made if what failed is that many times closer to it than to the right mirror.
CLOSER = 10.0
#: Mistakes that are listed where none is named.
NEAREST = 3
#: Mistakes that are one program in some kernels, and why.
TWINS: dict[frozenset[str], str] = {
    frozenset(("doubling-product", "doubling-product-in-operand-precision")): "one program where operands are float32",
}


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
            said = f"{self.claimed.sentence} ({self.claimed.source})"
            for twin in self.twins:
                why = TWINS.get(frozenset((self.claimed.name, twin.name)), "the same on all of these")
                said += f"; or {twin.name}: {why}"
            about = textwrap.wrap(said, WIDTH - 2, max_lines=3, placeholder=" ...", break_on_hyphens=False)
            return [f"looks like {self.claimed.name}: {self.how}", *(f"  {line}" for line in about)]
        if not self.nearest:
            return ["looks like no known mistake"]
        width = max(len(near.mistake.name) for near in self.nearest)
        return [
            f"looks like no known mistake; the nearest of {self.tried}, with distance (the right one's is 1):",
            *(
                f"  {near.mistake.name:{width}}  {near.distance:.3g}, on {near.agreed} of {self.further} {self.counted}"
                for near in self.nearest
            ),
        ]


@dataclass
class _Compared:
    """A candidate on the case that failed, then on the further ones.

    matches: on the case that failed; same_bits: so far; agreed: the further cases on which it matches; shown: whether
    the mistake shows on one of them.
    """

    candidate: Candidate
    distance: float
    matches: bool
    same_bits: bool
    agreed: int = 0
    shown: bool = False


@dataclass(frozen=True)
class _One:
    """One run to compare with: what the implementation gave for these inputs, and, once it is asked for, what is right.

    got: None where it raised.
    """

    subject: Subject
    inputs: Inputs
    tile: Tile
    got: Outputs | None

    @functools.cached_property
    def right(self) -> Judged:
        """The mirror and how far another order of additions may end up; for other implementations, reference A."""
        judge = self.subject.judge_mirror if self.subject.implementation.mirrored else self.subject.judge
        return judge(self.inputs, self.tile)

    def by(self, candidate: Candidate) -> Outputs | None:
        """What a kernel with the candidate's mistake gives; None where it fails."""
        return candidate.run(self.inputs, self.tile, self.subject.implementation.exp2(self.subject.target))


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
    same = [mistake for mistake, agreed in found if agreed == probes]
    if same:
        how = f"the same in {probes} of {probes} probes of its launch"
        return Resemblance(same[0], tuple(same[1:]), how, (), len(found), probes)
    near = tuple(Near(m, (probes - agreed) / len(seen.departures), agreed) for m, agreed in found[:NEAREST])
    return Resemblance(nearest=near, tried=len(found), further=probes, counted="probes")


def _by_outputs(wrong: Wrong) -> Resemblance:
    try:
        one = _failed(wrong)
        if one.got is None or one.got.equals(one.right.outputs):
            return Resemblance()
    except Exception:  # inputs that no reference takes, or a failure that does not repeat
        return Resemblance()
    # What forms decays pair by pair is `kda_forward` or like it, and takes gates that `kda_chunk` cannot.
    made_in = candidates("forward_mirror" if wrong.subject.support.pairs else "mirror")
    compared = sorted(filter(None, (_compared(c, one) for c in made_in)), key=lambda c: c.distance)
    further = _further(wrong)
    matching = [made for made in compared if made.matches]
    nearest = compared[:NEAREST]
    for made in matching:
        _go_further(made, further)
    whole = [made for made in matching if made.agreed == len(further) and made.shown]
    if whole:
        first, *others = (made.candidate.mistake for made in whole)
        closely, n = "bit for bit" if whole[0].same_bits else "within rounding", len(further)
        how = f"{closely}, {n} of {n} further cases too"
        return Resemblance(first, tuple(others), how, (), len(compared), n)
    for made in nearest:
        if not made.matches:
            _go_further(made, further)
    near = tuple(Near(made.candidate.mistake, made.distance, made.agreed) for made in nearest)
    return Resemblance(nearest=near, tried=len(compared), further=len(further))


def _failed(wrong: Wrong) -> _One:
    """The run that failed, NaN where it wrote nothing."""
    subject, run, got = wrong.subject, wrong.run, wrong.got
    if not np.isnan(run.memory.poison):
        got = subject.run(run.inputs, run.tile, replace(run.memory, poison=float("nan")))
    return _One(subject, run.inputs, run.tile, got)


def _further(wrong: Wrong) -> list[_One]:
    subject, tile, sizes = wrong.subject, wrong.tile, wrong.inputs.sizes
    choice = TileChoice(sizes.DK, sizes.DV, tile.C, tile.block_DV, tile.threads, tile.num_stages)
    further = []
    for case in further_cases(choice, subject.support, subject.dtype):
        inputs = case.inputs()
        try:
            got = subject.run(inputs, case.tile)
        except Exception:
            got = None
        further.append(_One(subject, inputs, case.tile, got))
    return further


def _compared(candidate: Candidate, one: _One) -> _Compared | None:
    would = one.by(candidate)
    if would is None or one.got is None or not _of_one_shape(one.got, would):
        return None
    distance = _distance(one.got, would) / _distance(one.got, one.right.outputs)
    same = one.got.equals(would)
    # How far infinities spread hangs on rows past N, which the mirror does not have: the further cases decide.
    overflows = not (all_finite(one.got) or all_finite(would)) and all_finite(one.right.outputs)
    return _Compared(candidate, distance, same or overflows or _closer(one.got, would, one.right), same)


def _go_further(made: _Compared, further: Sequence[_One]) -> None:
    """Count the further cases on which the implementation gives what the mistake gives, and see whether it shows."""
    for one in further:
        would = one.by(made.candidate)
        if one.got is None or would is None or not _of_one_shape(one.got, would):
            made.same_bits = False
        elif one.got.equals(would):
            made.agreed += 1
            made.shown = made.shown or not would.equals(one.right.outputs)
        else:
            made.same_bits = False
            made.agreed += _worst(one.got, would, one.right) <= 1
            made.shown = made.shown or _closer(one.got, would, one.right)


def _closer(got: Outputs, would: Outputs, right: Judged) -> bool:
    """Whether `got` differs by roundings alone from what the mistake gives, and by far more from what is right."""
    worst = _worst(got, would, right)
    return worst <= 1 and CLOSER * worst <= _worst(got, right.outputs, right)


def _of_one_shape(one: Outputs, other: Outputs) -> bool:
    return one.o.shape == other.o.shape and one.final_state.shape == other.final_state.shape


def _worst(got: Outputs, would: Outputs, right: Judged) -> float:
    """The largest error / budget of a row: the right mirror's budget, larger as what the mistake gives is larger."""
    budget = Budget(
        right.budget.o * _growth(would.o, right.outputs.o),
        right.budget.final_state * _growth(would.final_state, right.outputs.final_state),
    )
    return max(verdict.ratio for verdict in compare(got, would, budget))


def _growth(would: np.ndarray, right: np.ndarray) -> float:
    of_right = _norm(right)
    return max(1.0, _norm(would) / of_right) if of_right else 1.0


def _distance(got: Outputs, other: Outputs) -> float:
    """The 2-norm of the difference over both outputs, which counts NaN or infinity for a number as the largest one."""
    square = 0.0
    for (_, mine), (_, theirs) in zip(got.tensors(), other.tensors(), strict=True):
        apart = errors(mine, theirs)
        numbers = np.abs(np.concatenate([mine.ravel(), theirs.ravel()]))
        largest = float(numbers[np.isfinite(numbers)].max(initial=0.0)) or 1.0
        apart[~np.isfinite(apart)] = largest
        square += float((apart * apart).sum())
    return float(np.sqrt(square))


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array[np.isfinite(array)]))
