"""What `kda_forward` makes of raw q, k, g and beta before the recurrence, in NumPy: in float32 the kernel's own bits.

Every function takes arrays of the machine's accumulator type (float32, or float64 where `Arithmetic` is exact) and
returns such. The only exponential is the machine's 2^x.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from kda.references.arithmetic import Arithmetic

__all__ = ["EPSILON", "LOG1P_TERMS", "NORM_PART", "log_gate", "normalised", "rate", "sigmoid", "softplus"]

#: Added to |x|^2 before the root, so that a row of zeros stays one.
EPSILON = 1e-6

#: Channels whose squares are added up by one lane; the sums of such parts are added in order. Divides every DK.
NORM_PART = 16

#: log(1 + u) = z (2 + 2/3 z^2 + 2/5 z^4 + ... + 2/15 z^14), z = u / (2 + u): the last one first, in the seven digits
#: that TileLang prints for C. What is left out is below 2^-27 of the sum where u <= 1.
LOG1P_TERMS = (0.1333333, 0.1538462, 0.1818182, 0.2222222, 0.2857143, 0.4, 0.6666667, 2.0)


def normalised(machine: Arithmetic, x: np.ndarray) -> np.ndarray:
    """Each row of x over sqrt(|x|^2 + EPSILON), rounded to the operand format."""
    parts = x.reshape(*x.shape[:-1], -1, NORM_PART)
    sums = np.zeros(parts.shape[:-1], machine.accum)
    for d in range(NORM_PART):
        sums += parts[..., d] * parts[..., d]
    total = np.zeros(sums.shape[:-1], machine.accum)
    for part in range(sums.shape[-1]):
        total += sums[..., part]
    one = machine.accum(1)
    return machine.op(x * (one / np.sqrt(total + machine.accum(EPSILON)))[..., None])


def sigmoid(machine: Arithmetic, x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    one = machine.accum(1)
    return one / (one + machine.exp(-x))


def softplus(machine: Arithmetic, x: np.ndarray) -> np.ndarray:
    """log(1 + e^x), as `kda.kernels.prologue.softplus` adds it up."""
    u = machine.exp(-np.abs(x))
    z = u / (machine.accum(2) + u)
    z2 = z * z
    series = np.full_like(z, LOG1P_TERMS[0])
    for term in LOG1P_TERMS[1:]:
        series = series * z2 + machine.accum(term)
    return np.maximum(x, machine.accum(0)) + z * series


def log_gate(
    machine: Arithmetic,
    gate: Literal["log", "softplus", "bounded"],
    g: np.ndarray,
    A_log: np.ndarray | None = None,
    dt_bias: np.ndarray | None = None,
    lower_bound: float = 0.0,
) -> np.ndarray:
    """The natural-log gate of raw g `[..., H, DK]`: see `kda.kernels.form.GATES`. A_log: `[H]`, dt_bias: `[H, DK]`."""
    if gate == "log":
        return g
    x = g if dt_bias is None else g + dt_bias.astype(machine.accum)
    a = machine.accum(1) if A_log is None else machine.exp(A_log.astype(machine.accum))[:, None]
    if gate == "softplus":
        return -a * softplus(machine, x)
    return machine.accum(lower_bound) * sigmoid(machine, a * x)


def rate(machine: Arithmetic, beta: Literal["value", "logits", "doubled"], raw: np.ndarray) -> np.ndarray:
    """The beta of raw beta: see `kda.kernels.form.BETAS`."""
    if beta == "value":
        return raw
    return sigmoid(machine, raw) if beta == "logits" else machine.accum(2) * sigmoid(machine, raw)
