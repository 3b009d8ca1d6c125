"""Implementations are found by name, their memory is watched, and kernels are compiled once however many ask."""

import json
import os
import subprocess
import sys
import textwrap
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kda import implementations
from kda.case import Case
from kda.formats import BF16, F16, F32, F64
from kda.implementations import Memory, MemoryViolation, implementation, implementation_names
from kda.implementations.builtin import _plain_call
from kda.implementations.on_torch import TorchImplementation
from kda.kernels.compile import COUNTS, generated_source, tilelang
from kda.kernels.launch import ALIGNMENT, compiled_kernel
from kda.malformed import outcome, refusal
from kda.numerics.domain import DomainError
from kda.problem import InputError, Tile
from kda.references import ref_A_fast, ref_C_fast
from kda.support import Support

CASE = Case.parse("v1,B=2,N=21,H=2,DK=16,DV=32,gate=uniform:0.9:0.99,k=gauss,q=gauss,v=gauss,state=gauss,seed=5")
WATCHED = Memory(strided=True, guard=64)


# The registry


def test_the_built_in_names():
    assert {"kda_chunk", "mirror", "ref_A", "ref_B", "ref_C"} <= set(implementation_names())
    assert all(implementation(name).name == name for name in ("kda_chunk", "mirror", "ref_A", "ref_B", "ref_C"))


def test_an_unknown_name_lists_the_known():
    with pytest.raises(LookupError, match=r"implementation 'kda_chunky' is unknown; installed are .*kda_chunk.*ref_A"):
        implementation("kda_chunky")


OURS = """
from kda.implementations.builtin import ReferenceA

class Ours(ReferenceA):
    name = "ours"

number = 3
"""


def test_a_class_in_a_file_is_found(tmp_path):
    file = tmp_path / "ours.py"
    file.write_text(OURS)
    ours = implementation(f"{file}:Ours")
    assert ours.name == "ours"
    inputs = CASE.inputs()
    assert ours.run(inputs, CASE.tile, "c").equals(implementation("ref_A").run(inputs, CASE.tile, "c"))
    with pytest.raises(LookupError, match="has no 'Theirs'"):
        implementation(f"{file}:Theirs")
    with pytest.raises(TypeError, match=r"is a int; expected a kda\.implementations\.Implementation"):
        implementation(f"{file}:number")
    with pytest.raises(LookupError, match="no file"):
        implementation(f"{tmp_path / 'absent.py'}:Ours")


def test_a_class_in_a_module_is_found():
    assert implementation("kda.implementations.builtin:Mirror").name == "mirror"


def test_an_entry_point_is_found(monkeypatch):
    class Point:
        name = "theirs"

        def load(self):
            return Faithful

    def entry_points(*, group, name=None):
        assert group == "kda.implementations"
        return [Point()] if name in (None, "theirs") else []

    monkeypatch.setattr(implementations, "entry_points", entry_points)
    assert "theirs" in implementation_names()
    assert isinstance(implementation("theirs"), Faithful)


# Memory


class Faithful(TorchImplementation):
    """Reference A on torch tensors, with a place for a mistake."""

    name, summary = "faithful", "reference A behind torch tensors"

    def dtypes(self, target):
        return (F16, BF16, F32)

    def support(self, target, dtype):
        return Support(dtypes=(dtype,))

    def call(self, tensors, tile, o, final_state):
        arrays = {name: self.read(name, t).double().numpy() for name, t in tensors.items()}
        found = ref_A_fast(CASE.replace(dtype=F64).inputs().replace(**arrays))
        o.copy_(torch.from_numpy(found.o))
        final_state.copy_(torch.from_numpy(found.final_state))
        self.mistake(tensors, o, final_state)

    def read(self, name, tensor):
        return tensor

    def mistake(self, tensors, o, final_state):
        pass


def test_a_faithful_implementation_passes_every_memory():
    inputs = CASE.inputs()
    plain = Faithful().run(inputs, CASE.tile, "c")
    for memory in (WATCHED, Memory(guard=1), Memory(strided=True), Memory(poison=7.0)):
        assert Faithful().run(inputs, CASE.tile, "c", memory).equals(plain)
    expected = ref_A_fast(inputs)
    assert np.array_equal(plain.o, F16.round(expected.o))
    assert np.array_equal(plain.final_state, F32.round(expected.final_state))


@pytest.mark.parametrize("output", ["o", "final_state"])
@pytest.mark.parametrize(("side", "offset"), [("before", -1), ("after", 0)])
def test_a_write_outside_an_output_is_caught(output, side, offset):
    class Overrun(Faithful):
        def mistake(self, tensors, o, final_state):
            target = {"o": o, "final_state": final_state}[output]
            place = target.storage_offset() + (offset if offset < 0 else target.numel())
            target.as_strided((1,), (1,), place).fill_(1.0)

    with pytest.raises(MemoryViolation, match=f"1 elements {side} the output {output} were written to"):
        Overrun().run(CASE.inputs(), CASE.tile, "c", WATCHED)


