"""Three ways to solve (I + L) X = R, the triangular system of a chunk, and how far each ends up from the solution.

L `[..., C, C]` is strictly lower, R `[..., C, n]` is [K e^gamma | V] (article, 3.2). Kernels solve it by

    forward substitution    x_c = r_c - sum_{i<c} L[c,i] x_i
    blocks                  T = (I + L)^-1, small diagonal blocks by substitution, merged two by two; X = T R
    a doubling product      T = (I + N)(I + N^2)(I + N^4)..., N = -L; X = T R

All three are exact on paper. Here they run in one operand format: what is stored between products is rounded to it, as
are the operands of the products; sums are float32. docs/solve.md says which of them to use, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kda.formats import F32, Format
from kda.problem import Inputs
from kda.references.arithmetic import Arithmetic

__all__ = [
    "BLOCK",
    "SOLVERS",
    "SolveError",
    "blockwise",
    "doubling_product",
    "exact_solution",
    "forward_substitution",
    "power_sizes",
    "skeel_scale",
    "solve_error",
    "system",
]

#: Rows of the diagonal blocks that `blockwise` inverts by substitution; tensor cores multiply tiles of 16.
BLOCK = 16

#: `(L, R, precision)` to X.
Solver = Callable[[np.ndarray, np.ndarray, Format], np.ndarray]


def forward_substitution(L: np.ndarray, R: np.ndarray, precision: Format) -> np.ndarray:
    """X by x_c = r_c - sum_{i<c} L[c,i] x_i, row after row; L and every finished x_c are stored in `precision`.

    L: `[..., C, C]` strictly lower, R: `[..., C, n]`; X: `[..., C, n]`, float64. In float32 these are the operations of
    the kernel and its mirror (article, 4.3).
    """
    machine = Arithmetic(precision)
    stored, X = machine.op(L.astype(machine.accum)), R.astype(machine.accum)
    for i in range(L.shape[-1]):
        X[..., i, :] = machine.op(X[..., i, :])
        X[..., i + 1 :, :] -= stored[..., i + 1 :, i, None] * X[..., i, None, :]
    return X.astype(np.float64)


def blockwise(L: np.ndarray, R: np.ndarray, precision: Format) -> np.ndarray:
    """X = T R, with T = (I + L)^-1 merged from the inverses of its diagonal blocks of `BLOCK` rows.

    Shapes as in `forward_substitution`. The blocks are inverted by substitution in float32 (float64 where `precision`
    is) and then stored in `precision`.
    """
    machine = Arithmetic(precision)
    T = _merged_inverse(L.astype(machine.accum), machine)
    return _applied(T, R, machine)


def _merged_inverse(L: np.ndarray, machine: Arithmetic) -> np.ndarray:
    C = L.shape[-1]
    if C <= BLOCK:
        wide = F32 if machine.accum is np.float32 else machine.precision
        T = forward_substitution(L, np.broadcast_to(np.eye(C), L.shape), wide)
        return machine.op(T.astype(machine.accum))
    half = -(-C // (2 * BLOCK)) * BLOCK
    # [I + L1, 0; L21, I + L2]^-1 = [T1, 0; -T2 L21 T1, T2]
    T = np.zeros_like(L)
    T1 = T[..., :half, :half] = _merged_inverse(L[..., :half, :half], machine)
    T2 = T[..., half:, half:] = _merged_inverse(L[..., half:, half:], machine)
    T[..., half:, :half] = -_product(_product(T2, machine.op(L[..., half:, :half]), machine), T1, machine)
    return T


def doubling_product(L: np.ndarray, R: np.ndarray, precision: Format) -> np.ndarray:
    """X = T R with T = (I + N)(I + N^2)(I + N^4)..., N = -L: ceil(log2 C) factors, since N^C = 0.

    Shapes as in `forward_substitution`. Every power and every partial product is stored in `precision`.
    """
    machine = Arithmetic(precision)
    N = machine.op(-L.astype(machine.accum))
    T = np.eye(L.shape[-1], dtype=machine.accum) + N
    for _ in range((L.shape[-1] - 1).bit_length() - 1):
        N = _product(N, N, machine)
        T = machine.op(machine.gemm(T, N, T))
    return _applied(T, R, machine)


def _product(a: np.ndarray, b: np.ndarray, machine: Arithmetic) -> np.ndarray:
    return machine.op(machine.gemm(a, b, machine.zeros(*a.shape[:-1], b.shape[-1])))


def _applied(T: np.ndarray, R: np.ndarray, machine: Arithmetic) -> np.ndarray:
    return _product(T, machine.op(R.astype(machine.accum)), machine).astype(np.float64)


#: Every solver, by the name that tables and plots give it.
SOLVERS: dict[str, Solver] = {
    "substitution": forward_substitution,
    "blocks": blockwise,
    "doubling": doubling_product,
}


def system(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """(L, R) of `inputs` as one chunk of N tokens: L `[B, H, N, N]`, R `[B, H, N, DK + DV]`, as float32 holds them.

    L[c,i] = beta_i (k_c e^(gamma_c - gamma_i)) . k_i for i < c, R = [K e^gamma | V]. (float64 where `inputs` are.)
    """
    k, v, g = (np.moveaxis(x, 2, 1) for x in (inputs.k, inputs.v, inputs.g))
    beta = np.moveaxis(inputs.beta, 2, 1)
    gamma = np.cumsum(g, axis=-2)
    L = np.zeros((*beta.shape, beta.shape[-1]))
    for c in range(1, beta.shape[-1]):
        # Only differences <= 0 are exponentiated.
        decayed = k[..., c, None, :] * np.exp(gamma[..., c, None, :] - gamma[..., :c, :])
        L[..., c, :c] = beta[..., :c] * (decayed * k[..., :c, :]).sum(-1)
    R = np.concatenate([k * np.exp(gamma), v], axis=-1)
    return inputs.gate_dtype.round(L), inputs.gate_dtype.round(R)


def exact_solution(L: np.ndarray, R: np.ndarray) -> np.ndarray:
    """X of (I + L) X = R by forward substitution in float64."""
    X = R.copy()
    for i in range(L.shape[-1]):
        X[..., i + 1 :, :] -= L[..., i + 1 :, i, None] * X[..., i, None, :]
    return X


def skeel_scale(L: np.ndarray, X: np.ndarray) -> np.ndarray:
    """|T| |I + L| |X|, `[..., C, n]`: by how much X may move, per unit of relative change in every entry of I + L.

    A solver that is exact for some L whose entries are each off by a factor of 1 + O(u), as substitution is, errs by
    O(u) of this and no more (Skeel's condition; Higham, Accuracy and Stability of Numerical Algorithms, 7.2 and 8.2).
    """
    eye = np.eye(L.shape[-1])
    T = exact_solution(L, np.broadcast_to(eye, L.shape))
    return np.abs(T) @ (np.abs(eye + L) @ np.abs(X))


@dataclass(frozen=True)
class SolveError:
    """How far a solver is from X, for every system of a stack `[...]`; inf where it overflowed.

    units: the 2-norm of the error of a row over u and over that row of `skeel_scale`, the worst row; of the order of 1
    where the solver is as good as the format. relative: the largest 2-norm of the error of a row, over the largest
    2-norm of a row of X.
    """

    units: np.ndarray
    relative: np.ndarray


def solve_error(solver: Solver, L: np.ndarray, R: np.ndarray, precision: Format) -> SolveError:
    """The error of `solver` on L `[..., C, C]`, R `[..., C, n]` with operands in `precision`."""
    with np.errstate(all="ignore"):
        got = solver(L, R, precision)
    X = exact_solution(L, R)
    row = np.linalg.norm(np.where(np.isfinite(got), got, np.inf) - X, axis=-1)
    scale = np.linalg.norm(skeel_scale(L, X), axis=-1) * precision.unit_roundoff
    units = np.divide(row, scale, out=np.zeros_like(row), where=row > 0)
    return SolveError(units.max(-1), row.max(-1) / np.linalg.norm(X, axis=-1).max(-1))


def power_sizes(L: np.ndarray) -> np.ndarray:
    """The largest |entry| of N^k, N = -L, for k = 0..C-1: `[C]`, for one system L `[C, C]`.

    With equal unit keys, beta = 1 and no decay every entry of -N below the diagonal is 1, and
    N^k[c,i] = (-1)^k binomial(c - i - 1, k - 1): at most binomial(C - 2, k - 1).
    """
    power = np.eye(L.shape[-1])
    sizes = []
    for _ in range(L.shape[-1]):
        sizes.append(np.abs(power).max())
        power = -power @ L
    return np.array(sizes)
