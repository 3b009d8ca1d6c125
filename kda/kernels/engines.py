"""The programs that compute `kda_forward`, and which of them takes a call: the first in `ENGINES` that covers it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch

from kda.formats import BF16, F16, F32, Format
from kda.kernels.form import Call, Form
from kda.problem import InputError

__all__ = ["ENGINES", "Engine", "choose", "engine_named"]


@dataclass(frozen=True)
class Engine:
    """One program. It covers every `Form` whose operands are in `operands`, with DK and DV in `channels`.

    module: where its `launch(call)` is, imported by the first call. capability: the compute capability of the CUDA
    devices that it is written for; None where it takes any, and CPUs too. short: up to how many tokens of a sequence it
    is chosen, in dense calls and, on average, in packed ones; None for any number. Asked for by name it computes all.
    """

    name: str
    summary: str
    module: str
    operands: tuple[Format, ...]
    channels: range
    capability: tuple[int, int] | None = None
    short: tuple[int, int] | None = None

    def suits(self, form: Form, tokens: float) -> bool:
        """Whether it is meant for sequences of so many tokens, on average where they have lengths of their own."""
        return self.short is None or tokens <= self.short[form.packed]

    def refuses(self, form: Form, DK: int, DV: int, device: torch.device) -> str | None:
        """Why it does not compute such calls, as in "DK is 64; expected 128"; None where it does."""
        if device.type not in ("cpu", "cuda"):
            return f"q is on {device}; expected a CPU or CUDA tensor"
        if self.capability is not None:
            there = "a CPU" if device.type != "cuda" else _capability_words(torch.cuda.get_device_capability(device))
            wanted = _capability_words(self.capability)
            if there != wanted:
                return f"q is on {there}; expected {wanted}"
        if form.operand not in self.operands:
            return f"q is {form.operand.name}; expected {', '.join(operand.name for operand in self.operands)}"
        for name, channels in (("DK", DK), ("DV", DV)):
            if channels not in self.channels:
                return f"{name} is {channels}; expected {self.channels_words}"
        return None

    @property
    def channels_words(self) -> str:
        """The DK and DV that it takes: "128", or "a multiple of 16 from 16 to 256"."""
        first, last = self.channels[0], self.channels[-1]
        return str(first) if first == last else f"a multiple of {self.channels.step} from {first} to {last}"

    @property
    def length_words(self) -> str:
        """The tokens of a sequence up to which it is chosen: "any", or "16, 2 if packed"."""
        return "any" if self.short is None else f"{self.short[0]}, {self.short[1]} if packed"

    @property
    def device_words(self) -> str:
        """The devices that it runs on."""
        return "CPU, CUDA" if self.capability is None else f"CUDA, {_capability_words(self.capability)}"

    @property
    def launch(self) -> Callable[[Call], None]:
        """Its function: computes a call into the call's o and final_state."""
        return _function(self.module)


@functools.cache
def _function(module: str) -> Callable[[Call], None]:
    made: Callable[[Call], None] = importlib.import_module(module).launch
    return made


def _capability_words(capability: tuple[int, int]) -> str:
    return f"compute capability {capability[0]}.{capability[1]}"


#: "steps" is right for any length, and slow for long ones: on an H200, in bf16 with 32 heads of 128 x 128 and states,
#: 256 sequences of one token take 275 us where "hopper" takes 1,000, 64 of 16 tokens 141 against 276, 8 of 64 tokens 68
#: against 47. The host does not know the lengths of packed sequences: with at most two tokens on average, a call is
#: taken for one that decodes.
ENGINES: tuple[Engine, ...] = (
    Engine("steps", "token by token", "kda.kernels.stepwise", (F16, BF16, F32), range(16, 257, 16), short=(16, 2)),
    Engine("hopper", "TMA and wgmma", "kda.kernels.hopper", (F16, BF16), range(128, 129), capability=(9, 0)),
    Engine("portable", "one TileLang program for all", "kda.kernels.portable", (F16, BF16, F32), range(16, 257, 16)),
)


def engine_named(name: str) -> Engine:
    """The engine called `name`; InputError names those there are."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise InputError(f"engine is {name!r}; expected {', '.join(repr(e.name) for e in ENGINES)} or None")


def choose(form: Form, DK: int, DV: int, device: torch.device, name: str | None = None, tokens: float = inf) -> Engine:
    """The engine of such calls, or the one called `name`; InputError says why where there is none or it is not it.

    tokens: of a sequence, on average where they have lengths of their own.
    """
    suited = tuple(engine for engine in ENGINES if engine.suits(form, tokens))
    candidates = suited if name is None else (engine_named(name),)
    reasons = []
    for engine in candidates:
        reason = engine.refuses(form, DK, DV, device)
        if reason is None:
            return engine
        reasons.append(reason)
    if name is not None:
        raise InputError(f"engine is {name!r} and {reasons[0]} (leave engine out for one that covers the call)")
    raise InputError(reasons[-1])
