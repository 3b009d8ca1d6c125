"""Everybody at one shape: right kernels, times in interleaved rounds, memory, accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import torch

from speed.accuracy import CHUNK, Taken, accuracies, beginnings, places
from speed.contenders import Contender
from speed.inputs import LOWER_BOUND, Given, made
from speed.machine import Machine, Work
from speed.results import Accuracy, Measured, Spread
from speed.shapes import D, Mode, Shape

__all__ = ["ROUNDS", "Rounds", "interleaved", "measure", "taken"]

#: Rounds of one measurement: as many as fit into half a second, within these.
ROUNDS = (15, 101)
HALF_A_SECOND = 500.0
#: Calls before anything is timed.
WARM = 3
#: Of a kernel's name so much is kept: templates go on for pages.
LONGEST_NAME = 120


@dataclass(frozen=True)
class Rounds:
    """The least and the most rounds of one measurement."""

    least: int = ROUNDS[0]
    most: int = ROUNDS[1]

    def fitting(self, milliseconds: float) -> int:
        """How many rounds of `milliseconds` fit into half a second."""
        return max(self.least, min(self.most, int(HALF_A_SECOND / max(milliseconds, 1e-3))))


def interleaved(
    works: Sequence[Callable[[int], object]], sets: int, clock: Callable[[Work], float], rounds: Rounds
) -> list[list[float]]:
    """The times of every one of `works` in rounds A, B, C, A, B, C, ...: one list for each.

    A work is called with the number of the input set to use, which moves on by one from call to call.
    """
    times: list[list[float]] = [[] for _ in works]
    turn = 0

    def one_round() -> list[float]:
        nonlocal turn
        taken = []
        for work in works:
            at = turn % sets
            taken.append(clock(lambda work=work, at=at: work(at)))  # type: ignore[misc]
            turn += 1
        return taken

    first = sum(one_round())
    for _ in range(rounds.fitting(first)):
        for kept, time in zip(times, one_round(), strict=True):
            kept.append(time)
    return times


@dataclass
class _Lane:
    """One contender on its way through a measurement."""

    contender: Contender
    call: Spread | None = None
    graph: Spread | None = None
    replay: Work | None = None
    extra_bytes: int = 0
    launched: tuple[str, ...] = ()
    output: tuple[torch.Tensor, torch.Tensor] | None = None
    failed: bool = False
    trouble: str = ""
    notes: list[str] = field(default_factory=list)

    def measured(self, shape: Shape, mode: Mode, accuracy: Accuracy | None) -> Measured:
        return Measured(
            *(str(shape), mode, self.contender.name, self.call, self.graph, self.extra_bytes, self.launched, accuracy),
            trouble=self.trouble,
            notes="; ".join(self.notes),
        )


def measure(
    shape: Shape,
    mode: Mode,
    contenders: Sequence[Contender],
    machine: Machine,
    rounds: Rounds = Rounds(),
    pool: Executor | None = None,
) -> list[Measured]:
    """Everything about `contenders` at one shape.

    Who fails says so in its `trouble` and drops out; who launches another's kernels says so too, and is timed all the
    same. The first call of everybody compiles and tunes, and three more are thrown away. The outputs that are judged
    are those of the first set, where memory that was freed holds NaN.
    """
    with torch.no_grad():
        sets = made(shape, mode, machine.device, l2=machine.l2)
        lanes = [_Lane(contender) for contender in contenders]
        for lane in lanes:
            _prepare(lane, sets, machine)
        _time_calls(_fit(lanes), sets, machine, rounds)
        for lane in _fit(lanes):
            _capture(lane, sets, machine)
        _time_graphs(_fit(lanes), len(sets), machine, rounds)
        heads = taken(shape, sets[0], {lane.contender.name: lane.output for lane in lanes if lane.output})
        for lane in lanes:
            lane.replay = lane.output = None
        del sets
        machine.release()
    found = {name: Accuracy(**fields) for name, fields in accuracies(heads, pool).items()}
    return [lane.measured(shape, mode, found.get(lane.contender.name)) for lane in lanes]


def _fit(lanes: Sequence[_Lane]) -> list[_Lane]:
    return [lane for lane in lanes if not lane.failed]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:200]}"


def _prepare(lane: _Lane, sets: Sequence[Given], machine: Machine) -> None:
    call = lane.contender.call
    try:
        for at in range(1 + WARM):
            call(sets[at % len(sets)])
        kernels = machine.launched(lambda: call(sets[0]))
        lane.launched = tuple(kernel.name[:LONGEST_NAME] for kernel in kernels)
        if lane.launched:
            lane.trouble = lane.contender.wrong_kernels(lane.launched)
        else:
            lane.notes.append("the profiler saw no kernel: nobody knows which ran")
        lane.extra_bytes = machine.extra_bytes(lambda: call(sets[0]))
        _poison(sets[0], machine)
        lane.output = call(sets[0])
    except Exception as error:  # whatever stops one must not stop the others
        lane.failed, lane.trouble = True, _said(error)


def _poison(given: Given, machine: Machine) -> None:
    """Leave NaN in the memory that the next outputs are likely to get."""
    machine.release()
    left = [torch.full_like(given.v, float("nan"))]
    if given.initial_state is not None:
        left.append(torch.full_like(given.initial_state, float("nan")))
    del left


def _time_calls(lanes: Sequence[_Lane], sets: Sequence[Given], machine: Machine, rounds: Rounds) -> None:
    works = [lambda at, call=lane.contender.call: call(sets[at]) for lane in lanes]
    if works:
        for lane, times in zip(lanes, interleaved(works, len(sets), machine.milliseconds, rounds), strict=True):
            lane.call = Spread.of(times)


def _capture(lane: _Lane, sets: Sequence[Given], machine: Machine) -> None:
    try:
        lane.replay = machine.graph([lambda given=given: lane.contender.call(given) for given in sets])
    except Exception as error:
        lane.notes.append(f"no graph ({_said(error)})")


def _time_graphs(lanes: Sequence[_Lane], calls: int, machine: Machine, rounds: Rounds) -> None:
    """One replay goes through all sets."""
    captured = [lane for lane in lanes if lane.replay]
    works = [lambda at, replay=lane.replay: replay() for lane in captured]
    if works:
        for lane, times in zip(captured, interleaved(works, 1, machine.milliseconds, rounds), strict=True):
            lane.graph = Spread.of([time / calls for time in times])


def taken(shape: Shape, given: Given, outputs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> list[Taken]:
    """The heads that are judged, as NumPy arrays: of everything that was given, and of everybody's outputs.

    Of `beginnings` the first chunk; a sequence that is no longer is whole.
    """
    found = []
    chosen = [(*pair, True) for pair in places(len(shape.sequences), shape.H)]
    chosen += [(*pair, False) for pair in beginnings(len(shape.sequences), shape.H)]
    for sequence, head, whole in chosen:
        first, end = shape.starts[sequence : sequence + 2]
        whole = whole or end - first <= CHUNK
        rows = slice(first, end if whole else first + CHUNK)
        found.append(
            Taken(
                *(_array(x.flatten(0, 1)[rows, head]) for x in (given.q, given.k, given.v, given.g, given.beta)),
                None if given.initial_state is None else _array(given.initial_state[sequence, head]),
                D**-0.5,
                {
                    name: (_array(o.flatten(0, 1)[rows, head]), _array(state[sequence, head]))
                    for name, (o, state) in outputs.items()
                },
                raw=given.mode == "raw",
                A_log=0.0 if given.A_log is None else float(given.A_log[head]),
                dt_bias=None if given.dt_bias is None else _array(given.dt_bias[head]),
                lower_bound=LOWER_BOUND if given.mode == "raw" else 0.0,
                whole=whole,
            )
        )
    return found


def _array(x: torch.Tensor) -> np.ndarray:
    return x.float().cpu().numpy()
