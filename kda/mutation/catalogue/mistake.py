"""What an entry of the catalogue says."""

from __future__ import annotations

from dataclasses import dataclass

from kda.implementations import implementation
from kda.mutation.mutant import Mutant, mutant
from kda.mutation.rewrite import Edit
from kda.support import TileChoice

__all__ = ["MATCHES_A", "MIRROR", "ORIGINALS", "Mistake"]

#: What a mistake is made in, by form.
ORIGINALS = {"kernel": "kda_chunk", "mirror": "mirror", "reference": "ref_B"}

MATCHES_A = "kernel.matches_reference_A"
MIRROR = "kernel.matches_its_mirror"


@dataclass(frozen=True)
class Mistake:
    """One known mistake.

    source: where it was made or warned of. law: the one expected to catch it; dtype: the operand format it is looked
    for in. tokens: N of the smallest case that shows it, and members: its largest B and H. tile: where the smallest one
    cannot show it. hidden_by: the names in HIDING of what makes it invisible. harmless: the proof, where it changes
    nothing; such an entry must survive. stage: what `kda.diagnosis.stages.first_wrong_stage` names in the kernel;
    several, where each is right; none, where no run has wrong outputs (it must be refused, or changes nothing), or a
    race decides which stage it is.
    """

    name: str
    sentence: str
    source: str
    kernel: tuple[Edit, ...] = ()
    launch: tuple[Edit, ...] = ()
    compile: tuple[Edit, ...] = ()
    mirror: tuple[Edit, ...] = ()
    loops: tuple[Edit, ...] = ()
    reference: tuple[Edit, ...] = ()
    law: str = MATCHES_A
    dtype: str = "f32"
    tokens: int = 1
    members: int = 1
    tile: TileChoice | None = None
    targets: tuple[str, ...] = ("c", "cuda")
    hidden_by: tuple[str, ...] = ()
    harmless: str = ""
    stage: str | tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[str, ...]:
        """What may be named as the first wrong stage."""
        return (self.stage,) if isinstance(self.stage, str) else self.stage

    @property
    def forms(self) -> tuple[str, ...]:
        """Where it can be made: "kernel", "mirror", "reference"."""
        edits = {
            "kernel": self.kernel or self.launch or self.compile,
            "mirror": self.mirror or self.loops,
            "reference": self.reference,
        }
        return tuple(form for form, made in edits.items() if made)

    def mutant(self, form: str, original: str | None = None) -> Mutant:
        """The mistake made in `form`; in the kernel called `original` instead of ours. Stale: its place is gone."""
        roles = {
            "kernel": {"kernel": self.kernel, "launch": self.launch, "compile": self.compile},
            "mirror": {"kernel": self.mirror, "loops": self.loops},
            "reference": {"reference": self.reference},
        }[form]
        name = original or ORIGINALS[form]
        return mutant(self.name, self.sentence, implementation(name), {r: e for r, e in roles.items() if e})
