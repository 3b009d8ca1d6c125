"""The command `kda`: rerun a case, read a case line, list implementations, keep a failure.

Each command imports what it needs when it runs, so that those that only read a line start at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kda.case import Case, CaseError, Edit
from kda.files import replace_between, write_whole
from kda.kinds import FIELDS, KINDS

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from kda.implementations import Implementation
    from kda.mutation.campaign import Row
    from kda.mutation.plans import Plan
    from kda.suite.laws import Law, Subject
    from kda.support import Support

__all__ = ["main"]

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_PROPERTY = "kernel.matches_reference_A"
DEFAULT_IMPLEMENTATION = "kda_chunk"


class Misused(click.ClickException):
    """What was asked for does not exist or makes no sense; one sentence, exit status 2."""

    exit_code = 2


class CaseLine(click.ParamType):
    """A case line on the command line."""

    name = "line"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Case:
        try:
            return value if isinstance(value, Case) else Case.parse(value)
        except CaseError as error:
            raise Misused(str(error)) from None


LINE = click.argument("case", metavar="LINE", type=CaseLine())
PROPERTIES = click.option(
    "--properties",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder of the laws (default: ./properties, else that of the source checkout).",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Property tests for Kimi Delta Attention kernels: cases, laws, implementations, past failures."""


@main.command()
@LINE
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="A law, or `all`.")
@click.option(
    "--impl", help=f"An implementation: a name, file.py:Class or module:Class [default: {DEFAULT_IMPLEMENTATION}]"
)
@click.option("--target", type=click.Choice(["auto", "c", "cuda"]), default="auto", show_default=True)
@click.option("--unchecked", is_flag=True, help="Compute gates outside the domain instead of refusing them.")
@PROPERTIES
@click.pass_context
def check(
    ctx: click.Context, case: Case, name: str, impl: str | None, target: str, unchecked: bool, folder: Path | None
) -> None:
    """Rerun one case on one law, and say how far within its budget it stays. Exit status 1 where it does not hold."""
    laws = [*_laws(folder).values()] if name == "all" else [_law(folder, name)]
    implementation, target = _under_test(impl, target, unchecked)
    ran, passed = False, True
    for law in laws:
        subjects, why = _asked(law, case, implementation, target)
        if len(laws) == 1 and not subjects:
            raise Misused(f"{law.name} cannot be asked; {why}")
        for subject in subjects:
            passed &= _examine(law, subject, case, brief=len(laws) > 1)
            ran = True
    if not ran:
        raise Misused(f"no law of {len(laws)} takes this case with {implementation.name} on {target}")
    ctx.exit(0 if passed else 1)


def _under_test(impl: str | None, target: str, unchecked: bool) -> tuple[Implementation, str]:
    implementation, target = _chosen(impl or DEFAULT_IMPLEMENTATION, target)
    if unchecked:
        bold = implementation.unchecked()
        if bold is None:
            raise Misused(f"{implementation.name} cannot run unchecked; drop --unchecked")
        implementation = bold
    return implementation, target


def _asked(law: Law, case: Case, implementation: Implementation, target: str) -> tuple[list[Subject], str]:
    """The subjects that `law` can ask about `case`, and why it cannot ask the others."""
    reasons = {subject: _unfit(law, subject, case, implementation) for subject in law.subjects(implementation, target)}
    unfit = {subject: reason for subject, reason in reasons.items() if reason is not None}
    near = [subject for subject in unfit if subject.dtype == case.dtype] or list(unfit)
    why = "; ".join(f"{s}: {unfit[s]}" for s in near) or f"it is not about {implementation.name} on {target}"
    return [subject for subject in reasons if subject not in unfit], why


def _unfit(law: Law, subject: Subject, case: Case, implementation: Implementation) -> str | None:
    # Of a law about references, the one that was named is asked.
    if implementation.address in law.of and subject.implementation.name != implementation.address:
        return f"--impl is {implementation.address}"
    return law.excludes(subject, case)


