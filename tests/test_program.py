"""The program of kda_forward without its front: what it computes, copies of it, mistakes in what calls ask for."""

import inspect
import shutil
from dataclasses import replace

import numpy as np
import pytest

from kda.formats import BF16, F16, F32
from kda.implementations import implementation
from kda.implementations.program import Program
from kda.kernels import forward
from kda.mutation.campaign import COMPILE, KILLED, examine
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.catalogue.mistake import ORIGINALS, form_in
from kda.mutation.lowering import traced
from kda.mutation.plans import task_of
from kda.mutation.rewrite import Edit
from kda.numerics.compare import compare
from kda.operation_case import OperationCase
from kda.operation_support import FormChoice
from kda.problem import Tile
from kda.suite.operation_laws import OperationSubject, operation_subjects

PLAIN = "op1,B=2,N=37,H=2,groups=2,q=gauss,k=gauss,v=gauss,g=uniform:0.9:0.999,beta=uniform:0:2,seed=3"
EVERYTHING = (
    "op1,lengths=3.0.37.1,tail=2,H=2,groups=2,DV=32,v_first=1,normalise=1,gate=softplus,A_log=model,dt_bias=model,g=gauss,"
    "rate=doubled,beta=gauss,rows=wide:4,q=gauss,k=gauss,v=gauss,state=gauss,scale=-0.3,seed=3"
)


@pytest.mark.parametrize(
    ("line", "dtype", "C"), [(PLAIN, BF16, 32), (EVERYTHING, F16, 16)], ids=["plain", "everything"]
)
def test_a_call_is_within_the_budget(line, dtype, C):
    case = OperationCase.parse(line).replace(dtype=dtype)
    subject = OperationSubject(implementation("kda_forward"), Program(C=C), "c", dtype)
    operation = case.operation()
    judged = subject.judge(operation)
    assert all(verdict.passed for verdict in compare(subject.run(operation), judged.outputs, judged.budget))
    behind = subject.run(operation, poison=7.0).o.reshape(-1, case.HV, case.DV)[sum(case.sequences) :]
    assert (behind == 7.0).all()


def test_a_form_without_a_state_has_none():
    case = OperationCase.parse(PLAIN).replace(final=False, dtype=F32)
    assert Program().run(case.operation(), "c").final_state is None


def test_a_program_may_be_asked_for_one_form_alone():
    form = FormChoice(32, 16, normalise=True)
    assert Program().of(form).support("c").forms == (form,)
    assert len(Program().support("c").forms) > 5


def test_an_edited_copy_computes_the_operation_by_itself(tmp_path):
    """What is looked at is the copy, and not the engine that has the name of the original."""
    shutil.copy(forward.__file__, tmp_path / "mine.py")
    text = inspect.getsource(forward)
    (tmp_path / "wrong.py").write_text(text.replace("on.round(scale * O_f", "on.round(scale * scale * O_f"))
    operation = OperationCase.parse(PLAIN).replace(dtype=F32).operation()
    made = []
    for name in ("mine", "wrong"):
        copy = implementation(f"{tmp_path / name}.py:kda_forward")
        subject = next(s for s in operation_subjects(copy, "c") if s.dtype is F32)
        assert isinstance(subject.engine, Program)
        made.append(subject.run(operation))
    np.testing.assert_allclose(made[1].o, operation.factor * made[0].o, rtol=1e-6)
    np.testing.assert_array_equal(made[1].final_state, made[0].final_state)


@pytest.mark.parametrize("name", ["beta-not-doubled", "head-by-remainder"])
def test_a_mistake_of_calls_is_caught_by_a_law_of_the_operation(name, tmp_path):
    mistake = CATALOGUE[name]
    (row,) = examine(task_of(mistake, "forward", "c", [1]), tmp_path, "w")
    assert (row.status, row.law) == (KILLED, mistake.law)
    assert OperationCase.parse(row.case).rate == mistake.forward.call.rate


def test_what_does_not_compile_is_refused_and_not_caught(tmp_path):
    edit = Edit("the scale", "scale * O_f[_r, _j]", "nothing_of_the_name * O_f[_r, _j]")
    mistake = CATALOGUE["scale-twice"]
    broken = replace(mistake, forward=replace(mistake.forward, kernel=(edit,)))
    (row,) = examine(task_of(broken, "forward", "c", [1]), tmp_path, "w")
    assert (row.status, row.law) == (KILLED, COMPILE)


def test_the_form_of_an_implementation_is_that_of_its_function(tmp_path):
    assert {form: form_in(implementation(name)) for form, name in ORIGINALS.items()} == {f: f for f in ORIGINALS}
    shutil.copy(forward.__file__, tmp_path / "mine.py")
    assert form_in(implementation(f"{tmp_path / 'mine.py'}:kda_forward")) == "forward"
    assert form_in(implementation("ref_A")) == "kernel"


def test_an_entry_may_differ_from_form_to_form():
    mistake = CATALOGUE["M-accumulates"]
    assert (mistake.of("kernel").stages, mistake.of("forward").stages) == (("M",), ("L",))
    assert mistake.of("mirror") is mistake
    assert mistake.of("forward").tile.C == mistake.of("forward_mirror").tile.C == 32
    shared = CATALOGUE["U-in-operand-precision"]
    assert shared.edits("forward")["kernel"] is shared.kernel
    assert shared.of("forward").stages == shared.stages


def test_it_is_lowered_with_the_lanes_of_its_launch():
    """Its products have 16 rows: the lanes that chunks of 32 could have would not split them."""
    text = inspect.getsource(forward)
    program = traced(text, "kda_forward", "cuda", Tile(32, 128, F16), 128, 128)
    assert '"tl.launch_threads": [128, 1, 1]' in program
