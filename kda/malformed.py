"""Valid inputs with exactly one thing wrong, for the laws of the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from typing import TypeVar

import numpy as np

from kda.kernels.compile import COUNTS
from kda.problem import AXES, InputError, Inputs

__all__ = ["Malformation", "malformations", "malformed", "outcome", "refusal"]

T = TypeVar("T")


@dataclass(frozen=True)
class Malformation:
    """One thing that can be wrong: a few words, the tensor to blame, and how that array is broken at a place."""

    what: str
    tensor: str
    breaks: Callable[[np.ndarray, int], np.ndarray]

    def __str__(self) -> str:
        return f"{self.tensor} {self.what}"


def malformations(inputs: Inputs) -> list[Malformation]:
    """Everything that `malformed` may do to `inputs`, the simplest first.

    The shape of k and the width of v stay: the sizes are read off them, so that another tensor would be to blame.
    """
    present = [name for name, _ in inputs.tensors()]
    found = [
        Malformation("is positive", "g", _set(2.0**-30)),
        Malformation("is negative", "beta", _set(-(2.0**-30))),
        Malformation("is above 2", "beta", _set(2 + 2.0**-22)),
    ]
    found += [Malformation(f"holds {value}", name, _set(value)) for name in present for value in (nan, inf, -inf)]
    for name in present:
        fixes = {"k": AXES["k"], "v": ("DV",)}.get(name, ())
        found += [
            Malformation(f"is one short in {axis}", name, _cut(i))
            for i, axis in enumerate(AXES[name])
            if axis not in fixes
        ]
        if name != "k":
            found.append(Malformation("has an axis too many", name, lambda array, place: array[None]))
    if inputs.initial_state is not None and inputs.sizes.DK != inputs.sizes.DV:
        found.append(
            Malformation("is value channel first", "initial_state", lambda array, place: array.swapaxes(-1, -2))
        )
    return found


def malformed(inputs: Inputs, seed: int) -> tuple[Malformation, Inputs]:
    """`inputs` broken in the one way, and at the one place, that `seed` chooses."""
    choices = malformations(inputs)
    choice = choices[seed % len(choices)]
    array = np.array(getattr(inputs, choice.tensor))
    return choice, inputs.replace(**{choice.tensor: choice.breaks(array, seed // len(choices))})


def outcome(attempt: Callable[[], T], what: object = "this") -> T | InputError:
    """What `attempt` returns, or the InputError it raises; AssertionError where it launched something first."""
    __tracebackhide__ = True
    before = COUNTS.launches
    try:
        return attempt()
    except InputError as error:
        if before != COUNTS.launches:
            raise AssertionError(f"{what} was refused only after a launch: {error}") from None
        return error


def refusal(attempt: Callable[[], object], what: object = "this") -> InputError:
    """The InputError that `attempt` raises; AssertionError where it raises none, or launches something first."""
    __tracebackhide__ = True
    got = outcome(attempt, what)
    if isinstance(got, InputError):
        return got
    raise AssertionError(f"{what} was computed; it must be refused with an InputError")


def _set(value: float) -> Callable[[np.ndarray, int], np.ndarray]:
    def breaks(array: np.ndarray, place: int) -> np.ndarray:
        array.flat[place % array.size] = value
        return array

    return breaks


def _cut(axis: int) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda array, place: array.take(range(array.shape[axis] - 1), axis=axis)