@pytest.mark.parametrize("tensor", ["q", "k", "v", "g", "beta", "initial_state"])
def test_a_write_into_an_input_is_caught(tensor):
    class Scribbler(Faithful):
        def mistake(self, tensors, o, final_state):
            tensors[tensor][1, 1] += 1

    with pytest.raises(MemoryViolation, match=f"the input {tensor} was changed in .* first at batch 1,"):
        Scribbler().run(CASE.inputs(), CASE.tile, "c", WATCHED)


def test_an_element_left_unwritten_shows_the_poison():
    class Forgetful(Faithful):
        def call(self, tensors, tile, o, final_state):
            whole, state = torch.empty_like(o), torch.empty_like(final_state)
            super().call(tensors, tile, whole, state)
            o[:, :-1] = whole[:, :-1]
            final_state.copy_(state)

    got = Forgetful().run(CASE.inputs(), CASE.tile, "c", WATCHED)
    assert np.isnan(got.o[:, -1]).all()
    assert not np.isnan(got.o[:, :-1]).any()
    assert not got.equals(Faithful().run(CASE.inputs(), CASE.tile, "c"))


@pytest.mark.parametrize("tensor", ["q", "k", "v", "g", "beta"])
def test_a_strided_input_read_as_contiguous_is_caught(tensor):
    class Careless(Faithful):
        def read(self, name, t):
            if name != tensor:
                return t
            return torch.nan_to_num(t.as_strided(t.shape, torch.empty(t.shape).stride()), nan=0.0)

    inputs = CASE.inputs()
    plain = Careless().run(inputs, CASE.tile, "c")
    assert plain.equals(Faithful().run(inputs, CASE.tile, "c"))
    assert not Careless().run(inputs, CASE.tile, "c", Memory(strided=True)).equals(plain)


@pytest.mark.parametrize("offset", [0, 1, 3, 8])
def test_programs_are_given_tensors_that_start_where_they_can_load(offset):
    """One token of one head is contiguous wherever it starts; what loads 16 bytes at a time, or a TMA, is not."""
    row = torch.arange(160.0)[offset : offset + 128]
    narrow = torch.arange(160, dtype=torch.half)[offset : offset + 128]
    given = {name: narrow.view(1, 1, 1, 128) for name in "qkv"}
    given |= {"g": row.view(1, 1, 1, 128), "beta": row[:1].view(1, 1, 1)}
    call = _plain_call(given, F16, torch.empty(1, 1, 1, 128, dtype=torch.half), torch.empty(1, 1, 128, 128))
    for name in given:
        taken = getattr(call, name)
        assert taken.data_ptr() % ALIGNMENT == 0
        assert torch.equal(taken.flatten(), given[name].flatten())
        assert (taken.data_ptr() == given[name].data_ptr()) == (given[name].data_ptr() % ALIGNMENT == 0)


# The references and the mirror


def test_the_references_agree_as_implementations():
    case = CASE.replace(dtype=F64)
    inputs = case.inputs()
    a, b, c = (implementation(name).run(inputs, case.tile, "c") for name in ("ref_A", "ref_B", "ref_C"))
    for other in (b, c):
        for (_, got), (_, want) in zip(other.tensors(), a.tensors(), strict=True):
            assert (np.linalg.norm(got - want, axis=-1) <= 1e-13 * np.linalg.norm(want, axis=-1)).all()
    mirrored = implementation("mirror").run(CASE.inputs(), CASE.tile, "c")
    assert mirrored.equals(ref_C_fast(CASE.inputs(), CASE.C, CASE.block_DV, F16))


@pytest.mark.parametrize("name", ["ref_A", "ref_B", "ref_C", "mirror", "kda_chunk"])
def test_bad_inputs_are_refused(name):
    under_test = implementation(name)
    case = CASE.replace(dtype=under_test.dtypes("c")[0])
    good = case.inputs()
    for bad, message in (
        (good.replace(g=-good.g), r"g is .* must be <= 0"),
        (good.replace(beta=good.beta + 2), r"beta is .* expected 0 <= beta <= 2"),
        (good.replace(q=good.q[:, 1:]), r"q has shape"),
        (good.replace(v=np.full_like(good.v, np.nan)), r"v is nan at batch 0, token 0, head 0, value channel 0"),
    ):
        with pytest.raises(InputError, match=message):
            under_test.run(bad, case.tile, "c")


@pytest.mark.parametrize("name", ["ref_C", "mirror", "kda_chunk"])
def test_a_split_exponent_refuses_gates_outside_its_domain(name):
    under_test = implementation(name)
    case = CASE.replace(dtype=under_test.dtypes("c")[0])
    deep = case.inputs().replace(g=np.full((2, 21, 2, 16), -50.0))
    with pytest.raises(DomainError, match=r"g sums to -800 since its chunk of 16 tokens began, at batch 0, token 15"):
        under_test.run(deep, case.tile, "c")
    shallow = implementation("ref_A").run(deep.replace(dtype=F64), case.tile, "c")
    assert np.isfinite(shallow.o).all()


