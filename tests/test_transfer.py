"""Tensors travel together: one buffer, every member aligned, and the same outputs and violations as from their own.

A GPU's way is taken here on the CPU, by `_packed` and `_fetched`.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from kda.case import Case
from kda.implementations import Memory, MemoryViolation, implementation, on_torch, operation, program
from kda.implementations.on_torch import TorchImplementation
from kda.implementations.operation import Portable
from kda.implementations.program import Program
from kda.implementations.transfer import _STEP, _fetched, _packed, bits, to_device, to_host
from kda.operation_case import OperationCase

CPU = torch.device("cpu")
NARROW = (torch.float16, torch.bfloat16)
MEMBERS = {
    "odd": torch.arange(1, 8).to(torch.float16).view(7, 1),
    "narrow": torch.arange(300).to(torch.bfloat16).view(3, 100),
    "none": torch.empty(0, 4, 2),
    "nan": torch.tensor([1.0, float("nan"), -0.0]),
    "whole_steps": torch.arange(64.0, dtype=torch.float64),
    "starts": torch.tensor([0, 3, 2**40]),
    "small": torch.tensor([0, -(2**31)], dtype=torch.int32),
    "slice": torch.arange(40.0).view(4, 10)[:, 1::3],
    "last": torch.tensor(2.5),
}


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.shape == want.shape and got.dtype is want.dtype and torch.equal(bits(got), bits(want))


def test_members_lie_in_one_buffer_where_they_can_be_loaded():
    packed = _packed(MEMBERS, CPU)
    assert list(packed) == list(MEMBERS)
    for name, tensor in MEMBERS.items():
        assert same(packed[name], tensor), name
        assert packed[name].is_contiguous()
        assert packed[name].storage_offset() * packed[name].element_size() % _STEP == 0
        assert packed[name].untyped_storage().data_ptr() == packed["odd"].untyped_storage().data_ptr()


def test_what_lies_between_members_is_not_a_number():
    packed = _packed(MEMBERS, CPU)
    whole = torch.empty(0, dtype=torch.uint8).set_(packed["odd"].untyped_storage())
    spans = [(t.storage_offset() * t.element_size(), t.numel() * t.element_size()) for t in packed.values()]
    assert len(whole) == sum(-(-size // _STEP) * _STEP for _, size in spans)
    between = [whole[start + size : after] for (start, size), (after, _) in pairwise([*spans, (len(whole), 0)])]
    assert all((gap == 0xFF).all() for gap in between)
    assert sum(map(len, between)) > _STEP
    assert all(whole[-128:].view(dtype).isnan().all() for dtype in (*NARROW, torch.float32, torch.float64))


def test_what_comes_back_is_a_copy():
    packed = _packed(MEMBERS, CPU)
    for names in (list(MEMBERS), ["starts", "narrow"], ["none"], ["small", "none"]):
        back = _fetched({name: packed[name] for name in names})
        assert list(back) == names
        assert all(same(back[name], MEMBERS[name]) for name in names)
    back = _fetched(packed)
    packed["narrow"].zero_()
    assert same(back["narrow"], MEMBERS["narrow"])


def test_no_more_comes_back_than_lies_from_the_first_to_the_last():
    packed = _packed(MEMBERS, CPU)
    back = _fetched({name: packed[name] for name in ("starts", "small")})
    assert back["starts"].untyped_storage().nbytes() == _STEP + packed["small"].nbytes


def test_nothing_is_copied_on_the_cpu():
    there = to_device(MEMBERS, CPU)
    assert all(there[name] is tensor and to_host(there)[name] is tensor for name, tensor in MEMBERS.items())


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32, torch.float64], ids=str)
def test_bits_know_a_nan_and_a_sign(dtype):
    x, other = torch.tensor([float("nan"), 0.0], dtype=dtype), torch.tensor([float("nan"), -0.0], dtype=dtype)
    assert torch.equal(bits(x), bits(x.clone()))
    assert (bits(x) != bits(other)).tolist() == [False, True]


# Runs


CASE = Case.parse("v1,B=2,N=21,H=2,DK=16,DV=16,gate=uniform:0.9:0.99,beta=uniform:0.1:0.9,k=gauss,v=gauss,state=gauss")
MEMORIES = [Memory(), Memory(strided=True), Memory(guard=64), Memory(strided=True, guard=1, poison=7.0)]
OPERATION = (
    "op1,lengths=3.0.17,tail=2,H=2,groups=2,gate=softplus,rate=doubled,normalise=1,v_first=1,g=gauss:1.0,A_log=model,"
    "dt_bias=model,beta=gauss:1.0,q=gauss,k=gauss,v=gauss,state=gauss"
)


@pytest.fixture
def travels(monkeypatch):
    """Has every run take a GPU's way, on the CPU; call it to begin. The copies made, "there" or "back", are listed."""
    copies = []

    def there(tensors, device):
        copies.append("there")
        return _packed(tensors, device)

    def back(tensors):
        copies.append("back")
        return _fetched(tensors)

    def begin():
        for module in (on_torch, operation, program):
            monkeypatch.setattr(module, "to_device", there)
            monkeypatch.setattr(module, "to_host", back)
        return copies

    return begin


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("name", ["kda_chunk", "kda_forward"])
def test_a_case_runs_with_one_copy_each_way(name, memory, travels):
    inputs, kernel = CASE.inputs(), implementation(name)
    own = kernel.run(inputs, CASE.tile, "c", memory)
    copies = travels()
    assert kernel.run(inputs, CASE.tile, "c", memory).equals(own)
    assert copies == ["there", "back"]


