"""Climbing to worse cases: the climb itself, what counts as a neighbour, and what a hunt makes of both."""

from random import Random

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda.case import Case
from kda.formats import F16, F64
from kda.implementations import implementation
from kda.kinds import FIELDS
from kda.numerics.domain import gate_domain
from kda.problem import InputError
from kda.suite.climb import climb
from kda.suite.laws import LAWS, Subject, bounded, law
from kda.suite.neighbours import Neighbourhood
from kda.suite.nightly import hunt
from kda.suite.record import Record
from strategies import cases

# Climbing


def beside(case, rng):
    """One token, head or batch more or less, in any order."""
    found = [
        case.replace(**{axis: size})
        for axis in ("N", "H", "B")
        for size in (getattr(case, axis) - 1, getattr(case, axis) + 1)
        if size >= 1
    ]
    rng.shuffle(found)
    return found


def nearness(case):
    """At most 1, where N, H and B are what was planted."""
    return 1 / (1 + abs(case.N - 37) + abs(case.H - 3) + abs(case.B - 2))


def test_the_maximum_is_found():
    end = climb(Case(N=20), nearness, beside, 400, Random(0))
    assert (end.case, end.ratio) == (Case(N=37, H=3, B=2), 1)
    assert end.examined < 200  # and there it ends: nothing beside it is worse


def test_a_seed_decides_the_way():
    def way(seed):
        met = []
        climb(Case(N=20), lambda case: met.append(case) or nearness(case), beside, 60, Random(seed))
        return met

    assert way(1) == way(1)
    assert way(1) != way(2)


def test_no_more_are_examined_than_may_be_and_none_twice():
    met = []
    end = climb(Case(N=20), lambda case: met.append(case) or nearness(case), beside, 17, Random(0))
    assert len(met) == len(set(met)) == end.examined == 17
    assert climb(Case(), nearness, beside, 1, Random(0)).case == Case()


def test_what_says_nothing_is_no_step():
    def ratio(case):
        return None if case.N > 22 else nearness(case)

    assert climb(Case(N=20), ratio, beside, 400, Random(0)).case == Case(N=22, H=3, B=2)


def test_equal_is_not_worse():
    assert climb(Case(N=20), lambda case: 0.5, beside, 40, Random(0)).case == Case(N=20)


def test_rounds_go_on_while_they_bring_new_neighbours():
    def seeds(case, rng):
        yield case.replace(seed=rng.getrandbits(8))

    end = climb(Case(), lambda case: case.seed, seeds, 100, Random(0))
    assert end.case.seed > 200


# Neighbours

DRAWN = [
    Case.parse(line)
    for line in (
        "v1,N=3,DK=32,DV=32,C=16,gate=log:-0.5,q=gauss,k=gauss,v=gauss,edits=v:2.3:4.0/k:0.1:0.5",
        "v1,B=2,N=70,H=3,DK=64,DV=64,C=64,block_DV=32,gate=log:-0.1,beta=constant:0.5,v=wide:4,seed=9",
        "v1,N=40,DK=32,DV=32,C=16,gate=uniform:0.5:0.9,beta=constant:0.9,k=parallel:0.1,state=gauss",
    )
]


def around(case, rounds=200):
    """Neighbours of `case` within what was drawn above, of several rounds."""
    neighbours, rng = Neighbourhood(DRAWN), Random(0)
    return [candidate for _ in range(rounds) for candidate in neighbours(case, rng)]


def changed(case, other):
    """The names of what differs."""
    names = ("B", "N", "H", "DK", "DV", "C", "block_DV", *FIELDS, "seed", "edits")
    return {name for name in names if getattr(case, name) != getattr(other, name)}


def test_one_thing_changes_at_a_time():
    tile, singles = {"DK", "DV", "C", "block_DV"}, set()
    for candidate in around(DRAWN[0]):
        what = changed(DRAWN[0], candidate)
        # A tile may need another gate, and edits lose their place with the tokens and channels that go.
        allowed = {"gate", "edits"} if what & tile else {"edits"} if candidate.N < 3 else set()
        assert len(what - tile - allowed) <= (not what & tile), candidate
        singles |= what if len(what) == 1 else set()
    assert singles == {"B", "N", "H", *FIELDS, "seed", "edits"}


def test_neighbours_keep_to_what_was_drawn():
    for candidate in (c for case in DRAWN for c in around(case, 60)):
        assert 3 <= candidate.N <= 70
        assert candidate.B <= 2
        assert candidate.H <= 3
        assert (candidate.DK, candidate.C, candidate.block_DV) in {(32, 16, 16), (64, 64, 32)}
        assert len(candidate.edits) <= 2
        assert {edit.value for edit in candidate.edits} <= {4.0, 0.5}
        if candidate.beta.name == "constant":
            assert 0.5 <= candidate.beta.params[0] <= 0.9
        if candidate.gate.name == "log":
            assert -0.5 <= candidate.gate.params[0] <= -0.1


