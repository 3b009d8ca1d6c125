"""Making a failing case smaller: what it gives up for what, and what it never does."""

import pytest

from kda.case import Case
from kda.suite.smaller import smaller


def test_sequences_and_tokens_go_first():
    found = smaller(Case(B=3, N=70, H=2, seed=5, v="gauss"), lambda case: case.N >= 2)
    assert found == Case(N=2)


@pytest.mark.parametrize("threshold", [1, 2, 15, 16, 17, 18, 33])
def test_it_stops_at_the_border_that_matters(threshold):
    found = smaller(Case(N=90), lambda case: threshold <= case.N)
    assert threshold == found.N


def test_equal_keys_are_taken_for_many_tokens():
    """A one-hot key comes back after DK tokens; the same failure needs two where all keys are equal."""
    needs_an_old_key = Case(N=49, DK=48)
    found = smaller(needs_an_old_key, lambda case: (1 if case.k.name == "equal" else case.DK) < case.N)
    assert (found.N, found.k.name) == (2, "equal")


def test_a_state_is_taken_for_a_chunk_before():
    found = smaller(Case(N=17), lambda case: case.N > 16 or case.state.name != "none")
    assert (found.N, found.state.name) == (1, "ones")


def test_an_edit_moves_with_the_last_token():
    case = Case.parse("v1,N=17,edits=beta:16:0.0")
    found = smaller(case, lambda case: any(edit.tensor == "beta" and edit.value == 0.0 for edit in case.edits))
    assert str(found) == "v1,edits=beta:0:0.0"


def test_what_is_not_needed_goes():
    case = Case.parse(
        "v1,gate=constant:0.9,beta=alternating:1.0:0.5,k=gauss,q=gauss,state=gauss,seed=7,edits=v:0.0:2.0"
    )
    assert smaller(case, lambda case: case.gate.name == "constant") == Case(gate="constant:0.9")


def test_a_case_that_cannot_be_smaller_stays():
    case = Case()
    assert smaller(case, lambda case: True) is case


def test_what_does_not_fail_is_never_taken():
    tried = []

    def fails(case):
        tried.append(case)
        return False

    case = Case(B=2, N=40, H=3, k="gauss")
    assert smaller(case, fails) is case
    assert len(tried) > 10


def test_it_tries_no_more_than_it_may():
    tried = []
    smaller(Case(B=2, N=90, H=3, k="gauss", v="gauss"), lambda case: bool(tried.append(case)), most=7)
    assert len(tried) == 7


def test_a_gate_that_names_a_token_is_no_obstacle():
    case = Case(N=40, gate="spike:30:-1.0")
    assert smaller(case, lambda case: case.N >= 3).N == 3
