"""The times of one run over its shapes, and their floors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speed.results import Pair, Report, pairs
from speed.shapes import MODES, Mode
from speed.show import TITLES, shape_words

__all__ = ["plot"]

_OURS, _RIVAL = "#1b6ca8", "#c8382f"


def plot(report: Report, path: Path) -> None:
    """Draw one panel per mode that was measured to the PNG `path`: times in graphs, ours beside the fastest rival.

    ImportError without matplotlib; ValueError where nothing was timed.
    """
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    panels = {mode: found for mode in MODES if (found := pairs(report, mode, "graph"))}
    if not panels:
        raise ValueError("the report holds no time of kda_forward in a graph: there is nothing to draw")
    lines = sum(map(len, panels.values()))
    figure = Figure(figsize=(9.5, 0.5 + 0.27 * lines + 0.75 * len(panels)), dpi=110, layout="constrained")
    heights = [len(found) + 1 for found in panels.values()]
    drawn = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (mode, found) in zip(drawn, panels.items(), strict=True):
        _draw(axes, mode, found, report)
    drawn[-1].set_xlabel("microseconds in a CUDA graph")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw(axes: Any, mode: Mode, found: list[Pair], report: Report) -> None:
    at = range(len(found))
    ours = [1e3 * pair.ours_ms for pair in found]
    raced = [(i, 1e3 * pair.rival_ms, pair.speedup) for i, pair in enumerate(found) if pair.rival_ms and pair.speedup]
    ideal = [1e6 * pair.floor.ideal_seconds(report.ceilings) for pair in found]
    design = [1e6 * pair.floor.design_seconds(report.ceilings) for pair in found]
    for i, rival, speedup in raced:
        axes.plot([ours[i], rival], [i, i], color="0.8", linewidth=1.5, zorder=1)
        axes.annotate(
            f"{speedup:.2f}x",
            (max(ours[i], rival), i),
            (7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.plot(ideal, at, "|", color="black", markersize=10, label="floor: inputs and outputs once")
    axes.plot(design, at, "|", color=_OURS, markersize=10, markeredgewidth=2, label="floor of the two launches")
    axes.plot(ours, at, "o", color=_OURS, markersize=7, label="kda_forward")
    if raced:
        label = "fastest FLA" if mode == "computed" else "FlashKDA"
        axes.plot([x for _, x, _ in raced], [i for i, _, _ in raced], "D", color=_RIVAL, markersize=6, label=label)
    axes.set_yticks(at, [shape_words(pair.shape) for pair in found], fontsize=8)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.set_title(TITLES[mode], fontsize=10, loc="left")
    axes.legend(fontsize=8, loc="lower right", ncols=2)
    axes.grid(alpha=0.25)
