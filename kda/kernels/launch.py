"""`run_kda_chunk` and `run_kda_forward`: check, compile and launch a kernel on torch tensors."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, cast

import torch

from kda.formats import BF16, F16, F32, Format
from kda.kernels import bounds
from kda.kernels import compile as compiling
from kda.kernels.contract import ALIGNMENT
from kda.kernels.form import Call, Form
from kda.numerics.domain import GateDomain, gate_domain
from kda.problem import AXES, InputError, Sizes, Tile, at_words, check_shapes
from kda.references.forward import SUB_CHUNK

__all__ = [
    "BLOCKS_DV",
    "CHUNK",
    "CHUNKS",
    "DTYPES",
    "FORWARD",
    "SHARED_MEMORY",
    "Kernel",
    "Program",
    "aligned",
    "check_tile",
    "compiled_kernel",
    "entry",
    "execute",
    "parameters",
    "run_kda_chunk",
    "run_kda_forward",
    "shared_memory",
    "shared_memory_forward",
]

#: A function like `kda.kernels.chunk.kda_chunk`: (dialect, DK, DV, C, block_DV, num_stages) to a TileLang program.
Program = Callable[[Any, int, int, int, int, int], Any]

DTYPES: tuple[Format, ...] = (F16, BF16, F32)
CHUNKS = (16, 32, 64)
BLOCKS_DV = (16, 32, 64, 128)
MAX_CHANNELS = 128
#: Programs along the second and third axes of a CUDA grid, which are H and B for `kda_chunk`.
MAX_GRID = 65535
#: Shared memory that one program may use on an H100 or H200, bytes.
SHARED_MEMORY = 232448

_FORMATS: dict[torch.dtype, Format] = {getattr(torch, form.name): form for form in DTYPES}


def shared_memory(tile: Tile, DK: int) -> int:
    """Bytes of shared memory of one program on CUDA: the tiles of kda/kernels/chunk.py, added up.

    One stage prefetches into the tiles that are there, so that num_stages = 0 and 1 need the same.
    """
    C, bDV = tile.C, tile.block_DV
    operand = tile.dtype.numpy.itemsize
    loaded = operand * (2 * C * DK + C * bDV)
    derived = operand * (3 * C * DK + C * C + C * bDV + DK * bDV)
    accumulators = 4 * (2 * C * DK + C * C + C * bDV + C)
    return loaded + derived + accumulators


def shared_memory_forward(tile: Tile, DK: int) -> int:
    """Bytes of shared memory of one program on CUDA: the tiles of kda/kernels/forward.py, added up."""
    C, bDV = tile.C, tile.block_DV
    operand = tile.dtype.numpy.itemsize
    loaded = operand * (2 * C * DK + C * bDV) + 4 * C * DK
    derived = operand * (2 * C * DK + 2 * SUB_CHUNK * DK + C * C + C * bDV + DK * bDV)
    accumulators = 4 * (DK + C * C + C * bDV + C)
    return loaded + derived + accumulators


@dataclass(frozen=True)
class Kernel:
    """What a launch needs to know of a kernel.

    name: of its function in kda/kernels/`module`.py. max_channels: the largest DK and DV. rows: of its smallest matrix
    product over a chunk, C where None. shared_memory: the bytes of one program of a tile and DK. domain: the gates that
    it takes with an operand format and C; None where it takes any.
    """

    name: str
    module: str
    max_channels: int
    rows: int | None
    shared_memory: Callable[[Tile, int], int]
    domain: Callable[[Format, int], GateDomain] | None

    def program(self) -> Program:
        """Its function."""
        made: Program = getattr(importlib.import_module(f"kda.kernels.{self.module}"), self.name)
        return made


CHUNK = Kernel("kda_chunk", "chunk", MAX_CHANNELS, None, shared_memory, gate_domain)
FORWARD = Kernel("kda_forward", "forward", 256, SUB_CHUNK, shared_memory_forward, None)


def check_tile(tile: Tile, sizes: Sizes, target: str, kernel: Kernel = CHUNK) -> None:
    """Raise InputError unless `kernel` can be compiled for `tile` and launched on `sizes`."""
    for name in ("C", "block_DV", "num_stages", "threads"):
        value = getattr(tile, name)
        if (isinstance(value, bool) or not isinstance(value, int)) and not (name == "threads" and value is None):
            raise InputError(f"{name} is {value!r}; expected an int{' or None' if name == 'threads' else ''}")
    if tile.dtype not in DTYPES:
        raise InputError(f"dtype is {tile.dtype.name}; {kernel.name} takes {', '.join(d.name for d in DTYPES)}")
    for name, channels in (("DK", sizes.DK), ("DV", sizes.DV)):
        if channels % 16 or not 16 <= channels <= kernel.max_channels:
            raise InputError(f"{name} is {channels}; expected a multiple of 16 from 16 to {kernel.max_channels}")
    if tile.C not in CHUNKS:
        raise InputError(f"C is {tile.C}; expected one of {', '.join(map(str, CHUNKS))}")
    if tile.block_DV not in BLOCKS_DV:
        raise InputError(f"block_DV is {tile.block_DV}; expected one of {', '.join(map(str, BLOCKS_DV))}")
    if sizes.DV % tile.block_DV:
        raise InputError(f"block_DV is {tile.block_DV} and DV is {sizes.DV}; expected a block_DV that divides DV")
    if tile.num_stages not in (0, 1):
        raise InputError(
            f"num_stages is {tile.num_stages}; expected 0 or 1 (TileLang 0.1.15 cannot pipeline a loop of symbolic "
            "length deeper, see docs/kernel.md)"
        )
    if tile.threads is not None and (tile.threads % 32 or not 32 <= tile.threads <= 1024):
        raise InputError(f"threads is {tile.threads}; expected a multiple of 32 from 32 to 1024")
    for axis, size in (("B", sizes.B), ("H", sizes.H)):
        if target == "cuda" and kernel is CHUNK and size > MAX_GRID:
            raise InputError(f"{axis} is {size}; expected at most {MAX_GRID}, the extent of a CUDA grid")
    needed = kernel.shared_memory(tile, sizes.DK)
    if target == "cuda" and needed > SHARED_MEMORY:
        raise InputError(
            f"C={tile.C}, block_DV={tile.block_DV}, DK={sizes.DK}, num_stages={tile.num_stages} need {needed} bytes "
            f"of shared memory; expected at most {SHARED_MEMORY} (shorter chunk, narrower block, num_stages=0)"
        )


@functools.cache
def _compiled(
    tile: Tile,
    DK: int,
    DV: int,
    target: str,
    program: Program | None,
    check_tiles: bool,
    kernel: Kernel,
    form: Form | None,
) -> Any:
    compiling.tilelang()
    from kda.kernels.dialect import CpuDialect, CudaDialect, Dialect, threads_for

    made = program or kernel.program()
    on: Dialect = CpuDialect(tile.dtype)
    if target == "cuda":
        on = CudaDialect(tile.dtype, tile.threads or threads_for(tile, DK, kernel.rows))
    stages = 0 if target == "c" else tile.num_stages
    # float32 products stay apart from their sums, as on the CPU, so that no scheduling choice can change a bit.
    flags = ("--fmad=false",) if target == "cuda" and tile.dtype is F32 else bounds.flags() if check_tiles else ()
    choice: tuple[Any, ...] = (on, DK, DV, tile.C, tile.block_DV, stages, *([form] if form else []))
    # A profiler shows a kernel by the name of its kernel, not by that of its Python function.
    return compiling.compile_program(lambda: made(*choice).with_attr("global_symbol", kernel.name), target, flags)


def compiled_kernel(
    tile: Tile,
    DK: int,
    DV: int,
    target: str,
    program: Program | None = None,
    check_tiles: bool = False,
    kernel: Kernel = CHUNK,
    form: Form | None = None,
) -> Any:
    """The compiled `kernel` of a tile. On a CPU, threads and num_stages mean nothing and do not make another kernel.

    form: what `kda_forward` is compiled for, None for the plain one; no other kernel takes one.
    """
    if target == "c":
        tile = Tile(tile.C, tile.block_DV, tile.dtype)
    return _compiled(tile, DK, DV, target, program, check_tiles, kernel, form)


def run_kda_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    *,
    C: int = 64,
    block_DV: int = 32,
    threads: int | None = None,
    num_stages: int = 0,
    check_values: bool = True,
    o: torch.Tensor | None = None,
    final_state: torch.Tensor | None = None,
    program: Program | None = None,
    check_tiles: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """KDA forward by the article's kernel: returns o `[B, N, H, DV]` and the final state `[B, H, DK, DV]`.

    q, k: `[B, N, H, DK]`, v: `[B, N, H, DV]`, all float16, bfloat16 or float32, one device (CPU or CUDA, which is also
    the target). g: `[B, N, H, DK]`, natural-log gate <= 0, beta: `[B, N, H]` in [0, 2], initial_state: `[B, H, DK, DV]`
    or None for zeros: float32. Inputs may be strided views (they are copied). o and final_state: contiguous buffers to
    write to, which share no memory with another argument; fresh ones otherwise. C, block_DV, threads, num_stages: see
    `Tile`. The kernel has no backward pass: inputs that require a gradient are refused unless gradients are off.
    check_values: look for values that are not finite, g > 0, beta outside [0, 2] and gates outside the kernel's domain,
    which costs a synchronisation; with False only shapes, types and places are checked.
    program: an edited copy of `kda.kernels.chunk.kda_chunk` to launch in its place. check_tiles: on a CPU, check every
    index into the kernel's own tiles (another kernel, and slower); TileError, after the launch, where one is outside.

    Raises InputError, before anything is launched, for whatever does not fit, and DomainError for the gates.
    """
    tile = Tile(C, block_DV, DTYPES[0], threads, num_stages)
    return _run(CHUNK, q, k, v, g, beta, initial_state, tile, check_values, o, final_state, program, check_tiles)


def run_kda_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    *,
    C: int = 64,
    block_DV: int = 32,
    threads: int | None = None,
    num_stages: int = 0,
    check_values: bool = True,
    o: torch.Tensor | None = None,
    final_state: torch.Tensor | None = None,
    program: Program | None = None,
    check_tiles: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """KDA forward by `kda_forward`, for any gate: returns o `[B, N, H, DV]` and the final state `[B, H, DK, DV]`.

    Arguments and errors are those of `run_kda_chunk`, but that every gate g <= 0 is computed: there is no DomainError.
    """
    tile = Tile(C, block_DV, DTYPES[0], threads, num_stages)
    return _run(FORWARD, q, k, v, g, beta, initial_state, tile, check_values, o, final_state, program, check_tiles)


def _run(
    kernel: Kernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
    tile: Tile,
    check_values: bool,
    o: torch.Tensor | None,
    final_state: torch.Tensor | None,
    program: Program | None,
    check_tiles: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    if initial_state is not None:
        tensors["initial_state"] = initial_state
    for name, tensor in tensors.items():
        _check_kind(name, tensor, kernel)
    sizes = check_shapes({name: tuple(t.shape) for name, t in tensors.items()})
    tile = replace(tile, dtype=_check_dtypes(tensors))
    target = _check_devices(tensors)
    check_tile(tile, sizes, target, kernel)
    if check_tiles and target != "c":
        raise InputError(
            "check_tiles is True and q is on a GPU; expected CPU tensors, whose tiles a compiler can check"
        )
    outputs = {"o": (o, q.dtype), "final_state": (final_state, torch.float32)}
    buffers = {name: _buffer(name, given, sizes, dtype, q.device) for name, (given, dtype) in outputs.items()}
    _check_overlap(buffers, tensors)
    if check_values:
        _check_values(tensors, kernel.domain and kernel.domain(tile.dtype, tile.C))
    if initial_state is None:
        initial_state = torch.zeros(sizes.shape("initial_state"), dtype=torch.float32, device=q.device)

    arguments = [aligned(t.detach()) for t in (q, k, v, g, beta, initial_state)]
    compiled = compiled_kernel(tile, sizes.DK, sizes.DV, target, program, check_tiles, kernel)
    if check_tiles:
        bounds.forget()
    if kernel is CHUNK:
        execute(compiled, [*arguments, buffers["o"], buffers["final_state"]], 6)
    else:
        execute(compiled, parameters(_plain(tile.dtype, sizes, arguments, **buffers)), OUTPUT)
    outside = bounds.seen(compiled.get_kernel_source()) if check_tiles else None
    if outside is not None:
        raise bounds.TileError(outside)
    return buffers["o"], buffers["final_state"]


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as every program takes it, or a copy that is: dense, and where it can be loaded 16 bytes at a time.

    A slice with axes of length 1 counts as contiguous wherever it starts.
    """
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _plain(
    operand: Format, sizes: Sizes, arguments: list[torch.Tensor], o: torch.Tensor, final_state: torch.Tensor
) -> Call:
    """B sequences of N tokens each, behind one another."""
    q, k, v, g, beta, o = (t.flatten(0, 1) for t in (*arguments[:5], o))
    form, initial_state = Form(operand), arguments[5]
    return Call(
        *(form, q, k, v, g, beta, o, sizes.B, sizes.N, 1.0), initial_state=initial_state, final_state=final_state
    )


