"""How good the reports of failures are: every known mistake of the kernel, from its first failing example on.

    python benchmarks/diagnosis.py [--form forward] [--only NAME]... [--target c] [--seed 1] [--workers N] [--json FILE]
        [--reports DIR]

Each is searched for with the law and on the tile that the catalogue names, in a process of its own, and reported as a
property test reports it. The table says which first stage and which mistake the report names, what is left of the case,
what the script of it does with the mistake (1) and without (0), and the seconds from first failure to report. Exit
status 1 where a stage, a mistake, a case or a script is not as it should be.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda.diagnosis.measured import REASONS, Measured, measure
from kda.files import write_whole
from kda.mutation import campaign
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.plans import plan_catalogue


@click.command()
@click.option("--only", "names", metavar="NAME", multiple=True, help="This entry alone; may be repeated.")
@click.option("--form", type=click.Choice(["kernel", "forward"]), default="kernel", show_default=True)
@click.option("--target", type=click.Choice(["c", "cuda"]), default="c", show_default=True)
@click.option("--seed", default=1, show_default=True, metavar="N", help="Of the searches.")
@click.option("--workers", type=int, metavar="N", help="Processes at a time (default: one per core).")
@click.option("--json", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the rows.")
@click.option("--reports", metavar="DIR", type=click.Path(path_type=Path), help="Write the reports.")
def main(
    names: tuple[str, ...],
    form: str,
    target: str,
    seed: int,
    workers: int | None,
    path: Path | None,
    reports: Path | None,
) -> None:
    """Report every known mistake of `kda_chunk`, or of `kda_forward`, and hold the reports to account."""
    chosen = names or [
        m.name
        for m in CATALOGUE.values()
        if form in m.forms and target in m.targets and not (m.harmless or m.forward.call)
    ]
    plan = plan_catalogue(form, target, [seed], chosen)

    made: list[campaign.Row] = []

    def done(task: campaign.Task, rows: list[campaign.Row]) -> None:
        made.append(rows[0])
        print(f"{task.mutant.name}: {rows[0].said or rows[0].status}", file=sys.stderr, flush=True)
        if path is not None:  # as far as it came, should it be ended
            write_whole(path, json.dumps([row.data() for row in made], indent=2) + "\n")
        if reports is not None and isinstance(rows[0], Measured):
            write_whole(reports / f"{task.mutant.name}.txt", rows[0].report + "\n")

    campaign.run(plan.tasks, workers or len(os.sched_getaffinity(0)), each=done, work=measure)
    made.sort(key=lambda row: list(CATALOGUE).index(row.name))
    measured = [row for row in made if isinstance(row, Measured)]
    console = Console(width=200)
    console.print(table_of(measured))
    for row in made:
        if not isinstance(row, Measured):
            console.print(f"{row.name}: {row.status}: {row.law or ''} {row.said}", markup=False)
    if measured:
        print_totals(measured, len(made), console)
    good = all(row.right_stage and row.right_mistake and row.small and row.fits for row in measured)
    sys.exit(0 if good and len(measured) == len(made) else 1)


def table_of(rows: list[Measured]) -> Table:
    """A line per mistake; what is not as it should be in red."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("mistake", "first wrong stage", "looks like", "tokens", "numbers", "report", "script", "s", "case"):
        table.add_column(heading, justify="right" if heading in ("tokens", "numbers", "s") else "left")
    for row in rows:
        what = "race" if row.race else escape(", ".join(row.mistakes) or "-")
        why = f" ({REASONS[row.name]})" if row.name in REASONS else ""
        table.add_row(
            escape(row.name),
            _marked(row.stage or "-", row.right_stage),
            _marked("itself" if row.mistakes == (row.name,) else what, row.right_mistake),
            _marked(str(row.tokens), row.small),
            _marked(str(max(row.numbers.values(), default=0)), row.small),
            f"{row.lines} x {row.width}",
            _marked(f"{row.script_lines} lines, {row.scripted[0]} {row.scripted[1]}", row.fits),
            f"{row.reporting:.1f}",
            escape((row.case or "") + why),
        )
    return table


def print_totals(rows: list[Measured], of: int, console: Console) -> None:
    """How many are right, and the seconds that the reports took."""
    for what, count in (
        ("name the first wrong stage", sum(row.right_stage for row in rows)),
        ("name the mistake", sum(row.right_mistake for row in rows)),
        ("are as small as they can be", sum(row.small for row in rows)),
        ("fit, with a script that tells right from wrong", sum(row.fits for row in rows)),
    ):
        console.print(f"{count} of {of} {what}")
    seconds = sorted(row.reporting for row in rows)
    console.print(f"from first failure to report: median {median(seconds):.1f} s, at most {seconds[-1]:.1f} s")


def _marked(text: str, good: bool) -> str:
    return text if good else f"[red]{text}[/]"


if __name__ == "__main__":
    main()
