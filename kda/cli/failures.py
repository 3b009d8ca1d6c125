"""`kda diagnose`, `repro` and `compare`: what is wrong with a kernel, and how to show it to somebody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kda.case import Case
from kda.cli.asking import (
    DEFAULT_PROPERTY,
    LINE,
    TARGET,
    CaseLine,
    Misused,
    asked,
    console_for,
    folder_of_laws,
    implementation_named,
    law_named,
    laws_in,
    one_law,
    under_test,
)
from kda.files import write_whole

if TYPE_CHECKING:
    from kda.suite.laws import Law, Subject

__all__ = ["compare", "diagnose", "repro"]


@click.command()
@LINE
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="A law.")
@one_law
@click.option("--shrink", is_flag=True, help="Make the case smaller first.")
@click.option("--html", "pages", metavar="DIR", type=click.Path(path_type=Path), help="Write a page with pictures.")
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

    law = law_named(folder, name)
    implementation, target = under_test(impl, target, unchecked)
    subjects, why = asked(law, case, implementation, target)
    if not subjects:
        raise Misused(f"{law.name} cannot be asked; {why}")
    question = Question.of(folder_of_laws(folder), implementation, target, law.name)
    death = death_of(question, case)
    if death is not None:
        for line in retold(question, "\n".join(law.notes(subjects[0], str(case))), shrink, death):
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


@click.command()
@LINE
@click.option("-o", "--output", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write it there.")
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="The law that fails.")
@one_law
@click.option("--no-reduce", "whole", is_flag=True, help="The case as it is, not the smallest that fails like it.")
@click.option("--seconds", default=5.0, show_default=True, metavar="S", help="That reducing may take.")
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

    laws = laws_in(folder)  # all of them: a reduction may go on under another law
    law = laws[name] if name in laws else law_named(folder, name)
    implementation, target = under_test(impl, target, unchecked)
    subjects, why = asked(law, case, implementation, target)
    if not subjects:
        raise Misused(f"{law.name} cannot be asked; {why}")
    said = [f"law:     {law.name}: {law.sentence}", f"case:    {case}"]
    death = death_of(Question.of(folder_of_laws(folder), implementation, target, law.name), case)
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


@click.command()
@click.argument("first", metavar="IMPL1")
@click.argument("second", metavar="IMPL2")
@click.option("--cases", "number", default=100, show_default=True, metavar="N", help="Cases per operand format.")
@TARGET
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
    one, other = implementation_named(first), implementation_named(second)
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
    console = console_for()
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
