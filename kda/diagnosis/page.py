"""One failure as one HTML page that needs nothing else: what was said, heat maps of what is wrong, what went in.

Opened from a folder, it works without a network. The numbers are in it exactly, and shown under the pointer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import jinja2
import numpy as np

from kda.case import Case
from kda.diagnosis.cells import Cells, cells, worst_member
from kda.diagnosis.maps import Axis, heat_map
from kda.diagnosis.wrong import Examined, Wrong
from kda.files import write_whole
from kda.numerics.budget import Budget
from kda.problem import Inputs, Outputs, Tile, at_words
from kda.suite.laws import Disagreement

__all__ = ["Failure", "StageCheck", "Stages", "failure_of", "file_name", "page", "write_page"]

#: Heads that are drawn, the worst first, and cells of all maps together: a page stays a few MB.
_MOST_HEADS, _MOST_CELLS = 24, 150_000
#: Non-zero numbers of an input that are listed beside its map.
_LISTED = 6


class StageCheck(Protocol):
    """One stage in one chunk, recomputed: arrays `[blocks, B, H, rows, columns]`; wrong: truth values."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def chunk(self) -> int: ...  # noqa: D102
    @property
    def got(self) -> np.ndarray: ...  # noqa: D102
    @property
    def expected(self) -> np.ndarray: ...  # noqa: D102
    @property
    def wrong(self) -> np.ndarray: ...  # noqa: D102


class Stages(Protocol):
    """What the probes of a kernel saw, in the order in which it was made."""

    @property
    def checks(self) -> Sequence[StageCheck]: ...  # noqa: D102


@dataclass(frozen=True)
class Failure:
    """What a page tells.

    line: of the case; subject: its id; report: the lines that were said; commands: to copy, (what it does, command).
    got, expected, budget, inputs: of the wrong run, as far as there is one (budget: None where every bit must agree);
    against: what is expected ("reference A"); stages: None where nothing was probed.
    """

    law: str
    sentence: str
    line: str
    subject: str
    report: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()
    got: Outputs | None = None
    expected: Outputs | None = None
    budget: Budget | None = None
    against: str = ""
    tile: Tile | None = None
    inputs: Inputs | None = None
    stages: Stages | None = None


def failure_of(
    examined: Examined, wrong: Wrong | None, report: Sequence[str] = (), stages: Stages | None = None
) -> Failure:
    """The failure of an examined case: with its wrong run, else with what the law compared, if that can be drawn."""
    law, line, error = examined.law, str(examined.case), examined.error
    notes = (note.partition(":") for note in law.notes(examined.subject, line))
    commands = [(word, rest.strip()) for word, _, rest in notes if rest.strip().startswith("kda ")]
    shown: dict[str, Any] = {}
    if wrong is not None:
        shown = {name: getattr(wrong, name) for name in ("got", "expected", "budget", "against", "tile", "inputs")}
    elif isinstance(error, Disagreement):
        shown = {"got": error.got, "expected": error.expected, "budget": error.budget, "against": "the law"}
        inputs = examined.case.inputs()
        if error.got.o.shape == inputs.v.shape:  # else it is a part, or a run of other inputs
            shown |= {"tile": examined.case.tile, "inputs": inputs}
    said = report or str(error).splitlines()
    return Failure(law.name, law.sentence, line, examined.subject.id, said, commands, stages=stages, **shown)


def write_page(folder: Path, failure: Failure) -> Path:
    """Write the page of `failure` into `folder`, which is made; the same failure again takes the same file."""
    path = folder / file_name(failure)
    write_whole(path, page(failure))
    return path


def file_name(failure: Failure) -> str:
    """`kernel.matches_its_mirror--kda_chunk-c-f16--1f0c2a9be4d7.html`: safe in any file system, one per failure."""
    told = "\n".join((failure.law, failure.subject, failure.line))
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    safe = (re.sub(r"[^A-Za-z0-9._-]+", "-", part)[:60].strip(".-") for part in (failure.law, failure.subject))
    return "--".join((*safe, digest)) + ".html"


