"""The lattice regime: cases whose exact result no rounding may change.

One-hot q and k, beta 0 or 1, gates that halve, small integers in v and the state: every number of the algorithm is a
small integer times a power of two, and the kernel must give exactly the reference's result. Whether a case stays on the
lattice is certified in float64, on its own numbers.
"""

from __future__ import annotations

import numpy as np

from kda.formats import F32, F64, Format
from kda.numerics.domain import chunk_gamma
from kda.problem import Inputs, Outputs

__all__ = ["on_lattice", "rounded_outputs"]


def on_lattice(inputs: Inputs, C: int) -> bool:
    """Whether a kernel with `inputs.dtype` operands and float32 accumulators must compute `inputs` exactly.

    Holds where every state, every written value w and every output is representable in the operand format, all of them
    together within the 24 bits of an accumulator, and e^gamma is a power of two up to rounding (exactly one where the
    operands themselves are float32).
    """
    exponent = chunk_gamma(inputs.g, C) / np.log(2.0)
    if np.abs(exponent - np.round(exponent)).max() > 1e-4:
        return False
    if inputs.dtype in (F32, F64) and not _float32_powers_are_exact(inputs.g, C):
        return False
    halvings = np.exp2(np.round(inputs.g / np.log(2.0)))
    S = inputs.state()
    seen = [S.copy()]
    for t in range(inputs.sizes.N):
        S *= halvings[:, t, :, :, None]
        seen.append(S.copy())
        k = inputs.k[:, t]
        w = inputs.beta[:, t, :, None] * (inputs.v[:, t] - (k[:, :, None, :] @ S)[:, :, 0])
        S += k[..., None] * w[:, :, None, :]
        seen += [S.copy(), w]
    numbers = np.concatenate([x.ravel() for x in seen] + [inputs.v.ravel()])
    numbers = numbers[numbers != 0]
    if numbers.size == 0:
        return False
    return inputs.dtype.holds(numbers) and float(np.abs(numbers).max()) <= 2.0**23 * _lowest_bit(numbers)


def rounded_outputs(outputs: Outputs, dtype: Format) -> Outputs:
    """`outputs` rounded to `dtype`: what must be equal on the lattice."""
    return Outputs(dtype.round(outputs.o), dtype.round(outputs.final_state))


def _lowest_bit(numbers: np.ndarray) -> float:
    """The largest power of two of which all `numbers` (not zero) are multiples."""
    mantissa, exponent = np.frexp(numbers)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    return float(((whole & -whole).astype(np.float64) * np.exp2(exponent - 53.0)).min())


def _float32_powers_are_exact(g: np.ndarray, C: int) -> bool:
    log2_e = np.float32(1.4426950408889634)
    for start in range(0, g.shape[1], C):
        gamma = np.cumsum(g[:, start : start + C].astype(np.float32), axis=1, dtype=np.float32)
        exponent = gamma * log2_e
        if (exponent != np.round(exponent)).any():
            return False
    return True
