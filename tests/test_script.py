"""Scripts of failures: each kind shows its bug, ends with 1 while it lives and 0 when it is gone, and fits a page."""

import ast
import os
import re
import runpy
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from click.testing import CliRunner
from small_project import ROOT

from kda.case import Case
from kda.cli import main
from kda.diagnosis.script import CRASHED, HUNG, LINES, WIDTH, script
from kda.formats import F16, F32
from kda.implementations import implementation
from kda.mutation.campaign import SMALLEST_TILE
from kda.suite.laws import Subject, load_laws

SUBJECTS = '''
import ctypes
import itertools

import numpy as np
import torch

from kda.formats import F16, F32
from kda.implementations import Implementation, Memory
from kda.implementations.builtin import Mirror
from kda.implementations.on_torch import TorchImplementation
from kda.mutation.catalogue import CATALOGUE
from kda.problem import InputError, Inputs, Outputs
from kda.references import ref_A_fast
from kda.support import Support


class Right(TorchImplementation):
    """Reference A with float32 in and out."""

    name, summary = "right", "reference A"

    def dtypes(self, target):
        return (F32, F16)

    def support(self, target, dtype):
        return Support(dtypes=(dtype,), total_gates={dtype: 9.0})

    def call(self, tensors, tile, o, final_state):
        arrays = {name: tensor.double().numpy() for name, tensor in tensors.items()}
        outputs = ref_A_fast(Inputs(**arrays))
        o.copy_(torch.from_numpy(outputs.o))
        final_state.copy_(torch.from_numpy(outputs.final_state))
        self.after(tensors, o, final_state)

    def after(self, tensors, o, final_state):
        pass


class Clobbers(Right):
    def after(self, tensors, o, final_state):
        tensors["g"][0, -1] += 1.0


class Overruns(Right):
    def after(self, tensors, o, final_state):
        torch.as_strided(final_state, (1,), (1,), final_state.storage_offset() + final_state.numel()).fill_(3.0)


class LeavesOut(Right):
    def call(self, tensors, tile, o, final_state):
        held = o[:, -1].clone()
        super().call(tensors, tile, o, final_state)
        o[:, -1] = held


class Dies(Right):
    def call(self, tensors, tile, o, final_state):
        ctypes.string_at(0)


class Sways(Right):
    runs = itertools.count()

    def after(self, tensors, o, final_state):
        if next(self.runs) % 3 == 0:
            o += 1.0


class Races(Right):
    runs = itertools.count()

    def after(self, tensors, o, final_state):
        if next(self.runs) % 3 == 2:
            o *= 1 + 2**-20


class Contiguous(Right):
    def after(self, tensors, o, final_state):
        if not tensors["v"].is_contiguous():
            o += 1.0


class MixesFormats(Right):
    first = None

    def run(self, inputs, tile, target, memory=Memory()):
        self.first = self.first or inputs.dtype
        if self.first is not inputs.dtype:
            raise TypeError(f"a kernel for {self.first} was given {inputs.dtype}")
        return super().run(inputs, tile, target, memory)


class MixesFormatsUp(Right):
    seen = ()

    def run(self, inputs, tile, target, memory=Memory()):
        self.seen += (inputs.dtype,)
        outputs = super().run(inputs, tile, target, memory)
        return outputs.with_o(outputs.o + 1.0) if len(set(self.seen)) > 1 else outputs


class Lax(Right):
    """Takes any gate, a positive one too."""

    checks_inputs = True

    def run(self, inputs, tile, target, memory=Memory()):
        return super().run(inputs.replace(g=np.clip(inputs.g, -50.0, 0.0)), tile, target, memory)


class Strict(Right):
    def run(self, inputs, tile, target, memory=Memory()):
        if inputs.g.min() < -2.0:
            raise InputError("g is too deep; expected >= -2")
        return super().run(inputs, tile, target, memory)


class Blames(Right):
    """Refuses what is malformed, and blames another tensor."""

    def run(self, inputs, tile, target, memory=Memory()):
        try:
            return super().run(inputs, tile, target, memory)
        except InputError:
            raise InputError("something is wrong with x; expected other inputs") from None


class Uneven(Right):
    """A little too large in the second batch, and well within its budget."""

    def after(self, tensors, o, final_state):
        o[1:] *= 1 + 3e-7


def mirror_with(name):
    return CATALOGUE[name].mutant("mirror").planted()


wrong_state = mirror_with("decay-after-the-write")
wrong_output = mirror_with("A_qk-without-diagonal")
wrong_rounding = mirror_with("gamma-in-operand-precision")
'''

ANY = "gate=uniform:0.9:0.999,beta=uniform:0.1:0.9,q=gauss,k=gauss,v=gauss,state=gauss,seed=3"

