"""The references as implementations, and our kernels."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from kda.formats import BF16, F16, F32, F64, Format
from kda.implementations.base import PLAIN, Exp2, Implementation, Memory
from kda.implementations.on_torch import TorchImplementation
from kda.kernels.compile import available_targets, hopper_targets
from kda.numerics.domain import gate_domain
from kda.problem import Inputs, Outputs, Tile
from kda.references import (
    chunkwise,
    forward,
    hopper,
    mirror,
    ref_A,
    ref_B,
    ref_B_fast,
    ref_C,
    ref_C_fast,
    ref_C_sub,
    ref_forward,
    ref_hopper,
    ref_steps,
)
from kda.references.forward import SUB_CHUNK
from kda.references.hopper import CHUNK, GROUP
from kda.source import Source, module_from_source
from kda.support import Support, TileChoice

if TYPE_CHECKING:
    from kda.implementations.operation import OperationImplementation
    from kda.kernels.form import Call

__all__ = [
    "KdaChunk",
    "KdaForward",
    "KdaHopper",
    "KdaSteps",
    "Mirror",
    "MirrorForward",
    "MirrorHopper",
    "MirrorSub16",
    "MirrorSub32",
    "MirrorSub64",
    "ReferenceA",
    "ReferenceB",
    "ReferenceC",
]


class _Reference(Implementation):
    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F64,)

    def support(self, target: str, dtype: Format) -> Support:
        return Support(dtypes=(dtype,), max_beta=2.0, max_tokens=80)


class ReferenceA(_Reference):
    """Token by token, article 3.1."""

    name = "ref_A"
    summary = "token by token, float64 (article 3.1)"
    chunked = False

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        return ref_A(inputs)


class ReferenceB(_Reference):
    """Chunkwise with the pairwise loops and the explicit inverse, article 3.2."""

    name = "ref_B"
    summary = "chunkwise, pairwise decays, explicit inverse, float64 (article 3.2)"

    def __init__(self, literal: Any = ref_B) -> None:
        self.literal = literal

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        long = self.literal is ref_B and inputs.sizes.N > 2 * tile.C
        return ref_B_fast(inputs, tile.C) if long else self.literal(inputs, tile.C)

    def sources(self) -> Mapping[str, Source]:
        return {"reference": Source(chunkwise, "ref_B")}

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        return ReferenceB(modules["reference"].ref_B)


class ReferenceC(_Reference):
    """The kernel's control flow, article 3.3."""

    name = "ref_C"
    summary = "the kernel's control flow, float64 (article 3.3)"

    def support(self, target: str, dtype: Format) -> Support:
        total = gate_domain(dtype, 1).total
        return Support(dtypes=(dtype,), total_gates={dtype: total}, max_beta=2.0, max_tokens=80)

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        gate_domain(inputs.dtype, tile.C).check_inputs(inputs)
        return ref_C(inputs, tile.C, min(tile.block_DV, inputs.sizes.DV))


class Mirror(Implementation):
    """Reference C at operand precision: every rounding of the kernel, in NumPy."""

    name = "mirror"
    summary = "ref_C with the kernel's roundings, in NumPy"
    mirrored = True
    runs_unchecked = True

    def __init__(self, function: Any = ref_C_fast) -> None:
        self._function = function

    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F16, BF16, F32)

    def support(self, target: str, dtype: Format) -> Support:
        # Checked, it stands for the kernel, and has the kernel's palette.
        return _kernel_support(CPU_TILES if self.checks_domain else MIRROR_TILES, dtype)

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        if self.checks_domain:
            gate_domain(inputs.dtype, tile.C).check_inputs(inputs)
        return self._function(inputs, tile.C, tile.block_DV, inputs.dtype)

    def sources(self) -> Mapping[str, Source]:
        return {"kernel": Source(mirror, "ref_C_fast"), "loops": Source(mirror, "ref_C")}

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        made = [getattr(module, self.sources()[role].function) for role, module in modules.items()]
        if len(made) != 1:
            raise ValueError(f"roles are {', '.join(modules)}; expected one: ref_C_fast or, loop for loop, ref_C")
        return Mirror(*made)

    def exact_mirror(self, target: str, dtype: Format) -> bool:
        return True


