"""Generated mutants: each operator makes what it says, names hold still, and equal programs are found out."""

import ast
import functools
import re
import textwrap
from pathlib import Path

import pytest

import kda
from kda.mutation.lowering import distinct, lowered, traced
from kda.mutation.operators import OPERATORS, Generated, generated

PACKAGE = Path(kda.__file__).parent
KERNEL = (PACKAGE / "kernels" / "chunk.py").read_text(), "kda_chunk"
MIRROR = (PACKAGE / "references" / "mirror.py").read_text(), "ref_C_fast"
BOTH = pytest.mark.parametrize(("source", "function"), [KERNEL, MIRROR], ids=["kernel", "mirror"])

all_of = functools.cache(generated)


def module(body: str) -> str:
    return "def f(on, C, N):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"


def text(statements: list[ast.stmt]) -> str:
    return ast.unparse(ast.Module(statements, []))


def function_of(mutant: Generated) -> ast.FunctionDef:
    (function,) = (node for node in ast.parse(mutant.source).body if isinstance(node, ast.FunctionDef))
    return function


def made(operator: str, body: str) -> list[str]:
    """The bodies that `operator` makes of a function's body."""
    return [text(function_of(m).body) for m in generated(module(body), "f") if m.operator == operator]


def names(operator: str, body: str) -> list[str]:
    return [m.name for m in generated(module(body), "f") if m.operator == operator]


def normal(*bodies: str) -> list[str]:
    return [text(ast.parse(textwrap.dedent(body)).body) for body in bodies]


ONE_STATEMENT = [
    ("relational-boundary", "A[i] = where(i < j, B, 0)", ["A[i] = where(i <= j, B, 0)"]),
    ("relational-boundary", "a = b <= c", ["a = b < c"]),
    ("relational-boundary", "a = b > c >= d", ["a = b >= c >= d", "a = b > c > d"]),
    ("relational-boundary", "a = b == c", []),
    ("relational-negation", "a = b < c", ["a = b >= c"]),
    ("relational-negation", "a = b <= c", ["a = b > c"]),
    ("relational-negation", "a = b > c", ["a = b <= c"]),
    ("relational-negation", "a = b >= c", ["a = b < c"]),
    ("relational-negation", "a = b != c", ["a = b == c"]),
    ("index-off-by-one", "A[i] = b", ["A[i + 1] = b", "A[i - 1] = b"]),
    ("index-off-by-one", "a = B[0, :, None, ...]", ["a = B[1, :, None, ...]", "a = B[-1, :, None, ...]"]),
    ("index-off-by-one", "a = b.shape[-1]", ["a = b.shape[0]", "a = b.shape[-2]"]),
    ("index-off-by-one", "a = B[s : s + C]", ["a = B[s + 1 : s + C + 1]", "a = B[s - 1 : s + C - 1]"]),
    ("index-off-by-one", "a = B[..., :n]", ["a = B[..., : n + 1]", "a = B[..., : n - 1]"]),
    ("range-off-by-one", "a = T.ceildiv(b, c)", ["a = T.ceildiv(b, c) + 1", "a = T.ceildiv(b, c) - 1"]),
    ("sign", "a = exp2(b * c)", ["a = exp2(-(b * c))"]),
    ("sign", "a = T.exp2(-b[0] * c)", ["a = T.exp2(b[0] * c)"]),
    ("sign", "a = exp(-b)", ["a = exp(b)"]),
    ("sign", "a = b + c", ["a = b - c"]),
    ("sign", "a = b - c", ["a = b + c"]),
    ("sign", "a -= b", ["a += b"]),
    ("sign", "a = 'b' + c", []),
    ("sign", "a(f'{b + c}')", []),
    ("factor-dropped", "a = b * (c + d)", ["a = b", "a = c + d"]),
    ("factor-dropped", "a = b * b", ["a = b"]),  # once
    ("factor-dropped", "a = b @ c", []),
    ("term-dropped", "a = b + c", ["a = b", "a = c"]),
    ("term-dropped", "a = b - c", ["a = b", "a = -c"]),
    ("operand-swap", "a = b - c * d", ["a = c * d - b"]),
    ("operand-swap", "a = b - (c - d)", ["a = c - d - b", "a = b - (d - c)"]),
    ("operand-swap", "on.gemm(A, B, acc, clear_accum=True)", ["on.gemm(B, A, acc, clear_accum=True)"]),
    ("operand-swap", "a = gemm(b, c, d)", ["a = gemm(c, b, d)"]),
    ("operand-swap", "A[i, j] = b", ["A[j, i] = b"]),
    ("operand-swap", "A[i, :] = B[i, j, k]", []),
    (
        "transpose-flag",
        "on.gemm(A, B, acc, transpose_B=True)",
        ["on.gemm(A, B, acc, transpose_B=True, transpose_A=True)", "on.gemm(A, B, acc)"],
    ),
    ("transpose-flag", "a = gemm(b, c, d)", []),
    ("clear-flag", "on.gemm(A, B, acc, clear_accum=True)", ["on.gemm(A, B, acc)"]),
    ("clear-flag", "T.gemm(A, B, acc)", ["T.gemm(A, B, acc, clear_accum=True)"]),
    ("clear-flag", "T.gemm(A, B, acc, clear_accum=False)", ["T.gemm(A, B, acc, clear_accum=True)"]),
    ("mask-dropped", "A[i] = T.if_then_else(i < j, B[i], 0.0)", ["A[i] = B[i]"]),
    ("mask-dropped", "a = np.where(b, c, d)", ["a = c"]),
    ("constant", "a = f(0.0, True, 'float32')", ["a = f(1.0, True, 'float32')"]),
    ("constant", "a = f(k=1)", ["a = f(k=0)", "a = f(k=2)"]),
    ("constant", "A[1] = 3", ["A[1] = 4"]),
    ("constant", "a = f(-2)", ["a = f(-1)"]),
    ("cast-dropped", "A[i] = on.round(T.Cast(ACCUM, B[i]))", ["A[i] = T.Cast(ACCUM, B[i])", "A[i] = on.round(B[i])"]),
    ("cast-dropped", "a, b = op(c), op(d)", ["a, b = c, op(d)", "a, b = op(c), d"]),
]


