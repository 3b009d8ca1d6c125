"""How far a correct kernel may be from `ref_operation`: the budget of the recurrence, and what comes before and after.

A kernel normalises q and k and activates the gate and beta in float32. Each of these numbers may then be off by a
little, which `prologue_errors` bounds; `carried_errors` takes them through the recurrence. docs/tolerances.md derives
every term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from kda.formats import F32, F64
from kda.numerics.budget import Budget, Judged
from kda.problem import Inputs
from kda.references.operation import (
    NORM_EPS,
    Operation,
    OperationOutputs,
    Part,
    as_asked,
    inputs_of,
    parts,
    processed,
)

__all__ = ["Errors", "JudgedOperation", "carried_errors", "judge_operation", "prologue_errors", "rounded_inputs_bound"]

_U = F32.unit_roundoff
#: What an exponential, a logarithm of 1 + y, a division or a reciprocal root may be off by, in roundoffs: two units in
#: the last place, as CUDA's approximations are.
_FUNCTION = 4


@dataclass(frozen=True)
class Errors:
    """How far each number that enters the recurrence may be off: arrays like q, k, g and beta of a processed call."""

    q: np.ndarray
    k: np.ndarray
    g: np.ndarray
    beta: np.ndarray

    def of(self, part: Part) -> Errors:
        """Those of one part of the call."""
        return Errors(*(part.of(array) for array in (self.q, self.k, self.g, self.beta)))


@dataclass(frozen=True)
class JudgedOperation:
    """What `ref_operation` gives, and the budget of a kernel: o `[B, N, HV]`, final state `[S, HV, DK]`, or empty."""

    outputs: OperationOutputs
    budget: Budget


def judge_operation(operation: Operation, judged_by: Callable[[Inputs], Judged]) -> JudgedOperation:
    """`ref_operation`, and the budget of a kernel.

    judged_by: reference A's outputs and the budget of what the kernel makes of plain inputs, as `judge` gives them. The
    budget of tokens of no sequence is 0, and so is that of a state that is handed on. InputError as in `ref_operation`.
    """
    operation.check()
    plain = processed(operation)
    errors = prologue_errors(operation)
    o, o_row = np.full(operation.v.shape, np.nan), np.zeros(operation.v.shape[:-1])
    state = operation.states()
    state_row = np.zeros(state.shape[:-1])
    for part in parts(operation):
        inputs = inputs_of(plain, part)
        judged = judged_by(inputs)
        budget = judged.budget
        if errors is not None:
            budget += carried_errors(inputs, errors.of(part))
        part.put(operation.factor * judged.outputs.o, o)
        part.put(_scaled(operation, judged.outputs.o, budget.o), o_row)
        state[part.sequences] = judged.outputs.final_state
        state_row[part.sequences] = budget.final_state
    kept = state_row if operation.output_final_state else np.empty(0)
    return JudgedOperation(as_asked(operation, o, state), Budget(o_row, kept))


def _scaled(operation: Operation, o: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The budget of scale * o: of the product in float32, and of an o that the scale makes subnormal."""
    if operation.factor == 1:
        return row
    sizes = operation.sizes
    product = abs(operation.factor) * _U * np.sqrt((o * o).sum(-1))
    return abs(operation.factor) * row + product + sqrt(sizes.DV) * operation.dtype.min_subnormal / 2


def prologue_errors(operation: Operation) -> Errors | None:
    """How far q, k, g and beta of `processed` may be off in a kernel; None where nothing is computed, in float64."""
    computed = operation.normalise or operation.gate != "log" or operation.rate != "value"
    if not computed or operation.dtype is F64:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # tokens of no sequence may hold anything
        q, k = (np.repeat(_norm_error(operation, x), operation.groups, axis=2) for x in (operation.q, operation.k))
        return Errors(q, k, _gate_error(operation), _rate_error(operation))


def _norm_error(operation: Operation, x: np.ndarray) -> np.ndarray:
    """How far an element of x / |x| may be off once it is rounded to the operand format: the other neighbour, or 0.

    The sum of squares, in whatever order, as gamma: measured on these numbers, and sqrt(DK) / 2. The root halves it.
    """
    if not operation.normalise:
        return np.zeros_like(x)
    total = (x * x).sum(-1, keepdims=True) + NORM_EPS
    squares = (x * x).astype(np.float32)
    added = np.add.accumulate(squares, axis=-1, dtype=np.float32)[..., -1:].astype(np.float64) + NORM_EPS
    summed = np.maximum(1.5 * np.abs(added / total - 1), sqrt(x.shape[-1]) / 2 * _U)
    relative = (summed + 2 * _U) / 2 + (_FUNCTION + 1) * _U
    exact = x / np.sqrt(total)
    expected, low, high = (operation.dtype.round(exact * (1 + sign * relative)) for sign in (0, -1, 1))
    return np.maximum(np.abs(high - expected), np.abs(low - expected))


