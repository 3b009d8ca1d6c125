"""The number formats a kernel may compute in, and rounding to them.

Everything outside a kernel is held in float64 NumPy arrays. A `Format` says what a narrower format can hold and rounds
float64 values to it (to nearest, ties to even; overflow to infinity; subnormals kept), exactly as a conversion in
hardware would.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

__all__ = ["BF16", "F16", "F32", "F64", "FORMATS", "Format", "format_named"]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    `name` is the usual long name (also TileLang's and torch's), `short` the one used in case lines and test ids, and
    `precision` the number of significand bits, hidden bit included.
    """

    name: str
    short: str
    precision: int
    min_exponent: int
    max: float

    @property
    def unit_roundoff(self) -> float:
        """u: the largest relative error of one rounding to nearest."""
        return 2.0**-self.precision

    @property
    def min_normal(self) -> float:
        """The smallest positive number that still has full precision."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number; half of it is the absolute error of a rounding below `min_normal`."""
        return 2.0 ** (self.min_exponent - self.precision + 1)

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype that stores this format (bfloat16 comes from ml_dtypes)."""
        return np.dtype(ml_dtypes.bfloat16) if self.name == "bfloat16" else np.dtype(self.name)

    def round(self, values: np.ndarray) -> np.ndarray:
        """`values` (float64) rounded to this format, as float64."""
        if self.name == "float64":
            return np.asarray(values, dtype=np.float64)
        with np.errstate(over="ignore", under="ignore"):
            if self.name == "bfloat16":
                return _round_to_bf16(np.asarray(values, dtype=np.float64))
            return np.asarray(values).astype(self.numpy).astype(np.float64)

    def holds(self, values: np.ndarray) -> bool:
        """Whether every one of `values` is exactly representable."""
        return bool(np.array_equal(self.round(values), values, equal_nan=True))

    def __str__(self) -> str:
        return self.short


def _round_to_bf16(values: np.ndarray) -> np.ndarray:
    # float64 -> float32 -> bfloat16 would round twice; rounding the first step to odd makes the second one exact.
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    exact = (single.astype(np.float64) == values) | ~np.isfinite(single)
    toward_zero = np.where(np.abs(single.astype(np.float64)) > np.abs(values), bits - np.uint32(1), bits)
    odd = np.where(exact, bits, toward_zero | np.uint32(1)).astype(np.uint32).view(np.float32)
    return odd.astype(ml_dtypes.bfloat16).astype(np.float64)


F16 = Format("float16", "f16", 11, -14, 65504.0)
BF16 = Format("bfloat16", "bf16", 8, -126, 2.0**127 * (2 - 2.0**-7))
F32 = Format("float32", "f32", 24, -126, float(np.finfo(np.float32).max))
F64 = Format("float64", "f64", 53, -1022, float(np.finfo(np.float64).max))

FORMATS: dict[str, Format] = {f.name: f for f in (F16, BF16, F32, F64)}
_BY_ANY_NAME = FORMATS | {f.short: f for f in FORMATS.values()}


def format_named(name: str | Format) -> Format:
    """The format of a long or short name (`float16` or `f16`); ValueError names the known ones."""
    if isinstance(name, Format):
        return name
    try:
        return _BY_ANY_NAME[name]
    except KeyError:
        raise ValueError(f"dtype {name!r} is unknown; known are {', '.join(_BY_ANY_NAME)}") from None
