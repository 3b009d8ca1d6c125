"""`launch`: one checked `Call` on the program that goes token by token, on the CPU or on CUDA."""

from __future__ import annotations

import functools

from kda.formats import Format
from kda.kernels import bounds
from kda.kernels import compile as compiling
from kda.kernels.form import Call
from kda.kernels.launch import OUTPUT, Kernel, Program, compiled_kernel, execute, parameters
from kda.problem import InputError, Tile
from kda.references.prologue import NORM_PART

__all__ = ["AT_ONCE", "STEPS", "launch", "shared_memory_steps", "tile_for", "with_threads"]

#: Tokens that a program loads at once: where sequences have one token, on average, and where they have more.
AT_ONCE = (1, 8)
#: Value channels of one program by target, the best first.
BLOCKS_DV: dict[str, tuple[int, ...]] = {"cuda": (64, 32, 16), "c": (64, 32, 16)}
#: Lanes per value channel of a block on CUDA: each has four channels, and shares them with seven others.
LANES = 2


def shared_memory_steps(tile: Tile, DK: int) -> int:
    """Bytes of shared memory of one program on CUDA: the tiles of kda/kernels/steps.py, added up."""
    partial_sums = 8 * 16 * (tile.block_DV // 16 | 1)
    return 4 * tile.C * (3 * DK + tile.block_DV + 1 + partial_sums + 2 * DK // NORM_PART)


STEPS = Kernel("kda_steps", "steps", 256, None, shared_memory_steps, None)


def with_threads(tile: Tile) -> Tile:
    """`tile` with the threads that its block of value channels has on CUDA."""
    return Tile(tile.C, tile.block_DV, tile.dtype, LANES * tile.block_DV)


@functools.cache
def tile_for(operand: Format, DK: int, DV: int, target: str, heads: int, tokens: float, multiprocessors: int) -> Tile:
    """The tile that `launch` takes. heads: value heads of all sequences; tokens: of a sequence, on average.

    On CUDA the widest block that gives every multiprocessor a program, or the narrowest; no bit hangs on it. Raises
    InputError where DK or DV is none that the program can be compiled for.
    """
    for name, channels in (("DK", DK), ("DV", DV)):
        if channels % 16 or not 16 <= channels <= STEPS.max_channels:
            raise InputError(f"{name} is {channels}; expected a multiple of 16 from 16 to {STEPS.max_channels}")
    widths = [width for width in BLOCKS_DV[target] if DV % width == 0]
    width = next((w for w in widths if target == "c" or DV // w * heads >= multiprocessors), widths[-1])
    return with_threads(Tile(AT_ONCE[tokens > 1], width, operand))


def launch(call: Call, tile: Tile | None = None, program: Program | None = None, check_tiles: bool = False) -> None:
    """Compute `call` into its o and final_state, on the current stream, without synchronising.

    tile: None for that of `tile_for`; its dtype is the form's. program: an edited copy of `kda_steps` to launch in its
    place. check_tiles: on a CPU, check every index into the program's own tiles; TileError, after the launch, where one
    is outside. Nothing is allocated, but on a CPU a float32 copy of what is bfloat16. Raises InputError for channels
    that it does not take.
    """
    form, DK, (tokens, HV, DV) = call.form, call.q.shape[-1], call.v.shape
    target = "cuda" if call.q.is_cuda else "c"
    if call.sequences == 0:  # a grid has one program at least
        return
    if tokens == 0:  # nor has a tensor without elements an address
        call.hand_states_on()
        return
    if tile is None:
        places = compiling.multiprocessors(call.q.device) if call.q.is_cuda else 1
        short = tokens <= call.sequences
        tile = tile_for(form.operand, DK, DV, target, HV * call.sequences, 1 if short else 2, places)
    kernel = compiled_kernel(tile, DK, DV, target, program, check_tiles, STEPS, form)
    if check_tiles:
        bounds.forget()
    execute(kernel, parameters(call), OUTPUT)
    outside = bounds.seen(kernel.get_kernel_source()) if check_tiles else None
    if outside is not None:
        raise bounds.TileError(outside)
