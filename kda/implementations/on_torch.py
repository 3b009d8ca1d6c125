"""Adapters for kernels that take torch tensors: conversion, memory layouts, poison and guards."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
import torch

from kda.formats import Format
from kda.implementations.base import PLAIN, Implementation, Memory, MemoryViolation
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
        device = torch.device("cuda" if target == "cuda" else "cpu")
        tensors = {
            name: _tensor(name, array, inputs.dtype if name in ("q", "k", "v") else inputs.gate_dtype, device, memory)
            for name, array in inputs.tensors()
        }
        before = {name: tensor.clone() for name, tensor in tensors.items()} if memory is not PLAIN else {}
        sizes = inputs.sizes
        stores = {
            name: _Guarded(name, sizes.shape(name), getattr(torch, form.name), device, memory)
            for name, form in (("o", inputs.dtype), ("final_state", inputs.gate_dtype))
        }
        self.call(tensors, tile, stores["o"].view, stores["final_state"].view)
        for name, saved in before.items():
            changed = tensors[name] != saved
            if changed.any():
                at = tuple(torch.nonzero(changed)[0].tolist())
                raise MemoryViolation(
                    f"the input {name} was changed in {int(changed.sum())} elements, first at {at_words(name, at)}: "
                    f"{tensors[name][at].item():.6g}, was {saved[at].item():.6g}"
                )
        return Outputs(**{name: store.read() for name, store in stores.items()})

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


def _tensor(name: str, array: np.ndarray, form: Format, device: torch.device, memory: Memory) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, form.name)).to(device)
    if not memory.strided:
        return tensor
    # A slice of a wider array, as a fused projection hands out; what lies between is not a number.
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 3), float("nan"), dtype=tensor.dtype, device=device)
    view = wide[..., 1 : 2 * tensor.shape[-1] + 1 : 2] if name == "beta" else wide[..., 3 : 3 + tensor.shape[-1]]
    view.copy_(tensor)
    return view


class _Guarded:
    """One output buffer, poisoned, with a guard band of a known pattern on either side."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, memory: Memory):
        self.name = name
        size = int(np.prod(shape))
        # The band keeps whole cache lines, so that the view is aligned as a fresh buffer would be.
        self.band = -(-memory.guard // 64) * 64
        self.store = torch.full((size + 2 * self.band,), _GUARD_VALUE, dtype=dtype, device=device)
        self.view = self.store[self.band : self.band + size].view(shape)
        self.view.fill_(memory.poison)

    def read(self) -> np.ndarray:
        if self.band:
            pattern = torch.full((self.band,), _GUARD_VALUE, dtype=self.store.dtype, device=self.store.device)
            for side, band in (("before", self.store[: self.band]), ("after", self.store[-self.band :])):
                changed = int((band != pattern).sum())
                if changed:
                    raise MemoryViolation(f"{changed} elements {side} the output {self.name} were written to")
        return self.view.double().cpu().numpy()