@main.command()
@LINE
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="A law.")
@click.option("--impl", help=f"As `kda check` takes it [default: {DEFAULT_IMPLEMENTATION}]")
@click.option("--target", type=click.Choice(["auto", "c", "cuda"]), default="auto", show_default=True)
@click.option("--unchecked", is_flag=True, help="Compute gates outside the domain instead of refusing them.")
@click.option("--shrink", is_flag=True, help="Make the case smaller first.")
@click.option("--html", "pages", metavar="DIR", type=click.Path(path_type=Path), help="Write a page with pictures.")
@PROPERTIES
@click.pass_context
def diagnose(
    ctx: click.Context,
    case: Case,
    name: str,
    impl: str | None,
    target: str,
    unchecked: bool,
    shrink: bool,
    pages: Path | None,
    folder: Path | None,
) -> None:
    """Say what is wrong where LINE breaks a law: which cells, which stage of the kernel, and what it looks like.

    Runs it many times, for a race may hold once. Exit status 1 where the law does not hold.
    """
    from kda.diagnosis.death import Question, death_of, retold
    from kda.diagnosis.report import understood
    from kda.suite.finding import find

    law = _law(folder, name)
    implementation, target = _under_test(impl, target, unchecked)
    subjects, why = _asked(law, case, implementation, target)
    if not subjects:
        raise Misused(f"{law.name} cannot be asked; {why}")
    question = Question.of(_folder(folder), implementation, target, law.name)
    if death_of(question, case) is not None:
        for line in retold(question, "\n".join(law.notes(subjects[0], str(case))), shrink):
            click.echo(line)
        ctx.exit(1)
    failed = False
    for subject in subjects:
        found = find(law, subject, _many_times(subject, case))
        if found is None:
            click.echo(f"{law.name} on {subject}: holds, {REPEATS} times")
            continue
        failed = True
        report = understood(law, subject, found, Path.cwd(), shrink=shrink)
        for line in report.lines:
            click.echo(line)
        if pages is not None:
            click.echo(f"page:  {report.write_page(pages)}")
    ctx.exit(1 if failed else 0)


#: How often `diagnose` runs a case that holds.
REPEATS = 30


def _many_times(subject: Subject, case: Case) -> Callable[[Law], None]:
    from kda.suite.record import Record

    def search(law: Law) -> None:
        for _ in range(REPEATS):
            law.holds_for(subject, case, Record(law.name, subject.id))

    return search


def _examine(law: Law, subject: Subject, case: Case, brief: bool) -> bool:
    from kda.problem import InputError
    from kda.suite.failure import explain
    from kda.suite.record import Record

    record, said = Record(law.name, subject.id), list[str]()
    heading = f"law:   {law.name}: {law.sentence}\ncase:  {case}\non:    {subject}"
    try:
        law.holds_for(subject, case, record, said=said)
    except Exception as error:
        click.echo(heading)
        _echo_indented(said)
        lines = explain(error, Path.cwd()) or [str(error)]
        _echo_indented(line for line in lines if line not in said and not line.startswith(("law: ", "case: ")))
        click.secho("refused" if isinstance(error, InputError) else "failed", fg="red", bold=True)
        return False
    verdict = click.style(f"passed, worst ratio {record.worst_ratio:.3g}", fg="green")
    if record.untrusted:
        why = "the budget exceeds the signal, or what the law changes changed nothing"
        verdict = click.style(f"untrusted: {why}", fg="yellow")
    if brief:
        click.echo(f"{law.name} on {subject}: {verdict}")
    else:
        click.echo(heading)
        _echo_indented(said)
        click.echo(verdict)
    return True


def _echo_indented(lines: Any) -> None:
    for line in lines:
        click.echo(f"  {line}")