class _SubChunked(Implementation):
    """Reference C at operand precision, the exponent split over sub-chunks: what such a kernel could compute."""

    runs_unchecked = True
    sub_C: int

    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F16, BF16, F32)

    def support(self, target: str, dtype: Format) -> Support:
        return replace(_kernel_support(MIRROR_TILES, dtype), sub_C=self.sub_C)

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        if self.checks_domain:
            gate_domain(inputs.dtype, tile.C, self.sub_C).check_inputs(inputs)
        return ref_C_sub(inputs, tile.C, self.sub_C, inputs.dtype)


class MirrorSub16(_SubChunked):
    """The mirror of a kernel with sub-chunks of 16 tokens, article 2.3."""

    name, summary, sub_C = "mirror_sub16", "the mirror of a kernel with sub-chunks of 16 (article 2.3)", 16


class MirrorSub32(_SubChunked):
    """The mirror of a kernel with sub-chunks of 32 tokens, article 2.3."""

    name, summary, sub_C = "mirror_sub32", "the same, sub-chunks of 32", 32


class MirrorSub64(_SubChunked):
    """The mirror of a kernel with sub-chunks of 64 tokens, article 2.3."""

    name, summary, sub_C = "mirror_sub64", "the same, sub-chunks of 64", 64


class MirrorForward(Implementation):
    """`kda_forward` in NumPy, with every rounding of it."""

    name = "mirror_forward"
    summary = "kda_forward with its roundings, in NumPy: any gate"
    mirrored = True

    def __init__(self, function: Any = ref_forward) -> None:
        self._function = function

    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F16, BF16, F32)

    def support(self, target: str, dtype: Format) -> Support:
        return _forward_support(CPU_TILES, dtype)

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        return self._function(inputs, tile.C, tile.block_DV, inputs.dtype)

    def sources(self) -> Mapping[str, Source]:
        return {"kernel": Source(forward, "ref_forward")}

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        return MirrorForward(modules["kernel"].ref_forward)

    def mirror(self, inputs: Inputs, tile: Tile, target: str, lean: float = 0.0) -> Outputs:
        return ref_forward(inputs, tile.C, tile.block_DV, inputs.dtype, self.exp2(target), lean=lean)

    def exact_mirror(self, target: str, dtype: Format) -> bool:
        return True


class MirrorHopper(Implementation):
    """The Hopper program of `kda_forward` in NumPy, with every rounding of it, at any DK and DV."""

    name = "mirror_hopper"
    summary = "the Hopper program of kda_forward with its roundings, in NumPy: any gate"
    mirrored = True

    def __init__(self, function: Any = ref_hopper) -> None:
        self._function = function

    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F16, BF16)

    def support(self, target: str, dtype: Format) -> Support:
        return hopper_support(HOPPER_MIRROR_TILES, dtype)

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        return self._function(inputs, inputs.dtype)

    def sources(self) -> Mapping[str, Source]:
        return {"kernel": Source(hopper, "ref_hopper")}

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        return MirrorHopper(modules["kernel"].ref_hopper)

    def mirror(self, inputs: Inputs, tile: Tile, target: str, lean: float = 0.0) -> Outputs:
        return ref_hopper(inputs, inputs.dtype, self.exp2(target), lean=lean)

    def exact_mirror(self, target: str, dtype: Format) -> bool:
        return True


#: What the Hopper program takes: its three walks.
HOPPER_TILES = tuple(TileChoice(128, 128, CHUNK, block_DV) for block_DV in (16, 32, 64))
#: Its longest case: a walk keeps the tiles of three chunks, and those of the fourth lie where those of the first did.
#: Up to here one case in eight has as many; up to the fourth chunk alone, one in sixteen.
HOPPER_TOKENS = 5 * CHUNK + 1

