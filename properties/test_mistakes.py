"""The two mistakes that the article warns of, planted: each is caught, and shrinks to its smallest case.

They are caught by the very law that judges the kernel, `kernel.matches_reference_A`, on its own cases.
"""

import functools
from pathlib import Path

import pytest

from kda.formats import F16, F32, F64
from kda.mutation.hunt import hunt
from kda.mutation.slips import HARMLESS, SLIPS, mistaken
from kda.suite.laws import Subject, load_laws
from strategies import cases

SEEDS = (1, 2, 3)
#: Tokens of the smallest case: one where a token meets itself, two where it meets another.
SMALLEST = {
    "beta-before-solve": 2,
    "L-of-the-other-pairing": 2,
    "A_qk-without-diagonal": 1,
    "L-with-diagonal": 1,
    "substitution-one-short": 2,
}


@functools.cache
def the_law():
    """The comparison that judges the kernel."""
    return load_laws(Path(__file__).parent, "kernel")["kernel.matches_reference_A"]


def subject_with(slip, dtype):
    """A slip as a subject, at `dtype` where its source has one."""
    implementation = mistaken(slip)
    return Subject(implementation, "c", dtype if dtype in implementation.dtypes("c") else F64)


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
@pytest.mark.parametrize("name", SLIPS)
def test_the_mistake_is_caught_and_shrinks(name, dtype):
    """Within 200 cases, whatever the seed, down to one batch, one head and as few tokens as can show it."""
    subject = subject_with(SLIPS[name], dtype)
    for seed in SEEDS:
        found = hunt(the_law(), subject, seed)
        assert found.cases is not None, f"{name} was not caught in 200 cases (seed {seed})"
        assert (1, 1, SMALLEST[name]) == (found.case.B, found.case.H, found.case.N), f"{name} shrank to {found.case}"
        assert len(str(found.case)) < 160


@pytest.mark.parametrize("name", ["beta-before-solve", "L-of-the-other-pairing"])
def test_equal_betas_hide_the_beta_mistake(name):
    """When all betas are equal the two pairings are one, so that no number of such cases can tell them apart."""
    subject = subject_with(SLIPS[name], F32)
    equal = cases(subject.support, F32, betas=("zero", "one", "constant"), edits=False)
    assert hunt(the_law(), subject, seed=1, strategy=equal).cases is None


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_mistake_is_not_caught(name):
    """The other right pairing passes; so does a diagonal of L that the substitution over j < r never reads."""
    subject = subject_with(HARMLESS[name], F32)
    assert hunt(the_law(), subject, seed=1).cases is None
