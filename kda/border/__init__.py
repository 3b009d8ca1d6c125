"""The border of the gate domain, from both sides: what holds just inside, what breaks just outside.

evidence    adversarial cases at the border, and the cases beyond it that break
show        the table, on a console, in Markdown, as data
"""

from __future__ import annotations

from kda.border.evidence import (
    CHUNKS,
    FORMATS,
    Found,
    Row,
    Subject,
    adversarial,
    breaking,
    breaking_case,
    domains,
    mirror_of,
    overflowing,
    row,
)
from kda.border.show import data, markdown, print_table

__all__ = [
    "CHUNKS",
    "FORMATS",
    "Found",
    "Row",
    "Subject",
    "adversarial",
    "breaking",
    "breaking_case",
    "data",
    "domains",
    "markdown",
    "mirror_of",
    "overflowing",
    "print_table",
    "row",
]
