"""What goes into Kimi Delta Attention, what comes out, and when the two make sense.

    S_t = S_{t-1} Diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,      a_t = exp(g_t)
    o_t = S_t q_t

(article, introduction; S is written there as DV x DK, and held here as DK x DV, key channel first.)
Knows nothing of Hypothesis, TileLang or pytest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kda.formats import F32, F64, Format

__all__ = ["AXES", "AXIS_WORDS", "InputError", "Inputs", "Outputs", "Sizes", "Tile", "check_shapes"]

#: The axes of every tensor, by the words of the field.
AXES: dict[str, tuple[str, ...]] = {
    "q": ("B", "N", "H", "DK"),
    "k": ("B", "N", "H", "DK"),
    "v": ("B", "N", "H", "DV"),
    "g": ("B", "N", "H", "DK"),
    "beta": ("B", "N", "H"),
    "initial_state": ("B", "H", "DK", "DV"),
    "o": ("B", "N", "H", "DV"),
    "final_state": ("B", "H", "DK", "DV"),
}


class InputError(ValueError):
    """An input that cannot be computed. One sentence: the argument, its value, what was expected."""


@dataclass(frozen=True)
class Sizes:
    """B batches, N tokens, H heads, DK key (and gate) channels, DV value channels; all at least 1."""

    B: int
    N: int
    H: int
    DK: int
    DV: int

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of `tensor` (a key of `AXES`)."""
        return tuple(getattr(self, axis) for axis in AXES[tensor])


@dataclass(frozen=True)
class Tile:
    """The compile-time choice of a chunked kernel.

    C: chunk length (tokens). block_DV: value channels per program. dtype: operand format. threads: threads per
    program, None for the kernel's own choice. num_stages: depth of the software pipeline over chunks. The last two
    mean nothing on a CPU.
    """

    C: int
    block_DV: int
    dtype: Format
    threads: int | None = None
    num_stages: int = 0


