"""The times of one run over its shapes, and their floors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speed.results import Pair, Report, pairs
from speed.shapes import MODES, Mode
from speed.show import TITLES, shape_words

__all__ = ["plot"]

_OURS, _RIVAL = "#1b6ca8", "#c8a13a"


def plot(report: Report, path: Path) -> None:
    """Draw one panel per mode that was measured to the PNG `path`: times in graphs, ours beside the fastest rival.

    ImportError without matplotlib; ValueError where nothing was timed.
    """
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    panels = {mode: found for mode in MODES if (found := pairs(report, mode, "graph"))}
    if not panels:
        raise ValueError("the report holds no time of kda_forward in a graph: there is nothing to draw")
    figure = Figure(figsize=(9.5, 0.6 + 0.42 * sum(map(len, panels.values())) + 0.7 * len(panels)), dpi=110)
    figure.set_layout_engine("constrained")
    heights = [len(found) for found in panels.values()]
    drawn = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (mode, found) in zip(drawn, panels.items(), strict=True):
        _draw(axes, mode, found, report)
    drawn[-1].set_xlabel("microseconds in a CUDA graph")
    drawn[0].legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw(axes: Any, mode: Mode, found: list[Pair], report: Report) -> None:
    at = range(len(found))
    rivals = [(i, pair.rival_ms, pair.speedup) for i, pair in enumerate(found) if pair.rival_ms and pair.speedup]
    axes.barh([i - 0.2 for i in at], [1e3 * pair.ours_ms for pair in found], 0.38, color=_OURS, label="kda_forward")
    label = "fastest FLA" if mode == "computed" else "FlashKDA"
    if rivals:
        axes.barh([i + 0.2 for i, _, _ in rivals], [1e3 * ms for _, ms, _ in rivals], 0.38, color=_RIVAL, label=label)
    for i, ms, speedup in rivals:
        axes.annotate(f"{speedup:.2f}x", (1e3 * ms, i + 0.2), (3, -3), textcoords="offset points", fontsize=7.5)
    ceilings = report.ceilings
    for seconds, style, name in (
        ([pair.floor.ideal_seconds(ceilings) for pair in found], "black", "floor: inputs and outputs once"),
        ([pair.floor.design_seconds(ceilings) for pair in found], "#c8382f", "floor of the two launches"),
    ):
        axes.plot([1e6 * s for s in seconds], [i - 0.2 for i in at], "|", color=style, markersize=11, label=name)
    axes.set_yticks(at, [shape_words(pair.shape) for pair in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_title(TITLES[mode], fontsize=10, loc="left")
    axes.grid(alpha=0.25, axis="x")
