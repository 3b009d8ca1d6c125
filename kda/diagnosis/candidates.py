"""The known mistakes, made in the mirror: what each of them would give on any inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from kda.implementations import implementation
from kda.mutation.catalogue import CATALOGUE, Mistake
from kda.mutation.catalogue.mistake import ORIGINALS
from kda.mutation.mutant import mutant
from kda.mutation.rewrite import Edit, Stale
from kda.problem import Inputs, Outputs, Tile
from kda.references.arithmetic import Exp2
from kda.source import module_from_source

__all__ = ["Candidate", "candidates"]

# A kernel leaves in its buffers what it does not write, which by default is NaN; the mirror begins with zeros, and
# stores the state where it was read.
_O = Edit("the buffer of o", "o = np.zeros(_shape)", "o = np.full(_shape, np.nan)")
_UNWRITTEN: dict[str, tuple[Edit, ...]] = {
    "kernel": (_O,),
    "loops": (
        _O,
        Edit(
            "the initial state",
            "state = inputs.state()",
            "state = inputs.state()\nstored = np.full_like(state, np.nan)",
        ),
        Edit("the store of the final state", "state[_b, _h, :, _dv] = S", "stored[_b, _h, :, _dv] = S"),
        Edit("the outputs", "Outputs(o, state)", "Outputs(o, stored)"),
    ),
}


@dataclass(frozen=True)
class Candidate:
    """A mistake of the catalogue, made in `ref_C_fast`, `ref_C` or `ref_forward`."""

    mistake: Mistake
    function: Callable[..., Outputs]

    def run(self, inputs: Inputs, tile: Tile, exp2: Exp2 | None) -> Outputs | None:
        """What a kernel with the mistake gives, NaN where it writes nothing; None where it fails on such inputs."""
        try:
            return self.function(inputs, tile.C, tile.block_DV, tile.dtype, exp2)
        except Exception:
            return None


@functools.cache
def candidates(form: str = "mirror") -> tuple[Candidate, ...]:
    """Every mistake that changes something and can be made in a mirror, `form` of ORIGINALS: planted once in a process.

    An entry whose place is gone from the mirror is left out.
    """
    return tuple(made for mistake in CATALOGUE.values() if not mistake.harmless and (made := _planted(mistake, form)))


def _planted(mistake: Mistake, form: str) -> Candidate | None:
    mirror = implementation(ORIGINALS[form])
    for role, edits in mistake.edits(form).items():
        if not edits:
            continue
        source = mirror.sources()[role]
        try:
            rewritten = mutant(mistake.name, mistake.sentence, mirror, {role: (*edits, *_UNWRITTEN[role])})
        except Stale:
            return None
        module = module_from_source(rewritten.sources[0][1], mistake.name, source.module.__package__ or "")
        return Candidate(mistake, getattr(module, source.function))
    return None
