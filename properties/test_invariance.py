"""What must not matter: how the work is cut up, and in which order heads and channels come."""

import numpy as np

from kda.numerics.operation import rounded_inputs_bound
from kda.suite.laws import law, same_bits, within
from kda.transforms import ordered, ordered_outputs, rotated, rotation, with_opposite_signs
from strategies import cases


def varying(*fields, **narrowing):
    """Cases on tiles that have a variant in `fields`."""
    return lambda support, dtype: cases(support.varying(*fields), dtype, **narrowing)


def has_variants(*fields):
    """Subjects whose palette has tiles that differ in `fields` alone."""
    return lambda subject: subject.support.varies(*fields)


@law(varying("block_DV"), needs=has_variants("block_DV"))
def test_block_DV_does_not_matter(subject, case):
    """Value channels never meet: cutting DV into other blocks gives the same bits.

    An offset of a block that is forgotten, or a tile that is read past its block, breaks it.
    """
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for other in subject.support.variants(case, "block_DV"):
        same_bits(subject.run(inputs, other.of(case).tile), got, f"block_DV={other.block_DV}")


@law(varying("C", window=64), needs=has_variants("C"))
def test_the_chunk_length_does_not_matter(subject, case):
    """Chunks are a way of computing, not part of the result: any C gives the same within both budgets."""
    inputs = case.inputs()
    mine = subject.judge(inputs, case.tile)
    got = subject.run(inputs, case.tile)
    for other in subject.support.variants(case, "C"):
        tile = other.of(case).tile
        within(subject.run(inputs, tile), got, mine.budget + subject.judge(inputs, tile).budget, f"C={other.C}")


@law(varying("threads", "num_stages"), needs=has_variants("threads", "num_stages"))
def test_threads_and_stages_do_not_matter(subject, case):
    """Threads share the work and stages hide its latency; neither may touch a bit of the result.

    A buffer that is overwritten while the previous chunk still reads it breaks it.
    """
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for other in subject.support.variants(case, "threads", "num_stages"):
        same_bits(subject.run(inputs, other.of(case).tile), got, f"threads={other.threads}, stages={other.num_stages}")


@law(cases)
def test_batches_and_heads_may_come_in_any_order(subject, case):
    """Each head of each batch is a problem of its own: reordering them reorders the results, bit for bit.

    A stride of B taken for one of H, or an index shared by all heads, breaks it.
    """
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for axis, size in (("B", case.B), ("H", case.H)):
        order = np.arange(size)[::-1]
        same_bits(subject.run(ordered(inputs, axis, order), case.tile), ordered_outputs(got, axis, order), axis)


@law(cases)
def test_value_channels_may_come_in_any_order(subject, case):
    """A value channel is a column of the state and meets no other: reordered bit for bit."""
    inputs = case.inputs()
    order = np.roll(np.arange(case.DV)[::-1], 3)
    got = ordered_outputs(subject.run(inputs, case.tile), "DV", order)
    same_bits(subject.run(ordered(inputs, "DV", order), case.tile), got)


@law(cases)
def test_key_channels_may_come_in_any_order(subject, case):
    """Key channels meet only in sums: any order of q, k, g and the state together gives the same within the budget.

    A gate that is read for the wrong channel breaks it.
    """
    inputs = case.inputs()
    order = np.roll(np.arange(case.DK)[::-1], 3)
    budget = subject.judge(inputs, case.tile).budget
    turned = ordered_outputs(subject.run(ordered(inputs, "DK", order), case.tile), "DK", np.argsort(order))
    within(turned, subject.run(inputs, case.tile), budget + budget)


@law(cases)
def test_opposite_signs_of_keys_and_values_cancel(subject, case):
    """K v^T and k k^T do not change under (k, v) -> (-k, -v), and rounding is symmetric: the same bits."""
    inputs = case.inputs()
    same_bits(subject.run(with_opposite_signs(inputs), case.tile), subject.run(inputs, case.tile))


@law(cases, gates=("none", "shared", "constant"), edits=False)
def test_a_rotation_of_keys_and_queries_does_not_matter(subject, case):
    """Under a shared gate only inner products of q and k count: rotating both turns the state and leaves o.

    Two budgets, one for each run, and what rounding the rotated inputs amounts to.
    """
    inputs = case.inputs()
    R = rotation(case.DK, case.seed)
    other = rotated(inputs, R)
    got, turned = subject.run(inputs, case.tile), subject.run(other, case.tile)
    budgets = (subject.judge(inputs, case.tile).budget, subject.judge(other, case.tile).budget)
    allowed = budgets[0] + budgets[1] + rounded_inputs_bound(other)
    within(turned.state_turned(R.T), got, allowed.mixing_rows())
