"""`kda tables`, `domain`, `solve` and `plot`: the article's numbers again, and what was measured beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from kda.cli.asking import TARGET, Command, Misused, chosen_implementation, console_for
from kda.files import replace_between, write_whole

__all__ = ["domain", "plot", "solve", "tables"]


@click.command()
@click.option("--seeds", default=100, show_default=True, metavar="N", help="Draws of what the article drew once.")
@click.option("--json", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the rows.")
@click.option("--markdown", "page", metavar="FILE", type=click.Path(path_type=Path), help="Write a page.")
@click.pass_context
def tables(ctx: click.Context, seeds: int, path: Path | None, page: Path | None) -> None:
    """Compute the article's numeric tables again. Exit status 1 where a row disagrees and nobody knows why."""
    import json

    from kda.tables import data, markdown, print_table, rows
    from kda.tables.row import UNEXPLAINED

    if seeds < 1:
        raise Misused(f"--seeds is {seeds}; expected at least 1")
    made = rows(seeds)
    print_table(made, console_for())
    if path is not None:
        write_whole(path, json.dumps(data(made), indent=2) + "\n")
    if page is not None:
        write_whole(page, PAGE.format(seeds=seeds) + markdown(made))
    ctx.exit(1 if any(row.verdict == UNEXPLAINED for row in made) else 0)


PAGE = """# The article's tables, computed again

`kda tables` computes every numeric table and figure of sections 1 to 6 with the article's own sizes. What it drew at
random is drawn {seeds} times here (its seed is not known): the median, and the range. This page is what
`kda tables --markdown docs/tables.md` writes.

"""


@click.command()
@click.option("--impl", metavar="NAME", help="The kernel that is asked, on its own rows (default: mirrors of all).")
@TARGET
@click.option("--cases", default=500, show_default=True, metavar="N", help="Adversarial cases inside, for each row.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(["f16", "bf16", "f32"]), help="Only this format.")
@click.option(
    "--C", "chunks", multiple=True, type=click.Choice(["16", "32", "64", "128"]), help="Only this chunk length."
)
@click.option("--workers", type=int, metavar="N", help="Processes at a time (default: one per core).")
@click.option("--json", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the rows.")
@click.option(
    "--markdown", "page", metavar="FILE", type=click.Path(path_type=Path), help="Write the table into a page."
)
@click.pass_context
def domain(
    ctx: click.Context,
    impl: str | None,
    target: str,
    cases: int,
    dtypes: tuple[str, ...],
    chunks: tuple[str, ...],
    workers: int | None,
    path: Path | None,
    page: Path | None,
) -> None:
    """Which gates a split-exponent kernel can compute, per format, chunk and sub-chunk; with the evidence.

    Exit status 1 where a case inside breaks its budget, or none outside does.
    """
    import json
    import os
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial
    from multiprocessing import get_context

    from kda import border
    from kda.formats import format_named

    if cases < 1 or (workers is not None and workers < 1):
        raise Misused("--cases and --workers must be at least 1")
    formats = [format_named(name) for name in dtypes] or border.FORMATS
    asked = list(border.domains(formats, [int(C) for C in chunks] or border.CHUNKS))
    on = None
    if impl is not None:
        chosen, target = chosen_implementation(impl, target)
        if chosen.unchecked() is None:
            raise Misused(f"{chosen.name} cannot run unchecked; expected an implementation that can")
        on = border.Subject(impl, target)
        asked = [row for row in asked if on.takes(row)]
        if not asked:
            raise Misused(f"{chosen.name} on {target} has no row of these; drop --C or --dtype")
    workers = workers or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        made = list(pool.map(partial(border.row, cases=cases, on=on), asked))
    border.print_table(made, console_for())
    if path is not None:
        write_whole(path, json.dumps(border.data(made), indent=2) + "\n")
    if page is not None:
        _write_into(page, "kda domain", border.markdown(made))
    ctx.exit(0 if all(row.holds for row in made) else 1)


@click.command()
@click.option("--seeds", default=5, show_default=True, metavar="N", help="Draws of each kind.")
@click.option("--json", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the rows.")
@click.option(
    "--markdown", "page", metavar="FILE", type=click.Path(path_type=Path), help="Write the table into a page."
)
def solve(seeds: int, path: Path | None, page: Path | None) -> None:
    """Measure three ways to solve a chunk's triangular system: where each one loses what the format could hold."""
    import json

    from kda.tables import solve as study

    if seeds < 1:
        raise Misused(f"--seeds is {seeds}; expected at least 1")
    made = study.rows(seeds)
    study.print_table(made, console_for())
    if path is not None:
        write_whole(path, json.dumps(study.data(made), indent=2, allow_nan=False) + "\n")
    if page is not None:
        _write_into(page, "kda solve", study.markdown(made))


def _write_into(page: Path, name: str, table: str) -> None:
    try:
        replace_between(page, name, table)
    except (OSError, ValueError) as error:
        raise Misused(str(error)) from None


@click.group()
def plot() -> None:
    """Pictures of what was measured (with the extra `plot`: matplotlib)."""


def _picture(default: str) -> Callable[[Command], Command]:
    """The option that says where a picture goes."""
    return click.option(
        "-o", "--output", "path", default=default, show_default=True, metavar="FILE", type=click.Path(path_type=Path)
    )


@plot.result_callback()
@click.pass_context
def _drawn(ctx: click.Context, path: Path) -> None:
    click.echo(f"wrote {path}")


@plot.command(name="solve")
@click.option("--seeds", default=5, show_default=True, metavar="N", help="Draws of each kind.")
@_picture("solve.png")
def plot_solve(seeds: int, path: Path) -> Path:
    """Draw the error of each solver of the triangular system over the chunk length."""
    _need_matplotlib()
    from kda.plots import solve as picture
    from kda.tables import solve as study

    if seeds < 1:
        raise Misused(f"--seeds is {seeds}; expected at least 1")
    picture.plot_solve(study.rows(seeds, tuple(picture.PANELS.values())), path)
    return path


@plot.command(name="domain")
@click.option("--cases", default=24, show_default=True, metavar="N", help="Adversarial cases at each point.")
@_picture("domain.png")
def plot_domain(cases: int, path: Path) -> Path:
    """Draw the error of a split-exponent kernel over gate and chunk length, per format, with the border."""
    _need_matplotlib()
    from kda.plots import domain as picture

    if cases < 1:
        raise Misused(f"--cases is {cases}; expected at least 1")
    picture.plot_domain(picture.bands(cases), path)
    return path


@plot.command(name="spread")
@click.option("--seeds", default=100, show_default=True, metavar="N", help="Draws of each kind.")
@_picture("spread.png")
def plot_spread(seeds: int, path: Path) -> Path:
    """Draw how far the channels of a chunk drift apart: the article's draws, ours, and the worst gates."""
    _need_matplotlib()
    from kda.plots import spread as picture
    from kda.tables import rows

    if seeds < 1:
        raise Misused(f"--seeds is {seeds}; expected at least 1")
    picture.plot_spread(rows(seeds), path)
    return path


def _need_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise Misused('matplotlib is not installed, which draws the pictures; pip install "kda-properties[plot]"')
