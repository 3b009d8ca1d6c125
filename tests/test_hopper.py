"""The Hopper program without a GPU: what TileLang makes of it for sm_90a, and how a call is launched on it."""

import functools
import re
from dataclasses import dataclass

import pytest
import torch

from kda.formats import BF16, F16
from kda.kernels import compile as compiling
from kda.kernels.form import Form
from kda.kernels.hopper import launching
from kda.kernels.launch import SHARED_MEMORY

PLAIN = Form(BF16, initial_state=False)
FORMS = (
    PLAIN,
    Form(F16, packed=True, state_v_first=True, normalise=True, gate="softplus", beta="doubled"),
    Form(BF16, gate="bounded", beta="logits", g_format=BF16, beta_format=BF16, normalise=True),
)
#: Tiles begin at a multiple of 1 KiB, behind what is not dynamic.
KIB = 1024
#: Two programs of `prep` share a multiprocessor, with 1 KiB of its 228 for the system each.
HALF = (228 << 10) // 2 - 1024

#: The stages of `prep` between whose waits each of its tiles holds something: 0 loads and pairs, 1 totals, 2 operands
#: of the levels, 3 their scores, 4 scatter and operands, 5 scores of near rows and the solve, 6 the merge to 32, 7 and
#: 8 the two products of the merge to 64, 9 A, 10 W, 11 stores. Where all rows are near, 2 and 3 are left out; in 5 one
#: warpgroup may still read the operands of its product when the other has solved.
LIVES = {
    "Qg_s": (0, 11),
    "Kg_s": (0, 11),
    "total_s": (0, 5),
    "X32": (2, 3),
    "X16": (2, 3),
    "X8": (2, 3),
    "Ke_s": (4, 10),
    "Aqk_s": (4, 11),
    "M_s": (4, 6),
    "M32_s": (4, 7),
    "own_s": (4, 5),
    "Ai_s": (5, 10),
    "T16_s": (6.5, 6.5),  # the first product of every merge waits before it is written,
    "T32_s": (7.5, 8),  # and so does the second of the last one in float32
    "A21_s": (8.5, 10),
    "A_s": (9, 11),
    "W_s": (11, 11),
}
#: With bf16 the merge to 64 may be done twice, the first time on the tensor cores, which do not wait before they write.
LIVES_BF16 = {"near_s": (1, 2), "Kb_s": (4, 5), "M32_s": (4, 8), "A21_s": (8, 10)}


@dataclass(frozen=True)
class Buffer:
    start: int
    stop: int


def lowered(program, passes):
    return compiling.generated_source(program, {"kind": "cuda", "arch": "sm_90a"}, passes)


def program(which, form, width):
    compiling.tilelang()
    from kda.kernels.hopper.prep import prep
    from kda.kernels.hopper.walk import walk_narrow, walk_wide

    if which == "prep":
        return prep(form)
    return walk_wide(form) if width == 64 else walk_narrow(form, width)


@functools.cache
def source(which, form, width=64):
    return lowered(program(which, form, width), launching.PASSES if which == "prep" else launching.WALK_PASSES)


def tiles(which, form, width=64):
    """The shared-memory tiles of a program, by the offsets in its source and the sizes in its allocations."""
    made = program(which, form, width)
    from tilelang import tvm

    sizes = {}

    def visit(node):
        if isinstance(node, tvm.tirx.SBlock):
            for buffer in node.alloc_buffers:
                if buffer.scope().startswith("shared"):
                    elements = functools.reduce(lambda a, b: a * int(b), buffer.shape, 1)
                    sizes[buffer.name] = elements * tvm.DataType(buffer.dtype).bits // 8

    tvm.tirx.stmt_functor.post_order_visit(made.body, visit)
    at = re.findall(r"void\* (\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);", source(which, form, width))
    return {name: Buffer(int(start), int(start) + sizes[name]) for name, start in at}