@pytest.mark.parametrize("line", [OPERATION, "op1,N=5,dtype=bf16,final=0,k=gauss,v=gauss"], ids=["packed", "dense"])
@pytest.mark.parametrize("engine", [Portable(), Program()], ids=lambda engine: engine.name)
def test_a_call_runs_with_one_copy_each_way(engine, line, travels):
    x = OperationCase.parse(line).operation()
    own = engine.run(x, "c")
    copies = travels()
    got = engine.run(x, "c")
    assert copies == ["there", "back"]
    assert np.array_equal(got.o, own.o, equal_nan=True)
    assert (got.final_state is None) == (own.final_state is None)
    assert own.final_state is None or np.array_equal(got.final_state, own.final_state)


class Writes(TorchImplementation):
    """Zeros for outputs, and 1 written to `elements(tensors, o)`."""

    name, summary = "writes", "writes where it must not"

    def __init__(self, elements):
        self.elements = elements

    def dtypes(self, target):
        return (CASE.dtype,)

    def support(self, target, dtype):
        return implementation("ref_A").support(target, dtype)

    def call(self, tensors, tile, o, final_state):
        o.zero_()
        final_state.zero_()
        self.elements(tensors, o).fill_(1.0)


def beside(tensor, place):
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + place)


VIOLATIONS = [
    (
        lambda tensors, o: tensors["k"][1, 2, 1, 3:5],
        r"the input k was changed in 2 elements, first at batch 1, token 2",
    ),
    (lambda tensors, o: tensors["beta"][1, 2, 1:], r"the input beta was changed in 1 elements.*head 1: 1, was 0\."),
    (lambda tensors, o: beside(o, -1), r"1 elements before the output o were written to"),
    (lambda tensors, o: beside(o, o.numel()), r"1 elements after the output o were written to"),
]


@pytest.mark.parametrize("together", [False, True], ids=["own", "together"])
@pytest.mark.parametrize(("elements", "message"), VIOLATIONS, ids=["k", "beta", "before", "after"])
def test_what_must_not_be_written_to_is_looked_at_where_it_came_back(elements, message, together, travels):
    if together:
        travels()
    for memory in (Memory(strided=True, guard=64), Memory(guard=64)):
        with pytest.raises(MemoryViolation, match=message):
            Writes(elements).run(CASE.inputs(), CASE.tile, "c", memory)


def test_an_input_of_a_call_is_looked_at_where_it_came_back(travels, monkeypatch):
    monkeypatch.setattr("kda.ops.kda_forward", lambda q, k, v, **arguments: v[0, 1].add_(1))
    travels()
    with pytest.raises(MemoryViolation, match="the input v was changed"):
        Portable().run(OperationCase(N=3).operation(), "c")
