"""Rewriting source: what a pattern finds, what takes its place, when it is stale; and that the catalogue still fits."""

import ast
import builtins
import contextlib
import functools
import inspect
import re
import shlex
import sys
import textwrap
import traceback

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from small_project import ROOT

from kda.case import Case
from kda.formats import F32, format_named
from kda.implementations import implementation
from kda.kernels import launch
from kda.mutation.campaign import SMALLEST_TILE, STALE
from kda.mutation.catalogue import CATALOGUE
from kda.mutation.hiding import HIDING
from kda.mutation.mutant import Mutant, mutant
from kda.mutation.plans import plan_catalogue
from kda.mutation.rewrite import Edit, Stale, filled, places, rewritten
from kda.references import mirror
from kda.source import module_from_source
from kda.suite.laws import load_laws

CHUNK = (ROOT / "kda" / "kernels" / "chunk.py").read_text()


def indented(body):
    return textwrap.indent(textwrap.dedent(body).strip(), "    ")


def function(body, name="f"):
    return f"def {name}():\n{indented(body)}\n"


def edited(body, find, put, inside=None):
    """The statements of a function with `body`, after one edit."""
    text = rewritten(function(body), "f", [Edit("the place", find, put, inside)])
    (made,) = ast.parse(text).body  # it parses
    return "\n".join(map(ast.unparse, made.body))


def stale(source, *edits, name="f"):
    with pytest.raises(Stale) as caught:
        rewritten(source, name, edits)
    return str(caught.value)


# What a pattern finds, and what takes its place


@pytest.mark.parametrize(
    ("body", "find", "put", "expected"),
    [
        ("a = f(x + 1)", "f(_v)", "g(_v)", "a = g(x + 1)"),
        ("a = f(b, c)", "f(_x, _y)", "f(_y, _x)", "a = f(c, b)"),
        ("a = f(b, k=c, **d)", "f(_x, k=_y, **_z)", "f(_y, k=_z, **_x)", "a = f(c, k=d, **b)"),
        ("a = b * c", "b", "b + 1", "a = (b + 1) * c"),  # precedence is the tree's
        ("a = f(b)", "f(_x)", "f(_x, _x)", "a = f(b, b)"),
        ("A[i, j] = B[i]", "B[_]", "B[0]", "A[i, j] = B[0]"),
        ("while n:\n    if f(a < b):\n        c()", "_x < _y", "_x <= _y", "while n:\n    if f(a <= b):\n        c()"),
        ("return [f(x) for x in y if x]", "[_e for _v in _s if _c]", "[_e for _v in _s]", "return [f(x) for x in y]"),
        ("def g():\n    return a", "return _x", "return f(_x)", "def g():\n    return f(a)"),
    ],
)
def test_a_hole_stands_for_any_expression(body, find, put, expected):
    assert edited(body, find, put) == expected


def test_the_same_hole_stands_for_the_same_expression():
    body = "a = f(x[0], x[1])\nb = f(x[0], x[0])"
    assert edited(body, "f(_x, _x)", "g(_x)") == "a = f(x[0], x[1])\nb = g(x[0])"
    assert "is nowhere in f" in stale(function("a = f(x, y)"), Edit("f", "f(_x, _x)", "g(_x)"))


def test_a_name_that_is_written_and_one_that_is_read_are_the_same_name():
    body = "x = y + 1\nx[i] = x[j] + 1\nx[i] = x[i] + 1"
    assert edited(body, "_p = _p + 1", "_p += 1").splitlines()[-1] == "x[i] += 1"


def test_a_wildcard_need_not_be_the_same_twice():
    assert edited("a = f(x, y)\nb = f(x)", "f(_, _)", "0") == "a = 0\nb = f(x)"