@dataclass(frozen=True)
class Inputs:
    """One KDA problem, in float64 arrays whose values are representable in the formats they stand for.

    q, k: `[B, N, H, DK]`; v: `[B, N, H, DV]`, all three in `dtype`. g: `[B, N, H, DK]`, natural-log gate, <= 0, and
    beta: `[B, N, H]`, both in float32 (float64 where `dtype` is). initial_state: `[B, H, DK, DV]`, key channel first,
    in the same format as g, or None for zeros.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    initial_state: np.ndarray | None = None
    dtype: Format = F64

    @property
    def sizes(self) -> Sizes:
        """The sizes, read off k and v."""
        B, N, H, DK = self.k.shape
        return Sizes(B, N, H, DK, self.v.shape[-1])

    @property
    def gate_dtype(self) -> Format:
        """The format of g, beta and the states."""
        return F64 if self.dtype is F64 else F32

    def state(self) -> np.ndarray:
        """A fresh copy of the initial state, `[B, H, DK, DV]`; zeros where there is none."""
        if self.initial_state is None:
            return np.zeros(self.sizes.shape("initial_state"))
        return self.initial_state.copy()

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, array) of every tensor that is present."""
        for name in ("q", "k", "v", "g", "beta", "initial_state"):
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def replace(self, **changes: object) -> Inputs:
        """A copy with some tensors exchanged."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def rounded(self) -> Inputs:
        """A copy with every tensor rounded to the format it stands for."""
        changes = {
            name: (self.dtype if name in ("q", "k", "v") else self.gate_dtype).round(array)
            for name, array in self.tensors()
        }
        return self.replace(**changes)

    def tokens(self, start: int, stop: int) -> Inputs:
        """Tokens start..stop-1 alone, with the same initial state."""
        return self.replace(**{n: getattr(self, n)[:, start:stop] for n in ("q", "k", "v", "g", "beta")})

    def member(self, batch: int, head: int) -> Inputs:
        """One head of one batch alone, as B = H = 1."""
        changes = {}
        for name, array in self.tensors():
            of_batch = array[batch : batch + 1]
            changes[name] = of_batch[:, head : head + 1] if name == "initial_state" else of_batch[:, :, head : head + 1]
        return self.replace(**changes)

    def check(self) -> Sizes:
        """The sizes, or InputError: shapes that disagree, a value that is not finite, g > 0, beta outside [0, 2]."""
        sizes = check_shapes({name: array.shape for name, array in self.tensors()})
        for name, array in self.tensors():
            if not np.isfinite(array).all():
                where = _index(~np.isfinite(array), name)
                raise InputError(f"{name} is {array[where[0]]} at {where[1]}; every value must be finite")
        if (self.g > 0).any():
            where = _index(self.g > 0, "g")
            raise InputError(
                f"g is {self.g[where[0]]:.6g} at {where[1]}; the gate is a natural logarithm and must be <= 0 "
                "(pass log(a), not a)"
            )
        wrong = (self.beta < 0) | (self.beta > 2)
        if wrong.any():
            where = _index(wrong, "beta")
            raise InputError(f"beta is {self.beta[where[0]]:.6g} at {where[1]}; expected 0 <= beta <= 2")
        return sizes


def _index(mask: np.ndarray, tensor: str) -> tuple[tuple[int, ...], str]:
    at = tuple(int(i) for i in np.argwhere(mask)[0])
    return at, at_words(tensor, at)


AXIS_WORDS = {"B": "batch", "N": "token", "H": "head", "DK": "channel", "DV": "value channel"}


def at_words(tensor: str, index: tuple[int, ...]) -> str:
    """`index` of `tensor` in words: "batch 0, token 3, head 1, channel 7"."""
    return ", ".join(f"{AXIS_WORDS[axis]} {i}" for axis, i in zip(AXES[tensor], index, strict=False))


@dataclass(frozen=True)
class Outputs:
    """o: `[B, N, H, DV]`; final_state: `[B, H, DK, DV]`, key channel first. float64 arrays."""

    o: np.ndarray
    final_state: np.ndarray

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, array) of both."""
        yield "o", self.o
        yield "final_state", self.final_state

    def only(self, tensor: str) -> Outputs:
        """One output alone; the other becomes empty."""
        return replace(self, **{name: np.empty(0) for name, _ in self.tensors() if name != tensor})

    def before(self, token: int) -> Outputs:
        """O before `token`, without the final state."""
        return Outputs(self.o[:, :token], np.empty(0))

    def after(self, token: int) -> Outputs:
        """O from `token` on, and the final state."""
        return Outputs(self.o[:, token:], self.final_state)

    def member(self, batch: int, head: int) -> Outputs:
        """One head of one batch alone."""
        rows, heads = slice(batch, batch + 1), slice(head, head + 1)
        return Outputs(self.o[rows, :, heads], self.final_state[rows, heads])

    def with_o(self, o: np.ndarray) -> Outputs:
        """The same final state with another o."""
        return Outputs(o, self.final_state)

    def state_turned(self, matrix: np.ndarray) -> Outputs:
        """The final state multiplied by `matrix` `[DK, DK]` from the left."""
        return Outputs(self.o, matrix @ self.final_state)

    def equals(self, other: Outputs) -> bool:
        """Whether both outputs have the same bits (0.0 and -0.0 count as the same)."""
        return all(
            np.array_equal(mine, theirs, equal_nan=True)
            for (_, mine), (_, theirs) in zip(self.tensors(), other.tensors(), strict=True)
        )


def check_shapes(shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    """The sizes that `shapes` (tensor name -> shape) agree on, or InputError naming the first argument that does not.

    k fixes B, N, H and DK; v fixes DV.
    """
    for name in ("q", "k", "v", "g", "beta"):
        if name not in shapes:
            raise InputError(f"{name} is missing; q, k, v, g and beta are required")
    for name, shape in shapes.items():
        if len(shape) != len(AXES[name]):
            raise InputError(
                f"{name} has rank {len(shape)}, shape {tuple(shape)}; expected rank {len(AXES[name])}, "
                f"[{', '.join(AXES[name])}]"
            )
    B, N, H, DK = shapes["k"]
    sizes = Sizes(B, N, H, DK, shapes["v"][-1])
    for axis in ("B", "N", "H", "DK", "DV"):
        if getattr(sizes, axis) < 1:
            owner = "v" if axis == "DV" else "k"
            raise InputError(
                f"{owner} has {axis} = {getattr(sizes, axis)}, shape {tuple(shapes[owner])}; expected at least 1"
            )
    for name, shape in shapes.items():
        expected = sizes.shape(name)
        if tuple(shape) != expected:
            axis = next(a for a, got, want in zip(AXES[name], shape, expected, strict=True) if got != want)
            raise InputError(
                f"{name} has shape {tuple(shape)}; expected [{', '.join(AXES[name])}] = {expected} to agree with k and "
                f"v (axis {axis} differs)"
            )
    return sizes
