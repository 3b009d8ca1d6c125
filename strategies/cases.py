"""Whole cases, narrowed to what an implementation supports by construction, never by rejection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

from hypothesis import strategies as st

from kda.case import Case, Edit, Kind
from kda.formats import Format
from kda.problem import Sizes
from kda.support import Support, TileChoice
from strategies._pick import pick
from strategies.betas import betas as beta_kinds
from strategies.betas import strong_betas
from strategies.gates import SLOW, SLOW_NAMES
from strategies.gates import gates as gate_kinds
from strategies.shapes import tiles, token_counts
from strategies.states import states as state_kinds
from strategies.vectors import alike_keys, reading_queries
from strategies.vectors import keys as key_kinds
from strategies.vectors import queries as query_kinds
from strategies.vectors import values as value_kinds

__all__ = ["SIMPLE_EDITS", "GatesFor", "Palette", "Piece", "cases", "edits", "far_cases", "lattice_cases"]

#: How a law narrows one tensor: the names of the kinds it wants, or a strategy that draws the kind; None for all.
Piece: TypeAlias = Sequence[str] | st.SearchStrategy[Kind] | None

#: What makes the strategy of gates of (C, the domain's total, tokens=N), as `strategies.gates` does.
GatesFor: TypeAlias = Callable[..., st.SearchStrategy[Kind]]

#: The values an edit may set, per tensor.
Palette: TypeAlias = Mapping[str, tuple[float, ...]]

#: q and k at most 1 in size, for a delta rule with longer keys runs away; g only 0, which keeps any gate domain.
SIMPLE_EDITS: Palette = {
    "v": (0.0, 1.0, -1.0, 0.5, 2.0, 4.0),
    "beta": (0.0, 1.0, 0.5),
    "k": (0.0, 1.0, -1.0, 0.5),
    "q": (0.0, 1.0, -1.0, 0.5),
    "g": (0.0,),
    "state": (0.0, 1.0, -1.0, 0.5, 2.0, 4.0),
}
_LATTICE: Palette = {
    "v": (0.0, 1.0, -1.0, 2.0),
    "beta": (0.0, 1.0),
    "g": (0.0,),
    "state": (0.0, 1.0, -1.0, 2.0),
}
_MAX_EDITS = 3
_ONE_PLACE = st.booleans()
_SEEDS = st.integers(0, 2**32 - 1)
# Alike keys, slow decay and strong writes make a triangular solve hard, and only together; drawn apart they meet, in a
# full chunk, in one case of fifty, and at C = 64 in one of two hundred. Every fifth case draws them together, which is
# one with a full chunk in eight to twelve. N stays a draw of its own, so that it shrinks as in any other case.
_TOGETHER = pick((False, False, False, False, True))


@st.composite
def edits(draw: st.DrawFn, sizes: Sizes, palette: Palette = SIMPLE_EDITS) -> Edit:
    """One edit of a tensor in `palette` (of q, k, v, g, beta, state): a place within `sizes`, a value listed there.

    Shrinks to the first value of the first tensor, at token 0, channel 0, in every batch and head.
    """
    tensor = draw(pick(tuple(palette)))
    at = [draw(st.integers(0, sizes.B - 1)), draw(st.integers(0, sizes.H - 1))] if draw(_ONE_PLACE) else []
    at.append(draw(st.integers(0, (sizes.DK if tensor == "state" else sizes.N) - 1)))
    if tensor != "beta":
        at.append(draw(st.integers(0, (sizes.DV if tensor in ("v", "state") else sizes.DK) - 1)))
    return Edit(tensor, tuple(at), draw(pick(palette[tensor])))


# `edits` is also the name of a switch below.
_edits = edits


# A strategy object costs more to build than to draw from, so those that depend on what was drawn are kept.
_kept_tokens = lru_cache(maxsize=256)(token_counts)
_kept_gates = lru_cache(maxsize=4096)(gate_kinds)
_kept_keys = lru_cache(maxsize=1024)(key_kinds)


@lru_cache(maxsize=8192)
def _kept_edits(sizes: Sizes, palette: tuple[tuple[str, tuple[float, ...]], ...]) -> st.SearchStrategy[list[Edit]]:
    return st.lists(_edits(sizes, dict(palette)), max_size=_MAX_EDITS)


def _names(piece: Piece) -> tuple[str, ...] | None:
    return None if piece is None or isinstance(piece, st.SearchStrategy) else tuple(piece)


def _gates_for(support: Support, piece: Piece) -> GatesFor:
    if isinstance(piece, st.SearchStrategy):
        return lambda C, total, tokens: piece
    return partial(_kept_gates, per_token=support.max_token_gate, names=_names(piece))


def cases(
    support: Support,
    dtype: Format | None = None,
    *,
    gates: Piece | GatesFor = None,
    betas: Piece = None,
    keys: Piece = None,
    queries: Piece = None,
    values: Piece = None,
    states: Piece = None,
    min_tokens: int = 1,
    window: int | None = None,
    edits: bool | Palette = True,
) -> st.SearchStrategy[Case]:
    """A case that `support` can run; structure only, the arrays come from `Case.inputs`.

    dtype: this format instead of any that is supported. gates, betas, keys, queries, values, states: the kinds to draw
    from, by name or by strategy (a strategy keeps to the domain itself); gates also by a function, see `GatesFor`.
    min_tokens: the smallest N. window: tokens over which the gate domain must hold, C (or a sub-chunk) unless given (a
    law that varies C gives its largest). edits: whether up to three sparse edits are added, or the values they may set
    per tensor. Where the narrowing allows it, every fifth case has the kinds that make the triangular solve hard.

    Shrinks to one token, one head, no decay, beta one, one-hot q and k, v ones, no state, no edits, seed 0.
    """
    pieces: dict[str, Piece] = {"beta": betas, "q": queries, "k": keys, "v": values, "state": states}
    if not support.initial_state:
        pieces["state"] = ("none",)
    ready = {name: piece for name, piece in pieces.items() if isinstance(piece, st.SearchStrategy)}
    ready.setdefault("beta", beta_kinds(support.max_beta, names=_names(betas)))
    ready.setdefault("q", query_kinds(names=_names(queries)))
    ready.setdefault("v", value_kinds(names=_names(values)))
    ready.setdefault("state", state_kinds(names=_names(pieces["state"])))
    return _cases(
        support,
        pick(support.dtypes if dtype is None else (dtype,)),
        tiles(support),
        min_tokens,
        window,
        ready,
        gates if callable(gates) else _gates_for(support, gates),
        _names(keys),
        None if callable(gates) else _hard_solves(support, {**pieces, "gate": gates}, ready),
        {} if edits is False else SIMPLE_EDITS if edits is True else edits,
    )


@dataclass(frozen=True)
class _HardSolves:
    """The kinds of cases whose triangular solve is hard, as far as a law's narrowing leaves them."""

    gates_for: GatesFor
    ready: Mapping[str, st.SearchStrategy[Kind]]


