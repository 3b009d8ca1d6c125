"""Compiling before measuring: everybody's kernels at once, in processes of their own.

FLA compiles some eighty kernels for each number of heads and mode, one after the other, to choose among them. Here they
are compiled side by side and left in Triton's cache on disk; the choice is made later, by FLA itself, alone on the
device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from speed.results import FirstCall
from speed.shapes import Mode, Shape

__all__ = ["Family", "compile_all", "families", "first_call"]

#: A contender's name, a mode, and the shapes whose kernels are compiled one after the other.
Family = tuple[str, Mode, tuple[Shape, ...]]


def families(name: str, mode: Mode, shapes: Sequence[Shape]) -> list[Family]:
    """What can be compiled side by side of one contender: the shapes of one number of heads and kind."""
    alike: dict[tuple[int, str], list[Shape]] = {}
    for shape in shapes:
        alike.setdefault((shape.H, shape.kind), []).append(shape)
    return [(name, mode, tuple(group)) for group in alike.values()]


def compile_all(work: Sequence[Family], engine: str | None, workers: int) -> list[str]:
    """Compile every family, `workers` at a time; a sentence about each that failed, which compiles when it is timed."""
    failed = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        asked = {pool.submit(_compile, family, engine): family for family in work}
        for done in as_completed(asked):
            error = done.exception()
            if error is not None:
                name, mode, shapes = asked[done]
                failed.append(f"compiling {name} for {shapes[0]} ({mode}) beforehand failed: {_first_line(error)}")
    return failed


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _compile(family: Family, engine: str | None) -> None:
    """Call a contender once per shape, every candidate of a tuner being compiled, run once and not timed."""
    import torch

    os.environ["FLA_CACHE_RESULTS"] = "0"  # a choice that rests on no times must not be kept
    try:
        import triton.testing

        def once(work, **_: object) -> list[float]:  # type: ignore[no-untyped-def]
            work()
            return [1.0, 1.0, 1.0]

        triton.testing.do_bench = once
    except ImportError:
        pass
    from speed.contenders import contenders
    from speed.inputs import made

    name, mode, shapes = family
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.no_grad():
        for shape in shapes:
            for contender in contenders(mode, shape, engine):
                if contender.name == name:
                    contender.call(made(shape, mode, device, number=1)[0])


def first_call(name: str, mode: Mode, shape: Shape, engine: str | None) -> FirstCall:
    """The first call of this process; the caller has pointed the caches at empty folders."""
    import torch

    from speed.contenders import contenders
    from speed.inputs import made

    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = made(shape, mode, device, number=1)[0]
    contender = next(one for one in contenders(mode, shape, engine) if one.name == name)
    with torch.no_grad():
        start = time.perf_counter()
        contender.call(given)
        if device == "cuda":
            torch.cuda.synchronize()
    return FirstCall(str(shape), mode, name, time.perf_counter() - start)
