"""How fast the planted mistakes are caught: cases until the first failure and the shrunk case, over many seeds.

    python benchmarks/hunts.py [--seeds 20]

The law is `kernel.matches_reference_A` on its own cases; the mistakes are those of `kda.mutation.slips`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kda.formats import F16, F32, F64
from kda.mutation.hunt import hunt
from kda.mutation.slips import SLIPS, mistaken
from kda.suite.laws import Subject, load_laws


def main() -> None:
    """Hunt each mistake once per seed and print one row per mistake and format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    law = load_laws(Path(__file__).parents[1] / "properties", "kernel")["kernel.matches_reference_A"]

    table = Table("mistake", "dtype", "caught", "median cases", "most cases", "s per hunt", "largest shrunk case")
    for name, slip in SLIPS.items():
        implementation = mistaken(slip)
        for dtype in [f for f in (F16, F32, F64) if f in implementation.dtypes("c")]:
            start = time.perf_counter()
            found = [hunt(law, Subject(implementation, "c", dtype), seed) for seed in range(seeds)]
            seconds = (time.perf_counter() - start) / seeds
            cases = [f.cases for f in found if f.cases is not None]
            largest = max((f.case for f in found if f.case is not None), key=lambda c: (c.B * c.H * c.N, len(str(c))))
            table.add_row(
                *(name, str(dtype), f"{len(cases)} of {seeds}", f"{statistics.median(cases):g}", str(max(cases))),
                *(f"{seconds:.2f}", str(largest)),
            )
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
