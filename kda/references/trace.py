"""What the mirror computed on the way: every named intermediate of every chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kda.problem import Sizes

__all__ = ["STAGES", "ChunkTrace", "Recorder", "Trace"]

#: The intermediates, in the order in which a kernel makes them; the first stage that is wrong is where it went wrong.
STAGES: tuple[str, ...] = ("gamma", "M", "L", "A_qk", "W", "U", "V_tilde", "o", "S")

_PER_VALUE_CHANNEL = ("U", "V_tilde", "o", "S")


@dataclass(frozen=True)
class ChunkTrace:
    """The intermediates of one chunk, tokens start..stop-1, for every batch and head; C = stop - start.

    values: stage (one of `STAGES`) -> float64 array. gamma, W: `[B, H, C, DK]`; M (strictly lower), L, A_qk:
    `[B, H, C, C]`; U, V_tilde, o: `[B, H, C, DV]`; S: `[B, H, DK, DV]`, the state after the chunk.
    """

    chunk: int
    start: int
    stop: int
    values: dict[str, np.ndarray]


#: Called with each chunk in turn; `seen.append` collects them in a list.
Trace = Callable[[ChunkTrace], object]


class Recorder:
    """Puts chunks together from programs that each see some heads and some value channels."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._chunks: dict[int, ChunkTrace] = {}

    def put(
        self, chunk: int, rows: slice, head: tuple[int | slice, int | slice], dv: slice, **values: np.ndarray
    ) -> None:
        """File `values` of one program: tokens `rows`, the (batch, head) it ran and its value channels `dv`."""
        seen = self._chunks.setdefault(chunk, ChunkTrace(chunk, rows.start, rows.stop, {}))
        for stage, value in values.items():
            per_value_channel = stage in _PER_VALUE_CHANNEL
            if stage not in seen.values:
                columns = self._sizes.DV if per_value_channel else value.shape[-1]
                seen.values[stage] = np.zeros((self._sizes.B, self._sizes.H, value.shape[-2], columns))
            seen.values[stage][(*head, slice(None), dv if per_value_channel else slice(None))] = value

    def replay(self, trace: Trace) -> None:
        """Hand every chunk to `trace`, in order."""
        for chunk in sorted(self._chunks):
            trace(self._chunks[chunk])
