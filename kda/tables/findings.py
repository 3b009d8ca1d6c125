"""Where the article's figures do not come out, and why.

A finding explains one row, for the article's figure and for our numbers as they were when it was made; should either
change, the row is unexplained again.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FINDINGS", "Finding", "explanation"]


@dataclass(frozen=True)
class Finding:
    """article: the figure in question. ours: the word, or the range our numbers must stay in. why: the explanation."""

    article: str
    ours: str | tuple[float, float]
    why: str


FINDINGS: dict[str, Finding] = {
    "1.3 max 0.999": Finding(
        "1.04",
        (1.066, 1.0662),
        "U(0.999, 0.999) is a point, and 0.999^-64 = 1.0661 in every draw. 1.04 needs gates above 0.999; U(0.999, 1) "
        "gives it (next row). The other five figures of the table fit an upper end of 0.999 and of 1 alike.",
    ),
    "2.1 both ends": Finding(
        "fits float16",
        "overflows float16",
        "The table's own min e^gamma_C = 1.72e-6 means max e^-gamma = 5.8e5, nine times float16's 65504. The 55 that "
        "the article sets beside it is of C = 64, where 0.9 does settle both ends: e^-gamma <= 0.9^-64 = 848.",
    ),
    "3.4 beta to 0": Finding(
        "1.21e-27",
        (1e-24, 1e-22),
        "The deletion moves the outputs by the order of beta^2 in exact arithmetic: 5.6e-24 for beta = 1e-12. 1.21e-27 "
        "is what two forms of KDA differ by at that beta (next row: it is the median), rounding and not a distance to "
        "the simpler system; as such a distance it would need beta near 1.5e-14. The article does not give its beta.",
    ),
    "4.0 C to 32": Finding(
        "0.5",
        (0.25, 0.25),
        "Halving C halves the [C, DK] and [C, block_DV] fragments and quarters the [C, C] ones: at C = 32 the account "
        "comes to 160 registers with everything in fragments.",
    ),
    "4.1 listing": Finding(
        "192",
        (224, 225),
        "The listing keeps the cumulative gate (64), a right-hand side (16) and a half-precision copy of A_qk (16) in "
        "fragments, which the account leaves out, and puts e^gamma (64), which the account keeps, into shared memory; "
        "beta adds half a register.",
    ),
    "5 usable C scalar": Finding(
        "128",
        (64, 64),
        "Two [128, 128] tables are 256 registers a thread at 128 threads, one more than there are. 128 needs Gamma out "
        "of the registers (its alpha is known at compile time) or 256 threads.",
    ),
    "6 exponentials": Finding(
        "8192",
        (16384, 16384),
        "C DK = 8192 of each sign, as section 4.2 counts; e^gamma and e^-gamma together are twice that.",
    ),
}


def explanation(key: str, article: str, ours: str | tuple[float, float]) -> str:
    """The finding on row `key` if it is about these very figures (`ours`: a word, or least and largest), else ""."""
    finding = FINDINGS.get(key)
    if finding is None or finding.article != article:
        return ""
    if isinstance(ours, str) or isinstance(finding.ours, str):
        return finding.why if ours == finding.ours else ""
    return finding.why if finding.ours[0] <= ours[0] and ours[1] <= finding.ours[1] else ""
