"""The operation that people call, in float64: raw q, k, g and beta, packed sequences, grouped heads, two state layouts.

    q, k <- x / sqrt(|x|^2 + 1e-6), rounded to the operand format       where they are to be normalised
    g    <- -e^A_log softplus(g + dt_bias)                              gate "softplus"
            lower_bound sigmoid(e^A_log (g + dt_bias))                  gate "bounded"
    beta <- sigmoid(beta), or twice that                                rate "logits", "doubled"
    o, S <- reference A of every sequence, value head h with the q and k of head h // (HV / H)
    o    <- scale o

Nothing is rounded but q and k: a kernel that rounds anything else must stay within its budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from kda.formats import F32, F64, Format
from kda.problem import InputError, Inputs, Outputs, Sizes
from kda.references.recurrent import ref_A_fast

__all__ = [
    "NORM_EPS",
    "Operation",
    "OperationOutputs",
    "Part",
    "as_asked",
    "inputs_of",
    "parts",
    "processed",
    "ref_operation",
]

#: What is added to |x|^2, so that a row of zeros stays one.
NORM_EPS = 1e-6
_GATES = ("log", "softplus", "bounded")
_RATES = ("value", "logits", "doubled")


@dataclass(frozen=True)
class Operation:
    """One call, in float64 arrays whose values are representable in the formats they stand for.

    q, k: `[B, N, H, DK]` and v: `[B, N, HV, DV]` in `dtype`, HV a multiple of H. g: `[B, N, HV, DK]` in `g_dtype` and
    beta: `[B, N, HV]` in `beta_dtype`, raw where `gate` and `rate` say so. initial_state: `[S, HV, DK, DV]`, or
    `[S, HV, DV, DK]` where `state_v_first`; None for zeros. cu_seqlens: `[S + 1]`, where each of S sequences starts
    among the tokens of B = 1; None: S = B sequences of N tokens. A_log: `[HV]`, dt_bias: `[HV, DK]`, or None.
    scale multiplies q; None for DK^-0.5.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    initial_state: np.ndarray | None = None
    cu_seqlens: np.ndarray | None = None
    A_log: np.ndarray | None = None
    dt_bias: np.ndarray | None = None
    lower_bound: float | None = None
    scale: float | None = None
    gate: str = "log"
    rate: str = "value"
    normalise: bool = False
    state_v_first: bool = False
    output_final_state: bool = True
    dtype: Format = F64
    g_dtype: Format = F32
    beta_dtype: Format = F32

    @property
    def sizes(self) -> Sizes:
        """The sizes with the value heads, read off v and k."""
        B, N, HV, DV = self.v.shape
        return Sizes(B, N, HV, self.k.shape[-1], DV)

    @property
    def groups(self) -> int:
        """HV / H: how many value heads read one head of q and k."""
        return self.v.shape[2] // self.k.shape[2]

    @property
    def starts(self) -> np.ndarray:
        """Where each sequence starts among the flattened tokens, and where the last one ends, `[S + 1]`."""
        if self.cu_seqlens is not None:
            return np.asarray(self.cu_seqlens, dtype=np.int64)
        B, N = self.k.shape[:2]
        return np.arange(B + 1) * N

    @property
    def factor(self) -> float:
        """The scale, in float32."""
        scale = self.k.shape[-1] ** -0.5 if self.scale is None else self.scale
        return float(np.float32(scale)) if self.dtype is not F64 else scale

    def replace(self, **changes: object) -> Operation:
        """A copy with some fields exchanged."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def states(self) -> np.ndarray:
        """A fresh copy of the initial states, key channel first; zeros where there are none."""
        sizes = self.sizes
        if self.initial_state is None:
            return np.zeros((len(self.starts) - 1, sizes.H, sizes.DK, sizes.DV))
        return np.array(self.initial_state.swapaxes(-1, -2) if self.state_v_first else self.initial_state)

    def check(self) -> None:
        """InputError: shapes that disagree, a field that is missing, a value of a sequence that cannot be computed."""
        self._check_shapes()
        self._check_fields()
        used = np.zeros(self.k.shape[:2], dtype=bool).reshape(-1)
        used[: self.starts[-1]] = True
        for name in ("q", "k", "v", "g", "beta", "initial_state", "A_log", "dt_bias"):
            array = getattr(self, name)
            if array is None:
                continue
            tokens = name in ("q", "k", "v", "g", "beta")
            rows = array.reshape(-1, *array.shape[2:])[used] if tokens else array
            if not np.isfinite(rows).all():
                raise InputError(f"{name} is not finite in {int((~np.isfinite(rows)).sum())} places; expected numbers")
            if name == "g" and self.gate == "log" and (rows > 0).any():
                raise InputError(f"g is {rows.max():.6g}; the gate is a natural logarithm and must be <= 0")
            if name == "beta" and self.rate == "value" and ((rows < 0) | (rows > 2)).any():
                raise InputError(f"beta is between {rows.min():.6g} and {rows.max():.6g}; expected 0 <= beta <= 2")

    def _check_shapes(self) -> None:
        B, N, H, DK = self.k.shape
        HV, DV = self.v.shape[2:]
        if HV % H:
            raise InputError(f"v has {HV} heads and k has {H}; expected a multiple of {H}")
        if self.cu_seqlens is not None:
            starts = self.starts
            if B != 1:
                raise InputError(f"B is {B}; expected 1 beside cu_seqlens")
            if len(starts) < 2 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > N:
                raise InputError(f"cu_seqlens is {starts.tolist()}; expected to ascend from 0 to at most N = {N}")
        state = (DV, DK) if self.state_v_first else (DK, DV)
        expected = {
            "q": (B, N, H, DK),
            "v": (B, N, HV, DV),
            "g": (B, N, HV, DK),
            "beta": (B, N, HV),
            "initial_state": (len(self.starts) - 1, HV, *state),
            "A_log": (HV,),
            "dt_bias": (HV, DK),
        }
        for name, shape in expected.items():
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise InputError(f"{name} has shape {array.shape}; expected {shape}, to agree with k and v")

    def _check_fields(self) -> None:
        for name, value, known in (("gate", self.gate, _GATES), ("rate", self.rate, _RATES)):
            if value not in known:
                raise InputError(f"{name} is {value!r}; expected one of {', '.join(known)}")
        if self.gate == "softplus" and self.A_log is None:
            raise InputError("A_log is None; expected one for gate softplus")
        if self.gate == "bounded" and (self.lower_bound is None or not -np.inf < self.lower_bound < 0):
            raise InputError(f"lower_bound is {self.lower_bound}; expected a number below 0 for gate bounded")
        if not isfinite(self.factor):
            raise InputError(f"scale is {self.scale}; expected a number")


@dataclass(frozen=True)
class OperationOutputs:
    """What a call gives.

    o: `[B, N, HV, DV]`, NaN in the tokens of no sequence, which nobody may write. final_state: `[S, HV, DK, DV]`, or
    `[S, HV, DV, DK]` where `state_v_first`; None where it was not asked for.
    """

    o: np.ndarray
    final_state: np.ndarray | None
    state_v_first: bool = False

    def plain(self) -> Outputs:
        """The same for comparisons: key channel first, and an empty state where there is none."""
        if self.final_state is None:
            return Outputs(self.o, np.empty(0))
        state = self.final_state.swapaxes(-1, -2) if self.state_v_first else self.final_state
        return Outputs(self.o, np.ascontiguousarray(state))


@dataclass(frozen=True)
class Part:
    """The sequences of one length, as one problem with plain heads.

    sequences: which, `[M]`. tokens: where theirs are among the flattened tokens, `[M, N]`.
    """

    sequences: np.ndarray
    tokens: np.ndarray

    def of(self, array: np.ndarray) -> np.ndarray:
        """`array` `[B, N, HV, ...]` of the call as `[M, N, HV, ...]` of this part."""
        return array.reshape(-1, *array.shape[2:])[self.tokens]

    def put(self, values: np.ndarray, into: np.ndarray) -> None:
        """Write `values` `[M, N, HV, ...]` of this part to their tokens of `into` `[B, N, HV, ...]`."""
        into.reshape(-1, *into.shape[2:])[self.tokens] = values


def parts(operation: Operation) -> Iterator[Part]:
    """The sequences that have tokens, those of one length together, the shortest first."""
    starts = operation.starts
    lengths = np.diff(starts)
    for length in np.unique(lengths[lengths > 0]):
        sequences = np.flatnonzero(lengths == length)
        yield Part(sequences, starts[sequences, None] + np.arange(length))


def processed(operation: Operation) -> Operation:
    """The same call with q and k normalised, gate and beta activated, and q and k repeated for every value head."""
    # e^-x is infinite where the sigmoid is 0, and tokens of no sequence may hold anything.
    with np.errstate(over="ignore", invalid="ignore"):
        g, beta = _log_gate(operation), _rate(operation)
    q, k = (np.repeat(_normalised(operation, x), operation.groups, axis=2) for x in (operation.q, operation.k))
    settled = {"normalise": False, "gate": "log", "rate": "value", "A_log": None, "dt_bias": None, "lower_bound": None}
    return operation.replace(q=q, k=k, g=g, beta=beta, **settled)


def _normalised(operation: Operation, x: np.ndarray) -> np.ndarray:
    if not operation.normalise:
        return x
    return operation.dtype.round(x / np.sqrt((x * x).sum(-1, keepdims=True) + NORM_EPS))


def _log_gate(operation: Operation) -> np.ndarray:
    if operation.gate == "log":
        return operation.g
    a = 1.0 if operation.A_log is None else np.exp(operation.A_log)[:, None]
    x = operation.g + (0.0 if operation.dt_bias is None else operation.dt_bias)
    if operation.gate == "softplus":
        return -a * np.logaddexp(0.0, x)  # log(1 + e^x)
    assert operation.lower_bound is not None  # checked
    return operation.lower_bound * _sigmoid(a * x)


def _rate(operation: Operation) -> np.ndarray:
    if operation.rate == "value":
        return operation.beta
    return _sigmoid(operation.beta) * (2.0 if operation.rate == "doubled" else 1.0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def inputs_of(plain: Operation, part: Part) -> Inputs:
    """One part of a call that `processed` gave, as a plain problem."""
    q, k, v, g, beta = (part.of(getattr(plain, name)) for name in ("q", "k", "v", "g", "beta"))
    state = None if plain.initial_state is None else plain.states()[part.sequences]
    return Inputs(q, k, v, g, beta, state, dtype=plain.dtype)


def ref_operation(operation: Operation) -> OperationOutputs:
    """The operation, sequence by sequence, by reference A. InputError as in `Operation.check`.

    A sequence without tokens hands its initial state on.
    """
    operation.check()
    plain = processed(operation)
    o = np.full(operation.v.shape, np.nan)
    state = operation.states()
    for part in parts(operation):
        outputs = ref_A_fast(inputs_of(plain, part))
        part.put(operation.factor * outputs.o, o)
        state[part.sequences] = outputs.final_state
    return as_asked(operation, o, state)


def as_asked(operation: Operation, o: np.ndarray, state: np.ndarray) -> OperationOutputs:
    """What the call gives of o and the final states, key channel first: in its layout, without what it leaves out."""
    if not operation.output_final_state:
        return OperationOutputs(o, None)
    turned = np.ascontiguousarray(state.swapaxes(-1, -2)) if operation.state_v_first else state
    return OperationOutputs(o, turned, operation.state_v_first)
