"""How far apart two ways of computing the same thing are (sections 1.2, 3.3 and 3.4), all in float64.

Errors of float64's last digit depend on the order of additions in the matrix products: the ranges move a little between
machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kda.problem import Inputs, Outputs
from kda.references import delta_net, gated_delta_net, per_channel_decay, ref_A, ref_B, ref_C
from kda.tables.draw import TOP, gates, inputs, unit_rows
from kda.tables.row import Sample, TableRow

__all__ = ["rows"]

# Section 3.4; C tokens to a chunk.
B, N, H, D, C = 2, 12, 2, 4, 4
SIZES = f"B = {B}, N = {N}, H = {H}, DK = DV = {D}, C = {C}"

#: Where beta -> 0 is taken. The article does not say; with this one its figure is a rounding error, see `findings`.
TINY = 1e-12


@dataclass(frozen=True)
class _Errors:
    """Of the outputs o of a run of every seed against another."""

    got: Outputs
    expected: Outputs
    seeds: int

    def largest(self) -> Sample:
        """The largest |difference|."""
        return Sample.of(self._by_seed(np.abs(self.got.o - self.expected.o)).max(axis=1))

    def relative(self) -> Sample:
        """|difference| over |expected|, in 2-norms."""
        size = np.linalg.norm(self._by_seed(self.expected.o), axis=1)
        return Sample.of(np.linalg.norm(self._by_seed(self.got.o - self.expected.o), axis=1) / size)

    def _by_seed(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.seeds, -1)


def rows(seeds: int) -> Iterator[TableRow]:
    """The figures of sections 1.2, 3.3 and 3.4."""
    yield _split("1.2 split", 64, 128, "1.94e-16", seeds)
    problem = inputs(seeds, B, N, H, D)
    truth = ref_A(problem)
    yield from _mixed_pairing(problem, truth, seeds)
    yield from _references(problem, truth, seeds)
    yield _split("3.4 split", C, D, "1.11e-16", seeds)
    yield from _pairings(seeds)
    yield from _degenerations(problem, seeds)


def _split(key: str, length: int, DK: int, article: str, seeds: int) -> TableRow:
    """M by the split exponential against M by weighted inner products."""
    k = unit_rows(seeds, "k", length, DK)
    gamma = np.cumsum(np.log(0.9 + (TOP - 0.9) * gates(seeds, length, DK)), axis=1)
    error = np.zeros(seeds)
    M = (k * np.exp(gamma)) @ (k * np.exp(-gamma)).swapaxes(-1, -2)
    for c in range(1, length):
        weighted = k[:, c, None] * np.exp(gamma[:, c, None] - gamma[:, :c])
        pairwise = (weighted[:, :, None] @ k[:, :c, :, None])[..., 0, 0]
        error = np.maximum(error, np.abs(M[:, c, :c] - pairwise).max(axis=1))
    what = f"largest error of M by one matrix product, exponent split, against pairwise sums, C = {length}, DK = {DK}"
    return TableRow(key, key.split(" ")[0], what, article, Sample.of(error))


def _mixed_pairing(problem: Inputs, truth: Outputs, seeds: int) -> Iterator[TableRow]:
    wrong = _Errors(ref_B(problem, C, pairing="mixed"), truth, seeds)
    what = f"relative L2 error of beta multiplied in before the solve while L = beta_i M, against A, {SIZES}"
    yield TableRow("3.3 mixed pairing", "3.3", what, "1.3e-1", wrong.relative())
    equal = problem.replace(beta=np.full_like(problem.beta, 0.5))
    hidden = _Errors(ref_B(equal, C, pairing="mixed"), ref_A(equal), seeds).relative().high < 1e-13
    what = f"the same mistake where every beta is 0.5, {SIZES}"
    yield TableRow("3.3 equal betas", "3.3", what, "invisible", "invisible" if hidden else "visible")


def _references(problem: Inputs, truth: Outputs, seeds: int) -> Iterator[TableRow]:
    chunkwise = _Errors(ref_B(problem, C), truth, seeds)
    mirrors = {width: _Errors(ref_C(problem, C, width), truth, seeds) for width in (1, 2, 4)}
    largest, relative = f"largest error of {{}}, {SIZES}", f"relative L2 error of {{}}, {SIZES}"
    yield TableRow("3.4 B", "3.4", largest.format("B against A"), "3.89e-16", chunkwise.largest())
    yield TableRow("3.4 B relative", "3.4", relative.format("B against A"), "2.46e-16", chunkwise.relative())
    yield TableRow("3.4 C", "3.4", largest.format("C against A"), "4.44e-16", mirrors[D].largest())
    yield TableRow("3.4 C relative", "3.4", relative.format("C against A"), "2.57e-16", mirrors[D].relative())
    for width, article in ((1, "2.48e-16"), (2, "2.57e-16"), (4, "2.57e-16")):
        what = relative.format(f"C with block_DV = {width} against A")
        yield TableRow(f"3.4 block_DV {width}", "3.4", what, article, mirrors[width].relative())


def _pairings(seeds: int) -> Iterator[TableRow]:
    """Both pairings on one chunk: over the twelve tokens, the first is B, whose error the article gives as 3.89e-16."""
    chunk = inputs(seeds, 1, C, 1, D)
    truth = ref_A(chunk)
    first = _Errors(ref_B(chunk, C, pairing="diag_beta_T"), truth, seeds).largest()
    second = _Errors(ref_B(chunk, C, pairing="T_diag_beta"), truth, seeds).largest()
    size = f"one chunk, C = {C}, DK = DV = {D}"
    what = "largest error of {} against A, " + size
    yield TableRow("3.4 diag_beta_T", "3.4", what.format("L = beta_i M with diag(beta) T"), "1.11e-16", first)
    yield TableRow("3.4 T_diag_beta", "3.4", what.format("L = beta_c M with T diag(beta)"), "1.11e-16", second)


def _degenerations(problem: Inputs, seeds: int) -> Iterator[TableRow]:
    what = f"largest distance of C to {{}}, {SIZES}"
    shared = problem.replace(g=np.broadcast_to(problem.g[..., :1], problem.g.shape).copy())
    distance = _Errors(ref_C(shared, C, D), gated_delta_net(shared), seeds).largest()
    yield TableRow("3.4 shared gate", "3.4", what.format("Gated DeltaNet, one gate a token"), "4.44e-16", distance)

    faint = problem.replace(beta=np.full_like(problem.beta, TINY))
    mirror = ref_C(faint, C, D)
    distance = _Errors(mirror, per_channel_decay(faint), seeds).largest()
    yield TableRow("3.4 beta to 0", "3.4", what.format(f"per-channel decay, beta = {TINY:g}"), "1.21e-27", distance)
    distance = _Errors(mirror, ref_A(faint), seeds).largest()
    yield TableRow("3.4 beta to 0, A", "3.4", what.format(f"A instead, beta = {TINY:g}"), "1.21e-27", distance)

    open_gate = problem.replace(g=np.zeros_like(problem.g))
    distance = _Errors(ref_C(open_gate, C, D), delta_net(open_gate), seeds).largest()
    yield TableRow("3.4 no gate", "3.4", what.format("DeltaNet, g = 0"), "4.44e-16", distance)
