"""`launch`: one checked `Call` on the portable program of `kda_forward`, on the CPU or on CUDA."""

from __future__ import annotations

from kda.kernels.form import Call
from kda.problem import Tile

__all__ = ["launch"]


def launch(call: Call, tile: Tile | None = None) -> None:
    """Compute `call` into its o and final_state, on the current stream, without synchronising.

    tile: None for the one that `TILES` gives.
    """
    raise NotImplementedError
