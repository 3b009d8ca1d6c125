"""The lattice regime: cases whose exact result no rounding may change.

One-hot q and k, beta 0 or 1, gates that halve, small integers in v and the state: every number of the algorithm is a
small integer times a power of two, and the kernel must give exactly the reference's result. Whether a case stays on the
lattice is certified in float64, on its own numbers.
"""

from __future__ import annotations

import numpy as np

from kda.problem import Inputs, Outputs

__all__ = ["exact_outputs"]


def exact_outputs(inputs: Inputs, C: int) -> Outputs | None:
    """What a kernel with chunks of C tokens must compute exactly; None where `inputs` are not certified.

    The decays are powers of two, and not exp(g): g is ln 2 in float32, a little off. Certified is a case where every
    state, every written value w and every output is representable in the operand format, all of them together within
    the 24 bits of an accumulator, and the kernel's float32 e^gamma is a power of two itself at every token. (In 16-bit
    operands the rounding would make it one, but what is left of it where two of them cancel would not be zero.)
    """
    halvings = np.round(inputs.g / np.log(2.0))
    if np.abs(inputs.g - halvings * np.log(2.0)).max() > 1e-6 or not _powers_are_exact(inputs, C):
        return None
    decay = np.exp2(halvings)
    S = inputs.state()
    o = np.empty(inputs.sizes.shape("o"))
    seen = [S.copy(), inputs.v]
    for t in range(inputs.sizes.N):
        S *= decay[:, t, :, :, None]
        seen.append(S.copy())
        k = inputs.k[:, t]
        w = inputs.beta[:, t, :, None] * (inputs.v[:, t] - (k[:, :, None, :] @ S)[:, :, 0])
        S += k[..., None] * w[:, :, None, :]
        o[:, t] = (inputs.q[:, t][:, :, None, :] @ S)[:, :, 0]
        seen += [S.copy(), w, o[:, t]]
    numbers = np.concatenate([x.ravel() for x in seen])
    numbers = numbers[numbers != 0]
    if numbers.size == 0 or not inputs.dtype.holds(numbers):
        return None
    return Outputs(o, S) if float(np.abs(numbers).max()) <= 2.0**23 * _lowest_bit(numbers) else None


def _lowest_bit(numbers: np.ndarray) -> float:
    """The largest power of two of which all `numbers` (not zero) are multiples."""
    mantissa, exponent = np.frexp(numbers)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    return float(((whole & -whole).astype(np.float64) * np.exp2(exponent - 53.0)).min())


def _powers_are_exact(inputs: Inputs, C: int) -> bool:
    """Whether gamma log2(e), computed in float32 as the kernel does, is a whole number at every token."""
    log2_e = np.float32(1.4426950408889634)
    for start in range(0, inputs.sizes.N, C):
        gamma = np.cumsum(inputs.g[:, start : start + C].astype(np.float32), axis=1, dtype=np.float32)
        exponent = gamma * log2_e
        if (exponent != np.round(exponent)).any():
            return False
    return True
