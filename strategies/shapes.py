"""Sizes and tiles, leaning to the borders where kernels break: one token, one chunk, one more or less, odd heads."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st

from kda.problem import Sizes
from kda.support import Support, TileChoice
from strategies._pick import pick

__all__ = ["sizes", "tiles", "token_counts"]


@lru_cache(maxsize=256)
def _residues(C: int) -> tuple[int | None, ...]:
    # N modulo C: left alone, at a border (1, 2, C-1, 0) about every third time, or any.
    borders = [r % C for r in (1, 2, -1, 0)]
    return (*[None] * (1 + C // 4), *borders * (1 + C // 6), *range(C))


@st.composite
def token_counts(draw: st.DrawFn, C: int, max_tokens: int = 128, *, min_tokens: int = 1) -> int:
    """N for a chunk length C, min_tokens..max_tokens: every residue, leaning to 1, 2, mC-1, mC, mC+1.

    Shrinks towards min_tokens, whatever number of tokens, residue or number of chunks a failure needs.
    """
    # Few chunks often: three reach a carry that was itself carried, more than that mostly cost time. The widest range
    # comes first, so that a shrinker may widen it and then change C and N freely.
    reach = draw(pick((max_tokens, 4 * C, 4 * C, 2 * C)))
    N = draw(st.integers(min_tokens, max(min_tokens, min(reach, max_tokens))))
    residue = draw(pick(_residues(C)))
    if residue is None:
        return N
    # Down, never up: when N has shrunk as far as the residue lets it, leaving it alone gives the same N, and from there
    # it can shrink on by single tokens.
    lower = N - (N - residue) % C
    return lower if lower >= max(min_tokens, C - 1) else N


@lru_cache(maxsize=64)
def _free(largest: int) -> tuple[int, ...]:
    powers = [p for p in (1, 2, 4, 8, 16, 32, 64, 128) if p <= largest]
    return tuple(sorted([*range(1, largest + 1), *powers * (1 + largest // 8)]))


@st.composite
def tiles(draw: st.DrawFn, support: Support) -> TileChoice:
    """A tile from the palette of `support`, the first the simplest; without one any DK, DV, C up to its maxima."""
    if support.tiles is not None:
        return draw(pick(support.tiles))
    return TileChoice(
        DK=draw(pick(_free(support.max_DK))), DV=draw(pick(_free(support.max_DV))), C=draw(pick(_free(support.max_C)))
    )


@st.composite
def sizes(draw: st.DrawFn, support: Support, tile: TileChoice, *, min_tokens: int = 1) -> Sizes:
    """B, N, H for a tile: N as `token_counts` has it, B and H from 1 up to the maxima of `support` (3: odd heads)."""
    N = draw(token_counts(tile.C, support.max_tokens, min_tokens=min_tokens))
    B = draw(st.integers(1, support.max_batch))
    H = draw(st.integers(1, support.max_heads))
    return Sizes(B, N, H, tile.DK, tile.DV)
