"""The arithmetic of a machine that computes in one operand format, for the mirror to run on.

In float64 it is NumPy's own. In a narrower format, operands are rounded to that format and everything else is float32:
sums run over the inner index in ascending order, each product is rounded before it is added, and e^x is 2^(x log2 e).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kda.formats import F64, Format

__all__ = ["LOG2E", "Arithmetic", "Exp2", "exp2_correctly_rounded"]

#: 2^x on a float32 array, giving a float32 array.
Exp2 = Callable[[np.ndarray], np.ndarray]

#: log2(e) as a kernel holds it.
LOG2E = np.float32(1.4426950408889634)


def exp2_correctly_rounded(x: np.ndarray) -> np.ndarray:
    """2^x of a float32 array by way of float64, rounded to float32."""
    return np.exp2(x.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class Arithmetic:
    """What a kernel does between its loads and its stores, in one operand format.

    precision: the format of the operands; float64 rounds nothing. exp2: the float32 2^x of the machine that is
    mirrored; not used in float64. lean: what `gemm` returns is larger by this fraction, as another order of additions
    might leave it; a run that leans shows which of the roundings behind it could have gone the other way. Overflow
    gives inf and nan, as it would there; the caller silences NumPy's warnings.
    """

    precision: Format = F64
    exp2: Exp2 = exp2_correctly_rounded
    lean: float = 0.0

    @property
    def accum(self) -> type[np.floating]:
        """The type of accumulators, of the gate and of the state."""
        return np.float64 if self.precision == F64 else np.float32

    def op(self, x: np.ndarray) -> np.ndarray:
        """`x` rounded to the operand format, held in the accumulator's type (a copy where nothing is rounded)."""
        # x is in the accumulator's type already, so that this is one rounding and agrees with `Format.round`.
        return x.astype(self.precision.numpy).astype(self.accum, copy=False)

    def exp(self, x: np.ndarray) -> np.ndarray:
        """e^x."""
        if self.precision == F64:
            return np.exp(x)
        return self.exp2(x * LOG2E)

    def zeros(self, *shape: int) -> np.ndarray:
        """A cleared accumulator."""
        return np.zeros(shape, self.accum)

    def gemm(self, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
        """A new acc + a b: a `[..., R, K]`, b `[..., K, S]`, acc `[..., R, S]`."""
        if self.precision == F64:
            return acc + a @ b
        acc = acc.copy()
        product = np.empty_like(acc)
        for kk in range(a.shape[-1]):
            np.multiply(a[..., :, kk, None], b[..., kk, None, :], out=product)
            acc += product
        return acc * acc.dtype.type(1 + self.lean) if self.lean else acc
