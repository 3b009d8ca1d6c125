"""Known mistakes in the Hopper program without a GPU: each makes another program, and what runs it runs that one."""

import functools
import re

import numpy as np
import pytest
import torch
from small_project import ROOT
from test_hopper import lowered, source

from kda.formats import F16, format_named
from kda.implementations import implementation
from kda.implementations.builtin import HOPPER_TILES
from kda.implementations.operation import Hopper
from kda.implementations.program import HopperProgram, form_of
from kda.kernels import compile as compiling
from kda.kernels import portable
from kda.kernels.form import Call
from kda.kernels.hopper import launching, prep, walk
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.plans import plan_catalogue
from kda.numerics.compare import compare
from kda.operation_case import OperationCase
from kda.operation_support import FormChoice
from kda.source import module_from_source
from kda.suite.laws import load_laws
from kda.suite.operation_laws import OperationSubject

ENTRIES = {name: mistake for name, mistake in CATALOGUE.items() if "hopper" in mistake.forms}
PASSES = {"prep": launching.PASSES, "walk_wide": launching.WALK_PASSES, "walk_narrow": launching.WALK_PASSES}
#: Lowering `prep` takes three seconds: it is lowered where a wait is taken from it, which TileLang might put back.
WAITS = ("barrier_wait", "sync_threads", "fence_proxy_async", "tma_store_wait")


def of_mistake(mistake):
    """The form that shows a mistake."""
    call = mistake.call("hopper") or FormChoice(128, 128, state=True)
    return form_of(call, format_named(mistake.dtype))


def program(module, role, form):
    compiling.tilelang()
    return getattr(module, role)(form)


@functools.cache
def script(role, form):
    return program(prep if role == "prep" else walk, role, form).script()


def own_source(role, form):
    return source("prep" if role == "prep" else "walk", form, 64 if role == "walk_wide" else 16)


@functools.cache
def texts(name):
    """The rewritten modules of an entry, by role."""
    return dict(ENTRIES[name].mutant("hopper").sources)


