"""One step of the kernel at a time: what each stage should be, given what the kernel itself held before it.

A stage that is wrong does not make those behind it look wrong, for they are made again from what they were made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kda.formats import F32
from kda.problem import Inputs, Tile
from kda.references._layout import heads_first
from kda.references.arithmetic import Arithmetic, Exp2, exp2_correctly_rounded
from kda.references.forward import SUB_CHUNK

__all__ = ["STEPS", "ForwardSteps", "Made", "Steps", "steps_of"]


@dataclass(frozen=True)
class Made:
    """What a step should give, and how far off a machine may be that adds in another order.

    value: `[blocks, B, H, chunks, rows, columns]`; size: the sum of |products| in each cell, terms: how many they are
    (0: nothing is added up, every bit must agree); rounded: to the operand format, in the end.
    """

    value: np.ndarray
    size: np.ndarray = field(default_factory=lambda: np.zeros(()))
    terms: int = 0
    rounded: bool = False


class Steps:
    """The steps of one run of `kda_chunk`.

    held: what the kernel held, stage to `[blocks, B, H, chunks, rows, columns]`; of a stage that was not probed, what
    the mirror makes of the stages before. exact: the machine adds as the mirror does, so that every bound is 0.
    """

    def __init__(
        self, inputs: Inputs, tile: Tile, held: Mapping[str, np.ndarray], exp2: Exp2 | None, exact: bool
    ) -> None:
        self.inputs = inputs
        self.tile = tile
        self.exact = exact
        self._machine = Arithmetic(tile.dtype, exp2 or exp2_correctly_rounded)
        self._held = held
        self._made: dict[str, Made] = {}

    def made(self, stage: str) -> Made:
        """`stage`, made of what the kernel held."""
        if stage not in self._made:
            with np.errstate(all="ignore"):
                self._made[stage] = getattr(self, STEPS[stage])()
        return self._made[stage]

    def bound(self, stage: str) -> np.ndarray:
        """How far each cell of `stage` may be from what was made.

        Each of n additions may lose two roundoffs of float32 (a tensor core cuts off what it cannot hold), in the worst
        case all the same way: 2 n u times the sum of |products|. Where the result is rounded to the operand format, it
        may then go to the next number.
        """
        made = self.made(stage)
        if self.exact or made.terms == 0:
            return np.zeros(made.value.shape)
        with np.errstate(all="ignore"):
            bound = 2 * made.terms * (F32.unit_roundoff * made.size.astype(np.float64) + F32.min_subnormal)
            if made.rounded:
                form = self.tile.dtype
                bound += 2 * form.unit_roundoff * np.abs(made.value.astype(np.float64)) + form.min_subnormal
        return bound

    def held(self, stage: str) -> np.ndarray:
        """What the kernel held; see `Steps`."""
        held = self._held.get(stage)
        return self.made(stage).value if held is None else held

    # What is loaded: every program its own, zeros past N.

    @cached_property
    def _chunks(self) -> int:
        return -(-self.inputs.sizes.N // self.tile.C)

    @cached_property
    def _blocks(self) -> int:
        return -(-self.inputs.sizes.DV // self.tile.block_DV)

    def _loaded(self, name: str) -> np.ndarray:
        array = getattr(self.inputs, name)
        array = heads_first(array[..., None] if name == "beta" else array)
        B, H, N, channels = array.shape
        padded = np.zeros((B, H, self._chunks * self.tile.C, channels), np.float32)
        padded[:, :, :N] = array
        cut = padded.reshape(B, H, self._chunks, self.tile.C, channels)
        return self._of_blocks(cut) if name == "v" else np.broadcast_to(cut, (self._blocks, *cut.shape))

    def _of_blocks(self, array: np.ndarray) -> np.ndarray:
        """`[..., DV]` as `[blocks, ..., block_DV]`, zeros past DV."""
        width, DV = self.tile.block_DV, array.shape[-1]
        padded = np.zeros((*array.shape[:-1], self._blocks * width), np.float32)
        padded[..., :DV] = array
        return np.moveaxis(padded.reshape(*array.shape[:-1], self._blocks, width), -2, 0)

    def _q(self) -> Made:
        return Made(self._loaded("q"))

    def _k(self) -> Made:
        return Made(self._loaded("k"))

    def _v(self) -> Made:
        return Made(self._loaded("v"))

    def _beta(self) -> Made:
        return Made(self._loaded("beta"))

    def _g(self) -> Made:
        return Made(self._loaded("g"))

    def _S_at_the_start(self) -> Made:
        first = self._of_blocks(self.inputs.state())[:, :, :, None]
        if self._chunks == 1:
            return Made(first)
        after = self._held.get("S")
        if after is not None:
            return Made(np.concatenate([first, after[:, :, :, :-1]], axis=3))
        return self._carried(first)

    def _carried(self, first: np.ndarray) -> Made:
        """The state at every start where no probe saw it: chunk after chunk, by the steps in between."""
        starts = [first]
        for chunk in range(self._chunks - 1):
            cut = {stage: value[:, :, :, chunk : chunk + 1] for stage, value in self._held.items()}
            cut["S at the start"] = starts[-1]
            rows = slice(chunk * self.tile.C, (chunk + 1) * self.tile.C)
            one = type(self)(self.inputs.tokens(rows.start, rows.stop), self.tile, cut, self._machine.exp2, self.exact)
            starts.append(one.made("S").value)
        return Made(np.concatenate(starts, axis=3))

    # 4.1 the exponent split

    def _gamma(self) -> Made:
        return Made(np.cumsum(self.held("g"), axis=-2, dtype=np.float32))

    def _e_gamma(self) -> Made:
        return self._single(self._machine.exp(self.held("gamma")))

    def _e_minus_gamma(self) -> Made:
        return self._single(self._machine.exp(-self.held("gamma")))

    def _k_e_gamma(self) -> Made:
        return self._single(self._machine.op(self.held("k") * self.held("e^gamma")), rounded=True)

    def _k_e_minus_gamma(self) -> Made:
        return self._single(self._machine.op(self.held("k") * self.held("e^-gamma")), rounded=True)

    def _q_e_gamma(self) -> Made:
        return self._single(self._machine.op(self.held("q") * self.held("e^gamma")), rounded=True)

    # 4.2 two products

    def _M(self) -> Made:
        return self._product(self.held("k e^gamma"), _turned(self.held("k e^-gamma")))

    def _L(self) -> Made:
        i, j = self._tokens
        return self._single(np.where(j < i, _turned(self.held("beta")) * self.held("M"), np.float32(0)))

    def _A_qk(self) -> Made:
        i, j = self._tokens
        product = self._product(self.held("q e^gamma"), _turned(self.held("k e^-gamma")))
        value = self._machine.op(np.where(j <= i, product.value, np.float32(0)))
        return Made(value, np.where(j <= i, product.size, 0), product.terms, rounded=True)

    @cached_property
    def _tokens(self) -> tuple[np.ndarray, np.ndarray]:
        token = np.arange(self.tile.C)
        return token[:, None], token[None, :]

    # 4.3 the solve

    def _W(self) -> Made:
        made = self._solved(self.held("k") * self.held("e^gamma"))
        return Made(self._machine.op(made.value), made.size, made.terms, rounded=True)

    def _U(self) -> Made:
        return self._solved(self.held("v"))

    def _solved(self, X: np.ndarray) -> Made:
        """Diag(beta) (I + L)^-1 X by forward substitution, and how an error of a row goes on to the later ones."""
        L, beta = self.held("L"), self.held("beta")
        X = np.array(np.broadcast_to(X, (*L.shape[:-1], X.shape[-1])), np.float32)
        size = np.abs(X).astype(np.float64)
        for s in range(self.tile.C - 1):
            later = L[..., s + 1 :, s, None]
            taken = later * X[..., s, None, :]
            X[..., s + 1 :, :] -= taken
            if not self.exact:
                size[..., s + 1 :, :] += np.abs(X[..., s + 1 :, :]) + np.abs(taken)
                size[..., s + 1 :, :] += np.abs(later) * size[..., s, None, :]
        return Made(beta * X, np.abs(beta) * (size + np.abs(X)), 1)

    def _S_s(self) -> Made:
        return Made(self._machine.op(self.held("S at the start")))

    def _W_S(self) -> Made:
        return self._product(self.held("W"), self.held("S_s"))

    def _V_tilde(self) -> Made:
        return self._single(self._machine.op(self.held("U") - self.held("W S")), rounded=True)

    # 4.4 the output and the state

    def _o(self) -> Made:
        between = self._product(self.held("q e^gamma"), self.held("S_s"))
        return self._product(self.held("A_qk"), self.held("V_tilde"), between)

    def _o_as_stored(self) -> Made:
        return Made(self._machine.op(self.held("o")))

    def _k_to_the_end(self) -> Made:
        decay = self.held("e^gamma")[..., -1:, :] * self.held("e^-gamma")
        return self._single(self._machine.op(self.held("k") * decay), rounded=True)

    def _S(self) -> Made:
        decayed = self._single(_turned(self.held("e^gamma")[..., -1:, :]) * self.held("S at the start"))
        return self._product(_turned(self.held("k e^(gamma_C - gamma)")), self.held("V_tilde"), decayed)

    def _final_state_as_stored(self) -> Made:
        return Made(self.held("S"))

    def _single(self, value: np.ndarray, rounded: bool = False) -> Made:
        """A cell made by one operation."""
        return Made(value, np.abs(value), 1, rounded)

    def _product(self, a: np.ndarray, b: np.ndarray, onto: Made | None = None) -> Made:
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        cleared = onto or Made(self._machine.zeros(*shape))
        value = self._machine.gemm(a, b, np.array(np.broadcast_to(cleared.value, shape)))
        size = cleared.size if self.exact else cleared.size + np.abs(a).astype(np.float64) @ np.abs(b)
        return Made(value, size, cleared.terms + a.shape[-1])


def _turned(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2)


class ForwardSteps(Steps):
    """The steps of one run of `kda_forward`, where no tile holds a sum of gates: each is made where it is used."""

    def _exp_of_gamma(self) -> np.ndarray:
        return self._machine.exp(np.cumsum(self.held("g"), axis=-2, dtype=np.float32))

    def _q_e_gamma(self) -> Made:
        return self._single(self._machine.op(self.held("q") * self._exp_of_gamma()), rounded=True)

    def _e_gamma_C(self) -> Made:
        return self._single(_turned(self._exp_of_gamma()[..., -1:, :]))

    # Across a border: what is not made is NaN, as it is where no probe wrote.

    @property
    def _borders(self) -> range:
        return range(SUB_CHUNK, self.tile.C, SUB_CHUNK)

    def _q_since_its_border(self) -> Made:
        return self._since("q")

    def _k_since_its_border(self) -> Made:
        return self._since("k")

    def _since(self, name: str) -> Made:
        x, g = self.held(name), self.held("g")
        value = np.full_like(x, np.nan)
        for b in self._borders:
            rows = slice(b, b + SUB_CHUNK)
            since = self._machine.exp(np.cumsum(g[..., rows, :], axis=-2, dtype=np.float32))
            value[..., rows, :] = self._machine.op(x[..., rows, :] * since)
        return self._single(value, rounded=True)

    def _k_to_its_border(self) -> Made:
        k = self.held("k")
        value = np.full((*k.shape[:-2], k.shape[-2] // SUB_CHUNK, *k.shape[-2:]), np.nan, np.float32)
        for b in self._borders:
            value[..., b // SUB_CHUNK, :b, :] = self._carried_to(b)
        return self._single(value.reshape(*k.shape[:-2], -1, k.shape[-1]), rounded=True)

    def _carried_to(self, border: int) -> np.ndarray:
        k, g = self.held("k")[..., :border, :], self.held("g")[..., :border, :]
        total = np.zeros_like(g)
        total[..., :-1, :] = np.cumsum(g[..., :0:-1, :], axis=-2, dtype=np.float32)[..., ::-1, :]
        return self._machine.op(k * self._machine.exp(total))

    # M and A_qk: pair by pair inside a sub-chunk, products across a border.

    def _L(self) -> Made:
        i, j = self._tokens
        M, beta = self._of_pairs("k"), _turned(self.held("beta"))
        value = np.where(j < i, beta * M.value, np.float32(0))
        value[..., j // SUB_CHUNK > i // SUB_CHUNK] = np.nan
        return Made(value, np.where(j < i, np.abs(beta) * M.size, 0), M.terms + 1)

    def _A_qk(self) -> Made:
        i, j = self._tokens
        made = self._of_pairs("q")
        value = self._machine.op(np.where(j <= i, made.value, np.float32(0)))
        return Made(value, np.where(j <= i, made.size, 0), made.terms, rounded=True)

    def _of_pairs(self, name: str) -> Made:
        x, k, g = self.held(name), self.held("k"), self.held("g")
        C = self.tile.C
        value = np.zeros((*x.shape[:-1], C), np.float32)
        size = np.zeros(value.shape)
        for b in range(0, C, SUB_CHUNK):
            rows = slice(b, b + SUB_CHUNK)
            total = np.zeros((*x.shape[:-2], SUB_CHUNK, x.shape[-1]), np.float32)  # of the keys of this sub-chunk
            for i in range(SUB_CHUNK):
                total[..., :i, :] += g[..., None, b + i, :]
                decayed = k[..., rows, :] * self._machine.exp(total)
                at = (..., slice(b + i, b + i + 1), rows)
                row = self._product(x[..., b + i : b + i + 1, :], _turned(decayed))
                value[at], size[at] = row.value, row.size
            if b:
                carried = self.held("k to its border")[..., b // SUB_CHUNK * C :, :][..., :b, :]
                across = self._product(self.held(f"{name} since its border")[..., rows, :], _turned(carried))
                value[..., rows, :b], size[..., rows, :b] = across.value, across.size
        return Made(value, size, x.shape[-1])

    def _W(self) -> Made:
        made = self._solved(self.held("k") * self._exp_of_gamma())
        return Made(self._machine.op(made.value), made.size, made.terms, rounded=True)

    def _k_to_the_end(self) -> Made:
        return self._single(self._carried_to(self.tile.C), rounded=True)

    def _S(self) -> Made:
        decayed = self._single(self.held("e^gamma_C") * self.held("S at the start"))
        return self._product(_turned(self.held("k e^(gamma_C - gamma)")), self.held("V_tilde"), decayed)


def steps_of(function: str) -> type[Steps]:
    """The steps of a kernel, by the name of its function."""
    return ForwardSteps if function == "kda_forward" else Steps


#: Every stage of either kernel, in the order in which they are made, and the step that makes it.
STEPS: dict[str, str] = {
    "q": "_q",
    "k": "_k",
    "v": "_v",
    "beta": "_beta",
    "g": "_g",
    "S at the start": "_S_at_the_start",
    "gamma": "_gamma",
    "e^gamma": "_e_gamma",
    "e^-gamma": "_e_minus_gamma",
    "k e^gamma": "_k_e_gamma",
    "k e^-gamma": "_k_e_minus_gamma",
    "q e^gamma": "_q_e_gamma",
    "e^gamma_C": "_e_gamma_C",
    "q since its border": "_q_since_its_border",
    "k since its border": "_k_since_its_border",
    "k to its border": "_k_to_its_border",
    "M": "_M",
    "L": "_L",
    "A_qk": "_A_qk",
    "W": "_W",
    "U": "_U",
    "S_s": "_S_s",
    "W S": "_W_S",
    "V_tilde": "_V_tilde",
    "o": "_o",
    "o as stored": "_o_as_stored",
    "k e^(gamma_C - gamma)": "_k_to_the_end",
    "S": "_S",
    "final state as stored": "_final_state_as_stored",
}
