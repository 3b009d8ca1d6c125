"""The command `kda`: what it prints, and how it ends."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from small_project import ROOT, Project

from kda.case import Case
from kda.cli import main
from kda.kinds import FIELDS, KINDS
from kda.suite.guard import read


@pytest.fixture
def project(tmp_path, monkeypatch):
    made = Project.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    return made


def kda(*words):
    """The result of `kda WORDS`."""
    return CliRunner().invoke(main, list(words))


def check(line, impl="Right", name="small.matches", *options):
    """The result of `kda check` in the small project."""
    return kda("check", line, "--property", name, "--impl", f"subjects.py:{impl}", *options)


def refused(result):
    """The one sentence of a usage error."""
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


# check


def test_a_case_that_holds(project):
    result = check("v1,N=5,DK=3,DV=2,C=4,v=gauss,k=gauss,q=gauss,dtype=f32")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "law:   small.matches: The subject computes reference A",
        "case:  v1,N=5,DK=3,DV=2,C=4,dtype=f32,q=gauss,k=gauss,v=gauss",
        "on:    right-c-f32",
    ]
    assert {line.split()[0] for line in lines[3:5]} == {"o:", "final_state:"}
    assert all("ratio" in line and "worst at batch 0" in line for line in lines[3:5])
    assert lines[5].startswith("passed, worst ratio ")
    assert 0 < float(lines[5].split()[-1]) < 1e-3


def test_a_case_that_fails(project):
    result = check("v1,N=5,C=4,dtype=f32,DV=2", "Wrong")
    assert result.exit_code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith("o: error 0.707 in the row") and "batch 0, token 4, head 0" in line for line in lines)
    assert any(line.startswith("at properties/test_small.py:") for line in lines)
    which = "v1,N=5,DV=2,C=4,dtype=f32 --property small.matches"
    assert f"rerun: kda check {which} --impl subjects.py:Wrong --target c" in lines
    assert f"keep:  kda guard add {which}" in lines
    assert lines[-1] == "failed"
    assert len(lines) == len(set(lines))  # nothing is said twice


def test_a_rerun_line_of_pytest_reruns_its_failure(project):
    (line,) = project.pytest("-k", "matches", impl="Wrong").lines("rerun")
    program, *words = line.split()
    assert program == "kda"
    result = kda(*words)
    assert result.exit_code == 1
    assert f"case:  {words[1]}" in result.stdout


def test_a_refusal_is_called_that(project):
    result = check("v1,N=17,dtype=f32", "Refuses")
    assert result.exit_code == 1
    assert "InputError: N is 17; expected at most one chunk" in result.stdout
    assert "at subjects.py:" in result.stdout
    assert result.stdout.splitlines()[-1] == "refused"


def test_a_case_that_proves_nothing_is_untrusted(project):
    result = check("v1,dtype=f32", "ProvesNothing", "small.asks_nothing")
    assert result.exit_code == 0
    assert "untrusted: " in result.stdout
    assert "passed" not in result.stdout


def test_all_laws_that_take_the_case(project):
    result = check("v1,N=2,gate=log:-0.5,dtype=f32", "Right", "all")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["small.matches", "small.asks_nothing"]
    result = check("v1,N=17,dtype=f32", "Wrong", "all")
    assert result.exit_code == 1
    assert result.stdout.count("\nfailed\n") == 1
    assert "small.repeats on right-c-f32: passed, worst ratio 0" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("v1,N=x",), "N is 'x'; expected an integer"),
        (("v2",), "the line is of version 'v2'; expected v1"),
        (("v1", "--property", "nosuch"), "no property is called 'nosuch'; expected a name that begins with small."),
        (("v1", "--property", "small.nosuch"), "expected one of small.asks_nothing, small.matches, small.repeats"),
        (
            ("v1", "--property", "small.matches", "--impl", "nosuch"),
            "implementation 'nosuch' is unknown; installed are",
        ),
        (
            ("v1", "--property", "small.matches", "--impl", "subjects.py:Right"),
            "small.matches cannot be asked; right-c-f32: dtype is f16; supported are f32",
        ),
        (
            ("v1,dtype=f32", "--property", "small.repeats", "--impl", "subjects.py:Right"),
            "small.repeats cannot be asked; right-c-f32: N is 1; the law needs at least 2",
        ),
        (("v1", "--property", "all", "--impl", "subjects.py:Right"), "no law of 3 takes this case with right on c"),
        (("v1", "--impl", "subjects.py:Right", "--target", "cuda"), "right does not run on cuda here, only on c"),
        (("v1", "--properties", "nowhere"), "--properties is nowhere, where there is no test_*.py"),
    ],
)
def test_a_wrong_word_is_one_sentence(project, words, says):
    if "--property" not in words:
        words += ("--property", "small.matches")
    assert says in refused(kda("check", *words))


def test_the_default_is_our_kernel_against_reference_A():
    result = kda("check", "v1,N=3,dtype=f64", "--impl", "ref_B")
    assert result.stdout.startswith("law:   kernel.matches_reference_A: ")
    assert result.exit_code == 0


def test_a_law_about_references_takes_those_or_the_one_named():
    def subjects(*options):
        result = kda("check", "v1,N=3,dtype=f64", "--property", "references.match_reference_A", *options)
        return [line.split()[1] for line in result.stdout.splitlines() if line.startswith("on:")]

    assert subjects() == ["ref_B-c-f64", "ref_C-c-f64"]
    assert subjects("--impl", "ref_C") == ["ref_C-c-f64"]


# impls


def test_implementations_are_listed(project):
    text = kda("impls").stdout
    for name in ("kda_chunk", "mirror", "ref_A", "ref_B", "ref_C"):
        assert f" {name} " in text
    named = " ".join(kda("impls", "subjects.py:Right").stdout.split())
    assert "subjects.py:Right" in named
    assert "f32" in named
    assert "ref_A" not in named
    assert "unknown" in refused(kda("impls", "nosuch"))


# show


def test_a_line_is_explained():
    line = "v1,N=65,H=3,DK=16,DV=32,C=32,gate=uniform:0.9:0.999,state=gauss,edits=v:2.3:4.0/beta:0.1.1:0.5"
    result = kda("show", line)
    assert result.exit_code == 0
    rows = {" ".join(row.split()) for row in result.stdout.splitlines()}
    assert "B 1 default batch" in rows
    assert "N 65 tokens" in rows
    assert "gate uniform:0.9:0.999 A decay from U(lo, hi) per token and channel." in " ".join(result.stdout.split())
    everything = " ".join(result.stdout.split())
    assert "v becomes 4 at token 2, value channel 3, in every batch and head" in everything
    assert "beta becomes 0.5 at batch 0, head 1, token 1" in everything
    assert "B1-N65-H3-DK16-DV32-C32-f16: 2 full chunks of 32 tokens and a tail of 1" in rows
    assert any(row.startswith("inside the gate domain: |sum g| per chunk is at most 2.") for row in rows)
    assert "initial_state [1, 3, 16, 32]" in rows
    # the values are the case's own
    inputs = Case.parse(line).inputs()
    assert " ".join(f"{value:.5g}" for value in inputs.g[0, 1, 0, :6]) in rows
    assert " ".join(f"{value:.5g}" for value in inputs.v[0, 2, 0, :6]) in rows
    assert " ".join(f"{value:.5g}" for value in inputs.initial_state[0, 0, 3, :6]) in rows


def test_a_gate_outside_the_domain_is_told():
    text = kda("show", "v1,N=16,gate=log:-1.0").stdout
    assert "outside the gate domain: g sums to -16 since its chunk of 16 tokens began, at batch 0, token 15" in text


def test_every_kind_is_described():
    for field in FIELDS:
        for name, spec in KINDS[field].items():
            if not spec.params:
                text = " ".join(kda("show", f"v1,{field}={name}").stdout.split())
                assert spec.about in text, (field, name)


# tables


def test_the_articles_tables_are_computed_again(tmp_path):
    data, page = tmp_path / "made" / "tables.json", tmp_path / "tables.md"
    result = kda("tables", "--json", str(data), "--markdown", str(page))
    assert result.exit_code == 0
    rows = json.loads(data.read_text())
    assert len([row for row in rows if row["article"]]) >= 45
    assert f"{len(rows)} rows: " in result.stdout
    assert page.read_text().startswith("# The article's tables, computed again\n")
    assert page.read_text().count("\n| ") == len(rows) + 2


def test_an_unexplained_row_fails_the_command(monkeypatch):
    monkeypatch.setattr("kda.tables.findings.FINDINGS", {})
    result = kda("tables", "--seeds", "100")
    assert result.exit_code == 1
    assert "disagrees (unexplained)" in result.stdout


def test_tables_need_a_seed():
    assert refused(kda("tables", "--seeds", "0")) == "Error: --seeds is 0; expected at least 1"


# guard


def test_a_failure_is_kept(project):
    words = ("guard", "add", "v1,DK=2,N=3,dtype=f32", "--property", "small.matches")
    result = kda(*words, "--comment", "the state was not decayed")
    assert (result.exit_code, result.stdout) == (0, "added to properties/guard.txt\n")
    assert kda(*words).stdout == "already in properties/guard.txt\n"
    (line,) = read(project.guard)
    assert str(line) == "v1,N=3,DK=2,dtype=f32 small.matches  # the state was not decayed"
    assert kda("guard", "list").stdout == f"{line}\n"
    result = project.pytest("--hypothesis-profile", "replay")
    assert project.report["guard_lines"] == 1


def test_what_cannot_be_kept(project):
    assert "expected one of small.asks_nothing" in refused(kda("guard", "add", "v1", "--property", "small.nosuch"))
    assert "N is '-1'" in refused(kda("guard", "add", "v1,N=-1", "--property", "small.matches"))
    elsewhere = ("--property", "small.matches", "--file", "no/where.txt")
    assert "No such file" in refused(kda("guard", "add", "v1", *elsewhere))
    assert not project.guard.exists()
    assert "keeps no case" in kda("guard", "list").stderr
    project.guard.write_text("v1\n")
    assert "guard.txt:1: 1 words" in refused(kda("guard", "list"))
    assert "guard.txt:1: 1 words" in refused(kda("guard", "add", "v1", "--property", "small.matches"))


def report_of(folder, **worst):
    """A report with these worst cases per law; its name."""
    properties = {f"small.{name}": {"cases": 9, "worst": entries} for name, entries in worst.items()}
    (folder / "report.json").write_text(json.dumps({"properties": properties}))
    return "report.json"


def test_the_worst_of_a_run_is_kept(project, tmp_path):
    path = report_of(
        tmp_path,
        matches=[
            [0.9, "v1,N=9,dtype=f32", "right-c-f32"],
            [0.676, "v1,N=8,dtype=f32", "right-cuda-f32"],
            [0.55, "v1,N=7,dtype=f32", "right-c-f32"],
            [0.4, "v1,N=6,dtype=f32", "right-c-f32"],
        ],
        repeats=[[float("inf"), "v1,N=3,dtype=f32", "right-c-f32"], [0.3, "v1,N=2,dtype=f32", "right-c-f32"]],
        asks_nothing=[],
    )
    result = kda("guard", "worst", path, "--most", "2")
    assert result.exit_code == 0
    kept = [
        "v1,N=9,dtype=f32 small.matches  # ratio 0.9 on right-c-f32",
        "v1,N=8,dtype=f32 small.matches  # ratio 0.68 on right-cuda-f32",
        "v1,N=3,dtype=f32 small.repeats  # ratio inf on right-c-f32",
    ]
    assert result.stdout.splitlines() == [*kept, "3 added to properties/guard.txt, 0 already there"]
    assert kda("guard", "worst", path, "--most", "2").stdout == "0 added to properties/guard.txt, 3 already there\n"
    assert [str(line) for line in read(project.guard)] == kept
    result = kda("guard", "worst", path, "--above", "0.35", "--most", "9")
    assert result.stdout.splitlines()[-1] == "2 added to properties/guard.txt, 3 already there"
    assert {line.case.N for line in read(project.guard)} == {9, 8, 7, 6, 3}


def test_the_report_of_a_run_can_be_kept(project):
    project.pytest("--hypothesis-profile", "nightly", "--kda-cases", "20", "-k", "matches")
    assert kda("guard", "worst", "report.json").stdout == "0 added to properties/guard.txt, 0 already there\n"
    assert not project.guard.exists()
    kda("guard", "worst", "report.json", "--above", "1e-30")
    assert [line.property for line in read(project.guard)] == ["small.matches"] * 3
    assert "3 passed" in project.pytest("--hypothesis-profile", "replay").text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "report.json is not the report of a run (JSONDecodeError: "),
        ("[]", "is not the report of a run (TypeError: "),
        ("{}", "is not the report of a run (KeyError: 'properties')"),
        ('{"properties": {"small.matches": {"worst_ratio": 0.9}}}', "(KeyError: 'worst')"),
        ('{"properties": {"small.matches": {"worst": [[0.9, "v1"]]}}}', "(ValueError: not enough values"),
        ('{"properties": {"small.matches": {"worst": [["high", "v1", "x"]]}}}', "could not convert string to float"),
        ('{"properties": {"small.matches": {"worst": [[0.9, 3, "x"]]}}}', "is not the report of a run (AttributeError"),
        (
            '{"properties": {"small.matches": {"worst": [[0.9, "v1", "x"], [0.8, "v1,N=0", "x"]]}}}',
            "report.json: small.matches: N is 0; expected an integer",
        ),
        (
            '{"properties": {"small.nosuch": {"worst": [[0.9, "v1", "x"]]}}}',
            "report.json names small.nosuch, which is no property in properties",
        ),
    ],
)
def test_a_report_that_cannot_be_kept(project, text, says):
    (project.folder / "report.json").write_text(text)
    assert says in refused(kda("guard", "worst", "report.json"))
    assert not project.guard.exists()


def test_wrong_words_for_the_worst(project):
    assert "No such file" in refused(kda("guard", "worst", "nosuch.json"))
    assert "--above is 0 and --most is 3; expected" in refused(kda("guard", "worst", "nosuch.json", "--above", "0"))
    assert "--most is 0; expected" in refused(kda("guard", "worst", "nosuch.json", "--most", "0"))


def test_laws_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = kda("guard", "add", "v1", "--file", "kept.txt")  # kernel.matches_reference_A unless another is named
    assert result.stdout == "added to kept.txt\n"


# starting


def test_reading_a_line_starts_at_once(project):
    commands = (["show", "v1"], ["guard", "add", "v1", "--property", "small.matches"], ["guard", "list"])
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from kda.cli import main\n"
        f"assert all(CliRunner().invoke(main, words).exit_code == 0 for words in {commands})\n"
        "print([name for name in ('torch', 'tilelang') if name in sys.modules])\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Diagnosing


def diagnosed(line, impl, *words):
    return kda("diagnose", line, "--property", "small.matches", "--impl", f"subjects.py:{impl}", *words)


LARGE = "v1,N=9,H=2,C=4,dtype=f32,v=gauss"


def test_a_failure_is_looked_into_on_demand(project):
    result = diagnosed(LARGE, "Wrong")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("o: error")
    assert f"case:  {Case.parse(LARGE)}" in lines  # as it was given
    assert "o: 1 of 9 tokens wrong" in result.stdout
    assert any(line.startswith("looks like no known mistake") for line in lines)
    assert any(line.startswith("rerun: kda check v1,N=9,") for line in lines)


def test_a_failure_may_be_made_smaller_on_demand(project):
    (line,) = re.findall(r"^case:  (.*)$", diagnosed(LARGE, "Wrong", "--shrink").stdout, re.M)
    case = Case.parse(line)
    assert (case.N, case.H, case.v.name) == (5, 1, "zeros")


def test_what_holds_is_run_many_times(project):
    result = diagnosed(LARGE, "Right")
    assert result.exit_code == 0
    assert result.stdout == "small.matches on right-c-f32: holds, 30 times\n"


def test_a_race_is_diagnosed(project):
    result = diagnosed(LARGE, "Races")
    assert result.exit_code == 1
    assert result.stdout.startswith("race: the same inputs give different results")
    assert f"rerun: kda diagnose {Case.parse(LARGE)} " in result.stdout


def test_what_dies_is_diagnosed_from_outside(project):
    result = diagnosed(LARGE, "Crashes")
    assert result.exit_code == 1
    assert result.stdout.startswith("its process died (signal 11)\n")
    assert f"case:  {Case.parse(LARGE)}\n" in result.stdout


def test_a_page_is_written_where_it_is_asked_for(project):
    result = diagnosed(LARGE, "Wrong", "--html", "pages")
    (page,) = (project.folder / "pages").iterdir()
    assert f"page:  pages/{page.name}\n" in result.stdout


def test_a_law_that_cannot_be_asked_is_said(project):
    assert "small.matches cannot be asked; right-c-f32: dtype is f64" in refused(diagnosed("v1,dtype=f64", "Right"))
