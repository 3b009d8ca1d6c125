"""The kinds of background a case can give each tensor, simplest first.

A kind is a small function from sizes and seed to values; `KINDS[field][name]` holds them all, with the names and the
range of their parameters. Random kinds draw from `kda.generate`, hence keep every remaining value when a size is cut.
`onehot` and `orthogonal` count tokens modulo DK (or DV) and change with it by definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeVar

import numpy as np

from kda import portable
from kda.generate import branch, gauss, gauss_int, integers, normalised, root, uniform
from kda.problem import Sizes

__all__ = ["FIELDS", "KINDS", "LN2", "CaseError", "Ground", "Kind", "KindSpec", "Param", "background", "kind_named"]

#: The fields of a case that name a kind, and the tensor of `Inputs` each one fills.
FIELDS: dict[str, str] = {"gate": "g", "beta": "beta", "q": "q", "k": "k", "v": "v", "state": "initial_state"}

#: ln 2 as float32 holds it: the gate -LN2 halves.
LN2 = float(np.float32(0.6931471805599453))


class CaseError(ValueError):
    """A case or a case line that means nothing. One sentence: the field, its value, what was expected."""


@dataclass(frozen=True)
class Kind:
    """The name of a kind and its parameters: `uniform:0.9:0.999`."""

    name: str
    params: tuple[float, ...] = ()

    def __str__(self) -> str:
        return ":".join((self.name, *map(repr, self.params)))


@dataclass(frozen=True)
class Param:
    """One parameter of a kind: a float or an integer in [low, high], or (low, high] where `above` is set."""

    name: str
    low: float
    high: float
    type: type = float
    above: bool = False
    default: float | None = None

    @property
    def range(self) -> str:
        """The range in words, for messages."""
        low = f"{self.low:g} <" if self.above else f"{self.low:g} <="
        what = "integer, " if self.type is int else ""
        return f"{what}{low} {self.name} <= {self.high:g}"

    def read(self, where: str, value: object) -> float:
        """`value` (text or number) as this parameter; CaseError where it is none."""
        try:
            number = self.type(value)
        except (TypeError, ValueError, OverflowError):
            raise CaseError(f"{where}: {self.name} is {value!r}; expected {self.range}") from None
        if (
            not isfinite(number)
            or (not isinstance(value, str) and number != value)
            or not self.low <= number <= self.high
            or (self.above and number == self.low)
        ):
            raise CaseError(f"{where}: {self.name} is {value}; expected {self.range}")
        return number


@dataclass(frozen=True)
class Ground:
    """What a kind makes its values from: the sizes, the seed, and the field it fills."""

    field: str
    sizes: Sizes
    seed: int

    @property
    def width(self) -> int:
        """The number of channels of this tensor."""
        return self.sizes.DV if self.field in ("v", "state") else self.sizes.DK

    def heads(self, stream: str | None = None) -> np.ndarray:
        """Keys per (batch, head), `[B, H]`."""
        return branch(branch(root(self.seed, stream or self.field), self.sizes.B), self.sizes.H)

    def rows(self, stream: str | None = None) -> np.ndarray:
        """Keys per (batch, token, head), `[B, N, H]`."""
        return np.ascontiguousarray(branch(self.heads(stream), self.sizes.N).transpose(0, 2, 1))

    def layer(self, stream: str) -> np.ndarray:
        """Keys per head, `[1, 1, H]`: for the parameters of a model, which its batches share."""
        return branch(root(self.seed, stream), self.sizes.H)[None, None]

    def tokens(self) -> np.ndarray:
        """Token numbers, `[1, N, 1, 1]`."""
        return np.arange(self.sizes.N)[None, :, None, None]

    def channels(self) -> np.ndarray:
        """Channel numbers, `[D]`."""
        return np.arange(self.width)


Make = Callable[..., "np.ndarray | float"]
AnyMake = TypeVar("AnyMake", bound=Make)


@dataclass(frozen=True)
class KindSpec:
    """A registered kind: its parameters, what it makes in one line, and whether the seed matters."""

    name: str
    params: tuple[Param, ...]
    about: str
    random: bool
    ordered: bool
    make: Make = field(repr=False)

    @property
    def usage(self) -> str:
        """`uniform:lo:hi`."""
        return ":".join((self.name, *(p.name for p in self.params)))


KINDS: dict[str, dict[str, KindSpec]] = {name: {} for name in FIELDS}


def _kind(fields: str, *params: Param, random: bool = True, ordered: bool = False) -> Callable[[AnyMake], AnyMake]:
    def register(make: AnyMake) -> AnyMake:
        name = make.__name__.removeprefix("_").partition("__")[0]
        about = (make.__doc__ or "").strip().splitlines()[0]
        for one in fields.split():
            KINDS[one][name] = KindSpec(name, params, about, random, ordered, make)
        return make

    return register


def kind_named(where: str, text: str | Kind, kinds: Mapping[str, KindSpec] | None = None) -> Kind:
    """The kind `text` (`uniform:0.9:0.999`, or a Kind) of the field `where`, every parameter filled in and checked.

    kinds: those the field can have, `KINDS[where]` unless given. CaseError: a name that field does not have, a wrong
    number of parameters, a parameter out of range.
    """
    kinds = KINDS[where] if kinds is None else kinds
    if isinstance(text, Kind):
        name = text.name
        values: tuple[object, ...] = tuple(text.params)
    elif isinstance(text, str):
        name, *words = text.split(":")
        values = tuple(words)
    else:
        raise CaseError(f"{where} is {text!r}; expected a kind such as {where}={next(iter(kinds))}")
    spec = kinds.get(name)
    if spec is None:
        raise CaseError(f"{where}={text}: no kind is called {name!r}; expected one of {', '.join(kinds)}")
    values += tuple(p.default for p in spec.params[len(values) :] if p.default is not None)
    if len(values) != len(spec.params):
        raise CaseError(f"{where}={text}: {len(values)} parameters; expected {len(spec.params)}, {where}={spec.usage}")
    params = tuple(p.read(f"{where}={text}", value) for p, value in zip(spec.params, values, strict=True))
    if spec.ordered and params[0] > params[1]:
        raise CaseError(f"{where}={text}: {spec.params[0].name} > {spec.params[1].name}; expected {where}={spec.usage}")
    return Kind(name, params)


def background(where: str, kind: Kind, sizes: Sizes, seed: int) -> np.ndarray | None:
    """The values of `kind` in float64, in the shape of the field's tensor; None for the state `none`."""
    if where == "state" and kind.name == "none":
        return None
    values = KINDS[where][kind.name].make(Ground(where, sizes, seed), *kind.params)
    return np.array(np.broadcast_to(values, sizes.shape(FIELDS[where])), dtype=np.float64)