def _hard_solves(
    support: Support, pieces: Mapping[str, Piece], ready: Mapping[str, st.SearchStrategy[Kind]]
) -> _HardSolves | None:
    """None where the gate, beta or keys that it takes are none of this law's."""
    if any(isinstance(pieces[name], st.SearchStrategy) for name in ("gate", "beta", "k")):
        return None
    allowed = _names(pieces["gate"])
    gates = tuple(name for name in SLOW_NAMES if allowed is None or name in allowed)
    betas = strong_betas(support.max_beta, names=_names(pieces["beta"]))
    keys = alike_keys(names=_names(pieces["k"]))
    if not gates or betas is None or keys is None:
        return None
    kinds = {**ready, "beta": betas, "k": keys}
    queries = reading_queries(names=_names(pieces["q"]))
    if queries is not None and not isinstance(pieces["q"], st.SearchStrategy):
        kinds["q"] = queries
    return _HardSolves(partial(_kept_gates, per_token=min(support.max_token_gate, SLOW), names=gates), kinds)


@st.composite
def _cases(
    draw: st.DrawFn,
    support: Support,
    dtypes: st.SearchStrategy[Format],
    tile_choices: st.SearchStrategy[TileChoice],
    min_tokens: int,
    window: int | None,
    ready: Mapping[str, st.SearchStrategy[Kind]],
    gates_for: GatesFor,
    key_names: tuple[str, ...] | None,
    hard: _HardSolves | None,
    palette: Palette,
) -> Case:
    dtype = draw(dtypes)
    tile = draw(tile_choices)
    N = draw(_kept_tokens(tile.C, support.max_tokens, min_tokens=min_tokens))
    B = draw(st.integers(1, support.max_batch))
    H = draw(st.integers(1, support.max_heads))
    # The seed comes before the kinds: their draws vary in number, and a seed that moves with them is lost in shrinking.
    seed = draw(_SEEDS)
    # One draw, and as many after it as without: so a case shrinks out of these kinds as out of any other.
    if hard is not None and draw(_TOGETHER):
        gates_for, ready = hard.gates_for, hard.ready
    kinds = {
        "gate": draw(gates_for(window or support.gate_window(tile.C), support.max_total_gate(dtype), tokens=N)),
        "beta": draw(ready["beta"]),
        "q": draw(ready["q"]),
        "k": draw(ready.get("k", _kept_keys(N, names=key_names))),
        "v": draw(ready["v"]),
        "state": draw(ready["state"]),
    }
    values = dict(palette)
    if kinds["state"].name == "none":
        values.pop("state", None)
    if support.max_beta > 1 and "beta" in values:
        values["beta"] += (support.max_beta,)
    return Case(
        B=B,
        N=N,
        H=H,
        DK=tile.DK,
        DV=tile.DV,
        C=tile.C,
        block_DV=tile.block_DV,
        dtype=dtype,
        threads=tile.threads,
        num_stages=tile.num_stages,
        seed=seed,
        edits=tuple(draw(_kept_edits(Sizes(B, N, H, tile.DK, tile.DV), tuple(values.items())))) if values else (),
        **kinds,
    )


def lattice_cases(
    support: Support, dtype: Format | None = None, *, min_tokens: int = 1, window: int | None = None
) -> st.SearchStrategy[Case]:
    """A case whose exact result is representable: one-hot q and k, beta 0 or 1, g 0 or -ln 2, small integers.

    Arguments as in `cases`. How many halvings a format still holds is for a certificate to say, not for this strategy.
    """
    return cases(
        support,
        dtype,
        gates=("none", "powers"),
        betas=("one", "binary", "zero"),
        keys=("onehot", "onehot_random"),
        queries=("onehot", "onehot_random"),
        values=("ones", "onehot", "small_int"),
        states=("none", "zeros", "ones", "small_int"),
        min_tokens=min_tokens,
        window=window,
        edits=_LATTICE,
    )


def far_cases(support: Support, dtype: Format | None = None) -> st.SearchStrategy[Case]:
    """The one case whose q, k and v have more than 2^31 elements each; only its sizes and its tile mean anything."""
    tile = support.tiles[0] if support.tiles else TileChoice(DK=16, DV=16, C=16)
    case = tile.of(Case(B=8192, H=4, dtype=dtype or support.dtypes[0]))
    return st.just(case.replace(N=2**31 // (case.B * case.H * tile.DK) + 4))
