"""What a kernel spends: exponentials (sections 1.1, 4.2, 6), registers (4.0, 4.1), and widths and chunks (5).

A fragment of R x S float32 numbers is spread over the threads of a program: R S / threads registers each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from kda.formats import F16
from kda.numerics.domain import gate_domain
from kda.tables.row import TableRow

__all__ = ["rows"]

C, DK, DV_BLOCK, THREADS = 64, 128, 32, 128
SIZES = f"C = {C}, DK = {DK}, block_DV = {DV_BLOCK}, {THREADS} threads"

#: What a thread of a CUDA program can address.
MOST_REGISTERS = 255

#: Fragments by name: rows, columns, and how many of that shape.
Fragments = Mapping[str, tuple[str, str, float]]

LINEAR: Fragments = {"S_f": ("DK", "bDV", 1), "acc_o": ("C", "bDV", 1), "A": ("C", "C", 1)}
SCALAR: Fragments = {**LINEAR, "Gam": ("C", "C", 1)}
GDN: Fragments = {**SCALAR, "Amat": ("C", "C", 1), "Delta/Vt": ("C", "bDV", 1)}
KDA: Fragments = {
    **LINEAR,
    "Amat": ("C", "C", 1),
    "Ep/Em": ("C", "DK", 2),
    "W": ("C", "DK", 1),
    "Delta/Vt": ("C", "bDV", 1),
}
#: With e^-gamma and W in shared memory.
KDA_SHARED: Fragments = {**{name: shape for name, shape in KDA.items() if name != "W"}, "Ep/Em": ("C", "DK", 1)}
#: The fragments that section 4.1 declares; two half-precision numbers share a register.
LISTING: Fragments = {
    "S_f": ("DK", "bDV", 1),
    "acc_o": ("C", "bDV", 1),
    "Aqk": ("C", "C", 1),
    "Aq_c": ("C", "C", 0.5),
    "Lmat": ("C", "C", 1),
    "Vt": ("C", "bDV", 1),
    "RHS_v": ("C", "bDV", 1),
    "gam": ("C", "DK", 1),
    "be_f": ("C", "1", 1),
}

#: Section 4.0: fragment, registers of Gated DeltaNet and of KDA.
_ACCOUNT = (
    ("S_f", "32", "32"),
    ("acc_o", "16", "16"),
    ("Gam", "32", "0"),
    ("A", "32", "32"),
    ("Amat", "32", "32"),
    ("Ep/Em", None, "128"),
    ("W", None, "64"),
    ("Delta/Vt", "16", "16"),
)


def registers(fragments: Fragments, chunk: int = C) -> dict[str, float]:
    """Registers a thread of each fragment, at `chunk` tokens and the article's other sizes."""
    sizes = {"C": chunk, "DK": DK, "bDV": DV_BLOCK, "1": 1}
    return {name: many * sizes[r] * sizes[s] / THREADS for name, (r, s, many) in fragments.items()}


def usable_chunk(fragments: Fragments) -> int:
    """The longest chunk, a power of two, whose fragments fit the registers of a thread."""
    fitting = [n for n in (16, 32, 64, 128, 256) if sum(registers(fragments, n).values()) <= MOST_REGISTERS]
    return max(fitting)


def rows() -> Iterator[TableRow]:
    """The figures of sections 1.1, 4.0, 4.1, 4.2, 5 and 6; none of them depends on a draw."""
    yield from _exponentials()
    yield from _registers()
    yield from _widths()
    yield from _tables()
    yield from _chunks()


def _exponentials() -> Iterator[TableRow]:
    pairs = int(np.tri(C, k=-1).sum())
    size = f"C = {C}, DK = {DK}"
    what = f"weighted inner products of M written pairwise, C = {C}"
    yield TableRow("1.1 products", "1.1", what, "2016", float(pairs))
    yield TableRow("1.1 exponentials", "1.1", f"exponentials of M written pairwise, {size}", "2.6e5", float(pairs * DK))
    what = f"exponentials of each sign once the exponent is split, {size}"
    yield TableRow("4.2 exponentials", "4.2", what, "8192", float(C * DK))
    what = f"exponentials in all once the exponent is split, {size}"
    yield TableRow("6 exponentials", "6", what, "8192", float(2 * C * DK))


