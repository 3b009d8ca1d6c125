"""Comparing outputs row by row, as ratios error / budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kda.numerics.budget import Budget
from kda.problem import Outputs, at_words

__all__ = ["Verdict", "all_finite", "compare", "difference", "errors", "row_errors", "shares", "unequal"]

#: A comparison is trusted when at least this share of the rows that are not zero has a budget below its signal.
TRUSTED_ROWS = 0.1


@dataclass(frozen=True)
class Verdict:
    """The worst row of one tensor.

    ratio: error / budget of that row, in 2-norms over DV (inf where the kernel is not finite and the reference is).
    index: the place of its largest error, as an index of the tensor. trusted: whether the budget is below the signal
    on enough rows for the comparison to mean something.
    """

    tensor: str
    ratio: float
    index: tuple[int, ...]
    got: float
    expected: float
    error: float
    budget: float
    trusted: bool

    @property
    def passed(self) -> bool:
        """Whether every row is within its budget."""
        return self.ratio <= 1

    def __str__(self) -> str:
        return (
            f"{self.tensor}: error {self.error:.3g} in the row, budget {self.budget:.3g}, ratio {self.ratio:.3g}; "
            f"worst at {at_words(self.tensor, self.index)}: got {self.got:.9g}, expected {self.expected:.9g}"
        )


def compare(got: Outputs, expected: Outputs, budget: Budget) -> list[Verdict]:
    """A verdict for each output that is there, the worse first."""
    verdicts = []
    for tensor, of_expected in expected.tensors():
        of_got = getattr(got, tensor)
        if of_got.size or of_expected.size:  # one of the two may have been left out, see Outputs.only
            verdicts.append(_verdict(tensor, of_got, of_expected, getattr(budget, tensor)))
    return sorted(verdicts, key=lambda v: -v.ratio)


def all_finite(*results: Outputs | Budget) -> bool:
    """Whether no value of any of `results` is NaN or infinite: a NaN in both, or a budget without end, would pass."""
    return all(bool(np.isfinite(array).all()) for one in results for array in (one.o, one.final_state))


def _verdict(tensor: str, got: np.ndarray, expected: np.ndarray, budget: np.ndarray) -> Verdict:
    if got.shape != expected.shape:
        raise AssertionError(f"{tensor} has shape {got.shape}; expected {expected.shape}")
    error = errors(got, expected)
    ratios = shares(error, budget)
    worst = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
    element = int(np.argmax(error[worst]))
    index = (*(int(i) for i in worst), element)
    signal = np.sqrt((np.where(np.isfinite(expected), expected, 0.0) ** 2).sum(-1))
    return Verdict(
        tensor=tensor,
        ratio=float(ratios[worst]),
        index=index,
        got=float(got[index]),
        expected=float(expected[index]),
        error=float(np.sqrt((error[worst] * error[worst]).sum())),
        budget=float(budget[worst]),
        trusted=bool((budget < signal).sum() > TRUSTED_ROWS * (signal > 0).sum()),
    )


def shares(error: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Row by row error / budget, in 2-norms over the last axis of what `errors` gives: 0 where there is no error."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        rows = np.sqrt((error * error).sum(-1))
        return np.where(rows == 0, 0.0, rows / budget)


def row_errors(got: Outputs, expected: Outputs) -> Budget:
    """The 2-norm of the error of each row, as a budget: for laws that allow a multiple of what another run errs by."""
    return Budget(
        np.linalg.norm(got.o - expected.o, axis=-1), np.linalg.norm(got.final_state - expected.final_state, axis=-1)
    )


def unequal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two arrays are not the same number; NaN is one, and so is zero of either sign."""
    return ~((one == other) | (np.isnan(one) & np.isnan(other)))


def errors(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """|got - expected|, float64: 0 where both are NaN or the same infinity, infinite where one alone is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got.astype(np.float64) - expected)
    error[~unequal(got, expected)] = 0.0
    error[np.isnan(error)] = np.inf
    return error


def difference(got: Outputs, expected: Outputs) -> str | None:
    """Where two results that must have the same bits differ first; None where they do not."""
    for (tensor, mine), (_, theirs) in zip(got.tensors(), expected.tensors(), strict=True):
        if mine.shape != theirs.shape:
            return f"{tensor} has shape {mine.shape}; expected {theirs.shape}"
        unlike = unequal(mine, theirs)
        if unlike.any():
            at = tuple(int(i) for i in np.argwhere(unlike)[0])
            return (
                f"{tensor} differs in {int(unlike.sum())} of {unlike.size} elements; first at "
                f"{at_words(tensor, at)}: got {mine[at]:.9g}, expected {theirs[at]:.9g}"
            )
    return None
