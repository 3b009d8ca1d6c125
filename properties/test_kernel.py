"""The kernel against the references."""

from kda.formats import F64
from kda.numerics.compare import row_errors
from kda.numerics.domain import gate_domain
from kda.numerics.lattice import exact_outputs
from kda.numerics.side import gate_side
from kda.references import ref_B_fast, ref_C_fast
from kda.suite.laws import law, meaningful, same_bits, within
from strategies import cases, lattice_cases


@law(cases, share=4)
def test_matches_reference_A(subject, case):
    """The kernel computes the recurrence: o and the final state are within the budget of reference A.

    The budget is computed beside A on the same inputs; see docs/tolerances.md. Any edit of the kernel can break it.
    """
    inputs = case.inputs()
    expected = subject.judge(inputs, case.tile)
    within(subject.run(inputs, case.tile), expected.outputs, expected.budget)


@law(cases)
def test_matches_references_B_and_C(subject, case):
    """The kernel computes the chunkwise form: B (pairwise decays, explicit inverse) and C (the split) in float64.

    They share the kernel's algebra and none of its code: an edit that is right for A only by luck parts from them. C is
    asked where float64 can split the gates.
    """
    inputs = case.inputs()
    budget = subject.judge(inputs, case.tile).budget
    got = subject.run(inputs, case.tile)
    within(got, ref_B_fast(inputs, case.C), budget, "against B")
    if gate_side(inputs, case.C, gate_domain(F64, case.C).total).inside:
        within(got, ref_C_fast(inputs, case.C, case.block_DV), budget, "against C")


@law(cases, needs=lambda subject: subject.implementation.mirrored, share=2)
def test_matches_its_mirror(subject, case):
    """The kernel rounds where the mirror rounds: bit for bit where it adds in the same order, within flips elsewhere.

    This sees what hides inside the budget of A: an intermediate kept in a narrower format than it should be.
    """
    inputs = case.inputs()
    mirror = subject.judge_mirror(inputs, case.tile)
    got = subject.run(inputs, case.tile)
    if subject.implementation.exact_mirror(subject.target, subject.dtype):
        same_bits(got, mirror.outputs)
    else:
        within(got, mirror.outputs, mirror.budget)


@law(cases, needs=lambda subject: subject.implementation.mirrored)
def test_is_no_farther_from_A_than_its_mirror(subject, case):
    """On this very case the kernel errs by at most twice what its mirror errs by, up to the order of additions.

    The budget is for any input; the mirror shows what the roundings of this one amount to.
    """
    inputs = case.inputs()
    expected = subject.judge(inputs, case.tile).outputs
    mirror = subject.judge_mirror(inputs, case.tile)
    mirrored = row_errors(mirror.outputs, expected)
    within(subject.run(inputs, case.tile), expected, mirrored + mirrored + mirror.budget)


@law(lattice_cases, share=2)
def test_is_exact_on_the_lattice(subject, case):
    """With one-hot q and k, beta 0 or 1, halving gates and small integers every number is representable, and exact.

    No tolerance is left for a slip of an index, a mask, a decay or a beta to hide in.
    """
    inputs = case.inputs()
    expected = exact_outputs(inputs, case.C)
    if meaningful(expected is not None):
        same_bits(subject.run(inputs, case.tile), expected)
