"""The contract: every malformed input is refused with a clear error, before anything is launched."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any

import numpy as np
import pytest
import torch

from kda.formats import F16, F32
from kda.kernels.compile import COUNTS, available_targets
from kda.kernels.launch import CHUNK, FORWARD, Kernel, check_tile, run_kda_chunk, run_kda_forward
from kda.malformed import malformed, refusal
from kda.numerics.domain import DomainError, scaled_to, worst_place
from kda.problem import InputError, Sizes, Tile, at_words
from kda.suite.laws import law, meaningful, within
from strategies import cases

B, N, H, DK, DV, C = 2, 20, 2, 16, 32, 16
POISON = 7.0

Launch = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Malformed:
    """A call of a launch with something wrong: its id, what the message must say, the arguments that change.

    A change is the new argument, or a function of the valid one.
    """

    id: str
    message: str
    changes: dict[str, Any]
    error: type[InputError] = InputError


def bad(id: str, message: str, **changes: Any) -> Malformed:  # noqa: A002
    """A row of the table."""
    return Malformed(id, message, changes)


def outside(id: str, message: str, **changes: Any) -> Malformed:  # noqa: A002
    """A row whose gate is outside the domain."""
    return Malformed(id, message, changes, DomainError)


def at(value: float, *place: int):
    """The tensor with one value set."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[place] = value
        return tensor

    return change


def to(where: Any):
    """The tensor in another dtype or on another device."""
    return lambda tensor: tensor.to(where)


def cut(axis: int):
    """The tensor without its last index along an axis."""
    return lambda tensor: tensor.narrow(axis, 0, tensor.shape[axis] - 1)


def none(axis: int):
    """The tensor with no index left along an axis."""
    return lambda tensor: tensor.narrow(axis, 0, 0)


def wide(channels: int):
    """A tensor of zeros with this many channels."""
    return lambda tensor: tensor.new_zeros((*tensor.shape[:-1], channels))


def squeezed(tensor: torch.Tensor) -> torch.Tensor:
    """The first batch alone, without the batch axis."""
    return tensor[0]


def gate(value: float):
    """The same gate everywhere."""
    return lambda g: torch.full_like(g, value)


