"""A case as zeros and single numbers: every tensor zero but for edits, which can be taken away one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from kda.case import Case, Edit
from kda.kinds import FIELDS
from kda.problem import AXES, Inputs, Tile

__all__ = ["ZERO", "active_tokens", "case_of", "cut_out", "explicit", "numbers", "token_of"]

#: The kinds of each field that hold nothing but zeros; the second is for laws that are about some kinds alone.
ZERO: dict[str, tuple[str, ...]] = {
    "state": ("zeros",),
    "gate": ("none", "spike:0:0.0"),
    "beta": ("zero", "constant:0.0"),
    "k": ("zeros",),
    "q": ("zeros",),
    "v": ("zeros",),
}


def explicit(case: Case, field: str, zero: str) -> Case:
    """The same inputs, `field` (of a case: gate, beta, q, k, v, state) of kind `zero`, one edit per other number."""
    tensor = "g" if field == "gate" else field
    array = getattr(case.inputs(), FIELDS[field])
    others = tuple(edit for edit in case.edits if edit.tensor != tensor)
    if array is None:
        return case
    return case.replace(edits=()).replace(**{field: zero}, edits=(*others, *_edits(tensor, array)))


def case_of(inputs: Inputs, tile: Tile) -> Case:
    """The case of `inputs` at `tile`, all of it zeros and edits; CaseError where a number is none a case may hold."""
    sizes = inputs.sizes
    kinds = {field: zeros[0] for field, zeros in ZERO.items()}
    if inputs.initial_state is None:
        kinds["state"] = "none"
    edits = [
        edit for name, array in inputs.tensors() for edit in _edits("state" if name == "initial_state" else name, array)
    ]
    return Case(
        sizes.B, sizes.N, sizes.H, sizes.DK, sizes.DV, tile.C, tile.block_DV, inputs.dtype, tile.threads,
        tile.num_stages, edits=tuple(edits), **kinds,  # type: ignore[arg-type]
    )  # fmt: skip


def _edits(tensor: str, array: np.ndarray) -> Iterable[Edit]:
    axes = AXES["initial_state" if tensor == "state" else tensor]
    order = sorted(range(len(axes)), key=lambda i: ["B", "H", "N", "DK", "DV"].index(axes[i]))
    for at in np.argwhere(array):
        yield Edit(tensor, tuple(int(at[i]) for i in order), float(array[tuple(at)]))


def token_of(edit: Edit) -> int | None:
    """The token that an edit is about; None for one of the state."""
    return None if edit.tensor == "state" else edit.index[edit.axes.index("N")]


def numbers(inputs: Inputs) -> dict[str, int]:
    """How many numbers of each tensor are not zero."""
    return {name: int(np.count_nonzero(array)) for name, array in inputs.tensors()}


def active_tokens(inputs: Inputs) -> int:
    """How many tokens have anything but zeros in q, k, v, g or beta of some batch and head."""
    active = np.zeros(inputs.sizes.N, dtype=bool)
    for name, array in inputs.tensors():
        if name != "initial_state":
            active |= array.any(axis=tuple(i for i, axis in enumerate(AXES[name]) if axis != "N"))
    return int(active.sum())


def cut_out(case: Case, axis: str, start: int, stop: int) -> Case:
    """Without the indices start..stop-1 of an axis (B, N or H): what is edited there goes, later edits move up."""
    kept = []
    for edit in case.edits:
        at = dict(zip(edit.axes, edit.index, strict=True))
        if not start <= at.get(axis, -1) < stop:
            moved = (i - (stop - start) if a == axis and i >= stop else i for a, i in at.items())
            kept.append(replace(edit, index=tuple(moved)))
    size = getattr(case, axis) - (stop - start)
    return case.replace(edits=()).replace(**{axis: size}, edits=tuple(kept))
