"""The neighbours of a case, for climbing: one change at a time, and nothing that a search did not draw.

A strategy narrows its cases to a law, to what the subject supports and to the gate domain, by construction. So what a
neighbour takes over comes from cases that were drawn, or lies between two of them, and keeps to all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from random import Random
from typing import TypeVar

from kda.case import Case, CaseError, Edit
from kda.kinds import FIELDS, KINDS, Kind

__all__ = ["Neighbourhood"]

Move = Callable[..., Case]
T = TypeVar("T")

#: New seeds per round: of all changes the one that keeps everything that made a case bad.
_SEEDS = 8
#: How far towards another kind of the same name a parameter goes.
_STEPS = (0.5, 0.125, 0.03125)
_TILE = ("DK", "DV", "C", "block_DV", "threads", "num_stages")


class Neighbourhood:
    """The neighbours of a case, as far as the cases in `drawn` reach; `drawn` is not empty."""

    def __init__(self, drawn: Sequence[Case]) -> None:
        self._spans = {axis: _span([getattr(case, axis) for case in drawn]) for axis in ("B", "N", "H")}
        self._tiles = _unique((tuple(getattr(case, name) for name in _TILE), case.gate) for case in drawn)
        self._kinds = {name: _unique(getattr(case, name) for case in drawn) for name in FIELDS}
        self._edits = _unique(edit for case in drawn for edit in case.edits)
        self._most_edits = max(len(case.edits) for case in drawn)
        # A gate keeps to the domain over the chunks of its own case, and so over shorter ones.
        self._reach: dict[Kind, int] = {}
        for case in drawn:
            self._reach[case.gate] = max(case.C, self._reach.get(case.gate, 0))

    def __call__(self, case: Case, rng: Random) -> Iterator[Case]:
        """The neighbours of `case`, in an order and with seeds, kinds and edits that `rng` chooses."""
        moves = [*self._sizes(case), *self._inputs(case, rng), *self._edited(case, rng)]
        rng.shuffle(moves)
        for move in moves:
            try:
                candidate = move()
            except CaseError:  # an edit outside the sizes, a parameter that was rounded out of its range
                continue
            if candidate != case:
                yield candidate

    def _sizes(self, case: Case) -> Iterator[Move]:
        """Other numbers of tokens (one more or less, the borders of chunks), batches and heads."""
        border = case.N // case.C * case.C
        counts = {"N": {case.N - 1, case.N + 1, *(border + i for i in (-1, 0, 1, case.C, case.C + 1))}}
        counts |= {axis: {getattr(case, axis) - 1, getattr(case, axis) + 1} for axis in ("B", "H")}
        for axis, values in counts.items():
            for value in sorted(values & {*self._spans[axis]}):
                yield lambda axis=axis, value=value: _fitted(case, **{axis: value})

    def _inputs(self, case: Case, rng: Random) -> Iterator[Move]:
        """Another tile, other kinds, other parameters of the same kind, other seeds."""
        values, gate = rng.choice(self._tiles)
        tile = dict(zip(_TILE, values, strict=True))
        if tile["C"] > self._reach.get(case.gate, case.C):
            tile["gate"] = gate
        yield lambda: _fitted(case, **tile)
        for name in FIELDS:
            kinds = [k for k in self._kinds[name] if name != "gate" or self._reach[k] >= case.C]
            mine = getattr(case, name)
            if kinds:
                # By name first: kinds with many parameters would drown those with none.
                other = rng.choice(sorted({kind.name for kind in kinds}))
                kind = rng.choice([kind for kind in kinds if kind.name == other])
                yield lambda name=name, kind=kind: _fitted(case, **{name: kind})
            alike = [kind for kind in kinds if kind.name == mine.name and kind.params != mine.params]
            if alike:
                kind = _between(name, mine, rng.choice(alike), rng.choice(_STEPS))
                yield lambda name=name, kind=kind: case.replace(**{name: kind})
        if any(KINDS[name][getattr(case, name).name].random for name in FIELDS):
            for seed in (case.seed - 1, case.seed + 1, *(rng.getrandbits(32) for _ in range(_SEEDS))):
                yield lambda seed=seed: case.replace(seed=seed)

    def _edited(self, case: Case, rng: Random) -> Iterator[Move]:
        """One edit more, one less, one with another value, one a place further."""
        if self._edits and len(case.edits) < self._most_edits:
            more = (*case.edits, rng.choice(self._edits))
            yield lambda: case.replace(edits=more)
        for i, edit in enumerate(case.edits):
            around = case.edits[:i], case.edits[i + 1 :]
            value = rng.choice([e.value for e in self._edits if e.tensor == edit.tensor] or [edit.value])
            part, step = rng.randrange(len(edit.index)), rng.choice((-1, 1))
            index = tuple(at + step * (j == part) for j, at in enumerate(edit.index))
            for instead in ((), (replace(edit, value=value),), (replace(edit, index=index),)):
                yield lambda around=around, instead=instead: case.replace(edits=(*around[0], *instead, *around[1]))


def _unique(values: Iterator[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _span(values: list[int]) -> range:
    return range(min(values), max(values) + 1)


def _fitted(case: Case, **changes: object) -> Case:
    """`case` with other sizes or kinds, without the edits that no longer have a place."""
    bare = case.replace(edits=(), **changes)
    return bare.replace(edits=tuple(edit for edit in case.edits if _has_place(edit, bare)))


def _has_place(edit: Edit, case: Case) -> bool:
    return edit.fits(case.sizes) and not (edit.tensor == "state" and case.state.name == "none")


def _between(field: str, one: Kind, other: Kind, step: float) -> Kind:
    params = []
    for param, a, b in zip(KINDS[field][one.name].params, one.params, other.params, strict=True):
        # Four digits keep a line short; what rounding adds must not lead beyond the two.
        value = min(max(float(f"{a + step * (b - a):.4g}"), min(a, b)), max(a, b))
        # Upwards: the whole numbers of a gate (a period, a chunk length) keep to the domain that way.
        params.append(ceil(value) if param.type is int else value)
    return Kind(one.name, tuple(params))
