"""Only on CUDA: a CPU program has one lane, and nothing is under way while it computes."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import Mistake
from kda.mutation.rewrite import Edit
from kda.support import TileChoice

__all__ = ["CUDA"]

CUDA = (
    Mistake(
        "barriers-removed",
        "the lanes of a program do not wait for each other",
        "tilelang #2699, cuLA #77",
        compile=(
            Edit(
                "the passes for CUDA",
                "CUDA_PASSES = _p",
                "CUDA_PASSES = {'tl.disable_warp_specialized': True, 'tl.disable_thread_storage_sync': True}",
                function="",
            ),
        ),
        tile=TileChoice(64, 64, 64, 64),  # of 128 lanes; those of one warp hardly need a barrier
        dtype="f16",
        tokens=130,
        targets=("cuda",),
    ),
    Mistake(
        "buffer-overwritten-while-read",
        "with the pipeline split over warps, a tile is refilled for the next chunk while the solve still reads it",
        "docs/kernel.md (TileLang 0.1.15)",
        compile=(Edit("the passes for CUDA", "CUDA_PASSES = _p", "CUDA_PASSES = {}", function=""),),
        tile=TileChoice(16, 32, 16, 16, num_stages=1),
        tokens=33,
        targets=("cuda",),
    ),
    Mistake(
        "offsets-in-int32",
        "offsets are computed in 32 bits and wrap around beyond 2^31 elements",
        "FLA #692, #733, #1082",
        compile=(
            Edit(
                "the compiler",
                "tl = tilelang()",
                "tl = tilelang()\n"
                "tl.disable_cache()\n"
                "tl.engine.register_cuda_postproc(lambda code, target: code.replace('(int64_t)', '(int)'))",
                function="compile_program",
            ),
        ),
        law="machine.offsets_reach_beyond_31_bits",
        dtype="f16",
        tokens=8192,
        members=8192,
        targets=("cuda",),
    ),
)