def test_a_hole_is_no_statement_and_no_keyword():
    assert "is nowhere" in stale(function("a = f(k=b)"), Edit("f", "f(_x)", "_x"))
    assert "is nowhere" in stale(function("a.b = f(c)"), Edit("b", "_x.c", "_x"))
    assert "is nowhere" in stale(function("return"), Edit("what is returned", "return _x", ""))


@pytest.mark.parametrize("other", ["1.0", "True", "2", "'1'", "b'1'"])
def test_a_number_is_found_by_its_value_and_its_type(other):
    assert edited(f"a = f({other}, 1)", "1", "3") == f"a = f({other}, 3)"


def test_what_is_written_may_be_read_and_the_other_way_round():
    made = edited("A[i] = b", "A[_i] = _v", "_v = A[_i]")
    assert made == "b = A[i]"
    made = edited("A, b = c", "_x, _y = _z", "_y, _x = _z")
    assert made == "b, A = c"
    text = rewritten(function("A[i] = b[i]"), "f", [Edit("", "A[_i] = _v[_i]", "_v[_i] = A[_i]")])
    compile(text, "made", "exec")  # contexts that do not fit would be refused here


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        ("a()\n_run\nb()", "x()\nb()\na()\ny()\nz()"),  # an empty run
        ("b()\n_run\nz()", "x()\na()\nz()\ny()\nb()"),  # one statement
        ("a()\n_run\nz()", "x()\nz()\nb()\ny()\na()"),  # two
    ],
)
def test_a_hole_on_a_line_of_its_own_stands_for_any_run_of_statements(find, expected):
    first, _, last = find.splitlines()
    assert edited("x()\na()\nb()\ny()\nz()", find, f"{last}\n_run\n{first}") == expected


def test_a_run_is_as_short_as_can_be():
    assert edited("a()\nb()\nc()\nb()", "a()\n_run\nb()", "_run") == "c()\nb()"


def test_a_run_may_be_the_body_of_a_loop():
    body = "for i in r:\n    a[i] = b\n    c()\nd()"
    assert edited(body, "for _i in _r:\n    _body", "_body") == "a[i] = b\nc()\nd()"
    assert edited(body, "for _i in _r:\n    _body", "for _i in _r:\n    _body\n    _body").count("a[i] = b") == 2
    assert edited(body, "for _i in _r:\n    a[_i] = _v\n    _rest", "_rest") == "c()\nd()"
    assert edited(body, "for _i in _r:\n    a[_i] = b\n    c()\n    _rest", "d()\n_rest") == "d()\nd()"


def test_a_body_is_matched_from_its_first_statement_to_its_last():
    body = "for i in r:\n    a()\n    b()"
    assert "is nowhere" in stale(function(body), Edit("the loop", "for _i in _r:\n    a()", ""))
    assert "is nowhere" in stale(function(body), Edit("the loop", "for _i in _r:\n    b()", ""))


def test_both_branches_may_be_runs():
    body = "if a:\n    b()\nelse:\n    c()\n    d()"
    made = edited(body, "if _a:\n    _then\nelse:\n    _else", "if _a:\n    _else\nelse:\n    _then")
    assert made == "if a:\n    c()\n    d()\nelse:\n    b()"


def test_what_follows_may_be_anything_between():
    body = "a = 0\nfor r in s:\n    a = a + x[r]\n    e[r] = f(a)\n    g[r] = f(-a)"
    find = "a = a + x[_r]\n_between\ng[_r] = _g"
    put = "_between\ng[_r] = _g\na = a + x[_r]"
    assert edited(body, find, put) == "a = 0\nfor r in s:\n    e[r] = f(a)\n    g[r] = f(-a)\n    a = a + x[r]"


def test_inside_tells_apart_what_occurs_twice():
    body = "A[i] = j < i\nB[i] = j < i"
    assert edited(body, "_a < _b", "_a <= _b", "B[_] = _") == "A[i] = j < i\nB[i] = j <= i"
    loop = "for i in r:\n    a()\n    b()\na()"
    assert edited(loop, "a()", "", "for _i in _r:\n    _body").splitlines() == ["for i in r:", "    b()", "a()"]


