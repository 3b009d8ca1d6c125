"""2^x as a TileLang kernel computes it on a target: the mirror borrows it, so that both have the same e^gamma.

`exp2f` of the C library and `ex2` of a GPU are off by up to two units in the last place, each in its own way.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tilelang.language as T
import torch

from kda.formats import F32
from kda.kernels.compile import compile_program
from kda.kernels.dialect import ACCUM, CpuDialect, CudaDialect, Dialect

__all__ = ["exp2_on"]

_BLOCK = 128


def exp2_on(target: str, x: np.ndarray) -> np.ndarray:
    """2^x of a float32 array of any shape, on `target` ("c" or "cuda")."""
    if x.size == 0:  # CUDA launches no empty grid
        return np.empty(x.shape, np.float32)
    flat = torch.zeros(-(-x.size // _BLOCK) * _BLOCK, dtype=torch.float32)
    flat[: x.size] = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32).reshape(-1))
    # Queued before the launch: the copy back is the one thing that is waited for.
    source = flat.to("cuda" if target == "cuda" else "cpu", non_blocking=True)
    result = torch.empty_like(source)
    _kernel(target)(source, result)
    return result.cpu().numpy()[: x.size].reshape(x.shape)


@functools.cache
def _kernel(target: str) -> Any:
    on: Dialect = CpuDialect(F32) if target == "c" else CudaDialect(F32, _BLOCK)

    def exponential() -> Any:
        size = T.dynamic("size")

        @T.prim_func
        def program(X: T.Tensor([size], ACCUM), Y: T.Tensor([size], ACCUM)):
            with on.launch(size // _BLOCK) as block:
                for i in on.parallel(_BLOCK):
                    Y[block * _BLOCK + i] = T.exp2(X[block * _BLOCK + i])

        return program

    return compile_program(exponential, target)
