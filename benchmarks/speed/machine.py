"""What is measured with: CUDA events, graphs and the profiler; or, for a dry run on a CPU, a wall clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from speed.floor import Ceilings

__all__ = ["Cpu", "Gpu", "Launched", "Machine"]

Work = Callable[[], object]


@dataclass(frozen=True)
class Launched:
    """One kernel, copy or fill that a call put on the device."""

    name: str
    microseconds: float


class Machine(Protocol):
    """A clock, and what else a benchmark asks of the machine."""

    device: str
    name: str
    l2: int

    def milliseconds(self, work: Work) -> float:
        """The time of `work`, begun on an idle device, until the device is done."""

    def graph(self, works: Sequence[Work]) -> Work:
        """Everything that `works` launch, one after the other, as one launch; RuntimeError where it cannot be."""

    def extra_bytes(self, work: Work) -> int:
        """The most device memory in use during `work`, its results included, beyond what was in use before."""

    def launched(self, work: Work) -> list[Launched]:
        """What `work` puts on the device, in order."""

    def ceilings(self) -> tuple[dict[str, float], Ceilings]:
        """What was measured, by name, and the ceilings that follow."""

    def release(self) -> None:
        """Give memory that nobody holds back to the device."""


class Gpu:
    """The current CUDA device."""

    device = "cuda"

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(0)
        self.name, self.l2 = properties.name, int(properties.L2_cache_size)

    def milliseconds(self, work: Work) -> float:
        """By events around `work`; what the host does before its first launch is part of it."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop))

    def graph(self, works: Sequence[Work]) -> Work:
        """A captured CUDA graph; its memory lives as long as what is returned."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            works[0]()  # what a first call does besides launching must not be captured
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        captured, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(captured):
                for work in works:
                    work()
        finally:
            torch.cuda.set_stream(before)  # which a capture that fails does not do
        return captured.replay

    def extra_bytes(self, work: Work) -> int:
        """As torch's allocator counts it."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = work()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        del kept
        return peak - before

    def launched(self, work: Work) -> list[Launched]:
        """As torch.profiler saw it."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            work()
            torch.cuda.synchronize()
        on_device = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
        on_device.sort(key=lambda event: event.time_range.start)
        return [Launched(event.name, float(event.time_range.elapsed_us())) for event in on_device]

    def ceilings(self) -> tuple[dict[str, float], Ceilings]:
        """Copy and triad of 2 GiB arrays, in bytes read and written; an 8192^3 bf16 product of random numbers."""
        a, b, c = (torch.rand(2**29, device="cuda") for _ in "abc")
        m = torch.randn(8192, 8192, device="cuda").bfloat16()
        return _ceilings(self, a, b, c, m, repeats=15)

    def release(self) -> None:
        """Empty the allocator's cache."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class Cpu:
    """A wall clock, to run every line but the events without a GPU; its times mean nothing."""

    device, name, l2 = "cpu", "CPU (dry run)", 0

    def milliseconds(self, work: Work) -> float:
        """By the wall clock."""
        start = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - start)

    def graph(self, works: Sequence[Work]) -> Work:
        """The calls, one after the other."""

        def replay() -> None:
            for work in works:
                work()

        return replay

    def extra_bytes(self, work: Work) -> int:
        """0: nobody counts."""
        work()
        return 0

    def launched(self, work: Work) -> list[Launched]:
        """One entry, named as every engine of ours would be, with the time of the whole."""
        from speed.contenders import ENGINES

        every = " ".join(name for names in ENGINES.values() for name in names)
        return [Launched(every, 1000 * self.milliseconds(work))]

    def ceilings(self) -> tuple[dict[str, float], Ceilings]:
        """As on a GPU, small."""
        a, b, c = (torch.rand(2**18) for _ in "abc")
        return _ceilings(self, a, b, c, torch.randn(64, 64).bfloat16(), repeats=3)

    def release(self) -> None:
        """Nothing."""


def _ceilings(
    machine: Machine, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, m: torch.Tensor, repeats: int
) -> tuple[dict[str, float], Ceilings]:
    from speed.results import median

    works: dict[str, tuple[Work, float]] = {
        "copy": (lambda: a.copy_(b), 2.0 * a.nbytes),
        "triad": (lambda: torch.add(b, c, alpha=3.0, out=a), 3.0 * a.nbytes),
        "matrix": (lambda: m @ m, 2.0 * len(m) ** 3),
    }
    rates = {}
    for name, (work, amount) in works.items():
        for _ in range(3):
            work()
        rates[name] = amount / (1e-3 * median([machine.milliseconds(work) for _ in range(repeats)]))
    return rates, Ceilings(max(rates["copy"], rates["triad"]), rates["matrix"])


def threads_of_workers() -> None:
    """One thread in every process started from here on: the parallelism is in the processes."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
