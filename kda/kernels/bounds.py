"""Checking every index into the tiles of a CPU kernel, and that nothing is read before it was written.

A CPU program keeps its tiles in local arrays, so that the compiler can check each index: one that leaves its tile
overwrites a neighbour, often without a trace in the result. On CUDA the same index reaches into the next tile of shared
memory. kda/kernels/bounds.h says how the place comes back to Python. What no statement wrote holds a pattern here
instead of whatever was there, often zero: a result that depends on it differs from the plain kernel's.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from pathlib import Path

__all__ = ["TileError", "flags", "forget", "seen"]

_PATTERN = "-ftrivial-auto-var-init=pattern"

_NAME = b"KDA_OUT_OF_BOUNDS"
_C = ctypes.CDLL(None)
_C.getenv.restype = ctypes.c_char_p


class TileError(AssertionError):
    """A kernel used an index outside one of its own tiles."""


@functools.cache
def flags() -> tuple[str, ...]:
    """For the compiler. Optimised little: what is looked at is where it writes, not how fast."""
    checks = ("-O1", "-fsanitize=bounds,object-size", "-include", str(Path(__file__).with_name("bounds.h")))
    return (*checks, _PATTERN) if _takes(_PATTERN) else checks


def _takes(flag: str) -> bool:
    from tilelang.contrib.cc import get_cplus_compiler

    compiler = get_cplus_compiler() or "c++"
    asked = [compiler, flag, "-x", "c++", "-E", "/dev/null"]  # GCC before 12 does not know it
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def forget() -> None:
    """Forget what was seen."""
    _C.unsetenv(_NAME)


def seen(source: str) -> str | None:
    """The first index that left its tile since `forget`, in words; None where none did. source: the kernel's C code."""
    text: bytes | None = _C.getenv(_NAME)
    if text is None:
        return None
    found = re.fullmatch(r"'(\w+) \[(\d+)\]' (-?\d+)", text.decode())
    if found is None:
        return f"an access leaves its tile ({text.decode()})"
    kind, size, index = found.groups()
    tiles = re.findall(rf"^ *{kind} (\w+)\[{size}\];", source, re.MULTILINE)
    return f"an index into {' or '.join(tiles) or 'a tile'} is {index}; expected 0 to {int(size) - 1}"