#: The implementation, the right one, the law, the case, and words of the script that tell its kind.
KINDS = {
    "o": ("wrong_output", "mirror", "kernel.matches_reference_A", "v1,N=2,DV=32,dtype=f32", "gives a wrong o"),
    "state": (
        "wrong_state", "mirror", "kernel.matches_reference_A", "v1,N=2,DV=32,dtype=f32,gate=log:-1.0",
        "gives a wrong final_state",
    ),
    "rounding": (
        "wrong_rounding", "mirror", "kernel.matches_its_mirror",
        "v1,DV=32,v=zeros,state=zeros,edits=state:0.0:1.0/g:0.0:-0.3", "rounds final_state in another way",
    ),
    "not-written": ("LeavesOut", "Right", "machine.every_output_is_written", "v1,N=3,dtype=f32", "gives a wrong o"),
    "inputs": ("Clobbers", "Right", "machine.inputs_stay_untouched", "v1,N=3,dtype=f32", "writes to memory"),
    "outside": (
        "Overruns", "Right", "machine.nothing_outside_the_outputs_is_written", "v1,N=3,dtype=f32", "Memory(guard=1024)",
    ),
    "strided": (
        "Contiguous", "Right", "machine.strided_views_are_as_good_as_contiguous", "v1,N=2,dtype=f32",
        "Memory(strided=True)",
    ),
    "formats-raise": (
        "MixesFormats", "Right", "machine.formats_may_alternate_in_one_process", "v1,dtype=f32",
        "kernels of other formats come first",
    ),
    "formats-mixed": (
        "MixesFormatsUp", "Right", "machine.formats_may_alternate_in_one_process", "v1,dtype=f32",
        "kernels of other formats come first",
    ),
    "race": (
        "Races", "Right", "machine.every_run_gives_the_same_bits", "v1,N=2,dtype=f32", "other bits on another run",
    ),
    "computed": (
        "Lax", "Right", "gate_domain.any_gate_is_computed_or_refused", "v1,dtype=f32,edits=g:0.3:-32.0",
        "does not refuse a bad g",
    ),
    "malformed": (
        "Lax", "Right", "contract.one_thing_wrong_is_refused", "v1,dtype=f32", "does not refuse a bad g",
    ),
    "misnamed": ("Blames", "Right", "contract.one_thing_wrong_is_refused", "v1,dtype=f32,seed=20", "does not refuse a"),
    "refused": (
        "Strict", "Right", "gate_domain.any_gate_is_computed_or_refused", "v1,dtype=f32,edits=g:0.3:-4.0",
        "raises an InputError where it must compute",
    ),
    "many-numbers": (
        "wrong_output", "mirror", "kernel.matches_reference_A", f"v1,N=9,DV=32,dtype=f32,{ANY}", "Case.parse",
    ),
    "formats-of-many-numbers": (
        "MixesFormatsUp", "Right", "machine.formats_may_alternate_in_one_process", "v1,N=20,dtype=f32,v=small_int:3",
        "load_laws",
    ),
    "law": (
        "Uneven", "Right", "invariance.batches_and_heads_may_come_in_any_order", "v1,B=2,N=3,dtype=f32,v=gauss",
        "load_laws",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def laws():
    return load_laws(ROOT / "properties")


@pytest.fixture
def subjects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "subjects.py").write_text(SUBJECTS)


def named(name):
    return name if name == "mirror" else f"subjects.py:{name}"


def subject_of(address, dtype):
    found = implementation(address)
    return Subject(found, "c", dtype, (SMALLEST_TILE,) if found.mirrored else None)


def ended(path, address, capsys):
    """The exit status of a script on an implementation, run in this process, and what it printed."""
    capsys.readouterr()
    argv = sys.argv
    sys.argv = [str(path), address]
    try:
        runpy.run_path(str(path))
        status = 0
    except SystemExit as left:
        status = left.code
    finally:
        sys.argv = argv
    return status, capsys.readouterr().out


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_script_ends_with_1_while_the_bug_lives_and_0_when_it_is_gone(kind, subjects, laws, tmp_path, capsys):
    wrong, right, law, line, words = KINDS[kind]
    case = Case.parse(line)
    text = script(laws[law], subject_of(named(wrong), case.dtype), case)
    path = tmp_path / "repro.py"
    path.write_text(text)
    assert words in text
    assert text.count("\n") < LINES
    assert max(map(len, text.splitlines())) <= WIDTH
    status, said = ended(path, named(wrong), capsys)
    assert status == 1, said
    assert said
    assert "expected" in said or words == "load_laws"
    status, said = ended(path, named(right), capsys)
    assert status == 0, said


@pytest.mark.parametrize("kind", [kind for kind, (*_, words) in KINDS.items() if words != "load_laws"])
def test_a_script_needs_the_kernel_and_numpy_alone(kind, subjects, laws):
    """What it says depends on no law, no reference and no budget of ours: those are written into it as numbers."""
    wrong, _, law, line, _ = KINDS[kind]
    case = Case.parse(line)
    text = script(laws[law], subject_of(named(wrong), case.dtype), case)
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    more = {"many-numbers": {"kda.case"}, "race": {"kda.numerics.compare"}}.get(kind, set())
    assert imported == {"kda.formats", "kda.implementations", "kda.problem"} | more
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    unused = {"np", "InputError", "Memory", "MemoryViolation"}
    for name in unused:
        assert (name in names) == (re.search(rf"import .*\b{name}\b", text) is not None), name


def test_a_script_runs_alone(subjects, laws, tmp_path):
    """In a process of its own, the implementation it was written for being the default."""
    case = Case.parse("v1,N=2,dtype=f32")
    (tmp_path / "repro.py").write_text(
        script(laws["machine.inputs_stay_untouched"], subject_of(named("Clobbers"), F32), case)
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = [
        subprocess.run([sys.executable, "repro.py", *words], env=environment, capture_output=True, text=True)
        for words in ([], [named("Right")])
    ]
    assert [one.returncode for one in done] == [1, 0], done
    assert "the input g was changed in" in done[0].stdout


def test_a_script_reads_like_this(subjects, laws):
    """The whole text once: this is what a person gets to see."""
    line = "v1,N=17,DV=32,dtype=f32,beta=zero,q=zeros,k=zeros,v=zeros,edits=k:0.0:1.0/q:16.0:1.0/v:0.3:2.0/beta:0:1.0"
    subject = Subject(implementation("subjects.py:wrong_output"), "c", F32, (SMALLEST_TILE,))
    reads_itself = line.replace("q:16.0", "q:0.0")
    text = script(laws["kernel.matches_reference_A"], subject, Case.parse(reads_itself))
    assert text == textwrap.dedent('''\
        """subjects.py:wrong_output on c gives a wrong o.

        Found by kernel.matches_reference_A.
        python THIS_FILE [IMPLEMENTATION]: exit status 1 while the bug lives, 0 when it is gone.
        """
        import sys

        import numpy as np

        from kda.formats import F32
        from kda.implementations import implementation
        from kda.problem import Inputs, Tile

        kernel = implementation(sys.argv[1] if len(sys.argv) > 1 else "subjects.py:wrong_output")
        B, N, H, DK, DV = 1, 17, 1, 16, 32
        q, k, g = np.zeros((3, B, N, H, DK))
        v, beta = np.zeros((B, N, H, DV)), np.zeros((B, N, H))
        q[0, 0, 0, 0] = 1.0
        k[0, 0, 0, 0] = 1.0
        v[0, 0, 0, 3] = 2.0
        beta[0, 0, 0] = 1.0
        inputs = Inputs(q, k, v, g, beta, None, F32)
        outputs = kernel.run(inputs, Tile(16, 16, F32), "c")

        # S_t = S_{t-1} Diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,  o_t = S_t q_t;  a_t = exp(g_t)
        b, h, S = 0, 0, np.zeros((DK, DV))  # key channel first
        for t in range(1):
            S *= np.exp(g[b, t, h])[:, None]
            S += np.outer(k[b, t, h], beta[b, t, h] * (v[b, t, h] - k[b, t, h] @ S))
        expected = q[b, t, h] @ S
        got, allowed = outputs.o[0, 0, 0], 7.272e-06
        error = np.linalg.norm(got - expected)
        e = np.argmax(np.abs(got - expected))
        print(f"o at batch 0, token 0, head 0, value channel {e}:")
        print(f"got {got[e]:.9g}, expected {expected[e]:.9g}; row error {error:.3g}, allowed {allowed:.3g}")
        sys.exit(0 if error <= allowed else 1)
        ''')


def test_a_call_that_takes_its_process_with_it_is_not_made(laws):
    class Deadly:
        name, address, checks_domain = "deadly", "", True

        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    texts = [
        script(laws["kernel.matches_reference_A"], Subject(Deadly(), "c", F16), Case(N=3), ended=how)
        for how in (CRASHED, HUNG)
    ]
    assert texts[0].startswith('"""deadly on c crashed.')
    assert texts[1].startswith('"""deadly on c hung.')
    assert "faulthandler.dump_traceback_later" in texts[1]
    assert "faulthandler" not in texts[0]
    for text in texts:
        assert 'kernel.run(inputs, Tile(16, 16, F16), "c")' in text
        compile(text, "repro.py", "exec")


def test_equal_tokens_are_one_assignment(subjects, laws):
    edits = "k:2.0:1.0/k:3.0:1.0/k:4.0:1.0/k:6.0:1.0/q:4.0:1.0"
    line = f"v1,N=9,DV=32,dtype=f32,beta=constant:0.5,q=zeros,k=zeros,edits={edits}"
    text = script(laws["kernel.matches_reference_A"], subject_of(named("wrong_output"), F32), Case.parse(line))
    assert "\nk[0, 2:5, 0, 0] = k[0, 6, 0, 0] = 1.0\n" in text
    assert "\nv[:] = 1.0\n" in text
    assert "\nbeta[:] = 0.5\n" in text


def test_the_inputs_of_a_script_are_those_of_the_case(subjects, laws, monkeypatch):
    """Written out, they are the same bits, however many there are."""
    monkeypatch.setattr("kda.diagnosis.script.LINES", 10_000)
    case = Case.parse(f"v1,B=2,N=3,H=2,DV=32,{ANY},edits=k:0:1.0/v:1.3:-0.5")
    text = script(laws["kernel.matches_reference_A"], subject_of(named("wrong_output"), F16), case)
    made = {}
    exec(re.search(r"^B, N, H.*?^inputs = ", text, re.M | re.S).group().rpartition("\n")[0], {"np": np}, made)
    for name, array in case.inputs().tensors():
        np.testing.assert_array_equal(made["state" if name == "initial_state" else name], array, err_msg=name)


def test_what_holds_has_no_script(laws):
    with pytest.raises(ValueError, match="there is nothing to reproduce"):
        script(laws["kernel.matches_reference_A"], Subject(implementation("mirror"), "c", F32), Case(DV=32, dtype=F32))


# kda repro


def repro(*words):
    return CliRunner().invoke(main, ["repro", *words, "--properties", str(ROOT / "properties"), "--target", "c"])


FAILS = f"v1,N=3,DV=32,dtype=f32,{ANY}"


def test_the_command_reduces_and_writes(subjects, tmp_path):
    result = repro(FAILS, "--impl", named("wrong_output"), "-o", "new/repro.py")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("law:     kernel.matches_reference_A: The kernel computes the recurrence")
    assert lines[1].startswith("case:    v1,dtype=f32,")
    assert len(Case.parse(lines[1].split()[1]).edits) == 4
    assert "tokens 3 -> 1" in lines[2]
    assert lines[3] == "wrote new/repro.py"
    assert "gives a wrong o" in (tmp_path / "new" / "repro.py").read_text()


def test_without_a_file_the_script_is_printed_alone(subjects):
    result = repro(FAILS, "--impl", named("wrong_output"))
    assert result.exit_code == 0
    assert result.stdout.startswith('"""subjects.py:wrong_output on c gives a wrong o')
    assert result.stdout.endswith("sys.exit(0 if error <= allowed else 1)\n")
    assert "dropped: " in result.stderr


def test_a_case_may_stay_as_it_is(subjects):
    result = repro(FAILS, "--impl", named("wrong_output"), "--no-reduce")
    assert result.exit_code == 0
    assert f'"{FAILS}"' in result.stdout.replace('"\n    "', "")
    assert "dropped" not in result.stderr


def test_what_holds_is_not_written(subjects, tmp_path):
    result = repro("v1,N=3,DV=32,dtype=f32", "--impl", "mirror", "-o", "repro.py")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: kernel.matches_reference_A holds on v1,N=3,DV=32,dtype=f32 with mirror-c-f32: "
        "there is nothing to reproduce\n"
    )
    assert not (tmp_path / "repro.py").exists()


def test_a_law_that_does_not_take_the_case_is_said(subjects):
    result = repro("v1,N=3,DV=32,C=48", "--impl", "mirror")
    assert result.exit_code == 2
    assert "kernel.matches_reference_A cannot be asked; mirror-c-f16: DK16-DV32-C48-bDV16 is not among" in result.stderr


def test_a_law_that_is_not_there_is_said(subjects):
    result = repro("v1", "--property", "kernel.is_fast")
    assert result.exit_code == 2
    assert "no property is called 'kernel.is_fast'" in result.stderr


def test_what_ends_its_process_is_written_unseen(subjects, tmp_path):
    result = repro("v1,N=3,dtype=f32", "--impl", named("Dies"))
    assert result.exit_code == 0
    assert result.stdout.startswith('"""subjects.py:Dies on c crashed')
    assert "case:    v1,N=3,dtype=f32" in result.stderr


def test_what_does_not_repeat_is_run_many_times(subjects):
    result = repro("v1,N=3,dtype=f32", "--impl", named("Sways"))
    assert result.exit_code == 0
    assert "gives other bits on another run" in result.stdout
    assert re.search(r"note:    race: .* fails in \d+ of \d+ runs", result.stderr)
