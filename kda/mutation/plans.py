"""What a campaign runs: the mutants of the catalogue or generated ones, what looks at them, and the control."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kda.implementations import implementation
from kda.mutation.campaign import (
    EQUIVALENT,
    HOPPER_TILE,
    KILLED,
    SMALLEST_TILE,
    STALE,
    SURVIVED,
    TILE,
    Row,
    Search,
    Task,
    searches_of_everything,
)
from kda.mutation.catalogue import CATALOGUE, Mistake
from kda.mutation.catalogue.mistake import ORIGINALS
from kda.mutation.mutant import Mutant
from kda.mutation.operators import generated
from kda.mutation.reviewed import REVIEWED
from kda.mutation.rewrite import Stale
from kda.support import TileChoice

__all__ = ["CONTROL", "MOST", "Plan", "distinct", "judged", "plan_catalogue", "plan_generated", "task_of"]

#: The name of the control: the original, under everything that the mutants are put under.
CONTROL = "(the original)"
#: Cases in which a law must have seen the mistake that it is meant to see.
MOST = 400


@dataclass
class Plan:
    """Tasks to run, the control first, and the rows that are settled before anything runs: those of stale entries."""

    control: Task
    tasks: list[Task] = field(default_factory=list)
    settled: list[Row] = field(default_factory=list)


def task_of(mistake: Mistake, form: str, target: str, seeds: Sequence[int], original: str | None = None) -> Task:
    """What looks at an entry of the catalogue: the law expected to catch it. Stale where its place is gone."""
    dtype = "f64" if form == "reference" else mistake.dtype
    searches = (Search(mistake.law, dtype, MOST),)
    tile = mistake.of(form).tile or _smallest_tile(form)
    return Task(mistake.mutant(form, original), target, searches, tuple(seeds), tile, call=mistake.call(form))


def _smallest_tile(form: str) -> TileChoice:
    return HOPPER_TILE if form == "hopper" else SMALLEST_TILE


def plan_catalogue(
    form: str, target: str, seeds: Sequence[int], names: Iterable[str] = (), original: str | None = None
) -> Plan:
    """The entries of the catalogue that can be made in `form` (one of ORIGINALS) on `target`.

    names: only these; original: the kernel they are made in, where it is not ours. LookupError: no such entry there.
    """
    if not implementation(original or ORIGINALS[form]).sources():
        raise LookupError(f"{original or ORIGINALS[form]} names no source that could be rewritten")
    chosen = [m for m in CATALOGUE.values() if form in m.forms and target in m.targets]
    names = list(names)
    for name in names:
        if name not in {m.name for m in chosen}:
            raise LookupError(f"the catalogue has no {name!r} for the {form} on {target}")
    chosen = [m for m in chosen if not names or m.name in names]
    searches = dict.fromkeys(Search(m.law, "f64" if form == "reference" else m.dtype, MOST) for m in chosen)
    plan = Plan(
        Task(_original(original or ORIGINALS[form]), target, tuple(searches), tuple(seeds), _smallest_tile(form))
    )
    for mistake in chosen:
        try:
            plan.tasks.append(task_of(mistake, form, target, seeds, original))
        except Stale as stale:
            plan.settled.append(Row(mistake.name, STALE, said=str(stale)))
    return plan


def plan_generated(name: str, target: str, seeds: Sequence[int], names: Iterable[str] = ()) -> Plan:
    """Every generated mutant of the implementation called `name`, under every law.

    names: only these. LookupError: no such mutant, or an implementation that names no source.
    """
    original = implementation(name)
    source = original.sources().get("kernel")
    if source is None:
        raise LookupError(f"{original.name} names no source that could be rewritten")
    made = {found.name: found for found in generated(source.text, source.function)}
    names = list(names)
    for wanted in names:
        if wanted not in made:
            raise LookupError(f"no operator makes {wanted!r} in {source.function}")
    searches = searches_of_everything()
    plan = Plan(Task(_original(name), target, searches, tuple(seeds), TILE))
    for found in made.values():
        if not names or found.name in names:
            mutant = Mutant(found.name, found.sentence, name, (("kernel", found.source),))
            plan.tasks.append(Task(mutant, target, searches, tuple(seeds), TILE))
    if not names and name in ORIGINALS.values():
        gone = [reviewed for reviewed in REVIEWED.get(name, {}) if reviewed not in made]
        plan.settled += [Row(known, STALE, said="reviewed, and no longer generated") for known in gone]
    return plan


def _original(name: str) -> Mutant:
    return Mutant(CONTROL, "what the mutants were made of", name)


def judged(row: Row, name: str) -> Row:
    """`row` of a mutant of the implementation `name`, with what is known of it: a survivor that was explained."""
    mistake = CATALOGUE.get(row.name)
    why = (mistake.harmless if mistake else "") or REVIEWED.get(name, {}).get(row.name, "")
    if row.status == SURVIVED and why:
        return replace(row, status=EQUIVALENT, said=why)
    if row.status == KILLED and why:
        return replace(row, status=SURVIVED, said=f"was said to change nothing ({why}); {row.law} says otherwise")
    return row


def distinct(rows: dict[str, list[Row]]) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """The rows of the mutants that lower to code of their own, and for each of the others the name of its double.

    Two are doubles if they agree in every format for which both were compiled.
    """
    kept: dict[str, list[Row]] = {}
    doubles: dict[str, str] = {}
    for name, made in rows.items():
        mine = made[0].fingerprints
        double = next((other for other, row in kept.items() if _agree(mine, row[0].fingerprints)), None)
        if double is None or made[0].status == EQUIVALENT:
            kept[name] = made
        else:
            doubles[name] = double
    return kept, doubles


def _agree(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    common = one.keys() & other.keys()
    return bool(common) and all(one[dtype] == other[dtype] for dtype in common)
