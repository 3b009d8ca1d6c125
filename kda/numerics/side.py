"""On which side of a gate domain's border a case lies: a second opinion, without the code of kda/numerics/domain.py.

The gates never rise above 0, so that |gamma| is largest at the end of a chunk: one sum per chunk decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import fsum, isfinite, log

import numpy as np

from kda.formats import F32
from kda.problem import Inputs

__all__ = ["GateSide", "gate_side"]

_PLACE = re.compile(r"batch (\d+), token (\d+), head (\d+), channel (\d+)\b")


@dataclass(frozen=True)
class GateSide:
    """The largest |gamma| that gates g `[B, N, H, DK]` reach over (sub-)chunks of C tokens, and the largest allowed."""

    g: np.ndarray
    C: int
    reached: float
    border: float

    @property
    def inside(self) -> bool:
        """Whether a kernel must compute this."""
        return self.reached <= self.border and not self.too_close_to_call

    @property
    def outside(self) -> bool:
        """Whether a kernel must refuse this."""
        return self.reached > self.border and not self.too_close_to_call

    @property
    def too_close_to_call(self) -> bool:
        """Whether a check may decide either way.

        It may sum in float32, C roundoffs at most, and `GateDomain.check` lets 1e-6 pass for a gate that was rounded.
        """
        return isfinite(self.border) and abs(self.reached - self.border) <= self.border * (
            self.C * F32.unit_roundoff + 1e-6
        )

    def named_in(self, message: str) -> bool:
        """Whether `message` names a place where |gamma| is at its largest and that does its part: g < 0 there."""
        found = _PLACE.search(message)
        if found is None:
            return False
        b, t, h, d = map(int, found.groups())
        B, N, H, DK = self.g.shape
        if not (b < B and t < N and h < H and d < DK):
            return False
        there = -fsum(self.g[b, t - t % self.C : t + 1, h, d])
        return there >= self.reached * (1 - 1e-12) and bool(self.g[b, t, h, d] < 0)

    def __str__(self) -> str:
        return f"|gamma| reaches {self.reached:.9g}, at most {self.border:.9g} is in the domain"


def gate_side(inputs: Inputs, C: int, total: float) -> GateSide:
    """Where `inputs` lie for a kernel that bounds |gamma| over C tokens by `total`, less ln|k| for keys beyond 1."""
    ends = np.add.reduceat(inputs.g, range(0, inputs.sizes.N, C), axis=1)
    longest = max(1.0, float(np.abs(inputs.k).max()))
    return GateSide(inputs.g, C, float(-ends.min()), max(0.0, total - log(longest)))
