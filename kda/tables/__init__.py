"""The article's numeric tables and figures, computed again: what it prints, what comes out here, and a verdict.

    row         one figure, and the verdict on it
    findings    why a figure does not come out, for every one that does not
    draw        what the article drew at random, for many seeds at once
    ranges      e^gamma, e^-gamma and the spread of channels    sections 1.3, 2.1, 2.2, 2.3
    agreement   errors between references, degenerations        sections 1.2, 3.3, 3.4
    resources   exponentials, registers, widths                 sections 1.1, 4.0, 4.1, 4.2, 5, 6
    show        the rows on a console, in Markdown, as data
    solve       no figure of the article's: what its triangular system asks of a solver

A figure that was drawn at random is held against the range over many seeds, for the article's own seed is not known.
"""

from __future__ import annotations

from kda.tables import agreement, ranges, resources
from kda.tables.row import TableRow
from kda.tables.show import data, markdown, print_table

__all__ = ["TableRow", "data", "markdown", "print_table", "rows"]


def rows(seeds: int = 100) -> list[TableRow]:
    """Every figure, in the article's order; what it drew at random is drawn for `seeds` seeds.

    With fewer than 100 seeds a figure may lie outside their range by chance. Raises ValueError if seeds < 1.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; expected at least 1")
    made = [*ranges.rows(seeds), *agreement.rows(seeds), *resources.rows()]
    return sorted(made, key=lambda row: [int(part) for part in row.section.split(".")])
