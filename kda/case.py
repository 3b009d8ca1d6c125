"""A case: everything that determines one run, and the one line of text that holds it.

    v1,N=65,H=3,DK=64,DV=32,C=32,gate=uniform:0.9:0.999,k=gauss,seed=7,edits=v:2.3:4.0/beta:1:0.5

`Case.parse(str(case)) == case`, always, and equal cases make the same inputs bit for bit on every machine. The page
`docs/case-line.md` lists every field and every kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from math import isfinite

import numpy as np

from kda.formats import F16, F32, F64, Format, format_named
from kda.kinds import FIELDS, CaseError, Kind, background, kind_named
from kda.problem import AXES, Inputs, Sizes, Tile

__all__ = ["VERSION", "Case", "CaseError", "Edit", "Kind", "fields_of"]

#: The version every line begins with. It changes whenever an existing line would come to mean something else.
VERSION = "v1"

_SAFE = re.compile(r"[A-Za-z0-9_\-.,:=/+@%]*")

# What an index may address, by its length: True where it holds in every batch and head.
_PLACES: dict[str, dict[int, tuple[str, ...]]] = {
    "q": {1: ("N",), 2: ("N", "DK"), 4: AXES["q"]},
    "k": {1: ("N",), 2: ("N", "DK"), 4: AXES["k"]},
    "v": {1: ("N",), 2: ("N", "DV"), 4: AXES["v"]},
    "g": {1: ("N",), 2: ("N", "DK"), 4: AXES["g"]},
    "beta": {1: ("N",), 3: AXES["beta"]},
    "state": {2: ("DK", "DV"), 4: AXES["initial_state"]},
}
# Indices are written b.h.t.d, the order in which a reader narrows a place down; arrays are [B, N, H, D].
_WRITTEN = {
    axes: tuple(sorted(axes, key=["B", "H", "N", "DK", "DV"].index)) for p in _PLACES.values() for axes in p.values()
}
_WORDS = {"B": "b", "H": "h", "N": "t", "DK": "d", "DV": "d"}


@dataclass(frozen=True)
class Edit:
    """One sparse change, made after the background and after any normalisation.

    tensor: q, k, v, g, beta or state. index: `(t, d)` or `(t,)` (a whole row) in every batch and head, `(b, h, t, d)`
    for one place; beta: `(t,)` or `(b, h, t)`; state: `(dk, dv)` or `(b, h, dk, dv)`.
    """

    tensor: str
    index: tuple[int, ...]
    value: float

    def __str__(self) -> str:
        return f"{self.tensor}:{'.'.join(map(str, self.index))}:{self.value!r}"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis each part of the index counts along; CaseError where the tensor or the length is wrong."""
        places = _PLACES.get(self.tensor)
        if places is None:
            raise CaseError(f"edit {self}: no tensor is called {self.tensor!r}; expected one of {', '.join(_PLACES)}")
        if len(self.index) not in places:
            forms = (
                ["dk.dv", "b.h.dk.dv"]
                if self.tensor == "state"
                else [".".join(_WORDS[axis] for axis in _WRITTEN[axes]) for axes in places.values()]
            )
            raise CaseError(f"edit {self}: the index has {len(self.index)} parts; expected {' or '.join(forms)}")
        return _WRITTEN[places[len(self.index)]]

    def fits(self, sizes: Sizes) -> bool:
        """Whether the index lies within `sizes`."""
        return all(0 <= i < getattr(sizes, axis) for i, axis in zip(self.index, self.axes, strict=True))

    def apply(self, array: np.ndarray) -> None:
        """Write the value into `array`, which has the axes of the tensor."""
        at = dict(zip(self.axes, self.index, strict=True))
        axes = AXES["initial_state" if self.tensor == "state" else self.tensor]
        array[tuple(at.get(axis, slice(None)) for axis in axes)] = self.value

    @classmethod
    def parse(cls, text: str) -> Edit:
        """The edit written `tensor:index:value`; CaseError where it is none."""
        parts = text.split(":")
        try:
            tensor, index, value = parts
            return cls(tensor, tuple(int(i) for i in index.split(".")), float(value))
        except ValueError:
            raise CaseError(f"edit {text!r} is malformed; expected tensor:index:value, such as v:2.3:4.0") from None