# Gates: natural logarithms, <= 0. A parameter called `a`, `lo` or `hi` is a decay; one called `g` is its logarithm.

_DEEPEST = -1e4  # e^-10^4 is zero in every format; deeper gates say nothing new
_TOKEN = Param("t", 0, 2**31 - 1, int)
_LO, _HI = Param("lo", 0, 1, above=True), Param("hi", 0, 1, above=True)
_G = Param("g", _DEEPEST, 0)


def _decays(u: np.ndarray, lo: float, hi: float) -> np.ndarray:
    return portable.log(np.minimum(lo + (hi - lo) * u, hi))


@_kind("gate", random=False)
def _none(x: Ground) -> float:
    """No decay: g = 0."""
    return 0.0


@_kind("gate", Param("a", 0, 1, above=True), random=False)
def _constant(x: Ground, a: float) -> np.ndarray:
    """The same decay a everywhere: g = log a."""
    return portable.log(a)


@_kind("gate", _G, random=False)
def _log(x: Ground, g: float) -> float:
    """The same natural-log gate g everywhere."""
    return g


@_kind("gate", Param("total", 0, 1e6), Param("C", 1, 4096, int), random=False)
def _edge(x: Ground, total: float, C: int) -> float:
    """One constant g, the deepest float32 whose sum over C tokens does not pass -total."""
    g = np.float32(total / C)
    # Neither exactly nor summed in float32 from the first token on: the edge is the edge however it is added up.
    while float(g) * C > total or float(np.add.accumulate(np.full(C, g))[-1]) > total:
        g = np.nextafter(g, np.float32(0))
    return -float(g)


@_kind("gate", _G, random=False)
def _alternating(x: Ground, g: float) -> np.ndarray:
    """Odd channels g, even channels 0."""
    return np.where(x.channels() % 2 == 1, g, 0.0)


@_kind("gate", _TOKEN, _G, random=False)
def _spike(x: Ground, t: int, g: float) -> np.ndarray:
    """Token t has g in all channels, every other token 0."""
    return np.where(x.tokens() == t, g, 0.0)


@_kind("gate", Param("p", 0, 1), Param("period", 1, 2**31 - 1, int, default=1))
def _powers(x: Ground, p: float, period: int) -> np.ndarray:
    """-float32(ln 2) with probability p, else 0, per token and channel; only at tokens t with t mod period = 0."""
    hit = (uniform(x.rows(), x.width) < p) & (x.tokens() % period == 0)
    return np.where(hit, -LN2, 0.0)


