"""Which rows of the outputs are wrong, in words: tokens by the borders of chunks, heads, batches, channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kda.diagnosis.wrong import Wrong
from kda.numerics.compare import errors

__all__ = ["described", "tokens_in_words"]

_MOST = 8


def described(wrong: Wrong) -> list[str]:
    """A line for each output that is wrong: which of its rows, in which heads and batches, in which value channels."""
    lines = []
    for name, got in wrong.got.tensors():
        cells = _wrong_cells(got, getattr(wrong.expected, name), getattr(wrong.budget, name))
        if cells is None:
            lines.append(f"{name} has shape {got.shape}; expected {getattr(wrong.expected, name).shape}")
            continue
        if not cells.any():
            lines.append(f"{name}: right")
            continue
        # [B, rows, H, DV]: a state has key channels where o has tokens.
        cells = cells if name == "o" else np.moveaxis(cells, 1, 2)
        rows = np.flatnonzero(_along(cells, 1))
        which = tokens_in_words(rows, cells.shape[1], wrong.tile.C) if name == "o" else _keys(rows, cells.shape[1])
        where = [
            _members("batch", "batches", _along(cells, 0)),
            _members("head", "heads", _along(cells, 2)),
            _channels(_along(cells, 3), wrong.tile.block_DV),
        ]
        lines.append(f"{name}: {'; '.join([which, *filter(None, where)])}")
    return lines


def _wrong_cells(got: np.ndarray, expected: np.ndarray, budget: np.ndarray) -> np.ndarray | None:
    """The cells that are to blame for their row `[..., DV]`, which is outside its budget; None: the shapes differ."""
    if got.shape != expected.shape:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        error = errors(got, expected)
        rows = np.sqrt((error * error).sum(-1)) > budget
    # A row beyond its budget in the 2-norm has such a cell.
    return rows[..., None] & (error > budget[..., None] / np.sqrt(got.shape[-1]))


def _along(cells: np.ndarray, axis: int) -> np.ndarray:
    """Whether anything is set at each place along `axis`."""
    return np.asarray(np.moveaxis(cells, axis, 0).reshape(cells.shape[axis], -1).any(1))


def tokens_in_words(rows: Sequence[int] | np.ndarray, N: int, C: int) -> str:
    """Tokens `rows` of 0..N-1, in ascending order, by the borders of chunks of C tokens."""
    wrong = [int(row) for row in rows]
    first, last = wrong[0], wrong[-1]
    tail = N % C
    chunk = f"chunk {first // C}"
    if len(wrong) == N:
        return "every token" if N > 1 else "the only token"
    if wrong == list(range(C - 1, N, C)) and (len(wrong) > 1 or N >= C > 1):
        return "only the last row of each full chunk: " + _listed("token", wrong)
    if wrong == list(range(C, N, C)) and (len(wrong) > 1 or first < N - 1):
        return "only the first row past each border: " + _listed("token", wrong)
    if wrong == list(range(0, N, C)):
        return "only the first row of each chunk: " + _listed("token", wrong)
    if tail and N > C and wrong == list(range(N - tail, N)):
        return f"only the tail, the {_count(tail, 'row')} of the last chunk: {_listed('token', wrong)}"
    if wrong == list(range(first, N)):
        if first % C == 0:
            return f"every row from {_ordinal(first // C)} chunk on: tokens {first}..{last}"
        if first == N - 1:
            return f"only the last token, {last} (row {last % C} of {chunk})"
        return f"every token from {first} on (row {first % C} of {chunk})"
    if len(wrong) == 1:
        return f"only token {first} (row {first % C} of {chunk})"
    if first // C == last // C:
        whole = wrong == list(range(first // C * C, min(first // C * C + C, N)))
        return f"only {chunk}: {'all its rows' if whole else _listed('token', wrong)}"
    rows_of = {t % C for t in wrong}
    if len(rows_of) == 1 and wrong == [t for t in range(N) if t % C in rows_of and t >= first]:
        return f"only row {first % C} of each chunk from {chunk} on: {_listed('token', wrong)}"
    return f"{len(wrong)} of {_count(N, 'token')}, the first is row {first % C} of {chunk}: {_listed('token', wrong)}"


def _ordinal(number: int) -> str:
    return ["the first", "the second", "the third"][number] if number < 3 else f"the {number + 1}th"


def _keys(rows: np.ndarray, DK: int) -> str:
    if len(rows) == DK:
        return "every key channel"
    return f"{len(rows)} of {DK} key channels: {_listed('key channel', [int(row) for row in rows])}"


def _members(one: str, many: str, wrong: np.ndarray) -> str:
    """Which heads or batches; nothing where there is one, or all are wrong."""
    found = [int(i) for i in np.flatnonzero(wrong)]
    if len(found) == len(wrong):
        return "" if len(wrong) == 1 else f"in all {len(wrong)} {many}"
    return f"only in {_listed(one, found, many)} of {len(wrong)}"


def _channels(wrong: np.ndarray, block_DV: int) -> str:
    """Which value channels, by the blocks of the programs."""
    DV = len(wrong)
    found = [int(channel) for channel in np.flatnonzero(wrong)]
    if len(found) == DV:
        return ""
    blocks = [range(start, min(start + block_DV, DV)) for start in range(0, DV, block_DV)]
    bad = [i for i, block in enumerate(blocks) if wrong[block.start : block.stop].any()]
    if len(blocks) > 1 and len(bad) < len(blocks):
        whole = all(wrong[blocks[i].start : blocks[i].stop].all() for i in bad)
        said = f"only in {_listed('block', bad, 'blocks')} of {len(blocks)} of value channels"
        return said if whole else f"{said}, {_listed('value channel', found)}"
    return f"only in {_listed('value channel', found)}"


def _listed(word: str, numbers: Sequence[int], many: str = "") -> str:
    many = many or f"{word}s"
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{many} {numbers[0]}..{numbers[-1]}"
    shown = ", ".join(map(str, numbers[:_MOST]))
    return f"{many} {shown}" + (", ..." if len(numbers) > _MOST else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
