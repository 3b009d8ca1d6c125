"""Cases beside the one that failed: for the same kernel, of other sizes and kinds, inside its domain."""

from __future__ import annotations

from math import ceil, exp

from kda.case import Case
from kda.formats import Format
from kda.support import Support, TileChoice

__all__ = ["further_cases"]

# |g| of one token, at most: what is older than a few tokens should not be gone.
_DEEPEST = 0.5


def further_cases(tile: TileChoice, support: Support, dtype: Format) -> tuple[Case, ...]:
    """Twelve cases for a kernel of `tile` and `dtype`: nothing new is compiled for them.

    Among them are one token, a full chunk, one token less and more, several chunks with and without a ragged tail, more
    than 96 tokens, several heads and batches (of different numbers), states and none, gates of every make, equal keys
    and betas that differ from token to token.
    """
    C = tile.C
    total = support.max_total_gate(dtype)
    deep = min(0.9 * total / support.gate_window(C), support.max_token_gate, _DEEPEST)
    low = min(ceil(exp(-deep) * 1e4) / 1e4, 1.0)
    strong = f"uniform:0.5:{support.max_beta}"
    uniform, state = f"uniform:{low}:1.0", {"state": "gauss"}
    chosen: tuple[dict[str, object], ...] = (
        {"N": 1, "gate": uniform, **state},
        {"N": 2, "B": 2, "H": 3, "gate": f"channel:{low}:1.0", "k": "parallel:0.1"},
        {"N": 7, "H": 2, "beta": strong, "k": "equal", "q": "equal", **state},
        {"N": max(1, C - 1), "B": 3, "H": 2, "gate": f"head:{low}:1.0", **state},
        {"N": C, "gate": uniform, "k": "parallel:0.1"},
        {"N": C, "B": 2, "beta": strong, "k": "sign", "q": "sign", "gate": f"alternating:{-deep}", **state},
        {"N": C + 1, "B": 2, "H": 3, "gate": uniform, **state},
        {"N": C + 2, "H": 2, "gate": f"shared:{low}:1.0", "k": "positive", "q": "positive"},
        {"N": 2 * C, "H": 3, "beta": strong, "gate": f"channel:{low}:1.0", **state},
        {"N": 2 * C + 3, "B": 2, "k": "equal", "q": "equal", "gate": f"constant:{low}"},
        {"N": 3 * C - 1, "B": 2, "H": 2, "v": "small_int:3", "state": "small_int:3"},
        {"N": max(97 + C // 2, C + C // 2), "gate": uniform, "k": "parallel:0.5", "beta": strong, **state},
    )
    return tuple(_case(tile, support, dtype, seed, words) for seed, words in enumerate(chosen, 1))


def _case(tile: TileChoice, support: Support, dtype: Format, seed: int, words: dict[str, object]) -> Case:
    common = {"q": "gauss", "k": "gauss", "v": "gauss", "beta": "uniform:0.1:0.9", "seed": seed, "dtype": dtype}
    case = tile.of(Case(**(common | words)))  # type: ignore[arg-type]
    if not support.initial_state:
        case = case.replace(state="none")
    return case.replace(
        N=min(case.N, support.max_tokens),
        B=min(case.B, support.max_batch),
        H=min(case.H, support.max_heads),
    )