def test_parameters_go_between_two_that_were_drawn():
    betas = {c.beta.params[0] for c in around(DRAWN[1]) if c.beta.name == "constant"}
    assert betas == {0.5, 0.9, 0.7, 0.55, 0.5125}


def test_a_longer_chunk_comes_with_a_gate_of_its_own():
    longer = [c for c in around(DRAWN[0]) if c.C == 64]
    assert longer
    assert {str(c.gate) for c in longer} == {"log:-0.1"}
    shorter = [c for c in around(DRAWN[1]) if c.C == 16]
    assert {str(c.gate) for c in shorter} == {"log:-0.1"}


def test_borders_of_chunks_are_near():
    counts = {c.N for c in around(DRAWN[2]) if changed(DRAWN[2], c) == {"N"}}
    assert counts == {31, 32, 33, 39, 41, 48, 49}


def test_a_state_that_goes_takes_its_edits_along():
    kept = DRAWN[2].replace(edits=Case.parse("v1,state=ones,edits=state:1.1:0.0").edits)
    neighbours, rng = Neighbourhood([*DRAWN, kept]), Random(1)
    stateless = [c for _ in range(20) for c in neighbours(kept, rng) if c.state.name == "none"]
    assert stateless
    assert not any(c.edits for c in stateless)


@pytest.mark.parametrize("name", ["mirror", "ref_C"])
def test_climbs_never_leave_the_domain(name):
    """Every case on a long random walk is one the implementation supports, with gates inside its domain."""
    dtype = F16 if name == "mirror" else F64
    support = Subject(implementation(name), "c", dtype).support
    drawn = []

    @hypothesis.seed(5)
    @hypothesis.settings(max_examples=150, database=None, phases=[hypothesis.Phase.generate])
    @given(case=cases(support, dtype))
    def draw(case):
        drawn.append(case)

    draw()
    neighbours, rng, case = Neighbourhood(drawn), Random(3), drawn[-1]
    gates = set()
    for _ in range(600):
        case = next(neighbours(case, rng))
        assert support.refuses(case) is None
        inputs = case.inputs()
        gate_domain(dtype, case.C).check(inputs.g, float(abs(inputs.k).max()))
        assert inputs.beta.max() <= support.max_beta
        gates.add(case.gate.name)
    assert len(gates) > 5


# Hunting


def hunted(body, start, most=60, seed="1"):
    """The record of a hunt from the cases in `start` with a law that has `body`, and what was raised."""

    @law(cases)
    def test_planted(subject, case):
        """Planted."""
        body(case)

    made, raised = LAWS.pop(test_planted.kda_law.name), None
    subject = Subject(implementation("ref_A"), "c", F64)
    record = Record(made.name, subject.id)

    def search(targeted):
        @hypothesis.settings(database=None, deadline=None, max_examples=50)
        @given(case=st.sampled_from([Case.parse(line) for line in start]))
        def draw(case):
            targeted.holds_for(subject, case, record)

        draw()

    try:
        hunt(made, subject, record, search, most, seed=seed)
    except Exception as error:
        raised = error
    return record, raised


START = ["v1,N=3,dtype=f64", "v1,B=3,N=30,H=3,dtype=f64", "v1,N=16,dtype=f64,k=gauss"]


def test_a_hunt_climbs_from_the_worst_that_was_searched():
    record, raised = hunted(lambda case: bounded(case.N * case.B * case.H / 300, "size"), START)
    assert raised is None
    assert (record.before, record.after) == (0.9, 0.9)  # there is nothing larger among what was drawn
    record, raised = hunted(lambda case: bounded((case.seed % 97 + case.N) / 150, "size"), START)
    assert raised is None
    assert record.before == 0.2
    assert record.after == record.worst_ratio > 0.7
    assert 0 < record.climbed <= 60
    assert record.cases > record.climbed


def test_hunts_of_one_seed_are_the_same():
    def body(case):
        bounded((case.seed % 97 + case.N) / 150, "size")

    assert hunted(body, START)[0] == hunted(body, START)[0]
    assert hunted(body, START)[0] != hunted(body, START, seed="2")[0]


def test_a_case_that_fails_on_the_way_up_is_raised():
    def body(case):
        bounded((case.seed % 97 + case.N) / 100, "size")

    record, error = hunted(body, START)
    assert record.before == 0.3
    (line,) = [note.split()[1] for note in error.__notes__ if note.startswith("case:")]
    failing = Case.parse(line)
    with pytest.raises(AssertionError, match="times what is allowed"):
        body(failing)
    assert record.after > 1


def test_a_refused_neighbour_is_no_failure():
    def body(case):
        if case.seed:
            raise InputError("no seeds today")
        bounded(case.N / 60, "size")

    record, raised = hunted(body, START)
    assert raised is None
    assert record.climbed > 10


def test_nothing_is_climbed_where_every_ratio_is_zero():
    record, raised = hunted(lambda case: bounded(0.0, "size"), START)
    assert (raised, record.climbed, record.before, record.after) == (None, 0, 0.0, 0.0)