@pytest.mark.parametrize(
    ("call", "find", "put", "expected"),
    [
        ("f(b, c, d)", "f(_x, *_rest)", "g(*_rest)", "g(c, d)"),
        ("f(b)", "f(_x, *_rest)", "g(*_rest)", "g()"),  # none remain
        ("f(b, c, k=d)", "f(_x, *_rest, k=_k)", "f(_k, *_rest, k=_x)", "f(d, c, k=b)"),
        ("f(b, *c)", "f(_x, *_rest)", "f(0, _x, *_rest)", "f(0, b, *c)"),
        ("[b, c, d]", "[b, *_]", "[]", "[]"),
    ],
)
def test_a_hole_with_a_star_stands_for_the_arguments_that_remain(call, find, put, expected):
    assert edited(f"a = {call}", find, put) == f"a = {expected}"


def test_a_star_asks_for_what_comes_before_it():
    assert "is nowhere" in stale(function("a = f()"), Edit("f", "f(_x, *_rest)", "0"))
    assert "is nowhere" in stale(function("a = f(b, c)"), Edit("f", "f(c, *_rest)", "0"))
    with pytest.raises(ValueError, match="_others stands for nothing that was found"):
        edited("a = f(b)", "f(*_rest)", "f(*_others)")


def test_an_empty_put_deletes():
    assert edited("a()\nb()\nc()", "b()", "") == "a()\nc()"
    assert edited("a()\nb()\nc()", "a()\nb()", "") == "c()"
    assert edited("a = 1\nb = a", "a = _", "") == "b = a"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a()", "pass"),
        ("for i in r:\n    a()", "for i in r:\n    pass"),
        ("if b:\n    a()\nelse:\n    c()", "if b:\n    pass\nelse:\n    c()"),
        ("with b:\n    a()", "with b:\n    pass"),
        ("try:\n    b()\nexcept E:\n    a()", "try:\n    b()\nexcept E:\n    pass"),
    ],
)
def test_a_block_is_never_left_empty(body, expected):
    assert edited(body, "a()", "") == expected


def test_a_block_that_takes_an_empty_run_is_not_left_empty():
    swapped = "if _a:\n    _else\nelse:\n    _then"
    made = edited("if a:\n    b()", "if _a:\n    _then\nelse:\n    _else", swapped)
    assert made == "if a:\n    pass\nelse:\n    b()"


def test_statements_may_trade_places():
    assert edited("a = 1\nb = f(a)\nc = 2", "a = _x\nb = _y", "b = _y\na = _x") == "b = f(a)\na = 1\nc = 2"


def test_one_statement_may_become_several_and_several_one():
    assert edited("a = f(b)", "a = f(_x)", "t = _x\na = f(t)\nt = 0") == "t = b\na = f(t)\nt = 0"
    assert edited("a = b\nc = d", "a = _x\nc = _y", "a, c = _x, _y") == "a, c = (b, d)"


def test_edits_are_made_one_after_the_other():
    edits = [Edit("", "a = _x", "b = _x"), Edit("", "b = _x", "c = _x + 1")]
    assert rewritten(function("a = 1"), "f", edits) == function("c = 1 + 1")


def test_what_was_put_twice_is_rewritten_apart():
    edits = [Edit("", "a = _x", "a = _x\nb = _x"), Edit("", "i", "i + 1", "b = _")]
    assert rewritten(function("a = A[i]"), "f", edits) == function("a = A[i]\nb = A[i + 1]")
    edits = [Edit("", "for _i in _r:\n    _s", "_s\n_s\nb()"), Edit("", "a(0)\nb()", "b()"), Edit("", "0", "1")]
    assert rewritten(function("for i in r:\n    a(0)"), "f", edits) == function("a(1)\nb()")


