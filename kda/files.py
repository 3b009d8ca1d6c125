"""Writing files whole."""

from pathlib import Path

__all__ = ["replace_between", "write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path`, whose folder is made; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text)
    unfinished.replace(path)


def replace_between(path: Path, name: str, text: str) -> None:
    """Put `text` between the lines `<!-- NAME -->` and `<!-- end -->` of a page; ValueError where it has none."""
    page = path.read_text("utf-8")
    before, opening, rest = page.partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition("<!-- end -->")
    if not (opening and closing):
        raise ValueError(f"{path} has no lines `<!-- {name} -->` and `<!-- end -->` to write between")
    write_whole(path, f"{before}{opening}\n{text.strip()}\n\n{closing}{after}")
