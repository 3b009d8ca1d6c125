"""How a report is laid out: within so many columns, with commands that can be copied."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

__all__ = ["INDENT", "WIDTH", "fitted", "fitted_notes"]

#: Columns of a report, and of a case line that the commands can hold.
WIDTH, LONG = 100, 70
#: Before a line that goes on with the one above it.
INDENT = " " * 7


def fitted(lines: list[str], line: str) -> list[str]:
    """`lines`, the notes of a law among them, at most `WIDTH` columns wide; line: the case that they are about.

    A case line that is too long for the commands is said once, as a variable of the shell, which they then use.
    """
    if len(line) <= LONG:
        return [piece for text in lines for piece in _pieces(text)]
    fitted: list[str] = []
    for text in lines:
        if text.startswith("case: ") and text.split()[1] == line:
            fitted += _variable(line)
        elif not text.startswith("guard: "):
            fitted += _pieces(text.replace(line, "$LINE"))
    return fitted


def fitted_notes(text: str) -> list[str]:
    """`fitted`, for what a watch kept: the notes of a law, about the last case in them."""
    lines = text.splitlines()
    cases = [line.split()[1] for line in lines if line.startswith("case: ")]
    return fitted(lines, cases[-1]) if cases else lines


def _variable(line: str) -> Iterator[str]:
    """`LINE=...`, broken where a shell joins it again: after a comma or a slash."""
    rest = f"LINE={line}"
    while len(rest) > WIDTH:
        at = max(rest.rfind(mark, 0, WIDTH - 1) for mark in ",/") + 1
        at = at or WIDTH - 1
        yield f"{rest[:at]}\\"
        rest = rest[at:]
    yield rest


def _pieces(line: str) -> Iterator[str]:
    if len(line) <= WIDTH:
        yield line
    elif line.startswith(("rerun: ", "write: ", "keep: ")):
        yield from _command(line)
    else:
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=INDENT, break_long_words=False)


def _command(line: str) -> Iterator[str]:
    # What is pasted into a shell is broken where a shell lets it be.
    for option in (" --property", " --impl"):
        first, found, rest = line.partition(option)
        if found and len(line) > WIDTH:
            yield f"{first} \\"
            line = f"{INDENT}{found.strip()}{rest}"
    yield line
