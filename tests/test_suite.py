"""The pytest plugin, run as a user runs it, and the parts it is made of."""

import dataclasses
import json
import os
import re
import types

import pytest
from small_project import Project

from kda.case import Case
from kda.formats import F32, F64
from kda.implementations import implementation
from kda.suite import guard, plugin, watch
from kda.suite.guard import GuardError, GuardLine
from kda.suite.laws import LAWS, Subject, bounded, law, load_laws, meaningful
from kda.suite.record import Record, Run
from kda.suite.watch import GpuLost, Watch, last_case
from strategies import cases

SMALLEST = "v1,N=2,DK=1,DV=1,C=1,dtype=f32,beta=zero,q=zeros,k=zeros,v=zeros"
DEV = plugin.PROFILES["dev"]


@pytest.fixture
def project(tmp_path):
    return Project.make(tmp_path)


# Failures


def test_a_failure_is_one_screen_with_all_that_is_needed(project):
    result = project.pytest("--hypothesis-seed=1", impl="Wrong")
    assert result.status == 1
    text = result.failure("test_matches")
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) <= 100
    head, cells, stage, mistake, commands = (part.splitlines() for part in text.strip().split("\n\n"))
    assert head[0].startswith("o: error 0.5 in the row")
    assert any(line.startswith("at properties/test_small.py:") for line in head)
    assert head[-2:] == ["law:   small.matches: The subject computes reference A", f"case:  {SMALLEST}"]
    assert cells[0] == "o: 1 of 2 tokens wrong; final_state is right"
    assert cells[-2].split() == ["1", "1", "#"]
    assert "o: every row from the second chunk on: tokens 1..1" in stage
    assert mistake[0].startswith("looks like no known mistake; the nearest of")
    which = f"{SMALLEST} --property small.matches"
    assert joined(commands) == [
        f"rerun: kda check {which} --impl subjects.py:Wrong --target c",
        f"write: kda repro {which} --impl subjects.py:Wrong --target c -o repro.py",
        f"keep:  kda guard add {which}",
        f"guard: {SMALLEST} small.matches",
    ]
    assert "FAILED properties/test_small.py::test_matches[right-c-f32] - o: error 0.5" in result.text


def test_a_brief_run_looks_into_nothing(project):
    lines = project.pytest("--hypothesis-seed=1", "--kda-brief", impl="Wrong").failure("test_matches").splitlines()
    words = ["o", "at properties/test_small.py", "law", "case", "rerun", "write", "keep", "guard"]
    assert [line.split(":")[0] for line in lines] == words
    assert "case:  v1,N=2,DK=1,DV=1,C=1,dtype=f32" in lines  # what Hypothesis shrank it to


def test_a_failure_has_a_page_where_that_is_asked_for(project):
    result = project.pytest("-n", "2", "--kda-html", "pages", impl="Wrong")
    (page,) = (project.folder / "pages").iterdir()
    assert f"page:  pages/{page.name}" in result.failure("test_matches").splitlines()
    assert SMALLEST in page.read_text()
    assert not list((project.folder / "pages").glob("*.part"))


def joined(lines):
    """The lines as a shell joins them."""
    return re.sub(r" \\\n +", " ", "\n".join(lines)).splitlines()


def test_an_exception_shows_where_it_was_raised(project):
    lines = project.pytest(impl="Refuses").failure("test_matches").splitlines()
    assert lines[0] == "InputError: N is 2; expected at most one chunk"
    assert any(line.startswith("at subjects.py:") and "raise InputError" in line for line in lines)
    assert f"case:  {SMALLEST}" in lines
    assert len(lines) < 20


def test_an_unsteady_result_is_called_that(project):
    result = project.pytest(impl="Unsteady")
    assert "@seed(" not in result.text  # Hypothesis' way to find it again is no part of a report
    lines = result.failure("test_matches").splitlines()
    assert lines[0].startswith("race: the same inputs give different results, and the law fails in 1 of 111 runs")
    assert any(line.startswith("o: error") for line in lines)
    assert "Flaky" not in "".join(lines)