def page(failure: Failure) -> str:
    """The page as text, ASCII alone."""
    made, undrawn = _cells_of(failure)
    members = list(_members(failure, made))
    total = made[0].ratio.shape[0] * made[0].ratio.shape[1] if made else 0
    checks = list(failure.stages.checks) if failure.stages is not None else []
    template = files("kda.diagnosis").joinpath("page.html.j2").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    html = environment.from_string(template).render(
        failure=failure,
        shape=_shape(failure.line),
        worst=_worst(made, failure) if made else {},
        undrawn=undrawn,
        members=members,
        left_out=total - len(members) if members else 0,
        table=_stage_table(checks),
        first=next((check for check in checks if check.wrong.any()), None),
        data={
            "members": members,
            "stages": list(_stage_maps(checks)),
            "against": failure.against or "expected",
        },
    )
    return html.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _shape(line: str) -> str:
    try:
        return Case.parse(line).id
    except ValueError:
        return ""


def _cells_of(failure: Failure) -> tuple[list[Cells], str]:
    if failure.got is None or failure.expected is None:
        return [], ""
    try:
        return cells(failure.got, failure.expected, failure.budget), ""
    except ValueError as error:
        return [], str(error)


def _worst(made: Sequence[Cells], failure: Failure) -> dict[str, str]:
    """The worst cell of all, in words."""
    batch, head = worst_member(made)
    one = max(made, key=lambda one: one.ratio[batch, head].max())
    row, column = _worst_cell(one, batch, head)
    place = (batch, row, head, column) if one.tensor == "o" else (batch, head, row, column)
    ratio = one.ratio[batch, head, row]
    return {
        "tensor": one.tensor,
        "place": at_words(one.tensor, place),
        "got": _number(one.got[batch, head, row, column]),
        "expected": _number(one.expected[batch, head, row, column]),
        "error": _number(one.error[batch, head, row, column]),
        "allowed": "allowed" if one.exact else "error / budget of the row",
        "ratio": "none: every bit must agree" if one.exact else f"{ratio:.3g}",
        "against": failure.against,
    }


def _number(value: float) -> str:
    return f"{value:.9g}"


def _worst_cell(one: Cells, batch: int, head: int) -> tuple[int, int]:
    row = int(np.argmax(one.ratio[batch, head]))
    return row, int(np.argmax(one.error[batch, head, row]))


def _members(failure: Failure, made: Sequence[Cells]) -> Iterator[dict[str, Any]]:
    """A dictionary per (batch, head), the worst first, the others in order, until the page is full."""
    if not made:
        return
    B, H = made[0].ratio.shape[:2]
    worst = worst_member(made)
    cell_count = 0
    for batch, head in [worst, *((b, h) for b in range(B) for h in range(H) if (b, h) != worst)][:_MOST_HEADS]:
        maps = [_output_map(one, batch, head, failure.tile) for one in made]
        tokens = [_worst_cell(one, batch, head)[0] for one in made if one.tensor == "o"]
        given = list(_input_maps(failure, batch, head, *tokens))
        counts = [m["rows"]["count"] * m["columns"]["count"] for m in (*maps, *given) if m["layers"]]
        cell_count += sum(counts)
        if cell_count > _MOST_CELLS and (batch, head) != worst:
            return
        wrong = {one.tensor: int(one.wrong_rows[batch, head].sum()) for one in made}
        yield {
            "name": f"batch {batch}, head {head}",
            "wrong": any(wrong.values()),
            "said": _said(made, wrong),
            "maps": maps,
            "inputs": given,
        }


def _said(made: Sequence[Cells], wrong: dict[str, int]) -> str:
    words = {"o": "tokens", "final_state": "keys"}
    parts = [f"{wrong[one.tensor]} of {one.ratio.shape[2]} {words[one.tensor]}" for one in made if wrong[one.tensor]]
    return f"{', '.join(parts)} wrong" if parts else "right"


