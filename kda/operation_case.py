"""An operation as one line of text: lengths, heads, form, how each raw input is made, seed.

    op1,lengths=3.0.65,H=2,groups=4,DK=64,gate=softplus,g=gauss,A_log=model,dt_bias=model,seed=7

`OperationCase.parse(str(case)) == case`, always, and equal cases make the same inputs bit for bit on every machine, as
for `Case`. Sequence s of a packed call has the tokens that it has in a dense one. The page `docs/case-line.md` lists
every field and every kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from math import isfinite
from typing import Any

import numpy as np

from kda import portable
from kda.case import fields_of
from kda.formats import F16, F32, Format, format_named
from kda.generate import gauss, integers, uniform
from kda.kinds import KINDS, CaseError, Ground, Kind, KindSpec, Param, kind_named
from kda.problem import Sizes
from kda.references.operation import Operation

__all__ = ["OPERATION_VERSION", "OperationCase"]

#: The version every line begins with. It changes whenever an existing line would come to mean something else.
OPERATION_VERSION = "op1"

_MOST = 2**31 - 1
_COUNT = re.compile("([0-9]+)(?:x([0-9]+))?")


def _kinds(*specs: tuple[str, tuple[Param, ...], str, object]) -> dict[str, KindSpec]:
    return {name: KindSpec(name, params, about, True, False, make) for name, params, about, make in specs}  # type: ignore[arg-type]


_X = Param("x", -1e4, 1e4)

#: What a raw gate or a logit of beta may be, before it is activated.
RAW: dict[str, KindSpec] = _kinds(
    ("zeros", (), "All zero.", lambda x: 0.0),
    ("constant", (_X,), "The same x everywhere.", lambda x, value: value),
    ("gauss", (Param("s", 0, 1e4, default=1.0),), "Gaussian times s.", lambda x, s: s * gauss(x.rows(), x.width)),
    (
        "small_int",
        (Param("m", 1, 2048, int),),
        "Integers, uniform in -m..m.",
        lambda x, m: integers(x.rows(), x.width, -m, m),
    ),
)
#: What the rows of q and k are multiplied by, which are of unit length else.
ROWS: dict[str, KindSpec] = _kinds(
    ("unit", (), "1.", lambda x: 1.0),
    ("times", (Param("s", 0, 1e4),), "The same s for every row.", lambda x, s: s),
    (
        "wide",
        (Param("e", 0, 12, int),),
        "2^U, U an integer from -e..e per row.",
        lambda x, e: np.ldexp(1.0, integers(x.rows(), 1, -e, e)),
    ),
    (
        "holes",
        (Param("p", 0, 1),),
        "0 with probability p, else 1, per row.",
        lambda x, p: np.where(uniform(x.rows(), 1) < p, 0.0, 1.0),
    ),
)
_UNIT_ROWS = ("unit", "holes")
#: A_log, per value head, and dt_bias, per channel of one.
A_LOGS: dict[str, KindSpec] = _kinds(
    ("none", (), "None is passed.", lambda x: 0.0),
    ("constant", (Param("x", -20, 20),), "The same x for every head.", lambda x, value: value),
    (
        "model",
        (),
        "log A, A from U(1, 16), as models initialise it.",
        lambda x: portable.log(1.0 + 15.0 * uniform(x.layer("gate.A"), 1)),
    ),
)


def _model_bias(x: Ground) -> np.ndarray:
    low, high = portable.log(1e-3), portable.log(0.1)
    dt = portable.exp(low + (high - low) * uniform(x.layer("gate.dt"), x.width))
    return portable.log(portable.exp(dt) - 1.0)


BIASES: dict[str, KindSpec] = _kinds(
    ("none", (), "None is passed.", lambda x: 0.0),
    ("constant", (_X,), "The same x everywhere.", lambda x, value: value),
    ("model", (), "softplus(dt_bias) log-uniform in 1e-3..0.1, as models initialise it.", _model_bias),
)

_NONE, _UNIT, _ONES, _ONEHOT = Kind("none"), Kind("unit"), Kind("ones"), Kind("onehot")


@dataclass(frozen=True)
class OperationCase:
    """One call: sizes, form, how each raw input is made, seed.

    lengths: of the sequences of a packed call, with `tail` tokens of no sequence behind them; None: B sequences of N
    tokens. H heads of q and k, groups value heads for each. dtype, g_dtype, beta_dtype: the formats of q, k and v, of g
    and of beta. gate, rate, normalise, lower_bound, scale: as in `Operation`; v_first, final: state_v_first and
    output_final_state. g: a gate kind of `Case`, or a raw one unless `gate` is log; beta likewise with `rate`. rows:
    what rows of q and k are multiplied by. q, k, v, state: as in `Case`. The constructor raises CaseError for anything
    out of range.
    """

    lengths: tuple[int, ...] | None = None
    B: int = 1
    N: int = 1
    tail: int = 0
    H: int = 1
    groups: int = 1
    DK: int = 16
    DV: int = 16
    dtype: Format = F16
    g_dtype: Format = F32
    beta_dtype: Format = F32
    gate: str = "log"
    rate: str = "value"
    normalise: bool = False
    v_first: bool = False
    final: bool = True
    scale: float | None = None
    lower_bound: float | None = None
    g: Kind | None = None
    A_log: Kind = _NONE
    dt_bias: Kind = _NONE
    beta: Kind | None = None
    q: Kind = _ONEHOT
    k: Kind = _ONEHOT
    rows: Kind = _UNIT
    v: Kind = _ONES
    state: Kind = _NONE
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _INTEGERS.items():
            object.__setattr__(self, name, _integer(name, getattr(self, name), low, high))
        for name in ("normalise", "v_first", "final"):
            object.__setattr__(self, name, bool(_integer(name, getattr(self, name), 0, 1)))
        self._check_lengths()
        for name in ("dtype", "g_dtype", "beta_dtype"):
            try:
                object.__setattr__(self, name, format_named(getattr(self, name)))
            except ValueError as error:
                raise CaseError(f"{name}: {error}") from None
        for name, known in (("gate", ("log", "softplus", "bounded")), ("rate", ("value", "logits", "doubled"))):
            if getattr(self, name) not in known:
                raise CaseError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        for name, kinds in self._kinds().items():
            value: Any = getattr(self, name)
            object.__setattr__(self, name, kind_named(name, self._default(name) if value is None else value, kinds))
        self._check_form()

    def _check_lengths(self) -> None:
        if self.lengths is None:
            if self.tail:
                raise CaseError(f"tail is {self.tail}; expected 0 without lengths")
            return
        lengths = tuple(_integer("lengths", length, 0, _MOST) for length in self.lengths)
        if not lengths or sum(lengths) + self.tail < 1:
            raise CaseError("lengths and tail hold no token; expected at least 1")
        if self.B != 1 or self.N != 1:
            raise CaseError(f"B is {self.B} and N is {self.N} beside lengths; expected lengths alone")
        object.__setattr__(self, "lengths", lengths)

    def _check_form(self) -> None:
        for name in ("scale", "lower_bound"):
            value = getattr(self, name)
            if value is not None:
                if not isfinite(value):
                    raise CaseError(f"{name} is {value}; expected a number")
                object.__setattr__(self, name, float(value))
        if (self.gate == "bounded") != (self.lower_bound is not None) or (self.lower_bound or -1.0) >= 0:
            raise CaseError(f"lower_bound is {self.lower_bound}; expected one below 0 with gate=bounded, else none")
        given = [name for name in ("A_log", "dt_bias") if getattr(self, name).name != "none"]
        if self.gate == "softplus" and "A_log" not in given:
            raise CaseError("A_log is none; expected another kind with gate=softplus")
        if self.gate == "log" and given:
            raise CaseError(f"{given[0]} is given; expected none with gate=log")
        if not self.normalise and self.rows.name not in _UNIT_ROWS:
            raise CaseError(f"rows is {self.rows}; expected {' or '.join(_UNIT_ROWS)} unless normalise=1")

    def _kinds(self) -> dict[str, Mapping[str, KindSpec]]:
        """The kinds that each field of this form can have."""
        return {
            "g": KINDS["gate"] if self.gate == "log" else RAW,
            "A_log": A_LOGS,
            "dt_bias": BIASES,
            "beta": KINDS["beta"] if self.rate == "value" else RAW,
            "rows": ROWS,
            **{name: KINDS[name] for name in ("q", "k", "v", "state")},
        }

    def _default(self, name: str) -> Any:
        if name == "g":
            return Kind("none" if self.gate == "log" else "zeros")
        if name == "beta":
            return Kind("one" if self.rate == "value" else "zeros")
        return _FIELDS[name]

    @property
    def sequences(self) -> tuple[int, ...]:
        """The length of every sequence."""
        return (self.N,) * self.B if self.lengths is None else self.lengths

    @property
    def HV(self) -> int:
        """Value heads."""
        return self.H * self.groups

    @property
    def id(self) -> str:
        """The shape in a few characters: `S3-T68-H2-HV8-DK64-DV16-f16`."""
        tokens = sum(self.sequences) + self.tail
        return f"S{len(self.sequences)}-T{tokens}-H{self.H}-HV{self.HV}-DK{self.DK}-DV{self.DV}-{self.dtype}"

    def operation(self) -> Operation:
        """The call, every array rounded to the format it stands for."""
        S = len(self.sequences)
        state = None
        if self.state.name != "none":
            state = F32.round(self._made("state", "state", Sizes(S, 1, self.HV, self.DK, self.DV)))
            state = np.ascontiguousarray(state.swapaxes(-1, -2)) if self.v_first else state
        gate, beta = ("gate" if self.gate == "log" else "raw.g"), ("beta" if self.rate == "value" else "raw.beta")
        return Operation(
            q=self.dtype.round(self._tokens("q", "q", self.H) * self._tokens("rows", "q.rows", self.H)),
            k=self.dtype.round(self._tokens("k", "k", self.H) * self._tokens("rows", "k.rows", self.H)),
            v=self.dtype.round(self._tokens("v", "v", self.HV)),
            g=self.g_dtype.round(self._tokens("g", gate, self.HV)),
            beta=self.beta_dtype.round(self._tokens("beta", beta, self.HV)[..., 0]),
            initial_state=state,
            cu_seqlens=None if self.lengths is None else np.cumsum([0, *self.lengths]),
            A_log=self._parameter("A_log")[..., 0],
            dt_bias=self._parameter("dt_bias"),
            lower_bound=self.lower_bound,
            scale=self.scale,
            gate=self.gate,
            rate=self.rate,
            normalise=self.normalise,
            state_v_first=self.v_first,
            output_final_state=self.final,
            dtype=self.dtype,
            g_dtype=self.g_dtype,
            beta_dtype=self.beta_dtype,
        ).replace(**{name: None for name in ("A_log", "dt_bias") if getattr(self, name).name == "none"})

    def _made(self, name: str, stream: str, sizes: Sizes) -> np.ndarray:
        """The values of a field `[B, N, H, width]`, or a state; stream: what its random numbers are called."""
        kind: Kind = getattr(self, name)
        values = np.asarray(self._kinds()[name][kind.name].make(Ground(stream, sizes, self.seed), *kind.params))
        if name == "state":
            return np.array(np.broadcast_to(values, sizes.shape("initial_state")), dtype=np.float64)
        if stream == "beta":  # the one kind without channels
            values = values[..., None]
        width = {"beta": 1, "rows": 1, "v": sizes.DV}.get(name, sizes.DK)
        return np.array(np.broadcast_to(values, (sizes.B, sizes.N, sizes.H, width)), dtype=np.float64)

    def _tokens(self, name: str, stream: str, heads: int) -> np.ndarray:
        """A field `[B, N, heads, width]`: the tokens of every sequence behind one another, and of what follows them."""
        lengths = self.sequences if self.lengths is None else (*self.lengths, self.tail)
        DK = 1 if name == "beta" else self.DK
        made = self._made(name, stream, Sizes(len(lengths), max(1, *lengths), heads, DK, self.DV))
        if self.lengths is None:
            return made
        return np.concatenate([made[s, :length] for s, length in enumerate(lengths)])[None]

    def _parameter(self, name: str) -> np.ndarray:
        return F32.round(self._made(name, name, Sizes(1, 1, self.HV, 1 if name == "A_log" else self.DK, 1))[0, 0])

    def replace(self, **changes: object) -> OperationCase:
        """A copy with some fields exchanged; kinds may be given as text. CaseError as in the constructor."""
        unknown = set(changes) - set(_FIELDS)
        if unknown:
            raise CaseError(f"no field is called {min(unknown)!r}; expected one of {', '.join(_FIELDS)}")
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return ",".join((OPERATION_VERSION, *self._written()))

    def __repr__(self) -> str:
        return f"OperationCase.parse({str(self)!r})"

    def _written(self) -> Iterator[str]:
        for name in _FIELDS:
            value = getattr(self, name)
            if value == self._default(name):
                continue
            if name == "lengths":
                runs = ((length, len(list(run))) for length, run in groupby(value))
                value = ".".join(f"{length}x{count}" if count > 1 else f"{length}" for length, count in runs)
            yield f"{name}={int(value) if isinstance(value, bool) else value}"

    @classmethod
    def parse(cls, line: str) -> OperationCase:
        """The case that `line` holds; fields may come in any order. CaseError as for a line of `Case`."""
        texts = fields_of(line, OPERATION_VERSION, _FIELDS)
        return cls(**{name: _read(name, text) for name, text in texts.items()})  # type: ignore[arg-type]


def _integer(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise CaseError(f"{name} is {value!r}; expected an integer in {low}..{high}")
    return int(value)


def _read(name: str, text: str) -> object:
    if name == "lengths":
        return tuple(length for word in text.split(".") for length in _run(word))
    if name in _INTEGERS or name in ("normalise", "v_first", "final"):
        if not text.isdecimal():
            raise CaseError(f"{name} is {text!r}; expected an integer")
        return int(text)
    if name in ("scale", "lower_bound"):
        try:
            return float(text)
        except ValueError:
            raise CaseError(f"{name} is {text!r}; expected a number") from None
    return text


def _run(word: str) -> tuple[int, ...]:
    found = _COUNT.fullmatch(word)
    if found is None:
        raise CaseError(f"lengths holds {word!r}; expected numbers of tokens such as 3.0.65, or 1x9 for nine of 1")
    return (int(found[1]),) * int(found[2] or 1)


_INTEGERS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("B", "N", "H", "groups", "DK", "DV"), (1, _MOST)),
    "tail": (0, _MOST),
    "seed": (0, 2**64 - 1),
}
_FIELDS: dict[str, object] = {f.name: f.default for f in fields(OperationCase)}
