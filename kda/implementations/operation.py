"""Implementations of the operation: raw inputs to outputs, every form. Ours are the engines of `kda.ops`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from kda.formats import BF16, F16, F32
from kda.implementations.base import MemoryViolation
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
    "array_of",
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
        tensors = tensors_of(operation, device)
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        sizes = operation.sizes
        dtype = getattr(torch, operation.dtype.name)
        o = torch.full((sizes.B, sizes.N, sizes.H, sizes.DV), poison, dtype=dtype, device=device)
        state = (sizes.DV, sizes.DK) if operation.state_v_first else (sizes.DK, sizes.DV)
        final = None
        if operation.output_final_state:
            shape = (len(operation.starts) - 1, sizes.H, *state)
            final = torch.full(shape, poison, dtype=torch.float32, device=device)
        kda_forward(
            **tensors,
            scale=operation.scale,
            output_final_state=operation.output_final_state,
            use_qk_l2norm_in_kernel=operation.normalise,
            use_gate_in_kernel=operation.gate != "log",
            use_beta_sigmoid_in_kernel=operation.rate != "value",
            allow_neg_eigval=operation.rate == "doubled",
            lower_bound=operation.lower_bound,
            state_v_first=operation.state_v_first,
            out=o,
            final_state=final,
            engine=self.name,
        )
        for name, saved in before.items():
            if not torch.equal(tensors[name].nan_to_num(), saved.nan_to_num()):
                raise MemoryViolation(f"the input {name} was changed")
        return OperationOutputs(array_of(o), None if final is None else array_of(final), operation.state_v_first)


def tensors_of(operation: Operation, device: torch.device) -> dict[str, Any]:
    """The tensors of a call, by the names of its arguments, in the formats that they stand for."""
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
    return {name: tensor.to(device) for name, tensor in made.items()}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor of any device and format, float64."""
    values: Any = tensor.to("cpu", torch.float64).numpy()
    return np.asarray(values)


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
