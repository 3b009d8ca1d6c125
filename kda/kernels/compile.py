"""Compiling and lowering TileLang programs: once per program and machine, however many processes ask.

TileLang keeps compiled kernels on disk but lets N processes compile the same one N times. Here a file lock per kernel
makes the others wait and then load it. The cache lives in `$KDA_CACHE_DIR` (default `~/.cache/kda-properties`), in a
folder per processor model, since CPU kernels are compiled for the machine they run on.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

__all__ = [
    "COUNTS",
    "Counts",
    "Target",
    "available_targets",
    "cache_dir",
    "compile_program",
    "generated_source",
    "hopper_targets",
    "multiprocessors",
    "resolve_target",
]

#: Compiler flags for the C target. Contraction into fma stays off: the mirror then has the same bits.
C_FLAGS: tuple[str, ...] = ("-O3", "-march=native", "-ffp-contract=off")

#: Automatic warp specialisation gives wrong results on this kernel (docs/kernel.md).
CUDA_PASSES = {"tl.disable_warp_specialized": True}

Target = str  # "c" or "cuda"


@dataclass
class Counts:
    """What this process did: kernels compiled, kernels loaded from the cache, launches."""

    compiles: int = 0
    cache_hits: int = 0
    launches: int = 0


COUNTS = Counts()


def cache_dir() -> Path:
    """The folder that holds this machine's compiled kernels."""
    root = Path(os.environ.get("KDA_CACHE_DIR") or Path.home() / ".cache" / "kda-properties")
    return root / _processor()


@functools.cache
def _processor() -> str:
    described = [platform.system(), platform.machine()]
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features")):
                described.append(line)
            elif not line and len(described) > 2:
                break
    except OSError:
        described.append(platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(chr(10).join(described).encode()).hexdigest()[:12]}"


@functools.cache
def tilelang() -> Any:
    """TileLang, imported on first use, quiet and with its cache in ours; a stale native library is never reused."""
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    os.environ.setdefault("TILELANG_KERNEL_CACHE_USE_LIB_STAMP", "1")
    os.environ.setdefault("TILELANG_CACHE_DIR", str(cache_dir() / "tilelang"))
    import tilelang

    for name in ("tilelang", "tilelang.cache.kernel_cache"):  # which warns of every kernel that is asked for twice
        logging.getLogger(name).setLevel(logging.ERROR)
    return tilelang


def available_targets() -> tuple[Target, ...]:
    """The targets this machine can run, the fastest first."""
    import torch

    return ("cuda", "c") if torch.cuda.is_available() else ("c",)


def hopper_targets() -> tuple[Target, ...]:
    """The targets on which this machine can run a program for Hopper: "cuda", where the GPU is one, or none."""
    import torch

    hopper = "cuda" in available_targets() and torch.cuda.get_device_capability() == (9, 0)
    return ("cuda",) if hopper else ()


@functools.cache
def multiprocessors(device: Any) -> int:
    """How many multiprocessors a CUDA device has."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def resolve_target(target: str) -> Target:
    """`auto`, `c` or `cuda` as a target that is there; ValueError where there is none."""
    available = available_targets()
    if target == "auto":
        return available[0]
    if target not in ("c", "cuda"):
        raise ValueError(f"target {target!r} is unknown; expected auto, c or cuda")
    if target not in available:
        raise ValueError(f"target {target!r} is not available: torch sees no CUDA device; use --kda-target c")
    return target


def compile_program(
    program: Callable[[], Any],
    target: Target,
    more_flags: tuple[str, ...] = (),
    passes: Mapping[str, object] | None = None,
) -> Any:
    """The compiled kernel of a TileLang program (a function that traces it), from the cache where it is there.

    more_flags: for the compiler of the target, beside the usual ones. passes: TileLang's options, the usual ones where
    None.
    """
    tl = tilelang()
    traced = program()
    flags = [*(C_FLAGS if target == "c" else ()), *more_flags]
    passes = dict(passes) if passes is not None else {} if target == "c" else dict(CUDA_PASSES)
    identity = [traced.script(show_meta=True), target, flags, passes, tl.__version__]
    if target == "cuda":
        import torch

        identity.append(torch.cuda.get_device_capability())
    key = _key(identity)

    locks = cache_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    stamp = locks / f"{key}.done"
    with FileLock(locks / f"{key}.lock"):
        kernel = tl.compile(traced, target=target, compile_flags=flags or None, pass_configs=passes or None)
        if stamp.exists():
            COUNTS.cache_hits += 1
        else:
            COUNTS.compiles += 1
            stamp.touch()
    return kernel


def generated_source(traced: Any, target: str | dict[str, str], passes: Mapping[str, object]) -> str:
    """The C or CUDA source that TileLang generates for a traced program, from the cache where it is there.

    target: "c", "cuda", or one with its architecture, such as {"kind": "cuda", "arch": "sm_90a"}. passes: TileLang's
    options. Raises what TileLang raises.
    """
    tl = tilelang()
    from tilelang import tvm
    from tilelang.engine.lower import create_backend_context, lower_with_context

    context = create_backend_context(target, None, "auto")
    identity = [traced.script(show_meta=True), str(context.target), dict(passes), tl.__version__]
    kept = cache_dir() / "sources" / _key(identity)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            with tvm.transform.PassContext(opt_level=3, config=dict(passes)), context.target:
                source = lower_with_context(traced, context).kernel_source
            whole = kept.with_suffix(".new")  # a process that dies leaves no half of it
            whole.write_text(source, "utf-8")
            whole.replace(kept)
    return kept.read_text("utf-8")


def _key(identity: list[Any]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
