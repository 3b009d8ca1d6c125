"""Which run of a failed law is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from small_project import ROOT

from kda.case import Case
from kda.diagnosis.wrong import Examined, Run, examined, wrong_run
from kda.formats import F16, F32
from kda.implementations import PLAIN, implementation
from kda.mutation.catalogue import CATALOGUE
from kda.problem import Outputs
from kda.suite.laws import Subject, load_laws

CASE = Case.parse("v1,N=5,DV=32,dtype=f32,q=gauss,k=gauss,v=gauss,state=gauss")


@pytest.fixture(scope="module")
def laws():
    return load_laws(ROOT / "properties")


def mirror(name=None, dtype=F32):
    made = CATALOGUE[name].mutant("mirror").planted() if name else implementation("mirror")
    return Subject(made, "c", dtype)


def test_every_run_of_a_law_is_kept(laws):
    seen = examined(laws["time.the_future_does_not_change_the_past"], mirror(), CASE)
    assert seen.error is None
    assert len(seen.runs) > 2
    assert seen.runs[0].inputs.sizes == CASE.sizes
    assert all(isinstance(run.outcome, Outputs) for run in seen.runs)
    assert wrong_run(seen) is None


def test_runs_without_the_domain_are_kept_as_they_are(laws):
    """The law holds, and is seen to hold: what computes deep gates is not replaced by what refuses them."""
    line = "v1,N=3,gate=log:-9.0,q=gauss,k=gauss,v=gauss"
    seen = examined(laws["gate_domain.just_outside_the_domain_a_case_breaks"], mirror(dtype=F16), Case.parse(line))
    assert seen.error is None
    assert len(seen.runs) >= 2


def test_what_raises_is_a_run_too(laws):
    def refuses(*arguments):
        raise ZeroDivisionError("no")

    subject = mirror()
    subject.implementation.run = refuses
    seen = examined(laws["kernel.matches_reference_A"], subject, CASE)
    (run,) = seen.runs
    assert isinstance(run.outcome, ZeroDivisionError)
    assert seen.error is run.outcome
    assert wrong_run(seen) is None


def test_the_wrong_run_is_wrong_by_itself(laws):
    seen = examined(laws["time.the_future_does_not_change_the_past"], mirror("A_qk-one-token-ahead"), CASE)
    wrong = wrong_run(seen)
    assert wrong.against == "reference A"
    assert wrong.run is seen.runs[0]
    assert wrong.got is wrong.run.outcome


def test_what_only_the_mirror_sees_is_beside_the_mirror(laws):
    subject = mirror("L-in-operand-precision", F16)
    case = CASE.replace(dtype=F16)
    wrong = wrong_run(examined(laws["kernel.matches_its_mirror"], subject, case))
    assert wrong.against == "its mirror"
    assert not wrong.budget.o.any()  # on a CPU every bit must agree


def test_what_should_have_been_refused_has_no_right_outputs(laws):
    inputs = replace(CASE.inputs(), beta=np.full((1, 5, 1), 7.0))
    outputs = Outputs(np.ones((1, 5, 1, 32)), np.ones((1, 1, 16, 32)))
    run = Run(inputs, CASE.tile, PLAIN, outputs)
    law = laws["contract.one_thing_wrong_is_refused"]
    assert wrong_run(Examined(law, mirror(), CASE, (run,), AssertionError())) is None
    fine = replace(run, inputs=CASE.inputs())
    assert wrong_run(Examined(law, mirror(), CASE, (run, fine), AssertionError())).run is fine
