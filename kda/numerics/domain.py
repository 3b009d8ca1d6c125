"""The gates a split-exponent kernel can compute.

The split e^(gamma_c - gamma_i) = e^gamma_c e^-gamma_i (article, 1.2) makes one factor small and the other large. With
Gamma the largest |gamma| inside a chunk, k e^-gamma overflows the operand format above `max`, and k e^gamma loses
precision below `min_normal`, where a rounding is off by half of `min_subnormal` however small the number. That error is
multiplied by e^Gamma, and is as large as the unit roundoff itself where e^-Gamma reaches `min_normal`. This comes first
in every format, so it is the border: Gamma <= -ln(min_normal), less ln|k| where a key is longer than 1.

A kernel that starts gamma anew at every sub-chunk (article, 2.3) splits the exponent inside sub-chunks only: between
them both factors are at most 1. The same border then holds over sub_C tokens instead of C. docs/gate-domain.md has the
derivation, the table and the cases that break just outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np

from kda.formats import Format
from kda.problem import InputError, Inputs, at_words

__all__ = ["DomainError", "GateDomain", "chunk_gamma", "gate_domain", "gate_window", "scaled_to", "worst_place"]


class DomainError(InputError):
    """A gate outside the domain of the kernel it was given to."""


def chunk_gamma(g: np.ndarray, C: int) -> np.ndarray:
    """gamma: g `[B, N, H, DK]` summed from the start of each chunk of C tokens, same shape (article, section 0)."""
    gamma = np.empty_like(g)
    for start in range(0, g.shape[1], C):  # chunk by chunk: a difference of sums over all tokens would cancel
        np.cumsum(g[:, start : start + C], axis=1, out=gamma[:, start : start + C])
    return gamma


def gate_window(C: int, sub_C: int | None) -> int:
    """The tokens that gamma runs over before it starts anew: C, or a shorter sub-chunk."""
    return min(C, sub_C or C)


@dataclass(frozen=True)
class GateDomain:
    """The gates for which |gamma| stays within `total` over every chunk of C tokens, with operands in `dtype`.

    sub_C: the length of the sub-chunks that gamma starts anew at, if any; a divisor of C (or at least C, which is the
    same as none).
    """

    dtype: Format
    C: int
    total: float
    sub_C: int | None = None

    def __post_init__(self) -> None:
        if self.sub_C is not None and (self.sub_C < 1 or (self.sub_C < self.C and self.C % self.sub_C)):
            raise ValueError(f"sub_C is {self.sub_C}; expected a divisor of C = {self.C}, or None")

    @property
    def window(self) -> int:
        """The tokens that gamma runs over before it starts anew: C, or a shorter sub_C."""
        return gate_window(self.C, self.sub_C)

    @property
    def per_token(self) -> float:
        """The strongest constant gate: g >= -per_token for all tokens and channels suffices."""
        return self.total / self.window

    @property
    def least_decay(self) -> float:
        """The same as a decay: a >= least_decay for all tokens and channels suffices (article, 1.3 and 2.1)."""
        return exp(-self.per_token)

    @property
    def overflow(self) -> float:
        """The |gamma| at which k e^-gamma is infinite for |k| = 1: beyond `total` in every format."""
        return log(self.dtype.max)

    def bound(self, k_max: float = 1.0) -> float:
        """The largest |gamma| for keys with |k| <= k_max: `total`, less ln(k_max) above 1, and at least 0."""
        return max(0.0, self.total - log(k_max)) if k_max > 1 else self.total

    def surely_holds(self, g_min: float, N: int, k_max: float = 1.0) -> bool:
        """Whether N tokens with g >= g_min are inside in any order: a cheap test, sufficient and not necessary."""
        return -g_min * min(self.window, N) <= self.bound(k_max)

    def check(self, g: np.ndarray, k_max: float = 1.0) -> None:
        """Raise DomainError naming the worst batch, token, head and channel where g `[B, N, H, DK]` is outside.

        k_max: the largest |k|, see `bound`.
        """
        if self.surely_holds(float(g.min()), g.shape[1], k_max):
            return
        bound = self.bound(k_max)
        at = worst_place(g, self.window)
        worst = float(-chunk_gamma(g, self.window)[at])
        if worst > bound * (1 + 1e-6):  # a gate at the edge was rounded to float32, and may be summed there
            began = "chunk" if self.window == self.C else "sub-chunk"
            raise DomainError(
                f"g sums to {-worst:.6g} since its {began} of {self.window} tokens began, at {at_words('g', at)}; with "
                f"{self.dtype} operands and |k| <= {max(1.0, k_max):.4g} it must stay >= {-bound:.6g} (a constant "
                f"gate: g >= {-bound / self.window:.4g}); use a shorter chunk, a wider format or a bounded gate"
            )

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise InputError for malformed `inputs`, and DomainError for gates outside, given their own keys."""
        inputs.check()
        self.check(inputs.g, float(np.abs(inputs.k).max()))


def gate_domain(dtype: Format, C: int, sub_C: int | None = None) -> GateDomain:
    """The domain of a kernel that splits the exponent over (sub-)chunks of C (sub_C) tokens with `dtype` operands."""
    return GateDomain(dtype, C, -log(dtype.min_normal), sub_C)


def worst_place(g: np.ndarray, C: int) -> tuple[int, ...]:
    """The first batch, token, head and channel where |gamma| of g `[B, N, H, DK]` is largest."""
    gamma = chunk_gamma(g, C)
    return tuple(int(i) for i in np.unravel_index(int(np.argmin(gamma)), gamma.shape))


def scaled_to(g: np.ndarray, C: int, total: float) -> np.ndarray:
    """The gate g `[B, N, H, DK]`, not all zero, scaled so that its largest |gamma| over C tokens is `total`."""
    return g * (total / float(-chunk_gamma(g, C).min()))
