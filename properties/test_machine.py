"""The machine: the same bits every time, every output written, nothing else touched."""

from dataclasses import replace

from kda.formats import F16, F32
from kda.implementations import Memory
from kda.suite.laws import law, meaningful, same_bits
from strategies import cases, far_cases

RUNS = 4


def cases_on_few_tiles(support, dtype):
    """Cases on about a fifth of the palette: each of these tiles is compiled once more."""
    return cases(replace(support, tiles=support.tiles[:1] + support.tiles[5:10:4]), dtype)


def owns_memory(subject):
    """Subjects whose buffers can be laid out by a test."""
    return subject.implementation.controls_memory


def several_formats(subject):
    """Subjects that support more than one operand format."""
    return len(subject.implementation.dtypes(subject.target)) > 1


def holds_far_arrays(subject):
    """GPUs with room for arrays of more than 2^31 elements; one format, since the offsets are the same for all."""
    if subject.target != "cuda" or subject.dtype != F16 or not subject.implementation.controls_memory:
        return False
    import torch

    return torch.cuda.get_device_properties(0).total_memory > 60e9


@law(cases)
def test_every_run_gives_the_same_bits(subject, case):
    """Repeated runs agree bit for bit: a race, or memory that nothing wrote, does not repeat itself."""
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for _ in range(RUNS - 1):
        same_bits(subject.run(inputs, case.tile), got)


@law(cases, needs=owns_memory)
def test_inputs_stay_untouched(subject, case):
    """No input changes during a run (checked by the adapter): callers use q, k, v, g and beta again."""
    inputs = case.inputs()
    subject.run(inputs, case.tile, Memory(guard=0, poison=0.0))


@law(cases, needs=owns_memory)
def test_every_output_is_written(subject, case):
    """Outputs do not depend on what their buffers held: every element of o and of the final state is written."""
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    meaningful(bool(got.o.any()))
    for poison in (float("nan"), 1e4):
        same_bits(subject.run(inputs, case.tile, Memory(poison=poison)), got, f"outputs that held {poison}")


@law(cases, needs=owns_memory)
def test_nothing_outside_the_outputs_is_written(subject, case):
    """Guard bands on both sides of each output stay whole (checked by the adapter): rows past N are not stored."""
    inputs = case.inputs()
    got = subject.run(inputs, case.tile, Memory(guard=64 * case.DV))
    same_bits(got, subject.run(inputs, case.tile))


@law(cases, needs=owns_memory)
def test_strided_views_are_as_good_as_contiguous(subject, case):
    """Slices of a fused projection give the same bits as fresh arrays: a stride is read, not assumed."""
    inputs = case.inputs()
    same_bits(subject.run(inputs, case.tile, Memory(strided=True)), subject.run(inputs, case.tile))


@law(cases, needs=several_formats, gates=("none", "uniform"), share=0.5)
def test_formats_may_alternate_in_one_process(subject, case):
    """A kernel of another format in between changes nothing: no cache takes one format's kernel for another's."""
    inputs = case.inputs()
    got = subject.run(inputs, case.tile)
    for dtype in subject.implementation.dtypes(subject.target):
        between = case.replace(dtype=dtype, gate="none", edits=())
        if dtype != subject.dtype and subject.also_runs(between):
            subject.run(between.inputs(), between.tile)
    same_bits(subject.run(inputs, case.tile), got)


def checks_tiles(subject):
    """Subjects whose indices a compiler can check; one format, since the indices are the same for all."""
    return subject.dtype == F32 and subject.implementation.checks_tiles(subject.target)


@law(cases_on_few_tiles, needs=checks_tiles, share=0.5)
def test_no_index_leaves_its_tile(subject, case):
    """Every index into a tile of the kernel stays inside it, and nothing is read that nothing wrote (on a CPU).

    A loop that goes one row too far writes into the next tile, which a lucky layout hides; what was never written is
    often zero by luck.
    """
    inputs = case.inputs()
    same_bits(subject.run(inputs, case.tile, Memory(check_tiles=True)), subject.run(inputs, case.tile))


@law(far_cases, needs=holds_far_arrays)
def test_offsets_reach_beyond_31_bits(subject, case):
    """The last sequence of a batch with more than 2^31 elements gives what it gives alone, bit for bit.

    An offset that is computed in 32 bits wraps around: to another sequence, or out of the array.
    """
    same_bits(*subject.implementation.last_of_many(case.sizes, case.tile, subject.target))
