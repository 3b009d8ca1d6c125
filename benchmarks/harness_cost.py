"""Cases per second and worker: drawing, inputs, kernel, oracle and comparison, on the CPU target.

    python benchmarks/harness_cost.py [--cases 400]

B = 1, H = 2, N <= 64, DK = DV = 32: the size at which the cost of the harness itself shows. One process, one thread.
"""

from __future__ import annotations

import argparse
import os
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from dataclasses import replace  # noqa: E402

import hypothesis  # noqa: E402
from hypothesis import HealthCheck, Phase, given  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from kda.case import Case  # noqa: E402
from kda.formats import BF16, F16, F32  # noqa: E402
from kda.implementations import implementation  # noqa: E402
from kda.numerics.compare import compare  # noqa: E402
from kda.suite.laws import Subject  # noqa: E402
from strategies import cases  # noqa: E402


def measure(subject: Subject, number: int) -> tuple[int, float, dict[str, float]]:
    """Search `number` cases of `subject`: cases done, seconds, and the seconds spent in each part."""
    tiles = tuple(t for t in subject.support.tiles or () if (t.DK, t.DV) == (32, 32))
    support = replace(subject.support, tiles=tiles, max_batch=1, max_heads=2, max_tokens=64)
    for tile in tiles:
        case = tile.of(Case(dtype=subject.dtype))
        subject.implementation.prepare(case.inputs(), case.tile, subject.target)
    spent = {"inputs": 0.0, "kernel": 0.0, "oracle": 0.0, "compare": 0.0}
    done = 0

    def timed(what, work):
        start = time.perf_counter()
        result = work()
        spent[what] += time.perf_counter() - start
        return result

    @hypothesis.settings(
        max_examples=number,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    @given(case=cases(support, subject.dtype))
    def search(case):
        nonlocal done
        done += 1
        case = case.cut(B=1).replace(H=2)
        inputs = timed("inputs", case.inputs)
        got = timed("kernel", lambda: subject.run(inputs, case.tile))
        judged = timed("oracle", lambda: subject.judge(inputs, case.tile))
        verdicts = timed("compare", lambda: compare(got, judged.outputs, judged.budget))
        assert all(verdict.passed for verdict in verdicts)

    start = time.perf_counter()
    search()
    return done, time.perf_counter() - start, spent


def main() -> None:
    """Time a search per format and print where the time goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=400)
    number = parser.parse_args().cases

    table = Table("dtype", "cases", "cases / s", "inputs ms", "kernel ms", "oracle ms", "compare ms", "the rest ms")
    for dtype in (F16, BF16, F32):
        done, seconds, spent = measure(Subject(implementation("kda_chunk"), "c", dtype), number)
        each = (f"{1000 * part / done:.2f}" for part in spent.values())
        rest = 1000 * (seconds - sum(spent.values())) / done
        table.add_row(str(dtype), str(done), f"{done / seconds:.0f}", *each, f"{rest:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