# The kernel


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("N", [1, 16, 21])
def test_the_kernel_writes_every_output_element(dtype, N):
    case = CASE.cut(N=N).replace(dtype=dtype, block_DV=16)
    inputs = case.inputs()
    kernel = implementation("kda_chunk")
    got = kernel.run(inputs, case.tile, "c", WATCHED)
    assert np.isfinite(got.o).all()
    assert np.isfinite(got.final_state).all()
    assert got.equals(kernel.run(inputs, case.tile, "c"))
    assert got.equals(ref_C_fast(inputs, case.C, case.block_DV, dtype, exp2=kernel.exp2("c")))


def test_sizes_threads_and_stages_share_one_kernel_on_a_cpu():
    kernel = implementation("kda_chunk")
    kernel.run(CASE.inputs(), CASE.tile, "c")
    before = (COUNTS.compiles, COUNTS.cache_hits, COUNTS.launches)
    for case in (CASE.cut(B=1, N=3, H=1), CASE.replace(threads=64), CASE.replace(num_stages=1), CASE):
        kernel.run(case.inputs(), case.tile, "c")
    assert (COUNTS.compiles, COUNTS.cache_hits, COUNTS.launches) == (before[0], before[1], before[2] + 4)
    assert compiled_kernel(CASE.tile, 16, 32, "c") is not compiled_kernel(Tile(16, 32, F16), 16, 32, "c")


RUN_ONCE = """
import json
import time

from kda.case import Case
from kda.implementations import implementation
from kda.kernels.compile import COUNTS, tilelang

original, spans = tilelang().compile, []

def timed(*args, **kwargs):
    start = time.monotonic()  # of the machine, so that processes can be compared
    try:
        return original(*args, **kwargs)
    finally:
        spans.append((start, time.monotonic()))

tilelang().compile = timed
case = Case.parse("v1,N=3,DV=16,v=gauss")
implementation("kda_chunk").run(case.inputs(), case.tile, "c")
print(json.dumps({"counts": [COUNTS.compiles, COUNTS.cache_hits, COUNTS.launches], "spans": spans}))
"""


def processes(number: int, folder) -> list[dict]:
    """What `number` processes did that start together and run one case each.

    counts: compiles, cache hits, launches. spans: when TileLang was compiling or loading.
    """
    environment = {**os.environ, "KDA_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    environment.pop("TILELANG_CACHE_DIR", None)  # set by TileLang's first use in this process
    command = [sys.executable, "-c", textwrap.dedent(RUN_ONCE)]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(number)]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_a_kernel_is_compiled_once_on_a_machine(tmp_path):
    """Two processes at once: one compiles, the other waits and loads. A third loads what they left."""
    first, second = sorted(processes(2, tmp_path), key=lambda did: did["spans"])
    assert first["counts"] == [1, 0, 1]
    assert second["counts"] == [0, 1, 1]
    assert first["spans"][-1][1] <= second["spans"][0][0]
    libraries = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*.so"))
    assert libraries
    (third,) = processes(1, tmp_path)
    assert third["counts"] == [0, 1, 1]
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*.so")) == libraries


class Traced:
    """In place of a traced program: its script."""

    def __init__(self, text):
        self.text = text

    def script(self, show_meta):
        return self.text


def test_a_program_is_lowered_once_on_a_machine(tmp_path, monkeypatch):
    """For each script, target and choice of passes; what cannot be lowered leaves nothing."""
    tilelang()
    asked = []

    def lowers(program, context):
        asked.append(program.text)
        if program.text == "refused":
            raise ValueError("refused")
        return SimpleNamespace(kernel_source=f"{program.text}, number {len(asked)}")

    monkeypatch.setenv("KDA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(import_module("tilelang.engine.lower"), "lower_with_context", lowers)
    hopper = {"kind": "cuda", "arch": "sm_90a"}
    questions = [
        (Traced("one"), "c", {}),
        (Traced("other"), "c", {}),
        (Traced("one"), hopper, {}),
        (Traced("one"), hopper | {"arch": "sm_80"}, {}),
        (Traced("one"), hopper, {"tl.disable_warp_specialized": True}),
    ]
    answers = [generated_source(*question) for question in questions]
    assert len(set(answers)) == len(asked) == len(questions)
    assert [generated_source(*question) for question in questions] == answers
    assert len(asked) == len(questions)
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            generated_source(Traced("refused"), "c", {})
    assert asked[len(questions) :] == ["refused", "refused"]


# Computed or refused


def raising(error, launches=0):
    def attempt():
        COUNTS.launches += launches
        raise error

    return attempt


def test_an_outcome_is_what_was_computed_or_why_it_was_not():
    error = DomainError("g is too deep")
    assert outcome(lambda: 7) == 7
    assert outcome(raising(error)) is error
    assert refusal(raising(error)) is error


def test_a_refusal_after_a_launch_is_none():
    for ask in (outcome, refusal):
        with pytest.raises(AssertionError, match="a gate was refused only after a launch: g is too deep"):
            ask(raising(DomainError("g is too deep"), launches=1), "a gate")


def test_what_is_no_refusal_is_not_taken_for_one():
    with pytest.raises(AssertionError, match="a gate was computed; it must be refused"):
        refusal(lambda: 7, "a gate")
    with pytest.raises(ZeroDivisionError):
        outcome(raising(ZeroDivisionError()))
