"""Watching over one case at a time: its line survives a crash, a hang ends, a broken GPU ends its worker."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import IO

__all__ = ["Watch", "cuda_is_broken", "last_case"]


class Watch:
    """Writes the line of the case under way to a file of this worker, and ends the process when it takes too long.

    folder: where the files are; worker: this worker's name; seconds: the time-out of one case (0: none).
    """

    def __init__(self, folder: Path, worker: str, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"{worker}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        self._seconds = seconds
        # pytest captures descriptor 2; what is written as the process ends must not be lost with it.
        self._stderr: IO[str] = os.fdopen(os.dup(2), "w") if seconds else sys.stderr

    def begin(self, line: str) -> None:
        """A case begins: its line is on disk before anything is launched."""
        data = (line + "\n").encode()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, data, 0)
        if self._seconds:
            # The watchdog is a thread of its own: a kernel that hangs holds the interpreter lock.
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._stderr)

    def end(self) -> None:
        """The case is over."""
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
        os.ftruncate(self._file, 0)


def last_case(folder: Path, worker: str) -> str | None:
    """The case that was under way when `worker` ended, with its property; None where there was none."""
    path = folder / f"{worker}.txt"
    text = path.read_text().strip() if path.exists() else ""
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
