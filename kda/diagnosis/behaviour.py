"""Mistakes around a kernel, known by what its launch refuses and by what memory does to it.

A battery of probes is put to the implementation: gates on either side of the domain's border, in several places, one
malformed tensor after the other, other memory layouts. Where it departs from what a right launch does is its signature,
and those of the catalogue's mistakes are written down here, so that nothing is rewritten or compiled to compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from kda.case import Case
from kda.diagnosis.wrong import Examined
from kda.implementations import Memory, MemoryViolation
from kda.malformed import malformations
from kda.mutation.catalogue import CATALOGUE, Mistake
from kda.numerics.compare import compare
from kda.problem import AXES, InputError, Inputs, Outputs
from kda.suite.laws import Subject
from kda.support import TileChoice

__all__ = ["Behaviour", "behaviour", "likely", "signatures"]

#: What comes of a call. What a launch lets through and its kernel cannot take fails, in another way on each target.
COMPUTED, REFUSED, FAILED = "computed", "refused", "failed"
SAME, DIFFERS = "the same bits", "other bits"
RIGHT, WRONG = "within the budget", "outside the budget"

#: How deep gates go, as a share of the domain, and whether a right launch refuses them.
_DEPTHS = {0.89: COMPUTED, 0.91: COMPUTED, 1.001: REFUSED, 1.09: REFUSED, 1.11: REFUSED, 2.0: REFUSED, 10.0: REFUSED}
_JUST_OUTSIDE = 1.001
#: A gate of one token that is deep beyond doubt.
_DEEP = 3.0
_STEP = 0.25


@dataclass(frozen=True)
class Behaviour:
    """What came of the probes: their number, and the outcome of each that a right launch would not give."""

    probes: tuple[str, ...]
    departures: Mapping[str, str]


def likely(seen: Behaviour, choice: TileChoice) -> list[tuple[Mistake, int]]:
    """The mistakes of the catalogue and on how many of the probes each does what was seen, the best first.

    Empty where nothing departs from a right launch. Left out are those whose signature has probes that were not made.
    """
    if not seen.departures:
        return []
    agreed = []
    for name, signature in signatures(choice, _depth(_JUST_OUTSIDE) in seen.probes).items():
        if not signature.keys() <= set(seen.probes):
            continue
        same = [probe for probe in seen.probes if signature.get(probe) == seen.departures.get(probe)]
        agreed.append((CATALOGUE[name], len(same)))
    return sorted(agreed, key=lambda one: -one[1])


def signatures(choice: TileChoice, bounded: bool = True) -> dict[str, dict[str, str]]:
    """By the name of a mistake, the outcome of each probe that comes out otherwise than a right launch's.

    bounded: whether the launch bounds its gates.
    """
    every = [_depth(share) for share, right in _DEPTHS.items() if right == REFUSED]
    places = ["a deep gate in chunk 1", "a deep gate in batch 1", "a deep gate in head 1"]
    # One value-channel block after the other sums up what the last one left, which all but the first take for the gate.
    blocks = choice.DV // choice.block_DV
    overwritten = {"inputs": f"g changed in {2 * choice.DK} elements, first to {-_STEP * (1 + blocks):.6g}"}
    if blocks > 1:
        overwritten["decaying inputs"] = WRONG
    floats = ("q", "k", "v", "g", "beta", "initial_state")
    # Infinities elsewhere are outside a domain that is still checked.
    computed = [f"{name} holds nan" for name in floats]
    computed += [f"{name} holds {value}" for name in ("q", "v", "initial_state") for value in (inf, -inf)]
    computed += [f"k holds {value}" for value in (inf, -inf)] + ([] if bounded else [f"g holds {-inf}"])
    # Another q is another o, whose buffer is checked too; the compiled kernel checks channels, and no other size.
    fits = {"v": "BNH", "g": "BNH", "beta": "BNH", "initial_state": "BH"}
    stuck = {"g": ("DK",), "initial_state": ("DK", "DV")}
    longer = {_longer(name, axis): COMPUTED for name, axes in fits.items() for axis in axes}
    longer |= {_longer(name, axis): FAILED for name, axes in stuck.items() for axis in axes}
    return {
        "inputs-overwritten": overwritten,
        "strides-assumed": {"strided views": DIFFERS},
        "kernel-cached-without-its-dtype": {"another format in between": FAILED},
        "no-state-is-any-state": {"no state, other outputs before": DIFFERS},
        "gate-domain-unchecked": dict.fromkeys([*every, *places], COMPUTED),
        "gate-domain-too-wide": dict.fromkeys([_depth(1.001), _depth(1.09)], COMPUTED),
        "gate-domain-too-narrow": {_depth(0.91): REFUSED},
        "gate-domain-of-the-first-chunk": {places[0]: COMPUTED},
        "gate-domain-of-the-first-batch": {places[1]: COMPUTED},
        "positive-gate-unchecked": {"g is positive": COMPUTED},
        "nan-unchecked": dict.fromkeys(computed, COMPUTED),
        "shapes-unchecked": longer,
    }


def behaviour(examined: Examined) -> Behaviour | None:
    """What comes of the probes, for the tile of the case that failed; None where not even the plain inputs are run.

    Another format in between is tried only if the failure itself ran one: nothing new is compiled.
    """
    subject, case = examined.subject, examined.case
    plain = _plain(subject, case)
    if not subject.implementation.checks_domain or _outcome(lambda: subject.run(plain, case.tile)) != COMPUTED:
        return None
    seen: dict[str, str] = {}
    right: dict[str, str] = {}
    for probes in (_numbers, _gates, _values, _shapes, _memory, _formats):
        for name, (expected, attempt) in probes(examined, plain).items():
            right[name], seen[name] = expected, _outcome(attempt)
    return Behaviour(tuple(right), {name: got for name, got in seen.items() if got != right[name]})


Probes = dict[str, tuple[str, Callable[[], object]]]


def _plain(subject: Subject, case: Case) -> Inputs:
    state = "gauss" if subject.support.initial_state else "none"
    base = Case(B=2, N=case.C + 1, H=2, beta="uniform:0.1:0.9", q="gauss", k="gauss", v="gauss", state=state, seed=1)  # type: ignore[arg-type]
    same = {name: getattr(case, name) for name in ("DK", "DV", "C", "block_DV", "dtype", "threads", "num_stages")}
    return base.replace(**same).inputs()


def _numbers(examined: Examined, plain: Inputs) -> Probes:
    """Decaying inputs: a kernel that computes something else is no matter of its launch."""
    subject, tile = examined.subject, examined.case.tile
    support = subject.support
    deepest = min(support.max_total_gate(subject.dtype) / support.gate_window(tile.C), support.max_token_gate, 1.0)
    decaying = plain.replace(g=plain.g - 0.9 * deepest * np.linspace(0, 1, plain.sizes.DK)).rounded()

    def judged() -> object:
        expected = subject.judge(decaying, tile)
        verdicts = compare(subject.run(decaying, tile), expected.outputs, expected.budget)
        return RIGHT if all(verdict.passed for verdict in verdicts) else WRONG

    def again() -> object:
        return _alike(subject.run(decaying, tile), subject.run(decaying, tile))

    return {"decaying inputs": (RIGHT, judged), "the same inputs again": (SAME, again)}


def _alike(one: Outputs, other: Outputs) -> str:
    return SAME if one.equals(other) else DIFFERS


def _depth(share: float) -> str:
    return f"a gate at {share:g} of the domain"


def _longer(name: str, axis: str) -> str:
    return f"{name} is one too long in {axis}"


def _gates(examined: Examined, plain: Inputs) -> Probes:
    """Gates of one channel, all at once in the first token, or deep beyond doubt elsewhere."""
    subject, tile = examined.subject, examined.case.tile
    support = subject.support
    total = support.max_total_gate(subject.dtype)
    if not isfinite(total) or isfinite(support.max_token_gate):
        return {}

    def at(depth: float, batch: int = 0, token: int = 0, head: int = 0) -> Callable[[], object]:
        g = np.zeros_like(plain.g)
        g[batch, token, head, -1] = -depth * total
        return lambda: subject.run(plain.replace(g=g).rounded(), tile)

    return {_depth(share): (right, at(share)) for share, right in _DEPTHS.items()} | {
        "a deep gate in chunk 1": (REFUSED, at(_DEEP, token=tile.C)),
        "a deep gate in batch 1": (REFUSED, at(_DEEP, batch=1)),
        "a deep gate in head 1": (REFUSED, at(_DEEP, head=1)),
    }


def _values(examined: Examined, plain: Inputs) -> Probes:
    """One number that no input may hold."""
    broken = [found for found in malformations(plain) if re.search("holds|is positive|is negative|above", found.what)]
    return {
        str(one): (REFUSED, _with(examined, plain, one.tensor, one.breaks(getattr(plain, one.tensor).copy(), 0)))
        for one in broken
    }


def _shapes(examined: Examined, plain: Inputs) -> Probes:
    """One tensor too large along one axis: too small, an unchecked launch would read past its end."""
    probes: Probes = {}
    for name, array in plain.tensors():
        for axis, letter in enumerate(AXES[name]):
            if name != "k" and (name, letter) != ("v", "DV"):  # the sizes are read off these
                longer = np.concatenate([array, array.take([0], axis)], axis)
                probes[_longer(name, letter)] = (REFUSED, _with(examined, plain, name, longer))
    return probes


def _with(examined: Examined, plain: Inputs, name: str, array: np.ndarray) -> Callable[[], object]:
    return lambda: examined.subject.run(plain.replace(**{name: array}), examined.case.tile)


def _memory(examined: Examined, plain: Inputs) -> Probes:
    """Outputs that held something else, inputs that are strided, inputs that must stay as they are."""
    subject, tile = examined.subject, examined.case.tile
    if not subject.implementation.controls_memory:
        return {}
    without = plain.replace(initial_state=None)
    stepping = plain.member(0, 0).tokens(0, 3)
    stepping = stepping.replace(g=np.full_like(stepping.g, -_STEP))

    def compared(inputs: Inputs, memory: Memory) -> Callable[[], object]:
        return lambda: _alike(subject.run(inputs, tile, memory), subject.run(inputs, tile))

    return {
        "no state, other outputs before": (SAME, compared(without, Memory(poison=1e4))),
        "other outputs before": (SAME, compared(plain, Memory(poison=1e4))),
        "strided views": (SAME, compared(plain, Memory(strided=True))),
        "inputs": (COMPUTED, lambda: subject.run(stepping, tile, Memory(poison=0.0))),
    }


def _formats(examined: Examined, plain: Inputs) -> Probes:
    """Another format in between, where the failure ran one."""
    subject, case = examined.subject, examined.case
    others = {run.tile.dtype: None for run in examined.runs if run.tile.dtype != subject.dtype}

    def alternating() -> object:
        got = subject.run(plain, case.tile)
        for dtype in others:
            between = case.replace(dtype=dtype, gate="none", edits=())
            subject.run(between.inputs(), between.tile)
        return _alike(subject.run(plain, case.tile), got)

    return {"another format in between": (SAME, alternating)} if others else {}


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        made = attempt()
    except InputError:
        return REFUSED
    except MemoryViolation as violation:
        changed = re.match(r"the input (\w+) was changed in (\d+) elements, .*: (\S+), was", str(violation))
        return "{} changed in {} elements, first to {}".format(*changed.groups()) if changed else "MemoryViolation"
    except Exception:
        return FAILED
    return made if isinstance(made, str) else COMPUTED
