"""Implementations under test, found by name.

Built in: `ref_A`, `ref_B`, `ref_C`, `kda_chunk`, its `mirror`, `kda_forward`, its `mirror_forward`, its program for
Hopper GPUs `kda_hopper` and that one's `mirror_hopper`, its program for short sequences `kda_steps`, and mirrors of
kernels that split over sub-chunks, `mirror_sub16` to `mirror_sub64`. Packages add theirs through the entry point group
`kda.implementations`; a class in a file is named `path/to/file.py:Name`, one in a module `package.module:Name`. An
edited copy of a kernel's file is one too: `path/to/chunk.py:kda_chunk`, `path/to/forward.py:kda_forward`,
`path/to/steps.py:kda_steps`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from kda.implementations.base import PLAIN, Implementation, Memory, MemoryViolation

__all__ = [
    "PLAIN",
    "Implementation",
    "Memory",
    "MemoryViolation",
    "implementation",
    "implementation_names",
    "target_of",
]

GROUP = "kda.implementations"
# By the names of their classes: `builtin` imports torch, and a command that only reads a case line needs none of it.
_BUILT_IN = {
    "kda_chunk": "KdaChunk",
    "kda_forward": "KdaForward",
    "kda_hopper": "KdaHopper",
    "kda_steps": "KdaSteps",
    "mirror": "Mirror",
    "mirror_forward": "MirrorForward",
    "mirror_hopper": "MirrorHopper",
    "mirror_sub16": "MirrorSub16",
    "mirror_sub32": "MirrorSub32",
    "mirror_sub64": "MirrorSub64",
    "ref_A": "ReferenceA",
    "ref_B": "ReferenceB",
    "ref_C": "ReferenceC",
}


def implementation_names() -> tuple[str, ...]:
    """The names of all implementations that are installed."""
    return (*_BUILT_IN, *sorted({point.name for point in entry_points(group=GROUP)} - set(_BUILT_IN)))


def implementation(name: str) -> Implementation:
    """The implementation called `name` (or `file.py:Name`, `module:Name`).

    Raises LookupError for a name that is not installed or cannot be imported, TypeError for an object that is no
    `Implementation`.
    """
    if name in _BUILT_IN:
        from kda.implementations import builtin

        return _made(getattr(builtin, _BUILT_IN[name]), name)
    for point in entry_points(group=GROUP, name=name):
        return _made(point.load(), name)
    if ":" in name:
        place, _, attribute = name.rpartition(":")
        module = _imported(place, name)
        if not hasattr(module, attribute):
            raise LookupError(f"implementation {name!r}: {place} has no {attribute!r}")
        return _made(getattr(module, attribute), name)
    raise LookupError(f"implementation {name!r} is unknown; installed are {', '.join(implementation_names())}")


def target_of(chosen: Implementation, target: str) -> str:
    """The target `target` (auto, c or cuda) of an implementation; ValueError where it cannot run there."""
    own = chosen.targets()
    if not own:
        raise ValueError(f"{chosen.name} does not run on this machine: {chosen.summary}")
    if target == "auto":
        return own[0]
    if target not in own:
        hint = "" if target == "c" else "; torch may see no CUDA device"
        raise ValueError(f"{chosen.name} does not run on {target} here, only on {', '.join(own)}{hint}")
    return target


def _required(function: Callable[..., object]) -> int:
    """How many parameters of `function` have no default."""
    return sum(p.default is p.empty for p in inspect.signature(function).parameters.values())


def _made(found: object, name: str) -> Implementation:
    if inspect.isfunction(found) and _required(found) == 6:
        from kda.implementations.builtin import KdaChunk, KdaForward, KdaSteps

        # An edited copy of kda/kernels/chunk.py, forward.py or steps.py, under which name it is launched.
        found = {"kda_forward": KdaForward, "kda_steps": KdaSteps}.get(found.__name__, KdaChunk)(found)
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Implementation):
        raise TypeError(
            f"implementation {name!r} is a {type(made).__name__}; expected a kda.implementations.Implementation"
        )
    made.address = name
    return made


def _imported(place: str, name: str) -> ModuleType:
    if place.endswith(".py") and not Path(place).is_file():
        raise LookupError(f"implementation {name!r}: there is no file {place}")
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = "" if "importlib" in last.filename else f"{Path(last.filename).name}:{last.lineno}: "
        raise LookupError(
            f"implementation {name!r}: {place} cannot be imported, {at}{type(error).__name__}: {error}"
        ) from error


def _from_file(path: Path) -> ModuleType:
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]  # two files may have one name
    spec = importlib.util.spec_from_file_location(f"kda_under_test_{path.stem}_{place}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