def test_a_race_is_made_smaller_and_measured(project):
    """One run in three is wrong, in one element."""
    result = project.pytest("--hypothesis-seed=1", impl="Races")
    assert "2 failed, 1 passed" in result.text
    assert "Flaky" not in result.text
    lines = result.failure("test_matches").splitlines()
    found = re.match(
        r"race: the same inputs give different results, and the law fails in (\d+) of (\d+) runs", lines[0]
    )
    failed, times = map(int, found.groups())
    assert times >= 100
    assert times / 4 < failed < times / 2
    (case,) = [Case.parse(line.split()[1]) for line in lines if line.startswith("case:")]
    assert (case.B, case.N, case.H, case.C) == (1, 2, 1, 1)
    where = "elements: batch 0, token 1, head 0, value channel 0"
    assert any("o differs from run to run in 1 of" in line and line.endswith(where) for line in lines)
    assert any(line.startswith(f"rerun: kda diagnose {case} ") for line in lines)


def test_another_traceback_can_be_asked_for(project):
    assert "def test_matches(subject, case)" in project.pytest("--tb=long", impl="Wrong").text


def test_a_law_that_proves_nothing_fails(project):
    result = project.pytest("-k", "asks_nothing", impl="ProvesNothing")
    assert result.status == 1
    assert f"{DEV} of {DEV} cases of small.asks_nothing proved nothing" in result.text
    assert project.report["untrusted"] == DEV


# Crashes, hangs and lost GPUs


@pytest.mark.parametrize(("impl", "options"), [("Crashes", ()), ("Hangs", ("--kda-timeout", "1"))])
def test_a_worker_that_dies_names_its_case(project, impl, options):
    result = project.pytest("-n", "2", *options, impl=impl)
    assert "2 failed, 1 passed" in result.text
    assert "the process ended (a crash, a broken GPU or the time-out of one case) in the middle of" in result.text
    report = result.text[result.text.index("= FAILURES =") : result.text.index(" kda =")]
    assert max(len(line) for line in report.splitlines() if line[0:1] not in ("=", "_")) <= 100
    assert sorted(result.lines("law")) == [
        "small.matches: The subject computes reference A",
        "small.repeats: Two runs have the same bits",
    ]
    for line, rerun in zip(result.lines("case"), result.lines("rerun"), strict=True):
        case = Case.parse(line)
        assert case.N > case.C
        assert rerun.startswith(f"kda check {line} --property small.")
        assert rerun.endswith(f"--impl subjects.py:{impl} --target c")


def test_without_workers_the_next_run_names_the_case(project):
    dead = project.pytest("--kda-timeout", "1", impl="Hangs")
    assert dead.status == 1
    assert "Timeout (0:00:01)!" in dead.text
    assert not dead.lines("case")
    header = project.pytest("--collect-only")
    assert "an earlier run ended in the middle of" in header.text
    assert header.lines("law") == ["small.matches: The subject computes reference A"]
    assert not project.pytest("--collect-only").lines("law")


def test_a_lost_gpu_ends_its_worker_at_the_case_that_lost_it(project):
    result = project.pytest("-n", "2", impl="LosesGpu")
    assert "2 failed, 1 passed" in result.text
    assert result.lines("error") == ["RuntimeError: CUDA error: an illegal memory access, number 1"] * 2
    for line in result.lines("case"):
        assert Case.parse(line).N > Case.parse(line).C


def test_a_lost_gpu_ends_the_run_where_there_are_no_workers(project):
    result = project.pytest(impl="LosesGpu")
    assert result.status == 70
    assert "the CUDA context broke in properties/test_small.py::test_matches[right-c-f32]" in result.text
    assert "an illegal memory access, number 1" in result.text
    (line,) = result.lines("case")
    assert Case.parse(line).N > Case.parse(line).C


# Choosing cases


def test_reports_are_merged_over_workers(project):
    result = project.pytest("-n", "2", "--kda-cases", "10")
    assert "25 cases, 0 launches" in result.text
    report = project.report
    assert list(report) == [
        *("cases", "launches", "compiles", "cache_hits", "seconds", "untrusted", "guard_lines", "climbed"),
        "properties",
    ]
    assert report["cases"] == 25
    assert report["seconds"] > 0
    assert {name: p["cases"] for name, p in report["properties"].items()} == {
        "small.asks_nothing": 10,
        "small.matches": 10,
        "small.repeats": 5,  # share=0.5
    }
    matches = report["properties"]["small.matches"]
    assert list(matches) == ["cases", "worst_ratio", "worst_case", "worst", "climb"]
    assert 0 < matches["worst_ratio"] < 1e-3
    assert Case.parse(matches["worst_case"]).dtype is F32
    assert f"small.matches {matches['worst_ratio']:.3g} {matches['worst_case']}" in result.text
    ratio, line, subject = matches["worst"][0]
    assert (ratio, subject) == (matches["worst_ratio"], "right-c-f32")
    assert Case.parse(line).dtype is F32
    assert 1 <= len(matches["worst"]) <= 5
    assert matches["climb"] == {"cases": 0, "before": 0.0, "after": 0.0}
    assert "climbed" not in result.text