def test_an_edit_may_name_another_function_or_the_module():
    source = "N = 1\n" + function("return a") + function("return a", "g")
    assert rewritten(source, "f", [Edit("", "a", "b", function="g")]).count("return a") == 1
    assert "return b" in rewritten(source, "f", [Edit("", "a", "b", function="g")]).partition("def g")[2]
    assert rewritten(source, "f", [Edit("", "N = 1", "N = 2", function="")]).startswith("N = 2\n")
    assert "is 2 times in the module" in stale(source, Edit("what is returned", "a", "b", function=""))


def test_without_edits_the_program_is_the_same():
    assert ast.dump(ast.parse(rewritten(CHUNK, "kda_chunk", []))) == ast.dump(ast.parse(CHUNK))


def test_a_hole_that_nothing_bound_is_said():
    with pytest.raises(ValueError, match="_y stands for nothing that was found"):
        edited("a = f(b)", "f(_x)", "f(_y)")
    with pytest.raises(ValueError, match="_ stands for nothing that was found"):
        edited("a = f(b)", "f(_)", "g(_)")


def test_a_run_that_nothing_bound_is_said():
    with pytest.raises(ValueError, match="_other stands for nothing that was found"):
        edited("for i in r:\n    a()", "for _i in _r:\n    _body", "_other")


def test_every_place_of_a_pattern_is_told_and_can_be_written_at():
    tree = ast.parse("for i in a:\n    x[i] = f(i)\n    y = 1\nx[j] = 2")
    outer, inner = places(tree, "x[_i] = _e")
    assert [(place.start, place.stop, ast.unparse(place.bound["_e"])) for place in (outer, inner)] == [
        (1, 2, "2"),
        (0, 1, "f(i)"),
    ]
    assert places(tree, "x[_i] = f(_j)\n_rest\ny = 2") == []
    inner.body[inner.stop : inner.stop] = filled("seen[_i] = _e", inner.bound)
    assert ast.unparse(tree) == "for i in a:\n    x[i] = f(i)\n    seen[i] = f(i)\n    y = 1\nx[j] = 2"


# Stale


def test_what_is_gone_is_stale():
    message = stale(function("a = 1"), Edit("the strict mask on L", "_a  <   _b", "_a <= _b"))
    assert message == "the strict mask on L: `_a < _b` is nowhere in f; expected once"
    message = stale(function("a = 1"), Edit("the carry", "S = _x\nfor _r in _n:\n    _body", ""))
    assert message == "the carry: `S = _x for _r in _n: _body` is nowhere in f; expected once"


def test_what_is_there_more_than_once_is_stale():
    source = function("a = i < j\nb = i < k\nif c:\n    d = k < 0")
    assert stale(source, Edit("the mask", "_x < _y", "_x")) == "the mask: `_x < _y` is 3 times in f; expected once"
    assert stale(source, Edit("the mask", "_ = i < _", "")) == "the mask: `_ = i < _` is 2 times in f; expected once"


def test_a_holder_that_is_gone_or_there_twice_is_stale():
    source = function("a[0] = b\na[1] = b")
    assert stale(source, Edit("b in c", "b", "c", "c[_] = _")) == "b in c: `c[_] = _` is nowhere in f; expected once"
    assert stale(source, Edit("b in a", "b", "c", "a[_] = _")) == "b in a: `a[_] = _` is 2 times in f; expected once"
    assert stale(source, Edit("c in a", "c", "d", "a[0] = _")) == "c in a: `c` is nowhere in f; expected once"


@pytest.mark.parametrize("source", ["", "f = 1\n", "class A:\n    def f():\n        a\n", function("a") * 2])
def test_a_function_that_is_not_there_once_is_stale(source):
    assert stale(source, Edit("a", "a", "b")) == "there is no function f to rewrite"
    assert stale(function("a"), Edit("a", "a", "b", function="g")) == "there is no function g to rewrite"


