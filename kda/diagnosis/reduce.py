"""Reducing a failing case until no token and no number of it can go: from what Hypothesis left to what a person reads.

Kinds make many numbers of few words, which shrinks well and reads badly: a failure of one token with `v=ones` still has
every value channel in it. Here the tensors become zeros and single numbers, and numbers are taken away in halves, then
one by one (delta debugging), as long as the law fails in the same way.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import copysign, frexp, isfinite, ldexp
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from kda.case import Case, CaseError, Edit
from kda.diagnosis.explicit import ZERO, active_tokens, case_of, cut_out, explicit, numbers, token_of
from kda.diagnosis.wrong import Run, examined, recording, wrong_run
from kda.kinds import FIELDS
from kda.numerics.compare import compare
from kda.problem import InputError
from kda.suite.laws import LAWS, Disagreement, Law, Subject
from kda.suite.record import Record
from kda.suite.smaller import smaller

if TYPE_CHECKING:
    from kda.suite.watch import Watch
    from kda.support import TileChoice

__all__ = ["CLEAR", "PLAIN_LAWS", "Reduced", "reduced", "strength"]

#: The laws that take any case, by what a wrong run was found wrong against.
PLAIN_LAWS = {"reference A": "kernel.matches_reference_A", "its mirror": "kernel.matches_its_mirror"}

#: The most tokens, and numbers of one tensor, that are not zero in a failure that a person takes in at a glance.
TOKENS, NUMBERS = 2, 4
#: Other numbers that are tried where there are more of them.
OTHERS = 60
#: Cases that are tried at most, the clock aside: five times what any entry of the catalogue takes.
MOST = 2000
#: A tensor with more numbers than this is not written out: each is an edit, and an edit costs 15 us a try.
MOST_EDITS = 4096
#: An error of so many budgets is clear. A reduction may go below it only where it began below, and never further down.
CLEAR = 2.0


@dataclass(frozen=True)
class Reduced:
    """The smallest failing case that was found, the law it fails on and what that raised.

    law: the one asked about, or one of PLAIN_LAWS where the numbers are wrong whatever the law made of them: `said`
    says so, and what else a reader must know ("" where there is nothing). tried: cases put under a law. complete:
    whether every step was tried and none works any more, so that no single token, number or sequence can go.
    """

    law: Law
    case: Case
    error: Exception
    before: Case
    said: str
    tried: int
    seconds: float
    complete: bool

    @property
    def dropped(self) -> str:
        """What went, in a line: "tokens 17 -> 2, numbers that are not zero 561 -> 6"; "nothing" where nothing did."""
        inputs = [case.inputs() for case in (self.before, self.case)]
        counts = {
            "batches": [case.B for case in (self.before, self.case)],
            "heads": [case.H for case in (self.before, self.case)],
            "tokens": [case.N for case in (self.before, self.case)],
            "tokens that are not zero": [active_tokens(one) for one in inputs],
            "DK": [case.DK for case in (self.before, self.case)],
            "DV": [case.DV for case in (self.before, self.case)],
            "numbers that are not zero": [sum(numbers(one).values()) for one in inputs],
        }
        went = [f"{what} {was} -> {now}" for what, (was, now) in counts.items() if was != now]
        return ", ".join(went) or "nothing"


def reduced(
    law: Law,
    subject: Subject,
    case: Case,
    error: Exception,
    budget_seconds: float = 5.0,
    watch: Watch | None = None,
) -> Reduced:
    """The smallest case found that fails as `case` does under `law`, where it raised `error`.

    Deterministic: the clock only ends it early. A failure keeps its kind: wrong numbers stay wrong numbers and finite
    ones finite, a refusal stays one, a crash too. Where the law feeds the kernel other inputs than the case's, or takes
    only some cases, and the kernel is wrong by itself, the reduction goes on under the plain law (see `Reduced.law`).
    """
    search = _Search(law, subject, case, error, budget_seconds, watch)
    said = ""
    if search.holds_again():
        said = "it did not fail in the same way again: nothing was reduced"
    else:
        search.begin()
        said = search.to_a_plain_law()
        search.go_on()
    return Reduced(
        search.law,
        search.case,
        search.error,
        case,
        said,
        search.tried,
        time.perf_counter() - search.started,
        search.complete,
    )


class _Search:
    """The smallest failure so far, and the steps down from it."""

    def __init__(
        self, law: Law, subject: Subject, case: Case, error: Exception, seconds: float, watch: Watch | None
    ) -> None:
        self.law, self.subject, self.case, self.error, self.watch = law, subject, case, error, watch
        self.started = time.perf_counter()
        # Of this process alone: how small a case becomes does not hang on what else the machine does.
        self._ends = time.process_time() + seconds
        self.tried = 0
        self.complete = False
        self._kind: tuple[object, ...] = ()
        self._strength = np.inf
        self._known: set[Case] = set()

    @property
    def over(self) -> bool:
        """Whether tries or time have run out."""
        return self.tried >= MOST or time.process_time() > self._ends

    # One try.

    def _outcome(self, law: Law, case: Case) -> tuple[Exception, tuple[object, ...], float] | None:
        """What `case` raises under `law`, of which kind, and how clearly; None where it holds or says nothing."""
        if law.excludes(self.subject, case) is not None:
            return None
        last: list[Run] = []
        watched = replace(self.subject, implementation=recording(self.subject.implementation, last.append))
        self.tried += 1
        try:
            law.holds_for(watched, case, Record(law.name, self.subject.id), self.watch)
        except Exception as error:
            return error, _kind(error, last), strength(error)
        return None

    def holds_again(self) -> bool:
        """Whether the case no longer fails, or no longer with an exception of the same type."""
        found = self._outcome(self.law, self.case)
        if found is None or type(found[0]) is not type(self.error):
            return True
        self.error, self._kind, self._strength = found
        return False

    def _fails(self, case: Case) -> bool:
        """Whether `case` fails in the same way, and as clearly; it is then the smallest so far."""
        if case in self._known or self.over:
            return False
        self._known.add(case)
        found = self._outcome(self.law, case)
        if found is None:
            return False
        error, kind, clearly = found
        if kind != self._kind or clearly < min(CLEAR, self._strength):
            return False
        self.case, self.error, self._strength = case, error, clearly
        return True

    def _take(self, change: Callable[..., Case], *how: Any) -> bool:
        """Whether the case changed by `change(case, *how)` is another one and fails; it is then the smallest so far."""
        try:
            candidate = change(self.case, *how)
        except CaseError:  # an edit of something that is gone, or a value that the tensor may not have
            return False
        return candidate != self.case and self._fails(candidate)

    # The way down.

    def begin(self) -> None:
        """Fewer sequences, tokens and kinds, as after Hypothesis."""
        smaller(self.case, self._fails)

    def to_a_plain_law(self) -> str:
        """Go on under a law that takes any case, with the inputs of the run that is wrong by itself; a line on it."""
        if self.law.name in PLAIN_LAWS.values() or not isinstance(self.error, Disagreement) or self.over:
            return ""
        wrong = wrong_run(examined(self.law, self.subject, self.case))
        law = LAWS.get(PLAIN_LAWS[wrong.against]) if wrong else None
        if wrong is None or law is None or wrong.subject != self.subject:
            return ""
        size = sum(numbers(wrong.inputs).values())
        candidates = [self.case]
        if size <= MOST_EDITS:
            candidates.append(case_of(wrong.inputs, wrong.tile))
        for candidate in candidates:
            found = self._outcome(law, candidate)
            if found is not None and isinstance(found[0], Disagreement):
                was, self.law, self.case = self.law, law, candidate
                self.error, self._kind, self._strength = found
                self._known.clear()
                return f"{was.name} fails because the numbers are wrong by themselves: reduced under {law.name}"
        return ""

    def go_on(self) -> None:
        """Every step from the largest to the smallest, until none works any more."""
        self._alike_keys()
        tiles = [self._smaller_tile] if self.subject.target == "c" else []
        while not self.over:
            before = self.case
            for step in (
                self._write_out,
                self._drop_tokens,
                self._drop_sequences,
                self._drop_numbers,
                self._join_tokens,
                self._first_channels,
                self._simplify,
                self._unify,
                self._plain_fields,
            ):
                step()
            if self.case == before and tiles:
                tiles.pop()()
                continue
            if self.case == before and not (self._at_half_strength() or self._other_numbers()):
                self.complete = not self.over
                return

    def _alike_keys(self) -> None:
        """All keys the first channel, one value, one beta: what is left of a hard triangular solve, and reads well.

        Keys that are equal and have no zeros make one with a beta of 1 or 2; a single channel needs another beta, for
        its products have no rounding errors, and perhaps more tokens.
        """
        if self.case.N < 3 or self.case.k.name in ("onehot", "zeros"):
            return
        for N in (self.case.N, min(2 * self.case.N, self.case.C)):
            for beta in (str(self.case.beta), "constant:1.9", "constant:0.9", "constant:1.5"):
                if self._take(_alike, N, beta):
                    return

    def _smaller_tile(self) -> None:
        """One of the two smallest tiles of the palette: each is compiled, which takes a second on the CPU."""
        for tile in (self.subject.support.tiles or ())[:2]:
            sizes = [(of.DK, of.DV, of.C, of.block_DV) for of in (tile, self.case)]
            smaller_one = sizes[0] != sizes[1] and all(one <= other for one, other in zip(*sizes, strict=True))
            if smaller_one and self._take(_on_tile, tile):
                return

    def _write_out(self) -> None:
        """Each tensor as zeros and edits, fewer and fewer of them."""
        for field, zeros in ZERO.items():
            if self._is(field, *zeros, "none"):
                continue
            for kind in (*zeros, "onehot") if field in ("q", "k", "v") else zeros:
                if self._take(_with, field, kind):
                    break
            if self._is(field, *zeros) or np.count_nonzero(getattr(self.case.inputs(), FIELDS[field])) > MOST_EDITS:
                continue
            for zero in zeros:
                if self._take(explicit, field, zero):
                    break
            tensor = "g" if field == "gate" else field
            self._without(_by(self.case.edits, token_of, tensor))
            self._without([[edit] for edit in self.case.edits if edit.tensor == tensor])

    def _is(self, field: str, *kinds: str) -> bool:
        return str(getattr(self.case, field)) in kinds

    def _drop_tokens(self) -> None:
        """Whole tokens: cut out where the place of the others does not matter, all zero where it does."""
        self._cut("N")
        self._without(_by(self.case.edits, token_of))

    def _drop_sequences(self) -> None:
        for axis in ("B", "H"):
            self._cut(axis)
            self._without(_by(self.case.edits, partial(_along, axis=axis)))

    def _drop_numbers(self) -> None:
        for tensor in ("v", "q", "g", "k", "beta", "state"):
            self._without([[edit] for edit in self.case.edits if edit.tensor == tensor])

    def _cut(self, axis: str) -> None:
        size = getattr(self.case, axis) // 2
        while size >= 1:
            start = 0
            while start + size <= getattr(self.case, axis) and getattr(self.case, axis) > size:
                if not self._take(cut_out, axis, start, start + size):
                    start += size
            size //= 2

    def _without(self, groups: Sequence[Sequence[Edit]]) -> None:
        """Take away groups of edits: half of them at a time, then a quarter, and so on down to single ones."""
        left = list(groups)
        size = len(left)
        while size >= 1:
            start = 0
            while start < len(left):
                if self._take(_less, {edit for group in left[start : start + size] for edit in group}):
                    del left[start : start + size]
                else:
                    start += size
            size //= 2

    def _join_tokens(self) -> None:
        """What all tokens hold, or two of them, in one."""
        tokens = sorted({t for edit in self.case.edits if (t := token_of(edit)) is not None}, reverse=True)
        if len(tokens) > 2 and any(
            self._take(_joined, set(tokens) - {goal}, goal) for goal in tokens[:: len(tokens) - 1]
        ):
            return
        for source in tokens:
            any(self._take(_joined, {source}, goal) for goal in tokens if goal != source)

    def _at_half_strength(self) -> bool:
        """One token less, and every beta 0.5: what betas of 0 and 1 need three tokens for, two may show."""
        tokens = sorted({t for edit in self.case.edits if (t := token_of(edit)) is not None})
        return len(tokens) > TOKENS and any(self._take(_halved, gone) for gone in tokens)

    def _other_numbers(self) -> bool:
        """One number less of a tensor that has many, and the others anew: a rounding error needs some, not these."""
        random = Random(0)
        for tensor in ("k", "v", "q", "g", "beta", "state"):
            many = [number for number, edit in enumerate(self.case.edits) if edit.tensor == tensor]
            if len(many) <= NUMBERS:
                continue
            for n in range(OTHERS):
                gone = self.case.edits[many[n % len(many)]]
                # As many bits as float16 holds: fewer would not be rounded.
                sign = -1.0 if tensor == "g" else 1.0
                anew = {number: sign * random.randrange(1025, 2048) / 2048 for number in many}
                if self._take(_without_one, gone, anew):
                    return True
        return False

    def _first_channels(self) -> None:
        """The same numbers in the first key channels, and in the first value channels."""
        for axis in ("DK", "DV"):
            self._take(_first, axis)

    def _simplify(self) -> None:
        """Each number replaced by 1, a power of two, a number of few bits."""
        for number, edit in enumerate(self.case.edits):
            any(self._take(_set, {number: value}) for value in _simpler(edit.tensor, edit.value))

    def _unify(self) -> None:
        """All numbers of a tensor the same."""
        for tensor in ("g", "beta", "k", "q", "v", "state"):
            values = {number: edit.value for number, edit in enumerate(self.case.edits) if edit.tensor == tensor}
            if len(set(values.values())) > 1:
                any(self._take(_set, dict.fromkeys(values, v)) for v in sorted(set(values.values()), key=_bits))

    def _plain_fields(self) -> None:
        """What says nothing any more: a state that is all zero, a seed that nothing draws from."""
        for field, plain in (("state", "none"), ("seed", 0), ("threads", None), ("num_stages", 0)):
            self._take(_with, field, plain)


def _kind(error: Exception, runs: Sequence[Run]) -> tuple[object, ...]:
    """What must stay the same: what was raised, whether numbers were finite, and how the last run ended."""
    if isinstance(error, Disagreement):
        return Disagreement, all(
            bool(np.isfinite(got[np.isfinite(expected)]).all())
            for (_, got), (_, expected) in zip(error.got.tensors(), error.expected.tensors(), strict=True)
            if got.shape == expected.shape
        )
    ended = runs[-1].outcome if runs else None
    return InputError if isinstance(error, InputError) else type(error), type(ended)


def strength(error: Exception) -> float:
    """How many budgets the worst row is off; infinite where every bit must agree."""
    if not isinstance(error, Disagreement) or error.budget is None:
        return np.inf
    try:
        return max(verdict.ratio for verdict in compare(error.got, error.expected, error.budget))
    except AssertionError:  # a shape is wrong
        return np.inf


def _with(case: Case, field: str, value: Any) -> Case:
    """`case` with another kind (or value) of a field, without the edits that were made to the old one."""
    tensor = "g" if field == "gate" else field
    return case.replace(edits=tuple(e for e in case.edits if e.tensor != tensor)).replace(**{field: value})


def _less(case: Case, gone: set[Edit]) -> Case:
    # What the constructor checks of each edit takes longer than the kernel, and held already.
    made = copy.copy(case)
    object.__setattr__(made, "edits", tuple(edit for edit in case.edits if edit not in gone))
    return made


def _on_tile(case: Case, tile: TileChoice) -> Case:
    return tile.of(case.cut(DK=tile.DK, DV=tile.DV))


def _alike(case: Case, N: int, beta: str) -> Case:
    keys = (Edit("k", (t, 0), 1.0) for t in range(N))
    made = case.replace(edits=()).replace(N=N, beta=beta, k="zeros", v="zeros", edits=(*keys, Edit("v", (0, 0), 1.0)))
    fewer = sum(numbers(made.inputs()).values()) < sum(numbers(case.inputs()).values())
    return made if fewer else case


def _along(edit: Edit, axis: str) -> int | None:
    return edit.index[edit.axes.index(axis)] if axis in edit.axes else None


def _by(edits: Iterable[Edit], place: Callable[[Edit], int | None], tensor: str | None = None) -> list[list[Edit]]:
    """Edits (of one tensor) in groups of the same place, the last place first; those without one are left out."""
    groups: dict[int, list[Edit]] = {}
    for edit in edits:
        at = place(edit)
        if at is not None and tensor in (None, edit.tensor):
            groups.setdefault(at, []).append(edit)
    return [groups[at] for at in sorted(groups, reverse=True)]


def _set(case: Case, values: dict[int, float]) -> Case:
    return case.replace(edits=tuple(replace(e, value=values.get(i, e.value)) for i, e in enumerate(case.edits)))


def _without_one(case: Case, gone: Edit, values: dict[int, float]) -> Case:
    made = _set(case, values)
    edits = (new for new, old in zip(made.edits, case.edits, strict=True) if old is not gone)
    return made.replace(edits=tuple(edits))


def _halved(case: Case, gone: int) -> Case:
    """The case without token `gone`, and with a beta of 0.5 at every other that has a key."""
    edits = [edit for edit in case.edits if edit.tensor != "beta" and token_of(edit) != gone]
    places = dict.fromkeys(edit.index[:-1] for edit in edits if edit.tensor == "k")
    return _with(case, "beta", "zero").replace(edits=(*edits, *(Edit("beta", at, 0.5) for at in places)))


def _moved(edit: Edit, axis: str, to: int) -> Edit:
    return replace(edit, index=tuple(to if a == axis else i for a, i in zip(edit.axes, edit.index, strict=True)))


def _joined(case: Case, sources: set[int], goal: int) -> Case:
    """The edits of the tokens `sources` made to token `goal`; where several meet, gates add up and the first stays."""
    places: dict[tuple[str, tuple[int, ...]], Edit] = {}
    for edit in sorted(case.edits, key=lambda edit: token_of(edit) in sources):
        moved = _moved(edit, "N", goal) if token_of(edit) in sources else edit
        there = places.get((moved.tensor, moved.index))
        if there is None:
            places[moved.tensor, moved.index] = moved
        elif moved.tensor == "g":
            places[moved.tensor, moved.index] = replace(there, value=there.value + moved.value)
    return case.replace(edits=tuple(places.values()))


def _first(case: Case, axis: str) -> Case:
    used = sorted({at for edit in case.edits if (at := _along(edit, axis)) is not None})
    to = {at: number for number, at in enumerate(used)}
    return case.replace(
        edits=tuple(e if (at := _along(e, axis)) is None else _moved(e, axis, to[at]) for e in case.edits)
    )


def _bits(value: float) -> tuple[float, ...]:
    """How much there is to a number: significant bits, distance of its exponent from that of 1, a sign."""
    fraction, exponent = frexp(abs(value))
    bits = 0
    while fraction:
        fraction = fraction * 2 % 1
        bits += 1
    return bits, abs(exponent - 1), value < 0, value


def _simpler(tensor: str, value: float) -> Iterator[float]:
    """Numbers with less to them, the simplest first; a gate stays negative."""
    sign = -1.0 if tensor == "g" else 1.0
    fraction, exponent = frexp(abs(value))
    near = [sign] + [
        s * ldexp(round(ldexp(fraction, bits)), exponent - bits)
        for bits in (1, 2, 3, 4, 6, 8, 11, 16)
        for s in dict.fromkeys((sign, copysign(1.0, value)))
    ]
    for candidate in dict.fromkeys(near):
        if isfinite(candidate) and candidate and _bits(candidate)[:3] < _bits(value)[:3]:
            yield candidate
