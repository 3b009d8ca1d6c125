"""How well each solver of the triangular system does, per kind of keys, writes and gates; every row is a case line.

A case is one chunk, N = C, with as many batches as there are draws: a line reruns all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb, isfinite

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda.case import Case
from kda.formats import BF16, F16, F32, F64, Format
from kda.numerics.solve import SOLVERS, power_sizes, solve_error, system
from kda.tables.row import Sample
from kda.tables.show import markdown_table

__all__ = ["CHUNKS", "SETTINGS", "Growth", "SolveRow", "data", "growth", "markdown", "print_table", "rows"]

CHUNKS = (16, 32, 64, 128)
FORMATS = (F32, F16, BF16)

Setting = Mapping[str, str]

#: What the cases have in common, then what is told apart: from what everyone tests to the hardest.
_CASE = Case(DK=64, v="gauss")  # type: ignore[arg-type]  # text is read as a kind
SETTINGS: tuple[Setting, ...] = (
    {"k": "gauss", "beta": "uniform:0.1:0.9", "gate": "uniform:0.9:0.999"},
    {"k": "gauss", "beta": "one", "gate": "none"},
    {"k": "positive", "beta": "one", "gate": "none"},
    {"k": "equal", "beta": "uniform:0.1:0.9", "gate": "none"},
    {"k": "equal", "beta": "one", "gate": "constant:0.9"},
    {"k": "equal", "beta": "one", "gate": "constant:0.999"},
    {"k": "parallel:0.01", "beta": "near1", "gate": "none"},
    {"k": "sign", "beta": "one", "gate": "none"},
    {"k": "equal", "beta": "one", "gate": "none"},
    {"k": "equal", "beta": "uniform:1.0:2.0", "gate": "none"},
)

#: What the table shows of all that was measured: every chunk in float32, C = 64 in the narrow formats.
_COLUMNS = (*((F32, C) for C in CHUNKS), (F16, 64), (BF16, 64))
_HEADINGS = ("keys", "beta", "gate", "solver", *(f"{dtype}, C = {C}" for dtype, C in _COLUMNS))
_GROWTH_HEADINGS = ("C", "k", "largest entry of N^k", "binomial(C - 2, k - 1)", "times the roundoff of f32")

#: `SolveError.units` beyond which a solver is marked: one of its own makes, and not of the format.
POOR = 10.0


@dataclass(frozen=True)
class SolveRow:
    """One solver on one case: the case holds C, the format of the operands and the kinds; B draws.

    units, relative: over the draws, see `kda.numerics.solve.SolveError`.
    """

    case: Case
    solver: str
    units: Sample
    relative: Sample


@dataclass(frozen=True)
class Growth:
    """The power k of N with the largest entries, for equal keys, beta = 1, no decay: in float64, and exact."""

    case: Case
    power: int
    largest: float
    exact: int


def rows(seeds: int = 5, settings: Sequence[Setting] = SETTINGS) -> list[SolveRow]:
    """Every solver in every format, at every C, on `settings` (kinds by field); `seeds` draws each.

    ValueError if seeds < 1.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; expected at least 1")
    return [row for setting in settings for C in CHUNKS for dtype in FORMATS for row in _rows(setting, C, dtype, seeds)]


def _rows(setting: Setting, C: int, dtype: Format, seeds: int) -> Iterator[SolveRow]:
    case = _CASE.replace(B=seeds, N=C, C=C, dtype=dtype, **setting)
    L, R = system(case.inputs())
    for name, solver in SOLVERS.items():
        error = solve_error(solver, L, R, dtype)
        yield SolveRow(case, name, Sample.of(error.units), Sample.of(error.relative))


@cache
def growth() -> tuple[Growth, ...]:
    """The largest entries of the powers of N for equal keys, per C."""
    made = []
    for C in CHUNKS:
        case = Case(N=C, C=C, DK=64, dtype=F64, k="equal")  # type: ignore[arg-type]
        L, _ = system(case.inputs())
        sizes = power_sizes(L[0, 0])
        power = C // 2
        made.append(Growth(case, power, float(sizes.max()), comb(C - 2, power - 1)))
    return tuple(made)


def print_table(made: Sequence[SolveRow], console: Console) -> None:
    """A line per setting and solver, medians over the draws; then the growth of the powers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if "C =" in heading else "left", overflow="fold")
    before: tuple[str, ...] = ()
    for kinds, solver, found in _lines(made):
        if before and kinds != before:
            table.add_section()
        shown = ("",) * 3 if kinds == before else kinds
        table.add_row(*map(escape, (*shown, solver)), *(_coloured(row) for row in found))
        before = kinds
    console.print(table)
    console.print(_LEGEND.format(seeds=made[0].case.B))
    powers = Table(*_GROWTH_HEADINGS, box=box.SIMPLE_HEAD, pad_edge=False)
    for line in _growth_lines():
        powers.add_row(*line)
    console.print(powers)


_LEGEND = (
    "Error of the worst row, over the roundoff of the format and the scale |T| |I + L| |X| of that row (in brackets: "
    "over the largest row of X); medians of {seeds} draws; inf: it overflowed"
)


def markdown(made: Sequence[SolveRow]) -> str:
    """The same two tables for a page, the second first."""
    lines = [(*kinds, solver, *map(_cell, found)) for kinds, solver, found in _lines(made)]
    legend = _LEGEND.format(seeds=made[0].case.B)
    return "\n".join(
        [
            "",
            markdown_table(_GROWTH_HEADINGS, list(_growth_lines())),
            markdown_table(_HEADINGS, lines),
            f"{legend}.",
            "",
        ]
    )


def data(made: Sequence[SolveRow]) -> list[dict[str, str | float | int | None]]:
    """The rows as flat dictionaries for JSON: medians, and the ends of the range; None where a solver overflowed."""
    return [
        {
            "case": str(row.case),
            "solver": row.solver,
            "seeds": row.units.seeds,
            **{
                f"{name}{suffix}": value if isfinite(value) else None
                for name, sample in (("units", row.units), ("relative", row.relative))
                for suffix, value in (("", sample.median), ("_low", sample.low), ("_high", sample.high))
            },
        }
        for row in made
    ]


def _lines(made: Sequence[SolveRow]) -> Iterator[tuple[tuple[str, ...], str, list[SolveRow]]]:
    kept = {(row.case.k, row.case.beta, row.case.gate, row.solver, row.case.dtype, row.case.C): row for row in made}
    for k, beta, gate in dict.fromkeys((row.case.k, row.case.beta, row.case.gate) for row in made):
        for solver in SOLVERS:
            found = [kept[k, beta, gate, solver, dtype, C] for dtype, C in _COLUMNS]
            yield (str(k), str(beta), str(gate)), solver, found


def _growth_lines() -> Iterator[tuple[str, ...]]:
    for row in growth():
        exact = f"{row.exact:.4g}" if row.exact >= 1e6 else str(row.exact)
        lost = f"{row.exact * F32.unit_roundoff:.1e}"
        yield str(row.case.C), str(row.power), f"{row.largest:.4g}", exact, lost


def _cell(row: SolveRow) -> str:
    if not isfinite(row.units.median) or row.units.median == 0:
        return f"{row.units.median:g}"
    return f"{row.units.median:.2g} ({row.relative.median:.1e})"


def _coloured(row: SolveRow) -> str:
    return f"[red]{_cell(row)}[/]" if not row.units.median <= POOR else _cell(row)
