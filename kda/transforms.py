"""Changes of the inputs whose effect on the outputs is known: what the metamorphic laws are made of.

Each function maps `Inputs` to new `Inputs` (or `Outputs` to `Outputs`) and leaves its argument alone.
"""

from __future__ import annotations

import numpy as np

from kda.problem import AXES, Inputs, Outputs

__all__ = [
    "cuts",
    "forgotten_from",
    "joined",
    "only_channels",
    "only_tokens",
    "ordered",
    "ordered_outputs",
    "other_future",
    "other_future_gate",
    "other_past",
    "plus",
    "rotated",
    "rotation",
    "scaled",
    "with_opposite_signs",
]

_FEW = 8


def cuts(N: int, C: int) -> list[int]:
    """Where to cut N tokens in two: everywhere when N is small, else at borders of chunks of C and in the middle."""
    if N <= _FEW:
        return list(range(1, N))
    last = (N - 1) // C * C
    places = {1, C - 1, C, C + 1, last - 1, last, N // 2, N - 1}
    return sorted(t for t in places if 1 <= t < N)


def _take(array: np.ndarray, tensor: str, axis: str, order: np.ndarray) -> np.ndarray:
    return np.take(array, order, axis=AXES[tensor].index(axis)) if axis in AXES[tensor] else array


def ordered(inputs: Inputs, axis: str, order: np.ndarray) -> Inputs:
    """`inputs` with one axis (B, H, DK or DV) in another order, in every tensor that has it."""
    return inputs.replace(**{name: _take(array, name, axis, order) for name, array in inputs.tensors()})


def ordered_outputs(outputs: Outputs, axis: str, order: np.ndarray) -> Outputs:
    """`outputs` with one axis in another order."""
    return Outputs(**{name: _take(array, name, axis, order) for name, array in outputs.tensors()})


def with_opposite_signs(inputs: Inputs) -> Inputs:
    """(k, v) -> (-k, -v): every product k v^T and k k^T stays the same."""
    return inputs.replace(k=-inputs.k, v=-inputs.v)


def rotation(DK: int, seed: int) -> np.ndarray:
    """An orthogonal `[DK, DK]` matrix."""
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((DK, DK)))
    return matrix


def rotated(inputs: Inputs, R: np.ndarray) -> Inputs:
    """Q -> R q, k -> R k, S_0 -> R S_0, rounded to the formats of `inputs` again. R: `[DK, DK]`, orthogonal."""
    state = None if inputs.initial_state is None else R @ inputs.initial_state
    return inputs.replace(q=inputs.q @ R.T, k=inputs.k @ R.T, initial_state=state).rounded()


def scaled(inputs: Inputs, factor: float) -> Inputs:
    """V and S_0 times a power of two, which is exact."""
    state = None if inputs.initial_state is None else inputs.initial_state * factor
    return inputs.replace(v=inputs.v * factor, initial_state=state)


def only_channels(inputs: Inputs, remainder: int) -> Inputs:
    """Q with the key channels d % 2 != remainder set to zero; both remainders add up to `inputs`."""
    keep = np.arange(inputs.sizes.DK) % 2 == remainder
    return inputs.replace(q=inputs.q * keep)


def only_tokens(inputs: Inputs, remainder: int) -> Inputs:
    """V with the tokens t % 2 != remainder set to zero; the initial state goes with remainder 0."""
    keep = (np.arange(inputs.sizes.N) % 2 == remainder)[None, :, None, None]
    state = inputs.initial_state
    if state is not None and remainder:
        state = np.zeros_like(state)
    return inputs.replace(v=inputs.v * keep, initial_state=state)


def plus(one: Outputs, other: Outputs) -> Outputs:
    """The sum of two outputs, in float64."""
    return Outputs(one.o + other.o, one.final_state + other.final_state)


def joined(first: Outputs, second: Outputs) -> Outputs:
    """The outputs of two runs over consecutive tokens, as those of one: o end to end, the last state."""
    return Outputs(np.concatenate([first.o, second.o], axis=1), second.final_state)


def other_future(inputs: Inputs, start: int, most: float = 1.0) -> Inputs:
    """Other tokens from `start` on: q, k and v in other channels and signs, beta and gates changed, domain kept.

    most: the largest beta that is allowed, which a token with one of at most 1/2 gets.
    """
    changed = {name: getattr(inputs, name).copy() for name in ("q", "k", "v", "g", "beta")}
    for name in ("q", "k", "v"):
        changed[name][:, start:] = -np.roll(changed[name][:, start:], 1, axis=-1)
    changed["v"][:, start:] += 1.0
    changed["g"] = _other_gate(inputs.g, start)
    changed["beta"][:, start:] = np.where(changed["beta"][:, start:] > 0.5, 0.25, most)
    return inputs.replace(**changed).rounded()


def other_future_gate(inputs: Inputs, start: int) -> Inputs:
    """Other gates from `start` on, and nothing else: open, or a little closed where all were open."""
    return inputs.replace(g=_other_gate(inputs.g, start))


def _other_gate(g: np.ndarray, start: int) -> np.ndarray:
    # Opened, so that no sum over a chunk grows; closed a little (4 in 64 tokens) only where no gate was closed at all.
    other = g.copy()
    other[:, start:] = 0.0 if g.any() else -0.0625
    return other


def other_past(inputs: Inputs, stop: int) -> Inputs:
    """Other values and another initial state before token `stop`."""
    v = inputs.v.copy()
    v[:, :stop] = -v[:, :stop] + 1.0
    state = None if inputs.initial_state is None else -inputs.initial_state
    return inputs.replace(v=v, initial_state=state).rounded()


def forgotten_from(inputs: Inputs, token: int, gate: float) -> Inputs:
    """The gates of all channels are `gate` at `token` and 0 elsewhere."""
    g = np.zeros_like(inputs.g)
    g[:, token] = gate
    return inputs.replace(g=g).rounded()
