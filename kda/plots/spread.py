"""How far the channels of one chunk drift apart (article, section 2.2): what is drawn, and what can happen."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import cast

from kda.formats import BF16, F16
from kda.tables.row import Sample, TableRow

__all__ = ["plot_spread"]


def plot_spread(rows: Sequence[TableRow], path: Path) -> None:
    """Draw the rows `2.2 spread ...` of the article's tables to the PNG `path`. ImportError without matplotlib."""
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    figure = Figure(figsize=(9.5, 4.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    drawn = [row for row in rows if row.key.startswith("2.2 spread") and isinstance(row.ours, Sample)]
    worst = {row.key.removesuffix(" worst"): row.ours for row in rows if row.key.endswith(" worst")}
    for at, row in enumerate(drawn):
        ours = row.ours
        assert isinstance(ours, Sample)
        assert row.article is not None
        axes.plot([ours.low, ours.high], [at, at], color="#1b6ca8", linewidth=9, solid_capstyle="butt", alpha=0.5)
        axes.plot([ours.median], [at], "|", color="#1b6ca8", markersize=16, markeredgewidth=2.5)
        axes.plot([float(row.article)], [at], "D", color="black", markersize=5)
        axes.plot([cast("float", worst[row.key])], [at], "X", color="#c8382f", markersize=10)
    axes.set_yticks(range(len(drawn)), [_label(row) for row in drawn])
    axes.set_ylim(len(drawn) - 0.4, -0.9)
    axes.set_xscale("log")
    axes.set_xlabel("max - min of gamma_C over 128 channels, nats")
    for dtype in (F16, BF16):
        whole = log(dtype.max / dtype.min_normal)
        name = "float16" if dtype is F16 else "bfloat16, float32"
        axes.axvline(whole, color="0.4", linewidth=1, linestyle=":")
        axes.annotate(f"all of {name}", (whole, -0.85), (3, -9), textcoords="offset points", fontsize=8)
    axes.plot([], [], color="#1b6ca8", linewidth=9, alpha=0.5, label=f"drawn, {drawn[0].ours.seeds} seeds")  # type: ignore[union-attr]
    axes.plot([], [], "D", color="black", markersize=5, linestyle="", label="article")
    axes.plot([], [], "X", color="#c8382f", markersize=10, linestyle="", label="worst gates of that range")
    axes.legend(fontsize=8, loc="lower left")
    axes.grid(alpha=0.25, axis="x")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _label(row: TableRow) -> str:
    _, _, low, C = row.key.split()
    return f"a in [{low}, 0.999]\nC = {C.removeprefix('C')}"