@_kind("gate", _LO, _HI, ordered=True)
def _head(x: Ground, lo: float, hi: float) -> np.ndarray:
    """One decay per batch and head from U(lo, hi), constant in time."""
    return _decays(uniform(x.heads(), 1), lo, hi)[:, None]


@_kind("gate", _LO, _HI, ordered=True)
def _shared(x: Ground, lo: float, hi: float) -> np.ndarray:
    """One decay per token from U(lo, hi), the same in all channels: Gated DeltaNet's gate."""
    return _decays(uniform(x.rows(), 1), lo, hi)


@_kind("gate", _LO, _HI, ordered=True)
def _channel(x: Ground, lo: float, hi: float) -> np.ndarray:
    """One decay per channel from U(lo, hi), constant in time."""
    return _decays(uniform(x.heads(), x.width), lo, hi)[:, None]


@_kind("gate", _LO, _HI, ordered=True)
def _uniform(x: Ground, lo: float, hi: float) -> np.ndarray:
    """A decay from U(lo, hi) per token and channel."""
    return _decays(uniform(x.rows(), x.width), lo, hi)


def _model_gate(x: Ground) -> tuple[np.ndarray, np.ndarray]:
    """(A, x + dt_bias) as Mamba and FLA initialise them: A ~ U(1, 16), softplus(dt_bias) log-uniform in 1e-3..0.1."""
    A = 1.0 + 15.0 * uniform(x.layer("gate.A"), 1)
    low, high = portable.log(1e-3), portable.log(0.1)
    dt = portable.exp(low + (high - low) * uniform(x.layer("gate.dt"), x.width))
    return A, gauss(x.rows(), x.width) + portable.log(portable.exp(dt) - 1.0)


@_kind("gate", Param("floor", _DEEPEST, 0))
def _softplus(x: Ground, floor: float) -> np.ndarray:
    """-exp(A_log) softplus(x + dt_bias) as models initialise it, x Gaussian, clipped from below at floor."""
    A, raw = _model_gate(x)
    return np.maximum(-A * portable.softplus(raw), floor)


@_kind("gate", Param("lower", _DEEPEST, 0))
def _bounded(x: Ground, lower: float) -> np.ndarray:
    """Lower bound times sigmoid(exp(A_log) (x + dt_bias)) as models initialise it, x Gaussian."""
    A, raw = _model_gate(x)
    return lower * portable.sigmoid(A * raw)


# Write strengths, in [0, 2].

_B = Param("b", 0, 2)


@_kind("beta", random=False)
def _one(x: Ground) -> float:
    """1: every write replaces what the key held."""
    return 1.0


@_kind("beta", _B, random=False)
def _constant__beta(x: Ground, b: float) -> float:
    """The same b everywhere."""
    return b


@_kind("beta", Param("b0", 0, 2), Param("b1", 0, 2), random=False)
def _alternating__beta(x: Ground, b0: float, b1: float) -> np.ndarray:
    """b0 at even tokens, b1 at odd ones."""
    return np.where(x.tokens()[..., 0] % 2 == 0, b0, b1)


@_kind("beta", Param("p", 0, 1))
def _binary(x: Ground, p: float) -> np.ndarray:
    """1 with probability p, else 0."""
    return np.where(uniform(x.rows(), 1)[..., 0] < p, 1.0, 0.0)


@_kind("beta", Param("lo", 0, 2), Param("hi", 0, 2), ordered=True)
def _uniform__beta(x: Ground, lo: float, hi: float) -> np.ndarray:
    """U(lo, hi) per token."""
    return np.minimum(lo + (hi - lo) * uniform(x.rows(), 1)[..., 0], hi)


@_kind("beta")
def _near1(x: Ground) -> np.ndarray:
    """1 - 2^-e, e from 6..20 per token."""
    return 1.0 - _near0(x)


@_kind("beta")
def _near0(x: Ground) -> np.ndarray:
    """2^-e, e from 6..20 per token."""
    return np.ldexp(1.0, -integers(x.rows(), 1, 6, 20)[..., 0])


@_kind("beta", random=False)
def _zero(x: Ground) -> float:
    """0: nothing is written."""
    return 0.0


# Queries and keys: rows of unit length, unless said. `equal`, `sign` and `parallel` share one direction between q and
# k, so that a query reads what the keys wrote.

_DIRECTION = "qk"