@functools.cache
def _absent(HV: int, DK: int, DV: int, state_v_first: bool, device: torch.device) -> tuple[torch.Tensor, ...]:
    """A_log, dt_bias, starts and a state, of no elements."""
    state = (0, HV, DV, DK) if state_v_first else (0, HV, DK, DV)
    shapes = ((0,), torch.float32), ((0, DK), torch.float32), ((0,), torch.int32), (state, torch.float32)
    return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes)


#: Where o is among the `parameters` of `kda_forward`.
OUTPUT = 9


def parameters(call: Call) -> list[Any]:
    """The arguments of the program of kda/kernels/forward.py, in its order; what a call lacks has no elements."""
    (_, HV, DV), DK = call.v.shape, call.q.shape[-1]
    A_log, dt_bias, starts, state = _absent(HV, DK, DV, call.form.state_v_first, call.q.device)
    return [
        call.q,
        call.k,
        call.v,
        call.g,
        call.beta,
        A_log if call.A_log is None else call.A_log,
        dt_bias if call.dt_bias is None else call.dt_bias,
        starts if call.starts is None else call.starts,
        state if call.initial_state is None else call.initial_state,
        call.o,
        state if call.final_state is None else call.final_state,
        call.sequences,
        call.length,
        call.scale,
        call.lower_bound,
    ]


