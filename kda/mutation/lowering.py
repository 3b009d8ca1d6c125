"""Which mutants are programs of their own: fingerprints of what TileLang makes of them, without compiling it.

The traced program takes 0.05 s and still tells `i + 1 - 1` from `i`; the generated code takes about a second and has
every such detour simplified away.

Either is of one tile, format and target, and so is what it calls the same. With float32 operands no rounding shows.
With float16 on a CPU, a rounding before a store does not, for the store converts; with bfloat16 there, no narrowed
allocation does. Mutants of those operators need a fingerprint of several formats put together.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kda.formats import F16
from kda.kernels.compile import CUDA_PASSES, Target, generated_source, tilelang
from kda.kernels.launch import CHUNK, FORWARD
from kda.mutation.operators import Generated
from kda.problem import Tile
from kda.source import module_from_source

__all__ = ["distinct", "lowered", "traced"]

#: All sizes differ, so that exchanged axes show, and so do the formats of operands and accumulators.
TILE = Tile(C=16, block_DV=32, dtype=F16)
DK, DV = 48, 64


def traced(source: str, function: str, target: Target = "c", tile: Tile = TILE, DK: int = DK, DV: int = DV) -> str:
    """The script of the program that `function` of the module `source` traces at one tile.

    Raises what the module or TileLang raises.
    """
    return _program(source, function, target, tile, DK, DV).script(show_meta=True)


def lowered(source: str, function: str, target: Target = "c", tile: Tile = TILE, DK: int = DK, DV: int = DV) -> str:
    """The C or CUDA source that TileLang generates for `function` of the module `source` at one tile.

    Raises what the module or TileLang raises.
    """
    program = _program(source, function, target, tile, DK, DV)
    return generated_source(program, target, {} if target == "c" else CUDA_PASSES)


def _program(source: str, function: str, target: Target, tile: Tile, DK: int, DV: int) -> Any:
    tilelang()
    from kda.kernels.dialect import CpuDialect, CudaDialect, Dialect, threads_for

    rows = FORWARD.rows if function == FORWARD.name else CHUNK.rows
    on: Dialect = CpuDialect(tile.dtype)
    if target == "cuda":
        on = CudaDialect(tile.dtype, tile.threads or threads_for(tile, DK, rows))
    stages = 0 if target == "c" else tile.num_stages
    module = module_from_source(source, f"{function} rewritten")
    with _quiet():
        return getattr(module, function)(on, DK, DV, tile.C, tile.block_DV, stages)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # TileLang logs the whole of a program that it refuses; the exception says enough.
    logger = logging.getLogger("tilelang.language.eager.builder")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def distinct(
    mutants: Iterable[Generated], original: str, function: str, fingerprint: Callable[[str], str]
) -> tuple[list[Generated], dict[str, str]]:
    """The mutants that are programs of their own, and for the others, by name, what they are the same as.

    original: the source they were made from; fingerprint: of a source, such as `traced` or `lowered` for `function`.
    The first of several with one fingerprint is kept, and so is each on which `fingerprint` raises: it is refused, not
    the same as another. ValueError where `fingerprint` raises on the original, for then nothing can be compared.
    """
    try:
        seen = {fingerprint(original): "the original's code"}
    except Exception as error:
        raise ValueError(
            f"{function} as it is has no fingerprint: {error}; expected an original that lowers"
        ) from error
    kept, same = [], {}
    for mutant in mutants:
        try:
            code = fingerprint(mutant.source)
        except Exception:
            kept.append(mutant)
            continue
        if code in seen:
            same[mutant.name] = f"lowers to {seen[code]}"
        else:
            seen[code] = f"the code of {mutant.name}"
            kept.append(mutant)
    return kept, same
