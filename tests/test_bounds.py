"""Indices into the tiles of a CPU kernel, checked."""

import pytest
import torch

from kda.case import Case
from kda.formats import F32
from kda.implementations import Memory, implementation
from kda.kernels import bounds
from kda.kernels.launch import run_kda_chunk
from kda.mutation.rewrite import Edit, rewritten
from kda.problem import InputError
from kda.source import module_from_source

CASE = Case(N=20, DK=48, DV=64, C=16, block_DV=32, dtype=F32, v="gauss")
CHECKED = Memory(check_tiles=True)


def kernel(*edits):
    """The kernel with a few edits."""
    ours = implementation("kda_chunk")
    source = ours.sources()["kernel"]
    text = rewritten(source.text, source.function, edits)
    return ours.rewritten({"kernel": module_from_source(text, "edited")})


def test_a_kernel_that_stays_inside_gives_the_same_bits():
    plain = implementation("kda_chunk")
    assert plain.checks_tiles("c")
    assert not plain.checks_tiles("cuda")
    checked = plain.run(CASE.inputs(), CASE.tile, "c", CHECKED)
    assert checked.equals(plain.run(CASE.inputs(), CASE.tile, "c"))


def test_a_row_too_far_is_named():
    far = kernel(Edit("the rows of V~", "on.parallel(C, block_DV)", "on.parallel(C + 1, block_DV)", ROWS))
    message = r"^an index into (\w+ or )*Vt_s( or \w+)* is 512; expected 0 to 511$"
    with pytest.raises(bounds.TileError, match=message):
        far.run(CASE.inputs(), CASE.tile, "c", CHECKED)


ROWS = "for _r, _j in on.parallel(C, block_DV):\n    Vt_s[_r, _j] = _v"


def test_what_was_never_written_does_not_pass_for_zero():
    if bounds._PATTERN not in bounds.flags():
        pytest.skip("this compiler cannot fill what was not written (GCC before 12)")
    lazy = kernel(Edit("the start of the prefix sum", "gamma[0] = 0.0", ""))
    checked = lazy.run(CASE.inputs(), CASE.tile, "c", CHECKED)
    assert not checked.equals(implementation("kda_chunk").run(CASE.inputs(), CASE.tile, "c"))


def test_one_place_does_not_haunt_the_next_run():
    far = kernel(Edit("the rows of V~", "on.parallel(C, block_DV)", "on.parallel(C + 1, block_DV)", ROWS))
    for _ in range(2):
        with pytest.raises(bounds.TileError):
            far.run(CASE.inputs(), CASE.tile, "c", CHECKED)
        implementation("kda_chunk").run(CASE.inputs(), CASE.tile, "c", CHECKED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("'float [256]' 257", "an index into M_f or Lt_s is 257; expected 0 to 255"),
        ("'half [16]' -1", "an index into a tile is -1; expected 0 to 15"),
        ("'half8' -1", "an access leaves its tile ('half8' -1)"),
    ],
)
def test_a_place_is_said_by_the_tiles_of_its_size(text, said):
    source = "int f() {\n  float M_f[256];\n  float Lt_s[256];\n  float x[16];\n}"
    bounds._C.setenv(bounds._NAME, text.encode(), 1)
    try:
        assert bounds.seen(source) == said
    finally:
        bounds.forget()
    assert bounds.seen(source) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_tensor_is_refused():
    tensors = {name: torch.zeros((1, 1, 1, 16), dtype=torch.float16, device="cuda") for name in "qkv"}
    tensors["g"] = torch.zeros((1, 1, 1, 16), device="cuda")
    tensors["beta"] = torch.zeros((1, 1, 1), device="cuda")
    with pytest.raises(InputError, match=r"^check_tiles is True and q is on a GPU; expected CPU tensors"):
        run_kda_chunk(**tensors, C=16, block_DV=16, check_tiles=True)