@functools.cache
def entry(kernel: Any) -> Callable[..., Any]:
    """The function behind a compiled kernel that is given all of its outputs, or the kernel where it shows none.

    What TileLang has in front of it looks for outputs to make. Both run on the current stream of the tensors' device,
    which the function itself asks for, and both refuse tensors that do not fit.
    """
    adapter: Any = getattr(kernel, "adapter", None)
    if getattr(adapter, "result_idx", None) != [] or not hasattr(adapter, "get_exportable_executable"):
        return cast(Callable[..., Any], kernel)
    return cast(Callable[..., Any], adapter.get_exportable_executable()["main"])


def execute(kernel: Any, arguments: list[Any], output: int) -> None:
    """Call a compiled kernel; arguments[output] is its o."""
    compiling.COUNTS.launches += 1
    kernel = entry(kernel)
    o = arguments[output]
    if o.device.type == "cpu" and o.dtype is torch.bfloat16:  # bf16 values travel in float32 there, see CpuDialect
        widened = [t.float() if isinstance(t, torch.Tensor) and t.dtype is torch.bfloat16 else t for t in arguments]
        kernel(*widened)
        o.copy_(widened[output])
    else:
        kernel(*arguments)


def _check_kind(name: str, tensor: object, kernel: Kernel) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name} has layout {_name(tensor.layout)}; expected a dense tensor (pass {name}.to_dense())")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InputError(
            f"{name} requires a gradient and {kernel.name} has no backward pass; expected a tensor without (call it "
            f"under torch.no_grad(), or pass {name}.detach())"
        )


