"""The table at the end of a run."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kda.suite.record import Run

__all__ = ["print_summary"]


def print_summary(run: Run, terminal: Any) -> None:
    """Print totals and, per property, its cases and its worst ratio with the line that gave it."""
    seconds = max(run.seconds, 1e-9)
    climbed = run.total("climbed")
    terminal.ensure_newline()
    terminal.section("kda", sep="=")
    terminal.write_line(
        f"{run.total('cases')} cases, {run.total('launches')} launches, {run.total('cases') / seconds:.0f} cases/s; "
        f"{run.total('compiles')} kernels compiled, {run.total('cache_hits')} loaded from the cache; "
        f"{run.total('untrusted')} untrusted; {run.total('guard_lines')} guard lines replayed"
        + (f"; {climbed} cases climbed" if climbed else "")
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("property", no_wrap=True)
    for heading in ("cases", "untrusted", *(("climbed", "before", "after") if climbed else ()), "worst ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    properties = run.properties()
    for name, record in properties.items():
        worst = f"{record.worst_ratio:.3g}" if record.worst_ratio else "exact"
        climb = (str(record.climbed), f"{record.before:.3g}", f"{record.after:.3g}") if record.climbed else ("", "", "")
        table.add_row(name, str(record.cases), str(record.untrusted), *(climb if climbed else ()), worst)
    console = Console(width=128 if climbed else 100, no_color=True, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    terminal.write(captured.get())
    # One line each and unbroken, to be copied.
    for name, record in properties.items():
        if record.worst_ratio:
            terminal.write_line(f"{name} {record.worst_ratio:.3g} {record.worst_case}")