#: (DK, DV, C, block_DV) of the kernels that the properties compile: every C, every block_DV, DK < DV, DK > DV, pairs
#: that differ in block_DV or in C alone, and the article's own size last. Few, since each costs seconds to compile.
CPU_PALETTE: tuple[tuple[int, int, int, int], ...] = (
    (16, 16, 16, 16),
    (16, 32, 16, 16),
    (16, 32, 16, 32),
    (32, 16, 32, 16),
    (32, 32, 16, 16),
    (32, 32, 32, 16),
    (32, 32, 64, 16),
    (32, 64, 32, 32),
    (32, 64, 32, 64),
    (64, 48, 16, 16),
    (32, 128, 32, 128),
    (64, 64, 64, 64),
    (128, 128, 64, 32),
)

CPU_TILES = tuple(TileChoice(*sizes) for sizes in CPU_PALETTE)

#: What the program that goes token by token takes; its C is the tokens loaded at a time.
STEP_TILES = tuple(
    TileChoice(*sizes)
    for sizes in (
        (16, 16, 8, 16),
        (16, 32, 8, 16),
        (16, 32, 8, 32),
        (32, 16, 1, 16),
        (32, 16, 8, 16),
        (48, 32, 8, 32),
        (64, 48, 16, 16),
        (64, 64, 8, 64),
        (128, 128, 1, 32),
        (128, 128, 8, 32),
    )
)

#: What mirrors can run: chunks of 128 too, which the kernel does not take, for the article's sections 2.1 and 2.3.
MIRROR_TILES = (*CPU_TILES, TileChoice(16, 16, 128, 16))

#: What the mirror of the Hopper program runs: the program itself has DK = DV = 128 alone.
HOPPER_MIRROR_TILES = tuple(
    TileChoice(DK, DV, CHUNK) for DK, DV in ((16, 16), (16, 32), (32, 16), (32, 64), (64, 48), (64, 64), (128, 128))
)

#: What CUDA adds: (DK, DV, C, block_DV, threads, num_stages).
CUDA_PALETTE: tuple[tuple[int, int, int, int, int | None, int], ...] = (
    (32, 32, 16, 16, 32, 0),
    (32, 32, 16, 16, None, 1),
    (32, 64, 32, 32, 64, 0),
    (32, 64, 32, 32, None, 1),
    (64, 64, 64, 64, None, 1),
    (128, 128, 64, 64, None, 0),
)


def _kernel_support(tiles: tuple[TileChoice, ...], dtype: Format) -> Support:
    total = gate_domain(dtype, 1).total
    return Support(dtypes=(dtype,), tiles=tiles, total_gates={dtype: total}, max_beta=2.0, max_tokens=160)


def _forward_support(tiles: tuple[TileChoice, ...], dtype: Format) -> Support:
    return Support(dtypes=(dtype,), tiles=tiles, sub_C=SUB_CHUNK, pairs=True, max_beta=2.0, max_tokens=160)


def hopper_support(tiles: tuple[TileChoice, ...], dtype: Format) -> Support:
    """The cases and the budget of `kda_forward`'s Hopper program, or of its mirror, on `tiles`."""
    return Support(dtypes=(dtype,), tiles=tiles, sub_C=GROUP, pairs=True, inverse=True, max_beta=2.0, max_tokens=160)


class _WithOutputs:
    """`kda.kernels.compile`, or a rewritten copy, whose kernels take more arguments than their launch knows of."""

    def __init__(self, compiling: Any, outputs: Sequence[Any]) -> None:
        self._compiling = compiling
        self._outputs = outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiling, name)

    def compile_program(self, *arguments: Any) -> Any:
        kernel = self._compiling.compile_program(*arguments)
        return lambda *tensors: kernel(*tensors, *self._outputs)