def _gate_error(operation: Operation) -> np.ndarray:
    """How far the activated gate may be off: an absolute error, which is a relative one of the decay."""
    if operation.gate == "log":
        return np.zeros_like(operation.g)
    x, x_error = operation.g, 0.0
    if operation.dt_bias is not None:
        x = operation.g + operation.dt_bias
        x_error = _U * np.abs(x)
    a, a_relative = 1.0, 0.0
    if operation.A_log is not None:
        a = np.exp(operation.A_log)[:, None]
        a_relative = (2 * np.abs(operation.A_log[:, None]) + _FUNCTION) * _U
    if operation.gate == "softplus":
        size = np.logaddexp(0.0, x)
        # max(x, 0) + log1p(e^-|x|): the exponential, the logarithm, the sum.
        less = np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))
        error = x_error / (1 + np.exp(-x)) + (less * _exp_error(x) + (_FUNCTION + 1) * size) * _U
        return a * (error + size * (a_relative + _U))
    assert operation.lower_bound is not None  # checked
    y = a * x
    y_error = a * x_error + np.abs(y) * (a_relative + _U)
    return -operation.lower_bound * (_sigmoid_error(y, y_error) + _U / (1 + np.exp(-y)))


def _rate_error(operation: Operation) -> np.ndarray:
    """How far the activated beta may be off; doubling is exact."""
    if operation.rate == "value":
        return np.zeros_like(operation.beta)
    return _sigmoid_error(operation.beta, 0.0) * (2.0 if operation.rate == "doubled" else 1.0)


def _exp_error(x: np.ndarray) -> np.ndarray:
    """The relative error of e^-|x| in roundoffs: those of x log2(e), its constant and its product, and its own."""
    return 2 * np.abs(x) + _FUNCTION


def _sigmoid_error(x: np.ndarray, x_error: np.ndarray | float) -> np.ndarray:
    """The error of 1 / (1 + e^-x): of x, of the exponential, of the sum and of the division.

    Where e^-x overflows, the quotient is 0, and below the normal numbers it may be.
    """
    s, rest = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    gone = np.where(s < F32.min_normal, s, 0.0)
    return s * rest * (x_error + _exp_error(x) * _U) + s * (1 + _FUNCTION) * _U + gone


def carried_errors(inputs: Inputs, errors: Errors, of_state: float = 0.0) -> Budget:
    """What errors of q, k, g and beta amount to, row by row: the recursion of `judge` with these errors alone.

    of_state: the relative error of the initial state. Of first order: products of two errors are left out. Arrays
    inside as there.
    """
    sizes = inputs.sizes
    a = np.exp(inputs.g)
    # Beyond e^0.01 the decay itself is nothing; the exponential is convex.
    decay_error = a * np.expm1(np.minimum(errors.g, 0.01))
    k_norms = np.linalg.norm(inputs.k, axis=-1)
    growth = np.maximum(1.0, np.abs(1.0 - inputs.beta * k_norms**2))
    S = inputs.state()
    E = of_state * np.sqrt((S * S).sum(-2))
    R = of_state * np.sqrt((S * S).sum(-1))
    row = np.empty((sizes.B, sizes.N, sizes.H))
    for t in range(sizes.N):
        k, dk = inputs.k[:, t], errors.k[:, t]
        beta, dbeta = inputs.beta[:, t, :, None], errors.beta[:, t, :, None]
        lost = decay_error[:, t, :, :, None] * np.abs(S)  # of Diag(a) S
        S *= a[:, t, :, :, None]
        missed = inputs.v[:, t] - _product(k, S)
        w = beta * missed
        # w depends on k and beta; what is written has the direction of k.
        local = beta * _product(dk, np.abs(S)) + dbeta * np.abs(missed)
        before = a[:, t].max(axis=-1)[..., None] * E + np.sqrt((lost * lost).sum(-2))
        carried = np.sqrt((before * before).sum(-1))
        written = np.sqrt((local * local).sum(-1))
        reach = (beta[..., 0] * k_norms[:, t]) * carried + written
        R = a[:, t] * R + np.sqrt((lost * lost).sum(-1)) + np.abs(k) * reach[..., None]
        R += dk * np.sqrt((w * w).sum(-1))[..., None]
        E = growth[:, t, :, None] * before + k_norms[:, t, :, None] * local
        E += np.sqrt((dk * dk).sum(-1))[..., None] * np.abs(w)
        S += k[..., None] * w[:, :, None, :]
        q_norm = np.linalg.norm(inputs.q[:, t], axis=-1)[..., None]
        bound = q_norm * E + _product(errors.q[:, t], np.abs(S))
        row[:, t] = np.sqrt((bound * bound).sum(-1))
    return Budget(row, np.minimum(R, np.sqrt((E * E).sum(-1))[..., None]))


def rounded_inputs_bound(inputs: Inputs) -> Budget:
    """How far the outputs may move where q, k and the initial state are rounded once more, to their formats."""
    q, k = (inputs.dtype.unit_roundoff * np.abs(x) + inputs.dtype.min_subnormal / 2 for x in (inputs.q, inputs.k))
    errors = Errors(q, k, np.zeros_like(inputs.g), np.zeros_like(inputs.beta))
    return carried_errors(inputs, errors, inputs.gate_dtype.unit_roundoff)


def _product(x: np.ndarray, S: np.ndarray) -> np.ndarray:
    """X . S: x `[B, H, DK]`, S `[B, H, DK, DV]` to `[B, H, DV]`."""
    return (x[:, :, None, :] @ S)[:, :, 0]
