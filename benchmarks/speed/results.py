"""What was measured, as data: medians, ratios, geometric means, verdicts, and the JSON file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, inf, log
from pathlib import Path
from typing import Any, Literal

from kda.files import write_whole
from speed.contenders import OURS, TOKENS
from speed.floor import Ceilings, Floor, floor
from speed.shapes import Mode, Shape

__all__ = [
    "BARS",
    "CLOCKS",
    "Accuracy",
    "Clock",
    "Closeness",
    "FirstCall",
    "Measured",
    "Pair",
    "Report",
    "Spread",
    "Verdict",
    "closeness",
    "geometric_mean",
    "median",
    "pairs",
    "verdicts",
]

#: "call": one eager call on an idle device, by events; what the host does is part of it. "graph": one call of many in a
#: replayed CUDA graph; the device alone.
Clock = Literal["call", "graph"]
CLOCKS: tuple[Clock, ...] = ("call", "graph")

#: How many times as fast as the fastest rival of a mode `kda_forward` is meant to be, in the geometric mean of all
#: shapes and at the least. FLA's `fused_recurrent_kda` is not one of the rivals held against these.
BARS: dict[Mode, tuple[float, float | None]] = {"computed": (3.0, 2.0), "raw": (1.2, None)}


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle; ValueError where there is none."""
    if not values:
        raise ValueError("no values have no median")
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of n positive values; ValueError where there is none."""
    if not values:
        raise ValueError("no values have no mean")
    return exp(sum(map(log, values)) / len(values))


@dataclass(frozen=True)
class Spread:
    """Milliseconds: the median of `repeats` samples, and their quartiles."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The spread of `samples`; a quartile is the median of the samples on its side of the middle."""
        ordered = sorted(samples)
        half = (len(ordered) + 1) // 2
        return cls(median(ordered), median(ordered[:half]), median(ordered[-half:]), len(ordered))


@dataclass(frozen=True)
class Accuracy:
    """Against the operation in float64, on `heads` heads of single sequences and the first chunk of `beginnings` more.

    o_ratio, state_ratio: the worst row's error / budget, beginnings too; o_rms, state_rms: the root of its mean square
    over the rows of whole sequences. o_relative, state_relative: |error| / |reference| in 2-norms over all of those.
    """

    o_ratio: float
    state_ratio: float
    o_rms: float
    state_rms: float
    o_relative: float
    state_relative: float
    heads: int
    beginnings: int


@dataclass(frozen=True)
class Measured:
    """One contender at one shape. trouble: why its times do not count, "" where they do; notes: what else to know."""

    shape: str
    mode: Mode
    contender: str
    call: Spread | None = None
    graph: Spread | None = None
    extra_bytes: int = 0
    launched: tuple[str, ...] = ()
    accuracy: Accuracy | None = None
    trouble: str = ""
    notes: str = ""

    def milliseconds(self, clock: Clock) -> float | None:
        """The median by `clock`; None where it was not taken or does not count."""
        spread: Spread | None = getattr(self, clock)
        return None if self.trouble or spread is None else spread.median


@dataclass(frozen=True)
class FirstCall:
    """Seconds of the first call of a fresh process with empty caches: compiling, and tuning where there is any."""

    shape: str
    mode: Mode
    contender: str
    seconds: float


@dataclass
class Report:
    """Everything of one run."""

    machine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    first_calls: list[FirstCall] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ceilings(self) -> Ceilings:
        """The larger of the two measured bandwidths, and the matrix rate."""
        return Ceilings(max(self.rates["copy"], self.rates["triad"]), self.rates["matrix"])

    def write(self, path: Path) -> None:
        """As JSON; the file is whole at any time."""
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """What `write` wrote."""
        data = json.loads(path.read_text("utf-8"))
        data["measured"] = [_measured(one) for one in data["measured"]]
        data["first_calls"] = [FirstCall(**one) for one in data["first_calls"]]
        return cls(**data)


def _measured(data: dict[str, Any]) -> Measured:
    kinds = {"call": Spread, "graph": Spread, "accuracy": Accuracy}
    made = {name: kinds[name](**data[name]) for name in kinds if data[name] is not None}
    return Measured(**{**data, **made, "launched": tuple(data["launched"])})


@dataclass(frozen=True)
class Pair:
    """`kda_forward` beside the fastest rival at one shape, by one clock; rival is None where none has a time."""

    shape: Shape
    mode: Mode
    clock: Clock
    ours: Measured
    rival: Measured | None
    floor: Floor

    @property
    def ours_ms(self) -> float:
        """The median time of ours."""
        found = self.ours.milliseconds(self.clock)
        assert found is not None
        return found

    @property
    def rival_ms(self) -> float | None:
        """The median time of the rival."""
        return self.rival.milliseconds(self.clock) if self.rival else None

    @property
    def speedup(self) -> float | None:
        """How many times as fast ours is."""
        return self.rival_ms / self.ours_ms if self.rival_ms else None