class _TileLang(TorchImplementation):
    """A kernel of kda/kernels behind its launch, on the CPU or on CUDA: `_kernel` is what the launch knows of it."""

    mirrored = True
    checks_inputs = True

    def __init__(
        self,
        program: Any = None,
        launch: ModuleType | None = None,
        check_tiles: bool = False,
    ) -> None:
        self._program = program
        self._own_launch = launch
        self._check_tiles = check_tiles

    def targets(self) -> tuple[str, ...]:
        return available_targets()

    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F16, BF16, F32)

    def _tiles(self, target: str, dtype: Format) -> tuple[TileChoice, ...]:
        if target == "c":
            return CPU_TILES
        tiles = CPU_TILES + tuple(TileChoice(*choice) for choice in CUDA_PALETTE)
        needed, most = self._kernel.shared_memory, self._launch.SHARED_MEMORY
        return tuple(t for t in tiles if needed(Tile(t.C, t.block_DV, dtype, t.threads, t.num_stages), t.DK) <= most)

    @property
    def _launch(self) -> Any:
        from kda.kernels import launch

        return self._own_launch or launch

    @property
    @abstractmethod
    def _kernel(self) -> Any:
        """The `Kernel` of kda/kernels/launch.py."""

    def _compiled(self, inputs: Inputs, tile: Tile, target: str) -> Any:
        sizes = inputs.sizes
        return self._launch.compiled_kernel(tile, sizes.DK, sizes.DV, target, self._program, kernel=self._kernel)

    def prepare(self, inputs: Inputs, tile: Tile, target: str) -> None:
        self._compiled(inputs, tile, target)

    def checks_tiles(self, target: str) -> bool:
        return target == "c"

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        if memory.check_tiles and not self._check_tiles:
            checking = copy.copy(self)
            checking._check_tiles = True
            return checking.run(inputs, tile, target, memory)
        return super().run(inputs, tile, target, memory)

    def lowered(self, inputs: Inputs, tile: Tile, target: str) -> str:
        return str(self._compiled(inputs, tile, target).get_kernel_source())

    def call(self, tensors: dict[str, torch.Tensor], tile: Tile, o: torch.Tensor, final_state: torch.Tensor) -> None:
        getattr(self._launch, f"run_{self._kernel.name}")(
            tensors["q"],
            tensors["k"],
            tensors["v"],
            tensors["g"],
            tensors["beta"],
            tensors.get("initial_state"),
            C=tile.C,
            block_DV=tile.block_DV,
            threads=tile.threads,
            num_stages=tile.num_stages,
            o=o,
            final_state=final_state,
            program=self._program,
            check_tiles=self._check_tiles,
            check_values=self.checks_domain,
        )

    def sources(self) -> Mapping[str, Source]:
        from kda.kernels import compile, launch  # noqa: A004

        kernel = Source(importlib.import_module(f"kda.kernels.{self._kernel.module}"), self._kernel.name)
        if self._program is not None:
            kernel = Source(sys.modules[self._program.__module__], self._program.__name__)
        return {
            "kernel": kernel,
            "launch": Source(launch, f"run_{self._kernel.name}"),
            "compile": Source(compile, "compile_program"),
        }

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        program = self._program
        if "kernel" in modules:
            program = getattr(modules["kernel"], self.sources()["kernel"].function)
        launch = modules.get("launch")
        if "compile" in modules:
            # A launch of its own, which compiles with what was rewritten.
            launch = launch or module_from_source(self.sources()["launch"].text, "launch", "kda.kernels")
            launch.compiling = modules["compile"]  # type: ignore[attr-defined]
        return type(self)(program, launch)

    def with_outputs(self, kernel: ModuleType, outputs: Sequence[Any]) -> Implementation | None:
        # A launch of its own, as the one it has, whose kernels are called with `outputs` after their other arguments.
        launch: Any = module_from_source(inspect.getsource(self._launch), "launch", "kda.kernels")
        launch.compiling = _WithOutputs(self._launch.compiling, outputs)
        made = copy.copy(self)
        made._program, made._own_launch = getattr(kernel, self.sources()["kernel"].function), launch
        return made

    def exact_mirror(self, target: str, dtype: Format) -> bool:
        # Tensor cores add in another order; float32 operands do not go through them.
        return target == "c" or dtype is F32

    def exp2(self, target: str) -> Exp2 | None:
        from kda.kernels.exponential import exp2_on

        return functools.partial(exp2_on, target)


