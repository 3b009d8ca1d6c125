"""What a program of `kda_forward` makes of raw q, k, g and beta before the recurrence, on TileLang expressions.

All in float32. The only exponential is 2^x, as in the rest of the kernel; everything else is sums, products, quotients
and a root, so that `kda.references.prologue` has the same bits.
"""

from __future__ import annotations

from typing import Any

import tilelang.language as T

from kda.kernels.chunk import LOG2_E
from kda.kernels.dialect import ACCUM
from kda.kernels.form import Beta, Gate
from kda.references.prologue import EPSILON, LOG1P_TERMS, NORM_PART

__all__ = ["divide_by_norms", "exp", "log_gate", "normalise", "rate", "sigmoid", "softplus"]


def exp(x: Any) -> Any:
    """e^x."""
    return T.exp2(x * LOG2_E)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x); 0 where e^-x overflows."""
    return 1.0 / (1.0 + exp(-x))


@T.macro
def softplus(x):  # type: ignore[no-untyped-def]
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), which does not overflow.

    With u = e^-|x| <= 1 and z = u / (2 + u) <= 1/3, log(1 + u) = 2 (z + z^3/3 + z^5/5 + ...): as exact for small u as
    for large ones, and without the logarithm of a library.
    """
    u = exp(T.min(x, -x))
    z = u / (2.0 + u)
    z2 = z * z
    series = LOG1P_TERMS[0]
    for term in LOG1P_TERMS[1:]:
        series = series * z2 + term
    return T.max(x, 0.0) + z * series


@T.macro
def log_gate(gate: Gate, x, a, lower_bound):  # type: ignore[no-untyped-def]
    """The natural-log gate of x = g + dt_bias, with a = exp(A_log): see `kda.kernels.form.GATES`."""
    if gate == "softplus":
        return -a * softplus(x)
    return lower_bound * sigmoid(a * x)


def rate(beta: Beta, raw: Any) -> Any:
    """The beta of raw beta: see `kda.kernels.form.BETAS`."""
    if beta == "value":
        return raw
    return sigmoid(raw) if beta == "logits" else 2.0 * sigmoid(raw)


def normalise(on: Any, X: Any, first: Any, tokens: Any, head: Any, scratch: Any, total: Any, X_s: Any) -> None:
    """X_s[r] = x / sqrt(|x|^2 + EPSILON), x = X[first + r, head], zero where r >= tokens.

    scratch: a float32 tile of at least [DK / NORM_PART, C], total: a local one of [1]. The second load of X finds it in
    the cache; X_s is written once, as pipelining demands.
    """

    def loaded(_: int, r: Any, d: Any) -> Any:
        return T.if_then_else(r < tokens, T.Cast(ACCUM, X[first + r, head, d]), 0.0)

    divide_by_norms(on, loaded, scratch, total, (X_s,))


@T.macro
def divide_by_norms(on, value, scratch, total, tiles):  # type: ignore[no-untyped-def]
    """tiles[n][r] = x / sqrt(|x|^2 + EPSILON) rounded to the operand format, x[d] = value(n, r, d) in float32.

    value may read tiles[n][r, d] itself. scratch: a float32 tile of at least [len(tiles) DK / NORM_PART, C], total: a
    local one of [1].
    """
    C, DK = tiles[0].shape
    parts = DK // NORM_PART
    each = tuple(range(len(tiles)))  # a range would be a loop of the program
    for group in T.serial(T.ceildiv(C * parts, on.lanes)):
        item = group * on.lanes + on.lane()
        if item < C * parts:
            for n in each:
                total[0] = 0.0
                for d in on.steps(NORM_PART):
                    x = value(n, item // parts, item % parts * NORM_PART + d)
                    total[0] = total[0] + x * x
                scratch[n * parts + item % parts, item // parts] = total[0]
    for group in T.serial(T.ceildiv(len(tiles) * C, on.lanes)):
        item = group * on.lanes + on.lane()
        if item < len(tiles) * C:
            total[0] = 0.0
            for part in on.steps(parts):
                total[0] = total[0] + scratch[item // C * parts + part, item % C]
            scratch[item // C * parts, item % C] = 1.0 / T.sqrt(total[0] + EPSILON)
    for n in each:
        for r, d in on.parallel(C, DK):
            x = value(n, r, d)
            tiles[n][r, d] = T.Cast(tiles[n].dtype, on.round(x * scratch[n * parts, r]))
