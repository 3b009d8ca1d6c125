"""The error of each solver of the triangular system over the chunk length: random keys beside equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from kda.formats import BF16, F16, F32, Format
from kda.tables.solve import CHUNKS, Setting, SolveRow

__all__ = ["PANELS", "plot_solve"]

#: What each panel shows, and its title. With no decay at all equal keys give integers, and errors of exactly 0.
PANELS: dict[str, Setting] = {
    "Gaussian keys, beta 0.1 to 0.9, decay 0.9 to 0.999": {
        "k": "gauss",
        "beta": "uniform:0.1:0.9",
        "gate": "uniform:0.9:0.999",
    },
    "equal keys, beta 1, decay 0.999": {"k": "equal", "beta": "one", "gate": "constant:0.999"},
}

_COLOURS = {"substitution": "#1b6ca8", "blocks": "#2a9d5c", "doubling": "#c8382f"}
#: Marker and size: open ones of three sizes, so that those that agree are all seen.
_MARKERS = {"substitution": ("o", 10.0), "blocks": ("s", 7.0), "doubling": ("^", 4.0)}
_STYLES: dict[Format, Literal["-", "--", ":"]] = {F32: "-", F16: "--", BF16: ":"}
#: Where what overflowed is marked.
_TOP = 1e36


def plot_solve(rows: Sequence[SolveRow], path: Path) -> None:
    """Draw `rows` (of `kda.tables.solve.rows` with the settings of `PANELS`) to the PNG `path`.

    ImportError where matplotlib is missing.
    """
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(9.5, 4.4), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (title, setting) in zip(panels, PANELS.items(), strict=True):
        of_panel = [row for row in rows if all(str(getattr(row.case, name)) == kind for name, kind in setting.items())]
        for solver in _COLOURS:
            for dtype in _STYLES:
                _draw(axes, solver, [row for row in of_panel if (row.solver, row.case.dtype) == (solver, dtype)])
        axes.axhline(1.0, color="0.55", linewidth=0.8, zorder=0)
        axes.set_title(title, fontsize=10)
        axes.set(xscale="log", yscale="log", xlabel="chunk length C", ylim=(1e-9, _TOP * 1e2))
        axes.set_xticks(CHUNKS, [str(C) for C in CHUNKS])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("error of the worst row / largest row of X")
    panels[0].annotate("nothing is right above", (CHUNKS[0], 1.0), (0, 3), textcoords="offset points", fontsize=8)
    named = [
        Line2D([], [], color=colour, marker=shape, markersize=size, fillstyle="none", label=solver)
        for (solver, colour), (shape, size) in zip(_COLOURS.items(), _MARKERS.values(), strict=True)
    ]
    named.append(Line2D([], [], color=_COLOURS["doubling"], marker="x", linestyle="", label="overflow"))
    named += [Line2D([], [], color="0.3", linestyle=style, label=str(dtype)) for dtype, style in _STYLES.items()]
    panels[0].legend(handles=named, loc="upper left", fontsize=8, ncols=2, framealpha=1.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw(axes: Any, solver: str, rows: Sequence[SolveRow]) -> None:
    colour, style = _COLOURS[solver], _STYLES[rows[0].case.dtype]
    shape, size = _MARKERS[solver]
    errors = [min(row.relative.median, _TOP) for row in rows]
    lost = [row.case.C for row, error in zip(rows, errors, strict=True) if error == _TOP]
    # One line up to the first overflow.
    shown = len(rows) - max(0, len(lost) - 1)
    axes.plot([row.case.C for row in rows[:shown]], errors[:shown], color=colour, linestyle=style, linewidth=1.4)
    kept = len(rows) - len(lost)
    axes.plot(
        [row.case.C for row in rows[:kept]],
        errors[:kept],
        color=colour,
        marker=shape,
        markersize=size,
        fillstyle="none",
        linestyle="",
    )
    axes.plot(lost, [_TOP] * len(lost), color=colour, marker="x", linestyle="")