_NONE, _ONE, _ONES, _ONEHOT = Kind("none"), Kind("one"), Kind("ones"), Kind("onehot")


@dataclass(frozen=True)
class Case:
    """One run: sizes, tile, how each input is made, seed, edits.

    Sizes and tile as in `Sizes` and `Tile`. gate, beta, q, k, v, state: the kind of each background (text such as
    "uniform:0.9:0.999" is read as a kind). seed: 0..2^64-1, shared by all random kinds. edits: applied in order.
    The constructor raises CaseError for anything out of range.
    """

    B: int = 1
    N: int = 1
    H: int = 1
    DK: int = 16
    DV: int = 16
    C: int = 16
    block_DV: int = 16
    dtype: Format = F16
    threads: int | None = None
    num_stages: int = 0
    gate: Kind = _NONE
    beta: Kind = _ONE
    q: Kind = _ONEHOT
    k: Kind = _ONEHOT
    v: Kind = _ONES
    state: Kind = _NONE
    seed: int = 0
    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high) in _INTEGERS.items():
            value = getattr(self, name)
            if value is None and name == "threads":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
                raise CaseError(f"{name} is {value!r}; expected an integer in {low}..{high}")
            object.__setattr__(self, name, int(value))
        try:
            object.__setattr__(self, "dtype", format_named(self.dtype))
        except ValueError as error:
            raise CaseError(str(error)) from None
        for name in FIELDS:
            object.__setattr__(self, name, kind_named(name, getattr(self, name)))
        object.__setattr__(self, "edits", tuple(self._edit(edit) for edit in self.edits))

    def _edit(self, edit: Edit) -> Edit:
        clean = Edit(edit.tensor, tuple(int(i) for i in edit.index), float(edit.value))
        if not clean.fits(self.sizes):
            limits = ", ".join(f"{axis}={getattr(self, axis)}" for axis in clean.axes)
            raise CaseError(f"edit {clean} is out of range; expected an index within {limits}")
        held = self.dtype if clean.tensor in ("q", "k", "v") else (F64 if self.dtype is F64 else F32)
        if not isfinite(clean.value) or not np.isfinite(held.round(np.array([clean.value]))[0]):
            raise CaseError(f"edit {clean}: the value is not finite in {held}; expected at most {held.max:.6g} in size")
        if clean.tensor == "g" and clean.value > 0:
            raise CaseError(f"edit {clean}: the gate is a natural logarithm; expected a value <= 0")
        if clean.tensor == "beta" and not 0 <= clean.value <= 2:
            raise CaseError(f"edit {clean}: beta is {clean.value}; expected 0 <= beta <= 2")
        if clean.tensor == "state" and self.state.name == "none":
            raise CaseError(f"edit {clean}: there is no state to edit; expected state=zeros or another kind")
        return clean

    @property
    def sizes(self) -> Sizes:
        """B, N, H, DK, DV."""
        return Sizes(self.B, self.N, self.H, self.DK, self.DV)

    @property
    def tile(self) -> Tile:
        """The compile-time choice."""
        return Tile(self.C, self.block_DV, self.dtype, self.threads, self.num_stages)

    @property
    def id(self) -> str:
        """The shape in a few characters: `B2-N65-H3-DK64-DV32-C32-f16`."""
        shape = "-".join(f"{axis}{getattr(self, axis)}" for axis in ("B", "N", "H", "DK", "DV", "C"))
        return f"{shape}-{self.dtype}"

    def inputs(self) -> Inputs:
        """The inputs, rounded: q, k, v to the dtype, g, beta and state to float32 (all float64 where the dtype is)."""
        arrays = {name: background(name, getattr(self, name), self.sizes, self.seed) for name in FIELDS}
        for edit in self.edits:
            array = arrays["gate" if edit.tensor == "g" else edit.tensor]
            assert array is not None  # a state edit without a state was refused
            edit.apply(array)
        tensors = {tensor: arrays[name] for name, tensor in FIELDS.items()}
        return Inputs(**tensors, dtype=self.dtype).rounded()  # type: ignore[arg-type]

    def replace(self, **changes: object) -> Case:
        """A copy with some fields exchanged; kinds may be given as text. CaseError as in the constructor."""
        unknown = set(changes) - set(_FIELDS)
        if unknown:
            raise CaseError(f"no field is called {min(unknown)!r}; expected one of {', '.join(_FIELDS)}")
        return replace(self, **changes)  # type: ignore[arg-type]

    def cut(self, **sizes: int) -> Case:
        """A copy with some of B, N, H, DK, DV made smaller, without the edits that fall outside.

        Random values that remain do not change (rows of q and k are normalised again). CaseError: a size that grows.
        """
        for axis, size in sizes.items():
            if axis not in ("B", "N", "H", "DK", "DV"):
                raise CaseError(f"{axis} cannot be cut; expected one of B, N, H, DK, DV")
            if size > getattr(self, axis):
                raise CaseError(f"{axis} is {getattr(self, axis)} and cannot be cut to {size}; expected less")
        smaller = self.replace(edits=(), **sizes)
        return smaller.replace(edits=tuple(edit for edit in self.edits if edit.fits(smaller.sizes)))

    def __str__(self) -> str:
        return ",".join((VERSION, *self._written()))

    def __repr__(self) -> str:
        return f"Case.parse({str(self)!r})"

    def _written(self) -> Iterator[str]:
        for name, default in _FIELDS.items():
            value = getattr(self, name)
            if name == "edits":
                if value:
                    yield "edits=" + "/".join(map(str, value))
            elif value != default:
                yield f"{name}={value}"

    @classmethod
    def parse(cls, line: str) -> Case:
        """The case that `line` holds; fields may come in any order.

        CaseError: another version, a character no case line has, a field that is unknown, repeated or malformed, and
        whatever the constructor refuses.
        """
        values = {name: _read(name, text) for name, text in fields_of(line, VERSION, _FIELDS).items()}
        return cls(**values)  # type: ignore[arg-type]


