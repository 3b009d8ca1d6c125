"""How small the failure of each known mistake becomes: tokens and numbers left, seconds, lines of the script.

    python benchmarks/smallest.py [--only NAME]... [--target c] [--seed 1] [--workers N] [--json FILE] [--scripts DIR]

Every entry of the catalogue that can be made in the kernel, but for those that change nothing, is hunted with the law
and on the tile it names, in a process of its own; what is found is reduced and written as a script. `left` counts
removals of one token, number or sequence that still fail as clearly: none, unless the reduction was cut short.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median

import click
from rich import box
from rich.console import Console
from rich.table import Table

from kda.diagnosis.smallest import REASONS, Smallest, smallest
from kda.files import write_whole
from kda.mutation import campaign
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.plans import plan_catalogue


@click.command()
@click.option("--only", "names", metavar="NAME", multiple=True, help="This entry alone; may be repeated.")
@click.option("--target", type=click.Choice(["c", "cuda"]), default="c", show_default=True)
@click.option("--seed", default=1, show_default=True, metavar="N", help="Of the hunts.")
@click.option("--workers", type=int, metavar="N", help="Processes at a time (default: one per core).")
@click.option("--json", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the rows.")
@click.option("--scripts", metavar="DIR", type=click.Path(path_type=Path), help="Write the scripts.")
def main(
    names: tuple[str, ...], target: str, seed: int, workers: int | None, path: Path | None, scripts: Path | None
) -> None:
    """Hunt, reduce and write down every known mistake of the kernel."""
    chosen = names or [
        m.name for m in CATALOGUE.values() if "kernel" in m.forms and target in m.targets and not m.harmless
    ]
    plan = plan_catalogue("kernel", target, [seed], chosen)
    rows = campaign.run(plan.tasks, workers or len(os.sched_getaffinity(0)), work=smallest)
    made = [rows[task.mutant.name][0] for task in plan.tasks]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("mistake", "law", "tokens", "numbers", "in all", "tried", "seconds", "left", "lines", "why more"):
        table.add_column(heading, justify="left" if heading in ("mistake", "law", "why more") else "right")
    done = [row for row in made if isinstance(row, Smallest)]
    for row in done:
        most, total = max(row.numbers.values(), default=0), sum(row.numbers.values())
        why = "" if row.takes_a_glance else REASONS.get(row.name, "not known")
        figures = (row.tokens, most, total, row.tried, f"{row.reducing:.2f}", row.left, row.text.count("\n"))
        table.add_row(row.name, row.law, *map(str, figures), why)
        if scripts is not None:
            write_whole(scripts / f"{row.name}.py", row.text)
    console = Console(width=200)
    console.print(table)
    for row in made:
        if not isinstance(row, Smallest):
            console.print(f"{row.name}: {row.status}: {row.said}", markup=False)
    if done:
        glance = sum(row.takes_a_glance for row in done)
        seconds = [row.reducing for row in done]
        console.print(
            f"{glance} of {len(done)} at a glance; median {median(seconds):.2f} s, at most {max(seconds):.2f} s"
        )
    if path is not None:
        write_whole(path, json.dumps([row.data() for row in made], indent=2) + "\n")


if __name__ == "__main__":
    main()
