"""The gates a split-exponent kernel can compute.

The split e^(gamma_c - gamma_i) = e^gamma_c e^-gamma_i (article, 1.2) makes one factor small and the other large. With
Gamma the largest |gamma| inside a chunk, k e^-gamma overflows the operand format above `max`, and k e^gamma loses
precision below `min_normal`, where a rounding is off by half of `min_subnormal` however small the number. That error is
multiplied by e^Gamma, and is as large as the unit roundoff itself where e^-Gamma reaches `min_normal`. This comes first
in every format, so it is the border: Gamma <= -ln(min_normal), less ln|k| where a key is longer than 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from kda.formats import Format
from kda.problem import InputError, at_words

__all__ = ["DomainError", "GateDomain", "chunk_gamma", "gate_domain"]


class DomainError(InputError):
    """A gate outside the domain of the kernel it was given to."""


def chunk_gamma(g: np.ndarray, C: int) -> np.ndarray:
    """gamma: g `[B, N, H, DK]` summed from the start of each chunk of C tokens, same shape (article, section 0)."""
    total = np.cumsum(g, axis=1)
    starts = np.arange(0, g.shape[1], C)
    before = np.concatenate([np.zeros_like(g[:, :1]), total[:, starts[1:] - 1]], axis=1)
    return total - np.repeat(before, C, axis=1)[:, : g.shape[1]]


@dataclass(frozen=True)
class GateDomain:
    """The gates for which |gamma| stays within `total` over every chunk of C tokens, with operands in `dtype`."""

    dtype: Format
    C: int
    total: float

    @property
    def per_token(self) -> float:
        """The strongest constant gate: g >= -per_token for all tokens and channels suffices."""
        return self.total / self.C

    def check(self, g: np.ndarray, k_max: float = 1.0) -> None:
        """Raise DomainError naming the worst batch, token, head and channel where g `[B, N, H, DK]` is outside.

        k_max: the largest |k|; the bound tightens by ln(k_max) above 1.
        """
        bound = self.total - max(0.0, log(k_max)) if k_max > 0 else self.total
        if -float(g.min()) * min(self.C, g.shape[1]) <= bound:
            return  # the cheap sufficient test
        gamma = chunk_gamma(g, self.C)
        worst = float(-gamma.min())
        if worst > bound * (1 + 1e-6):
            at = tuple(int(i) for i in np.unravel_index(int(np.argmin(gamma)), gamma.shape))
            raise DomainError(
                f"g sums to {-worst:.6g} since its chunk of {self.C} tokens began, at {at_words('g', at)}; with {self.dtype} "
                f"operands and |k| <= {max(1.0, k_max):.4g} it must stay >= {-bound:.6g} (a constant gate: g >= "
                f"{-bound / self.C:.4g}); use a shorter chunk, a wider format or a bounded gate"
            )


def gate_domain(dtype: Format, C: int) -> GateDomain:
    """The domain of a kernel that splits the exponent over chunks of C tokens with `dtype` operands."""
    return GateDomain(dtype, C, -log(dtype.min_normal))
