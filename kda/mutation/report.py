"""The table of a campaign, for a terminal."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda.files import write_whole
from kda.mutation.campaign import EQUIVALENT, KILLED, STALE, SURVIVED, Row

__all__ = ["print_rows", "write_rows"]

_COLOURS = {KILLED: "green", SURVIVED: "red", STALE: "yellow", EQUIVALENT: "dim"}


def print_rows(rows: Mapping[str, Sequence[Row]], doubles: Mapping[str, str], console: Console) -> None:
    """A line per mutant (of several seeds: the median of its cases, and its longest line), then totals."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, how in (("mutant", "left"), ("status", "left"), ("law", "left"), ("cases", "right"), ("s", "right")):
        table.add_column(heading, justify=how, no_wrap=heading in ("status", "cases", "s"))  # type: ignore[arg-type]
    table.add_column("shrunk case, or what is known", overflow="fold")
    for name, made in rows.items():
        worst = next((row for row in made if row.status == SURVIVED), made[0])
        alive = sum(row.status == SURVIVED for row in made)
        status = worst.status + (f" {alive} of {len(made)} seeds" if alive and len(made) > 1 else "")
        known = [row for row in made if row.status == KILLED]
        case = max((row.case for row in known if row.case), key=len, default="")
        table.add_row(
            escape(name),
            f"[{_COLOURS[worst.status]}]{status}[/]",
            "\n".join(sorted({row.law for row in made if row.law})),
            _median((row.cases for row in made), "{:g}"),
            _median((row.seconds for row in made), "{:.1f}"),
            escape(case if worst.status == KILLED and case else worst.said),
        )
    console.print(table)
    counts = Counter(_status(made) for made in rows.values())
    said = ", ".join(f"{counts[status]} {status}" for status in (KILLED, SURVIVED, STALE, EQUIVALENT) if counts[status])
    console.print(f"{len(rows)} mutants: {said or 'none'}")
    cases = sorted(row.cases for made in rows.values() for row in made if row.status == KILLED and row.cases)
    if cases:
        last = cases[math.ceil(0.95 * len(cases)) - 1]
        console.print(f"cases to kill: median {statistics.median(cases):g}, 95th percentile {last}, most {cases[-1]}")
    tried = counts[KILLED] + counts[SURVIVED]
    if tried:
        console.print(f"killed {counts[KILLED]} of {tried} that are not equivalent: {counts[KILLED] / tried:.1%}")
    if doubles:
        console.print(f"{len(doubles)} more lower to the code of another mutant and are not counted")


def _status(made: Sequence[Row]) -> str:
    return SURVIVED if any(row.status == SURVIVED for row in made) else made[0].status


def _median(values: Iterable[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(round(statistics.median(known), 1)) if known else ""


def write_rows(rows: Mapping[str, Sequence[Row]], path: Path) -> None:
    """The rows as a JSON list of name, status, law, cases, seconds, case; the file appears whole or not at all."""
    write_whole(path, json.dumps([row.data() for made in rows.values() for row in made], indent=2) + "\n")
