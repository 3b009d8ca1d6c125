"""`kda mutants`: mistakes made in a kernel, and which law sees each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kda.cli.asking import DEFAULT_IMPLEMENTATION, TARGET, Misused, chosen_implementation, console_for

if TYPE_CHECKING:
    from kda.implementations import Implementation
    from kda.mutation.campaign import Row
    from kda.mutation.plans import Plan

__all__ = ["mutants"]


@click.command()
@click.option("--impl", default="kernel", show_default=True, help="kernel, mirror, or what `kda check --impl` takes.")
@TARGET
@click.option("--catalogue", "which", flag_value="catalogue", default="catalogue", help="The known mistakes (default).")
@click.option("--generated", "which", flag_value="generated", help="One small change wherever an operator fits.")
@click.option("--only", "names", metavar="NAME", multiple=True, help="This mutant alone; may be repeated.")
@click.option("--seeds", default=1, show_default=True, metavar="N", help="Hunt each mutant from seeds 0..N-1.")
@click.option("--workers", type=int, metavar="N", help="Processes at a time (default: one per core).")
@click.option("--timeout", default=600.0, show_default=True, metavar="S", help="Seconds for one mutant, all its seeds.")
@click.option("--json", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the rows.")
@click.option("--diff", is_flag=True, help="Show what the mutants change, and run nothing.")
@click.pass_context
def mutants(
    ctx: click.Context,
    impl: str,
    target: str,
    which: str,
    names: tuple[str, ...],
    seeds: int,
    workers: int | None,
    timeout: float,
    path: Path | None,
    diff: bool,
) -> None:
    """Make mistakes in an implementation's source, one at a time, and see which law catches each.

    Exit status 1 where one survives unexplained, where an entry is stale, or where the original raises an alarm.
    """
    import os

    from kda.mutation import plans
    from kda.mutation.catalogue.mistake import form_in
    from kda.mutation.report import print_rows, write_rows

    if seeds < 1 or (workers is not None and workers < 1) or timeout < 1:
        raise Misused("--seeds, --workers and --timeout must be at least 1")
    name = {"kernel": DEFAULT_IMPLEMENTATION}.get(impl, impl)
    chosen, target = chosen_implementation(name, target)
    try:
        if which == "catalogue":
            plan = plans.plan_catalogue(form_in(chosen), target, range(seeds), names, name)
        else:
            plan = plans.plan_generated(name, target, range(seeds), names)
    except LookupError as error:
        raise Misused(str(error.args[0])) from None
    console = console_for()
    if diff:
        _print_differences(console, chosen, plan)
        return
    workers = workers or len(os.sched_getaffinity(0))
    original, rows = _campaign(plan, workers, timeout, progress=f"{which} of {chosen.name} on {target}")
    judged = {row.name: [row] for row in plan.settled}
    judged |= {mutant: [plans.judged(row, name) for row in made] for mutant, made in rows.items()}
    kept, doubles = plans.distinct(judged) if which == "generated" else (judged, {})
    print_rows(kept, doubles, console)
    alarms = [row for row in original if row.status != "survived"]
    for row in alarms:
        console.print(f"[red]the original is not clean[/]: {row.law} fails on {row.case}: {row.said}")
    looked = min(row.cases or 0 for row in original)
    if not looked:
        console.print("[red]nothing looked at the original[/]: no law applies to it, and no kill means anything")
    elif not alarms:
        console.print(f"the original, under the same: {looked} cases a seed, no alarm")
    if path is not None:
        write_rows(kept, path)
    ctx.exit(
        1
        if alarms or not looked or any(row.status in ("survived", "stale") for made in kept.values() for row in made)
        else 0
    )


def _campaign(plan: Plan, workers: int, timeout: float, progress: str) -> tuple[list[Row], dict[str, list[Row]]]:
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kda.mutation import campaign, plans

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(progress, total=len(plan.tasks) + 1)
        original = campaign.run([plan.control], 1, timeout)[plans.CONTROL]
        bar.advance(line)
        tasks = [replace(task, original=original[0].fingerprints) for task in plan.tasks]
        rows = campaign.run(tasks, workers, timeout, lambda task, made: bar.advance(line))
    return original, {task.mutant.name: rows[task.mutant.name] for task in tasks}


def _print_differences(console: Any, chosen: Implementation, plan: Plan) -> None:
    import ast
    import difflib

    sources = chosen.sources()
    for task in plan.tasks:
        console.print(f"[bold]{task.mutant.name}[/]: {task.mutant.sentence}", soft_wrap=True)
        for role, text in task.mutant.sources:
            # Both without comments and line breaks, as the tree has none.
            before, after = ast.unparse(ast.parse(sources[role].text)), ast.unparse(ast.parse(text))
            for difference in list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm=""))[2:]:
                console.print("  " + difference, markup=False, soft_wrap=True)
    for row in plan.settled:
        console.print(f"{row.name}: {row.status}: {row.said}", markup=False, soft_wrap=True)