def _registers() -> Iterator[TableRow]:
    unit = "registers a thread"
    gdn, kda = registers(GDN), registers(KDA)
    for name, of_gdn, of_kda in _ACCOUNT:
        for kernel, article, ours in (("Gated DeltaNet", of_gdn, gdn), ("KDA", of_kda, kda)):
            if article is not None:
                what = f"fragment {name} of {kernel}, {SIZES}"
                yield TableRow(f"4.0 {kernel} {name}", "4.0", what, article, ours.get(name, 0.0), unit)
    totals = (
        ("Gated DeltaNet", "all fragments of Gated DeltaNet", "160", sum(gdn.values())),
        ("KDA", "all fragments of KDA", "320", sum(kda.values())),
        ("Em shared", "saved by e^-gamma in shared memory", "64", kda["Ep/Em"] / 2),
        ("W shared", "saved by W in shared memory", "64", kda["W"]),
        ("both shared", "KDA with both in shared memory", "192", sum(registers(KDA_SHARED).values())),
    )
    for key, what, article, registers_ in totals:
        yield TableRow(f"4.0 total {key}", "4.0", f"{what}, {SIZES}", article, registers_, unit)
    what = f"size of a [C, DK] fragment over that of a [C, C] one, C = {C}, DK = {DK}"
    yield TableRow("4.0 C DK over C C", "4.0", what, "2", kda["W"] / kda["A"])
    what = "what is left of a [C, C] fragment when C goes from 64 to 32"
    yield TableRow("4.0 C to 32", "4.0", what, "0.5", registers(KDA, 32)["A"] / kda["A"])
    what = f"fragments that section 4.1 declares, against the account's 192, {SIZES}"
    yield TableRow("4.1 listing", "4.1", what, "192", sum(registers(LISTING).values()), unit)


def _widths() -> Iterator[TableRow]:
    unit = "columns"
    what = "numbers each step of the prefix sum over a chunk makes, {}"
    yield TableRow("5 prefix GDN", "5", what.format("Gated DeltaNet"), "1", 1.0, unit)
    yield TableRow("5 prefix KDA", "5", what.format(f"KDA, DK = {DK}"), "128", float(DK), unit)
    what = f"columns that the forward substitution solves at once, {{}}, block_DV = {DV_BLOCK}"
    yield TableRow("5 solve GDN", "5", what.format("Gated DeltaNet"), "32", float(DV_BLOCK), unit)
    yield TableRow("5 solve KDA", "5", what.format(f"KDA, DK = {DK}"), "160", float(DK + DV_BLOCK), unit)


def _tables() -> Iterator[TableRow]:
    for name, fragments, article in (
        ("linear attention", LINEAR, "1"),
        ("scalar decay", SCALAR, "2"),
        ("Gated DeltaNet", GDN, "3"),
        ("KDA", KDA, "2"),
    ):
        what = f"[C, C] fragments of {name}"
        yield TableRow(f"5 tables {name}", "5", what, article, _count(fragments, "C", "C"), "fragments")
    yield TableRow("5 tables KDA C DK", "5", "[C, DK] fragments of KDA", "3", _count(KDA, "C", "DK"), "fragments")


def _chunks() -> Iterator[TableRow]:
    for key, name, fragments, article in (
        ("linear", "linear attention", LINEAR, "128"),
        ("scalar", "scalar decay", SCALAR, "128"),
        ("GDN", "Gated DeltaNet", GDN, "64"),
        ("KDA", "KDA with e^-gamma and W in shared memory", KDA_SHARED, "64"),
    ):
        what = f"longest chunk, a power of two, whose fragments stay within {MOST_REGISTERS} registers, {name}"
        yield TableRow(f"5 usable C {key}", "5", what, article, float(usable_chunk(fragments)), "tokens")
    least = float(np.exp(-gate_domain(F16, C).per_token))
    word = "suffices" if least <= 0.9 else "does not suffice"
    what = f"whether a gate bound of 0.9 keeps every gate inside float16's domain, C = {C}"
    yield TableRow("5 gate bound", "5", what, "suffices", word, note=f"a bound of {least:.4g} is enough")


def _count(fragments: Fragments, r: str, s: str) -> float:
    return float(sum(many for row, column, many in fragments.values() if (row, column) == (r, s)))
