"""Generated mutants that no law can kill, each with the reason: read by hand, after a campaign left them alive."""

__all__ = ["REVIEWED"]

_GUARDED = "TileLang guards every global access by the shape of its tensor, and reads zero beyond it"
_LOWER = "the substitution reads L[r, j] for j < r alone"
_PADDING = "the k and v of rows past N are zero: their beta multiplies nothing"
_TRACE = "of the trace, which no law asks for; the tests of the references compare it"
_ARGUMENT = "the check of block_DV: no law passes a wrong one"
_TWICE = "it is rounded to the same format a line later, where it is used"

#: By implementation, then by the name of the mutant.
REVIEWED: dict[str, dict[str, str]] = {
    "kda_chunk": {
        "relational-boundary/if-O/s0+r-lt-N..s0+r-le-N": _GUARDED,
        "relational-boundary/beta_s/s0+r-lt-N..s0+r-le-N": _GUARDED,
        "relational-boundary/x/s0+r-lt-N..s0+r-le-N": _GUARDED,
        "sign/beta_s/s0+r..s0-r": _GUARDED,
        "term-dropped/beta_s/s0+r..s0": _GUARDED,
        "term-dropped/beta_s/s0+r..r": _GUARDED,
        "constant/beta_s/0.0..1.0": _PADDING,
        "sign/x/s0+r..s0-r": _GUARDED,
        "term-dropped/x/s0+r..s0": _GUARDED,
        "term-dropped/x/s0+r..r": _GUARDED,
        "term-dropped/if-O/s0+r..r": _GUARDED,
        "relational-boundary/Lt_s/j-lt-i..j-le-i": _LOWER,
        "mask-dropped/Lt_s/j-lt-i": _LOWER,
        "constant/Lt_s/0.0..1.0": _LOWER,
        "range-off-by-one/for-i-j-Lt_s/C..C-1-2": "no row is below column C - 1 of L: it is never read",
        "cast-dropped/O/round-O_f": "the store rounds by itself (float16), or the launch does (bfloat16 on a CPU)",
        "range-off-by-one/for-j-x/C..C-1": "no row is below the last: its step changes nothing",
        "range-off-by-one/for-j-x/C..C+1": "no row is below the last: the added step is an empty loop",
        "range-off-by-one/for-part-d/ceildiv.DK..ceildiv.DK+1": "the added part has no channel: d < DK is false in it",
        "range-off-by-one/for-part-col/ceildiv.columns..ceildiv.columns+1": (
            "the added part has no column: col < columns is false in it"
        ),
        "range-off-by-one/launch/ceildiv.DV..ceildiv.DV+1": f"the added program has no value channel: {_GUARDED}",
        "range-off-by-one/for-i_s-s0/ceildiv.N..ceildiv.N+1": (
            "a chunk of padding alone changes nothing: k = v = beta = g = 0, and its rows of o are past N"
        ),
    },
    "mirror": {
        "relational-boundary/L/j-lt-i..j-le-i": _LOWER,
        "mask-dropped/L/j-lt-i": _LOWER,
        "constant/L/0..1": _LOWER,
        "range-off-by-one/for-s-X/last..last+1": "no row is below the last: the added step is empty",
        "dropped-statement/chunks/DV.block_DV": _ARGUMENT,
        "dropped-statement/if-put/recorder": _TRACE,
        "dropped-statement/put/c.rows": _TRACE,
        "dropped-statement/put/c.rows-2": _TRACE,
        "dropped-statement/if-replay/recorder.and.trace": _TRACE,
        "swapped-neighbours/put/put": _TRACE,
        "constant/put/-1..0": _TRACE,
        "cast-narrowed/A_qk/gemm.Qp": _TWICE,
        "cast-narrowed/A_qk/where.j-le-i": _TWICE,
        "cast-narrowed/Vt/U-WS": _TWICE,
        "cast-narrowed/acc_o/gemm.A_c": _TWICE,
    },
}