def unaligned(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the same shape that starts one element into its storage."""
    return tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)


def sparse(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a sparse layout."""
    return tensor.to_sparse()


# ln(2^14): where e^gamma leaves the normal numbers of float16.
TOTAL = 9.704060527839234

#: What either launch refuses.
TABLE = [
    # not a tensor
    bad("q-none", r"^q is a NoneType; expected a torch.Tensor", q=None),
    bad("k-numpy", r"^k is a ndarray; expected a torch.Tensor", k=lambda k: k.cpu().numpy()),
    bad("v-list", r"^v is a list; expected a torch.Tensor", v=lambda v: v.tolist()),
    bad("g-number", r"^g is a float; expected a torch.Tensor", g=-0.1),
    bad("beta-number", r"^beta is a int; expected a torch.Tensor", beta=1),
    bad(
        "state-numpy", r"^initial_state is a ndarray; expected a torch.Tensor", initial_state=lambda s: s.cpu().numpy()
    ),
    bad("o-numpy", r"^o is a ndarray; expected a torch.Tensor to write to", o=np.zeros((B, N, H, DV))),
    bad("q-sparse", r"^q has layout sparse_coo; expected a dense tensor", q=sparse),
    bad("k-wants-gradient", r"^k requires a gradient .* expected a tensor without", k=lambda k: k.requires_grad_()),
    # rank
    bad("q-rank", r"^q has rank 3, shape \(20, 2, 16\); expected rank 4, \[B, N, H, DK\]", q=squeezed),
    bad("k-rank", r"^k has rank 3, shape \(20, 2, 16\); expected rank 4", k=squeezed),
    bad("v-rank", r"^v has rank 5, shape \(1, 2, 20, 2, 32\); expected rank 4", v=lambda v: v[None]),
    bad("g-rank", r"^g has rank 3, shape \(2, 20, 2\); expected rank 4", g=lambda g: g[..., 0]),
    bad("beta-rank", r"^beta has rank 4, shape \(2, 20, 2, 1\); expected rank 3", beta=lambda beta: beta[..., None]),
    bad("state-rank", r"^initial_state has rank 3, .* expected rank 4, \[B, H, DK, DV\]", initial_state=squeezed),
    # sizes that disagree
    bad("q-batch", r"^q has shape \(1, 20, 2, 16\); expected .* \(2, 20, 2, 16\) .*axis B differs", q=cut(0)),
    bad("g-tokens", r"^g has shape \(2, 19, 2, 16\); expected .*axis N differs", g=cut(1)),
    bad("v-tokens", r"^v has shape \(2, 19, 2, 32\); expected .*axis N differs", v=cut(1)),
    bad("beta-heads", r"^beta has shape \(2, 20, 1\); expected .* \(2, 20, 2\) .*axis H differs", beta=cut(2)),
    bad("v-heads-first", r"^v has shape \(2, 2, 20, 32\); expected .*axis N differs", v=lambda v: v.transpose(1, 2)),
    bad("q-channels", r"^q has shape \(2, 20, 2, 32\); expected .*axis DK differs", q=wide(32)),
    bad("g-per-head", r"^g has shape \(2, 20, 2, 1\); expected .*axis DK differs", g=lambda g: g[..., :1]),
    bad("state-batch", r"^initial_state has shape \(1, 2, 16, 32\); expected .*axis B differs", initial_state=cut(0)),
    bad("state-value-first", r"^initial_state .*\(2, 2, 32, 16\); expected .*axis DK", initial_state=lambda s: s.mT),
    bad("state-values", r"^initial_state has shape .* expected .*axis DV differs", initial_state=cut(3)),
    # nothing to compute
    bad(
        "no-tokens",
        r"^k has N = 0, shape \(2, 0, 2, 16\); expected at least 1",
        **dict.fromkeys(("q", "k", "v", "g", "beta"), none(1)),
    ),
    bad("no-batch", r"^k has B = 0, .* expected at least 1", k=none(0)),
    bad("no-heads", r"^k has H = 0, .* expected at least 1", k=none(2)),
    bad("no-key-channels", r"^k has DK = 0, .* expected at least 1", k=none(3)),
    bad("no-value-channels", r"^v has DV = 0, .* expected at least 1", v=none(3)),
    # formats
    bad("q-float64", r"^q is float64; expected float16, bfloat16, float32", q=to(torch.float64)),
    bad("q-int", r"^q is int32; expected float16, bfloat16, float32", q=to(torch.int32)),
    bad("k-unlike-q", r"^k is bfloat16; expected float16, as q is", k=to(torch.bfloat16)),
    bad("v-unlike-q", r"^v is float32; expected float16, as q is", v=to(torch.float32)),
    bad("g-float16", r"^g is float16; expected float32", g=to(torch.float16)),
    bad("g-float64", r"^g is float64; expected float32", g=to(torch.float64)),
    bad("beta-bfloat16", r"^beta is bfloat16; expected float32", beta=to(torch.bfloat16)),
    bad("state-float16", r"^initial_state is float16; expected float32", initial_state=to(torch.float16)),
    # places
    bad("q-elsewhere", r"^k is on .*; expected meta, as q is", q=to("meta")),
    bad("v-elsewhere", r"^v is on meta; expected (cpu|cuda:0), as q is", v=to("meta")),
    bad("state-elsewhere", r"^initial_state is on meta; expected (cpu|cuda:0), as q is", initial_state=to("meta")),
    bad(
        "all-elsewhere",
        r"^q is on meta; expected a CPU or CUDA tensor",
        **dict.fromkeys(("q", "k", "v", "g", "beta", "initial_state"), to("meta")),
    ),
    # values
    *(
        bad(
            f"{name}-nan", rf"^{name} is nan at batch 1, {words}; every value must be finite", **{name: at(nan, *place)}
        )
        for name, words, place in [
            ("q", "token 9, head 0, channel 3", (1, 9, 0, 3)),
            ("k", "token 9, head 0, channel 3", (1, 9, 0, 3)),
            ("v", "token 9, head 0, value channel 31", (1, 9, 0, 31)),
            ("g", "token 9, head 0, channel 3", (1, 9, 0, 3)),
            ("beta", "token 9, head 0", (1, 9, 0)),
            ("initial_state", "head 1, channel 0, value channel 3", (1, 1, 0, 3)),
        ]
    ),
    bad(
        "q-inf",
        r"^q is inf at batch 0, token 19, head 1, channel 15; every value must be finite",
        q=at(inf, 0, 19, 1, 15),
    ),
    bad(
        "v-minus-inf", r"^v is -inf at batch 0, .* value channel 2; every value must be finite", v=at(-inf, 0, 0, 0, 2)
    ),
    bad("g-minus-inf", r"^g is -inf at batch 1, token 2, .* every value must be finite", g=at(-inf, 1, 2, 0, 0)),
    bad("state-inf", r"^initial_state is inf at batch 0, head 0, channel 4,", initial_state=at(inf, 0, 0, 4, 0)),
    bad("g-positive", r"^g is 0.001 at batch 1, token 3, head 0, channel 5; .* must be <= 0", g=at(1e-3, 1, 3, 0, 5)),
    bad("g-not-a-logarithm", r"^g is 0.9 at batch 0, .* must be <= 0 \(pass log\(a\), not a\)", g=gate(0.9)),
    bad(
        "beta-negative",
        r"^beta is -0.001 at batch 0, token 7, head 1; expected 0 <= beta <= 2",
        beta=at(-1e-3, 0, 7, 1),
    ),
    bad(
        "beta-above-2", r"^beta is 2.001 at batch 1, token 0, head 0; expected 0 <= beta <= 2", beta=at(2.001, 1, 0, 0)
    ),
    # tiles
    bad(
        "DK-15",
        r"^DK is 15; expected a multiple of 16 from 16 to (128|256)",
        q=cut(3),
        k=cut(3),
        g=cut(3),
        initial_state=cut(2),
    ),
    bad("DV-24", r"^DV is 24; expected a multiple of 16", v=wide(24), initial_state=None, o=None, final_state=None),
    bad("C-48", r"^C is 48; expected one of 16, 32, 64", C=48),
    bad("C-0", r"^C is 0; expected one of 16, 32, 64", C=0),
    bad("C-float", r"^C is 16.0; expected an int", C=16.0),
    bad("block-8", r"^block_DV is 8; expected one of 16, 32, 64, 128", block_DV=8),
    bad("block-too-wide", r"^block_DV is 64 and DV is 32; expected a block_DV that divides DV", block_DV=64),
    bad("block-none", r"^block_DV is None; expected an int", block_DV=None),
    bad("stages-2", r"^num_stages is 2; expected 0 or 1", num_stages=2),
    bad("stages-minus-1", r"^num_stages is -1; expected 0 or 1", num_stages=-1),
    bad("stages-true", r"^num_stages is True; expected an int", num_stages=True),
    bad("threads-33", r"^threads is 33; expected a multiple of 32 from 32 to 1024", threads=33),
    bad("threads-0", r"^threads is 0; expected a multiple of 32", threads=0),
    bad("threads-2048", r"^threads is 2048; expected a multiple of 32 from 32 to 1024", threads=2048),
    bad("threads-text", r"^threads is '128'; expected an int or None", threads="128"),
    # output buffers
    bad("o-shape", r"^o has shape \(2, 19, 2, 32\); expected \[B, N, H, DV\] = \(2, 20, 2, 32\)", o=cut(1)),
    bad("o-float32", r"^o is float32; expected float16", o=to(torch.float32)),
    bad("o-elsewhere", r"^o is on meta; expected (cpu|cuda:0), as q is", o=to("meta")),
    bad(
        "o-strided",
        r"^o has strides .* expected a contiguous buffer",
        o=lambda o: o.transpose(1, 2).contiguous().transpose(1, 2),
    ),
    bad("o-unaligned", r"^o starts 2 bytes past a multiple of 16; expected aligned", o=unaligned),
    bad(
        "o-is-v",
        r"^o shares memory with v; expected a buffer of its own",
        v=lambda v: SHARED["o"],
        o=lambda o: SHARED["o"],
    ),
    bad(
        "final-shape",
        r"^final_state has shape \(2, 2, 32, 16\); expected .* \(2, 2, 16, 32\)",
        final_state=lambda s: s.mT,
    ),
    bad("final-float16", r"^final_state is float16; expected float32", final_state=to(torch.float16)),
    bad("final-elsewhere", r"^final_state is on meta; expected (cpu|cuda:0)", final_state=to("meta")),
    bad(
        "final-strided",
        r"^final_state has strides .* expected a contiguous",
        final_state=lambda s: s.mT.contiguous().mT,
    ),
]

#: What `kda_forward` computes and `kda_chunk` refuses: its channels, and the gate domain.
CHUNK_TABLE = [
    bad(
        "DK-144",
        r"^DK is 144; expected",
        q=wide(144),
        k=wide(144),
        g=wide(144),
        initial_state=None,
        final_state=None,
    ),
    bad("DV-256", r"^DV is 256; expected a multiple of 16", v=wide(256), initial_state=None, o=None, final_state=None),
    outside(
        "g-one-deep-token",
        r"^g sums to -20.\d+ .* batch 1, token 15, head 0, channel 9; .* >= -9.70406",
        g=at(-20, 1, 5, 0, 9),
    ),
    outside(
        "g-in-the-tail",
        r"^g sums to -12 .* at batch 0, token 17, head 1, channel 0; with f16",
        g=lambda g: at(-12, 0, 17, 1, 0)(0 * g),
    ),
    outside(
        "g-adds-up", r"^g sums to -11.2 .* chunk of 16 tokens .* at batch 0, token 15, head 0, channel 0;", g=gate(-0.7)
    ),
    outside("g-out-by-1-percent", r"^g sums to -9.8011 .* must stay >= -9.70406", g=gate(-1.01 * TOTAL / C)),
    outside(
        "k-is-long", r"^g sums to -9.6 .* \|k\| <= 4 it must stay >= -8.31777", g=gate(-0.6), k=at(4.0, 0, 0, 0, 0)
    ),
]

#: What `kda_forward` refuses in the place of that.
FORWARD_TABLE = [
    bad(
        "DK-272",
        r"^DK is 272; expected a multiple of 16 from 16 to 256",
        q=wide(272),
        k=wide(272),
        g=wide(272),
        initial_state=None,
    ),
    bad("DV-272", r"^DV is 272; expected a multiple of 16", v=wide(272), initial_state=None, o=None, final_state=None),
]


def valid(device: str) -> dict[str, Any]:
    """Arguments that are computed, with poisoned outputs."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn((B, N, H, DK), generator=random), dim=-1) for _ in "qk")
    tensors = {
        "q": q.half(),
        "k": k.half(),
        "v": torch.randn((B, N, H, DV), generator=random).half(),
        "g": -0.1 * torch.rand((B, N, H, DK), generator=random),
        "beta": torch.rand((B, N, H), generator=random),
        "initial_state": torch.randn((B, H, DK, DV), generator=random),
        "o": torch.full((B, N, H, DV), POISON, dtype=torch.float16),
        "final_state": torch.full((B, H, DK, DV), POISON),
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()} | {"C": C, "block_DV": 16}


SHARED: dict[str, torch.Tensor] = {}


def changed(arguments: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a row of the table."""
    SHARED.update(o=arguments["o"])
    return arguments | {n: c(arguments[n]) if callable(c) else c for n, c in changes.items()}


def is_one_sentence(message: str) -> bool:
    """Whether a message is a single sentence that says what was expected."""
    return re.search(r"\n|\.\s+[A-Z]|\.$", message) is None and re.search(r"expected|must", message) is not None


devices = pytest.mark.parametrize("device", ["cuda" if t == "cuda" else "cpu" for t in available_targets()])
launches = pytest.mark.parametrize("run", [run_kda_chunk, run_kda_forward], ids=["kda_chunk", "kda_forward"])
REFUSED = [(run_kda_chunk, row) for row in (*TABLE, *CHUNK_TABLE)]
REFUSED += [(run_kda_forward, row) for row in (*TABLE, *FORWARD_TABLE)]


@devices
@pytest.mark.parametrize(("run", "row"), REFUSED, ids=[f"{run.__name__[4:]}-{row.id}" for run, row in REFUSED])
def test_a_malformed_call_is_refused(run: Launch, row: Malformed, device: str):
    """Whatever does not fit is refused in one sentence, before a launch and before an output is touched.

    A check that is dropped or moved behind the launch turns a clear error into wrong numbers or a broken context.
    """
    arguments = valid(device)
    error = refusal(lambda: run(**changed(arguments, row.changes)), row.id)
    assert type(error) is row.error
    assert re.search(row.message, str(error)), str(error)
    assert is_one_sentence(str(error)), str(error)
    for name in ("o", "final_state"):
        assert (arguments[name] == POISON).all(), f"{name} was written to"


@devices
@launches
def test_the_call_the_table_starts_from_is_computed(run: Launch, device: str):
    """Without it every row could be refused for the same reason, and none for its own."""
    arguments = valid(device)
    before = COUNTS.launches
    o, final_state = run(**arguments)
    assert COUNTS.launches == before + 1
    assert o is arguments["o"]
    assert final_state is arguments["final_state"]
    assert torch.isfinite(o).all()
    assert not (o == POISON).all()
    with torch.no_grad():  # a parameter may be passed where no gradient is asked for
        again, _ = run(**{**arguments, "k": arguments["k"].clone().requires_grad_(), "o": None})
    assert torch.equal(again, o)


@devices
@pytest.mark.parametrize("row", CHUNK_TABLE, ids=[row.id for row in CHUNK_TABLE])
def test_what_is_refused_for_its_size_or_its_gate_is_computed_by_kda_forward(row: Malformed, device: str):
    """The two launches differ in the channels and gates that they take: no bound of one is left over in the other."""
    o, final_state = run_kda_forward(**changed(valid(device), row.changes))
    assert torch.isfinite(o).all()
    assert torch.isfinite(final_state).all()
    assert not (o == POISON).all()


@pytest.mark.skipif("cuda" not in available_targets(), reason="needs a GPU")
@launches
@pytest.mark.parametrize("name", ["k", "v", "g", "beta", "initial_state", "o", "final_state"])
def test_a_tensor_left_on_the_cpu_is_refused(name: str, run: Launch):
    """A pointer into host memory would fault on the GPU, and take every later test of the process with it."""
    error = refusal(lambda: run(**changed(valid("cuda"), {name: to("cpu")})))
    assert re.match(rf"{name} is on cpu; expected cuda:0, as q is", str(error))


@pytest.mark.parametrize(
    ("kernel", "tile", "sizes", "message"),
    [
        (CHUNK, Tile(64, 128, F32), Sizes(1, 64, 1, 128, 128), r"^C=64, block_DV=128, DK=128, .* at most 232448"),
        (FORWARD, Tile(64, 32, F16), Sizes(1, 64, 1, 256, 256), r"^C=64, block_DV=32, DK=256, .* at most 232448"),
        (CHUNK, Tile(16, 16, F16), Sizes(65536, 1, 1, 16, 16), r"^B is 65536; expected at most 65535"),
        (CHUNK, Tile(16, 16, F16), Sizes(1, 1, 65536, 16, 16), r"^H is 65536; expected at most 65535"),
    ],
    ids=["shared-memory", "shared-memory-kda_forward", "batches", "heads"],
)
def test_a_tile_too_large_for_the_gpu_is_refused(kernel: Kernel, tile: Tile, sizes: Sizes, message: str):
    """What the CPU can run and a GPU cannot is refused by name; from the driver it would be an "invalid argument"."""
    check_tile(tile, sizes, "c", kernel)
    error = refusal(lambda: check_tile(tile, sizes, "cuda", kernel))
    assert re.search(message, str(error)), str(error)
    assert is_one_sentence(str(error))


def has_a_gate_domain(subject):
    """Whether the subject bounds the sum of g over a chunk, and nothing else about g."""
    return isfinite(subject.support.max_total_gate(subject.dtype)) and subject.support.max_token_gate == inf


DECAYING = ("constant", "log", "alternating", "spike", "edge", "head", "shared", "channel", "uniform", "softplus")


@law(cases, needs=has_a_gate_domain, gates=DECAYING, share=0.5)
def test_the_gate_domain_is_tight(subject, case):
    """Gates 0.1% inside the domain are computed; 0.1% outside they are refused, with the worst place named.

    A domain drawn too wide gives inf or noise in silence; one drawn too narrow refuses models that would run.
    """
    inputs = case.inputs()
    meaningful(inputs.g.any())
    if not inputs.g.any():
        return
    total, window = subject.support.max_total_gate(subject.dtype), subject.support.gate_window(case.C)
    inside = inputs.replace(g=scaled_to(inputs.g, window, 0.999 * total)).rounded()
    expected = subject.judge(inside, case.tile)
    within(subject.run(inside, case.tile), expected.outputs, expected.budget, "just inside")

    deeper = inputs.replace(g=scaled_to(inputs.g, window, 1.001 * total)).rounded()
    error = refusal(lambda: subject.run(deeper, case.tile), "a gate just outside the domain")
    assert at_words("g", worst_place(deeper.g, window)) in str(error), str(error)


@law(cases, share=0.5)
def test_one_thing_wrong_is_refused(subject, case):
    """Valid inputs with exactly one thing wrong are refused, and the message names the tensor to blame.

    A table of examples knows the mistakes that somebody thought of, at the sizes that they chose.
    """
    inputs = case.inputs()
    what, broken = malformed(inputs, case.seed)
    error = refusal(lambda: subject.run(broken, case.tile), what)
    assert re.search(rf"\b{what.tensor}\b", str(error)), f"{what}: {error}"
