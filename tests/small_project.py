"""A project of three small laws and of implementations that misbehave on demand, to run pytest on from outside."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

LAWS = '''
import os

from kda.suite.laws import law, meaningful, same_bits, within
from strategies import cases


@law(cases, edits=False)
def test_matches(subject, case):
    """The subject computes reference A. Any edit can break it."""
    if os.environ.get("KDA_TEST_LINES"):
        with open(os.environ["KDA_TEST_LINES"], "a") as file:
            file.write(f"{case}\\n")
    inputs = case.inputs()
    expected = subject.judge(inputs, case.tile)
    within(subject.run(inputs, case.tile), expected.outputs, expected.budget)


@law(cases, gates=("none",), min_tokens=2, share=0.5)
def test_repeats(subject, case):
    """Two runs have the same bits. A race breaks it."""
    inputs = case.inputs()
    same_bits(subject.run(inputs, case.tile), subject.run(inputs, case.tile))


@law(cases)
def test_asks_nothing(subject, case):
    """A law that does not run its subject."""
    meaningful(not hasattr(subject.implementation, "proves_nothing"))
'''

SUBJECTS = """
import ctypes

import kda.suite.watch
from kda.formats import F32
from kda.implementations import Implementation
from kda.problem import InputError
from kda.references import ref_C_fast
from kda.support import Support


class Right(Implementation):
    name = "right"
    summary = "reference C at float64, said to be float32"

    def dtypes(self, target):
        return (F32,)

    def support(self, target, dtype):
        return Support(dtypes=(dtype,), max_tokens=40, total_gates={F32: 80.0})

    def run(self, inputs, tile, target, memory=None):
        if inputs.sizes.N > tile.C:
            self.misbehave(inputs)
        return self.after(ref_C_fast(inputs, tile.C, tile.block_DV), inputs, tile)

    def misbehave(self, inputs):
        pass

    def after(self, outputs, inputs, tile):
        return outputs


class Wrong(Right):
    def after(self, outputs, inputs, tile):
        if inputs.sizes.N > tile.C:
            outputs.o[:, tile.C] += 0.5
        return outputs


class Crashes(Right):
    def misbehave(self, inputs):
        ctypes.string_at(0)


class Hangs(Right):
    def misbehave(self, inputs):
        ctypes.PyDLL(None).pause()  # holds the interpreter lock, as a kernel that hangs does


class Refuses(Right):
    def misbehave(self, inputs):
        raise InputError(f"N is {inputs.sizes.N}; expected at most one chunk")


class LosesGpu(Right):
    errors = 0

    def misbehave(self, inputs):
        kda.suite.watch.cuda_is_broken = lambda: True
        self.errors += 1
        raise RuntimeError(f"CUDA error: an illegal memory access, number {self.errors}")


class Unsteady(Right):
    runs = 0

    def after(self, outputs, inputs, tile):
        self.runs += 1
        if self.runs == 7:
            outputs.o[:] += 1
        return outputs


class Falls(Wrong):
    # Wrong, and while that is being made smaller its process dies.

    def misbehave(self, inputs):
        if not inputs.v.any():
            ctypes.string_at(0)


class Races(Right):
    # One run in three, one element of the last token of the second chunk.
    runs = 0

    def after(self, outputs, inputs, tile):
        self.runs += 1
        if self.runs % 3 == 0 and inputs.sizes.N > tile.C:
            outputs.o[0, tile.C, 0, 0] += 0.5
        return outputs


class Creeps(Right):
    # Errs the more, the more tokens, heads and batches there are: beyond the budget where there are most alone.

    def after(self, outputs, inputs, tile):
        fullness = inputs.sizes.N / 40 * inputs.sizes.H / 3 * inputs.sizes.B / 3
        outputs.o[:] *= 1 + 2e-6 * fullness**3
        return outputs


class ProvesNothing(Right):
    proves_nothing = True


not_one = 3
"""


@dataclass
class Result:
    """How a run of pytest ended, and what it printed."""

    status: int
    text: str

    def lines(self, word):
        """What follows `word:` on the lines that begin with it, as a shell would join them."""
        return re.findall(rf"^{word}: +(.*)$", re.sub(r" \\\n +", " ", self.text), re.M)

    def failure(self, test):
        """The report of one failed test."""
        return re.search(rf"^_+ {re.escape(test)}.*? _+\n(.*?)^[_=]", self.text, re.M | re.S).group(1)


@dataclass
class Project:
    """The project in `folder`."""

    folder: Path

    @classmethod
    def make(cls, folder):
        """Write its files."""
        (folder / "properties").mkdir()
        (folder / "conftest.py").write_text('pytest_plugins = ["kda.suite.plugin"]\n')
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "subjects.py").write_text(SUBJECTS)
        (folder / "properties" / "test_small.py").write_text(LAWS)
        (folder / "properties" / "test_guard.py").write_text((ROOT / "properties" / "test_guard.py").read_text())
        return cls(folder)

    @property
    def report(self):
        """The JSON report of the last run."""
        return json.loads((self.folder / "report.json").read_text())

    @property
    def guard(self):
        """The guard file."""
        return self.folder / "properties" / "guard.txt"

    def pytest(self, *options, impl="Right", **environment):
        """Run pytest in a process of its own, on the CPU, which spares it the import of torch."""
        ours = ("CI", "PYTEST_", "KDA_", "HYPOTHESIS_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | environment
        impl = f"subjects.py:{impl}" if impl.isidentifier() else impl
        command = [sys.executable, "-m", "pytest", "--kda-impl", impl, "--kda-report", "report.json"]
        target = () if "--kda-target" in options else ("--kda-target", "c")
        done = subprocess.run(
            [*command, *target, *options], cwd=self.folder, env=env, capture_output=True, text=True, timeout=120
        )
        return Result(done.returncode, done.stdout + done.stderr)