@pytest.mark.parametrize(("operator", "statement", "expected"), ONE_STATEMENT, ids=lambda value: str(value)[:40])
def test_one_statement(operator: str, statement: str, expected: list[str]) -> None:
    assert made(operator, statement) == normal(*expected)


def test_every_operator_is_described_and_makes_mutants_of_the_kernel() -> None:
    assert {m.operator for m in all_of(*KERNEL)} == set(OPERATORS)
    assert all(OPERATORS.values())


def test_index_of_a_one_element_buffer_stays() -> None:
    body = "g = T.alloc_local([1], ACCUM)\nG = T.alloc_local([2], ACCUM)\ng[0] = G[0]"
    assert [m.splitlines()[-1] for m in made("index-off-by-one", body)] == ["g[0] = G[1]", "g[0] = G[-1]"]


def test_index_that_is_a_slice_stays() -> None:
    assert (
        made("index-off-by-one", "every = slice(None)\nfor c, rows in enumerate(chunks(N, C)):\n  a(q[rows, every])")
        == []
    )


@pytest.mark.parametrize(
    ("loop", "extents"),
    [
        ("on.steps({})", ["C - 1"]),
        ("on.parallel({}, {})", ["C", "D"]),
        ("T.Pipelined({}, num_stages=2)", ["T.ceildiv(N, C)"]),
        ("range({})", ["C"]),
        ("range(2, {})", ["C"]),
    ],
)
def test_range(loop: str, extents: list[str]) -> None:
    def body(values: list[str]) -> str:
        return f"for i in {loop.format(*values)}:\n    a[i] = b"

    expected = []
    for at, extent in enumerate(extents):
        for other in (f"{extent} + 1", f"{extent} - 1"):
            expected.append(body([*extents[:at], other, *extents[at + 1 :]]))
    assert made("range-off-by-one", body(extents)) == normal(*expected)


def test_constants_of_subscripts_and_extents_are_left_to_off_by_one() -> None:
    assert made("constant", "for i in on.steps(C - 1):\n    a[i + 1] = b[2]") == []


