"""`kda guard`: the cases that once failed or came close."""

from __future__ import annotations

from pathlib import Path

import click

from kda.case import Case
from kda.cli.asking import ANY_LINE, DEFAULT_PROPERTY, PROPERTIES, Misused, folder_of_laws, law_named, laws_in
from kda.operation_case import OperationCase

__all__ = ["guard"]


@click.group()
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
@ANY_LINE
@click.option("--property", "name", default=DEFAULT_PROPERTY, show_default=True, help="The law that the case broke.")
@click.option("--comment", default="", help="Why it is there.")
@GUARD_FILE
@PROPERTIES
def add(case: Case | OperationCase, name: str, comment: str, path: Path | None, folder: Path | None) -> None:
    """Keep LINE: it is replayed on every later run."""
    from kda.suite.guard import GuardError, GuardLine
    from kda.suite.guard import add as add_line

    law = law_named(folder, name)
    path = path or folder_of_laws(folder) / "guard.txt"
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
    path = path or folder_of_laws(folder) / "guard.txt"
    try:
        entries = worst_of(report, above, most)
        unknown = sorted({entry.property for entry in entries} - set(laws_in(folder) if entries else ()))
        if unknown:
            raise Misused(f"{report} names {unknown[0]}, which is no property in {folder_of_laws(folder)}")
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

    path = path or folder_of_laws(folder) / "guard.txt"
    try:
        lines = read(path)
    except GuardError as error:
        raise Misused(str(error)) from None
    for line in lines:
        click.echo(str(line))
    if not lines:
        click.echo(f"{path} keeps no case", err=True)
