"""Changes of a call whose effect on its outputs is known: what the laws of the operation are made of.

Each function maps an `Operation` to a new one and leaves its argument alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kda.formats import F32
from kda.problem import Outputs
from kda.references.operation import Operation, processed

__all__ = [
    "alone",
    "cut",
    "hostile_from",
    "later_cuts",
    "many_times",
    "only_sequence",
    "own_rows",
    "permuted",
    "tokens_of",
    "with_activated_beta",
    "with_activated_gate",
    "with_normalised_rows",
    "with_other_sequences",
    "with_other_tail",
    "with_plain_heads",
    "with_turned_states",
]

_BY_TOKEN = ("q", "k", "v", "g", "beta")


def _flat(operation: Operation) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of every tensor with tokens, those flattened: `[T, heads, ...]`."""
    for name in _BY_TOKEN:
        array = getattr(operation, name)
        yield name, array.reshape(-1, *array.shape[2:])


def _with_tokens(operation: Operation, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """These of the flattened tokens, as one batch."""
    return {name: array[tokens][None] for name, array in _flat(operation)}


def _states_of(operation: Operation, sequences: np.ndarray | list[int]) -> np.ndarray | None:
    return None if operation.initial_state is None else operation.initial_state[sequences]


def tokens_of(operation: Operation, sequence: int) -> np.ndarray:
    """Where the tokens of a sequence are among the flattened ones."""
    starts = operation.starts
    return np.arange(starts[sequence], starts[sequence + 1])


def alone(operation: Operation, sequence: int) -> Operation:
    """One sequence of a packed call as a dense one."""
    tokens = _with_tokens(operation, tokens_of(operation, sequence))
    return operation.replace(**tokens, cu_seqlens=None, initial_state=_states_of(operation, [sequence]))


def only_sequence(outputs: Outputs, operation: Operation, sequence: int) -> Outputs:
    """What a packed call gave for one sequence, as `alone` gives it."""
    state = outputs.final_state[[sequence]] if outputs.final_state.size else outputs.final_state
    return Outputs(outputs.o[:, tokens_of(operation, sequence)], state)


def own_rows(outputs: Outputs, operation: Operation) -> Outputs:
    """The outputs without the tokens of no sequence."""
    return Outputs(outputs.o.reshape(1, -1, *outputs.o.shape[2:])[:, : operation.starts[-1]], outputs.final_state)


def with_plain_heads(operation: Operation) -> Operation:
    """The same with q and k repeated for every value head."""
    q, k = (np.repeat(x, operation.groups, axis=2) for x in (operation.q, operation.k))
    return operation.replace(q=q, k=k)


def with_turned_states(operation: Operation) -> Operation:
    """The same with states in the other layout."""
    state = operation.initial_state
    turned = None if state is None else np.ascontiguousarray(state.swapaxes(-1, -2))
    return operation.replace(initial_state=turned, state_v_first=not operation.state_v_first)


def with_normalised_rows(operation: Operation) -> Operation:
    """The same with q and k normalised before, and rounded."""
    settled = processed(operation.replace(gate="log", rate="value"))
    q, k = (x[:, :, :: operation.groups] for x in (settled.q, settled.k))
    return operation.replace(q=q, k=k, normalise=False)


def with_activated_gate(operation: Operation) -> Operation:
    """The same with the gate activated before, in float32."""
    plain = processed(operation)
    settled = {"gate": "log", "A_log": None, "dt_bias": None, "lower_bound": None}
    return operation.replace(g=F32.round(plain.g), g_dtype=F32, **settled)


def with_activated_beta(operation: Operation) -> Operation:
    """The same with beta activated before, in float32."""
    return operation.replace(beta=F32.round(processed(operation).beta), beta_dtype=F32, rate="value")


def permuted(operation: Operation, order: np.ndarray) -> tuple[Operation, np.ndarray]:
    """The sequences of a packed call in another order, and which token of the first each token of the second was."""
    starts = operation.starts
    own = [tokens_of(operation, int(s)) for s in order]
    behind = np.arange(starts[-1], operation.k.shape[1])
    tokens = np.concatenate([*own, behind])
    cu_seqlens = np.cumsum([0, *(len(part) for part in own)])
    made = _with_tokens(operation, tokens)
    return operation.replace(**made, cu_seqlens=cu_seqlens, initial_state=_states_of(operation, order)), tokens


def cut(operation: Operation, sequence: int, token: int) -> tuple[Operation, Operation]:
    """The tokens of one sequence before `token`, and those from it on, as dense calls; the second lacks its state."""
    tokens = tokens_of(operation, sequence)
    dense = {"cu_seqlens": None, "output_final_state": True}
    first = {**_with_tokens(operation, tokens[:token]), "initial_state": _states_of(operation, [sequence])}
    return operation.replace(**first, **dense), operation.replace(**_with_tokens(operation, tokens[token:]), **dense)


def later_cuts(operation: Operation) -> Iterator[tuple[int, int]]:
    """(sequence, token) where a future may begin: the last sequence with tokens to come, beside borders and halfway."""
    lengths = np.diff(operation.starts)
    sequence = int(np.flatnonzero(lengths == lengths.max())[-1])
    length = int(lengths[sequence])
    for token in sorted({t for t in (1, 16, 64, length // 2, length - 1) if 0 < t < length}):
        yield sequence, token


def hostile_from(operation: Operation, sequence: int, token: int) -> Operation:
    """Other tokens of one sequence from `token` on: q, k and v turned, gates closed to -1000, other betas."""
    tokens = tokens_of(operation, sequence)[token:]
    changed = {name: array.copy() for name, array in _flat(operation)}
    for name in ("q", "k", "v"):
        changed[name][tokens] = -np.roll(changed[name][tokens], 1, axis=-1)
    changed["v"][tokens] += 1.0
    # A gate that was as closed is opened: every one has changed.
    closed, opened = (-1000.0, 0.0) if operation.gate == "log" else (1000.0, -1000.0)
    changed["g"][tokens] = np.where(changed["g"][tokens] == closed, opened, closed)
    changed["beta"][tokens] = np.where(changed["beta"][tokens] > 0.5, 0.25, 1.0)
    shaped = {name: array.reshape(getattr(operation, name).shape) for name, array in changed.items()}
    return operation.replace(**shaped).replace(v=operation.dtype.round(shaped["v"]))


def with_other_sequences(operation: Operation, sequence: int, value: float) -> Operation:
    """Every number of every other sequence, their states too, and of the tokens of none, is `value`."""
    tokens = tokens_of(operation, sequence)
    changed = {}
    for name, array in _flat(operation):
        other = np.full_like(array, value)
        other[tokens] = array[tokens]
        changed[name] = other.reshape(getattr(operation, name).shape)
    state = operation.initial_state
    if state is not None:
        changed["initial_state"] = np.full_like(state, value)
        changed["initial_state"][sequence] = state[sequence]
    return operation.replace(**changed)


def with_other_tail(operation: Operation, value: float) -> Operation:
    """Every number of the tokens of no sequence is `value`."""
    changed = {name: array.copy() for name, array in _flat(operation)}
    for array in changed.values():
        array[operation.starts[-1] :] = value
    return operation.replace(**{name: a.reshape(getattr(operation, name).shape) for name, a in changed.items()})


def many_times(operation: Operation, times: int) -> Operation:
    """The sequences of a packed call, without a tail, so many times over."""
    tokens = np.tile(np.arange(operation.starts[-1]), times)
    lengths = np.tile(np.diff(operation.starts), times)
    sequences = np.tile(np.arange(len(operation.starts) - 1), times)
    made = _with_tokens(operation, tokens)
    states = _states_of(operation, sequences)
    return operation.replace(**made, cu_seqlens=np.cumsum([0, *lengths]), initial_state=states)
