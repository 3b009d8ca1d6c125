"""Every tile of the palette compiles; done first and in parallel, so that no law waits for a compiler."""

from kda.case import Case
from kda.suite.laws import Subject
from kda.support import TileChoice


def test_a_tile_compiles(subject: Subject, tile_choice: TileChoice, kda_run):
    """A kernel of the palette that no longer compiles would leave its laws without a subject."""
    case = Case(
        DK=tile_choice.DK,
        DV=tile_choice.DV,
        C=tile_choice.C,
        block_DV=tile_choice.block_DV,
        threads=tile_choice.threads,
        num_stages=tile_choice.num_stages,
        dtype=subject.dtype,
    )
    kda_run.compiled(subject, lambda: subject.implementation.prepare(case.inputs(), case.tile, subject.target))
