"""`launch`: one checked `Call` on the portable program of `kda_forward`, on the CPU or on CUDA."""

from __future__ import annotations

import functools

from kda.formats import Format
from kda.kernels.form import Call
from kda.kernels.launch import FORWARD, OUTPUT, SHARED_MEMORY, compiled_kernel, execute, parameters
from kda.problem import InputError, Tile

__all__ = ["TILES", "launch", "tile_for"]

#: (C, block_DV) by target, the best first; the first that fits is taken. It depends on nothing but DK, DV and the
#: operand format, so that a sequence gives the same bits alone, in a batch and among others of any length.
TILES: dict[str, tuple[tuple[int, int], ...]] = {
    "cuda": ((32, 64), (32, 32), (32, 16), (16, 64), (16, 32), (16, 16)),
    "c": ((16, 128), (16, 64), (16, 32), (16, 16)),
}


@functools.cache
def tile_for(operand: Format, DK: int, DV: int, target: str) -> Tile:
    """The tile that `launch` takes: block_DV divides DV, and on CUDA a program's tiles fit its shared memory.

    Raises InputError where DK or DV is none that the program can be compiled for.
    """
    for name, channels in (("DK", DK), ("DV", DV)):
        if channels % 16 or not 16 <= channels <= FORWARD.max_channels:
            raise InputError(f"{name} is {channels}; expected a multiple of 16 from 16 to {FORWARD.max_channels}")
    tiles = (Tile(C, block_DV, operand) for C, block_DV in TILES[target] if DV % block_DV == 0)
    return next(tile for tile in tiles if target == "c" or FORWARD.shared_memory(tile, DK) <= SHARED_MEMORY)


def launch(call: Call, tile: Tile | None = None) -> None:
    """Compute `call` into its o and final_state, on the current stream, without synchronising.

    tile: None for that of `tile_for`; its dtype is the form's. Nothing is allocated, but on a CPU a float32 copy of
    what is bfloat16. Raises InputError for channels that no tile fits.
    """
    form, DK, DV = call.form, call.q.shape[-1], call.v.shape[-1]
    target = "cuda" if call.q.is_cuda else "c"
    tile = tile or tile_for(form.operand, DK, DV, target)
    if call.sequences == 0:  # a grid has one program at least
        return
    if call.q.shape[0] == 0:  # nor has a tensor without elements an address
        call.hand_states_on()
        return
    kernel = compiled_kernel(tile, DK, DV, target, kernel=FORWARD, form=form)
    execute(kernel, parameters(call), OUTPUT)