@_kind("q k v", random=False)
def _onehot(x: Ground) -> np.ndarray:
    """Token t is 1 at channel t mod D, 0 elsewhere."""
    return np.where(x.tokens() % x.width == x.channels(), 1.0, 0.0)


@_kind("q k")
def _equal(x: Ground) -> np.ndarray:
    """All tokens the same Gaussian direction, one per batch and head, the same for q and k."""
    return normalised(gauss_int(x.heads(_DIRECTION), x.width))[:, None]


@_kind("q k")
def _sign(x: Ground) -> np.ndarray:
    """`equal` up to a random sign per token."""
    return _equal(x) * (1 - 2 * integers(x.rows(f"{x.field}.sign"), 1, 0, 1))


@_kind("q k")
def _orthogonal(x: Ground) -> np.ndarray:
    """Exactly orthogonal within DK tokens: +-1/sqrt(DK), or signed one-hot rows unless DK is a power of two."""
    DK, run = x.width, x.tokens() % x.width
    if DK & (DK - 1):
        return _onehot(x) * (1 - 2 * integers(x.rows(), 1, 0, 1))
    # Sylvester's Hadamard matrix: entry (i, j) is the parity of the bits i and j share. A sign per channel keeps the
    # rows orthogonal and makes heads differ.
    common = run & x.channels()
    for shift in (16, 8, 4, 2, 1):
        common = common ^ (common >> shift)
    flips = integers(x.heads(), DK, 0, 1)[:, None]
    return (1.0 - 2.0 * ((common + flips) & 1)) / np.sqrt(float(DK))


@_kind("q k", Param("eps", 0, 1, above=True))
def _parallel(x: Ground, eps: float) -> np.ndarray:
    """`equal` plus eps times a Gaussian vector, normalised."""
    # Eight more bits keep a small eps visible, and leave the sum of squares below 2^63 up to DK = 128 at 6 sigma.
    noise = np.rint(gauss_int(x.rows(), x.width) * (eps * 256.0)).astype(np.int64)
    return normalised(gauss_int(x.heads(_DIRECTION), x.width)[:, None] * 256 + noise)


@_kind("q k")
def _onehot_random(x: Ground) -> np.ndarray:
    """Every token is 1 at one random channel."""
    # The largest of DK numbers, not a number modulo DK: cutting DK moves only the tokens whose channel was cut off.
    lots = branch(x.rows(), x.width)
    return np.where(lots == lots.max(axis=-1, keepdims=True), 1.0, 0.0)


@_kind("q k")
def _positive(x: Ground) -> np.ndarray:
    """|Gaussian|, normalised: keys that all lean the same way."""
    return normalised(np.abs(gauss_int(x.rows(), x.width)))


@_kind("q k")
def _gauss(x: Ground) -> np.ndarray:
    """Gaussian, normalised."""
    return normalised(gauss_int(x.rows(), x.width))


@_kind("k", _TOKEN)
def _with_zero_row(x: Ground, t: int) -> np.ndarray:
    """`gauss`, but token t's key is zero."""
    return np.where(x.tokens() == t, 0.0, _gauss(x))


@_kind("state", random=False)
def _none__state(x: Ground) -> float:
    """No initial state is passed."""
    return 0.0


@_kind("q k v state", random=False)
def _zeros(x: Ground) -> float:
    """All zero."""
    return 0.0


# Values and states.

_M = Param("m", 1, 2048, int)  # 2048: float16 holds every integer up to it


@_kind("v state", random=False)
def _ones(x: Ground) -> float:
    """All one."""
    return 1.0


def _cells(x: Ground) -> np.ndarray:
    return branch(x.heads(), x.sizes.DK) if x.field == "state" else x.rows()


@_kind("v state", _M)
def _small_int(x: Ground, m: int) -> np.ndarray:
    """Integers, uniform in -m..m."""
    return integers(_cells(x), x.width, -m, m)


@_kind("v state")
def _gauss__v(x: Ground) -> np.ndarray:
    """Gaussian, unit variance, at most 6."""
    return gauss(_cells(x), x.width)


@_kind("v", Param("e", 0, 12, int))  # 6 * 2^12 is below float16's 65504
def _wide(x: Ground, e: int) -> np.ndarray:
    """Gaussian times 2^U, U an integer from -e..e per value."""
    return np.ldexp(gauss(x.rows(), x.width), integers(x.rows("v.exp"), x.width, -e, e))


@_kind("state", Param("scale", 0, 1e30))
def _large(x: Ground, scale: float) -> np.ndarray:
    """Gaussian times scale."""
    return gauss(_cells(x), x.width) * scale