def test_guard_lines_are_replayed_first(project):
    project.guard.write_text(f"# kept\n{SMALLEST} small.matches  # once\nv1,N=3,DK=2,dtype=f32 small.repeats\n")
    result = project.pytest("-v", "--kda-cases", "5", impl="Wrong")
    order = [line.split("::")[1].split()[0] for line in result.text.splitlines() if "::" in line and "%]" in line]
    assert [name.split("[")[0] for name in order] == [
        *["test_a_past_failure_stays_fixed"] * 2,
        *("test_matches", "test_repeats", "test_asks_nothing"),
    ]
    assert f"case:  {SMALLEST}" in result.failure("test_a_past_failure_stays_fixed[small.matches").splitlines()
    assert project.report["guard_lines"] == 2


def test_the_replay_profile_runs_guard_lines_only(project):
    project.guard.write_text(f"{SMALLEST} small.matches\n")
    assert "1 passed, 3 deselected" in project.pytest("--hypothesis-profile", "replay").text
    assert project.report["cases"] == project.report["guard_lines"] == 1


def test_guard_lines_need_no_other_file(project):
    project.guard.write_text(f"{SMALLEST} small.matches\n")
    assert "1 passed" in project.pytest("properties/test_guard.py").text
    assert project.report["guard_lines"] == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v1,X=1 small.matches", "guard.txt:1: no field is called 'X'"),
        ("\nv1 small matches", "guard.txt:2: 3 words; expected a case line and a property"),
        (
            "v1,dtype=f32 small.nosuch",
            "guard.txt names small.nosuch, which is no property; known: ['small.asks_nothing'",
        ),
    ],
)
def test_a_bad_guard_line_is_an_error(project, text, says):
    project.guard.write_text(text + "\n")
    result = project.pytest("--hypothesis-profile", "replay")
    assert result.status in (1, 2)
    assert says in result.text


def test_one_case_alone(project):
    project.guard.write_text("v1,dtype=f32 small.matches\n")
    result = project.pytest("--kda-case", "v1,N=9,C=4,DK=3,dtype=f32", impl="Wrong")
    assert project.report["cases"] == 3
    assert result.lines("case") == ["v1,N=9,DK=3,C=4,dtype=f32"]  # found and not shrunk


def test_a_case_is_not_asked_of_laws_about_others(project):
    result = project.pytest("-rs", "--kda-case", "v1,gate=log:-0.1,dtype=f32")
    assert project.report["cases"] == 2
    assert (
        "small.repeats on right-c-f32 does not take this case: gate is log:-0.1; the law is about none" in result.text
    )


def test_a_case_that_nothing_examined_has_not_passed(project):
    result = project.pytest("--kda-case", "v1,dtype=f64")
    assert result.status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no law examined the case" in result.text


def test_seeds_and_profiles_choose_the_cases(project):
    def lines(*options):
        file = project.folder / "lines.txt"
        file.unlink(missing_ok=True)
        assert project.pytest("-k", "matches", *options, KDA_TEST_LINES=str(file)).status == 0
        return file.read_text().splitlines()

    one, other = lines("--hypothesis-seed=1"), lines("--hypothesis-seed=2")
    assert len(one) == len(other) == DEV
    assert len(set(one) & set(other)) < DEV / 3
    gate = lines("--hypothesis-profile", "gate")
    assert gate == lines("--hypothesis-profile", "gate", "--hypothesis-seed=2")


