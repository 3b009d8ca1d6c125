"""The machine: the same bits every time, every output written, nothing else touched."""

from kda.implementations import Memory
from kda.suite.laws import law, meaningful, same_bits
from strategies import cases

RUNS = 4


def owns_memory(subject):
    """Subjects whose buffers can be laid out by a test."""
    return subject.implementation.controls_memory


def several_formats(subject):
    """Subjects that support more than one operand format."""
    return len(subject.implementation.dtypes(subject.target)) > 1


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
