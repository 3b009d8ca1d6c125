"""Which cells of an output are wrong: each error against the cell's share of its row's budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from kda.numerics.budget import Budget
from kda.numerics.compare import errors, unequal
from kda.problem import Outputs

__all__ = ["Cells", "cells", "worst_member"]


@dataclass(frozen=True)
class Cells:
    """One output, a row per token (o) or per key channel (the final state): arrays `[B, H, rows, DV]`.

    share: |error| / (the row's budget / sqrt(DV)), inf where no error is allowed and there is one. lost: NaN or
    infinite in one of the two alone. wrong: beyond its share, in a row that is beyond its budget (a row within it is
    right, however its error is spread). ratio: error / budget of each row, `[B, H, rows]`. exact: every bit must agree.
    """

    tensor: str
    got: np.ndarray
    expected: np.ndarray
    error: np.ndarray
    share: np.ndarray
    lost: np.ndarray
    wrong: np.ndarray
    ratio: np.ndarray
    exact: bool

    @property
    def wrong_rows(self) -> np.ndarray:
        """Whether each row holds a wrong cell, `[B, H, rows]`."""
        return np.asarray(self.wrong.any(-1))


def cells(got: Outputs, expected: Outputs, budget: Budget | None) -> list[Cells]:
    """The cells of o and of the final state, as far as they are there; budget: None where every bit must agree.

    ValueError: shapes that disagree.
    """
    made = []
    for tensor, of_expected in expected.tensors():
        of_got = getattr(got, tensor)
        if of_got.shape != of_expected.shape:
            raise ValueError(f"{tensor} has shape {of_got.shape}; expected {of_expected.shape}")
        if of_got.size:  # one of the two may have been left out, see Outputs.only
            allowed = np.zeros(of_expected.shape[:-1]) if budget is None else getattr(budget, tensor)
            made.append(_cells(tensor, of_got, of_expected, allowed))
    return made


def _cells(tensor: str, got: np.ndarray, expected: np.ndarray, budget: np.ndarray) -> Cells:
    if tensor == "o":  # [B, N, H, DV]
        got, expected, budget = got.swapaxes(1, 2), expected.swapaxes(1, 2), budget.swapaxes(1, 2)
    lost = (np.isfinite(got) != np.isfinite(expected)) | (~np.isfinite(got) & (got != expected))
    lost &= unequal(got, expected)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = errors(got, expected)
        rows = np.sqrt((error * error).sum(-1))
        ratio = np.where(rows == 0, 0.0, rows / budget)
        share = np.where(error == 0, 0.0, error * sqrt(got.shape[-1]) / budget[..., None])
    wrong = (share > 1) & (ratio > 1)[..., None]
    return Cells(tensor, got, expected, error, share, lost, wrong, ratio, exact=not budget.any())


#: Heads are equally bad where their figures differ by less than this share of the largest.
_ALIKE = 0.01


def worst_member(made: Sequence[Cells]) -> tuple[int, int]:
    """The batch and head with the largest ratio error / budget, then the largest error; the first of equals."""
    B, H = made[0].ratio.shape[:2]
    left = [(b, h) for b in range(B) for h in range(H)]
    for figure in (_worst_ratio, _any_lost, _worst_error):
        figures = {at: max(figure(one, at) for one in made) for at in left}
        worst = max(figures.values())
        left = [at for at in left if figures[at] == worst or figures[at] > (1 - _ALIKE) * worst]
    return left[0]


def _worst_ratio(one: Cells, at: tuple[int, int]) -> float:
    return float(one.ratio[at].max())


def _any_lost(one: Cells, at: tuple[int, int]) -> float:
    return float(one.lost[at].any())


def _worst_error(one: Cells, at: tuple[int, int]) -> float:
    return float(np.where(np.isfinite(one.error[at]), one.error[at], 0.0).max())
