"""Writing files whole."""

from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path`, whose folder is made; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text)
    unfinished.replace(path)
