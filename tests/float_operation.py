"""The operation in float32 NumPy, as an implementation: what the laws are tried on, and mistakes to plant in it."""

from collections.abc import Callable

import numpy as np

from kda.formats import BF16, F16, F32, Format
from kda.implementations import PLAIN, Implementation, Memory
from kda.implementations.operation import CHUNK, OperationImplementation
from kda.operation_support import OperationSupport
from kda.problem import Inputs, Outputs, Tile
from kda.references import ref_A, ref_forward
from kda.references.operation import Operation, OperationOutputs
from kda.support import Support

f32 = np.float32
FEW = 64


class FloatOperation(OperationImplementation):
    """Every step is a method, for a mistake to take its place."""

    name, summary = "float32", "the chunkwise form in float32"

    def support(self, target: str) -> OperationSupport:
        return OperationSupport((F16, BF16, F32), max_tokens=80, max_sequences=3)

    def run(self, x: Operation, target: str = "c", poison: float = float("nan")) -> OperationOutputs:
        with np.errstate(all="ignore"):
            return self.computed(x, poison)

    def computed(self, x: Operation, poison: float) -> OperationOutputs:
        head = self.heads(x)
        q, k = (self.rows(x, getattr(x, name).astype(f32))[:, :, head] for name in ("q", "k"))
        q, k, v, g, beta = (a.reshape(-1, *a.shape[2:]) for a in (q, k, x.v.astype(f32), self.gate(x), self.beta(x)))
        o = np.full(v.shape, poison)
        state = self.initial(x)
        for sequences, tokens in self.parts(x):
            arrays = [a[tokens].astype(float) for a in (q, k, v, g, beta)]
            o[tokens], state[sequences] = self.recurrence(x, *arrays, state[sequences])
        kept = self.final(x, state) if x.output_final_state else None
        return OperationOutputs(o.reshape(x.v.shape), kept, x.state_v_first)

    def parts(self, x: Operation):
        """(sequences, tokens `[M, N]`), each alone where they are few, else those of one length together."""
        lengths = np.diff(x.starts)
        if len(lengths) <= FEW:
            return [([s], self.tokens(x, s)[None]) for s in np.flatnonzero(lengths)]
        alike = (np.flatnonzero(lengths == n) for n in np.unique(lengths[lengths > 0]))
        groups = [group[i : i + 1024] for group in alike for i in range(0, len(group), 1024)]
        return [(group, np.stack([self.tokens(x, s) for s in group])) for group in groups]

    def tokens(self, x: Operation, s: int) -> np.ndarray:
        return np.arange(x.starts[s], x.starts[s + 1])

    def recurrence(self, x: Operation, q, k, v, g, beta, state):
        if not all(np.isfinite(a).all() for a in (q, k, v, g, beta, state)):  # filled with NaN by a law, or a mistake
            return np.nan, np.nan
        outputs = ref_forward(Inputs(q, k, v, g, beta, state, dtype=F32), CHUNK, 16, F32)
        return self.stored(x, outputs.o), outputs.final_state

    def stored(self, x: Operation, o: np.ndarray) -> np.ndarray:
        return x.dtype.round((f32(x.factor) * o.astype(f32)).astype(float))

    def rows(self, x: Operation, rows: np.ndarray) -> np.ndarray:
        if not x.normalise:
            return rows
        total = (rows * rows)[..., ::-1].cumsum(-1, dtype=f32)[..., -1:]  # from the last channel on
        return x.dtype.round((rows * (f32(1) / self.root(total))).astype(float)).astype(f32)

    def root(self, total: np.ndarray) -> np.ndarray:
        return np.sqrt(total + f32(1e-6))

    def gate(self, x: Operation) -> np.ndarray:
        g = x.g.astype(f32)
        if x.gate == "log":
            return g
        raw = g if x.dt_bias is None else g + self.bias(x)
        a = f32(1) if x.A_log is None else np.exp(x.A_log.astype(f32))[:, None]
        if x.gate == "softplus":
            return -a * self.softplus(raw)
        return f32(x.lower_bound) * self.sigmoid(a * raw)

    def bias(self, x: Operation) -> np.ndarray:
        return x.dt_bias.astype(f32)

    def softplus(self, raw: np.ndarray) -> np.ndarray:
        return np.maximum(raw, f32(0)) + np.log1p(np.exp(-np.abs(raw)))

    def sigmoid(self, raw: np.ndarray) -> np.ndarray:
        return f32(1) / (f32(1) + np.exp(-raw))

    def beta(self, x: Operation) -> np.ndarray:
        beta = x.beta.astype(f32)
        if x.rate == "value":
            return beta
        return self.sigmoid(beta) * f32(2 if x.rate == "doubled" else 1)

    def heads(self, x: Operation) -> np.ndarray:
        return np.arange(x.v.shape[2]) // x.groups

    def initial(self, x: Operation) -> np.ndarray:
        return x.states()

    def final(self, x: Operation, state: np.ndarray) -> np.ndarray:
        return state.swapaxes(-1, -2) if x.state_v_first else state


class Holder(Implementation):
    """An implementation around which one operation is computed."""

    name, summary = "holder", "an operation under test"

    def __init__(self, operation: OperationImplementation | None = None) -> None:
        self._operation = operation or FloatOperation()

    def operations(self) -> tuple[OperationImplementation, ...]:
        return (self._operation,)

    def dtypes(self, target: str) -> tuple[Format, ...]:
        return (F16, BF16, F32)

    def support(self, target: str, dtype: Format) -> Support:
        return Support(dtypes=(dtype,))

    def run(self, inputs: Inputs, tile: Tile, target: str, memory: Memory = PLAIN) -> Outputs:
        return ref_A(inputs)


def with_mistake(**methods: Callable) -> FloatOperation:
    """The operation with some of its steps replaced."""
    return type("Mistaken", (FloatOperation,), {"name": "mistaken", **methods})()


FLOAT = FloatOperation()
