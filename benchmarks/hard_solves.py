"""How often the strategies draw a triangular solve that tells a good solver from a bad one, per chunk length.

    python benchmarks/hard_solves.py --cases 1500

Every case is drawn by `strategies.cases` for the tiles of one chunk length, at fixed seeds. Hard is a case whose result
leaves the budget of reference A when the mirror solves by the doubling product of the catalogue instead of by
substitution; the float32 product with float32 operands, the product in the operand format with float16 ones. Beside it:
how many cases have the kinds that `strategies.cases` draws together for this. The table is in docs/solve.md.
"""

from __future__ import annotations

from dataclasses import replace

import click
from drawing import drawn
from rich.console import Console
from rich.table import Table

from kda.case import Case
from kda.formats import F16, F32
from kda.implementations import implementation
from kda.mutation.catalogue import CATALOGUE
from kda.numerics.compare import compare
from kda.suite.laws import Subject

ENTRIES = {F32: "doubling-product", F16: "doubling-product-in-operand-precision"}


def is_hard(subject: Subject, case: Case) -> bool:
    """Whether `subject`, which solves by a doubling product, leaves the budget of reference A on `case`."""
    inputs = case.inputs()
    judged = subject.judge(inputs, case.tile)
    return any(not v.passed for v in compare(subject.run(inputs, case.tile), judged.outputs, judged.budget))


def is_joint(case: Case) -> bool:
    """Whether `case` has a full chunk of keys that resemble each other, slow decay and strong writes."""
    slow = case.gate.name == "none" or (case.gate.name in ("constant", "shared") and case.gate.params[0] >= 0.999)
    strong = case.beta.name in ("one", "near1") or (
        case.beta.name in ("constant", "uniform") and case.beta.params[0] >= 0.9
    )
    return case.N >= case.C and slow and strong and case.k.name in ("equal", "sign", "parallel")


@click.command()
@click.option("--cases", "number", default=1500, show_default=True, help="Cases per chunk length and format.")
@click.option("--seed", default=0, show_default=True, help="Seed of the draws.")
def main(number: int, seed: int) -> None:
    """Print the share of hard solves among the cases drawn, per chunk length and operand format."""
    palette = Subject(implementation("mirror"), "c", F32).support.tiles or ()
    table = Table("C", "operands", "cases", "with the kinds drawn together", "doubling product leaves the budget")
    for C in sorted({tile.C for tile in palette}):
        for dtype, name in ENTRIES.items():
            tiles = tuple(replace(tile, DK=16, DV=16, block_DV=16) for tile in palette if tile.C == C)[:1]
            subject = Subject(CATALOGUE[name].mutant("mirror").planted(), "c", dtype, tiles)
            found = drawn(subject, number, seed)
            hard = sum(is_hard(subject, case) for case in found)
            joint = sum(map(is_joint, found))
            table.add_row(str(C), str(dtype), str(number), f"{joint / number:.1%}", f"{hard / number:.1%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
