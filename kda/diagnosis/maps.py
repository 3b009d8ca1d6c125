"""Heat maps as data: an array per layer, where it was cut out of a larger one, and where chunks and blocks begin."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["MOST", "Axis", "heat_map"]

#: The most rows, and columns, of one map; of larger arrays the neighbourhood of the worst cell is kept.
MOST = 128


@dataclass(frozen=True)
class Axis:
    """One axis of a map: what it counts ("token"), and in what lengths it is divided ("chunk", 16), if it is."""

    word: str
    part: str = ""
    length: int = 0


def heat_map(
    title: str,
    rows: Axis,
    columns: Axis,
    layers: Mapping[str, np.ndarray],
    worst: tuple[int, int] = (0, 0),
) -> dict[str, object]:
    """A map for the page: its layers `[rows, columns]`, by name, cut to `MOST` around `worst`; JSON without NaN."""
    shape = next(iter(layers.values())).shape
    cut = [_cut(size, at) for size, at in zip(shape, worst, strict=True)]
    cropped = [
        f"{axis.word}s {kept.start}..{kept.stop - 1} of {size}"
        for axis, kept, size in zip((rows, columns), cut, shape, strict=True)
        if kept.stop - kept.start < size
    ]
    return {
        "title": title,
        "rows": _axis(rows, cut[0]),
        "columns": _axis(columns, cut[1]),
        "note": f"around the worst cell: {', '.join(cropped)}" if cropped else "",
        "layers": {name: _packed(layer[cut[0], cut[1]]) for name, layer in layers.items()},
    }


def _cut(size: int, worst: int) -> slice:
    start = min(max(0, worst - MOST // 2), max(0, size - MOST))
    return slice(start, min(size, start + MOST))


def _axis(axis: Axis, kept: slice) -> dict[str, object]:
    return {
        "word": axis.word,
        "part": axis.part,
        "length": axis.length,
        "first": kept.start,
        "count": kept.stop - kept.start,
    }


def _packed(values: np.ndarray) -> str:
    """Little-endian float64, bytes for truth values, in base64: exact, NaN and infinities too."""
    dtype = "u1" if values.dtype == bool else "<f8"
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")
