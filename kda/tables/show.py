"""The rows for a terminal, for a page, and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda.tables.row import AGREES, DISAGREES, UNEXPLAINED, WITHIN, WORST_CASE, Sample, TableRow, span

__all__ = ["data", "markdown", "markdown_table", "print_table"]

_COLOURS = {AGREES: "green", WITHIN: "green", DISAGREES: "yellow", UNEXPLAINED: "red", WORST_CASE: "dim"}
_HEADINGS = ("section", "what", "article", "ours", "unit", "verdict", "why, or what it means")


def print_table(rows: Sequence[TableRow], console: Console) -> None:
    """A line per row, then how many there are of each verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in ("article", "ours") else "left", overflow="fold")
    section = ""
    for row in rows:
        if section and row.section != section:
            table.add_section()
        section = row.section
        cells = [escape(cell) for cell in _cells(row)]
        cells[5] = f"[{_COLOURS[row.verdict]}]{cells[5]}[/]"
        table.add_row(*cells)
    console.print(table)
    console.print(_totals(rows))


def markdown(rows: Sequence[TableRow]) -> str:
    """The rows as one GitHub table, and a last line with how many there are of each verdict."""
    return markdown_table(_HEADINGS, [_cells(row) for row in rows]) + f"\n{_totals(rows)}\n"


def markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A GitHub table of text cells; ends with a line break."""
    made = [headings, ("---",) * len(headings), *lines]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in made)


def data(rows: Sequence[TableRow]) -> list[dict[str, str | float | int | None]]:
    """The rows as flat dictionaries for JSON.

    article is the figure as printed there, None for a worst case. ours is a word, a number, or the median over `seeds`
    draws (None where nothing was drawn); low and high are the ends of its range (None for a word).
    """
    made: list[dict[str, str | float | int | None]] = []
    for row in rows:
        low, high = (None, None) if isinstance(row.ours, str) else span(row.ours)
        made.append(
            {
                "key": row.key,
                "section": row.section,
                "what": row.what,
                "article": row.article,
                "ours": row.ours.median if isinstance(row.ours, Sample) else row.ours,
                "low": low,
                "high": high,
                "seeds": row.ours.seeds if isinstance(row.ours, Sample) else None,
                "unit": row.unit,
                "verdict": row.verdict,
                "why": row.why,
                "note": row.note,
            }
        )
    return made


def _cells(row: TableRow) -> tuple[str, ...]:
    return row.section, row.what, row.article or "", _ours(row.ours), row.unit, row.verdict, row.why or row.note


def _ours(ours: Sample | float | str) -> str:
    if isinstance(ours, str):
        return ours
    if isinstance(ours, Sample):
        return f"{_number(ours.median)} ({_number(ours.low)} to {_number(ours.high)})"
    return _number(ours)


def _number(value: float) -> str:
    """Whole numbers below a million in full, others to four digits."""
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def _totals(rows: Sequence[TableRow]) -> str:
    counts = Counter(row.verdict for row in rows)
    return f"{len(rows)} rows: " + ", ".join(f"{counts[v]} {v}" for v in _COLOURS if counts[v])
