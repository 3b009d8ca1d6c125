"""What a run did: cases, launches, kernels, and the worst ratio of every property with its case line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kda.files import write_whole
from kda.kernels.compile import COUNTS

__all__ = ["WORST", "Record", "Run"]

#: How many of the worst cases are kept, per test and per property.
WORST = 5


@dataclass
class Record:
    """What one test did: one property on one subject.

    worst: the cases with the largest ratios, (ratio, line, subject), the worst first and each find once. climbed: cases
    that a climb examined. before, after: the worst ratio of the search, and of search and climb; 0 without a climb.
    """

    property: str
    subject: str
    cases: int = 0
    untrusted: int = 0
    worst_ratio: float = 0.0
    worst_case: str = ""
    launches: int = 0
    compiles: int = 0
    cache_hits: int = 0
    guard_lines: int = 0
    climbed: int = 0
    before: float = 0.0
    after: float = 0.0
    worst: list[tuple[float, str, str]] = field(default_factory=list)

    def observe(self, ratio: float, trusted: bool, line: str) -> None:
        """Note the ratio of one comparison; one that proves nothing is not kept as the worst."""
        if not trusted:
            return
        if ratio >= self.worst_ratio:
            self.worst_ratio, self.worst_case = ratio, line
        if ratio > 0 and (len(self.worst) < WORST or ratio >= self.worst[-1][0]):
            self.worst = _worst([*self.worst, (ratio, line, self.subject)])

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add the launches, compiles and cache hits of this process within the block."""
        before = replace(COUNTS)
        try:
            yield
        finally:
            for what in ("launches", "compiles", "cache_hits"):
                setattr(self, what, getattr(self, what) + getattr(COUNTS, what) - getattr(before, what))

    def data(self) -> dict[str, Any]:
        """Plain data that survives the way from a worker to the controller."""
        return asdict(self)


def _worst(entries: Iterable[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    # One find is drawn again with another seed, or with a change that hardly touches it: the ratio is the same then.
    kept: list[tuple[float, str, str]] = []
    met: set[tuple[str, str]] = set()
    for ratio, line, subject in sorted(entries, key=lambda entry: (-entry[0], len(entry[1]))):
        find = {(f"{ratio:.3g}", subject), (re.sub(",seed=[0-9]+", "", line), subject)}
        if not find & met:
            kept.append((ratio, line, subject))
        met |= find
    return kept[:WORST]


@dataclass
class Run:
    """The records of a whole run, by property, and the time it took."""

    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def of(cls, records: Iterable[dict[str, Any]], seconds: float) -> Run:
        """A run from the data of its records."""
        return cls([Record(**data) for data in records], seconds)

    def total(self, what: str) -> int:
        """The sum of one count over all records."""
        return sum(getattr(record, what) for record in self.records)

    def properties(self) -> dict[str, Record]:
        """Per property, the sum of its records and the worst ratio among them, in the order of the run's names."""
        merged: dict[str, Record] = {}
        for record in sorted(self.records, key=lambda r: (r.property, r.subject)):
            if not record.property:
                continue
            into = merged.setdefault(record.property, Record(record.property, ""))
            for what in ("cases", "untrusted", "launches", "compiles", "cache_hits", "guard_lines", "climbed"):
                setattr(into, what, getattr(into, what) + getattr(record, what))
            if record.worst_ratio >= into.worst_ratio:
                into.worst_ratio, into.worst_case = record.worst_ratio, record.worst_case
            into.before, into.after = max(into.before, record.before), max(into.after, record.after)
            into.worst = _worst([*into.worst, *record.worst])
        return merged

    def report(self) -> dict[str, Any]:
        """The summary as plain data; see docs/running.md for the keys."""
        return {
            "cases": self.total("cases"),
            "launches": self.total("launches"),
            "compiles": self.total("compiles"),
            "cache_hits": self.total("cache_hits"),
            "seconds": round(self.seconds, 3),
            "untrusted": self.total("untrusted"),
            "guard_lines": self.total("guard_lines"),
            "climbed": self.total("climbed"),
            "properties": {
                name: {
                    "cases": record.cases,
                    "worst_ratio": record.worst_ratio,
                    "worst_case": record.worst_case,
                    "worst": [list(entry) for entry in record.worst],
                    "climb": {"cases": record.climbed, "before": record.before, "after": record.after},
                }
                for name, record in self.properties().items()
            },
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON; the file appears whole or not at all."""
        write_whole(path, json.dumps(self.report(), indent=2) + "\n")
