"""What a run did: cases, launches, kernels, and the worst ratio of every property with its case line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kda.files import write_whole
from kda.kernels.compile import COUNTS

__all__ = ["Record", "Run"]


@dataclass
class Record:
    """What one test did: one property on one subject."""

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

    def observe(self, ratio: float, trusted: bool, line: str) -> None:
        """Note the ratio of one comparison; one that proves nothing is not kept as the worst."""
        if trusted and ratio >= self.worst_ratio:
            self.worst_ratio, self.worst_case = ratio, line

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
            for what in ("cases", "untrusted", "launches", "compiles", "cache_hits", "guard_lines"):
                setattr(into, what, getattr(into, what) + getattr(record, what))
            into.observe(record.worst_ratio, True, record.worst_case)
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
            "properties": {
                name: {
                    "cases": record.cases,
                    "worst_ratio": record.worst_ratio,
                    "worst_case": record.worst_case,
                }
                for name, record in self.properties().items()
            },
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON; the file appears whole or not at all."""
        write_whole(path, json.dumps(self.report(), indent=2) + "\n")
