"""What the commands have in common: what is asked, of which laws and implementations, and what is said of a misuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kda.case import Case, CaseError

if TYPE_CHECKING:
    from rich.console import Console

    from kda.implementations import Implementation
    from kda.suite.laws import Law, Subject

__all__ = [
    "ANY_LINE",
    "DEFAULT_IMPLEMENTATION",
    "DEFAULT_PROPERTY",
    "LINE",
    "PROPERTIES",
    "TARGET",
    "AnyLine",
    "CaseLine",
    "Misused",
    "asked",
    "chosen_implementation",
    "console_for",
    "folder_of_laws",
    "implementation_named",
    "law_named",
    "laws_in",
    "one_law",
    "under_test",
]

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
        """The case; `Misused` for a line that means nothing."""
        try:
            return value if isinstance(value, Case) else Case.parse(value)
        except CaseError as error:
            raise Misused(str(error)) from None


class AnyLine(CaseLine):
    """A case line, or the line of a call of the operation."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The case, of either kind; `Misused` for a line that means nothing."""
        from kda.lines import case_of

        try:
            return case_of(value) if isinstance(value, str) else value
        except CaseError as error:
            raise Misused(str(error)) from None


LINE = click.argument("case", metavar="LINE", type=CaseLine())
ANY_LINE = click.argument("case", metavar="LINE", type=AnyLine())
PROPERTIES = click.option(
    "--properties",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder of the laws (default: ./properties, else that of the source checkout).",
)
TARGET = click.option("--target", type=click.Choice(["auto", "c", "cuda"]), default="auto", show_default=True)


def one_law(command: Command) -> Command:
    """The options that say what one case is asked of: law, implementation, target, and where the laws are."""
    for option in (
        PROPERTIES,
        click.option("--unchecked", is_flag=True, help="Compute gates outside the domain instead of refusing them."),
        TARGET,
        click.option(
            "--impl",
            help=f"An implementation: a name, file.py:Class or module:Class [default: {DEFAULT_IMPLEMENTATION}]",
        ),
    ):
        command = option(command)
    return command


def under_test(impl: str | None, target: str, unchecked: bool) -> tuple[Implementation, str]:
    """What `--impl`, `--target` and `--unchecked` say together, and the target it runs on."""
    implementation, target = chosen_implementation(impl or DEFAULT_IMPLEMENTATION, target)
    if unchecked:
        bold = implementation.unchecked()
        if bold is None:
            raise Misused(f"{implementation.name} cannot run unchecked; drop --unchecked")
        implementation = bold
    return implementation, target


def asked(law: Law, case: Case, implementation: Implementation, target: str) -> tuple[list[Subject], str]:
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


def folder_of_laws(folder: Path | None) -> Path:
    """Where the laws are: `folder`, or where None the one here, or that of the checkout."""
    import kda

    checkout = Path(kda.__file__).parent.parent / "properties"
    for candidate in [Path("properties"), checkout] if folder is None else [folder]:
        if any(candidate.glob("test_*.py")):
            return candidate
    if folder is None:
        raise Misused("there is no ./properties with test_*.py in it; --properties says where the laws are")
    raise Misused(f"--properties is {folder}, where there is no test_*.py")


def laws_in(folder: Path | None, room: str | None = None) -> dict[str, Law]:
    """The laws of a folder, by name; of one file alone where `room` is given."""
    from kda.suite.laws import load_laws

    try:
        return load_laws(folder_of_laws(folder), room)
    except LookupError as error:
        raise Misused(str(error)) from None


def law_named(folder: Path | None, name: str) -> Law:
    """The law called `name`."""
    room = name.partition(".")[0]
    alone = (folder_of_laws(folder) / f"test_{room}.py").is_file()
    laws = laws_in(folder, room if alone else None)
    if name not in laws:
        rooms = sorted({known.partition(".")[0] for known in laws})
        expected = f"one of {', '.join(sorted(laws))}" if alone else f"a name that begins with {'., '.join(rooms)}."
        raise Misused(f"no property is called {name!r}; expected {expected}")
    return laws[name]


def implementation_named(name: str) -> Implementation:
    """The implementation called `name`."""
    from kda.implementations import implementation

    try:
        return implementation(name)
    except (LookupError, TypeError) as error:
        raise Misused(str(error)) from None


def chosen_implementation(name: str, target: str) -> tuple[Implementation, str]:
    """The implementation called `name`, and the target it runs on."""
    from kda.implementations import target_of

    found = implementation_named(name)
    try:
        return found, target_of(found, target)
    except ValueError as error:
        raise Misused(str(error)) from None


def console_for() -> Console:
    """The terminal; elsewhere wide enough that case lines stay whole in a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)
