"""The guard file: the shrunk cases of past failures, and the worst that were found, replayed first on every run.

One line each: a case line, the property it broke, and a comment.

    v1,N=17,v=gauss kernel.matches_reference_A  # the state was not decayed
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kda.case import Case, CaseError
from kda.lines import case_of
from kda.operation_case import OperationCase

__all__ = ["GuardError", "GuardLine", "add", "read", "worst_of"]

_HEADER = """\
# Cases that once failed or came close, replayed first on every run: case line, property, comment.
# `kda guard add LINE --property NAME` adds one, `kda guard worst REPORT.json` the worst of a run.
"""


class GuardError(ValueError):
    """A line of the guard file that cannot be read: the file, the line number, what is wrong."""


@dataclass(frozen=True)
class GuardLine:
    """One entry: a case, the property it belongs to, and why it is there."""

    case: Case | OperationCase
    property: str
    comment: str = ""

    def __str__(self) -> str:
        comment = " ".join(self.comment.split())
        return f"{self.case} {self.property}" + (f"  # {comment}" if comment else "")


def read(path: Path) -> list[GuardLine]:
    """The entries of `path`, none where there is no file. GuardError names a line that is malformed."""
    entries = []
    for number, text in enumerate(path.read_text("utf-8").splitlines() if path.exists() else (), 1):
        content, _, comment = text.partition("#")
        words = content.split()
        if not words:
            continue
        if len(words) != 2:
            raise GuardError(f"{path}:{number}: {len(words)} words; expected a case line and a property")
        try:
            entries.append(GuardLine(case_of(words[0]), words[1], comment.strip()))
        except CaseError as error:
            raise GuardError(f"{path}:{number}: {error}") from error
    return entries


def worst_of(report: Path, above: float, most: int) -> list[GuardLine]:
    """Entries for the worst cases in the JSON report of a run: at most `most` per law, with ratios of at least `above`.

    GuardError: the file is not such a report, or holds a line that cannot be read.
    """
    entries = []
    try:
        properties = json.loads(report.read_text("utf-8"))["properties"]
        for name, record in properties.items():
            worst = [(float(ratio), case_of(line), str(subject)) for ratio, line, subject in record["worst"]]
            for ratio, case, subject in sorted(worst, key=lambda entry: -entry[0])[:most]:
                if ratio >= above:
                    entries.append(GuardLine(case, name, f"ratio {ratio:.2g} on {subject}"))
    except CaseError as error:
        raise GuardError(f"{report}: {name}: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise GuardError(
            f"{report} is not the report of a run ({type(error).__name__}: {error}); expected what --kda-report "
            "writes, with a list of the worst cases per law"
        ) from error
    return entries


def add(path: Path, entry: GuardLine) -> bool:
    """Append `entry` unless the same case and property are there; whether it was added. The file changes whole."""
    if any(old.case == entry.case and old.property == entry.property for old in read(path)):
        return False
    text = path.read_text("utf-8") if path.exists() else _HEADER
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text.rstrip("\n") + "\n" + f"{entry}\n", "utf-8")
    unfinished.replace(path)
    return True