def pairs(report: Report, mode: Mode, clock: Clock, chunked: bool = False) -> list[Pair]:
    """One pair for each shape at which ours has a time, in the order of the run.

    chunked: rivals that go token by token are left out.
    """
    found = []
    for ours in report.measured:
        if (ours.contender, ours.mode) != (OURS, mode) or ours.milliseconds(clock) is None:
            continue
        rivals = [one for one in _rivals(report, ours, chunked) if one.milliseconds(clock)]
        fastest = min(rivals, key=lambda one: one.milliseconds(clock) or 0.0, default=None)
        shape = Shape.parse(ours.shape)
        found.append(Pair(shape, mode, clock, ours, fastest, floor(shape, mode)))
    return found


def _rivals(report: Report, ours: Measured, chunked: bool) -> list[Measured]:
    """What the others did where `ours` was measured; chunked: without those that go token by token."""
    left_out = (OURS, TOKENS) if chunked else (OURS,)
    there = [one for one in report.measured if (one.shape, one.mode) == (ours.shape, ours.mode)]
    return [one for one in there if one.contender not in left_out]


@dataclass(frozen=True)
class Verdict:
    """Geometric mean and least of the speed-ups of some shapes; what each is held against, if anything."""

    mode: Mode
    clock: Clock
    kind: str
    shapes: int
    mean: float
    least: float
    least_at: str
    bar: float | None = None
    least_bar: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the mean and the least reach their bars; None where there are none."""
        return None if self.bar is None else self.mean >= self.bar and self.least >= (self.least_bar or 0.0)

    def __str__(self) -> str:
        chunked = "chunk_kda of FLA" if self.kind == "all" else "FLA"
        rival = f"the fastest {chunked}" if self.mode == "computed" else "FlashKDA"
        said = f"{self.kind}, {self.clock}: {self.mean:.2f} times as fast as {rival} over {self.shapes} shapes"
        said += f", least {self.least:.2f} at {self.least_at}"
        if self.bar is not None:
            bars = f"{self.bar:g}" if self.least_bar is None else f"{self.bar:g}, least {self.least_bar:g}"
            said += f"; bar {bars}: {'met' if self.met else 'MISSED'}"
        return said


def verdicts(report: Report) -> list[Verdict]:
    """One for each mode, clock and kind of shape ("all", "prefill": dense and packed, "decode") with two times."""
    found = []
    for mode, bars in BARS.items():
        for clock in CLOCKS:
            for kind in ("all", "prefill", "decode"):
                raced = [pair for pair in pairs(report, mode, clock, chunked=kind == "all") if pair.speedup]
                chosen = [
                    pair for pair in raced if kind == "all" or (pair.shape.kind == "decode") == (kind == "decode")
                ]
                if chosen:
                    found.append(_verdict(mode, clock, kind, chosen, *(bars if kind == "all" else (None, None))))
    return found


@dataclass(frozen=True)
class Closeness:
    """At how many shapes one error of `kda_forward` is no larger than that of every rival, and where it is farthest.

    field: of `Accuracy`. times: the error over the smallest of the rivals' at `at`, the largest such over all shapes.
    """

    mode: Mode
    field: str
    shapes: int
    no_larger: int
    times: float
    at: str

    def __str__(self) -> str:
        tensor, kind = self.field.split("_")
        said = {"rms": "root mean square of error / budget", "ratio": "worst error / budget"}[kind]
        rival = "chunk_kda of FLA" if self.mode == "computed" else "FlashKDA"
        where = f"at {self.no_larger} of {self.shapes} shapes"
        return f"{said} of {tensor}: no larger than that of {rival} {where}; {self.times:.2f} times it at {self.at}"


def closeness(report: Report) -> list[Closeness]:
    """One for each mode and each error / budget that was measured of ours and of a rival that goes chunk by chunk."""
    found = []
    for mode in BARS:
        for name in ("o_rms", "state_rms", "o_ratio", "state_ratio"):
            times = {}
            for ours in report.measured:
                rivals = [getattr(one.accuracy, name) for one in _rivals(report, ours, True) if one.accuracy]
                if (ours.contender, ours.mode) == (OURS, mode) and ours.accuracy and rivals:
                    times[ours.shape] = _over(getattr(ours.accuracy, name), min(rivals))
            if times:
                at = max(times, key=lambda shape: times[shape])
                no_larger = sum(value <= 1 for value in times.values())
                found.append(Closeness(mode, name, len(times), no_larger, times[at], at))
    return found


def _over(mine: float, theirs: float) -> float:
    return mine / theirs if theirs else inf if mine else 1.0


def _verdict(
    mode: Mode, clock: Clock, kind: str, chosen: Iterable[Pair], bar: float | None, least_bar: float | None
) -> Verdict:
    speedups = {str(pair.shape): pair.speedup or 0.0 for pair in chosen}
    least = min(speedups, key=lambda shape: speedups[shape])
    mean = geometric_mean(list(speedups.values()))
    return Verdict(mode, clock, kind, len(speedups), mean, speedups[least], least, bar, least_bar)