def static_bytes(which, form, width=64):
    """Bytes of shared memory that are not dynamic: barriers, and beta in a walk."""
    sizes = {"uint64_t": 8, "float": 4}
    found = re.findall(r"__shared__ __align__\(16\) (\w+) \w+\[(\d+)\];", source(which, form, width))
    return sum(-(-sizes[number] * int(count) // 16) * 16 for number, count in found)


def overlap(a, b):
    return a.start < b.stop and b.start < a.stop


@pytest.mark.parametrize("form", FORMS, ids=["plain", "packed", "raw"])
def test_tiles_of_prep_that_live_at_the_same_time_share_no_bytes(form):
    found = tiles("prep", form)
    lives = {**LIVES, **(LIVES_BF16 if form.operand is BF16 else {})}
    assert set(found) == set(lives)
    for name, buffer in found.items():
        for other, theirs in found.items():
            apart = lives[name][1] < lives[other][0] or lives[other][1] < lives[name][0]
            assert name == other or apart or not overlap(buffer, theirs), (name, other)
    assert static_bytes("prep", form) <= KIB
    assert max(buffer.stop for buffer in found.values()) + KIB <= HALF


@pytest.mark.parametrize("width", [64, 32, 16])
@pytest.mark.parametrize("form", FORMS[:2], ids=["plain", "packed"])
def test_tiles_of_a_walk_share_no_bytes(form, width):
    found = tiles("walk", form, width)
    assert {"W_s", "A_s", "V_s", "Qg_s", "Kg_s", "Aqk_s", "lost_s", "decay_s", "O_s"} <= set(found)
    for name, buffer in found.items():
        for other, theirs in found.items():
            assert name == other or not overlap(buffer, theirs), (name, other)
    assert static_bytes("walk", form, width) <= KIB
    assert max(buffer.stop for buffer in found.values()) + KIB <= SHARED_MEMORY


@pytest.mark.parametrize("form", FORMS, ids=["plain", "packed", "raw"])
def test_prep_waits_where_its_stages_meet(form):
    text = source("prep", form)
    # Written out: one after each stage, and inside those that hand something on between threads.
    assert "kda_prep_kernel" in text
    assert text.count("tl::fence_proxy_async()") >= 3
    assert text.count("__syncthreads();") >= 12
    assert "wgmma_ss" in text
    assert "tma_load" in text
    assert "tma_store" in text


@pytest.mark.parametrize("form", FORMS, ids=["plain", "packed", "raw"])
def test_prep_solves_behind_what_all_warps_wrote(form):
    """No law sees this wait left out any more: for M or its operands, and the diagonal blocks of A_qk."""
    text = source("prep", form)
    written = text.rindex("own_s)[")
    read = re.compile(r"wgmma_ss|by\[0\] =").search(text, written)
    assert read
    assert "__syncthreads();" in text[written : read.start()]


def test_prep_solves_behind_what_its_warpgroup_wrote():
    """No law has seen this wait left out: what two warps read is as good as always there before they do."""
    text = source("prep", PLAIN)
    (wait,) = (found.start() for found in re.finditer(r"tl::__sync_thread_partial\(5, 128\)", text))
    assert text.count("(fK + (i") == 3  # M inside blocks of 16, inside those of 32, and below
    assert text.rindex("(fK + (i") < wait < text.index("by[0] =")


def test_prep_puts_diagonal_blocks_over_what_its_warpgroup_wrote():
    """As good as always written by then: no law need see this wait left out."""
    text = source("prep", PLAIN)
    (wait,) = (found.start() for found in re.finditer(r"tl::__sync_thread_partial\(6, 128\)", text))
    assert text.index("ptx_stmatrix") < wait < text.index("(eight +", wait)
    assert text.rindex("fQ + (", 0, wait) < wait


@pytest.mark.parametrize(("width", "name"), [(64, "kda_walk_wide_kernel"), (32, "kda_walk_narrow_kernel")])
def test_walks_load_ahead_in_a_warpgroup_of_their_own(width, name):
    text = source("walk", PLAIN, width)
    assert name in text
    assert "warpgroup_reg_dealloc<24>" in text
    assert "warpgroup_reg_alloc<240>" in text
    assert text.count("tma_load") >= 6


def test_tilelang_lets_warpgroups_that_run_side_by_side_share_bytes():
    # The minimal case of docs/forward.md. Where this fails, TileLang is mended and WALK_PASSES need no option for it.
    compiling.tilelang()
    import tilelang.language as T

    @T.prim_func
    def side_by_side(X: T.Tensor([2, 128], "float32"), Y: T.Tensor([2, 128], "float32")):
        with T.Kernel(1, threads=256):
            first = T.alloc_shared([128], "float32")
            second = T.alloc_shared([128], "float32")
            lane = T.get_thread_binding(0) % 128
            with T.ws(0):
                for n in T.serial(64):
                    first[lane] = X[0, lane] + n
                    T.sync_threads(1, 128)
                    Y[0, lane] = first[127 - lane]
                    T.sync_threads(1, 128)
            with T.ws(1):
                for n in T.serial(64):
                    second[lane] = X[1, lane] + n
                    T.sync_threads(2, 128)
                    Y[1, lane] = second[127 - lane]
                    T.sync_threads(2, 128)

    def places(passes):
        return re.findall(r"void\* (?:first|second) = .*buf_dyn_shmem \+ (\d+)", lowered(side_by_side, passes))

    assert places({}) == ["0", "0"]
    assert sorted(places({"tl.disable_shared_memory_reuse": True})) == ["0", "512"]


def test_the_walk_is_the_narrowest_that_runs_at_once():
    widths = [launching.walk_for(heads, 132) for heads in (1, 16, 17, 33, 34, 64, 10_000)]
    assert widths == [16, 16, 32, 32, 64, 64, 64]


def test_forms_that_differ_in_states_alone_share_prep(monkeypatch):
    asked = []
    monkeypatch.setattr(launching, "_compiled_prep", lambda *asking: asked.append(asking))
    launching.compiled_prep.cache_clear()
    launching.compiled_prep(Form(BF16, initial_state=True, state_v_first=True))
    launching.compiled_prep(Form(BF16, final_state=False))
    launching.compiled_prep(Form(BF16, gate="bounded"))
    assert asked[0] == asked[1] != asked[2]
    launching.compiled_prep.cache_clear()


def test_nothing_but_torch_is_imported_before_the_first_launch():
    import subprocess
    import sys

    code = "import kda.kernels.hopper, sys; assert 'tilelang' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_call_without_tokens_hands_its_state_on():
    from kda.kernels.form import Call
    from kda.kernels.hopper import launch

    def call(initial):
        empty = torch.empty((0, 2, 128), dtype=torch.bfloat16)
        final = torch.full((3, 2, 128, 128), float("nan"))
        form = Form(BF16, initial_state=initial is not None)
        launch(
            Call(
                form,
                *(empty,) * 3,
                torch.empty((0, 2, 128)),
                torch.empty((0, 2)),
                empty,
                sequences=3,
                length=0,
                scale=1.0,
                initial_state=initial,
                final_state=final,
            )
        )
        return final

    state = torch.randn(3, 2, 128, 128)
    assert torch.equal(call(state), state)
    assert torch.equal(call(None), torch.zeros(3, 2, 128, 128))


def test_both_launches_are_given_what_their_programs_take(monkeypatch):
    from kda.kernels.form import Call

    given = {}
    launching._planned.cache_clear()
    monkeypatch.setattr(launching, "compiled_prep", lambda *_: lambda *x: given.update(prep=x))
    monkeypatch.setattr(launching, "compiled_walk", lambda *_: lambda *x: given.update(walk=x))
    tokens, keys = torch.zeros(70, 4, 128, dtype=torch.bfloat16), torch.zeros(70, 2, 128, dtype=torch.bfloat16)
    form = Form(BF16, initial_state=False, final_state=False)
    gates, betas = tokens.float(), torch.zeros(70, 4)
    launching.launch(Call(form, keys, keys, tokens, gates, betas, tokens, sequences=1, length=70, scale=0.5), 64)
    for name, made in (("prep", program("prep", form, 64)), ("walk", program("walk", form, 64))):
        names = [made.buffer_map[p].name if p in made.buffer_map else p.name for p in made.params]
        by_name = dict(zip(names, given[name], strict=True))
        for parameter, value in by_name.items():
            buffer = next((b for b in made.buffer_map.values() if b.name == parameter), None)
            if buffer is not None:
                assert len(value.shape) == len(buffer.shape), parameter
                fixed = [(int(a), b) for a, b in zip(buffer.shape, value.shape, strict=True) if hasattr(a, "value")]
                assert all(a == b for a, b in fixed), parameter
                assert str(value.dtype).removeprefix("torch.") == str(buffer.dtype), parameter
        assert (by_name["length"], by_name["slots"]) == (70, 2)
    assert dict(zip(names, given["walk"], strict=True))["scale"] == 0.5