def test_the_second_edit_may_be_stale_because_of_the_first():
    assert "the second: " in stale(function("a = 1"), Edit("the first", "a = 1", ""), Edit("the second", "a = _", ""))


# What does not disturb a rewrite

LOOP = '''
def f(x, n):
    """Prefix sums."""
    s = 0
    for r in range(n):
        s = s + x[r]  # so far
        y[r] = exp(s)
        z[r] = exp(-s)
    return y
'''
LATE = Edit("the sum", "s = s + x[_r]\n_between\nz[_r] = _z", "_between\nz[_r] = _z\ns = s + x[_r]")


def lines_of(text):
    return [line.strip() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s = 0\n", "s = 0\n    t = 1\n"),
        ("y[r] = exp(s)\n", "w[r] = s\n        y[r] = exp(s)\n"),
        ("    return y", "    print(s + x[0])\n    return y"),
        ("# so far", "# the sum of all gates up to this one\n        # and its own"),
        ('"""Prefix sums."""', '"""s = s + x[r]"""'),
        ("s + x[r]", "(\n            s\n            + x[r]\n        )"),
        ("def f", "def g(x):\n    s = s + x[r]\n\n\ndef f"),
        ("[r]", "[row]"),
    ],
)
def test_an_unrelated_edit_leaves_a_rewrite_working(old, new):
    source = LOOP.replace(old, new).replace("for r", "for row" if new == "[row]" else "for r")
    assert source != LOOP
    r = "row" if new == "[row]" else "r"
    made = lines_of(rewritten(source, "f", [LATE]))
    assert made.index(f"z[{r}] = exp(-s)") + 1 == made.index(f"s = s + x[{r}]", made.index(f"y[{r}] = exp(s)"))


# For any program

NAMES = st.sampled_from("abc")
EXPRESSIONS = st.recursive(
    NAMES | st.integers(0, 2).map(str),
    lambda e: st.one_of(
        st.tuples(e, st.sampled_from("+-*"), e).map(lambda t: "({} {} {})".format(*t)),
        st.tuples(NAMES, e).map(lambda t: "{}[{}]".format(*t)),
        st.tuples(NAMES, e, e).map(lambda t: "{}({}, k={})".format(*t)),
    ),
    max_leaves=4,
)
TARGETS = NAMES | st.tuples(NAMES, EXPRESSIONS).map(lambda t: "{}[{}]".format(*t))
ASSIGNMENTS = st.tuples(TARGETS, EXPRESSIONS).map(lambda t: ["{} = {}".format(*t)])
BLOCKS = st.recursive(
    ASSIGNMENTS,
    lambda b: st.one_of(
        st.tuples(b, b).map(lambda t: t[0] + t[1]),
        st.tuples(NAMES, NAMES, b).map(lambda t: [f"for {t[0]} in {t[1]}:", *(f"    {line}" for line in t[2])]),
        st.tuples(EXPRESSIONS, b, b).map(
            lambda t: [f"if {t[0]}:", *(f"    {x}" for x in t[1]), "else:", *(f"    {x}" for x in t[2])]
        ),
    ),
    max_leaves=6,
)


def statements_of(source):
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)][1:]  # not the function itself


@given(BLOCKS, st.data())
def test_a_statement_in_its_own_place_changes_nothing(lines, data):
    source = function("\n".join(lines))
    found = [ast.unparse(node) for node in statements_of(source)]
    chosen = data.draw(st.sampled_from(found))
    if found.count(chosen) > 1:
        assert f"is {found.count(chosen)} times in f; expected once" in stale(source, Edit("it", chosen, chosen))
    else:
        assert ast.dump(ast.parse(rewritten(source, "f", [Edit("it", chosen, chosen)]))) == ast.dump(ast.parse(source))


