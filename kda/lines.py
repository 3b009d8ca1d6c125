"""Reading a line of text that may hold a case of a kernel or a call of the operation."""

from __future__ import annotations

from kda.case import Case
from kda.operation_case import OPERATION_VERSION, OperationCase

__all__ = ["case_of"]


def case_of(line: str) -> Case | OperationCase:
    """What `line` holds, by the version that it begins with. CaseError for a line that means nothing."""
    operation = line.strip().partition(",")[0] == OPERATION_VERSION
    return OperationCase.parse(line) if operation else Case.parse(line)