def test_dropped_statements() -> None:
    body = """
    tile = on.shared([C], ACCUM)
    s = i * C
    T.copy(Q[s], tile)
    for r in on.steps(C):
        tile[r] = 0.0
    if s < N:
        O[s] = x
        x = x + 1
    else:
        O[0] = x
    """
    lines = [set(normal(body)[0].splitlines()) - set(m.splitlines()) for m in made("dropped-statement", body)]
    assert [sorted(line.strip() for line in gone) for gone in lines] == [
        ["T.copy(Q[s], tile)"],
        ["for r in on.steps(C):", "tile[r] = 0.0"],  # with what is alone in it
        ["O[0] = x", "O[s] = x", "else:", "if s < N:", "x = x + 1"],
        ["O[s] = x"],
        ["x = x + 1"],  # a name that had a value before
        ["O[0] = x", "else:"],
    ]


def test_a_block_is_never_empty() -> None:
    assert made("dropped-statement", "for i in a:\n  b(i)") == ["pass"]
    assert made("dropped-statement", "if c:\n  a()\nelse:\n  b()")[1] == "if c:\n    pass\nelse:\n    b()"


def test_guards() -> None:
    assert made("guard-dropped", "if a < b:\n    c[0] = d") == normal("c[0] = d")
    assert made("guard-dropped", "if a:\n    b()\nelse:\n    c()") == normal("b()", "c()")


def test_swapped_neighbours() -> None:
    body = """
    A[0] = b
    T.copy(A, B)
    c = B[0]
    D[0] = c
    E[0] = f
    """
    # c must have a value before it is read, and D and E have nothing to do with each other.
    a, copy, c, d, e = normal(body)[0].splitlines()
    assert made("swapped-neighbours", body) == ["\n".join([copy, a, c, d, e]), "\n".join([a, c, copy, d, e])]


def test_an_update_reads_what_it_updates() -> None:
    assert made("swapped-neighbours", "x = b\nx += c") == []
    assert made("swapped-neighbours", "x[0] = b\nx[0] += c") == ["x[0] += c\nx[0] = b"]


def test_a_gemm_reads_its_accumulator() -> None:
    body = "for i in on.steps(C):\n    acc[i] = 0.0\non.gemm(A, B, acc)\non.gemm(A, A, other)"
    assert names("swapped-neighbours", body) == ["swapped-neighbours/for-i-acc/gemm-acc"]


BUFFERS = """
K_s = on.shared([C, D], on.operand)
Q_s = on.shared([C, D], on.operand)
E_s = on.shared([C, D], ACCUM)
M_f = on.fragment([C, C], ACCUM)
L_f = T.alloc_local([C, C], ACCUM)
"""


def last_lines(operator: str, statement: str) -> list[str]:
    return [m.splitlines()[-1] for m in made(operator, BUFFERS + statement)]


def test_buffers_of_one_shape_are_swapped_where_they_are_read() -> None:
    assert last_lines("buffer-swapped", "E_s[r, d] = K_s[r, d] * M_f[r, 0]") == [
        "E_s[r, d] = Q_s[r, d] * M_f[r, 0]",
        "E_s[r, d] = E_s[r, d] * M_f[r, 0]",
        "E_s[r, d] = K_s[r, d] * L_f[r, 0]",
    ]


def test_a_whole_buffer_is_swapped_for_one_of_its_dtype() -> None:
    assert last_lines("buffer-swapped", "on.gemm(K_s, E_s, M_f)") == [
        "on.gemm(Q_s, E_s, M_f)",
        "on.gemm(K_s, E_s, L_f)",
    ]


def test_global_tensors_are_swapped_where_shape_and_dtype_agree() -> None:
    source = """
def kernel(on):
    def program(Q: T.Tensor([N], on.operand), K: T.Tensor([N], on.operand), G: T.Tensor([N], ACCUM)):
        T.copy(Q[s : s + C], tile)
        G[0] = Q[0]
"""
    swapped = [m for m in generated(source, "kernel") if m.operator == "buffer-swapped"]
    assert [m.sentence for m in swapped] == [
        "in the copy to tile: Q[s:s + C] becomes K[s:s + C]",
        "in the statement that writes G: Q[0] becomes K[0]",
    ]


def test_allocations_are_narrowed_and_otherwise_left_alone() -> None:
    body = BUFFERS.replace("[C, C]", "[C + 1, 2 * C]")
    mutants = generated(module(body), "f")
    assert [m.name for m in mutants] == [f"allocation-narrowed/{name}/ACCUM..operand" for name in ("E_s", "M_f", "L_f")]
    assert all(m.source.count("on.operand") == 3 and m.source.count("ACCUM") == 2 for m in mutants)