def _output_map(one: Cells, batch: int, head: int, tile: Tile | None) -> dict[str, Any]:
    at = (batch, head)
    rows = Axis("key channel")
    if one.tensor == "o":
        rows = Axis("token", "chunk", tile.C) if tile else Axis("token")
    layers = {name: getattr(one, name)[at] for name in ("got", "expected", "wrong")}
    if not one.exact:
        layers["share"] = one.share[at]
    return heat_map(one.tensor, rows, _value_channels(tile), layers, _worst_cell(one, batch, head))


def _value_channels(tile: Tile | None) -> Axis:
    return Axis("value channel", "block", tile.block_DV) if tile else Axis("value channel")


def _input_maps(failure: Failure, batch: int, head: int, token: int = 0) -> Iterator[dict[str, Any]]:
    """A map of each input of one head, cut around `token`; words alone where all its numbers are equal."""
    if failure.inputs is None:
        return
    tile = failure.tile
    tokens = Axis("token", "chunk", tile.C) if tile else Axis("token")
    for name, array in failure.inputs.member(batch, head).tensors():
        rows, columns = tokens, _value_channels(tile) if name == "v" else Axis("channel")
        if name == "beta":
            values = array[0]  # [N, 1]
        elif name == "initial_state":
            values, rows, columns = array[0, 0], Axis("key channel"), _value_channels(tile)
        else:
            values = array[0, :, 0]
        made = heat_map(name, rows, columns, {"value": values}, (0 if name == "initial_state" else token, 0))
        made["said"] = _listed(values, rows, columns)
        if (values == values.flat[0]).all():
            made["layers"] = {}
            made["said"] = f"all {_number(values.flat[0])}"
        yield made


def _listed(values: np.ndarray, rows: Axis, columns: Axis) -> str:
    """The non-zero numbers in words, if they are few; else how many."""
    places = np.argwhere(values != 0)
    if len(places) > _LISTED:
        return f"{len(places)} of {values.size} numbers are not zero"
    single = values.shape[1] == 1
    words = [
        f"{_number(values[row, column])} at {rows.word} {row}" + ("" if single else f", {columns.word} {column}")
        for row, column in places
    ]
    return "not zero: " + "; ".join(words)


def _stage_table(checks: Sequence[StageCheck]) -> dict[str, Any]:
    """Stages across, chunks down: right, wrong, or not there."""
    names = list(dict.fromkeys(check.name for check in checks))
    chunks = sorted({check.chunk for check in checks})
    states = {(check.chunk, check.name): "wrong" if check.wrong.any() else "right" for check in checks}
    rows = [(chunk, [states.get((chunk, name), "") for name in names]) for chunk in chunks]
    return {"names": names, "rows": rows}


def _stage_maps(checks: Sequence[StageCheck]) -> Iterator[dict[str, Any]]:
    """The stages of the first chunk in which one is wrong, each where it is worst, right ones where the first is."""
    first = next((check for check in checks if check.wrong.any()), None)
    if first is None:
        return
    home = _stage_place(first)
    for check in checks:
        if check.chunk != first.chunk:
            continue
        wrong = bool(check.wrong.any())
        place = _stage_place(check) if wrong else home
        block, batch, head = (min(i, size - 1) for i, size in zip(place[:3], check.got.shape, strict=False))
        at = (block, batch, head)
        layers = {"got": check.got[at], "expected": check.expected[at], "wrong": check.wrong[at]}
        made = heat_map(check.name, Axis("row"), Axis("column"), layers, (place[3], place[4]) if wrong else (0, 0))
        made["wrong"] = wrong
        count = int(check.wrong.sum())
        made["said"] = f"chunk {check.chunk}, block {block}, batch {batch}, head {head}" + (
            f"; {count} of {check.wrong.size} cells are wrong in all blocks and heads" if wrong else ""
        )
        yield made


def _stage_place(check: StageCheck) -> tuple[int, ...]:
    """Of the wrong cells the one that is furthest off: block, batch, head, row, column."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(check.got - check.expected)
    error = np.where(check.wrong, np.where(np.isnan(error), np.inf, error), -1.0)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), error.shape))
