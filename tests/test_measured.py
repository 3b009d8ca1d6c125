"""What reports are worth, as the benchmark measures it."""

from dataclasses import replace

import pytest

from kda.case import Case
from kda.diagnosis.measured import REASONS, Measured, measure, removals
from kda.mutation.campaign import KILLED, run
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.plans import plan_catalogue


@pytest.mark.parametrize(("form", "stage"), [("mirror", ""), ("kernel", "U")])
def test_a_known_mistake_is_measured_in_a_process_of_its_own(form, stage):
    (((row,),)) = run(plan_catalogue(form, "c", [1], ["beta-dropped-from-U"]).tasks, 1, work=measure).values()
    assert (row.status, row.stage, row.mistakes) == (KILLED, stage, ("beta-dropped-from-U",))
    assert (row.tokens, row.left, row.race, row.same_bits) == (1, 0, False, True)
    assert row.right_mistake
    assert row.small
    assert row.fits, (row.lines, row.width, row.script_lines, row.scripted)
    assert row.right_stage == (form == "kernel")
    assert row.report.splitlines()[0].startswith("final_state: error")
    assert 0 < row.reporting < row.seconds + 1
    assert row.data()["case"] == row.case
    assert "report" not in row.data()


def test_a_stage_that_the_reduction_hides_is_named_all_the_same():
    """All zeros are loaded right from anywhere: what is left of this failure is a row that is never stored."""
    (((row,),)) = run(plan_catalogue("kernel", "c", [1], ["chunk-length-hard-coded"]).tasks, 1, work=measure).values()
    assert sum(row.numbers.values()) == 0
    assert row.stage == "q"
    assert "o as stored is the first" in " ".join(row.report.split())
    assert row.fits


GOOD = Measured(
    "beta-dropped-from-U",
    KILLED,
    stage="U",
    mistakes=("beta-dropped-from-U",),
    tokens=1,
    numbers={"k": 1, "v": 4},
    lines=30,
    width=100,
    scripted=(1, 0),
    script_lines=30,
)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, None),
        ({"stage": "W"}, "right_stage"),
        ({"stage": ""}, "right_stage"),
        ({"mistakes": ()}, "right_mistake"),
        ({"mistakes": ("beta-twice",)}, "right_mistake"),
        ({"tokens": 3}, "small"),
        ({"numbers": {"k": 5}}, "small"),
        ({"lines": 40}, "fits"),
        ({"width": 101}, "fits"),
        ({"script_lines": 40}, "fits"),
        ({"scripted": (1, 1)}, "fits"),
        ({"scripted": (0, 0)}, "fits"),
        ({"scripted": (2, 0)}, "fits"),
    ],
)
def test_what_is_not_as_it_should_be_is_seen(change, wrong):
    row = replace(GOOD, **change)
    for what in ("right_stage", "right_mistake", "small", "fits"):
        assert getattr(row, what) == (what != wrong), what


def test_what_is_known_to_need_more_is_small_where_nothing_can_go():
    row = replace(GOOD, name="first-order-inverse", tokens=3)
    assert row.small
    assert not replace(row, left=1).small
    assert set(REASONS) <= set(CATALOGUE)


def test_removals_are_of_one_thing_each():
    case = Case.parse("v1,N=2,H=2,dtype=f32,q=zeros,k=zeros,v=zeros,beta=zero,edits=beta:0.0.0:1.0/k:0.0.1.0:1.0")
    lines = [str(candidate) for candidate in removals(case)]
    head = "v1,N=2,H=2,dtype=f32,beta=zero,q=zeros,k=zeros,v=zeros"
    assert f"{head},edits=k:0.0.1.0:1.0" in lines  # without beta
    assert f"{head},edits=beta:0.0.0:1.0" in lines
    assert any(Case.parse(line).N == 1 for line in lines)
    assert any(Case.parse(line).H == 1 for line in lines)
    assert len(lines) == 8  # two numbers, two tokens of numbers, two tokens, two heads