def test_values_of_accumulators_are_narrowed() -> None:
    assert last_lines("cast-narrowed", "E_s[r, d] = a + b") == ["E_s[r, d] = T.Cast(ACCUM, on.round(a + b))"]
    assert last_lines("cast-narrowed", "K_s[r, d] = a + b") == []
    assert last_lines("cast-narrowed", "E_s[r, d] = 0.0") == []
    # It was in the operand format before.
    assert last_lines("cast-narrowed", "E_s[r, d] = T.Cast(ACCUM, K_s[r, d])") == []


def test_arrays_are_narrowed_unless_they_are_already() -> None:
    body = """
    length = a.shape[0]
    g = inputs.g.astype(accum)
    Q, e = op(q), exp(g)
    Q_T = Q.swapaxes(0, 1)
    M = gemm(Q_T, Q, np.zeros(length))
    L = np.where(i < j, M, 0)
    L -= M * e
    n = length + 1
    """
    changed = [set(m.splitlines()) - set(normal(body)[0].splitlines()) for m in made("cast-narrowed", body)]
    assert [line for lines in changed for line in lines] == [
        "g = op(inputs.g.astype(accum))",
        "Q, e = (op(q), op(exp(g)))",
        "M = op(gemm(Q_T, Q, np.zeros(length)))",
        "L = op(np.where(i < j, M, 0))",
        "L -= op(M * e)",
    ]


def test_a_name_is_narrow_where_all_its_values_are() -> None:
    body = "A = op(x)\nA = {}\nB = A[0]"
    assert made("cast-narrowed", body.format("op(y)")) == []
    assert made("cast-narrowed", body.format("exp(y)"))[-1].splitlines()[-1] == "B = op(A[0])"


def test_what_is_no_statement_stays() -> None:
    source = '''
@decorated(1 + 2)
def f(on, n: Array[1] = table[0] + 1) -> Array[2]:
    """1 < 2."""
    a: Array[3] = n - 1

    @decorated(3)
    def inner(x: Array[1 + 1] = 1) -> Array[0]:
        """a < b."""
        if x < n:
            raise ValueError(f"{x + 1} < {n - 1}")
        return x * a

    return inner


def g(x):
    return x[0] + 1
'''
    mutants = generated(source, "f")
    kept = [
        "@decorated(1 + 2)",
        "def f(on, n: Array[1]=table[0] + 1) -> Array[2]:",
        '"""1 < 2."""',
        "@decorated(3)",
        "def inner(x: Array[1 + 1]=1) -> Array[0]:",
        '"""a < b."""',
        "def g(x):",
        "return x[0] + 1",
    ]
    assert {m.operator for m in mutants} >= {"sign", "constant", "relational-boundary", "factor-dropped"}
    for mutant in mutants:
        assert [line for line in kept if line not in mutant.source] == [], mutant.sentence
        assert "a: Array[3] = " in mutant.source
        assert "raise" not in mutant.source or "raise ValueError(f'{x + 1} < {n - 1}')" in mutant.source


@BOTH
def test_mutants_parse_differ_and_have_names_of_their_own(source: str, function: str) -> None:
    mutants = all_of(source, function)
    before = {ast.dump(node) for node in ast.parse(source).body}
    dumps = set()
    for mutant in mutants:
        after = ast.parse(mutant.source).body
        (changed,) = (node for node in after if ast.dump(node) not in before)  # one, and it is the function
        assert isinstance(changed, ast.FunctionDef)
        assert changed.name == function
        dumps.add(ast.dump(changed))
        assert re.fullmatch(r"[a-z-]+(/[A-Za-z0-9_.+=-]+){1,2}", mutant.name), mutant.name
        assert len(mutant.name) < 70
        assert mutant.name.startswith(f"{mutant.operator}/")
    assert len(dumps) == len({m.name for m in mutants}) == len(mutants)


