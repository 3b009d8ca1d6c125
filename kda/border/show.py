"""The table of the gate domain, for a terminal, for a page, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isinf

from rich import box
from rich.console import Console
from rich.table import Table

from kda.border.evidence import Found, Row
from kda.tables.show import markdown_table

__all__ = ["data", "markdown", "print_table"]

_HEADINGS = (
    "operands",
    "C",
    "sub-chunk",
    "sum of g >=",
    "constant g >=",
    "constant a >=",
    "worst inside",
    "breaks at sum",
    "ratio there",
    "infinite from a <=",
)


def print_table(rows: Sequence[Row], console: Console) -> None:
    """A line per row; red where the evidence does not bear the domain out."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for before, row in zip((None, *rows), rows, strict=False):
        if before is not None and before.domain.dtype != row.domain.dtype:
            table.add_section()
        table.add_row(*_cells(row), style=None if row.holds else "red")
    console.print(table)
    console.print(_total(rows))


def markdown(rows: Sequence[Row]) -> str:
    """The rows as one GitHub table, and a last line that counts the cases."""
    return markdown_table(_HEADINGS, [_cells(row) for row in rows]) + f"\n{_total(rows)}\n"


def data(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The rows as flat dictionaries for JSON; an infinite ratio is None."""
    return [
        {
            "dtype": row.domain.dtype.short,
            "C": row.domain.C,
            "sub_C": row.domain.sub_C,
            "total": row.domain.total,
            "per_token": row.domain.per_token,
            "least_decay": row.domain.least_decay,
            "impl": row.on.impl,
            "target": row.on.target,
            "cases": row.cases,
            **{
                f"{name}_{key}": value
                for name in ("inside", "outside", "overflow")
                for key, value in _found(getattr(row, name)).items()
            },
            "holds": row.holds,
        }
        for row in rows
    ]


def _found(found: Found) -> dict[str, object]:
    return {"ratio": None if isinf(found.ratio) else found.ratio, "total": found.total, "case": str(found.case)}


def _cells(row: Row) -> tuple[str, ...]:
    domain = row.domain
    return (
        domain.dtype.short,
        str(domain.C),
        "none" if domain.sub_C is None else str(domain.sub_C),
        f"{-domain.total:.4f}",
        f"{-domain.per_token:.4f}",
        f"{domain.least_decay:.4f}",
        f"{row.inside.ratio:.2f}",
        f"{-row.outside.total:.3f}",
        f"{row.outside.ratio:.2f}",
        f"{exp(-domain.overflow / domain.window):.4f}",
    )


def _total(rows: Sequence[Row]) -> str:
    held = sum(row.holds for row in rows)
    return (
        f"{held} of {len(rows)} rows hold: {sum(row.cases for row in rows)} adversarial cases inside, the worst at "
        f"{max(row.inside.ratio for row in rows):.2f} of its budget"
    )
