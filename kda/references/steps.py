"""The arithmetic of `kda_steps` in NumPy: the recurrence in float32, token by token (article, section 3.1).

Nothing is rounded to the operand format but what arrives in it and o. Every sum over key channels is ascending, each
product rounded before it is added, as in the CPU program.
"""

from __future__ import annotations

import numpy as np

from kda.formats import F64, Format
from kda.problem import Inputs, Outputs
from kda.references._layout import tokens_first
from kda.references.arithmetic import Arithmetic, Exp2, exp2_correctly_rounded

__all__ = ["ref_steps"]


def ref_steps(
    inputs: Inputs,
    precision: Format = F64,
    exp2: Exp2 | None = None,
    lean: float = 0.0,
    scale: float = 1.0,
) -> Outputs:
    """`kda_steps`, all heads and value channels at once.

    precision: the operand format; in float64 nothing is rounded. exp2: the float32 2^x of the machine under test
    (correctly rounded where None). lean: see `Arithmetic`. scale multiplies o before it is rounded. Raises InputError
    if `inputs` are malformed.
    """
    sizes = inputs.check()
    machine = Arithmetic(precision, exp2 or exp2_correctly_rounded, lean)
    op, accum = machine.op, machine.accum
    cleared = machine.zeros(sizes.B, sizes.H, 1, sizes.DV)
    o = np.zeros((sizes.N, sizes.B, sizes.H, sizes.DV))
    with np.errstate(all="ignore"):
        q, k, v, g, beta = (
            tokens_first(x).astype(accum) for x in (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta)
        )
        a = machine.exp(g)
        S = inputs.state().astype(accum)
        for t in range(sizes.N):
            S = S * a[t, ..., None]
            w = beta[t, ..., None, None] * (v[t, ..., None, :] - machine.gemm(k[t, ..., None, :], S, cleared))
            S = S + k[t, ..., None] * w
            o[t] = op(accum(scale) * machine.gemm(q[t, ..., None, :], S, cleared))[..., 0, :]
    return Outputs(np.ascontiguousarray(np.moveaxis(o, 0, 1)), S.astype(np.float64))