@main.command()
@click.argument("first", metavar="IMPL1")
@click.argument("second", metavar="IMPL2")
@click.option("--cases", "number", default=100, show_default=True, metavar="N", help="Cases per operand format.")
@click.option("--target", type=click.Choice(["auto", "c", "cuda"]), default="auto", show_default=True)
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(["f16", "bf16", "f32", "f64"]), help="Only this format."
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="What the cases are drawn from.")
@click.option("--case", metavar="LINE", type=CaseLine(), help="This case alone.")
@click.option("--json", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the figures.")
@click.pass_context
def compare(
    ctx: click.Context,
    first: str,
    second: str,
    number: int,
    target: str,
    dtypes: tuple[str, ...],
    seed: int,
    case: Case | None,
    path: Path | None,
) -> None:
    """Run IMPL1 and IMPL2 on the same cases: where they agree, and the smallest case in which they do not.

    The cases are those that both can run. On a target that only one of them has, the other runs where it can. Exit
    status 1 where they differ by more than the sum of both budgets, or one raises what the other does not.
    """
    import json
    import shlex

    from kda.diagnosis.comparing import DIFFERENT, Comparison, drawn, pairs
    from kda.diagnosis.comparing_show import data, print_comparisons, print_difference
    from kda.formats import format_named

    if number < 1:
        raise Misused(f"--cases is {number}; expected at least 1")
    one, other = _implementation(first), _implementation(second)
    if target != "auto" and target not in (*one.targets(), *other.targets()):
        raise Misused(f"neither {one.name} nor {other.name} runs on {target} here")
    on, other_on = (target if target in found.targets() else found.targets()[0] for found in (one, other))
    wanted = [format_named(name) for name in dtypes] or ([] if case is None else [case.dtype])
    try:
        made = pairs(one, other, (on, other_on), wanted)
    except ValueError as error:
        raise Misused(str(error)) from None
    if case is None:
        comparisons = [drawn(pair, number, seed) for pair in made]
    else:
        reason = made[0].support.refuses(case)
        if reason is not None:
            raise Misused(f"--case is not for both: {reason}")
        comparisons = [Comparison(made[0], seed, (made[0].compared(case),))]
    console = _console()
    click.echo(f"{first} on {on} and {second} on {other_on}, {f'seed {seed}' if case is None else case}")
    print_comparisons(comparisons, console)
    differing = next((c for c in comparisons if any(found.status in DIFFERENT for found in c.found)), None)
    smallest = None
    if differing is not None:
        smallest = differing.smallest_difference() if case is None else differing.found[0]
        assert smallest is not None
        rerun = f"kda compare {shlex.join((first, second))} --target {target}"
        print_difference(smallest, differing, rerun, console)
    if not any(comparison.computed for comparison in comparisons):
        click.echo("nothing was compared: no case was computed by both")
    if path is not None:
        write_whole(path, json.dumps(data(comparisons, smallest), indent=2, allow_nan=False) + "\n")
    ctx.exit(1 if any(comparison.differs for comparison in comparisons) else 0)


@main.command()
@LINE
@click.option("-o", "--output", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write it there.")
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="The law that fails.")
@click.option(
    "--impl", help=f"An implementation: a name, file.py:Class or module:Class [default: {DEFAULT_IMPLEMENTATION}]"
)
@click.option("--target", type=click.Choice(["auto", "c", "cuda"]), default="auto", show_default=True)
@click.option("--unchecked", is_flag=True, help="Compute gates outside the domain instead of refusing them.")
@click.option("--no-reduce", "whole", is_flag=True, help="The case as it is, not the smallest that fails like it.")
@click.option("--seconds", default=5.0, show_default=True, metavar="S", help="That reducing may take.")
@PROPERTIES
def repro(
    case: Case,
    path: Path | None,
    name: str,
    impl: str | None,
    target: str,
    unchecked: bool,
    whole: bool,
    seconds: float,
    folder: Path | None,
) -> None:
    """Write a script that shows what fails on LINE with the kernel and NumPy alone; reduced first.

    Exit status 2 where the law holds: there is nothing to reproduce.
    """
    from kda.diagnosis.death import Question, death_of
    from kda.diagnosis.race import measured
    from kda.diagnosis.reduce import reduced
    from kda.diagnosis.script import CRASHED, HUNG, script
    from kda.suite.finding import find

    laws = _laws(folder)  # all of them: a reduction may go on under another law
    law = laws[name] if name in laws else _law(folder, name)
    implementation, target = _under_test(impl, target, unchecked)
    subjects, why = _asked(law, case, implementation, target)
    if not subjects:
        raise Misused(f"{law.name} cannot be asked; {why}")
    said = [f"law:     {law.name}: {law.sentence}", f"case:    {case}"]
    death = death_of(Question.of(_folder(folder), implementation, target, law.name), case)
    if death is not None:
        text = script(law, subjects[0], case, ended=HUNG if death.hung else CRASHED)
    else:
        found = next(((s, failed) for s in subjects if (failed := find(law, s, _many_times(s, case)))), None)
        if found is None:
            raise Misused(f"{law.name} holds on {case} with {subjects[0]}: there is nothing to reproduce")
        subject, failed = found
        if not failed.steady:
            case, repeats = measured(law, subject, failed, None, not whole)
            said = [said[0], f"case:    {case}", f"note:    {repeats.lines()[0]}"]
            text = script(law, subject, case, repeats.error, unsteady=True)
        elif whole:
            text = script(law, subject, case, failed.error)
        else:
            smallest = reduced(law, subject, case, failed.error, seconds)
            said = [f"law:     {smallest.law.name}: {smallest.law.sentence}", f"case:    {smallest.case}"]
            said += [f"dropped: {smallest.dropped}", *([f"note:    {smallest.said}"] if smallest.said else [])]
            text = script(smallest.law, subject, smallest.case, smallest.error)
    for line in said:
        click.echo(line, err=path is None)
    if path is None:
        click.echo(text, nl=False)
        return
    try:
        write_whole(path, text)
    except OSError as problem:
        raise Misused(str(problem)) from None
    click.echo(f"wrote {path}")


@main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
def impls(names: tuple[str, ...]) -> None:
    """List the implementations that are installed (or NAMEs such as file.py:Class), and what each supports."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from kda.implementations import implementation_names

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    for heading in ("name", "what it is", "target", "dtypes", "sizes", "limits"):
        table.add_column(heading, no_wrap=heading in ("name", "target", "dtypes"))
    for name in names or implementation_names():
        found = _implementation(name)
        for target in found.targets():
            dtypes = found.dtypes(target)
            support = [found.support(target, dtype) for dtype in dtypes]
            gates = [(d, s.max_total_gate(d)) for d, s in zip(dtypes, support, strict=True)]
            bounds = [f"{d} {total:.4g}" for d, total in gates if total < float("inf")]
            limits = [f"beta <= {support[0].max_beta:g}"]
            if bounds:
                limits.append(f"|sum g| per chunk: {', '.join(bounds)}")
            if not support[0].initial_state:
                limits.append("no initial state")
            table.add_row(
                name, found.summary, target, " ".join(map(str, dtypes)), _sizes_of(support[0]), "; ".join(limits)
            )
    Console(highlight=False).print(table)


def _sizes_of(support: Support) -> str:
    if support.tiles is None:
        return f"any DK <= {support.max_DK}, DV <= {support.max_DV}, C <= {support.max_C}"
    spans = (
        f"{axis} {_span({getattr(tile, axis) for tile in support.tiles})}" for axis in ("DK", "DV", "C", "block_DV")
    )
    return f"{len(support.tiles)} tiles: {', '.join(spans)}"


def _span(values: set[int]) -> str:
    return f"{min(values)}..{max(values)}" if len(values) > 1 else str(min(values))


@main.command()
@LINE
def show(case: Case) -> None:
    """Say what LINE means: its fields, its sizes, the gate domain, and the first values it makes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("field", "value", "", "meaning"):
        table.add_column(heading)
    for row in _fields(case):
        table.add_row(*row)
    console.print(table)
    inputs = case.inputs()
    chunks, tail = divmod(case.N, case.C)
    console.print(f"{case.id}: {chunks} full chunks of {case.C} tokens" + (f" and a tail of {tail}" if tail else ""))
    console.print(_domain(case, inputs.g, inputs.k))
    console.print("\nfirst values (batch 0, head 0; tokens or key channels down, channels across):")
    for name, array in inputs.tensors():
        console.print(f"{name} {list(array.shape)}")
        for row in _first(name, array):
            console.print("  " + " ".join(f"{value:>11.5g}" for value in row))


_MEANING = {
    "B": "batch",
    "N": "tokens",
    "H": "heads",
    "DK": "key and gate channels",
    "DV": "value channels",
    "C": "chunk length, in tokens",
    "block_DV": "value channels per program",
    "dtype": "format of q, k and v",
    "threads": "threads per program; None: the kernel's own choice",
    "num_stages": "depth of the software pipeline over chunks",
    "seed": "shared by all random kinds",
}


def _fields(case: Case) -> Iterator[tuple[str, str, str, str]]:
    plain = Case()
    for name in ("B", "N", "H", "DK", "DV", "C", "block_DV", "dtype", "threads", "num_stages", *FIELDS, "seed"):
        value = getattr(case, name)
        about = KINDS[name][value.name].about if name in FIELDS else _MEANING[name]
        yield name, str(value), "default" if value == getattr(plain, name) else "", about
    for edit in case.edits:
        yield "edit", str(edit), "", f"{edit.tensor} becomes {edit.value:g} at {_place(edit)}"


def _place(edit: Edit) -> str:
    from kda.problem import AXIS_WORDS

    at = ", ".join(f"{AXIS_WORDS[axis]} {i}" for axis, i in zip(edit.axes, edit.index, strict=True))
    return at if "B" in edit.axes else f"{at}, in every batch and head"


def _domain(case: Case, g: np.ndarray, k: np.ndarray) -> str:
    from kda.numerics.domain import DomainError, chunk_gamma, gate_domain

    domain = gate_domain(case.dtype, case.C)
    try:
        domain.check(g, float(abs(k).max()))
    except DomainError as error:
        return f"outside the gate domain: {error}"
    deepest = max(0.0, -float(chunk_gamma(g, case.C).min()))
    return f"inside the gate domain: |sum g| per chunk is at most {deepest:.5g}, {case.dtype} takes {domain.total:.5g}"


def _first(name: str, array: np.ndarray, rows: int = 4, columns: int = 6) -> np.ndarray:
    if name == "beta":
        return array[0, :columns, :1].T
    return array[0, 0, :rows, :columns] if name == "initial_state" else array[0, :rows, 0, :columns]


@main.command()
@click.option("--impl", default="kernel", show_default=True, help="kernel, mirror, or what `kda check --impl` takes.")
@click.option("--target", type=click.Choice(["auto", "c", "cuda"]), default="auto", show_default=True)
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
    from kda.mutation.report import print_rows, write_rows

    if seeds < 1 or (workers is not None and workers < 1) or timeout < 1:
        raise Misused("--seeds, --workers and --timeout must be at least 1")
    name = {"kernel": DEFAULT_IMPLEMENTATION}.get(impl, impl)
    chosen, target = _chosen(name, target)
    form = {"mirror": "mirror", "ref_B": "reference"}.get(name, "kernel")
    try:
        if which == "catalogue":
            plan = plans.plan_catalogue(form, target, range(seeds), names, name)
        else:
            plan = plans.plan_generated(name, target, range(seeds), names)
    except LookupError as error:
        raise Misused(str(error.args[0])) from None
    console = _console()
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


@main.command()
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
    print_table(made, _console())
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


@main.command()
@click.option("--impl", metavar="NAME", help="The kernel that is asked, on its own rows (default: mirrors of all).")
@click.option("--target", type=click.Choice(["auto", "c", "cuda"]), default="auto", show_default=True)
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
        chosen, target = _chosen(impl, target)
        if chosen.unchecked() is None:
            raise Misused(f"{chosen.name} cannot run unchecked; expected an implementation that can")
        on = border.Subject(impl, target)
        asked = [row for row in asked if on.takes(row)]
        if not asked:
            raise Misused(f"{chosen.name} on {target} has no row of these; drop --C or --dtype")
    workers = workers or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        made = list(pool.map(partial(border.row, cases=cases, on=on), asked))
    border.print_table(made, _console())
    if path is not None:
        write_whole(path, json.dumps(border.data(made), indent=2) + "\n")
    if page is not None:
        _write_into(page, "kda domain", border.markdown(made))
    ctx.exit(0 if all(row.holds for row in made) else 1)


@main.command()
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
    study.print_table(made, _console())
    if path is not None:
        write_whole(path, json.dumps(study.data(made), indent=2, allow_nan=False) + "\n")
    if page is not None:
        _write_into(page, "kda solve", study.markdown(made))


def _console() -> Console:
    """The terminal; elsewhere wide enough that case lines stay whole in a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def _write_into(page: Path, name: str, table: str) -> None:
    try:
        replace_between(page, name, table)
    except (OSError, ValueError) as error:
        raise Misused(str(error)) from None


@main.group()
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


@main.group()
def guard() -> None:
    """The cases that once failed or came close, and are replayed first on every run."""


GUARD_FILE = click.option(
    "--file",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The guard file (default: guard.txt in the folder of the laws).",
)


@guard.command()
@LINE
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="The law that the case broke.")
@click.option("--comment", default="", help="Why it is there.")
@GUARD_FILE
@PROPERTIES
def add(case: Case, name: str, comment: str, path: Path | None, folder: Path | None) -> None:
    """Keep LINE: it is replayed on every later run."""
    from kda.suite.guard import GuardError, GuardLine
    from kda.suite.guard import add as add_line

    law = _law(folder, name)
    path = path or _folder(folder) / "guard.txt"
    try:
        added = add_line(path, GuardLine(case, law.name, comment))
    except (GuardError, OSError) as error:
        raise Misused(str(error)) from None
    click.echo(f"added to {path}" if added else f"already in {path}")


@guard.command()
@click.argument("report", metavar="REPORT", type=click.Path(path_type=Path))
@click.option("--above", default=0.5, show_default=True, metavar="RATIO", help="Only ratios of at least this.")
@click.option("--most", default=3, show_default=True, metavar="N", help="Lines per law.")
@GUARD_FILE
@PROPERTIES
def worst(report: Path, above: float, most: int, path: Path | None, folder: Path | None) -> None:
    """Keep the worst cases of each law in REPORT, which `pytest --kda-report` wrote."""
    from kda.suite.guard import GuardError, worst_of
    from kda.suite.guard import add as add_line

    if not above > 0 or most < 1:
        raise Misused(f"--above is {above:g} and --most is {most}; expected a ratio above 0, and at least 1 line")
    path = path or _folder(folder) / "guard.txt"
    try:
        entries = worst_of(report, above, most)
        unknown = sorted({entry.property for entry in entries} - set(_laws(folder) if entries else ()))
        if unknown:
            raise Misused(f"{report} names {unknown[0]}, which is no property in {_folder(folder)}")
        added = [entry for entry in entries if add_line(path, entry)]
    except (GuardError, OSError) as error:
        raise Misused(str(error)) from None
    for entry in added:
        click.echo(str(entry))
    click.echo(f"{len(added)} added to {path}, {len(entries) - len(added)} already there")


@guard.command(name="list")
@GUARD_FILE
@PROPERTIES
def list_(path: Path | None, folder: Path | None) -> None:
    """List the lines that are kept."""
    from kda.suite.guard import GuardError, read

    path = path or _folder(folder) / "guard.txt"
    try:
        lines = read(path)
    except GuardError as error:
        raise Misused(str(error)) from None
    for line in lines:
        click.echo(str(line))
    if not lines:
        click.echo(f"{path} keeps no case", err=True)


def _folder(folder: Path | None) -> Path:
    import kda

    checkout = Path(kda.__file__).parent.parent / "properties"
    for candidate in [Path("properties"), checkout] if folder is None else [folder]:
        if any(candidate.glob("test_*.py")):
            return candidate
    if folder is None:
        raise Misused("there is no ./properties with test_*.py in it; --properties says where the laws are")
    raise Misused(f"--properties is {folder}, where there is no test_*.py")


def _laws(folder: Path | None, room: str | None = None) -> dict[str, Law]:
    from kda.suite.laws import load_laws

    try:
        return load_laws(_folder(folder), room)
    except LookupError as error:
        raise Misused(str(error)) from None


def _law(folder: Path | None, name: str) -> Law:
    room = name.partition(".")[0]
    alone = (_folder(folder) / f"test_{room}.py").is_file()
    laws = _laws(folder, room if alone else None)
    if name not in laws:
        rooms = sorted({known.partition(".")[0] for known in laws})
        expected = f"one of {', '.join(sorted(laws))}" if alone else f"a name that begins with {'., '.join(rooms)}."
        raise Misused(f"no property is called {name!r}; expected {expected}")
    return laws[name]


def _implementation(name: str) -> Implementation:
    from kda.implementations import implementation

    try:
        return implementation(name)
    except (LookupError, TypeError) as error:
        raise Misused(str(error)) from None


def _chosen(name: str, target: str) -> tuple[Implementation, str]:
    from kda.implementations import target_of

    found = _implementation(name)
    try:
        return found, target_of(found, target)
    except ValueError as error:
        raise Misused(str(error)) from None