@given(BLOCKS, st.data())
def test_a_pattern_in_its_own_place_changes_nothing(lines, data):
    source = function("\n".join(lines))
    chosen = ast.unparse(data.draw(st.sampled_from(statements_of(source))))
    hidden = data.draw(st.sets(NAMES))
    pattern = re.sub(r"\b[abc]\b", lambda name: "_" * (name[0] in hidden) + name[0], chosen)
    with contextlib.suppress(Stale):  # a pattern may fit several statements
        made = rewritten(source, "f", [Edit("it", pattern, pattern)])
        assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(source))


@given(BLOCKS, st.data())
def test_deleting_leaves_a_program_without_it(lines, data):
    source = function("\n".join(lines))
    found = [ast.unparse(node) for node in statements_of(source)]
    chosen = data.draw(st.sampled_from(found))
    assume(found.count(chosen) == 1)
    left = [ast.unparse(node) for node in statements_of(rewritten(source, "f", [Edit("it", chosen, "")]))]
    assert chosen not in left
    assert len(left) <= len(found)


# Modules made from text


def test_a_module_stands_beside_every_other():
    one, other = module_from_source("a = 1", "m"), module_from_source("a = 2", "m")
    assert (one.a, other.a) == (1, 2)
    assert sys.modules[one.__name__] is one
    assert sys.modules[other.__name__] is other
    assert one.__name__.startswith("m~")


def test_a_module_made_of_the_kernel_leaves_the_kernel_alone():
    from kda.kernels import chunk

    before = chunk.kda_chunk
    made = module_from_source(CHUNK, "chunk", "kda.kernels")
    assert made.kda_chunk is not before
    assert sys.modules["kda.kernels.chunk"].kda_chunk is before


def test_the_source_of_a_module_can_be_read_back():
    text = "A = 1\n\n\ndef f(x):\n    # why\n    return x\n\n\nclass B:\n    b = 2\n"
    module = module_from_source(text, "m")
    assert inspect.getsource(module) == text
    assert inspect.getsource(module.f) == "def f(x):\n    # why\n    return x\n"
    assert inspect.getsource(module.B) == "class B:\n    b = 2\n"


def test_dataclasses_work_in_a_module():
    text = """
from __future__ import annotations
from dataclasses import KW_ONLY, InitVar, dataclass

@dataclass(frozen=True)
class Pair:
    one: int
    _: KW_ONLY
    twice: InitVar[int] = 2
    other: int = 0
"""
    pair = module_from_source(text, "m").Pair
    assert repr(pair(1, other=2)) == "Pair(one=1, other=2)"


def test_relative_imports_are_those_of_the_package():
    module = module_from_source("from .base import Implementation\nfrom .. import case", "m", "kda.implementations")
    assert module.Implementation is type(implementation("mirror")).__mro__[-3]
    assert module.case.Case is Case


def test_annotations_are_the_text_s_own():
    assert module_from_source("def f(x: int): pass", "m").f.__annotations__ == {"x": int}


@pytest.mark.parametrize("text", ["import sys\nsys.exit(3)", "raise ValueError", "import nosuch", "def", "1 +"])
def test_a_failing_import_leaves_nothing_behind(text):
    before = set(sys.modules)
    with pytest.raises((SystemExit, ValueError, ImportError, SyntaxError)):
        module_from_source(text, "m")
    assert set(sys.modules) == before


def test_a_traceback_shows_the_line():
    module = module_from_source("def f(x):\n    return 1 / x  # here\n", "m")
    with pytest.raises(ZeroDivisionError) as caught:
        module.f(0)
    shown = "".join(traceback.format_exception(caught.value))
    assert f'File "<{module.__name__}>", line 2, in f' in shown
    assert "return 1 / x  # here" in shown


# Mutants


