"""Every tile and every form compiles; done first and in parallel, so that no law waits for a compiler."""

from kda.case import Case
from kda.kinds import Kind
from kda.operation_support import FormChoice
from kda.suite.laws import Subject
from kda.suite.operation_laws import OperationSubject
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

    def compiled():
        for each in (case, case.replace(state=Kind("gauss"))):  # which may be two programs
            subject.implementation.prepare(each.inputs(), each.tile, subject.target)

    kda_run.compiled(subject, compiled)


def test_a_form_compiles(subject: OperationSubject, form: FormChoice, kda_run):
    """So would a program of the operation, and those that it is compared with."""
    kda_run.compiled(subject, lambda: subject.run(form.least(subject.dtype).operation()))
