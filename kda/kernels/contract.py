"""What the tensors of one call of `kda_forward` must be: shapes, formats and devices, and where buffers may lie.

What is checked here is known without reading a value, so that nothing waits for a device. B batches of N tokens, or,
with cu_seqlens, S sequences behind one another in one batch; H query and key heads, HV value heads, of which HV / H in
a row share one; DK key and gate channels, DV value channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kda.formats import BF16, F16, F32, Format
from kda.kernels.form import Beta, Form, Gate
from kda.problem import AXIS_WORDS, InputError

__all__ = ["ALIGNMENT", "AXES", "Extents", "Options", "Seen", "at_words", "checked", "writable"]

#: The axes of every tensor; a state that is value channel first has the last two exchanged.
AXES: dict[str, tuple[str, ...]] = {
    "q": ("B", "N", "H", "DK"),
    "k": ("B", "N", "H", "DK"),
    "v": ("B", "N", "HV", "DV"),
    "g": ("B", "N", "HV", "DK"),
    "beta": ("B", "N", "HV"),
    "initial_state": ("S", "HV", "DK", "DV"),
    "cu_seqlens": ("S + 1",),
    "A_log": ("HV",),
    "dt_bias": ("HV", "DK"),
    "out": ("B", "N", "HV", "DV"),
    "final_state": ("S", "HV", "DK", "DV"),
}
#: Bytes to which every buffer must be aligned: the widest load of a program.
ALIGNMENT = 16

_FORMATS: dict[torch.dtype, Format] = {getattr(torch, form.name): form for form in (F16, BF16, F32)}
_WORDS = AXIS_WORDS | {"S": "sequence", "HV": "value head"}

#: What is seen of a tensor: shape, dtype, device.
Seen = tuple[tuple[int, ...], torch.dtype, torch.device]


class Options(NamedTuple):
    """What is asked for besides the tensors: see `Form`."""

    final_state: bool
    state_v_first: bool
    normalise: bool
    gate: Gate
    beta: Beta


@dataclass(frozen=True)
class Extents:
    """The extent of every axis; S = B unless there are cu_seqlens."""

    B: int
    N: int
    S: int
    H: int
    HV: int
    DK: int
    DV: int

    def shape(self, name: str, options: Options) -> tuple[int, ...]:
        """The shape of the tensor `name`."""
        return tuple(self.S + 1 if axis == "S + 1" else getattr(self, axis) for axis in _axes(name, options))


def _axes(name: str, options: Options) -> tuple[str, ...]:
    axes = AXES[name]
    return (*axes[:2], "DV", "DK") if options.state_v_first and axes[0] == "S" else axes


def checked(seen: Mapping[str, Seen], options: Options) -> tuple[Extents, Form]:
    """The extents that the tensors agree on, and the form that they ask for; InputError names what does not fit."""
    extents = _extents(seen, options)
    operand = _operand(seen)
    _check_devices(seen)
    form = Form(
        operand=operand,
        packed="cu_seqlens" in seen,
        initial_state="initial_state" in seen,
        final_state=options.final_state,
        state_v_first=options.state_v_first,
        normalise=options.normalise,
        gate=options.gate,
        beta=options.beta,
        g_format=_FORMATS[seen["g"][1]],
        beta_format=_FORMATS[seen["beta"][1]],
    )
    return extents, form


def _extents(seen: Mapping[str, Seen], options: Options) -> Extents:
    shapes = {name: shape for name, (shape, _, _) in seen.items()}
    for name, shape in shapes.items():
        axes = _axes(name, options)
        flat = name == "dt_bias" and len(shape) == 1
        if len(shape) != len(axes) and not flat:
            more = f" (pass {name}.flatten())" if len(axes) < len(shape) and len(axes) <= 2 else ""
            raise InputError(
                f"{name} has rank {len(shape)}, shape {tuple(shape)}; expected rank {len(axes)}, {_listed(axes)}{more}"
            )
    B, N, H, DK = shapes["k"]
    HV, DV = shapes["v"][2:]
    packed = shapes.get("cu_seqlens")
    extents = Extents(B, N, B if packed is None else packed[0] - 1, H, HV, DK, DV)
    for axis, owner in (("H", "k"), ("DK", "k"), ("HV", "v"), ("DV", "v")):
        if getattr(extents, axis) < 1:
            raise InputError(f"{owner} has {axis} = 0, shape {tuple(shapes[owner])}; expected at least 1")
    for name, shape in shapes.items():
        expected = extents.shape(name, options)
        if tuple(shape) != expected and not (name == "dt_bias" and tuple(shape) == (HV * DK,)):
            raise InputError(_disagreement(name, tuple(shape), expected, options))
    if HV % H:
        raise InputError(
            f"v has {HV} heads and k has {H}; expected a multiple, so that each head of k serves as many of v"
        )
    if packed is not None and packed[0] < 1:
        raise InputError("cu_seqlens has no entries; expected S + 1 of them for S sequences, the first of them 0")
    if packed is not None and B != 1:
        raise InputError(
            f"q has B = {B} and cu_seqlens is given; expected B = 1, the sequences behind one another "
            "(pass x.flatten(0, 1)[None] for each tensor x)"
        )
    return extents


def _disagreement(name: str, shape: tuple[int, ...], expected: tuple[int, ...], options: Options) -> str:
    axes = _axes(name, options)
    axis = next(a for a, got, want in zip(axes, shape, expected, strict=False) if got != want)
    hint = f"axis {axis} differs"
    if axes[0] == "S" and shape == (*expected[:2], expected[3], expected[2]):
        hint = f"is it one of state_v_first={not options.state_v_first}?"
    elif axes[0] == "B" and len(shape) > 2 and shape == (expected[0], expected[2], expected[1], *expected[3:]):
        hint = f"tokens come before heads: pass {name}.transpose(1, 2)"
    return f"{name} has shape {shape}; expected {_listed(axes)} = {expected} to agree with k and v ({hint})"


def _listed(axes: tuple[str, ...]) -> str:
    return f"[{', '.join(axes)}]"


def _operand(seen: Mapping[str, Seen]) -> Format:
    dtypes = {name: dtype for name, (_, dtype, _) in seen.items()}
    q = dtypes["q"]
    operand = _FORMATS.get(q)
    if operand is None:
        raise InputError(f"q is {_name(q)}; expected {', '.join(form.name for form in _FORMATS.values())}")
    for name, dtype in dtypes.items():
        if name in ("k", "v", "out") and dtype is not q:
            raise InputError(f"{name} is {_name(dtype)}; expected {_name(q)}, as q is")
        if name in ("g", "beta") and dtype not in (torch.float32, q):
            either = "" if operand is F32 else f" or {_name(q)}, as q is"
            raise InputError(f"{name} is {_name(dtype)}; expected float32{either} (pass {name}.float())")
        if name in ("initial_state", "final_state") and dtype is not torch.float32:
            pass_it = " (pass initial_state.float())" if name == "initial_state" else ""
            raise InputError(f"{name} is {_name(dtype)}; expected float32{pass_it}")
        if name in ("A_log", "dt_bias") and dtype not in _FORMATS:
            raise InputError(f"{name} is {_name(dtype)}; expected float32 (pass {name}.float())")
        if name == "cu_seqlens" and dtype not in (torch.int32, torch.int64):
            raise InputError(f"cu_seqlens is {_name(dtype)}; expected int32 or int64 (pass cu_seqlens.int())")
    return operand


def _check_devices(seen: Mapping[str, Seen]) -> None:
    device = seen["q"][2]
    for name, (_, _, where) in seen.items():
        if where != device:
            raise InputError(f"{name} is on {where}; expected {device}, as q is (nothing is copied between devices)")


def writable(buffers: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
    """InputError unless each of `buffers` can be written to as it lies, apart from the others and from `inputs`."""
    # An input that is not contiguous is copied before anything is written.
    others = {name: _extent(tensor) for name, tensor in inputs.items() if tensor.is_contiguous()}
    for name, buffer in buffers.items():
        if not buffer.is_contiguous():
            raise InputError(f"{name} has strides {buffer.stride()}; expected a contiguous buffer to write to")
        start, stop = _extent(buffer)
        if start % ALIGNMENT:
            raise InputError(
                f"{name} starts {start % ALIGNMENT} bytes past a multiple of {ALIGNMENT}; expected it aligned"
            )
        for other, (low, high) in others.items():
            if start < high and low < stop:
                raise InputError(f"{name} shares memory with {other}; expected a buffer of its own to write to")
        others[name] = (start, stop)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def at_words(name: str, index: tuple[int, ...], state_v_first: bool = False) -> str:
    """`index` of the tensor `name` in words: "batch 0, token 3, value head 1, channel 7"."""
    axes = AXES[name]
    if state_v_first and axes[0] == "S":
        axes = (*axes[:2], "DV", "DK")
    return ", ".join(f"{_WORDS[axis]} {i}" for axis, i in zip(axes, index, strict=False))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
