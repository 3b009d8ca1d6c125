"""The pytest side: options, profiles, subjects, workers, the guard file and the summary. Loaded by conftest.py."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis.database import DirectoryBasedExampleDatabase

from kda.case import Case, CaseError
from kda.implementations import Implementation, implementation
from kda.kernels.compile import available_targets, resolve_target
from kda.suite import guard
from kda.suite.laws import LAWS, Law, Subject, references_at_float64
from kda.suite.record import Record, Run
from kda.suite.summary import print_summary
from kda.suite.watch import Watch, cuda_is_broken, last_case

#: Cases per law and subject.
PROFILES = {"gate": 60, "dev": 60, "nightly": 2000, "replay": 0}
GIB = 2**30
#: What one worker takes: memory of the machine, and of a GPU (measured: 16 workers use under 4 GiB of an H200).
WORKER_RAM, WORKER_GPU_RAM = 2 * GIB, 3 * GIB


def register_profiles(database: Path) -> None:
    """The four Hypothesis profiles, for `--hypothesis-profile`; `gate` is the default in CI and `dev` elsewhere."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": quiet, "report_multiple_bugs": False}
    shrinking = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
    hypothesis.settings.register_profile(
        "gate", derandomize=True, database=None, max_examples=PROFILES["gate"], phases=shrinking, **common
    )
    hypothesis.settings.register_profile(
        "dev",
        derandomize=False,
        database=DirectoryBasedExampleDatabase(database),
        max_examples=PROFILES["dev"],
        phases=shrinking,
        **common,
    )
    hypothesis.settings.register_profile(
        "nightly", hypothesis.settings.get_profile("dev"), max_examples=PROFILES["nightly"]
    )
    hypothesis.settings.register_profile(
        "replay", hypothesis.settings.get_profile("dev"), phases=(Phase.explicit, Phase.reuse)
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option each: which implementation, target and case, how many cases, how long, where the report goes."""
    group = parser.getgroup("kda", "Kimi Delta Attention properties")
    group.addoption(
        "--kda-impl",
        default="kda_chunk",
        metavar="NAME",
        help="the implementation under test: from `kda impls`, file.py:Class or module:Class (default: kda_chunk)",
    )
    group.addoption("--kda-target", default="auto", choices=("auto", "c", "cuda"), help="where it runs (default: auto)")
    group.addoption("--kda-dtype", default=None, metavar="F16,BF16", help="only these operand formats, by short name")
    group.addoption("--kda-case", default=None, metavar="LINE", help="examine this one case instead of searching")
    group.addoption("--kda-cases", default=None, type=int, metavar="N", help="cases per law (default: the profile's)")
    group.addoption("--kda-report", default=None, metavar="FILE", help="write the summary of the run as JSON")
    group.addoption("--kda-timeout", default=180.0, type=float, metavar="S", help="seconds for one case; 0: no limit")


@dataclass
class Plan:
    """What this run examines."""

    implementation: Implementation
    target: str
    dtypes: tuple[str, ...] | None
    case: Case | None
    cases: int | None
    profile: str
    watch: Watch

    def subjects(self, law: Law | None) -> list[Subject]:
        """The subjects of `law` (of any, where None), the simplest first."""
        if law is not None and law.of:
            subjects = references_at_float64(*law.of)
        else:
            subjects = [
                Subject(self.implementation, self.target, dtype) for dtype in self.implementation.dtypes(self.target)
            ]
        return [
            s
            for s in subjects
            if (self.dtypes is None or s.dtype.short in self.dtypes)
            and (self.case is None or s.dtype == self.case.dtype)
            and (law is None or law.needs(s))
        ]


class KdaRun:
    """The fixture behind every law: searches for a counterexample and records what it did."""

    def __init__(self, plan: Plan, node: pytest.Item) -> None:
        self.plan = plan
        self.node = node

    def examine(self, law: Law, subject: Subject) -> None:
        """Examine the case that was asked for, or search."""
        __tracebackhide__ = True
        record = Record(law.name, subject.id)
        try:
            if self.plan.case is not None:
                self._one(law, subject, self.plan.case, record)
            else:
                self._search(law, subject, record)
            if record.cases >= 20 and record.untrusted > 0.7 * record.cases:
                raise AssertionError(
                    f"{record.untrusted} of {record.cases} cases of {law.name} proved nothing (budget above signal)"
                )
        except Exception:
            self._end_if_broken(subject)
            raise
        finally:
            self.node.user_properties.append(("kda", record.data()))

    def replay(self, law: Law, subject: Subject, case: Case) -> None:
        """Examine one line of the guard file."""
        __tracebackhide__ = True
        record = Record(law.name, subject.id, guard_lines=1)
        try:
            self._one(law, subject, case, record)
        except Exception:
            self._end_if_broken(subject)
            raise
        finally:
            self.node.user_properties.append(("kda", record.data()))

    def compiled(self, subject: Subject, work: Any) -> None:
        """Do `work`, which compiles, and record what it cost."""
        record = Record("", subject.id)
        from kda.kernels.compile import COUNTS

        before = (COUNTS.launches, COUNTS.compiles, COUNTS.cache_hits)
        work()
        record.launches = COUNTS.launches - before[0]
        record.compiles = COUNTS.compiles - before[1]
        record.cache_hits = COUNTS.cache_hits - before[2]
        self.node.user_properties.append(("kda", record.data()))

    def _one(self, law: Law, subject: Subject, case: Case, record: Record) -> None:
        __tracebackhide__ = True
        refusal = subject.support.refuses(case)
        if refusal is not None:
            pytest.skip(f"{subject.id} does not take this case: {refusal}")
        law.holds_for(subject, case, record, self.plan.watch)

    def _search(self, law: Law, subject: Subject, record: Record) -> None:
        __tracebackhide__ = True
        number = self.plan.cases if self.plan.cases is not None else hypothesis.settings().max_examples

        @hypothesis.settings(max_examples=max(1, round(number * law.share)))
        @given(case=law.cases(subject))
        def search(case: Case) -> None:
            __tracebackhide__ = True
            law.holds_for(subject, case, record, self.plan.watch)

        # Without it, all subjects of a law would share one stream of examples and one database entry.
        search.hypothesis.inner_test._hypothesis_internal_add_digest = self.node.nodeid.encode()
        search()

    def _end_if_broken(self, subject: Subject) -> None:
        if subject.target == "cuda" and cuda_is_broken():
            if "PYTEST_XDIST_WORKER" in os.environ:
                os._exit(70)  # xdist starts another worker; this one would fail every test that follows
            pytest.exit(f"the CUDA context is broken after {self.node.nodeid}; see .kda/last-case", returncode=70)


@pytest.fixture
def kda_run(request: pytest.FixtureRequest) -> KdaRun:
    """The run of this test; see `KdaRun`."""
    return KdaRun(request.config.stash[_PLAN], request.node)


_PLAN = pytest.StashKey[Plan]()
_STARTED = pytest.StashKey[float]()
_RECORDS = pytest.StashKey[list[dict[str, Any]]]()
_DEFAULT_PROFILE = "gate" if os.environ.get("CI") else "dev"


def _worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def _folder(config: pytest.Config) -> Path:
    return config.rootpath / ".kda" / "last-case"


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile, spread workers over GPUs, and read the options; UsageError for one that makes no sense."""
    _spread_over_gpus()
    register_profiles(config.rootpath / ".hypothesis" / "examples")
    profile = config.getoption("--hypothesis-profile", None) or _DEFAULT_PROFILE
    if profile not in PROFILES:
        raise pytest.UsageError(f"--hypothesis-profile is {profile!r}; expected one of {', '.join(PROFILES)}")
    hypothesis.settings.load_profile(profile)
    line, dtypes = config.getoption("--kda-case"), config.getoption("--kda-dtype")
    try:
        chosen = implementation(config.getoption("--kda-impl"))
        target = resolve_target(config.getoption("--kda-target"))
        if config.getoption("--kda-target") == "auto" and target not in chosen.targets():
            target = chosen.targets()[0]
        case = Case.parse(line) if line else None
    except (LookupError, TypeError, ValueError, CaseError) as error:
        raise pytest.UsageError(str(error)) from None
    if target not in chosen.targets():
        raise pytest.UsageError(f"{chosen.name} runs on {', '.join(chosen.targets())} here; --kda-target is {target}")
    config.stash[_STARTED] = time.monotonic()
    config.stash[_RECORDS] = []
    config.stash[_PLAN] = Plan(
        implementation=chosen,
        target=target,
        dtypes=tuple(dtypes.lower().split(",")) if dtypes else None,
        case=case,
        cases=config.getoption("--kda-cases"),
        profile=profile,
        watch=Watch(_folder(config), _worker(), config.getoption("--kda-timeout")),
    )


def _spread_over_gpus() -> None:
    # Before CUDA starts. The caller's choice of devices is divided, never overruled.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw") or "cuda" not in available_targets():
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    import torch

    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[int(worker[2:]) % len(devices)]


def pytest_report_header(config: pytest.Config) -> str:
    """What runs where."""
    plan = config.stash[_PLAN]
    dtypes = ", ".join(str(d) for d in plan.implementation.dtypes(plan.target))
    return f"kda: {plan.implementation.name} on {plan.target} ({dtypes}), profile {plan.profile}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers for `-n auto`: by cores and memory, and on CUDA by the memory of the GPUs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, max(1, psutil.virtual_memory().available // WORKER_RAM))
    if config.getoption("--kda-target") != "c" and "cuda" in available_targets():
        import torch

        memory = sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
        workers = min(workers, max(1, memory // WORKER_GPU_RAM))
    return int(workers)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per law and subject; one per guard line; one per tile to compile."""
    law: Law | None = getattr(metafunc.function, "kda_law", None)
    if law is not None:
        subjects = metafunc.config.stash[_PLAN].subjects(law)
        metafunc.parametrize("subject", subjects, ids=[s.id for s in subjects])
    elif {"guarded", "subject"} <= set(metafunc.fixturenames):
        plan = metafunc.config.stash[_PLAN]
        lines = [] if plan.case is not None else guard.read(metafunc.config.rootpath / "properties" / "guard.txt")
        pairs = [(s, line) for line in lines for s in _guard_subjects(plan, line)]
        metafunc.parametrize(
            ("subject", "guarded"), pairs, ids=[f"{line.property}-{line.case.id}-{s.id}" for s, line in pairs]
        )
    elif {"tile_choice", "subject"} <= set(metafunc.fixturenames):
        pairs_to_compile = [
            (s, choice) for s in metafunc.config.stash[_PLAN].subjects(None) for choice in s.support.tiles or ()
        ]
        metafunc.parametrize(
            ("subject", "tile_choice"), pairs_to_compile, ids=[f"{choice.id}-{s.id}" for s, choice in pairs_to_compile]
        )


def _guard_subjects(plan: Plan, line: guard.GuardLine) -> list[Subject]:
    law = LAWS.get(line.property)
    subjects = plan.subjects(law)
    return [s for s in subjects if s.dtype == line.case.dtype] or subjects[:1]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Guard lines first, then the compilations (in parallel, before any law waits for one), then the laws."""
    order = {"test_guard": 0, "test_compile": 1}
    items.sort(key=lambda item: order.get(item.path.stem, 2))
    plan = config.stash[_PLAN]
    if plan.profile == "replay" and plan.case is None:
        kept = [i for i in items if getattr(getattr(i, "function", None), "kda_law", None) is None]
        config.hook.pytest_deselected(items=[i for i in items if i not in kept])
        items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the records of a test, from this process or from a worker."""
    if report.when == "call" and _controller is not None:
        _controller.extend(value for key, value in report.user_properties if key == "kda")


_controller: list[dict[str, Any]] | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """The controller (or the only process) gathers the records."""
    global _controller
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _controller = session.config.stash[_RECORDS]


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """A worker died: say which case it was running."""
    node: Any = getattr(report, "node", None)
    root = Path(sched.config.rootpath)
    line = last_case(root / ".kda" / "last-case", node.gateway.id) if node is not None else None
    if line is not None:
        case, _, name = line.partition(" ")
        report.longrepr = (
            f"{report.longrepr}\nThe process ended (a crash, a broken GPU or the time-out of one case) during\n"
            f"case:  {case}\nlaw:   {name}\nrerun: kda check {case} --property {name}\n"
            f"keep:  kda guard add {case} --property {name}"
        )


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """The table at the end, and the report file."""
    run = Run.of(config.stash[_RECORDS], time.monotonic() - config.stash[_STARTED])
    if run.records:
        print_summary(run, terminalreporter)
    if config.getoption("--kda-report"):
        run.write(Path(config.getoption("--kda-report")))