def test_how_many() -> None:
    assert len(all_of(*KERNEL)) >= 250
    assert len(all_of(*MIRROR)) >= 80


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("relational-boundary/Lt_s/j-lt-i..j-le-i", "in the statement that writes Lt_s: j < i becomes j <= i"),
        ("clear-flag/gemm-O_f/clear_accum-added", "in the gemm into O_f: clear_accum=True is added"),
        ("dropped-statement/for-d-j-S_f", "deleted: the loop over d, j around the statement that writes S_f"),
        ("buffer-swapped/K_s/K..Q", "in the copy to K_s: K[bb, s0:s0 + C, bh, :] becomes Q[bb, s0:s0 + C, bh, :]"),
        (
            "swapped-neighbours/gemm-O_f/for-r-j-O",
            "moved below the loop over r, j around the statement that writes O: on.gemm(A_s, Vt_s, O_f)",
        ),
    ],
)
def test_names_and_sentences(name: str, sentence: str) -> None:
    assert {m.name: m.sentence for m in all_of(*KERNEL)}[name] == sentence


def test_the_same_change_in_two_places_is_numbered_in_order_of_appearance() -> None:
    assert names("sign", "A[0] = b + c\nA[0] = b + c\nA[1] = b + c") == [
        "sign/A/b+c..b-c",
        "sign/A/b+c..b-c-2",
        "sign/A/b+c..b-c-3",
    ]


def test_a_number_is_not_taken_by_another_name() -> None:
    body = "A[0] = where(x, 1, 0)\nA[0] = where(x, 2, 0)\nA[0] = where(x - 2, 3, 0)"
    assert names("mask-dropped", body) == ["mask-dropped/A/x", "mask-dropped/A/x-2", "mask-dropped/A/x-2-2"]


@BOTH
def test_names_hold_still_when_something_else_changes(source: str, function: str) -> None:
    at = source.index(f"def {function}(")
    colon = source.index('"""', source.index('"""', at) + 3) + 3
    edited = (
        source[:at]
        + "def unrelated(x):\n    return x[0] + 1\n\n\n"
        + source[at:colon]
        + "\n    unrelated(7)\n"
        + source[colon:]
    )
    before = {m.name: m.sentence for m in all_of(source, function)}
    after = {m.name: m.sentence for m in generated(edited, function)}
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"dropped-statement/unrelated/7", "constant/unrelated/7..8"}


@pytest.mark.parametrize("source", ["", "def g(): pass", "class A:\n    def f(self): pass", "def f(): pass\n" * 2])
def test_a_function_that_is_not_there_once(source: str) -> None:
    with pytest.raises(LookupError, match="top-level functions named f; expected one"):
        generated(source, "f")


def mutants_of(*sources: str) -> list[Generated]:
    return [Generated(f"m{i}", "sign", "", source) for i, source in enumerate(sources)]


def test_distinct_keeps_the_first_of_each_program() -> None:
    def fingerprint(source: str) -> str:
        if source.startswith("refused"):
            raise RuntimeError("no")
        return source[0]

    mutants = mutants_of("b1", "a1", "b2", "refused", "c", "refused")
    kept, same = distinct(mutants, "a", "f", fingerprint)
    assert kept == [mutants[0], mutants[3], mutants[4], mutants[5]]
    assert same == {"m1": "lowers to the original's code", "m2": "lowers to the code of m0"}


def test_distinct_needs_an_original_that_lowers() -> None:
    with pytest.raises(ValueError, match="f as it is has no fingerprint"):
        distinct([], "a", "f", lambda source: source[1:].index("a") * "a")


def test_fingerprints_of_the_kernel() -> None:
    source, function = KERNEL
    mutants = {m.name: m for m in all_of(*KERNEL)}
    one_lane = mutants["term-dropped/d/partxlanes+lane..partxlanes"].source  # the only lane of a CPU is lane 0
    mask = mutants["relational-boundary/Lt_s/j-lt-i..j-le-i"].source
    narrow = mutants["allocation-narrowed/Ep_s/ACCUM..operand"].source
    refused = mutants["transpose-flag/gemm-M_f/transpose_B-removed"].source
    detour = source.replace("s0 = i_s * C", "s0 = (i_s + 1) * C - C")

    before = traced(source, function)
    assert traced(one_lane, function) == before
    assert len({before, traced(mask, function), traced(narrow, function), traced(detour, function)}) == 4
    with pytest.raises(AssertionError, match="shape check failed"):
        traced(refused, function)
    assert traced(source, function) == before  # a refusal leaves nothing behind

    assert lowered(detour, function) == lowered(source, function) != lowered(mask, function)
