"""The portable program of `kda_forward` as it is, without the front: an edited one, for one form and at any tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from kda.formats import BF16, F16, F32, Format
from kda.implementations.operation import OperationImplementation, array_of, tensors_of
from kda.kernels.compile import available_targets
from kda.kernels.form import Beta, Call, Form, Gate
from kda.kernels.launch import FORWARD, OUTPUT, compiled_kernel, execute, parameters
from kda.numerics.budget import Judged, judge, operand_units
from kda.operation_support import FORMS, FormChoice, OperationSupport
from kda.problem import Inputs, Tile
from kda.references.forward import SUB_CHUNK
from kda.references.operation import Operation, OperationOutputs

__all__ = ["Program"]


class Program(OperationImplementation):
    """One program with the arguments of `kda.kernels.forward.kda_forward`, which is it where None.

    forms: those that it is asked for; C: its chunk length.
    """

    name, summary = "program", "a program of kda_forward, launched as it is"

    def __init__(
        self, program: Callable[..., Any] | None = None, forms: tuple[FormChoice, ...] = FORMS, C: int = SUB_CHUNK
    ) -> None:
        self._program, self._forms, self._C = program, forms, C

    def of(self, form: FormChoice) -> Program:
        """The same, asked for one form alone."""
        return Program(self._program, (form,), self._C)

    def targets(self) -> tuple[str, ...]:
        return available_targets()

    def support(self, target: str) -> OperationSupport:
        return OperationSupport((F16, BF16, F32), self._forms)

    def judge(self, inputs: Inputs, target: str) -> Judged:
        units = operand_units(inputs, self._C, inputs.dtype)
        return judge(inputs, self._C, units, SUB_CHUNK, pairs=True)

    def prepare(self, target: str, dtype: Format) -> None:
        """Compile its forms for `dtype` operands; what importing or compiling them raises."""
        for form in self._forms:
            self._kernel(_chosen(form, dtype), form.DK, form.DV, target)

    def run(self, operation: Operation, target: str, poison: float = float("nan")) -> OperationOutputs:
        device = torch.device("cuda" if target == "cuda" else "cpu")
        given = tensors_of(operation, device)
        sizes, form = operation.sizes, _form(operation)
        S = len(operation.starts) - 1
        flat = {name: given[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta")}
        o = torch.full((sizes.B, sizes.N, sizes.H, sizes.DV), poison, dtype=flat["q"].dtype, device=device)
        channels = (sizes.DV, sizes.DK) if operation.state_v_first else (sizes.DK, sizes.DV)
        final = torch.full((S, sizes.H, *channels), poison, device=device) if form.final_state else None
        starts = torch.from_numpy(operation.starts.astype(np.int32)).to(device) if form.packed else None
        call = Call(
            form,
            **flat,
            o=o.flatten(0, 1),
            sequences=S,
            length=sizes.N,
            scale=operation.factor,
            A_log=given.get("A_log"),
            dt_bias=given.get("dt_bias"),
            lower_bound=operation.lower_bound or 0.0,
            starts=starts,
            initial_state=given.get("initial_state"),
            final_state=final,
        )
        execute(self._kernel(form, sizes.DK, sizes.DV, target), parameters(call), OUTPUT)
        return OperationOutputs(array_of(o), None if final is None else array_of(final), operation.state_v_first)

    def _kernel(self, form: Form, DK: int, DV: int, target: str) -> Any:
        block_DV = next(width for width in (32, 16) if DV % width == 0)
        tile = Tile(self._C, block_DV, form.operand)
        return compiled_kernel(tile, DK, DV, target, self._program, kernel=FORWARD, form=form)


def _form(operation: Operation) -> Form:
    return Form(
        operand=operation.dtype,
        packed=operation.cu_seqlens is not None,
        initial_state=operation.initial_state is not None,
        final_state=operation.output_final_state,
        state_v_first=operation.state_v_first,
        normalise=operation.normalise,
        gate=cast(Gate, operation.gate),
        beta=cast(Beta, operation.rate),
        g_format=operation.g_dtype,
        beta_format=operation.beta_dtype,
    )


def _chosen(form: FormChoice, dtype: Format) -> Form:
    return Form(
        operand=dtype,
        packed=form.packed,
        initial_state=form.state,
        final_state=form.final,
        state_v_first=form.v_first,
        normalise=form.normalise,
        gate=cast(Gate, form.gate),
        beta=cast(Beta, form.rate),
        g_format=dtype if form.narrow_g else F32,
        beta_format=dtype if form.narrow_beta else F32,
    )
