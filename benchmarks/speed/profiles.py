"""One call kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.markup import escape

from speed.contenders import OURS, Contender
from speed.floor import Ceilings, floor
from speed.inputs import made
from speed.machine import Launched, Machine
from speed.results import median
from speed.shapes import Mode, Shape
from speed.show import print_table

__all__ = ["Row", "print_profile", "rows"]

WARM = 3


@dataclass(frozen=True)
class Row:
    """One kernel of a call: how often the call launches it, and its microseconds, all launches of a call together."""

    name: str
    launches: int
    median: float
    least: float


def rows(calls: Sequence[Sequence[Launched]]) -> list[Row]:
    """The kernels of some calls, in the order of the first."""
    times: dict[str, list[float]] = {}
    for call in calls:
        of_call: dict[str, float] = {}
        for kernel in call:
            of_call[kernel.name] = of_call.get(kernel.name, 0.0) + kernel.microseconds
        for name, time in of_call.items():
            times.setdefault(name, []).append(time)
    often = [kernel.name for kernel in calls[0]]
    return [Row(name, often.count(name), median(found), min(found)) for name, found in times.items()]


def print_profile(
    contender: Contender,
    shape: Shape,
    mode: Mode,
    machine: Machine,
    ceilings: Ceilings,
    repeats: int,
    console: Console,
) -> None:
    """Profile `repeats` calls, input sets rotated, and print one line per kernel and their sum."""
    with torch.no_grad():
        sets = made(shape, mode, machine.device, l2=machine.l2)
        for at in range(WARM):
            contender.call(sets[at % len(sets)])
        calls = [
            machine.launched(lambda at=at: contender.call(sets[at % len(sets)]))  # type: ignore[misc]
            for at in range(repeats)
        ]
    found = rows(calls)
    total = sum(row.median for row in found)
    lines = [
        (row.name[:80], str(row.launches), f"{row.median:.1f}", f"{row.least:.1f}", f"{row.median / total:.0%}")
        for row in found
    ]
    lines.append(("all of them", str(sum(row.launches for row in found)), f"{total:.1f}", "", ""))
    title = f"{contender.name} at {shape} ({mode}), {repeats} calls"
    print_table(console, title, ("kernel", "launches", "median us", "least us", "share"), lines)
    if contender.name == OURS:
        least = floor(shape, mode)
        for name, launch in (("first launch", least.prepare), ("second launch", least.walk), ("ideal", least.ideal)):
            console.print(
                escape(
                    f"floor, {name}: {1e6 * launch.seconds(ceilings):.1f} us "
                    f"({launch.moved / 1e6:.0f} MB at {ceilings.bandwidth / 1e12:.2f} TB/s, "
                    f"{launch.matrix / 1e9:.1f} GFLOP at {ceilings.matrix_rate / 1e12:.0f} TFLOP/s)"
                )
            )
