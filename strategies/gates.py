"""Gates that stay within a domain: the sum of g over any C tokens never passes -total."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, exp, floor, inf

from hypothesis import strategies as st

from kda.case import Kind
from kda.kinds import LN2
from strategies._pick import pick, pick_name

__all__ = ["SLOW", "SLOW_NAMES", "gates", "gates_between"]

# `none` often: without decay nothing hides an error of the solve or of the carry.
_WEIGHTS = {
    "none": 5,
    "constant": 1,
    "log": 1,
    "alternating": 2,
    "spike": 2,
    "powers": 1,
    "edge": 1,
    "head": 1,
    "shared": 2,
    "channel": 2,
    "uniform": 4,
    "softplus": 2,
    "bounded": 1,
}
_WITHOUT_POWERS = {name: weight for name, weight in _WEIGHTS.items() if name != "powers"}

#: |g| of a gate that leaves nine tenths of what was written 100 tokens ago, and the kinds that are it in every channel.
SLOW, SLOW_NAMES = 0.001, ("none", "constant", "shared")

# g is rounded to float32 and summed there: C * 2^-24 relative for C <= 1024 stays below 2^-14.
_SLACK = 1 - 2.0**-14
# Without a limit: e^-20 per token has closed a gate for good, and e^-100 is zero in float16 and float32.
_DEEP, _ABYSS = 20.0, 100.0
_NO_EDGE = 87.0  # where e^-total leaves float32's normal range; the edge to try when nothing sets one


@lru_cache(maxsize=512)
def _decays(depth: float) -> tuple[float, ...]:
    # Shallow first; the last is as deep as allowed, rounded up to four digits so that a line stays readable.
    last = min(ceil(exp(-depth) * 1e4) / 1e4, 1.0)
    return (*(a for a in (0.999, 0.99, 0.9, 0.5, 0.1) if a > last), last)


@lru_cache(maxsize=512)
def _logs(depth: float) -> tuple[float, ...]:
    last = floor(depth * 1e4) / 1e4
    return (*(-g for g in (0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0) if g < last), 0.0 - last)


@lru_cache(maxsize=512)
def _period(C: int, total: float) -> int | None:
    hits = floor(min(total * _SLACK / LN2, 1e9))
    return None if hits < 1 else max(1, ceil(C / hits))


@st.composite
def gates(
    draw: st.DrawFn,
    C: int,
    total: float = inf,
    *,
    tokens: int = 1,
    per_token: float = inf,
    names: Sequence[str] | None = None,
) -> Kind:
    """A gate kind whose |sum of g| over any C tokens in a row is at most `total`, and |g| at most `per_token`.

    tokens: N, for kinds that name a token. names: only these kinds. ValueError: a name that is unknown, or none that
    fits the domain (halving needs a total of ln 2).
    """
    even = min(total / C * _SLACK, per_token, _DEEP)
    once = min(total * 0.99, per_token, _ABYSS)
    period = _period(C, total) if per_token >= LN2 else None
    weights = _WEIGHTS if period is not None else _WITHOUT_POWERS
    if names is not None and period is None:
        names = [name for name in names if name != "powers"]
    name = draw(pick_name(weights, names))
    if name == "constant":
        return Kind(name, (draw(pick(_decays(even))),))
    if name in ("log", "alternating", "softplus", "bounded"):
        return Kind(name, (draw(pick(_logs(even))),))
    if name == "spike":
        return Kind(name, (draw(st.integers(0, tokens - 1)), draw(pick(_logs(once)))))
    if name == "powers":
        assert period is not None
        return Kind(name, (draw(pick((1.0, 0.5, 0.1))), period))
    if name == "edge":
        return Kind(name, (min(total if total < inf else _NO_EDGE, per_token * C), C))
    if name in ("head", "shared", "channel", "uniform"):
        lo = draw(pick(_decays(even)))
        return Kind(name, (lo, draw(pick((1.0, lo, 0.999) if lo < 0.999 else (1.0,)))))
    return Kind("none")


@st.composite
def gates_between(draw: st.DrawFn, low: float, high: float) -> Kind:
    """A gate kind whose decays all lie in [low, high], whatever the domain; both ends in thousandths.

    Shrinks to the constant gate at `low`.
    """
    thousandths = round(1000 * low), round(1000 * high)
    name = draw(pick(("constant", "channel", "uniform")))
    lo = draw(st.integers(*thousandths))
    if name == "constant":
        return Kind(name, (lo / 1000,))
    return Kind(name, (lo / 1000, draw(st.integers(lo, thousandths[1])) / 1000))
