"""Numbers from counters: a value depends only on (seed, stream, batch, head, token, channel).

There is no state to advance, so cutting N, B, H, DK or DV leaves every remaining value as it was; a shrinker relies on
that. All of it is integer arithmetic modulo 2^64 (the finaliser of splitmix64) and exact scaling, hence the same bits
on every machine and NumPy version.

A *key* is a uint64; `branch` grows an axis of children on an array of keys, and `uniform`, `gauss_int` and `integers`
read one number per child.
"""

from __future__ import annotations

import numpy as np

__all__ = ["GAUSS_SCALE", "branch", "gauss", "gauss_int", "integers", "normalised", "root", "uniform"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LANES = np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0xFFFFFFFF)

#: `gauss_int` has standard deviation 2^16 (to within 2^-33).
GAUSS_SCALE = 2.0**-16


def _mix(x: np.ndarray) -> np.ndarray:
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def root(seed: int, stream: str) -> np.ndarray:
    """The key, shape (), of a stream: independent for every seed in 0..2^64-1 and name of at most 8 bytes."""
    name = np.array([int.from_bytes(stream.encode().ljust(8, b"\0"), "little")], dtype=np.uint64)
    key = _mix(np.array([seed], dtype=np.uint64) + _GOLDEN)
    return _mix(key + name).reshape(())


def branch(keys: np.ndarray, count: int) -> np.ndarray:
    """Keys of the children 0..count-1 of every key, as a new last axis."""
    counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mix(keys[..., None] + counters)


def uniform(keys: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers per key, uniform in [0, 1) on a grid of 2^-53, as a new last axis."""
    return (branch(keys, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(keys: np.ndarray, count: int, low: int, high: int) -> np.ndarray:
    """`count` integers per key, uniform in low..high, as a new last axis (int64)."""
    words = branch(keys, count) >> np.uint64(32)
    return ((words * np.uint64(high - low + 1)) >> np.uint64(32)).astype(np.int64) + low


def gauss_int(keys: np.ndarray, count: int) -> np.ndarray:
    """`count` near-Gaussian integers per key as a new last axis (int64): mean 0, standard deviation 2^16.

    Irwin-Hall: the sum of twelve 16-bit uniforms less its mean, so at most 6 standard deviations and never a libm call.
    """
    # One counter per (word, channel); the word sits in the high half, so that the channels of a shorter row are the
    # first channels of a longer one.
    channels = np.arange(1, count + 1, dtype=np.uint64)
    counters = (channels + (np.arange(3, dtype=np.uint64)[:, None] << np.uint64(32))) * _GOLDEN
    words = _mix(keys[..., None, None] + counters)
    pairs = (words & _LANES) + ((words >> np.uint64(16)) & _LANES)
    sums = pairs[..., 0, :] + pairs[..., 1, :] + pairs[..., 2, :]
    return ((sums & _LOW) + (sums >> np.uint64(32))).astype(np.int64) - 6 * 65535


def gauss(keys: np.ndarray, count: int) -> np.ndarray:
    """`count` near-Gaussian numbers per key as a new last axis: mean 0, standard deviation 1, at most 6."""
    return gauss_int(keys, count) * GAUSS_SCALE


def normalised(rows: np.ndarray) -> np.ndarray:
    """Integer rows (last axis, int64) divided by their L2 norm; a zero row stays zero.

    The sum of squares is an exact integer, so no order of summation can show; sqrt and / are exact to the bit.
    """
    squares = (rows * rows).sum(axis=-1, keepdims=True)
    return rows / np.sqrt(np.where(squares == 0, 1, squares).astype(np.float64))