def given(module):
    """What a module that launches gives both programs: of a tensor, whose bytes, from where on, and its shape."""
    tokens = [torch.zeros(70, 2, 128, dtype=torch.float16) for _ in range(4)]
    gates, betas = torch.zeros(70, 2, 128), torch.zeros(70, 2)
    names = {tensor.data_ptr(): name for name, tensor in zip("qkvogb", (*tokens, gates, betas), strict=True)}
    q, k, v, o = tokens
    form = form_of(FormChoice(128, 128, final=False), F16)
    seen = []

    def program(*_):
        return lambda *arguments: seen.append(
            [
                (names.get(x.untyped_storage().data_ptr()), x.storage_offset(), tuple(x.shape))
                if isinstance(x, torch.Tensor)
                else x
                for x in arguments
            ]
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compiled_prep", program)
        patch.setattr(module, "compiled_walk", program)
        module._planned.cache_clear()
        module.launch(Call(form, q, k, v, gates, betas, o, sequences=1, length=70, scale=0.5), module.WIDE)
        module._planned.cache_clear()
    return seen


def roles(mistake):
    return [role for role, edits in mistake.edits("hopper").items() if edits]


@pytest.mark.parametrize(
    ("name", "role"), [(name, role) for name, mistake in ENTRIES.items() for role in roles(mistake)]
)
def test_a_mistake_makes_another_program(name, role):
    """It is traced to another script; a walk, and a `prep` that lacks a wait, to other CUDA source for sm_90a.

    One around them compiles a walk to other source, or gives the programs something else.
    """
    mistake = ENTRIES[name]
    form = of_mistake(mistake)
    module = module_from_source(texts(name)[role], name, "kda.kernels.hopper")
    if role == "launching":
        assert (module.WALK_PASSES, given(module)) != (launching.WALK_PASSES, given(launching))
        if module.WALK_PASSES != launching.WALK_PASSES:
            made = program(walk, "walk_narrow", form)
            assert lowered(made, module.WALK_PASSES) != own_source("walk_narrow", form)
        return
    made = program(module, role, form)
    assert made.script() != script(role, form)
    if role != "prep" or any(wait in edit.find for edit in mistake.hopper.prep for wait in WAITS):
        assert lowered(made, PASSES[role]) != own_source(role, form)


@pytest.mark.parametrize(
    ("name", "role", "barrier", "reads", "times"),
    [
        ("scores-without-a-fence", "prep", r"__syncthreads\(\);", "wgmma_ss", 1),
        ("values-cleared-without-a-fence", "walk_wide", r"__sync_thread_partial\(7, 128\);", "wgmma_ss", 2),
        ("values-cleared-without-a-fence", "walk_narrow", r"__sync_thread_partial\(7, 128\);", "wgmma_ss", 1),
        ("o-stored-without-a-fence", "walk_wide", r"__sync_thread_partial\(6, 128\);", r"tma_store\(", 1),
        ("o-stored-without-a-fence", "walk_narrow", r"__sync_thread_partial\(6, 128\);", r"tma_store\(", 1),
    ],
)
def test_a_fence_that_tilelang_puts_back_lies_between_the_barrier_and_what_reads(name, role, barrier, reads, times):
    """That is why these change nothing: it is on the way from what threads wrote before the barrier to the read."""
    form = of_mistake(ENTRIES[name])
    module = module_from_source(texts(name)[role], name, "kda.kernels.hopper")
    stretches = re.split(barrier, lowered(program(module, role, form), PASSES[role]))[1:]
    before = [re.split(reads, stretch)[0] for stretch in stretches if re.search(reads, stretch)]
    assert len(before) >= times
    assert all("tl::fence_proxy_async();" in text for text in before[:times])


def test_mistakes_are_made_in_a_format_and_at_a_tile_of_the_program():
    assert ENTRIES
    for mistake in ENTRIES.values():
        assert (mistake.forms, mistake.targets) == (("hopper",), ("cuda",))
        assert format_named(mistake.dtype) in implementation("kda_hopper").dtypes("cuda")
        # Any walk shows what is wrong before it; one that is wrong must be the one that runs.
        made = {64: "walk_wide", 16: "walk_narrow"}[mistake.tile.block_DV if mistake.tile else 16]
        walks = {"walk_wide", "walk_narrow"} & set(roles(mistake))
        assert not walks or made in walks or mistake.call("hopper"), mistake.name


def test_mistakes_are_planned_on_cuda_alone():
    names = ["decay-without-the-last-group", "tiles-given-back-too-soon", "tiles-of-a-walk-share-bytes"]
    plan = plan_catalogue("hopper", "cuda", [0], names)
    assert [task.mutant.name for task in plan.tasks] == names
    assert {task.mutant.implementation for task in (plan.control, *plan.tasks)} == {"kda_hopper"}
    assert [task.tile.block_DV for task in (plan.control, *plan.tasks)] == [16, 16, 64, 16]
    assert {task.tile for task in (plan.control, *plan.tasks)} <= set(HOPPER_TILES)
    assert not plan_catalogue("hopper", "c", [0]).tasks


def test_laws_of_the_operation_get_calls_of_one_form():
    laws = load_laws(ROOT / "properties")
    for mistake in ENTRIES.values():
        call = mistake.call("hopper")
        assert (call is not None) == mistake.law.startswith("operation."), mistake.name
        if call is not None:
            assert (call.DK, call.DV) == (128, 128)
            wanted = laws[mistake.law]._wanted
            assert call.misses(wanted) is None, mistake.name


def test_the_laws_reach_the_chunk_whose_tiles_lie_over_others():
    assert implementation("kda_hopper").support("cuda", F16).max_tokens > 4 * 64


def test_a_mistake_in_how_a_walk_is_compiled_leaves_ours_as_it_is():
    made = ENTRIES["tiles-of-a-walk-share-bytes"].mutant("hopper").planted()
    assert made._launching().WALK_PASSES == launching.PASSES
    assert "tl.disable_shared_memory_reuse" in launching.WALK_PASSES
    assert implementation("kda_hopper")._launching() is launching


def test_rewritten_launches_are_what_the_operation_runs():
    """Our engine is asked only where nothing is rewritten: else its laws would look at the original."""
    (ours,) = implementation("kda_hopper").operations()
    assert isinstance(ours, Hopper)
    for name in ("decay-without-the-last-group", "slots-without-the-sequence", "tiles-of-a-walk-share-bytes"):
        made = ENTRIES[name].mutant("hopper").planted()
        (engine,) = made.operations()
        assert isinstance(engine, HopperProgram)
        assert engine._programs is made._programs
        assert engine.targets() == ours.targets()


class Launching:
    """In place of the module that launches: what it was asked for, and the portable program's results."""

    OWN, WIDE, NARROW = launching.OWN, launching.WIDE, launching.NARROW

    def __init__(self):
        self.launched, self.compiled = [], []

    def launch(self, call, walk, programs):
        self.launched.append((walk, programs))
        portable.launch(call)

    def compiled_prep(self, form, program):
        self.compiled.append((form, program))

    def compiled_walk(self, form, walk, program):
        self.compiled.append((form, walk, program))


@pytest.mark.parametrize("role", ["prep", "walk_wide", "walk_narrow"])
def test_the_operation_runs_the_walk_that_is_rewritten(role):
    def mine(form):
        raise AssertionError

    other = Launching()
    choice = FormChoice(128, 128, packed=True, state=True)
    engine = HopperProgram(launching.Programs(**{role: mine}), launching=other).of(choice)
    assert engine.support("cuda").forms == (choice,)
    wide = role == "walk_wide"
    engine.prepare("cuda", F16)
    form = form_of(choice, F16)
    prep = mine if role == "prep" else None
    walk = mine if role != "prep" else None
    assert other.compiled == [(form, prep), (form, 64 if wide else 16, walk)]
    case = OperationCase.parse(
        "op1,lengths=3.0.70,tail=2,H=1,groups=2,DK=128,DV=128,q=gauss,k=gauss,v=gauss,state=gauss,seed=3"
    ).replace(dtype=F16)
    subject = OperationSubject(implementation("kda_hopper"), engine, "c", F16)
    operation = case.operation()
    judged = subject.judge(operation)
    assert all(verdict.passed for verdict in compare(subject.run(operation), judged.outputs, judged.budget))
    assert other.launched == [(64 if wide else None, engine._programs)]
    behind = subject.run(operation, poison=7.0).o.reshape(-1, 2, 128)[73:]
    np.testing.assert_array_equal(behind, 7.0)
