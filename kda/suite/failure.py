"""What a reader of a failed law sees: what is wrong, where it was said, and the lines to go on with. One screen."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["explain"]

# Hypothesis repeats as a call of `search`, and as a blob, what the case line already holds.
_REPEATS = ("search(", "@reproduce_failure(", "@seed(")


def explain(error: BaseException, root: Path) -> list[str] | None:
    """The lines to print for what a law raised; None where the error did not come out of its body.

    root: the folder that paths are written relative to.
    """
    frames = list(_frames_of_the_body(error.__traceback__))
    if not frames:
        return None
    places = [
        f"at {_relative(file, root)}:{number}: {linecache.getline(file, number).strip()}" for file, number in frames
    ]
    message = str(error).splitlines() or ["the assertion does not hold"]
    if not isinstance(error, AssertionError):
        message[0] = f"{type(error).__name__}: {message[0]}"
    if error.__cause__ is not None:
        message.append("because of " + traceback.format_exception_only(error.__cause__)[-1].strip())
    notes = [note for note in getattr(error, "__notes__", ()) if not any(repeat in note for repeat in _REPEATS)]
    return [*message, *places, *notes]


def _frames_of_the_body(tb: TracebackType | None) -> Iterator[tuple[str, int]]:
    # What lies between `Law.holds_for` and the comparison that failed, or the line that raised.
    inside = False
    for frame, number in traceback.walk_tb(tb):
        if frame.f_code.co_name == "holds_for":
            inside = True
        elif inside and not frame.f_locals.get("__tracebackhide__", False):
            yield frame.f_code.co_filename, number


def _relative(file: str, root: Path) -> str:
    path = Path(file)
    return os.fspath(path.relative_to(root)) if path.is_relative_to(root) else file
