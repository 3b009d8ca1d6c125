"""A report for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda.tables.show import markdown_table
from speed.results import Measured, Pair, Report, Spread, closeness, pairs, verdicts
from speed.shapes import MODES, Mode, Shape

__all__ = ["markdown", "print_report", "print_table", "rows_of_accuracy", "rows_of_times", "shape_words"]

TIMES = (
    *("shape", "call", "graph", "fastest rival", "its call", "its graph", "x call", "x graph"),
    *("ideal", "two launches", "graph / two launches"),
)
ACCURACY = (
    *("shape", "who", "rel. error o", "state", "error / budget o", "state", "worst o", "worst state"),
    *("extra MiB", "remarks"),
)
TITLES: dict[Mode, str] = {
    "computed": "Gates computed beforehand, beside FLA",
    "raw": "Norm, gate and sigmoid in the kernel, beside FlashKDA",
}


def shape_words(shape: Shape) -> str:
    """`1, 8192, 16`; `24 packed, 16384, 32`; `32, 1, 32 + state`."""
    first = f"{len(shape.lengths)} packed" if shape.lengths else str(shape.B)
    return f"{first}, {shape.tokens if shape.lengths else shape.N}, {shape.H}{' + state' if shape.state else ''}"


def rows_of_times(report: Report, mode: Mode) -> list[tuple[str, ...]]:
    """One line of cells per shape, in the columns `TIMES`; times in microseconds."""
    by_call = {pair.ours.shape: pair for pair in pairs(report, mode, "call")}
    by_graph = {pair.ours.shape: pair for pair in pairs(report, mode, "graph")}
    return [_times(report, pair, by_graph.get(name)) for name, pair in by_call.items()]


def _times(report: Report, call: Pair, graph: Pair | None) -> tuple[str, ...]:
    ideal = call.floor.ideal_seconds(report.ceilings)
    design = call.floor.design_seconds(report.ceilings)
    names = [pair.rival.contender for pair in (call, graph) if pair and pair.rival]
    return (
        shape_words(call.shape),
        _us(call.ours.call),
        _us(call.ours.graph),
        " / ".join(dict.fromkeys(names)) or "-",
        _us(call.rival.call if call.rival else None),
        _us(graph.rival.graph if graph and graph.rival else None),
        _times_as_fast(call.speedup),
        _times_as_fast(graph.speedup if graph else None),
        f"{1e6 * ideal:.0f}",
        f"{1e6 * design:.0f}",
        f"{graph.ours_ms / (1e3 * design):.2f}" if graph else "-",
    )


def _us(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    value = 1e3 * spread.median
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _times_as_fast(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}"


def rows_of_accuracy(report: Report, mode: Mode) -> list[tuple[str, ...]]:
    """One line of cells per shape and contender, in the columns `ACCURACY`."""
    return [_accuracy(one) for one in report.measured if one.mode == mode]


def _accuracy(one: Measured) -> tuple[str, ...]:
    found = one.accuracy
    errors = ("-",) * 6
    if found:
        relative = (f"{found.o_relative:.2e}", f"{found.state_relative:.2e}")
        usual = (f"{found.o_rms:.2e}", f"{found.state_rms:.2e}")
        errors = (*relative, *usual, f"{found.o_ratio:.3f}", f"{found.state_ratio:.3f}")
    memory = f"{one.extra_bytes / 2**20:.0f}" if one.extra_bytes else "-"
    remarks = "; ".join(x for x in (one.trouble, one.notes) if x)
    return (shape_words(Shape.parse(one.shape)), one.contender, *errors, memory, remarks)


def _machine(report: Report) -> str:
    rates, named = report.rates, ", ".join(f"{name} {number}" for name, number in report.versions.items())
    return (
        f"{report.machine}: copy {rates['copy'] / 1e12:.2f} TB/s, triad {rates['triad'] / 1e12:.2f} TB/s, "
        f"bf16 product {rates['matrix'] / 1e12:.0f} TFLOP/s. {named}."
    )


def _kernels(report: Report) -> list[str]:
    """Who launched what, over all shapes."""
    seen: dict[str, dict[str, None]] = {}
    for one in report.measured:
        seen.setdefault(f"{one.contender} ({one.mode})", {}).update(dict.fromkeys(one.launched))
    return [f"{who} launched {', '.join(names)}." for who, names in seen.items() if names]


def _first_calls(report: Report) -> list[str]:
    return [
        f"First call of a fresh process with empty caches, {one.contender} at {one.shape} ({one.mode}): "
        f"{one.seconds:.1f} s."
        for one in report.first_calls
    ]


def markdown(report: Report) -> str:
    """The tables of both modes, the verdicts, and what it was measured on, for docs/performance.md."""
    parts = ["## Measured\n"]
    for mode in MODES:
        times = rows_of_times(report, mode)
        if times:
            parts.append(f"### {TITLES[mode]}\n\n{markdown_table(TIMES, times)}")
            parts.append(markdown_table(ACCURACY, rows_of_accuracy(report, mode)))
    said = [*map(str, (*verdicts(report), *closeness(report))), *_first_calls(report), *report.remarks]
    parts += ["".join(f"* {line}\n" for line in said), f"{_machine(report)}\n"]
    return "\n".join(part for part in parts if part)


def print_report(report: Report, console: Console) -> None:
    """The times of both modes, what went wrong, and the verdicts."""
    for mode in MODES:
        times = rows_of_times(report, mode)
        if times:
            print_table(console, f"{TITLES[mode]} (us)", TIMES, times)
            print_table(console, "", ACCURACY, rows_of_accuracy(report, mode))
        elif any(one.mode == mode for one in report.measured):  # ours has no time: say why
            print_table(console, TITLES[mode], ACCURACY, rows_of_accuracy(report, mode))
    for line in (*_kernels(report), *report.remarks, *_first_calls(report)):
        console.print(escape(line))
    for verdict in verdicts(report):
        colour = {True: "green", False: "red", None: "default"}[verdict.met]
        console.print(f"[{colour}]{escape(str(verdict))}[/]")
    for line in closeness(report):
        console.print(escape(str(line)))
    console.print(escape(_machine(report)) + f" {report.seconds:.0f} s.")


def print_table(console: Console, title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells under a title, words to the left and numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left")
    for heading in headings:
        left = heading in ("shape", "who", "kernel", "fastest rival", "remarks")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)
