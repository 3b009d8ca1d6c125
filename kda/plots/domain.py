"""The error of a split-exponent kernel over gate and chunk length, with the border of its domain drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np

from kda.border import CHUNKS, FORMATS, adversarial, mirror_of
from kda.formats import F16
from kda.numerics.domain import GateDomain, gate_domain

__all__ = ["Band", "bands", "plot_domain"]

#: Of the worst ratio, as it is shown: beyond, everything is one colour.
_RANGE = (1e-2, 1e2)
_TICKS = (0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.4, 0.2, 0.05, 0.01, 0.001)


@dataclass(frozen=True)
class Band:
    """For one format and chunk length, the worst ratio error / budget at each constant gate -`depths` per token."""

    domain: GateDomain
    depths: np.ndarray
    ratios: np.ndarray


def bands(cases: int = 20, points: int = 60) -> list[Band]:
    """A band per format and chunk length, the worst of `cases` adversarial cases at each of `points` gates.

    A case reaches the sum over C tokens that the constant gate has, in whatever way.
    """
    made = []
    for dtype in FORMATS:
        total = gate_domain(dtype, 1).total
        depths = np.geomspace(0.3 * total / max(CHUNKS), 1.6 * total / min(CHUNKS), points)
        for C in CHUNKS:
            domain = gate_domain(dtype, C)
            on = mirror_of(domain)
            ratios = [
                max(on.ratio(adversarial(domain, cases * point + seed, C * float(depth))) for seed in range(cases))
                for point, depth in enumerate(depths)
            ]
            made.append(Band(domain, depths, np.array(ratios)))
    return made


def plot_domain(made: Sequence[Band], path: Path) -> None:
    """Draw `made` to the PNG `path`: a panel per format, a band per chunk length. ImportError without matplotlib."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    figure = Figure(figsize=(9.5, 7.2), dpi=110, layout="constrained")
    panels = figure.subplots(len(FORMATS), 1)
    image = None
    for axes, dtype in zip(panels, FORMATS, strict=True):
        of_panel = [band for band in made if band.domain.dtype == dtype]
        for at, band in enumerate(of_panel):
            sides = [at - 0.44, at + 0.44]
            shown = np.clip(band.ratios, *_RANGE)[None, :]
            middles = np.sqrt(band.depths[1:] * band.depths[:-1])
            edges = np.concatenate([band.depths[:1], middles, band.depths[-1:]])
            image = axes.pcolormesh(edges, sides, shown, norm=LogNorm(*_RANGE), cmap="RdYlBu_r", rasterized=True)
            axes.plot([band.domain.per_token] * 2, sides, color="black", linewidth=2.5)
            axes.plot([band.domain.overflow / band.domain.C] * 2, sides, color="black", linewidth=1.2, linestyle=":")
            axes.annotate(
                f"a >= {band.domain.least_decay:.4f}",
                (band.domain.per_token, at),
                (-6, 0),
                textcoords="offset points",
                fontsize=9,
                ha="right",
                va="center",
            )
        axes.set_title(f"{dtype.name} operands", fontsize=10, loc="left")
        axes.set_yticks(range(len(of_panel)), [str(band.domain.C) for band in of_panel])
        axes.set_ylabel("chunk length C")
        axes.set_xscale("log")
        low, high = of_panel[0].depths[[0, -1]]
        axes.set_xlim(low, high)
        ticks = [a for a in _TICKS if low <= -log(a) <= high]
        axes.set_xticks([-log(a) for a in ticks], [f"{a:g}" for a in ticks])
        axes.minorticks_off()
        if dtype is F16:
            axes.axvline(-log(0.9), color="0.25", linewidth=1, linestyle="--")
            axes.annotate(
                "the article's 0.9",
                (-log(0.9), 1),
                (0, 3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=9,
                ha="center",
            )
    assert image is not None
    panels[-1].set_xlabel("constant gate a per token, or any gate with the same sum over C tokens")
    bar = figure.colorbar(image, ax=list(panels), extend="both", label="worst row of all cases: error / budget")
    bar.ax.axhline(1.0, color="black", linewidth=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
