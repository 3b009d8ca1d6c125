"""Watching over one case at a time: its line survives a crash, a hang ends, a broken GPU ends its worker."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["GpuLost", "Watch", "cuda_is_broken", "last_case"]


class GpuLost(BaseException):
    """This process's CUDA context has failed for good.

    Not an `Exception`: Hypothesis would take it for a failure and shrink it, and every smaller case would fail as well.
    """


class Watch:
    """Writes what is under way to a file of this worker, and ends the process when it takes too long.

    folder: where the files are; worker: this worker's name; seconds: the time-out of one case (0: none). left: what a
    process of that name was doing when it ended without having finished, "" where there is nothing.
    """

    def __init__(self, folder: Path, worker: str, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.left = last_case(folder, worker) or ""
        self._standing = ""
        self._file = os.open(folder / f"{worker}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        self._lost = False
        self._seconds = seconds
        # pytest captures descriptor 2; what is written as the process ends must not be lost with it.
        self._stderr: IO[str] = os.fdopen(os.dup(2), "w") if seconds else sys.stderr

    def begin(self, text: str) -> None:
        """A case begins: `text`, which holds its line, is on disk before anything is launched."""
        self._write(text)
        if self._seconds:
            # The watchdog is a thread of its own: a kernel that hangs holds the interpreter lock.
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._stderr)

    def failed(self, text: str, error: Exception) -> None:
        """The case raised `error`: GpuLost where that broke the CUDA context. What is on disk then stays there."""
        if cuda_is_broken():
            reason = f"{type(error).__name__}: {error}"
            self._write(f"{text}\nerror: {reason}")
            self._lost = True
            raise GpuLost(reason) from error

    def end(self) -> None:
        """The case is over."""
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
        if not self._lost:
            self._write("")

    @contextmanager
    def standing(self, text: str) -> Iterator[None]:
        """`text` stays on disk within the block, before whatever begins there: what is known already if it dies."""
        self._standing = text
        self._write("")
        try:
            yield
        finally:
            self._standing = ""
            if not self._lost:
                self._write("")

    def _write(self, text: str) -> None:
        lines = "".join(f"{part}\n" for part in (self._standing, text) if part)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, lines.encode(), 0)


def last_case(folder: Path, worker: str) -> str | None:
    """What was under way when `worker` ended: property, case and how to rerun it; None where nothing was."""
    path = folder / f"{worker}.txt"
    text = path.read_text("utf-8").strip() if path.exists() else ""
    return text or None


def cuda_is_broken() -> bool:
    """Whether this process's CUDA context has failed for good: every later call in it would fail too."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
