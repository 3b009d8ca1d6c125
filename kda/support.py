"""What an implementation supports: the cases it can be asked to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from kda.case import Case
from kda.formats import F64, Format
from kda.numerics.domain import gate_window

__all__ = ["Support", "TileChoice"]


@dataclass(frozen=True)
class TileChoice:
    """One entry of a palette: the sizes and the compile-time choices a kernel is compiled for."""

    DK: int
    DV: int
    C: int
    block_DV: int = 16
    threads: int | None = None
    num_stages: int = 0

    def of(self, case: Case) -> Case:
        """`case` with this tile (and its DK and DV)."""
        tile = {name: getattr(self, name) for name in ("DK", "DV", "C", "block_DV", "threads", "num_stages")}
        return case.replace(**tile)

    @property
    def id(self) -> str:
        """The choice in a few characters: `DK64-DV32-C32-bDV16`."""
        extra = ("" if self.threads is None else f"-t{self.threads}") + (
            f"-s{self.num_stages}" if self.num_stages else ""
        )
        return f"DK{self.DK}-DV{self.DV}-C{self.C}-bDV{self.block_DV}{extra}"


@dataclass(frozen=True)
class Support:
    """The cases an implementation can run.

    dtypes: operand formats, the simplest first. tiles: the palette, the simplest first; None where DK, DV and C are
    free, up to max_DK, max_DV and max_C. total_gates: the largest |sum of g| over one chunk, per format (a format left
    out has no limit), or over one sub-chunk of sub_C tokens where gamma starts anew at those; max_token_gate: the
    largest |g| of one token. pairs: whether the decay inside a (sub-)chunk is formed for each pair of tokens and not
    split. inverse: whether the triangular system is inverted, and decays multiplied, see `kda.numerics.budget.judge`.
    recurrent: whether it goes token by token and rounds o alone, see `kda.numerics.steps`.
    max_beta: 1 to 2. initial_state: whether one may be passed. max_tokens, max_batch, max_heads: the largest N,
    B and H worth asking for.
    """

    dtypes: tuple[Format, ...] = (F64,)
    tiles: tuple[TileChoice, ...] | None = None
    total_gates: Mapping[Format, float] = field(default_factory=dict, hash=False)
    sub_C: int | None = None
    pairs: bool = False
    inverse: bool = False
    recurrent: bool = False
    max_token_gate: float = inf
    max_beta: float = 1.0
    initial_state: bool = True
    max_tokens: int = 128
    max_batch: int = 3
    max_heads: int = 3
    max_DK: int = 32
    max_DV: int = 32
    max_C: int = 32

    def __post_init__(self) -> None:
        if not self.dtypes or (self.tiles is not None and not self.tiles):
            raise ValueError("an implementation supports at least one dtype and, unless tiles is None, one tile")
        if not 1 <= self.max_beta <= 2:
            raise ValueError(f"max_beta is {self.max_beta}; expected 1 <= max_beta <= 2")

    def max_total_gate(self, dtype: Format) -> float:
        """The largest |sum of g| over the tokens of one chunk, in any channel; inf where there is no limit."""
        return self.total_gates.get(dtype, inf)

    def gate_window(self, C: int) -> int:
        """The tokens over which the sum of g is limited, with chunks of C: C itself, or a shorter sub-chunk."""
        return gate_window(C, self.sub_C)

    def variants(self, case: Case, *fields: str) -> tuple[TileChoice, ...]:
        """The other tiles of the palette that differ from the case's in some of `fields`, and in nothing else."""
        tile = TileChoice(case.DK, case.DV, case.C, case.block_DV, case.threads, case.num_stages)
        return tuple(other for other in self.tiles or () if other != tile and _differ_in(tile, other, fields))

    def varying(self, *fields: str) -> Support:
        """Narrowed to the tiles that have variants in `fields`; ValueError where there are none."""
        kept = tuple(t for t in self.tiles or () if any(t != o and _differ_in(t, o, fields) for o in self.tiles or ()))
        return replace(self, tiles=kept)

    def varies(self, *fields: str) -> bool:
        """Whether some tiles of the palette differ in `fields` alone."""
        tiles = self.tiles or ()
        return any(t != o and _differ_in(t, o, fields) for t in tiles for o in tiles)

    def refuses(self, case: Case) -> str | None:
        """Why this implementation cannot run `case`, by its sizes, tile, dtype and state; None where it can.

        The gate and beta are not looked at: their domain is the implementation's own to check, on the values.
        """
        if case.dtype not in self.dtypes:
            return f"dtype is {case.dtype}; supported are {', '.join(map(str, self.dtypes))}"
        if self.tiles is not None:
            tile = TileChoice(case.DK, case.DV, case.C, case.block_DV, case.threads, case.num_stages)
            if tile not in self.tiles:
                return f"{tile.id} is not among the {len(self.tiles)} supported tiles"
        if not self.initial_state and case.state.name != "none":
            return f"state is {case.state}; an initial state is not supported"
        return None


def _differ_in(one: TileChoice, other: TileChoice, fields: tuple[str, ...]) -> bool:
    return replace(one, **{name: getattr(other, name) for name in fields}) == other