def test_a_mutant_leaves_the_original_as_it_is():
    original = implementation("mirror")
    case = SMALLEST_TILE.of(Case(N=2, dtype=F32)).replace(beta="constant:0.5")
    inputs = case.inputs()
    before, text = original.run(inputs, case.tile, "c"), inspect.getsource(mirror)
    planted = CATALOGUE["beta-twice"].mutant("mirror").planted()
    assert planted.name == "mirror~beta-twice"
    assert abs(planted.run(inputs, case.tile, "c").o - before.o).max() > 0.1
    for again in (original, implementation("mirror")):
        assert again.name == "mirror"
        assert (again.run(inputs, case.tile, "c").o == before.o).all()
    assert inspect.getsource(mirror) == text
    assert original.sources()["kernel"].module is mirror


def test_a_mutant_of_the_launch_leaves_the_launch_as_it_is():
    before = dict(vars(launch))
    planted = CATALOGUE["strides-assumed"].mutant("kernel").planted()
    assert "as_strided" in inspect.getsource(planted._launch.aligned)
    assert "as_strided" not in inspect.getsource(launch.aligned)
    assert dict(vars(launch)) == before


def test_a_mutant_without_sources_is_the_original():
    assert Mutant("as it is", "", "mirror").planted().name == "mirror"


def test_a_mutant_names_the_place_that_is_gone():
    with pytest.raises(Stale, match="the mask: `nowhere` is nowhere in ref_C_fast"):
        mutant("m", "", implementation("mirror"), {"kernel": [Edit("the mask", "nowhere", "")]})


# The catalogue


@functools.cache
def planted_everywhere():
    """What every entry makes in each of its forms, by (form, name), and what is stale."""
    made, gone = {}, []
    for name, mistake in CATALOGUE.items():
        for form in mistake.forms:
            try:
                made[form, name] = mistake.mutant(form)
            except Stale as stale:
                gone.append(f"{name} in the {form}: {stale}")
    return made, gone


def unknown_names(text):
    """Names that a module reads and nobody gives a value."""
    nodes = list(ast.walk(ast.parse(text)))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    given = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    given |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    given |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    given |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler))}
    return read - given - set(dir(builtins)) - {"__file__", "__name__"}


def test_every_entry_finds_its_places():
    made, gone = planted_everywhere()
    assert gone == []
    assert all(mistake.forms for mistake in CATALOGUE.values())
    assert {name for _, name in made} == set(CATALOGUE)


def test_every_entry_makes_another_program_of_names_that_exist():
    @functools.cache
    def originals(name):
        return {role: rewritten(source.text, "", []) for role, source in implementation(name).sources().items()}

    for (_, name), made in planted_everywhere()[0].items():
        assert made.sources
        for role, text in made.sources:
            assert text != originals(made.implementation)[role], name
            compile(text, name, "exec")
            assert unknown_names(text) == set(), name


def test_no_two_entries_make_the_same_program():
    names = {}
    for (form, name), made in planted_everywhere()[0].items():
        names.setdefault((form, made.sources), []).append(name)
    assert [same for same in names.values() if len(same) > 1] == []


def test_there_are_dozens_of_entries_and_each_has_a_name_of_its_own():
    from kda.mutation import catalogue

    rooms = [getattr(catalogue, name) for name in dir(catalogue) if isinstance(getattr(catalogue, name), tuple)]
    every = [mistake for room in rooms for mistake in room]
    assert len(every) == len(CATALOGUE) >= 40
    assert all(name == mistake.name for name, mistake in CATALOGUE.items())
    assert {mistake.name for mistake in every} == set(CATALOGUE)


def test_names_need_no_quotes_and_sentences_no_period():
    for name, mistake in CATALOGUE.items():
        assert shlex.quote(name) == name
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]", name)
        for text in (mistake.sentence, mistake.source, mistake.harmless):
            assert text == " ".join(text.split())
            assert not text.endswith("."), text
        assert mistake.sentence
        assert mistake.source


def test_every_entry_is_looked_for_by_a_law_that_exists():
    laws = load_laws(ROOT / "properties")
    unknown = {mistake.name: mistake.law for mistake in CATALOGUE.values() if mistake.law not in laws}
    unknown |= {name: hiding.law for name, hiding in HIDING.items() if hiding.law and hiding.law not in laws}
    assert unknown == {}


