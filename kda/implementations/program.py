"""The programs of `kda_forward` as they are, without the front: edited ones, for one form and at any tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from kda.formats import BF16, F16, F32, Format
from kda.implementations.operation import LONG, Hopper, OperationImplementation, buffers_of, outputs_of, tensors_of
from kda.implementations.transfer import to_device, to_host
from kda.kernels.compile import available_targets
from kda.kernels.form import Beta, Call, Form, Gate
from kda.kernels.launch import FORWARD, OUTPUT, compiled_kernel, execute, parameters
from kda.numerics.budget import Judged, judge, operand_units
from kda.operation_support import FORMS, FormChoice, OperationSupport, with_channels
from kda.problem import Inputs, Sizes, Tile
from kda.references.forward import SUB_CHUNK
from kda.references.operation import Operation, OperationOutputs

__all__ = ["HopperProgram", "Program", "form_of"]


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
            self._kernel(form_of(form, dtype), form.DK, form.DV, target)

    def run(self, operation: Operation, target: str, poison: float = float("nan")) -> OperationOutputs:
        device = torch.device("cuda" if target == "cuda" else "cpu")
        sizes, form = operation.sizes, _form(operation)
        given, buffers = tensors_of(operation), buffers_of(operation, poison)
        if form.packed:
            given["starts"] = given.pop("cu_seqlens").int()
        there = to_device(given | buffers, device)
        flat = {name: there[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta")}
        call = Call(
            form,
            **flat,
            o=there["out"].flatten(0, 1),
            sequences=len(operation.starts) - 1,
            length=sizes.N,
            scale=operation.factor,
            A_log=there.get("A_log"),
            dt_bias=there.get("dt_bias"),
            lower_bound=operation.lower_bound or 0.0,
            starts=there.get("starts"),
            initial_state=there.get("initial_state"),
            final_state=there.get("final_state"),
        )
        self._launch(call, sizes, target)
        return outputs_of(operation, to_host({name: there[name] for name in buffers}))

    def _launch(self, call: Call, sizes: Sizes, target: str) -> None:
        execute(self._kernel(call.form, sizes.DK, sizes.DV, target), parameters(call), OUTPUT)

    def _kernel(self, form: Form, DK: int, DV: int, target: str) -> Any:
        block_DV = next(width for width in (32, 16) if DV % width == 0)
        tile = Tile(self._C, block_DV, form.operand)
        return compiled_kernel(tile, DK, DV, target, self._program, kernel=FORWARD, form=form)


class HopperProgram(Program):
    """Rewritten launches of the Hopper program, which are ours where None; asked for `forms`.

    launching: the module that compiles and launches them, where it is not ours.
    """

    name, summary = "hopper_program", "the Hopper program of kda_forward, launched as it is"

    def __init__(
        self, programs: Any = None, forms: tuple[FormChoice, ...] | None = None, launching: Any = None
    ) -> None:
        super().__init__(forms=with_channels(FORMS, 128, 128) if forms is None else forms)
        from kda.kernels.hopper import launching as ours

        self._launching: Any = launching or ours
        self._programs = programs or self._launching.OWN
        # Few heads take the narrow walk: where the wide one alone is another, it is what must run.
        others = self._programs.walk_wide is not None and self._programs.walk_narrow is None
        self._walk = self._launching.WIDE if others else None

    def of(self, form: FormChoice) -> HopperProgram:
        return HopperProgram(self._programs, (form,), self._launching)

    def targets(self) -> tuple[str, ...]:
        return Hopper().targets()

    def support(self, target: str) -> OperationSupport:
        return OperationSupport((F16, BF16), self._forms, channels=(128,), max_tokens=LONG)

    def judge(self, inputs: Inputs, target: str) -> Judged:
        return Hopper().judge(inputs, target)

    def prepare(self, target: str, dtype: Format) -> None:
        launching, programs = self._launching, self._programs
        walk = self._walk or launching.NARROW[0]
        for choice in self._forms:
            form = form_of(choice, dtype)
            launching.compiled_prep(form, programs.prep)
            launching.compiled_walk(form, walk, programs.walk_wide if walk == launching.WIDE else programs.walk_narrow)

    def _launch(self, call: Call, sizes: Sizes, target: str) -> None:
        self._launching.launch(call, self._walk, self._programs)


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


def form_of(form: FormChoice, dtype: Format) -> Form:
    """The program of one entry of a palette, with `dtype` operands."""
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
