"""Gates that know no domain: from 0 to -1000 per token, about half of them outside whatever a kernel can compute."""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf

from hypothesis import strategies as st

from kda.border import breaking_case
from kda.case import Case, Kind
from kda.formats import Format
from kda.support import Support
from strategies._pick import pick, pick_name
from strategies.cases import SIMPLE_EDITS, Palette, cases

__all__ = ["breaking_cases", "wild_cases", "wild_gates"]

# `border` often: no other gate comes near enough to tell a border from one a little off.
_WEIGHTS = {
    "none": 1,
    "log": 4,
    "spike": 4,
    "border": 6,
    "alternating": 2,
    "head": 1,
    "shared": 1,
    "channel": 2,
    "uniform": 3,
    "softplus": 1,
    "bounded": 1,
}
#: |g| of one token, twenty to a decade, shallow first; -1000 is zero in every format and still far from float32's end.
_DEPTHS = tuple(float(f"{10 ** (e / 20):.3g}") for e in range(-80, 61))
_DEEPEST_DECAY = 700.0  # float64 holds e^-700
# |gamma| over the border: ever nearer, on both sides.
_FACTORS = (1.0, *(1 + sign * d for d in (0.1, 0.05, 0.01, 1e-3, 1e-4, 1e-5, 3e-6, 1e-6, 1e-7) for sign in (-1, 1)))
_NO_BORDER = 708.0  # where e^-|gamma| leaves the normal numbers of float64; the border to try when nothing sets one
_EDITS: Palette = {**SIMPLE_EDITS, "g": (0.0, -1.0, -10.0, -100.0, -1000.0)}


@lru_cache(maxsize=1024)
def _depths(border: float) -> tuple[float, ...]:
    # As many beyond the border as before it, and the abyss often: there e^-gamma is infinite and e^gamma 0 at once.
    deep = tuple(depth for depth in _DEPTHS if depth >= min(border, _DEPTHS[-1]))
    shallow = len(_DEPTHS) - len(deep)
    return (*_DEPTHS[:shallow], *deep * max(1, shallow // len(deep)), *_DEPTHS[-1:] * 6)


@lru_cache(maxsize=4096)
def _deeper(depth: float) -> tuple[float, ...]:
    return (depth, *(d for d in _DEPTHS if depth < d <= _DEEPEST_DECAY))


def _decay(depth: float) -> float:
    return float(f"{exp(-depth):.4g}")


@lru_cache(maxsize=1024)
def _places(C: int, tokens: int) -> tuple[int, ...]:
    # Any token, but about every second time the first, the middle, the last or one beside a chunk's border.
    borders = [t for t in (0, tokens - 1, tokens // 2, C - 1, C, 2 * C - 1, 2 * C) if t < tokens]
    return (*range(tokens), *borders * (1 + tokens // len(borders)))


@st.composite
def wild_gates(draw: st.DrawFn, C: int, border: float = inf, *, tokens: int = 1) -> Kind:
    """A gate kind of any depth down to -1000 per token, whatever an implementation can compute.

    border: the |sum of g| over a chunk of C tokens that about every fifth gate comes within 10 % of and half of them
    pass; inf where an implementation has none. tokens: N.
    """
    border = border if border < inf else _NO_BORDER
    window = min(C, tokens)
    name = draw(pick_name(_WEIGHTS, None))
    if name == "border":
        return draw(_border_gates(border, window, _places(C, tokens)))
    if name == "spike":
        return Kind(name, (draw(pick(_places(C, tokens))), -draw(pick(_depths(border)))))
    depth = draw(pick(_depths(border / window)))
    if name in ("log", "alternating", "softplus", "bounded"):
        return Kind(name, (-depth,))
    if name in ("head", "shared", "channel", "uniform"):
        hi = min(depth, _DEEPEST_DECAY)
        return Kind(name, (_decay(draw(pick(_deeper(hi)))), _decay(hi)))
    return Kind("none")


@st.composite
def _border_gates(draw: st.DrawFn, border: float, window: int, places: tuple[int, ...]) -> Kind:
    total = border * draw(pick(_FACTORS))
    if draw(st.booleans()):
        return Kind("spike", (draw(pick(places)), -total))
    return Kind("edge", (total, window))


_kept = lru_cache(maxsize=4096)(wild_gates)


def wild_cases(support: Support, dtype: Format | None = None) -> st.SearchStrategy[Case]:
    """A case as `cases` draws it, but with a gate of any depth, edited down to -1000 in single tokens and channels.

    About half of them are outside the gate domain that `support` declares. Shrinks as `cases` does.
    """
    return cases(support, dtype, gates=_kept, edits=_EDITS)


def breaking_cases(support: Support, dtype: Format | None = None) -> st.SearchStrategy[Case]:
    """The known case just outside the gate domain of a split-exponent kernel, on every tile of `support`."""
    case = breaking_case(dtype or support.dtypes[0])
    return pick(tuple(tile.of(case) for tile in support.tiles or ()) or (case,))
