"""What one call of `kda_forward` asks for besides the recurrence, and the tensors that it asks it of.

A `Form` is known when a program is compiled; a `Call` is one checked call, in the layout that every program of
`kda_forward` reads: tokens of all sequences behind one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kda.formats import F32, Format

__all__ = ["BETAS", "GATES", "Beta", "Call", "Form", "Gate"]

#: How a program gets the natural-log gate from g, with a = exp(A_log[h]), or 1 where there is none, and
#: x = g + dt_bias[h, d]: "log": g; "softplus": -a softplus(x); "bounded": lower_bound sigmoid(a x).
Gate = Literal["log", "softplus", "bounded"]
#: How it gets beta: "value": beta; "logits": sigmoid(beta); "doubled": 2 sigmoid(beta).
Beta = Literal["value", "logits", "doubled"]

GATES: tuple[Gate, ...] = ("log", "softplus", "bounded")
BETAS: tuple[Beta, ...] = ("value", "logits", "doubled")


@dataclass(frozen=True)
class Form:
    """What a program is compiled for.

    operand: the format of q, k, v and o. packed: sequences have lengths of their own. initial_state, final_state:
    whether there is one to read, or to write. state_v_first: states are [DV, DK]. normalise: q and k are divided by
    sqrt(|x|^2 + 1e-6) in float32 and rounded to `operand`. gate, beta: see `GATES` and `BETAS`; g_format, beta_format:
    the formats in which g and beta arrive.
    """

    operand: Format
    packed: bool = False
    initial_state: bool = True
    final_state: bool = True
    state_v_first: bool = False
    normalise: bool = False
    gate: Gate = "log"
    beta: Beta = "value"
    g_format: Format = F32
    beta_format: Format = F32


# Not frozen: that would make each of them several times as dear. Two calls are never the same one.
@dataclass(eq=False, slots=True)
class Call:
    """One call, checked: dense tensors on one device, every axis of tokens flattened.

    T tokens in all, S sequences, HV value heads, of which HV / H in a row share the q and k of one head.
    q, k: [T, H, DK]; v, o: [T, HV, DV], in the operand format. g: [T, HV, DK] and beta: [T, HV] in the form's formats.
    A_log: [HV], dt_bias: [HV, DK], float32, or None. starts: [S + 1] int32, where each sequence starts, if packed; else
    None, and every sequence has `length` tokens. initial_state, final_state: [S, HV, DK, DV], or [S, HV, DV, DK] where
    the form says so, float32, or None. scale multiplies q.
    """

    form: Form
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    o: torch.Tensor
    sequences: int
    length: int
    scale: float
    A_log: torch.Tensor | None = None
    dt_bias: torch.Tensor | None = None
    lower_bound: float = 0.0
    starts: torch.Tensor | None = None
    initial_state: torch.Tensor | None = None
    final_state: torch.Tensor | None = None

    def hand_states_on(self) -> None:
        """Where there are no tokens: the final states are the initial ones, or zeros."""
        if self.final_state is not None:
            self.final_state.zero_() if self.initial_state is None else self.final_state.copy_(self.initial_state)
