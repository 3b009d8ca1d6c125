"""A picture in text of the wrong cells: tokens down, value channels across, chunk and block borders marked.

o: 17 of 33 tokens wrong                         final_state: 16 of 16 keys wrong
chunk  token   0                16               key    0                16
0      0..15   ................|................  0..15  ................|OOOOOOOOOOOOOOOO
       ------  ----------------+----------------
1..2   16..32  ................|oooooooooooooooo
. right   o O # wrong by up to 10, 1000, more shares of the budget   ! NaN, inf
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, zip_longest

import numpy as np

from kda.diagnosis.cells import Cells, cells, worst_member
from kda.numerics.budget import Budget
from kda.problem import Outputs, Tile

__all__ = ["COLUMNS", "LINES", "picture"]

#: The most lines, and columns of a line, that a picture takes.
LINES, COLUMNS = 12, 100

_BETWEEN = "  "
#: The marks of cells that are wrong by up to so many times their share of the budget.
_MARKS = ((10.0, "o"), (1000.0, "O"), (np.inf, "#"))
#: A block of a row is wrong as a whole where more than this share of its cells is.
_MOSTLY = 0.75


def picture(got: Outputs, expected: Outputs, budget: Budget | None, tile: Tile | None) -> list[str]:
    """The wrong cells of the worst batch and head, and what is wrong in the others; at most `LINES` lines.

    budget: None where every bit must agree. tile: says where chunks and blocks of value channels begin.
    """
    try:
        made = cells(got, expected, budget)
    except ValueError as error:
        return [f"no picture: {error}"]
    if not any(one.wrong.any() for one in made):
        return ["no picture: every row is within its budget"]
    batch, head = worst_member(made)
    drawn = [one for one in made if one.wrong[batch, head].any()]
    right = [one.tensor for one in made if one not in drawn]
    members = _members(made, batch, head)
    room = LINES - 3 - len(members)
    for group in _groups(drawn[0].wrong.shape[-1], tile):
        panels = [list(_panel(one, batch, head, tile, group, room)) for one in drawn]
        if sum(max(map(len, panel)) for panel in panels) + len(_BETWEEN) * (len(panels) - 1) <= COLUMNS:
            break
    if right:
        panels[0][0] += f"; {right[0]} is right" + (" here" if members else "")
    lines = panels[0]
    if len(panels) == 2:
        left = max(map(len, panels[0]))
        pairs = zip_longest(*panels, fillvalue="")
        lines = [f"{one:{left}}{_BETWEEN}{other}".rstrip() for one, other in pairs]
    return [*lines, *members, _legend(all(one.exact for one in drawn), group)]


def _groups(channels: int, tile: Tile | None) -> Iterator[int]:
    """How many channels one mark may stand for, the fewest first: whole parts of a block."""
    block = tile.block_DV if tile else channels
    return (size for size in range(1, block + 1) if block % size == 0)


@dataclass(frozen=True)
class _Band:
    """Rows start..stop-1 of each of `chunks`, drawn as one line. wrong: how many are, where they are not alike."""

    chunks: range
    start: int
    stop: int
    wrong: int | None = None

    def of(self, array: np.ndarray, C: int) -> np.ndarray:
        """Its rows of `array`, one chunk after the other."""
        return np.concatenate([array[c * C + self.start : c * C + self.stop] for c in self.chunks])


def _panel(one: Cells, batch: int, head: int, tile: Tile | None, group: int, room: int) -> Iterator[str]:
    """A title, a ruler, and at most `room` lines of cells."""
    wrong, lost, share = one.wrong[batch, head], one.lost[batch, head], one.share[batch, head]
    rows, DV = wrong.shape
    block = min(tile.block_DV, DV) if tile else DV
    C = tile.C if tile and one.tensor == "o" else rows
    bands = _bands(wrong, lost, C, block, room)
    chunked = rows > C
    labels = [_label(band, C, rows, chunked) for band in bands]
    headings = ("chunk", "token") if one.tensor == "o" else ("", "key")
    columns = [max(map(len, column)) for column in zip(headings, *labels, strict=True)]

    def line(label: Sequence[str], rest: str) -> str:
        cells = [f"{text:{width}}" for text, width in zip(label, columns, strict=True)]
        return _BETWEEN.join([*(cells if chunked else cells[1:]), rest]).rstrip()

    what = "tokens" if one.tensor == "o" else "keys"
    yield f"{one.tensor}: {int(wrong.any(-1).sum())} of {rows} {what} wrong"
    starts = range(0, DV, block)
    yield line(headings, "".join(f"{start:<{-(-block // group) + 1}}" for start in starts))
    rule = line(("", "-" * columns[1]), "+".join("-" * -(-min(block, DV - s) // group) for s in starts))
    between = sum(one.chunks != other.chunks for one, other in pairwise(bands))
    before: _Band | None = None
    for band, label in zip(bands, labels, strict=True):
        same_chunks = before is not None and before.chunks == band.chunks
        if before is not None and not same_chunks and len(bands) + between <= room:
            yield rule
        of_band = band.of(np.where(lost & wrong, np.nan, np.where(wrong, share, 0.0)), C)
        marks = (
            "".join(_mark(of_band[:, at : min(at + group, start + block)]) for at in _starts(start, block, DV, group))
            for start in starts
        )
        mixed = f"  {band.wrong} of these" if band.wrong is not None else ""
        yield line(("", label[1]) if same_chunks else label, "|".join(marks) + mixed)
        before = band


def _starts(start: int, block: int, DV: int, group: int) -> range:
    return range(start, min(start + block, DV), group)


def _mark(values: np.ndarray) -> str:
    """The mark of the worst cell: NaN where one is not finite, 0 where it is right, else its share."""
    if np.isnan(values).any():
        return "!"
    worst = values.max()
    return next(mark for most, mark in _MARKS if worst <= most) if worst else "."


def _label(band: _Band, C: int, rows: int, chunked: bool) -> tuple[str, str]:
    """The chunks and the rows of a band; rows are counted from the start of each chunk where there are several."""
    chunks, first = band.chunks, band.chunks[0]
    named = _span(first, chunks[-1]) if chunked else ""
    if len(chunks) == 1:
        return named, _span(first * C + band.start, min(first * C + band.stop, rows) - 1)
    if (band.start, band.stop) == (0, C):
        return named, _span(first * C, min((chunks[-1] + 1) * C, rows) - 1)
    return named, f"row {_span(band.start, band.stop - 1)}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def _bands(wrong: np.ndarray, lost: np.ndarray, C: int, block: int, room: int) -> list[_Band]:
    """The rows in at most `room` bands of rows that are alike, as finely as they fit.

    Alike are rows with the same wrong cells; if that takes too many lines, rows with wrong cells in the same blocks;
    then rows that are wrong, whatever the cells. If that is still too many, a chunk is one band, and says how many are
    wrong. If even that is, the last band is all that remains.
    """
    rows = len(wrong)
    chunks = [range(start, min(start + C, rows)) for start in range(0, rows, C)]
    cut = [wrong[:, start : start + block] for start in range(0, wrong.shape[1], block)]
    blocks = np.stack([part.any(-1) for part in cut], axis=1)
    # Where most of a block is wrong, a cell that is right is so by chance.
    closed = np.concatenate([part | (part.mean(-1, keepdims=True) > _MOSTLY) for part in cut], axis=1)
    row_wrong: np.ndarray = np.any(blocks, axis=1)
    for alike in (np.concatenate([closed, wrong & lost], axis=1), blocks, row_wrong[:, None]):
        keys = [row.tobytes() for row in alike]
        bands = _folded([_runs([keys[row] for row in chunk]) for chunk in chunks], C)
        if len(bands) <= room:
            return bands
    whole = [blocks[chunk.start : chunk.stop].any(0).tobytes() for chunk in chunks]
    counts = [_mixed(row_wrong[chunk.start : chunk.stop]) for chunk in chunks]
    for chunk_keys in (list(zip(whole, counts, strict=True)), whole):
        bands = _folded([((0, len(chunk), key),) for chunk, key in zip(chunks, chunk_keys, strict=True)], C)
        if len(bands) <= room:
            break
    else:
        bands = [*bands[: room - 1], _Band(range(bands[room - 1].chunks[0], len(chunks)), 0, C)]
    return [replace(band, wrong=_mixed(band.of(row_wrong, C))) for band in bands]


def _mixed(wrong: np.ndarray) -> int | None:
    return None if wrong.all() or not wrong.any() else int(wrong.sum())


_Run = tuple[int, int, Hashable]


def _runs(keys: Sequence[Hashable]) -> tuple[_Run, ...]:
    runs: list[_Run] = []
    for key, group in groupby(keys):
        start = runs[-1][1] if runs else 0
        runs.append((start, start + len(list(group)), key))
    return tuple(runs)


def _folded(chunks: Sequence[tuple[_Run, ...]], C: int) -> list[_Band]:
    """The runs of each chunk, neighbours that are alike taken together; a shorter last one where it is one run."""
    bands: list[_Band] = []
    first = 0
    for _, group in groupby(chunks, key=lambda runs: runs[0][2] if len(runs) == 1 else runs):
        alike = list(group)
        these = range(first, first + len(alike))
        uniform = len(alike[0]) == 1
        bands += [_Band(these, start, C if uniform else stop) for start, stop, _ in alike[0]]
        first = these.stop
    return bands


def _members(made: Sequence[Cells], batch: int, head: int) -> list[str]:
    """Which (batch, head) is drawn and what the others look like; nothing where there is one alone."""
    B, H = made[0].ratio.shape[:2]
    every = [(b, h) for b in range(B) for h in range(H)]
    if len(every) == 1:
        return []
    rows = {at: tuple(one.wrong_rows[at].tobytes() for one in made) for at in every}
    drawn = f"batch {batch}, head {head} is drawn"
    same = [at for at in every if rows[at] == rows[batch, head]]
    right = [at for at in every if not any(one.wrong_rows[at].any() for one in made)]
    other = [at for at in every if at not in same and at not in right]
    if len(same) == len(every):
        return [f"{drawn}; the same rows are wrong in all {len(every)} heads" + (f" of {B} batches" if B > 1 else "")]
    said = (
        ("the same rows wrong in", [at for at in same if at != (batch, head)]),
        ("right", right),
        ("other rows wrong in", other),
    )
    named = "; ".join([drawn, *(f"{what}: {_named(those, B, H)}" for what, those in said if those)])
    if len(named) <= COLUMNS:
        return [named]
    total = len(every) - 1
    return ["; ".join([drawn, *(f"{what}: {len(those)} of {total}" for what, those in said if those)])]


def _named(members: Sequence[tuple[int, int]], B: int, H: int) -> str:
    """(batch, head) pairs in words, whole batches by their number alone."""
    words = []
    for batch, group in groupby(members, key=lambda at: at[0]):
        heads = [h for _, h in group]
        if len(heads) == H and B > 1:
            words.append(f"batch {batch}")
        else:
            listed = f"head {', '.join(map(str, heads))}"
            words.append(f"batch {batch} {listed}" if B > 1 else listed)
    return ", ".join(words)


def _legend(exact: bool, group: int) -> str:
    wrong = "# other bits" if exact else "o O # wrong by up to 10, 1000, more shares of the budget"
    wide = f"   1 mark: {group} channels" if group > 1 else ""
    return f". right   {wrong}   ! NaN, inf{wide}"
