"""Source text that an implementation runs, and modules made from text."""

from __future__ import annotations

import inspect
import itertools
import linecache
import sys
from dataclasses import dataclass
from types import ModuleType

__all__ = ["Source", "module_from_source"]


@dataclass(frozen=True)
class Source:
    """Source that mutants rewrite: a module, and the function in it that counts."""

    module: ModuleType
    function: str

    @property
    def text(self) -> str:
        """The text of the module. OSError where it cannot be read."""
        return inspect.getsource(self.module)


def module_from_source(text: str, name: str, package: str = "") -> ModuleType:
    """A module made of `text`, beside every other: in `sys.modules` it has a name of its own.

    name: of the module, and in tracebacks; package: what its relative imports are relative to. Its source can be read
    back with `inspect`, as TileLang does.
    """
    module = ModuleType(f"{name}~{next(_numbers)}")
    module.__file__ = f"<{module.__name__}>"
    module.__package__ = package
    linecache.cache[module.__file__] = (len(text), None, text.splitlines(keepends=True), module.__file__)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


_numbers = itertools.count(1)