def _check_dtypes(tensors: dict[str, torch.Tensor]) -> Format:
    operand = _FORMATS.get(tensors["q"].dtype)
    if operand is None:
        raise InputError(f"q is {_name(tensors['q'].dtype)}; expected {', '.join(form.name for form in DTYPES)}")
    for name, tensor in tensors.items():
        expected = tensors["q"].dtype if name in ("q", "k", "v") else torch.float32
        if tensor.dtype is not expected:
            why = ", as q is" if name in ("k", "v") else ""
            raise InputError(f"{name} is {_name(tensor.dtype)}; expected {_name(expected)}{why}")
    return operand


def _check_devices(tensors: dict[str, torch.Tensor]) -> str:
    device = tensors["q"].device
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise InputError(f"{name} is on {tensor.device}; expected {device}, as q is")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"q is on {device}; expected a CPU or CUDA tensor")
    return "cuda" if device.type == "cuda" else "c"


def _check_overlap(buffers: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> None:
    # An input that is not contiguous is copied before the launch, so that nothing is written over it in time.
    others = {name: _extent(t) for name, t in tensors.items() if t.is_contiguous()}
    for name, buffer in buffers.items():
        start, stop = _extent(buffer)
        for other, (low, high) in others.items():
            if start < high and low < stop:
                raise InputError(f"{name} shares memory with {other}; expected a buffer of its own to write to")
        others[name] = (start, stop)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _check_values(tensors: dict[str, torch.Tensor], domain: GateDomain | None) -> None:
    # The extremes of every tensor in one transfer: one synchronisation, and no mask as large as an input.
    extremes = torch.stack([end.double() for t in tensors.values() for end in t.detach().aminmax()]).tolist()
    lowest, highest = dict(zip(tensors, extremes[::2], strict=True)), dict(zip(tensors, extremes[1::2], strict=True))
    for name, tensor in tensors.items():
        if not (isfinite(lowest[name]) and isfinite(highest[name])):
            at, value = _first(name, tensor, ~torch.isfinite(tensor))
            raise InputError(f"{name} is {value} at {at}; every value must be finite")
    g, beta = tensors["g"], tensors["beta"]
    if highest["g"] > 0:
        at, value = _first("g", g, g > 0)
        raise InputError(
            f"g is {value:.6g} at {at}; the gate is a natural logarithm and must be <= 0 (pass log(a), not a)"
        )
    if lowest["beta"] < 0 or highest["beta"] > 2:
        at, value = _first("beta", beta, (beta < 0) | (beta > 2))
        raise InputError(f"beta is {value:.6g} at {at}; expected 0 <= beta <= 2")
    if domain is None:
        return
    k_max = max(-lowest["k"], highest["k"])
    if not domain.surely_holds(lowest["g"], g.shape[1], k_max):
        domain.check(g.detach().double().cpu().numpy(), k_max)


def _first(name: str, tensor: torch.Tensor, wrong: torch.Tensor) -> tuple[str, float]:
    """The first place that is `wrong`, in words, and the value there."""
    at = tuple(torch.nonzero(wrong)[0].tolist())
    return at_words(name, at), tensor[at].item()


def _buffer(
    name: str, given: torch.Tensor | None, sizes: Sizes, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    shape = sizes.shape(name)
    if given is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if not isinstance(given, torch.Tensor):
        raise InputError(f"{name} is a {type(given).__name__}; expected a torch.Tensor to write to")
    if tuple(given.shape) != shape:
        raise InputError(f"{name} has shape {tuple(given.shape)}; expected [{', '.join(AXES[name])}] = {shape}")
    if given.dtype is not dtype:
        raise InputError(f"{name} is {_name(given.dtype)}; expected {_name(dtype)}")
    if given.device != device:
        raise InputError(f"{name} is on {given.device}; expected {device}, as q is")
    if not given.is_contiguous():
        raise InputError(f"{name} has strides {given.stride()}; expected a contiguous buffer to write to")
    if given.data_ptr() % ALIGNMENT:
        raise InputError(
            f"{name} starts {given.data_ptr() % ALIGNMENT} bytes past a multiple of {ALIGNMENT}; expected aligned"
        )
    return given


def _name(dtype: torch.dtype | torch.layout) -> str:
    return str(dtype).removeprefix("torch.")
