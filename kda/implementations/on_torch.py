"""Adapters for kernels that take torch tensors: conversion, memory layouts, poison and guards."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from math import prod

import numpy as np
import torch

from kda.formats import Format
from kda.implementations.base import PLAIN, Implementation, Memory, MemoryViolation
from kda.implementations.transfer import bits, to_device, to_host
from kda.numerics.domain import GateDomain
from kda.problem import Inputs, Outputs, Sizes, Tile, at_words

__all__ = ["TorchImplementation"]

_GUARD_VALUE = 12345.0


class TorchImplementation(Implementation):
    """An implementation that computes on torch tensors: `call` is all that an adapter must add.

    float64 arrays become tensors of the formats they stand for (exactly), on the device of the target.
    """

    controls_memory = True

    #: Whether the kernel's own launch refuses malformed inputs and gates outside its domain. Where it does not, `run`
    #: refuses for it: by `Inputs.check`, and by the largest |sum of g| that `support` names.
    checks_inputs = False

    @abstractmethod
    def call(self, tensors: dict[str, torch.Tensor], tile: Tile, o: torch.Tensor, final_state: torch.Tensor) -> None:
        """Compute into `o` and `final_state`; `tensors` holds q, k, v, g, beta and, where given, initial_state."""

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        if not self.checks_inputs:
            total = self.support(target, inputs.dtype).max_total_gate(inputs.dtype)
            GateDomain(inputs.dtype, tile.C, total).check_inputs(inputs)
        stores = {
            name: _Guarded(name, inputs.sizes.shape(name), form, memory)
            for name, form in (("o", inputs.dtype), ("final_state", inputs.gate_dtype))
        }
        given = {
            name: _buffer(name, array, inputs.dtype if name in ("q", "k", "v") else inputs.gate_dtype, memory)
            for name, array in inputs.tensors()
        }
        before = {name: buffer.clone() for name, buffer in given.items()} if memory is not PLAIN else {}
        device = torch.device("cuda" if target == "cuda" else "cpu")
        there = to_device(given | {name: store.buffer for name, store in stores.items()}, device)
        tensors = {name: _view(name, there[name], memory) for name in given}
        self.call(tensors, tile, **{name: store.view(there[name]) for name, store in stores.items()})
        back = to_host({name: there[name] for name in (*before, *stores)})
        for name, saved in before.items():
            if not torch.equal(bits(back[name]), bits(saved)):
                _check_unchanged(name, _view(name, back[name], memory), _view(name, saved, memory))
        return Outputs(**{name: store.read(back[name]) for name, store in stores.items()})

    def last_of_many(self, sizes: Sizes, tile: Tile, target: str, seed: int = 0) -> tuple[Outputs, Outputs]:
        """The outputs of the last sequence among `sizes.B`, and those of the same sequence alone.

        For sizes whose arrays only the device can hold: the inputs are random and made there.
        """
        device = torch.device("cuda" if target == "cuda" else "cpu")
        random = torch.Generator(device).manual_seed(seed)
        operand = getattr(torch, tile.dtype.name)

        def made(name: str, low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
            whole = torch.empty(sizes.shape(name), dtype=dtype, device=device)
            return whole.uniform_(low, high, generator=random)

        size = sizes.DK**-0.5
        tensors = {
            "q": made("q", -size, size, operand),
            "k": made("k", -size, size, operand),
            "v": made("v", -1, 1, operand),
            "g": made("g", -0.05, 0, torch.float32),
            "beta": made("beta", 0, 1, torch.float32),
        }
        outputs = []
        for given in (tensors, {name: tensor[-1:] for name, tensor in tensors.items()}):
            one = replace(sizes, B=len(given["q"]))
            o = torch.full(one.shape("o"), float("nan"), dtype=operand, device=device)
            final_state = torch.full(one.shape("final_state"), float("nan"), device=device)
            self.call(given, tile, o, final_state)
            outputs.append(Outputs(o[-1:].double().cpu().numpy(), final_state[-1:].double().cpu().numpy()))
        return outputs[0], outputs[1]


def _buffer(name: str, array: np.ndarray, form: Format, memory: Memory) -> torch.Tensor:
    """The tensor of an input, on the CPU, or a wider one that has it as its `_view`."""
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, form.name))
    if not memory.strided:
        return tensor
    # What a fused projection hands out slices of; what lies between is not a number.
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 3), float("nan"), dtype=tensor.dtype)
    _view(name, wide, memory).copy_(tensor)
    return wide


def _view(name: str, buffer: torch.Tensor, memory: Memory) -> torch.Tensor:
    if not memory.strided:
        return buffer
    width = (buffer.shape[-1] - 3) // 2
    return buffer[..., 1 : 2 * width + 1 : 2] if name == "beta" else buffer[..., 3 : 3 + width]


def _check_unchanged(name: str, now: torch.Tensor, saved: torch.Tensor) -> None:
    changed = bits(now) != bits(saved)
    if changed.any():
        at = tuple(torch.nonzero(changed)[0].tolist())
        raise MemoryViolation(
            f"the input {name} was changed in {int(changed.sum())} elements, first at {at_words(name, at)}: "
            f"{now[at].item():.6g}, was {saved[at].item():.6g}"
        )


class _Guarded:
    """One output buffer, poisoned, with a guard band of a known pattern on either side."""

    def __init__(self, name: str, shape: tuple[int, ...], form: Format, memory: Memory):
        self.name, self.shape = name, shape
        # The band keeps whole cache lines, so that the view is aligned as a fresh buffer would be.
        self.band = -(-memory.guard // 64) * 64
        dtype = getattr(torch, form.name)
        if self.band:
            self.buffer = torch.full((prod(shape) + 2 * self.band,), _GUARD_VALUE, dtype=dtype)
            self.view(self.buffer).fill_(memory.poison)
        else:
            self.buffer = torch.full(shape, memory.poison, dtype=dtype)

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """The output in `buffer`, which is the one here or where that was copied to."""
        return buffer[self.band : -self.band].view(self.shape) if self.band else buffer

    def read(self, buffer: torch.Tensor) -> np.ndarray:
        """The output in `buffer` as it came back, float64. MemoryViolation where a band was written to."""
        if self.band:
            pattern = torch.full((self.band,), _GUARD_VALUE, dtype=buffer.dtype)
            for side, band in (("before", buffer[: self.band]), ("after", buffer[-self.band :])):
                changed = int((band != pattern).sum())
                if changed:
                    raise MemoryViolation(f"{changed} elements {side} the output {self.name} were written to")
        return self.view(buffer).double().numpy()