class KdaChunk(_TileLang):
    """`kda_chunk`, the article's kernel in TileLang, on the CPU or on CUDA."""

    name = "kda_chunk"
    summary = "the article's kernel in TileLang (section 4)"
    runs_unchecked = True

    @property
    def _kernel(self) -> Any:
        return self._launch.CHUNK

    def support(self, target: str, dtype: Format) -> Support:
        return _kernel_support(self._tiles(target, dtype), dtype)


class KdaForward(_TileLang):
    """`kda_forward`, the kernel for any gate in TileLang, on the CPU or on CUDA."""

    name = "kda_forward"
    summary = "the kernel for any gate in TileLang"

    @property
    def _kernel(self) -> Any:
        return self._launch.FORWARD

    def support(self, target: str, dtype: Format) -> Support:
        return _forward_support(self._tiles(target, dtype), dtype)

    def operations(self) -> tuple[OperationImplementation, ...]:
        from kda.implementations.operation import Hopper, Portable
        from kda.implementations.program import Program

        # The engines run the kernel that is here; an edited or rewritten one runs without them.
        if self._program is not None:
            return (Program(self._program),)
        return (Portable(), Hopper()) if self._own_launch is None else ()

    def sources(self) -> Mapping[str, Source]:
        from kda.kernels import prologue

        return {**super().sources(), "prologue": Source(prologue, "normalise")}

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        if "prologue" not in modules:
            return super().rewritten(modules)
        from kda.kernels import prologue

        # A program of its own, which calls what was rewritten.
        source = self.sources()["kernel"]
        kernel = modules.get("kernel") or module_from_source(source.text, "forward", source.module.__package__ or "")
        for name in prologue.__all__:
            setattr(kernel, name, getattr(modules["prologue"], name))
        return super().rewritten({**modules, "kernel": kernel})

    def mirror(self, inputs: Inputs, tile: Tile, target: str, lean: float = 0.0) -> Outputs:
        return ref_forward(inputs, tile.C, tile.block_DV, inputs.dtype, self.exp2(target), lean=lean)


class KdaSteps(_TileLang):
    """The program of `kda_forward` that goes token by token, on the CPU or on CUDA; C tokens are loaded at once."""

    name = "kda_steps"
    summary = "the program of kda_forward for short sequences, token by token in float32"
    chunked = False
    checks_inputs = False

    @property
    def _kernel(self) -> Any:
        from kda.kernels.stepwise import STEPS

        return STEPS

    def support(self, target: str, dtype: Format) -> Support:
        return Support(dtypes=(dtype,), tiles=STEP_TILES, recurrent=True, max_beta=2.0, max_tokens=160)

    def _compiled(self, inputs: Inputs, tile: Tile, target: str) -> Any:
        from kda.kernels.form import Form
        from kda.kernels.stepwise import with_threads

        sizes, form = inputs.sizes, Form(inputs.dtype, initial_state=inputs.initial_state is not None)
        return self._launch.compiled_kernel(
            with_threads(tile), sizes.DK, sizes.DV, target, self._program, kernel=self._kernel, form=form
        )

    def call(self, tensors: dict[str, torch.Tensor], tile: Tile, o: torch.Tensor, final_state: torch.Tensor) -> None:
        from kda.kernels import stepwise

        call = _plain_call(tensors, tile.dtype, o, final_state)
        stepwise.launch(call, stepwise.with_threads(tile), self._program, self._check_tiles)

    def sources(self) -> Mapping[str, Source]:
        return {"kernel": super().sources()["kernel"]}

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        return KdaSteps(getattr(modules["kernel"], self.sources()["kernel"].function))

    def with_outputs(self, kernel: ModuleType, outputs: Sequence[Any]) -> Implementation | None:
        return None

    def operations(self) -> tuple[OperationImplementation, ...]:
        from kda.implementations.operation import Steps

        return (Steps(),) if self._program is None else ()

    def mirror(self, inputs: Inputs, tile: Tile, target: str, lean: float = 0.0) -> Outputs:
        return ref_steps(inputs, inputs.dtype, self.exp2(target), lean=lean)

    def exact_mirror(self, target: str, dtype: Format) -> bool:
        return target == "c"


