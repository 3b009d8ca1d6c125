"""The few words in which a kernel for a CPU and a kernel for CUDA differ.

A kernel is written once, against a `Dialect`: how a program is launched, where a tile lives, how a loop over a tile is
spelled, which lane of the program this is, and how a value is rounded to the operand format. TileLang does the rest on
both targets.

On a CPU a program has one lane and every tile is a local array. On CUDA a program has `threads` lanes, what all of
them read is shared memory, and accumulators are fragments spread over their registers.
"""

from __future__ import annotations

from typing import Any

import tilelang.language as T

from kda.formats import F32, Format
from kda.problem import Tile

__all__ = ["CpuDialect", "CudaDialect", "Dialect"]

ACCUM = "float32"
#: Lanes of a warp from one of those that share sums to the next.
APART = 4


class Dialect:
    """What a kernel source may ask of its target. `tile.dtype` is the operand format, accumulators are float32."""

    #: Lanes (threads) of one program.
    lanes: int
    #: TileLang dtype of operand tiles and of q, k, v, o in global memory.
    operand: str

    def __init__(self, operand: Format) -> None:
        self.format = operand

    def stored(self, form: Format) -> str:
        """TileLang dtype in global memory of a tensor in the format `form`."""
        return form.name

    def launch(self, *grid: Any) -> Any:
        """The launch frame over `grid` programs."""
        raise NotImplementedError

    def lane(self) -> Any:
        """This lane's number, 0 <= lane < lanes."""
        raise NotImplementedError

    def shared(self, shape: list[int], dtype: str) -> Any:
        """A tile that every lane can read."""
        raise NotImplementedError

    def fragment(self, shape: list[int], dtype: str) -> Any:
        """An accumulator tile, spread over the lanes."""
        raise NotImplementedError

    def parallel(self, *extents: int) -> Any:
        """A loop over a tile whose iterations are independent; spread over the lanes."""
        raise NotImplementedError

    def steps(self, extent: Any) -> Any:
        """A loop whose iterations follow one another in each lane, and whose index may address registers."""
        raise NotImplementedError

    def vector(self, extent: int) -> Any:
        """A loop over consecutive numbers, which a lane moves at once."""
        raise NotImplementedError

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """X y + z in float32; where the target has such an instruction, rounded once."""
        raise NotImplementedError

    def share_sums(self, x: Any, member: Any, sums: Any) -> Any:
        """Add up x[0], ..., x[3] of eight lanes, of which this is number `member`: sums[0] is that of x[member % 4].

        The eight are APART lanes from one another. One lane alone has all sums already, and x and `sums` are the same.
        """
        raise NotImplementedError

    def spread_sums(self, x: Any, member: Any, sums: Any) -> Any:
        """Fill x[0], ..., x[3] with what the lanes of `share_sums` have in sums[0]."""
        raise NotImplementedError

    def round(self, value: Any) -> Any:
        """`value` rounded to nearest in the operand format."""
        return T.Cast(self.operand, value)

    def gemm(self, a: Any, b: Any, acc: Any, **options: Any) -> Any:
        """Acc (+)= a @ b on whole tiles, accumulated in float32."""
        return T.gemm(a, b, acc, **options)


class CpuDialect(Dialect):
    """One lane, local arrays, plain loops; compiled as C.

    The C target has no bfloat16. There, bf16 values travel in float32 arrays and `round` does the rounding to nearest
    even in integer arithmetic, so the numbers are those of bf16 hardware.
    """

    lanes = 1

    def __init__(self, operand: Format) -> None:
        super().__init__(operand)
        self.operand = self.stored(operand)

    def stored(self, form: Format) -> str:
        return "float32" if form.name == "bfloat16" else form.name

    def launch(self, *grid: Any) -> Any:
        return T.Kernel(*grid)

    def lane(self) -> Any:
        return 0

    def shared(self, shape: list[int], dtype: str) -> Any:
        return T.alloc_local(shape, dtype)

    def fragment(self, shape: list[int], dtype: str) -> Any:
        return T.alloc_local(shape, dtype)

    def parallel(self, *extents: int) -> Any:
        return T.grid(*extents)

    def steps(self, extent: Any) -> Any:
        return T.serial(extent)

    def vector(self, extent: int) -> Any:
        return T.serial(extent)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return z + x * y

    def share_sums(self, x: Any, member: Any, sums: Any) -> Any:
        return None

    def spread_sums(self, x: Any, member: Any, sums: Any) -> Any:
        return None

    def round(self, value: Any) -> Any:
        if self.format.name != "bfloat16":
            return T.Cast(self.operand, value)
        bits = T.reinterpret(value, "uint32")
        to_even = T.uint32(0x7FFF) + ((bits >> T.uint32(16)) & T.uint32(1))
        rounded = T.reinterpret((bits + to_even) & T.uint32(0xFFFF0000), "float32")
        return T.if_then_else(value != value, value, rounded)  # the carry would turn some NaNs into zeros