def test_a_failure_is_found_again_at_once_on_another_machine(project, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shared = {"HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "shared")}
    words = ("-k", "matches", "--hypothesis-profile")
    assert project.pytest(*words, "dev", impl="Wrong", **shared).status == 1
    other = Project.make(elsewhere)
    assert other.pytest(*words, "dev", "--kda-cases", "1", impl="Wrong", **shared).lines("case") == [SMALLEST]
    assert other.pytest(*words, "gate", "--kda-cases", "1", impl="Wrong", **shared).status == 0  # no database there


# Hunting for the worst case


def test_nightly_finds_what_is_too_rare_for_dev(project):
    """By climbing, from some seed, one in twenty or so; dev finds nothing from the same one, with as many cases."""
    words = ("-k", "matches", "--hypothesis-profile")
    for seed in range(1, 81):
        result = project.pytest(*words, "nightly", f"--hypothesis-seed={seed}", "--kda-cases", "200", impl="Creeps")
        climb = project.report["properties"]["small.matches"]["climb"]
        if result.status and climb["cases"]:
            break
    assert result.status == 1
    assert climb["cases"] <= 50
    assert climb["before"] < 1 < climb["after"]
    words = (*words, "dev", f"--hypothesis-seed={seed}", "--kda-cases", "250")
    apart = str(project.folder / "apart")  # from what the nights before it found
    assert project.pytest(*words, impl="Creeps", HYPOTHESIS_STORAGE_DIRECTORY=apart).status == 0
    assert project.report["cases"] == 250
    lines = result.failure("test_matches").splitlines()
    (line,) = re.findall(r"^(?:LINE=|case:  )(v1.*)$", "\n".join(lines), re.M)
    assert Case.parse(line).gate.name == "none"  # it was shrunk
    assert lines[-1].startswith(("keep:", "guard:", "       --property"))
    project.guard.write_text(f"{line} small.matches\n")
    assert project.pytest("--hypothesis-profile", "replay", impl="Creeps").status == 1


def test_nightly_says_what_it_climbed(project):
    result = project.pytest("--hypothesis-profile", "nightly", "--hypothesis-seed=1", "--kda-cases", "40")
    assert result.status == 0
    report = project.report
    assert report["properties"]["small.matches"]["cases"] == 50
    climbs = {name: p["climb"] for name, p in report["properties"].items()}
    assert climbs["small.repeats"] == climbs["small.asks_nothing"] == {"cases": 0, "before": 0.0, "after": 0.0}
    climb = climbs["small.matches"]
    assert climb["cases"] == report["climbed"] == 10
    assert 0 < climb["before"] <= climb["after"] == report["properties"]["small.matches"]["worst_ratio"]
    assert "10 cases climbed" in result.text
    again = project.pytest("--hypothesis-profile", "nightly", "--hypothesis-seed=1", "--kda-cases", "40")
    assert again.status == 0
    assert project.report["properties"] == report["properties"]


def test_only_nightly_targets_its_search(project):
    (project.folder / "conftest.py").write_text(
        'pytest_plugins = ["kda.suite.plugin"]\n'
        "import hypothesis\n"
        "def target(observation, label=''): raise LookupError('targeted')\n"
        "hypothesis.target = target\n"
    )
    words = ("-k", "matches or repeats", "--hypothesis-seed=1", "--kda-cases", "20", "--hypothesis-profile")
    for profile in ("gate", "dev"):
        assert project.pytest(*words, profile).status == 0
    result = project.pytest(*words, "nightly")
    assert "LookupError: targeted" in result.failure("test_matches")
    assert "1 failed, 1 passed" in result.text  # nothing to target where bits agree


def test_dev_draws_what_a_plain_search_draws(project):
    (project.folder / "properties" / "test_plain.py").write_text(
        "from hypothesis import given\n"
        "from kda.implementations import implementation\n"
        "from kda.suite.laws import LAWS, subjects_of\n"
        "def test_plain():\n"
        "    law = LAWS['small.matches']\n"
        "    (subject,) = subjects_of(implementation('subjects.py:Right'), 'c')\n"
        "    @given(law.cases(subject))\n"
        "    def search(case):\n"
        "        law.body(subject, case)\n"
        "    search()\n"
    )
    file = project.folder / "lines.txt"
    assert project.pytest("-k", "matches or plain", "--hypothesis-seed=1", KDA_TEST_LINES=str(file)).status == 0
    lines = file.read_text().splitlines()
    assert len(lines) == 2 * DEV
    assert lines[:DEV] == lines[DEV:]


def test_a_night_keeps_its_failures_and_nothing_else(project):
    kept = project.folder / ".hypothesis" / "examples"
    words = ("-k", "matches", "--hypothesis-profile")
    assert project.pytest(*words, "nightly", "--kda-cases", "30").status == 0
    assert not [path for path in kept.rglob("*") if path.is_file()]  # of what it targeted: `dev` would replay it
    assert project.pytest(*words, "nightly", "--kda-cases", "30", impl="Wrong").status == 1
    assert project.pytest(*words, "dev", "--kda-cases", "1", impl="Wrong").lines("case") == [SMALLEST]


@pytest.mark.parametrize(("environment", "profile"), [({}, "dev"), ({"CI": "true"}, "gate")])
def test_the_profile_in_ci_is_gate(project, environment, profile):
    assert f"kda: right on c (f32), profile {profile}" in project.pytest("--collect-only", **environment).text


@pytest.mark.parametrize(
    ("options", "impl", "says"),
    [
        ((), "nosuch.thing", "implementation 'nosuch.thing' is unknown; installed are kda_chunk, kda_forward"),
        ((), "nosuch.py:Right", "implementation 'nosuch.py:Right': there is no file nosuch.py"),
        ((), "subjects.py:NoSuch", "implementation 'subjects.py:NoSuch': subjects.py has no 'NoSuch'"),
        ((), "subjects.py:not_one", "is a int; expected a kda.implementations.Implementation"),
        ((), "broken.py:Right", "broken.py cannot be imported, broken.py:2: ZeroDivisionError: division by zero"),
        (("--hypothesis-profile", "fast"), "Right", "expected one of gate, dev, nightly, replay"),
        (("--kda-target", "cuda"), "Right", "right does not run on cuda here, only on c"),
        (("--kda-target", "tpu"), "Right", "argument --kda-target: invalid choice: 'tpu'"),
        (("--kda-case", "v1,N=zero"), "Right", "N is 'zero'; expected an integer"),
        (("--kda-dtype", "f8"), "Right", "dtype 'f8' is unknown; known are"),
        (("--kda-cases", "0"), "Right", "--kda-cases is 0; expected at least 1"),
        (("--kda-timeout", "-1"), "Right", "--kda-timeout is -1; expected seconds"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_sentence(project, options, impl, says):
    (project.folder / "broken.py").write_text("\n1 / 0\n")
    result = project.pytest(*options, impl=impl)
    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert says in result.text
    assert "Traceback" not in result.text


# Workers


@pytest.mark.parametrize(
    ("worker", "visible", "count", "expected"),
    [
        ("gw0", None, 4, "0"),
        ("gw5", None, 4, "1"),
        ("gw0", "2,5", 2, "2"),
        ("gw3", "2,5", 2, "5"),
        ("gw1", "GPU-a,GPU-b", 2, "GPU-b"),
        ("gw1", "7", 1, "7"),
        ("gw1", "MIG-a,MIG-b", -1, "MIG-b"),
        ("gw1", "", 0, ""),
        ("gw1", None, 0, None),
        ("", "2,5", 2, "2,5"),
    ],
)
def test_workers_divide_the_gpus_they_were_given(monkeypatch, worker, visible, count, expected):
    import torch

    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    # Asking whether CUDA is available starts it, and what is set afterwards comes too late.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("CUDA was started"))
    plugin._spread_over_gpus()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.parametrize(
    ("cores", "memory", "gpus", "target", "expected"),
    [
        (8, 64, None, "auto", 8),
        (8, 7, None, "auto", 3),
        (8, 1, None, "auto", 1),
        (64, 512, [24, 24], "auto", 16),
        (64, 512, [24, 24], "c", 64),
        (4, 512, [141], "cuda", 4),
    ],
)
def test_workers_by_cores_memory_and_gpus(monkeypatch, cores, memory, gpus, target, expected):
    import torch

    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(plugin.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=memory * plugin.GIB))
    monkeypatch.setattr(plugin, "available_targets", lambda: ("cuda", "c") if gpus else ("c",))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    properties = [types.SimpleNamespace(total_memory=gib * plugin.GIB) for gib in gpus or ()]
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    config = types.SimpleNamespace(getoption=lambda name: target)
    assert plugin.pytest_xdist_auto_num_workers(config) == expected
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "5")
    assert plugin.pytest_xdist_auto_num_workers(config) is None


# The guard file


def test_a_guard_line_reads_back(tmp_path):
    path = tmp_path / "guard.txt"
    first = GuardLine(Case.parse("v1,N=17,v=gauss"), "kernel.matches_reference_A", "état # of\nthe art")
    second = GuardLine(Case.parse("v1"), "time.cut")
    assert guard.read(path) == []
    assert guard.add(path, first)
    assert guard.add(path, second)
    assert guard.read(path) == [dataclasses.replace(first, comment="état # of the art"), second]
    assert path.read_text("utf-8").startswith("# Cases that once failed")


def test_a_guard_line_is_kept_once(tmp_path):
    path = tmp_path / "guard.txt"
    assert guard.add(path, GuardLine(Case.parse("v1,H=2,N=3"), "a.b", "one"))
    before = path.read_text()
    assert not guard.add(path, GuardLine(Case.parse("v1,N=3,H=2"), "a.b", "other"))
    assert path.read_text() == before
    assert guard.add(path, GuardLine(Case.parse("v1,N=3,H=2"), "a.c"))


def test_the_guard_file_changes_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "guard.txt"
    path.write_text("v1 a.b")
    monkeypatch.setattr(guard.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(OSError, match="full"):
        guard.add(path, GuardLine(Case.parse("v1,N=2"), "a.b"))
    assert path.read_text() == "v1 a.b"
    monkeypatch.undo()
    assert guard.add(path, GuardLine(Case.parse("v1,N=2"), "a.b"))
    assert path.read_text() == "v1 a.b\nv1,N=2 a.b\n"


def test_a_broken_guard_file_is_not_added_to(tmp_path):
    path = tmp_path / "guard.txt"
    path.write_text("v1 a.b\nv0 a.b\n")
    with pytest.raises(GuardError, match=r"guard.txt:2: the line is of version 'v0'; expected v1"):
        guard.add(path, GuardLine(Case.parse("v1,N=2"), "a.b"))


# Records


def test_records_keep_the_worst_ratio_that_can_be_trusted():
    record = Record("a.b", "x")
    for ratio, trusted, line in [
        (0.25, True, "v1"),
        (0.5, True, "v1,N=2"),
        (9.0, False, "v1,N=3"),
        (0.1, True, "v1,N=4"),
    ]:
        record.observe(ratio, trusted, line)
    assert (record.worst_ratio, record.worst_case) == (0.5, "v1,N=2")


def test_a_run_adds_its_records_up(tmp_path):
    records = [
        Record("b.b", "x", cases=3, untrusted=1, launches=4, compiles=1, climbed=1, before=0.5, after=0.5),
        Record("a.a", "x", cases=1, worst_ratio=0.25, worst_case="v1,N=2", guard_lines=1),
        Record("b.b", "y", cases=2, cache_hits=2, climbed=2, before=0.25, after=0.75),
        Record("", "x", compiles=2, cache_hits=1),
    ]
    records[0].observe(0.5, True, "v1")
    records[2].observe(0.75, True, "v1,N=3")
    run = Run.of([record.data() for record in records], 1.5)
    run.write(tmp_path / "new" / "report.json")
    assert json.loads((tmp_path / "new" / "report.json").read_text()) == {
        "cases": 6,
        "launches": 4,
        "compiles": 3,
        "cache_hits": 3,
        "seconds": 1.5,
        "untrusted": 1,
        "guard_lines": 1,
        "climbed": 3,
        "properties": {
            "a.a": {
                "cases": 1,
                "worst_ratio": 0.25,
                "worst_case": "v1,N=2",
                "worst": [],
                "climb": {"cases": 0, "before": 0.0, "after": 0.0},
            },
            "b.b": {
                "cases": 5,
                "worst_ratio": 0.75,
                "worst_case": "v1,N=3",
                "worst": [[0.75, "v1,N=3", "y"], [0.5, "v1", "x"]],
                "climb": {"cases": 3, "before": 0.5, "after": 0.75},
            },
        },
    }


def test_records_keep_the_worst_cases():
    record = Record("a.b", "x")
    for i in range(1, 9):
        record.observe(i / 10, True, f"v1,N={i}")
    record.observe(0.79996, True, "v1,N=8,q=zeros")  # as N=8: its queries hardly matter
    record.observe(0.55, True, "v1,N=5,seed=4")  # as N=5, with another seed
    record.observe(0.45, True, "v1,N=4,seed=40,edits=v:0.0:2.0")
    record.observe(0.05, True, "v1,N=9")
    record.observe(0.95, False, "v1,N=10")
    record.observe(0.0, True, "v1,N=11")
    assert record.worst == [
        *((0.8, "v1,N=8", "x"), (0.7, "v1,N=7", "x"), (0.6, "v1,N=6", "x")),
        *((0.55, "v1,N=5,seed=4", "x"), (0.45, "v1,N=4,seed=40,edits=v:0.0:2.0", "x")),
    ]


# Watching


def test_the_line_is_on_disk_before_the_body_runs(tmp_path):
    seen = []

    @law(cases)
    def test_looks(subject, case):
        """It looks."""
        seen.append(last_case(tmp_path, "gw0"))

    made = LAWS.pop(test_looks.kda_law.name)
    subject = Subject(implementation("ref_A"), "c", F64)
    made.holds_for(subject, Case.parse("v1,N=3,dtype=f64"), Record(made.name, ""), Watch(tmp_path, "gw0", 0))
    (text,) = seen
    assert "case:  v1,N=3,dtype=f64\n" in text
    assert "--property suite.looks --impl ref_A --target c" in text
    assert last_case(tmp_path, "gw0") is None


def test_a_watch_reads_what_was_left(tmp_path):
    first = Watch(tmp_path, "main", 0)
    first.begin("case:  v1,N=3 with a long tail")
    first.begin("case:  v1")
    assert last_case(tmp_path, "main") == "case:  v1"
    assert Watch(tmp_path, "gw0", 0).left == ""
    assert Watch(tmp_path, "main", 0).left == "case:  v1"
    assert last_case(tmp_path, "main") is None


def test_a_lost_gpu_leaves_its_line(tmp_path, monkeypatch):
    watching = Watch(tmp_path, "gw0", 0)
    watching.begin("case:  v1")
    watching.failed("case:  v1", RuntimeError("no CUDA error"))
    monkeypatch.setattr(watch, "cuda_is_broken", lambda: True)
    with pytest.raises(GpuLost, match="an illegal memory access"):
        watching.failed("case:  v1", RuntimeError("an illegal memory access"))
    watching.end()
    assert last_case(tmp_path, "gw0") == "case:  v1\nerror: RuntimeError: an illegal memory access"


# Laws


def test_laws_are_loaded_from_a_folder(project, monkeypatch):
    monkeypatch.setitem(LAWS, "elsewhere.holds", "a law that was there before")
    laws = load_laws(project.folder / "properties")
    assert list(laws) == ["small.matches", "small.repeats", "small.asks_nothing"]
    assert laws["small.matches"].sentence == "The subject computes reference A"
    assert {*laws, "elsewhere.holds"} <= set(LAWS)
    with pytest.raises(LookupError, match=r"there is no .*test_nosuch\.py"):
        load_laws(project.folder / "properties", "nosuch")
    (project.folder / "properties" / "test_broken.py").write_text("import nosuch\n")
    with pytest.raises(LookupError, match=r"test_broken\.py cannot be imported, ModuleNotFoundError"):
        load_laws(project.folder / "properties")


def test_a_law_tells_its_ratios():
    @law(cases)
    def test_compares(subject, case):
        """It compares."""
        bounded(0.25, "cut at 3")
        bounded(0.5, "cut at 17")
        bounded(0.0, "nothing")
        meaningful(False)
        bounded(case.N / 4, "tokens")

    heard = []
    made = LAWS.pop(test_compares.kda_law.name).heard_by(lambda *what: heard.append(what))
    subject, record = Subject(implementation("ref_A"), "c", F64), Record(made.name, "")
    short, long = Case(N=3, dtype=F64), Case(N=5, dtype=F64)
    made.holds_for(subject, short, record)
    with pytest.raises(AssertionError, match=r"tokens: 1\.25 times"):
        made.holds_for(subject, long, record)
    assert heard == [(short, {"cut at ": 0.5, "tokens": 0.75})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("v1,N=2,dtype=f64", None),
        ("v1,dtype=f64", "N is 1; the law needs at least 2"),
        ("v1,N=2,gate=log:-1.0,dtype=f64", "gate is log:-1.0; the law is about none, constant"),
        ("v1,N=2,dtype=f64,edits=v:0.0:2.0", "there are edits; the law is about cases without"),
        ("v1,N=2", "dtype is f16; supported are f64"),
    ],
)
def test_a_law_says_which_cases_it_is_not_about(line, reason):
    @law(cases, gates=("none", "constant"), min_tokens=2, edits=False)
    def test_narrow(subject, case):
        """Narrow."""

    made = LAWS.pop(test_narrow.kda_law.name)
    assert made.excludes(Subject(implementation("ref_A"), "c", F64), Case.parse(line)) == reason