def _plain_call(tensors: dict[str, torch.Tensor], operand: Format, o: torch.Tensor, final_state: torch.Tensor) -> Call:
    """B sequences of N tokens each, behind one another, with scale 1."""
    from kda.kernels.form import Call, Form
    from kda.kernels.launch import aligned

    dense = {name: aligned(tensor) for name, tensor in tensors.items()}
    B, N = dense["q"].shape[:2]
    q, k, v, g, beta = (dense[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta"))
    state = dense.get("initial_state")
    return Call(
        Form(operand, initial_state=state is not None),
        *(q, k, v, g, beta, o.flatten(0, 1)),
        sequences=B,
        length=N,
        scale=1.0,
        initial_state=state,
        final_state=final_state,
    )


class KdaHopper(TorchImplementation):
    """The Hopper program of `kda_forward`, on GPUs of compute capability 9.0; block_DV chooses its walk."""

    name = "kda_hopper"
    summary = "the Hopper program of kda_forward: TMA and wgmma, DK = DV = 128"
    mirrored = True

    def __init__(self, programs: Any = None, launching: ModuleType | None = None) -> None:
        self._programs = programs
        self._own_launching = launching

    def targets(self) -> tuple[str, ...]:
        return hopper_targets()

    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F16, BF16)

    def support(self, target: str, dtype: Format) -> Support:
        return replace(hopper_support(HOPPER_TILES, dtype), max_tokens=HOPPER_TOKENS)

    def _form(self, dtype: Format, initial_state: bool) -> Any:
        from kda.kernels.form import Form

        return Form(dtype, initial_state=initial_state)

    def _launching(self) -> Any:
        from kda.kernels.hopper import launching

        return self._own_launching or launching

    def _compiled(self, inputs: Inputs, tile: Tile) -> tuple[Any, Any]:
        launching = self._launching()
        form = self._form(inputs.dtype, inputs.initial_state is not None)
        programs, wide = self._programs or launching.OWN, tile.block_DV == launching.WIDE
        walk = programs.walk_wide if wide else programs.walk_narrow
        prepared = launching.compiled_prep(form, programs.prep)
        return prepared, launching.compiled_walk(form, tile.block_DV, walk)

    def prepare(self, inputs: Inputs, tile: Tile, target: str) -> None:
        self._compiled(inputs, tile)

    def lowered(self, inputs: Inputs, tile: Tile, target: str) -> str:
        return "\n".join(str(kernel.get_kernel_source()) for kernel in self._compiled(inputs, tile))

    def call(self, tensors: dict[str, torch.Tensor], tile: Tile, o: torch.Tensor, final_state: torch.Tensor) -> None:
        launching = self._launching()
        call = _plain_call(tensors, tile.dtype, o, final_state)
        launching.launch(call, tile.block_DV, self._programs or launching.OWN)

    def sources(self) -> Mapping[str, Source]:
        from kda.kernels.hopper import launching, prep, walk

        return {
            "prep": Source(prep, "prep"),
            "walk_wide": Source(walk, "walk_wide"),
            "walk_narrow": Source(walk, "walk_narrow"),
            "launching": Source(launching, "launch"),
        }

    def rewritten(self, modules: Mapping[str, ModuleType]) -> Implementation:
        programs = {role: getattr(module, role) for role, module in modules.items() if role != "launching"}
        return KdaHopper(self._launching().Programs(**programs), modules.get("launching"))

    def operations(self) -> tuple[OperationImplementation, ...]:
        from kda.implementations.operation import Hopper
        from kda.implementations.program import HopperProgram

        # The engine runs the programs that are here; rewritten ones run without it.
        if self._programs is None:
            return (Hopper(),)
        return (HopperProgram(self._programs, launching=self._own_launching),)

    def mirror(self, inputs: Inputs, tile: Tile, target: str, lean: float = 0.0) -> Outputs:
        return ref_hopper(inputs, inputs.dtype, self.exp2(target), lean=lean)
