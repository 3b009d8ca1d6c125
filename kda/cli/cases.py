"""`kda check`, `show` and `impls`: a case, what it means, and what it can be asked of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kda.case import Case, Edit
from kda.cli.asking import (
    ANY_LINE,
    DEFAULT_PROPERTY,
    LINE,
    Misused,
    asked,
    implementation_named,
    law_named,
    laws_in,
    one_law,
    under_test,
)
from kda.kinds import FIELDS, KINDS

if TYPE_CHECKING:
    import numpy as np

    from kda.suite.laws import Law, Subject
    from kda.support import Support

__all__ = ["check", "impls", "show"]


@click.command()
@ANY_LINE
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="A law, or `all`.")
@one_law
@click.pass_context
def check(
    ctx: click.Context, case: Case, name: str, impl: str | None, target: str, unchecked: bool, folder: Path | None
) -> None:
    """Rerun one case on one law, and say how far within its budget it stays. Exit status 1 where it does not hold."""
    laws = [*laws_in(folder).values()] if name == "all" else [law_named(folder, name)]
    implementation, target = under_test(impl, target, unchecked)
    ran, passed = False, True
    for law in laws:
        subjects, why = asked(law, case, implementation, target)
        if len(laws) == 1 and not subjects:
            raise Misused(f"{law.name} cannot be asked; {why}")
        for subject in subjects:
            passed &= _examine(law, subject, case, brief=len(laws) > 1)
            ran = True
    if not ran:
        raise Misused(f"no law of {len(laws)} takes this case with {implementation.name} on {target}")
    ctx.exit(0 if passed else 1)


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


@click.command()
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
        found = implementation_named(name)
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


@click.command()
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
