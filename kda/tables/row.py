"""One figure of the article beside ours, and a verdict that follows from the two numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from kda.tables.findings import explanation

__all__ = ["AGREES", "DISAGREES", "UNEXPLAINED", "WITHIN", "WORST_CASE", "Sample", "TableRow", "agrees", "span"]

AGREES = "agrees"
WITHIN = "within the seed range"
DISAGREES = "disagrees"
UNEXPLAINED = "disagrees (unexplained)"
WORST_CASE = "worst case"


@dataclass(frozen=True)
class Sample:
    """A number that depends on the draw: its median, least and largest over `seeds` draws."""

    median: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: np.ndarray) -> Sample:
        """The sample of `values` `[seeds]`."""
        return cls(float(np.median(values)), float(values.min()), float(values.max()), len(values))


@dataclass(frozen=True)
class TableRow:
    """One figure.

    key: the row's name, unique and lasting; it begins with the section. section: where the article prints it. what: the
    quantity, self-contained. article: the figure to the digits printed there ("1.70e-2"), or a word; None for a worst
    case, which the article does not give. ours: a `Sample` where the figure was drawn at random, else a number or a
    word. unit: of both, "" for a pure number. note: what else the row shows.
    """

    key: str
    section: str
    what: str
    article: str | None
    ours: Sample | float | str
    unit: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        """One of `AGREES`, `WITHIN`, `DISAGREES` (a known finding), `UNEXPLAINED`, `WORST_CASE`."""
        if self.article is None:
            return WORST_CASE
        if agrees(self.article, self.ours):
            return WITHIN if isinstance(self.ours, Sample) else AGREES
        return DISAGREES if self.why else UNEXPLAINED

    @property
    def why(self) -> str:
        """Why the two disagree; "" where they do not, and where nobody knows."""
        if self.article is None or agrees(self.article, self.ours):
            return ""
        return explanation(self.key, self.article, self.ours if isinstance(self.ours, str) else span(self.ours))


def agrees(article: str, ours: Sample | float | str) -> bool:
    """Whether some number that is printed as `article` lies in the range of `ours`; words must be equal."""
    if isinstance(ours, str):
        return article == ours
    printed = Decimal(article)
    exponent = printed.as_tuple().exponent
    assert isinstance(exponent, int), f"{article} is not a number"
    half = Decimal(5).scaleb(exponent - 1)
    low, high = span(ours)
    # 1e-9 of the last digit: a float64 on the border of two roundings belongs to both.
    slack = half * Decimal("1e-9")
    return bool(low <= float(printed + half + slack) and float(printed - half - slack) <= high)


def span(ours: Sample | float) -> tuple[float, float]:
    """The least and the largest of our numbers."""
    return (ours.low, ours.high) if isinstance(ours, Sample) else (ours, ours)
