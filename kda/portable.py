"""`exp` and `log` that give the same bits everywhere.

The exp and log of a C library, and of NumPy's vector units, differ between machines in the last bit. Inputs of a case
must not, so these are built from operations that IEEE 754 fixes to the bit (+ - * /, rint, frexp, ldexp), one NumPy
call each, which leaves no room for a fused multiply-add. Relative error below 1e-15.
"""

from __future__ import annotations

import numpy as np

__all__ = ["exp", "log", "sigmoid", "softplus"]

# ln 2 in two parts: the first has 21 trailing zero bits, so that its product with any exponent is exact.
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_SQRT_HALF = 0.7071067811865476
_ATANH = [1.0 / (2 * i + 1) for i in range(12)]  # atanh(f) / f in powers of f^2 <= 0.0295: the next term is 1e-20
_FACTORIALS = [1.0]
for _i in range(1, 15):  # exp(r) in powers of |r| <= 0.347: the next term is 1e-19
    _FACTORIALS.append(_FACTORIALS[-1] * _i)
_TAYLOR = [1.0 / f for f in _FACTORIALS]


def _horner(coefficients: list[float], x: np.ndarray) -> np.ndarray:
    total = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total *= x
        total += c
    return total


def exp(x: np.ndarray | float) -> np.ndarray:
    """e^x, elementwise, for finite x; 0 below -745 and clamped to e^709 above 709."""
    x = np.clip(np.asarray(x, dtype=np.float64), -746.0, 709.0)
    k = np.rint(x / (_LN2_HIGH + _LN2_LOW))
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    return np.ldexp(_horner(_TAYLOR, r), k.astype(np.int32))


def log(x: np.ndarray | float) -> np.ndarray:
    """The natural logarithm, elementwise, for finite x > 0."""
    m, e = np.frexp(np.asarray(x, dtype=np.float64))
    low = m < _SQRT_HALF
    m = np.where(low, m + m, m)
    e = e - low.astype(np.int32)
    f = (m - 1.0) / (m + 1.0)
    return e * _LN2_HIGH + (e * _LN2_LOW + (f + f) * _horner(_ATANH, f * f))


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + e^x), elementwise."""
    return np.maximum(x, 0.0) + log(1.0 + exp(-np.abs(x)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), elementwise."""
    small = exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)
