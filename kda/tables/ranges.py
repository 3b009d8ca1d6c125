"""How far the decays of one chunk reach: e^-gamma, e^gamma_C and the spread of channels (sections 1.3 to 2.3).

The article's gates are a ~ U(bound, 0.999) per token and channel; in the second table of section 2.1, U(0.01, 0.999)
clipped from below at the bound. Beside every range stands what no gates above the bound exceed: the constant gate at
the bound (for the spread, one channel there and one at 0.999). That one is what a kernel has to live with.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kda.formats import F16, F32, Format
from kda.tables.draw import TOP, gates
from kda.tables.row import Sample, TableRow

__all__ = ["rows"]

DK = 128
LONGEST = 128

#: Section 1.3: bound, max e^-gamma, whether float16 and float32 hold it.
_LARGEST = (
    ("0.999", "1.04", True, True),
    ("0.99", "1.48", True, True),
    ("0.95", "7.14", True, True),
    ("0.9", "54.95", True, True),
    ("0.8", "4.20e3", True, True),
    ("0.5", "3.04e10", False, True),
)

#: Section 2.1, first table: bound, C, min e^gamma_C, channels that are 0 in float16.
_SMALLEST = (
    ("0.9", 64, "1.70e-2", "0"),
    ("0.9", 128, "4.84e-4", "0"),
    ("0.5", 64, "2.20e-11", "118"),
    ("0.5", 128, "1.59e-20", "128"),
    ("0.1", 64, "7.39e-28", "128"),
    ("0.01", 128, "6.44e-65", "128"),
)

#: Section 2.1, second table: bound (0.01: nothing is clipped), min e^gamma_C, channels that are 0 in float16.
_CLIPPED = (("0.01", "1.84e-66", "128"), ("0.5", "9.07e-32", "128"), ("0.9", "1.72e-6", "0"), ("0.95", "1.43e-3", "0"))

#: Section 2.2: bound, C, spread of gamma_C, e^spread.
_SPREADS = (
    ("0.9", 64, "1.28", "3.58"),
    ("0.9", 128, "1.74", "5.69"),
    ("0.5", 64, "8.17", "3.53e3"),
    ("0.5", 128, "11.25", "7.69e4"),
    ("0.01", 128, "47.46", "4.10e20"),
)

#: Section 2.3: sub-chunk length, max e^-gamma.
_SUB_CHUNKS = ((128, "1.79e3"), (64, "5.34e1"), (32, "9.02"), (16, "3.41"))


def rows(seeds: int) -> Iterator[TableRow]:
    """The tables of sections 1.3, 2.1, 2.2 and 2.3, each range followed by its worst case."""
    drawn = gates(seeds, LONGEST, DK)
    yield from _largest(drawn)
    yield from _smallest(drawn)
    yield from _clipped(drawn)
    yield from _spreads(drawn)
    yield from _sub_chunks(drawn)


def _largest(drawn: np.ndarray) -> Iterator[TableRow]:
    C = 64
    for bound, article, in_f16, in_f32 in _LARGEST:
        low = float(bound)
        values = _reach(np.log(_between(drawn[:, :C], low)))
        what = f"max e^-gamma, C = {C}, DK = {DK}, a ~ U({bound}, {TOP})"
        yield from _with_worst(f"1.3 max {bound}", what, article, values, low**-C, _held(low**-C))
        if bound == str(TOP):
            what = f"max e^-gamma, C = {C}, DK = {DK}, a ~ U({bound}, 1), the interval above the bound"
            ours = Sample.of(_reach(np.log(_between(drawn[:, :C], low, 1.0))))
            yield TableRow(f"1.3 max {bound} up to 1", "1.3", what, article, ours)
        for dtype, article_holds in ((F16, in_f16), (F32, in_f32)):
            what = f"whether {dtype.name} holds that max e^-gamma, a ~ U({bound}, {TOP})"
            word = "fits" if article_holds else "overflows"
            yield TableRow(f"1.3 {dtype.short} {bound}", "1.3", what, word, _fits(values, dtype))


def _smallest(drawn: np.ndarray) -> Iterator[TableRow]:
    for bound, C, article, vanished in _SMALLEST:
        low = float(bound)
        end = np.log(_between(drawn[:, :C], low)).sum(axis=1)
        yield from _ends(f"{bound} C{C}", f"C = {C}, a ~ U({bound}, {TOP})", article, vanished, end, low**C)


def _clipped(drawn: np.ndarray) -> Iterator[TableRow]:
    C = LONGEST
    wide = _between(drawn, 0.01)
    for bound, article, vanished in _CLIPPED:
        low = float(bound)
        gamma = np.cumsum(np.log(np.maximum(wide, low)), axis=1)
        how = f"C = {C}, a ~ U(0.01, {TOP}), " + ("not clipped" if low == 0.01 else f"clipped at {bound}")
        yield from _ends(f"clipped {bound}", how, article, vanished, gamma[:, -1], low**C)
        if bound == "0.9":
            word = _fits(np.exp(-gamma).max(axis=(1, 2)), F16)
            what = f"whether a bound of {bound} keeps e^-gamma inside float16 too, {how}"
            yield TableRow("2.1 both ends", "2.1", what, "fits float16", f"{word} float16")


def _ends(key: str, how: str, article: str, vanished: str, end: np.ndarray, worst: float) -> Iterator[TableRow]:
    """The two columns of section 2.1 for gamma_C `[seeds, DK]`, and `worst`, the least e^gamma_C there can be."""
    power = np.exp(end)
    what = f"min e^gamma_C over {DK} channels, {how}"
    yield from _with_worst(f"2.1 min {key}", what, article, power.min(axis=1), worst, _held(worst))
    what = f"channels whose e^gamma_C is 0 in float16, {how}"
    zeros = _zeros(power).sum(axis=-1)
    all_or_none = float(DK * _zeros(np.array(worst)))
    yield from _with_worst(f"2.1 vanished {key}", what, vanished, zeros, all_or_none, unit=f"of {DK}")


def _spreads(drawn: np.ndarray) -> Iterator[TableRow]:
    for bound, C, article, ratio in _SPREADS:
        low = float(bound)
        values = np.ptp(np.log(_between(drawn[:, :C], low)).sum(axis=1), axis=1)
        worst = C * float(np.log(TOP / low))
        how = f"over {DK} channels, C = {C}, a ~ U({bound}, {TOP})"
        key = f"{bound} C{C}"
        yield from _with_worst(f"2.2 spread {key}", f"max - min of gamma_C {how}", article, values, worst, unit="nats")
        what = f"e^(max - min of gamma_C) {how}"
        yield from _with_worst(f"2.2 ratio {key}", what, ratio, np.exp(values), float(np.exp(worst)))
        if low == 0.01:
            what = f"orders of magnitude between the channels' e^gamma_C {how}"
            decades = values / np.log(10)
            yield from _with_worst(f"2.2 decades {key}", what, "20", decades, worst / float(np.log(10)), unit="decades")


def _sub_chunks(drawn: np.ndarray) -> Iterator[TableRow]:
    seeds = len(drawn)
    log_a = np.log(_between(drawn, 0.9))
    for length, article in _SUB_CHUNKS:
        values = _reach(log_a.reshape(seeds * LONGEST // length, length, DK)).reshape(seeds, -1).max(axis=1)
        cut = "in one piece" if length == LONGEST else f"in sub-chunks of {length}"
        what = f"max e^-gamma, C = {LONGEST} {cut}, DK = {DK}, a ~ U(0.9, {TOP})"
        worst = 0.9**-length
        yield from _with_worst(f"2.3 max {length}", what, article, values, worst, _held(worst))


def _between(drawn: np.ndarray, low: float, high: float = TOP) -> np.ndarray:
    return low + (high - low) * drawn


def _reach(log_a: np.ndarray) -> np.ndarray:
    """Max e^-gamma of every chunk: gates `[n, C, DK]` to `[n]`; gamma never rises, so it is reached at the end."""
    return np.exp(-log_a.sum(axis=1).min(axis=1))


def _zeros(power: np.ndarray) -> np.ndarray:
    return F16.round(power) == 0


def _fits(values: np.ndarray, dtype: Format) -> str:
    held = int(np.isfinite(dtype.round(values)).sum())
    if held in (0, len(values)):
        return "fits" if held else "overflows"
    return f"fits in {held} of {len(values)} seeds"


def _held(value: float) -> str:
    """What float16 makes of a number, if that is not the number."""
    if value > F16.max:
        return f"beyond float16's {F16.max:g}"
    if value >= F16.min_normal:
        return ""
    return "0 in float16" if _zeros(np.array(value)) else "subnormal in float16"


def _with_worst(
    key: str, what: str, article: str, values: np.ndarray, worst: float, note: str = "", unit: str = ""
) -> Iterator[TableRow]:
    """The row of a range over seeds `[seeds]`, and the row of its worst case, whose key ends in "worst"."""
    section = key.split(" ")[0]
    yield TableRow(key, section, what, article, Sample.of(values), unit)
    yield TableRow(f"{key} worst", section, f"{what}: the worst gates of that range", None, worst, unit, note)