class CudaDialect(Dialect):
    """`threads` lanes, shared memory and fragments, tensor cores for 16-bit operands.

    float32 operands are multiplied on the ordinary cores, one product at a time: `T.gemm` would take them to tf32,
    which keeps 11 bits of 24.
    """

    def __init__(self, operand: Format, threads: int) -> None:
        super().__init__(operand)
        self.operand = operand.name
        self.lanes = threads

    def launch(self, *grid: Any) -> Any:
        return T.Kernel(*grid, threads=self.lanes)

    def lane(self) -> Any:
        return T.get_thread_binding(0)

    def shared(self, shape: list[int], dtype: str) -> Any:
        return T.alloc_shared(shape, dtype)

    def fragment(self, shape: list[int], dtype: str) -> Any:
        return T.alloc_fragment(shape, dtype)

    def parallel(self, *extents: int) -> Any:
        return T.Parallel(*extents)

    def steps(self, extent: Any) -> Any:
        return T.unroll(extent)

    def vector(self, extent: int) -> Any:
        return T.vectorized(extent)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return T.ieee_fmaf(x, y, z)

    def share_sums(self, x: Any, member: Any, sums: Any) -> Any:
        return _share_sums(x, member, sums)

    def spread_sums(self, x: Any, member: Any, sums: Any) -> Any:
        return _spread_sums(self.lane(), x, member, sums)

    def gemm(self, a: Any, b: Any, acc: Any, **options: Any) -> Any:
        if self.format is F32:
            return _gemm_float32(a, b, acc, **options)
        return T.gemm(a, b, acc, **options)


@T.macro
def _gemm_float32(a, b, acc, transpose_A=False, transpose_B=False, clear_accum=False):  # type: ignore[no-untyped-def]
    for i, j in T.Parallel(acc.shape[0], acc.shape[1]):
        if clear_accum:
            acc[i, j] = 0.0
        for inner in T.unroll(a.shape[0] if transpose_A else a.shape[1], unroll_factor=2):
            left = a[inner, i] if transpose_A else a[i, inner]
            right = b[j, inner] if transpose_B else b[inner, j]
            acc[i, j] = acc[i, j] + left * right


@T.macro
def _share_sums(x, member, sums):  # type: ignore[no-untyped-def]
    # A lane keeps half of what it has and gives the other half to the lane that keeps that one: 4 exchanges, not 12.
    for j in T.unroll(2):
        given = T.if_then_else(member & 2 == 0, x[j + 2], x[j])
        kept = T.if_then_else(member & 2 == 0, x[j], x[j + 2])
        x[j] = kept + T.shfl_xor(given, 2 * APART)
    given = T.if_then_else(member & 1 == 0, x[1], x[0])
    kept = T.if_then_else(member & 1 == 0, x[0], x[1])
    sums[0] = kept + T.shfl_xor(given, APART)
    sums[0] = sums[0] + T.shfl_xor(sums[0], 4 * APART)


@T.macro
def _spread_sums(lane, x, member, sums):  # type: ignore[no-untyped-def]
    for j in T.unroll(4):
        x[j] = T.shfl_sync(sums[0], lane + (j - member) * APART)


def threads_for(tile: Tile, DK: int, rows: int | None = None) -> int:
    """The default number of CUDA threads of a program whose products over a chunk have `rows` rows, C where None.

    A tensor-core product of an m x n tile gives each warp at least 16 rows and 8 columns, so the number of warps must
    split every product of the kernel that way; more than one lane per column of the solve is of no use.
    """
    products = [(rows or tile.C, tile.C), (tile.C, tile.block_DV), (DK, tile.block_DV)]
    columns = DK + tile.block_DV
    for warps in (8, 4, 2, 1):
        fits = all(any(_splits(m, n, rows, warps // rows) for rows in _divisors(warps)) for m, n in products)
        if fits and (warps == 1 or 32 * warps < 2 * columns):
            return 32 * warps
    return 32


def _splits(m: int, n: int, rows: int, columns: int) -> bool:
    return m % (16 * rows) == 0 and n % (8 * columns) == 0


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
