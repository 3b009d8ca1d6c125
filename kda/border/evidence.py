"""How tight the gate domain is: adversarial gates just inside hold their budget, and just outside a case breaks.

Each format, chunk length and sub-chunk length is a row. Its kernel is stood for by the mirror with the same split (our
kernel has the mirror's bits on a CPU); every case is a line that `kda check LINE --impl IMPL --unchecked` runs again.
The table is in docs/gate-domain.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from kda.case import Case, Edit
from kda.formats import BF16, F16, F32, Format
from kda.implementations import implementation
from kda.numerics.compare import compare
from kda.numerics.domain import GateDomain, gate_domain
from kda.suite import laws

__all__ = [
    "CHUNKS",
    "FORMATS",
    "SUB_CHUNKS",
    "Found",
    "Row",
    "Subject",
    "adversarial",
    "breaking",
    "breaking_case",
    "domains",
    "mirror_of",
    "overflowing",
    "row",
]

#: What the table has a row of each of.
FORMATS = (F16, BF16, F32)
CHUNKS = (16, 32, 64, 128)
SUB_CHUNKS = (None, 16, 32, 64)

#: Gates this much inside the border: what float32 loses in a sum of 128 equal gates is less.
INSIDE = 1 - 1e-4

# The tile of the mirrors' palette for each chunk length.
_SIZES = {16: (16, 16), 32: (32, 16), 64: (32, 32), 128: (16, 16)}

# The shallowest gate found, by 30,000 random cases per format, whose budget does not hold. One deep gate, then keys
# that all point one way: M is e^gamma e^-gamma = 1 between them, with e^gamma rounded nearly half a subnormal wrong
# (not so nearly that another machine's 2^x would turn it round). No such case was found for float32, whose budget has
# room for the two bits that are lost before overflow: there, overflow.
_BREAKING = {
    F16: "v1,N=5,gate=spike:0:-10.88131,beta=constant:2.0,q=zeros,k=zeros,"
    "edits=k:0.0:-1.0/k:1.0:1.0/k:2.0:1.0/k:3.0:1.0/k:4.0:-1.0/v:0:1.0/v:1:-1.0/v:2:-1.0/v:3:2.0/v:4:2.0/q:3.0:1.0",
    BF16: "v1,N=6,dtype=bf16,gate=spike:0:-88.4386,beta=constant:2.0,q=zeros,k=zeros,"
    "edits=k:0.0:-1.0/k:1.0:1.0/k:2.0:1.0/k:3.0:1.0/k:4.0:1.0/k:5.0:1.0/"
    "v:0:-1.0/v:1:-1.0/v:2:0.0/v:3:2.0/v:4:0.0/v:5:0.0/q:2.0:1.0",
    F32: "v1,N=2,dtype=f32,gate=spike:0:-88.75,q=equal,k=equal",
}


@dataclass(frozen=True)
class Subject:
    """What stands for the kernels with a domain: an implementation by name, and where it runs."""

    impl: str
    target: str = "c"

    def takes(self, domain: GateDomain) -> bool:
        """Whether it is a kernel with this domain: its format, its chunk length, its way to split the exponent."""
        made = implementation(self.impl).unchecked()
        if made is None or domain.dtype not in made.dtypes(self.target):
            return False
        support = made.support(self.target, domain.dtype)
        return support.sub_C == domain.sub_C and support.refuses(_sized(domain, Case(dtype=domain.dtype))) is None

    def ratio(self, case: Case) -> float:
        """The worst ratio error / budget of `case`; whether its gate is inside the domain is not asked."""
        made = implementation(self.impl).unchecked()
        assert made is not None, f"{self.impl} cannot run unchecked"
        subject = laws.Subject(made, self.target, case.dtype)
        inputs = case.inputs()
        judged = subject.judge(inputs, case.tile)
        return max(v.ratio for v in compare(subject.run(inputs, case.tile), judged.outputs, judged.budget))


@dataclass(frozen=True)
class Found:
    """A case, its worst ratio error / budget where nothing is refused, and the |gamma| that it reaches."""

    ratio: float
    case: Case
    total: float


@dataclass(frozen=True)
class Row:
    """One line of the table.

    domain: what is refused and what is not. on: what computed it. inside: the worst of `cases` adversarial cases at the
    border. outside: a case a little beyond it that breaks its budget. overflow: a constant gate whose k e^-gamma is
    infinite.
    """

    domain: GateDomain
    on: Subject
    cases: int
    inside: Found
    outside: Found
    overflow: Found

    @property
    def holds(self) -> bool:
        """Whether every case inside is within its budget and both cases outside are not."""
        return self.inside.ratio <= 1 < min(self.outside.ratio, self.overflow.ratio)


def mirror_of(domain: GateDomain) -> Subject:
    """The mirror of a kernel with this domain."""
    return Subject("mirror" if domain.window == domain.C else f"mirror_sub{domain.window}")


def adversarial(domain: GateDomain, seed: int, total: float | None = None) -> Case:
    """A case that reaches the border (or `total`), in one of the ways in which a gate can; by `seed`.

    Constant, one token, one token in two halves, one channel beside open ones, every other channel; with keys that lie
    alike and keys that do not, beta up to 2, and token counts around the window and the chunk.
    """
    draw = random.Random(seed)
    reach = domain.total * INSIDE if total is None else total
    window = domain.window
    N = draw.choice((2, 3, 4, 5, window - 1, window, window + 1, domain.C, domain.C + 1, 2 * domain.C + 1))
    kinds = {
        "beta": draw.choice(("one", "constant:2.0", "constant:0.5", "alternating:2.0:1.0", "near1")),
        "q": draw.choice(("equal", "gauss", "positive", "onehot")),
        "k": draw.choice(("equal", "sign", "parallel:0.01", "positive", "onehot", "onehot_random", "gauss")),
        "v": draw.choice(("ones", "small_int:2", "gauss", "onehot")),
        "state": draw.choice(("none", "none", "gauss", "large:64.0")),
    }
    edits = []
    if N <= 6 and draw.random() < 0.5:  # keys of one channel: all of M is e^gamma e^-gamma
        kinds["k"] = "zeros"
        edits += [Edit("k", (t, 0), draw.choice((1.0, 1.0, -1.0))) for t in range(N)]
    edits += [Edit("v", (draw.randrange(N),), draw.choice((0.0, -1.0, 2.0))) for _ in range(draw.choice((0, 0, 1, 2)))]
    at = min(draw.choice((0, 1, window - 1, window, N - 1)), N - 1)
    form = draw.choice(("edge", "token", "halves", "channel", "alternating", "decay"))
    if form == "edge":
        gate = f"edge:{reach!r}:{window}"
    elif form == "token":
        gate = f"spike:{at}:{-_float32(reach)!r}"
    elif form == "alternating":
        gate = f"alternating:{-_float32(reach / window)!r}"
    elif form == "decay":
        gate = f"channel:{min(exp(-reach / window) * (1 + 1e-6), 1.0)!r}:1.0"
    else:
        gate = "none"
        other = min(at + draw.choice((0, 1)), N - 1) if form == "halves" else at
        last = at // window * window + window - 1  # both halves in one window
        channel = () if form == "halves" else (draw.randrange(16),)
        share = reach / 2 if min(other, last) != at else reach
        edits += [Edit("g", (t, *channel), -_float32(share)) for t in dict.fromkeys((at, min(other, last)))]
    return _sized(domain, Case(N=N, gate=gate, seed=draw.randrange(2**16), dtype=domain.dtype, **kinds), tuple(edits))  # type: ignore[arg-type]


def breaking_case(dtype: Format) -> Case:
    """A case a little outside the domain of `dtype` that breaks its budget, whatever the tile."""
    return Case.parse(_BREAKING[dtype])


def breaking(domain: GateDomain, on: Subject | None = None) -> Found:
    """The case a little outside the domain that breaks its budget (on the mirror, unless said)."""
    case = _sized(domain, breaking_case(domain.dtype))
    return Found((on or mirror_of(domain)).ratio(case), case, -case.gate.params[1])


def overflowing(domain: GateDomain, on: Subject | None = None) -> Found:
    """A constant gate at which k e^-gamma overflows at the last token of the window, 0.1 % beyond `domain.overflow`."""
    total = domain.overflow * 1.001
    case = Case(N=domain.window, gate=f"log:{-total / domain.window!r}", q="equal", dtype=domain.dtype)  # type: ignore[arg-type]
    case = _sized(domain, case)
    return Found((on or mirror_of(domain)).ratio(case), case, total)


def row(domain: GateDomain, cases: int, on: Subject | None = None) -> Row:
    """One line of the table, from `cases` adversarial cases (on the mirror, unless said)."""
    on = on or mirror_of(domain)
    found = [adversarial(domain, seed) for seed in range(cases)]
    ratios = [on.ratio(case) for case in found]
    worst = int(np.argmax(ratios))
    inside = Found(ratios[worst], found[worst], domain.total * INSIDE)
    return Row(domain, on, cases, inside, breaking(domain, on), overflowing(domain, on))


def domains(formats: Sequence[Format] = FORMATS, chunks: Sequence[int] = CHUNKS) -> Iterator[GateDomain]:
    """The domains of the table: every format, chunk length and sub-chunk length."""
    return (gate_domain(dtype, C, sub_C) for dtype in formats for C in chunks for sub_C in SUB_CHUNKS)


def _float32(total: float) -> float:
    """`total` rounded to float32, toward zero."""
    value = np.float32(total)
    return float(value if float(value) <= total else np.nextafter(value, np.float32(0)))


def _sized(domain: GateDomain, case: Case, edits: tuple[Edit, ...] = ()) -> Case:
    DK, DV = _SIZES[domain.C]
    return case.replace(DK=DK, DV=DV, C=domain.C, block_DV=16, edits=(*case.edits, *edits))
