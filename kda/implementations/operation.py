"""Implementations of the operation: raw inputs to outputs, every form. Ours are the engines of `kda.ops`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kda.formats import BF16, F16, F32
from kda.implementations.base import MemoryViolation
from kda.implementations.transfer import bits, to_device, to_host
from kda.kernels.compile import available_targets, hopper_targets
from kda.numerics.budget import Judged, judge, operand_units
from kda.numerics.steps import judge_recurrent
from kda.operation_support import FORMS, OperationSupport, with_channels
from kda.problem import Inputs
from kda.references.forward import SUB_CHUNK
from kda.references.hopper import GROUP
from kda.references.operation import Operation, OperationOutputs

__all__ = [
    "CHUNK",
    "ENGINES",
    "LONG",
    "Hopper",
    "OperationImplementation",
    "Portable",
    "Steps",
    "buffers_of",
    "outputs_of",
    "tensors_of",
]

#: Tokens of a chunk, unless an implementation says otherwise.
CHUNK = 64
#: Tokens of a program that loads chunks ahead: it comes back to its first tiles with the fourth chunk.
LONG = 330


class OperationImplementation(ABC):
    """Anything that computes an `Operation`, and says what it supports.

    An adapter sets `name` and `summary`, and defines `support` and `run`; the laws find it by `operations` of an
    `Implementation`.
    """

    name: str
    summary: str

    def targets(self) -> tuple[str, ...]:
        """The targets it can run on here, the best first: "c" or "cuda"."""
        return ("c",)

    @abstractmethod
    def support(self, target: str) -> OperationSupport:
        """The calls it can run on `target`; none where it has no dtypes."""

    @abstractmethod
    def run(self, operation: Operation, target: str, poison: float = float("nan")) -> OperationOutputs:
        """What it gives. poison: what the outputs hold before the run."""

    def judge(self, inputs: Inputs, target: str) -> Judged:
        """Reference A on plain inputs, and what it may be off there: a kernel for any gate, with chunks of 64."""
        return judge(inputs, CHUNK, operand_units(inputs, CHUNK, inputs.dtype), SUB_CHUNK, pairs=True)


class _Engine(OperationImplementation):
    """One engine of `kda.ops.kda_forward`, asked for by name."""

    def targets(self) -> tuple[str, ...]:
        return available_targets()

    def run(self, operation: Operation, target: str, poison: float = float("nan")) -> OperationOutputs:
        from kda.ops import kda_forward

        device = torch.device("cuda" if target == "cuda" else "cpu")
        given = tensors_of(operation)
        before = {name: tensor.clone() for name, tensor in given.items()}
        there: dict[str, Any] = to_device(given | buffers_of(operation, poison), device)
        kda_forward(
            **there,
            scale=operation.scale,
            output_final_state=operation.output_final_state,
            use_qk_l2norm_in_kernel=operation.normalise,
            use_gate_in_kernel=operation.gate != "log",
            use_beta_sigmoid_in_kernel=operation.rate != "value",
            allow_neg_eigval=operation.rate == "doubled",
            lower_bound=operation.lower_bound,
            state_v_first=operation.state_v_first,
            engine=self.name,
        )
        back = to_host(there)
        for name, saved in before.items():
            if not torch.equal(bits(back[name]), bits(saved)):
                raise MemoryViolation(f"the input {name} was changed")
        return outputs_of(operation, back)


def tensors_of(operation: Operation) -> dict[str, torch.Tensor]:
    """The tensors of a call, by the names of its arguments, in the formats that they stand for, on the CPU."""
    formats = dict.fromkeys(("q", "k", "v"), operation.dtype) | dict.fromkeys(
        ("initial_state", "A_log", "dt_bias"), F32
    )
    formats |= {"g": operation.g_dtype, "beta": operation.beta_dtype}
    arrays = {name: getattr(operation, name) for name in formats}
    made = {
        # By way of float32, which holds every value of a narrower format, and bfloat16 has no other.
        name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(getattr(torch, formats[name].name))
        for name, array in arrays.items()
        if array is not None
    }
    if operation.cu_seqlens is not None:
        made["cu_seqlens"] = torch.from_numpy(operation.starts.astype(np.int64))
    return made


def buffers_of(operation: Operation, poison: float) -> dict[str, torch.Tensor]:
    """What a call writes to, by the names of its arguments, on the CPU: `out` and, where asked for, `final_state`."""
    sizes = operation.sizes
    dtype = getattr(torch, operation.dtype.name)
    made = {"out": torch.full((sizes.B, sizes.N, sizes.H, sizes.DV), poison, dtype=dtype)}
    if operation.output_final_state:
        channels = (sizes.DV, sizes.DK) if operation.state_v_first else (sizes.DK, sizes.DV)
        made["final_state"] = torch.full((len(operation.starts) - 1, sizes.H, *channels), poison, dtype=torch.float32)
    return made


def outputs_of(operation: Operation, buffers: Mapping[str, torch.Tensor]) -> OperationOutputs:
    """The outputs in `buffers_of` a call, as they came back."""
    final = buffers.get("final_state")
    return OperationOutputs(
        buffers["out"].double().numpy(), None if final is None else final.double().numpy(), operation.state_v_first
    )


class Portable(_Engine):
    """The portable tile program, on the CPU or on CUDA."""

    name, summary = "portable", "the portable program of kda_forward, every form"

    def support(self, target: str) -> OperationSupport:
        return OperationSupport((F16, BF16, F32))

    def judge(self, inputs: Inputs, target: str) -> Judged:
        from kda.kernels.portable import tile_for

        C = tile_for(inputs.dtype, inputs.sizes.DK, inputs.sizes.DV, target).C
        return judge(inputs, C, operand_units(inputs, C, inputs.dtype), SUB_CHUNK, pairs=True)


class Hopper(_Engine):
    """The program for Hopper: 128 channels, narrow operands."""

    name, summary = "hopper", "the Hopper program of kda_forward, DK = DV = 128"

    def targets(self) -> tuple[str, ...]:
        return hopper_targets()

    def support(self, target: str) -> OperationSupport:
        return OperationSupport((F16, BF16), with_channels(FORMS, 128, 128), channels=(128,), max_tokens=LONG)

    def judge(self, inputs: Inputs, target: str) -> Judged:
        units = operand_units(inputs, CHUNK, inputs.dtype, inverse=True)
        return judge(inputs, CHUNK, units, GROUP, pairs=True, inverse=True)


class Steps(_Engine):
    """The program that goes token by token, on the CPU or on CUDA."""

    name, summary = "steps", "the recurrence token by token in float32, every form"

    def support(self, target: str) -> OperationSupport:
        return OperationSupport((F16, BF16, F32))

    def judge(self, inputs: Inputs, target: str) -> Judged:
        return judge_recurrent(inputs, operand_units(inputs, 1, inputs.dtype))


#: The engines of `kda.ops.kda_forward`, which compute the same operation.
ENGINES: tuple[OperationImplementation, ...] = (Portable(), Steps(), Hopper())