def test_every_entry_is_looked_for_where_it_can_be():
    for mistake in CATALOGUE.values():
        assert mistake.targets
        assert set(mistake.targets) <= {"c", "cuda"}
        assert mistake.tokens >= 1
        assert mistake.members >= 1
        for form in {"kernel", "mirror"} & set(mistake.forms):
            for target in mistake.targets if form == "kernel" else ("c",):
                assert format_named(mistake.dtype) in implementation("mirror").dtypes(target), mistake.name


def test_what_hides_a_mistake_is_known_and_used():
    used = {name for mistake in CATALOGUE.values() for name in mistake.hidden_by}
    assert used == set(HIDING)
    assert all(hiding.why for hiding in HIDING.values())


# An edited copy of the kernel


def copied(folder, text):
    path = folder / "chunk.py"
    path.write_text(text)
    return f"{path}:kda_chunk"


def kernel_entries():
    """The entries that are made in the kernel itself."""
    return {name: mistake for name, mistake in CATALOGUE.items() if mistake.kernel and "c" in mistake.targets}


def test_a_renamed_buffer_makes_the_entries_about_it_stale_and_no_others(tmp_path):
    assert "Lower_s" not in CHUNK
    original = copied(tmp_path, CHUNK.replace("Lt_s", "Lower_s"))
    plan = plan_catalogue("kernel", "c", [0], kernel_entries(), original=original)
    about = {
        name: [edit for edit in mistake.kernel if "Lt_s" in f"{edit.find} {edit.inside}"]
        for name, mistake in kernel_entries().items()
    }
    rows = {row.name: row for row in plan.settled}
    assert set(rows) == {name for name, edits in about.items() if edits}
    assert 5 < len(rows) < len(about) / 2
    for name, row in rows.items():
        assert row.status == STALE
        whats = [edit.what for edit in about[name]]
        assert any(row.said.startswith(f"{what}: `") for what in whats)
        assert "Lt_s" in row.said
        assert row.said.endswith("is nowhere in kda_chunk; expected once")
    assert {task.mutant.name for task in plan.tasks} == set(about) - set(rows)
    assert {task.mutant.implementation for task in [plan.control, *plan.tasks]} == {original}
    # ... and what is made of the others is made of the copy.
    kernels = [dict(task.mutant.sources).get("kernel") for task in plan.tasks]
    assert all("Lower_s" in text and "Lt_s" not in text for text in kernels if text)


def test_what_is_not_about_a_place_does_not_make_it_stale(tmp_path):
    text = CHUNK
    for old, new in (
        ("    columns = DK + block_DV\n", "    # A comment.\n    columns = DK + block_DV\n    unused = DK + 1\n"),
        ("                s0 = i_s * C\n", "                s0 = i_s * C\n                after = s0 + C\n"),
        ("T.if_then_else(j < i, beta_s[j] * M_f", "T.if_then_else(  # strict\n  j < i, beta_s[j]\n * M_f"),
        ("            lane = on.lane()\n", "            here = on.lane()\n            lane = here\n"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    plan = plan_catalogue("kernel", "c", [0], kernel_entries(), original=copied(tmp_path, text))
    assert [row.said for row in plan.settled] == []
    assert {task.mutant.name for task in plan.tasks} == set(kernel_entries())


def test_loop_variables_may_have_other_names(tmp_path):
    text = re.sub(r"\b(r|d|i|j|col|part|later)\b", r"its_\1", CHUNK)
    assert text.count("for its_") > 15
    plan = plan_catalogue("kernel", "c", [0], kernel_entries(), original=copied(tmp_path, text))
    assert [row.said for row in plan.settled] == []
    for task in plan.tasks:
        assert all(unknown_names(made) == set() for _, made in task.mutant.sources), task.mutant.name