def fields_of(line: str, version: str, names: Collection[str]) -> dict[str, str]:
    """The fields of a line of `version`, as text; CaseError for another line, and for a name that is not in `names`."""
    line = line.strip()
    if not _SAFE.fullmatch(line):
        odd = next(c for c in line if not _SAFE.fullmatch(c))
        raise CaseError(f"a case line is one token of letters, digits and _-.,:=/+@%; found {odd!r} in {line!r}")
    found, *words = line.split(",")
    if found != version:
        raise CaseError(f"the line is of version {found!r}; expected {version}, the only one this program reads")
    texts: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise CaseError(f"{word!r} is no field; expected name=value")
        if name not in names:
            raise CaseError(f"no field is called {name!r} (in {word!r}); expected one of {', '.join(names)}")
        if name in texts:
            raise CaseError(f"{name} is given twice; expected once")
        texts[name] = text
    return texts


def _read(name: str, text: str) -> object:
    if name == "edits":
        return tuple(Edit.parse(part) for part in text.split("/"))
    if name in _INTEGERS:
        if not re.fullmatch("[0-9]+", text):
            low, high = _INTEGERS[name]
            raise CaseError(f"{name} is {text!r}; expected an integer in {low}..{high}")
        return int(text)
    return text


_INTEGERS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("B", "N", "H", "DK", "DV", "C", "block_DV", "threads"), (1, 2**31 - 1)),
    "num_stages": (0, 2**31 - 1),
    "seed": (0, 2**64 - 1),
}
_FIELDS: dict[str, object] = {f.name: f.default for f in fields(Case)}
