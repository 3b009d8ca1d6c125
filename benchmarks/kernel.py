"""kda_forward beside FLA's kernels and FlashKDA on one GPU, in one process: times, memory, accuracy, and the floor.

    python benchmarks/kernel.py --json result.json     # everything, under 8 minutes on an H200
    python benchmarks/kernel.py --quick                # two shapes, both modes
    python benchmarks/kernel.py profile 1,8192,16      # kda_forward kernel by kernel
    python benchmarks/kernel.py first                  # the first call of a fresh process with empty caches
    python benchmarks/kernel.py table result.json      # the tables of docs/performance.md
    python benchmarks/kernel.py plot result.json -o docs/performance.png
    python benchmarks/kernel.py --dry                  # every line but the GPU's, on a CPU, in small

docs/performance.md says what is compared and how. Rivals: fla-core and tokenspeed-flashkda, where they are installed.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # kda, where it is not installed

from speed.shapes import DRY, MODES, QUICK, SHAPES, Mode, Shape, parse_shapes

if TYPE_CHECKING:
    from speed.contenders import Contender
    from speed.machine import Machine
    from speed.results import Report

NAMES = "Whom: ours, fla, flash_kda."
ENGINE = click.option(
    "--engine",
    type=click.Choice(("steps", "hopper", "portable")),
    help="The engine of kda_forward [default: its choice].",
)
WHO = click.option("--only", multiple=True, default=["ours"], show_default=True, metavar="NAME", help=NAMES)
MODE = click.option("--mode", default="computed", show_default=True, type=click.Choice(MODES))


class _Shapes(click.ParamType):
    """One or more shapes, / between them."""

    name = "B,N,H"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Shape, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_shapes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group(invoke_without_command=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Keep the result in this file, shape by shape.")
@click.option("--shapes", type=_Shapes(), help="B,N,H, B,N,H,state or packed24,16384,32; several with / between them.")
@click.option("--modes", multiple=True, default=MODES, type=click.Choice(MODES), help="[default: both]")
@click.option("--only", multiple=True, metavar="NAME", help=NAMES)
@click.option("--quick", is_flag=True, help="Two shapes, fewer rounds.")
@click.option("--dry", is_flag=True, help="Tiny shapes on a CPU, by the wall clock: to try this script.")
@click.option("--seconds", "limit", default=460.0, show_default=True, help="Begin no further shape after so long.")
@ENGINE
@click.pass_context
def main(
    context: click.Context,
    path: Path | None,
    shapes: tuple[Shape, ...] | None,
    modes: tuple[Mode, ...],
    only: tuple[str, ...],
    quick: bool,
    dry: bool,
    limit: float,
    engine: str | None,
) -> None:
    """Time kda_forward beside its rivals and print the tables."""
    if context.invoked_subcommand:
        return
    from rich.console import Console
    from speed.show import print_report

    asked = _Asked(
        shapes or (DRY if dry else QUICK if quick else SHAPES), modes, _names(only), engine, quick, path, limit
    )
    machine = _machine(dry)
    report = _begun(machine)
    whole = _run(asked, machine, report)
    print_report(report, Console(width=180))
    if not whole or any(one.trouble for one in report.measured):
        raise SystemExit(1)


@dataclass(frozen=True)
class _Asked:
    """What a run is asked for, and since when."""

    shapes: tuple[Shape, ...]
    modes: tuple[Mode, ...]
    only: tuple[str, ...]
    engine: str | None
    quick: bool
    path: Path | None
    limit: float
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started


def _names(only: Sequence[str]) -> tuple[str, ...]:
    return tuple("kda_forward" if name == "ours" else name for name in only)


def _machine(dry: bool) -> Machine:
    import torch
    from speed.machine import Cpu, Gpu

    if not dry and not torch.cuda.is_available():
        raise click.ClickException("torch sees no CUDA device; --dry tries the script on a CPU")
    return Cpu() if dry else Gpu()


def _begun(machine: Machine) -> Report:
    from speed.contenders import absent, versions
    from speed.results import Report

    rates, _ = machine.ceilings()
    machine.release()
    return Report(machine.name, versions(), rates, remarks=absent())


def _contenders(mode: Mode, shape: Shape, engine: str | None, only: Sequence[str]) -> list[Contender]:
    from speed.contenders import contenders

    return contenders(mode, shape, engine, only)


def _run(asked: _Asked, machine: Machine, report: Report) -> bool:
    """Measure every shape in every mode, and keep `report` after each; whether nothing broke off."""
    from speed.machine import threads_of_workers
    from speed.measure import Rounds, measure

    threads_of_workers()
    on_gpu = machine.device == "cuda"
    rounds = Rounds(5, 15) if asked.quick or not on_gpu else Rounds()
    if on_gpu:
        report.remarks += _compile(asked)
    whole = True
    with ProcessPoolExecutor(6 if on_gpu else 1, mp_context=get_context("spawn")) as pool:
        for shape, mode in itertools.product(asked.shapes, asked.modes):
            if asked.seconds > asked.limit:
                report.remarks.append(f"{shape} ({mode}) was not measured: {asked.limit:.0f} s were over")
                continue
            try:
                raced = _contenders(mode, shape, asked.engine, asked.only)
                report.measured += measure(shape, mode, raced, machine, rounds, pool)
            except Exception as error:  # a launch that broke the device, say: keep what there is
                report.remarks.append(f"{shape} ({mode}) broke off: {type(error).__name__}: {error}"[:300])
                whole = False
            report.seconds = asked.seconds
            click.echo(f"{shape} ({mode}): {report.seconds:.0f} s", err=True)
            if asked.path:
                report.write(asked.path)
    if asked.path:
        report.write(asked.path)
    return whole


def _compile(asked: _Asked) -> list[str]:
    """Compile what `asked` needs, side by side; what went wrong."""
    from speed.warm import compile_all, families

    wanted: dict[tuple[str, Mode], list[Shape]] = {}
    for mode, shape in itertools.product(asked.modes, asked.shapes):
        for contender in _contenders(mode, shape, asked.engine, asked.only):
            wanted.setdefault((contender.name, mode), []).append(shape)
    work = [family for (name, mode), shapes in wanted.items() for family in families(name, mode, shapes)]
    failed = compile_all(work, asked.engine, workers=16)
    click.echo(f"{len(work)} families of kernels are compiled: {asked.seconds:.0f} s", err=True)
    return failed


@main.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True), help="Write it into this page instead.")
def table(path: Path, output: Path | None) -> None:
    """Print the tables of a result file as Markdown, or put them between the marks of a page."""
    from speed.results import Report
    from speed.show import markdown

    from kda.files import replace_between

    text = markdown(Report.read(path))
    if output:
        replace_between(output, "measured", text)
    else:
        click.echo(text, nl=False)


@main.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The PNG to write.")
def plot(path: Path, output: Path) -> None:
    """Draw the times of a result file and their floors."""
    from speed.picture import plot
    from speed.results import Report

    plot(Report.read(path), output)


@main.command()
@click.argument("shapes", type=_Shapes(), default="1,8192,16")
@MODE
@click.option("--repeats", default=20, show_default=True)
@WHO
@click.option("--dry", is_flag=True, help="On a CPU.")
@ENGINE
def profile(
    shapes: tuple[Shape, ...], mode: Mode, repeats: int, only: tuple[str, ...], dry: bool, engine: str | None
) -> None:
    """Print the kernels that one call launches: median and least time of each, share, and what bounds ours."""
    from rich.console import Console
    from speed.profiles import print_profile

    machine = _machine(dry)
    _, ceilings = machine.ceilings()
    machine.release()
    for shape in shapes:
        for contender in _contenders(mode, shape, engine, _names(only)):
            print_profile(contender, shape, mode, machine, ceilings, repeats, Console(width=140))


@main.command()
@click.argument("shapes", type=_Shapes(), default="1,8192,16")
@MODE
@WHO
@click.option("--json", "path", type=click.Path(path_type=Path), help="Add what was found to this result file.")
@click.option("--here", hidden=True, default=None, metavar="CONTENDER")
@ENGINE
def first(
    shapes: tuple[Shape, ...],
    mode: Mode,
    only: tuple[str, ...],
    path: Path | None,
    here: str | None,
    engine: str | None,
) -> None:
    """Time the first call of a fresh process with empty caches, for each shape and contender."""
    from speed.results import FirstCall, Report

    if here:
        from speed.warm import first_call

        click.echo(f"seconds {first_call(here, mode, shapes[0], engine).seconds}")
        return
    found: list[FirstCall] = []
    for shape in shapes:
        for contender in _contenders(mode, shape, engine, _names(only)):
            seconds = _fresh(contender.name, mode, shape, engine)
            found.append(FirstCall(str(shape), mode, contender.name, seconds))
            click.echo(f"{contender.name} at {shape} ({mode}): {seconds:.1f} s")
    if path:
        report = Report.read(path)
        report.first_calls += found
        report.write(path)


def _fresh(name: str, mode: Mode, shape: Shape, engine: str | None) -> float:
    """Seconds of the first call in a process of its own, whose caches are empty."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"KDA_CACHE_DIR": "kda", "TRITON_CACHE_DIR": "triton", "TILELANG_CACHE_DIR": "tilelang"}
        empty = {variable: str(Path(folder) / part) for variable, part in caches.items()}
        asked = [sys.executable, __file__, "first", str(shape), "--mode", mode, "--here", name]
        said = subprocess.run(
            [*asked, *(("--engine", engine) if engine else ())],
            env={**os.environ, **empty},
            capture_output=True,
            text=True,
        )
    if said.returncode:
        last = (said.stderr.strip() or "no message").splitlines()[-1]
        raise click.ClickException(f"the first call of {name} at {shape} failed: {last}")
    return float(said.stdout.split("seconds ")[-1])


if __name__ == "__main__":
    main()
