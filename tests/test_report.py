"""The report of a failure: what it holds, and what it does where a part of it cannot be made."""

from dataclasses import replace

import pytest
from small_project import Project

from kda.case import Case
from kda.diagnosis import report
from kda.diagnosis.reduce import PLAIN_LAWS
from kda.diagnosis.report import understood
from kda.implementations import implementation
from kda.suite.finding import find
from kda.suite.laws import LAWS, Subject, load_laws
from kda.suite.record import Record

CASE = Case.parse("v1,N=4,C=2,DV=2,dtype=f32,v=gauss")


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """The law `small.matches`, an implementation that breaks it, and what a search on one case finds."""
    project = Project.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in PLAIN_LAWS.values():  # another test may have loaded them, and a reduction would go on under one
        monkeypatch.delitem(LAWS, name, raising=False)
    law = load_laws(project.folder / "properties")["small.matches"]
    chosen = implementation("subjects.py:Wrong")
    subject = Subject(chosen, "c", *chosen.dtypes("c"))
    found = find(law, subject, lambda law: law.holds_for(subject, CASE, Record(law.name, subject.id)))
    return law, subject, found, tmp_path


def test_a_report_has_its_sections_in_this_order(wrong):
    made = understood(*wrong)
    starts = ["o: error 0.", "at properties/test_small.py:", "law: ", "case: ", "o: 1 of", "the stages were not"]
    starts += ["looks like", "rerun: ", "write: ", "keep: ", "guard: "]
    at = [next(i for i, line in enumerate(made.lines) if line.startswith(start)) for start in starts]
    assert at == sorted(at), list(zip(starts, at, strict=True))
    assert made.seen.case.N == 3
    assert made.wrong.against == "reference A"


def test_a_case_may_be_left_as_it_is(wrong):
    assert understood(*wrong, shrink=False).seen.case == CASE


def test_a_reduced_line_that_no_report_can_hold_is_not_taken(wrong, monkeypatch):
    monkeypatch.setattr(report, "LONGEST", 10)
    made = understood(*wrong)
    assert made.seen.case == CASE
    assert f"case:  {CASE}" in made.lines


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("picture", "this part of the report could not be made: ZeroDivisionError: no such luck"),
        ("first_wrong_stage", "the first wrong stage could not be made: ZeroDivisionError: no such luck"),
        ("resemblance", "the likeness to known mistakes could not be made: ZeroDivisionError: no such luck"),
    ],
)
def test_a_part_that_fails_hides_nothing(wrong, monkeypatch, part, says):
    whole = understood(*wrong).lines

    def fails(*arguments):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(report, part, fails)
    lines = understood(*wrong).lines
    assert says in lines
    assert lines[:3] == whole[:3]
    assert lines[-4:] == whole[-4:]


def test_a_run_that_another_law_made_is_said_to_be(wrong):
    """The law compares something else than the run with reference A: what is drawn needs a word."""
    law, subject, found, folder = wrong

    def body(subject, case):
        subject.run(case.inputs(), case.tile)
        raise AssertionError("something about it")

    other = replace(law, body=body)
    made = understood(other, subject, replace(found, error=AssertionError("something about it")), folder, shrink=False)
    assert made.lines[0] == "something about it"
    assert "one of its runs is wrong by itself; beside reference A:" in made.lines
