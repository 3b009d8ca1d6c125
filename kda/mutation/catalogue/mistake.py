"""What an entry of the catalogue says."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kda.implementations import Implementation, implementation
from kda.mutation.mutant import Mutant, mutant
from kda.mutation.rewrite import Edit
from kda.operation_support import FormChoice
from kda.support import TileChoice

__all__ = ["MATCHES_A", "MIRROR", "ORIGINALS", "InForward", "InHopper", "Mistake", "form_in"]

#: What a mistake is made in, by form.
ORIGINALS = {
    "kernel": "kda_chunk",
    "mirror": "mirror",
    "reference": "ref_B",
    "forward": "kda_forward",
    "forward_mirror": "mirror_forward",
    "hopper": "kda_hopper",
}

MATCHES_A = "kernel.matches_reference_A"
MIRROR = "kernel.matches_its_mirror"


def form_in(original: Implementation) -> str:
    """The form of the mistakes that can be made in `original`, by the function that its source is about."""
    forms = {
        "ref_C_fast": "mirror",
        "ref_B": "reference",
        "kda_forward": "forward",
        "ref_forward": "forward_mirror",
        "prep": "hopper",
    }
    return next((forms[s.function] for s in original.sources().values() if s.function in forms), "kernel")


@dataclass(frozen=True)
class InForward:
    """A mistake as it is made in `kda_forward`: in the kernel and around it, and in its mirror.

    shares: the roles whose edits are those of `kda_chunk`: "kernel", "launch", "mirror". stage, tokens, tile: where
    they are others than there. prologue: how it is made in what raw inputs go through. call: the form of the calls that
    show it, where the law is one of the operation and not of the kernel.
    """

    shares: tuple[str, ...] = ()

    kernel: tuple[Edit, ...] = ()
    launch: tuple[Edit, ...] = ()
    prologue: tuple[Edit, ...] = ()
    mirror: tuple[Edit, ...] = ()
    call: FormChoice | None = None
    stage: str | tuple[str, ...] | None = None
    tokens: int | None = None
    tile: TileChoice | None = None


@dataclass(frozen=True)
class InHopper:
    """A mistake as it is made in the Hopper program: in its two launches, and in how they are compiled.

    call: the form of the calls that show it, where the law is one of the operation and not of the kernel.
    """

    prep: tuple[Edit, ...] = ()
    walk_wide: tuple[Edit, ...] = ()
    walk_narrow: tuple[Edit, ...] = ()
    launching: tuple[Edit, ...] = ()
    call: FormChoice | None = None


@dataclass(frozen=True)
class Mistake:
    """One known mistake.

    source: where it was made or warned of. kernel to reference: how it is made in `kda_chunk` and its mirrors, forward:
    in `kda_forward`, hopper: in its Hopper program. law: the one expected to catch it; dtype: the operand format it is
    looked for in. tokens: N of the smallest case that shows it, and members: its largest B and H. tile: where the
    smallest one cannot show it. hidden_by: the names in HIDING of what makes it invisible. harmless: the proof, where
    it changes nothing; such an entry must survive. stage: what `kda.diagnosis.stages.first_wrong_stage` names in the
    kernel; several, where each is right; none, where no run has wrong outputs (it must be refused, or changes nothing),
    or a race decides which stage it is.
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
    forward: InForward = InForward()
    hopper: InHopper = InHopper()
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

    def of(self, form: str) -> Mistake:
        """The same, with the stage, tokens and tile that it has in `form`."""
        if not form.startswith("forward"):
            return self
        other = {name: getattr(self.forward, name) for name in ("stage", "tokens", "tile")}
        return replace(self, **{name: value for name, value in other.items() if value is not None})

    def call(self, form: str) -> FormChoice | None:
        """The form of the calls that show it in `form`; None where any does."""
        return self.hopper.call if form == "hopper" else self.forward.call

    @property
    def forms(self) -> tuple[str, ...]:
        """Where it can be made: the names in ORIGINALS."""
        return tuple(form for form in ORIGINALS if any(self.edits(form).values()))

    def mutant(self, form: str, original: str | None = None) -> Mutant:
        """The mistake made in `form`; in the kernel called `original` instead of ours. Stale: its place is gone."""
        name = original or ORIGINALS[form]
        roles = {role: edits for role, edits in self.edits(form).items() if edits}
        return mutant(self.name, self.sentence, implementation(name), roles)

    def edits(self, form: str) -> dict[str, tuple[Edit, ...]]:
        """What is rewritten in `form`, by the role of its source."""
        return {
            "kernel": {"kernel": self.kernel, "launch": self.launch, "compile": self.compile},
            "mirror": {"kernel": self.mirror, "loops": self.loops},
            "reference": {"reference": self.reference},
            "forward": {
                "kernel": self._in_forward("kernel"),
                "launch": self._in_forward("launch"),
                "prologue": self.forward.prologue,
            },
            "forward_mirror": {"kernel": self._in_forward("mirror")},
            "hopper": {role: getattr(self.hopper, role) for role in ("prep", "walk_wide", "walk_narrow", "launching")},
        }[form]

    def _in_forward(self, role: str) -> tuple[Edit, ...]:
        made: tuple[Edit, ...] = getattr(self if role in self.forward.shares else self.forward, role)
        return made
