"""The first wrong stage: which tile of which chunk a kernel made wrong from what it held.

The kernel runs once more on the inputs of a wrong run, with probes in its source (`kda.diagnosis.probes`); each stage
is then made again, as the mirror makes it, from the kernel's own values of the stages before (`kda.diagnosis.steps`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kda.diagnosis.described import described
from kda.diagnosis.layout import WIDTH
from kda.diagnosis.probes import Probed, Unprobed, probed
from kda.diagnosis.steps import STEPS, Steps, steps_of
from kda.diagnosis.wrong import Wrong
from kda.numerics.compare import errors
from kda.references._layout import heads_first
from kda.references.forward import SUB_CHUNK

__all__ = ["GRID", "LOOP", "ORDER", "At", "StageCheck", "Staged", "first_wrong_stage"]

#: Programs that never ran, and chunks that no program went through: wrong before anything is loaded.
GRID, LOOP = "grid", "loop over chunks"

#: The outputs, which need no probe.
_O, _STATE = "o as stored", "final state as stored"

#: Everything that can be wrong first, in order.
ORDER = (GRID, LOOP, *STEPS)

_STATES = ("S at the start", "S_s", "S", _STATE)
_PAIRS = ("M", "L", "A_qk")
#: What each program makes of its own block of value channels.
_OF_BLOCKS = ("v", "U", "W S", "V_tilde", "o", _O, *_STATES)


@dataclass(frozen=True)
class StageCheck:
    """One stage of one chunk in every program: what it was, what it should be given what the kernel held before it.

    got, expected, bound: `[blocks, B, H, rows, columns]`; wrong: where they differ by more than the bound.
    """

    name: str
    chunk: int
    got: np.ndarray
    expected: np.ndarray
    bound: np.ndarray
    wrong: np.ndarray

    @property
    def error(self) -> np.ndarray:
        """|got - expected|, 0 where both are the same infinity or NaN, infinite where one alone is."""
        return errors(self.got, self.expected)


@dataclass(frozen=True)
class At:
    """A cell of a stage, by its program and its place in the tile."""

    batch: int
    head: int
    block: int
    row: int
    column: int


@dataclass(frozen=True)
class Staged:
    """What the probes of a wrong run say.

    stage: the first that is wrong by its own step, None where none is (or nothing was probed: `why`). chunk, at: its
    first wrong cell; got, expected, error, bound: there; cells: how many of the `of` cells of this stage and chunk are
    wrong. right: the stages of this chunk before it; also: those that are wrong by their own step too; missing: not
    probed; same_bits: the probed run gave the outputs of the plain one; checks: everything, by chunk and stage.
    instead: the outputs in words, where there is no stage.
    """

    stage: str | None
    chunk: int = 0
    at: At = At(0, 0, 0, 0, 0)
    got: float = 0.0
    expected: float = 0.0
    error: float = 0.0
    bound: float = 0.0
    cells: int = 0
    of: int = 0
    right: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    same_bits: bool = True
    why: str = ""
    instead: tuple[str, ...] = ()
    checks: tuple[StageCheck, ...] = field(default=(), repr=False)
    blocks: int = 1
    C: int = 0
    block_DV: int = 0

    def lines(self) -> list[str]:
        """Two to four lines of at most 100 columns."""
        if self.stage is None:
            none = "first wrong stage: none (every probed stage follows from the ones before it as in the mirror)"
            said = f"the stages were not looked at: {self.why}" if self.why else none
            return [*map(_short, (said, *self.instead)), *self._notes]
        block = f", block {self.at.block}" if self.blocks > 1 and self.stage in (*_OF_BLOCKS, GRID, LOOP) else ""
        where = f"(chunk {self.chunk}, batch {self.at.batch}, head {self.at.head}{block})"
        if self.stage in (GRID, LOOP):
            what = "a program never ran" if self.stage == GRID else "a chunk was never run"
            return [_short(f"first wrong stage: {self.stage} {where}: {what}"), *self._notes]
        first = f"first wrong stage: {self.stage} {where}, from {self._place()}"
        numbers = f"got {self.got:.9g}, expected {self.expected:.9g} (bound {self.bound:.3g})"
        made = [f"{first}: {numbers}"] if len(first) + len(numbers) + 2 <= WIDTH else [first, f"  {numbers}"]
        made[-1] += f"; {self.cells} of {self.of} cells are wrong" if len(made[-1]) < WIDTH - 36 else ""
        return [*map(_short, made), *self._more()]

    def _more(self) -> list[str]:
        right = f"right before it: {', '.join(self.right) or 'nothing is made before it'}"
        if len(right) > WIDTH:
            right = f"right before it: all {len(self.right)} stages from {self.right[0]} to {self.right[-1]}"
        return [right, *self._notes]

    @property
    def _notes(self) -> list[str]:
        notes = (
            []
            if self.same_bits
            else ["with probes it gives OTHER BITS (a race, or memory read before it is written?): read this with care"]
        )
        notes += [f"wrong by their own step too: {', '.join(self.also)}"] if self.also else []
        notes += [f"not probed: {', '.join(self.missing)}"] if self.missing else []
        return [_short("; ".join(notes))] if notes else []

    def _place(self) -> str:
        assert self.stage is not None
        at = self.at
        value_channel = at.block * self.block_DV + at.column
        if self.stage == "e^gamma_C":
            return f"key channel {at.row}"
        if self.stage in _STATES:
            return f"key channel {at.row}, value channel {value_channel}"
        start = self.chunk * self.C
        if self.stage == "k to its border":
            border, token = divmod(at.row, self.C)
            return f"row {token} (token {start + token}) for token {start + border * SUB_CHUNK}, channel {at.column}"
        row = f"row {at.row} (token {start + at.row})"
        if self.stage in _PAIRS:
            return f"{row}, column {at.column} (token {start + at.column})"
        if self.stage == "beta":
            return row
        return f"{row}, channel {value_channel if self.stage in _OF_BLOCKS else at.column}"


def _short(line: str) -> str:
    return line if len(line) <= WIDTH else textwrap.shorten(line, WIDTH, placeholder=" ...")


def first_wrong_stage(wrong: Wrong) -> Staged:
    """The first stage, by chunk and in the order in which they are made, that some program made wrong by its own step.

    Of an implementation that cannot be probed, the outputs in words.
    """
    run, subject = wrong.run, wrong.subject
    tile, sizes = run.tile, run.inputs.sizes
    try:
        seen = probed(subject.implementation, run.inputs, tile, subject.target, run.memory)
    except Unprobed as error:
        return Staged(None, why=str(error), instead=tuple(described(wrong)))
    exact = subject.implementation.exact_mirror(subject.target, tile.dtype)
    exp2 = subject.implementation.exp2(subject.target) if subject.implementation.mirrored else None
    made = steps_of(subject.implementation.sources()["kernel"].function)
    checks = tuple(_checks(wrong, seen, made(run.inputs, tile, seen.values, exp2, exact)))
    same_bits = seen.outputs.equals(wrong.got)
    first = next((check for check in checks if check.wrong.any()), None)
    if first is None:
        return Staged(None, missing=seen.missing, same_bits=same_bits, instead=tuple(described(wrong)), checks=checks)
    # Batch, head, block, row, column: the order in which a reader narrows a place down.
    batch, head, block, row, column = (int(i) for i in np.argwhere(np.moveaxis(first.wrong, 0, 2))[0])
    cell = (block, batch, head, row, column)
    wrong_ones = dict.fromkeys(check.name for check in checks if check.wrong.any())
    return Staged(
        first.name,
        first.chunk,
        At(batch, head, block, row, column),
        got=float(first.got[cell]),
        expected=float(first.expected[cell]),
        error=float(first.error[cell]),
        bound=float(first.bound[cell]),
        cells=int(first.wrong.sum()),
        of=first.wrong.size,
        right=tuple(c.name for c in checks[: checks.index(first)] if c.chunk == first.chunk),
        also=tuple(name for name in wrong_ones if name != first.name),
        missing=seen.missing,
        same_bits=same_bits,
        checks=checks,
        blocks=-(-sizes.DV // tile.block_DV),
        C=tile.C,
        block_DV=tile.block_DV,
    )


def _checks(wrong: Wrong, seen: Probed, steps: Steps) -> Iterator[StageCheck]:
    """Every stage that was probed, chunk by chunk, in the order in which they are made."""
    values = seen.values | {_O: _stored_o(wrong, seen, steps)}
    some = np.asarray(seen.ran.any(-1))
    for chunk in range(seen.ran.shape[-1]):
        ran = seen.ran[..., chunk]
        if chunk == 0 and not some.all():
            yield _ran(GRID, chunk, some)
        if not ran[some].all():
            yield _ran(LOOP, chunk, ran | ~some)
        for stage in STEPS:
            if stage in values:
                cut = (slice(None), slice(None), slice(None), chunk)
                expected, bound = steps.made(stage).value, steps.bound(stage)
                yield _check(stage, chunk, values[stage][cut], expected[cut], bound[cut], ran)
    # The state of the last chunk that was run.
    last = seen.ran.shape[-1] - 1 - np.argmax(seen.ran[..., ::-1], axis=-1)
    state = np.take_along_axis(steps.made(_STATE).value, last[..., None, None, None], axis=3)[:, :, :, 0]
    stored = _by_block(seen.outputs.final_state.astype(np.float32), seen.ran.shape[0])
    yield _check(_STATE, seen.ran.shape[-1] - 1, stored, state, np.zeros(state.shape), some)


def _check(
    name: str, chunk: int, got: np.ndarray, expected: np.ndarray, bound: np.ndarray, ran: np.ndarray
) -> StageCheck:
    expected = np.broadcast_to(expected, got.shape)
    bound = np.broadcast_to(bound, got.shape)
    return StageCheck(name, chunk, got, expected, bound, ~(errors(got, expected) <= bound) & ran[..., None, None])


def _ran(name: str, chunk: int, ran: np.ndarray) -> StageCheck:
    got = ran[..., None, None].astype(np.float32)
    return StageCheck(name, chunk, got, np.ones_like(got), np.zeros_like(got), got == 0)


def _stored_o(wrong: Wrong, seen: Probed, steps: Steps) -> np.ndarray:
    """O as the programs stored it, `[blocks, B, H, chunks, C, block_DV]`; as it was made past N, where nothing is."""
    N, C = wrong.inputs.sizes.N, wrong.tile.C
    made = steps.made(_O).value
    blocks, B, H, chunks = made.shape[:4]
    padded = np.zeros((B, H, chunks * C, seen.outputs.o.shape[-1]), np.float32)
    padded[:, :, :N] = heads_first(seen.outputs.o)
    stored = _by_block(padded, blocks).reshape(made.shape)
    past = (np.arange(chunks * C) >= N).reshape(chunks, C, 1)
    return np.where(past, made, stored)


def _by_block(array: np.ndarray, blocks: int) -> np.ndarray:
    """`[..., DV]` as `[blocks, ..., block_DV]`."""
    return np.moveaxis(array.reshape(*array.shape[:-1], blocks, -1), -2, 0)
