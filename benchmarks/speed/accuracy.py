"""How far everybody is from the operation in float64, on a few heads of the very tensors that were timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from kda.formats import BF16
from kda.numerics.budget import Judged, judge, operand_units
from kda.numerics.compare import errors, shares
from kda.problem import Inputs, Outputs

__all__ = [
    "CHUNK",
    "EPSILON",
    "HeadErrors",
    "Taken",
    "accuracies",
    "beginnings",
    "errors_of",
    "places",
    "processed",
    "yardstick",
]

#: Of the L2 norm: x / sqrt(sum x^2 + EPSILON).
EPSILON = 1e-6
#: The portable program's, by which everybody is judged alike: see docs/tolerances.md.
CHUNK, SUB_CHUNK = 64, 16
#: At most so many sequences of a batch are looked at as a whole, and of so many more heads the first chunk: the worst
#: rows are those of the first tokens, which have few terms to average over, and two heads have two of them.
MOST_SEQUENCES = 6
MOST_BEGINNINGS = 60


@dataclass(frozen=True)
class Taken:
    """One head of one sequence: what went in and what everybody made of it.

    q, k, v, g: `[n, D]`; beta: `[n]`; initial_state: `[D, D]` or None; float32, exactly. raw: norm, gate and sigmoid
    are still to be done (with A_log, dt_bias `[D]` and lower_bound), and states are value channel first. outputs: by
    contender, o `[n, D]` and the final state, which is that of other tokens where only the beginning was taken.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    initial_state: np.ndarray | None
    scale: float
    outputs: Mapping[str, tuple[np.ndarray, np.ndarray]]
    raw: bool = False
    A_log: float = 0.0
    dt_bias: np.ndarray | None = None
    lower_bound: float = 0.0
    whole: bool = True


@dataclass(frozen=True)
class HeadErrors:
    """Of one contender on one head: error / budget row by row, and the squared errors and references.

    o: `[n]`; state: `[D]`, empty where only the beginning was taken.
    """

    o: np.ndarray
    state: np.ndarray
    o_squares: tuple[float, float]
    state_squares: tuple[float, float]


def places(sequences: int, heads: int) -> list[tuple[int, int]]:
    """The (sequence, head) pairs that are looked at: the first and the last head of sequences spread over the batch."""
    chosen = np.unique(np.linspace(0, sequences - 1, min(sequences, MOST_SEQUENCES)).astype(int))
    return [(int(s), h) for s in chosen for h in sorted({0, heads - 1})]


def beginnings(sequences: int, heads: int) -> list[tuple[int, int]]:
    """More (sequence, head) pairs, spread over the batch, of which the first chunk is looked at."""
    spread = np.unique(np.linspace(0, sequences * heads - 1, min(sequences * heads, MOST_BEGINNINGS)).astype(int))
    whole = set(places(sequences, heads))
    return [pair for pair in ((int(at) // heads, int(at) % heads) for at in spread) if pair not in whole]


def processed(taken: Taken) -> Inputs:
    """The recurrence's inputs in float64: norm, gate and sigmoid done, q and k rounded to bf16 behind the norm."""
    q, k, v, g, beta = (x.astype(np.float64) for x in (taken.q, taken.k, taken.v, taken.g, taken.beta))
    state = None if taken.initial_state is None else taken.initial_state.astype(np.float64)
    if taken.raw:
        q, k = (BF16.round(x / np.sqrt((x * x).sum(-1, keepdims=True) + EPSILON)) for x in (q, k))
        assert taken.dt_bias is not None
        g = taken.lower_bound * _sigmoid(np.exp(taken.A_log) * (g + taken.dt_bias))
        beta = _sigmoid(beta)
        state = None if state is None else state.T
    given = None if state is None else state[None, None]
    return Inputs(*(x[None, :, None] for x in (q, k, v, g, beta)), given, dtype=BF16)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def yardstick(inputs: Inputs) -> Judged:
    """Reference A and the budget of the portable program, bf16 operands."""
    units = operand_units(inputs, CHUNK, inputs.dtype)
    return judge(inputs, CHUNK, units, sub_C=SUB_CHUNK, pairs=True)


def errors_of(taken: Taken) -> dict[str, HeadErrors]:
    """The errors of everybody on one head."""
    judged = yardstick(processed(taken))
    scale = taken.scale
    expected = judged.outputs.with_o(scale * judged.outputs.o)
    budget = type(judged.budget)(scale * judged.budget.o, judged.budget.final_state)
    found = {}
    for name, (o, state) in taken.outputs.items():
        final_state = state.T if taken.raw else state
        got = Outputs(o.astype(np.float64)[None, :, None], final_state.astype(np.float64)[None, None])
        of_state = shares(errors(got.final_state, expected.final_state), budget.final_state)
        found[name] = HeadErrors(
            shares(errors(got.o, expected.o), budget.o).ravel(),
            of_state.ravel() if taken.whole else np.empty(0),
            _squares(got.o, expected.o),
            _squares(got.final_state, expected.final_state),
        )
    return found


def _squares(got: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    return float(((got - expected) ** 2).sum()), float((expected**2).sum())


def accuracies(taken: list[Taken], pool: Executor | None = None) -> dict[str, dict[str, Any]]:
    """The fields of `results.Accuracy` of everybody, over all heads; on the processes of `pool`, if there is one.

    The worst row is looked for in beginnings, too; everything else is of whole sequences.
    """
    of_heads = list(pool.map(errors_of, taken) if pool else map(errors_of, taken))
    found = {}
    for name in of_heads[0] if of_heads else ():
        everywhere = [one[name] for one in of_heads]
        of_whole = [one for one, head in zip(everywhere, taken, strict=True) if head.whole]
        found[name] = {
            "o_ratio": max(float(one.o.max()) for one in everywhere),
            "state_ratio": max(float(one.state.max()) for one in of_whole),
            "o_rms": _rms([one.o for one in of_whole]),
            "state_rms": _rms([one.state for one in of_whole]),
            "o_relative": _relative([one.o_squares for one in of_whole]),
            "state_relative": _relative([one.state_squares for one in of_whole]),
            "heads": len(of_whole),
            "beginnings": len(everywhere) - len(of_whole),
        }
    return found


def _rms(rows: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(np.mean(np.concatenate(rows) ** 2)))


def _relative(squares: list[tuple[float, float]]) -> float:
    error, reference = (sum(column) for column in zip(*squares, strict=True))
    return sqrt(error / reference) if reference else float(error > 0)
