"""Mutants made by rule: one small change of a kernel's source, by its syntax tree, wherever an operator fits.

The operators know the words of a kernel (`on.gemm`, `T.copy`, `on.round`, allocations) and those of the mirror (`op`,
`np.where`), so that what they make mostly still runs. Names say where by meaning, never by line: an edit elsewhere in
the module leaves them as they are.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["OPERATORS", "Generated", "generated"]

#: Longest name of a mutant.
NAME_LENGTH = 66

LOOPS = {"steps", "parallel", "serial", "unroll", "Pipelined", "Parallel", "grid", "range"}
ALLOCATIONS = {"shared", "fragment", "alloc_local", "alloc_shared", "alloc_fragment", "alloc_var"}
EXPONENTIALS = {"exp", "exp2", "exp10"}
SELECTIONS = {"if_then_else", "where"}
#: Methods that give the same numbers in another layout or type; names leave them out.
METHODS = {"astype", "swapaxes"}
FLAGS = {"transpose_A": "transpose-flag", "transpose_B": "transpose-flag", "clear_accum": "clear-flag"}
#: Calls that give a slice, or several: a name they are bound to is no number to add 1 to.
SLICES = {"slice", "chunks"}
#: The dtype of accumulators, as the kernel spells it.
ACCUM = "ACCUM"

BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
NEGATION: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
OPPOSITE: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}

#: Operators in names, which a shell takes without quotes.
SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "x",
    ast.Div: "div",
    ast.Lt: "-lt-",
    ast.LtE: "-le-",
    ast.Gt: "-gt-",
    ast.GtE: "-ge-",
    ast.Eq: "-eq-",
    ast.NotEq: "-ne-",
}


@dataclass(frozen=True)
class Generated:
    """One mutant.

    name: `operator/where/what`, by meaning, safe in a shell; operator: a key of `OPERATORS`; sentence: what is changed;
    source: the whole module with the change in it.
    """

    name: str
    operator: str
    sentence: str
    source: str


def generated(source: str, function: str) -> list[Generated]:
    """Every mutant of the top-level `function` of the module `source`, one change each, no two with the same source.

    Signatures, decorators, annotations, docstrings, error messages and shapes of allocations stay as they are.
    LookupError where the module has no such function, or two; SyntaxError where it does not parse.
    """
    tree = ast.parse(source)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    if len(found) != 1:
        raise LookupError(f"the module has {len(found)} top-level functions named {function}; expected one to mutate")
    subject = _Subject(found[0])
    sources = {ast.unparse(tree)}
    names: set[str] = set()
    mutants = []
    for operator, changes in _CHANGES.items():
        for change in changes(subject):
            text = change.made(tree)
            if text in sources:
                continue
            sources.add(text)
            name = _unused("/".join(part for part in (operator, change.where.name, change.what) if part), names)
            names.add(name)
            mutants.append(Generated(name, operator, change.sentence, text + "\n"))
    return mutants


def _unused(name: str, names: set[str]) -> str:
    """`name`, numbered from 2 on where it is taken."""
    name = name[:NAME_LENGTH]
    numbered = (f"{name}-{n}" for n in itertools.count(2))
    return name if name not in names else next(other for other in numbered if other not in names)


@dataclass(frozen=True)
class _Where:
    """A statement by its meaning: in names, and in sentences."""

    name: str
    words: str


@dataclass(frozen=True)
class _Change:
    """One change: the field of a node that gets another value."""

    where: _Where
    what: str
    sentence: str
    node: ast.AST
    field: str
    value: object

    def made(self, tree: ast.Module) -> str:
        """The text of the module with the change in it; the tree is left as it was."""
        before = getattr(self.node, self.field)
        setattr(self.node, self.field, self.value)
        try:
            return ast.unparse(tree)
        finally:
            setattr(self.node, self.field, before)


@dataclass(frozen=True)
class _Place:
    """An expression and what it is part of. index: in the parent's field, where that is a list."""

    node: ast.expr
    parent: ast.AST
    field: str
    index: int | None
    where: _Where
    in_subscript: bool = False
    in_extent: bool = False

    def put(self, new: ast.expr, what: str | None = None, becomes: str | None = None) -> _Change:
        """The change of this expression to `new`."""
        value: object = new
        if self.index is not None:
            value = [new if i == self.index else old for i, old in enumerate(getattr(self.parent, self.field))]
        return _Change(
            self.where,
            what or f"{_brief(self.node)}..{_brief(new)}",
            f"in {self.where.words}: " + (becomes or f"{ast.unparse(self.node)} becomes {ast.unparse(new)}"),
            self.parent,
            self.field,
            value,
        )


@dataclass(frozen=True)
class _Line:
    """A statement in its block: `getattr(owner, field)[index]`."""

    node: ast.stmt
    owner: ast.AST
    field: str
    index: int
    where: _Where

    @property
    def block(self) -> list[ast.stmt]:
        return getattr(self.owner, self.field)

    @property
    def alone(self) -> bool:
        """Whether its loop or guard does nothing else, so that without it the block is empty."""
        branches = isinstance(self.owner, ast.If) and self.owner.orelse
        return isinstance(self.owner, (ast.For, ast.While, ast.If)) and not branches and len(self.block) == 1

    def put(self, statements: Sequence[ast.stmt], what: str, sentence: str, count: int = 1) -> _Change:
        """The change of this statement, or of `count` from it on, to `statements`."""
        block = [*self.block[: self.index], *statements, *self.block[self.index + count :]]
        if not block and self.field == "body":
            block = [ast.Pass()]
        return _Change(self.where, what, sentence, self.owner, self.field, block)


@dataclass(frozen=True)
class _Buffer:
    """A tile, or a tensor in global memory: the texts of its shape and dtype."""

    shape: str
    dtype: str
    is_global: bool


class _Subject:
    """A function, taken apart: its statements and expressions in order of appearance, and its buffers."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.function = function
        self.lines = list(_lines(function))
        self.places = [place for line in self.lines if not _allocates(line.node) for place in _places(line)]
        self.buffers = dict(_buffers(function))
        self.slices = set(_names_of_slices(function))
        self.loads = _loads(function)

    @property
    def dialect(self) -> str:
        """What the kernel calls its dialect: its first parameter."""
        return self.function.args.args[0].arg

    def calls(self, names: set[str]) -> Iterator[tuple[_Place, ast.Call]]:
        """The calls of functions or methods of these names."""
        for place in self.places:
            if isinstance(place.node, ast.Call) and _callee(place.node) in names:
                yield place, place.node

    def operations(self, *kinds: type[ast.operator]) -> Iterator[tuple[_Place, ast.BinOp]]:
        """The binary operations of these kinds on numbers."""
        for place in self.places:
            node = place.node
            if isinstance(node, ast.BinOp) and isinstance(node.op, kinds) and not _is_text(node):
                yield place, node


_Changes = Callable[[_Subject], Iterator[_Change]]

#: The operators, and what each does.
OPERATORS: dict[str, str] = {}
_CHANGES: dict[str, _Changes] = {}


def _operator(name: str, description: str) -> Callable[[_Changes], _Changes]:
    def add(changes: _Changes) -> _Changes:
        OPERATORS[name] = description
        _CHANGES[name] = changes
        return changes

    return add


# Comparisons


@_operator("relational-boundary", "< and <=, > and >= change places: a bound off by its own value")
def _relational_boundary(subject: _Subject) -> Iterator[_Change]:
    yield from _compared(subject, BOUNDARY)


@_operator("relational-negation", "a comparison becomes its negation")
def _relational_negation(subject: _Subject) -> Iterator[_Change]:
    yield from _compared(subject, NEGATION)


def _compared(subject: _Subject, other: dict[type[ast.cmpop], type[ast.cmpop]]) -> Iterator[_Change]:
    for place in subject.places:
        if isinstance(place.node, ast.Compare):
            for i, op in enumerate(place.node.ops):
                if type(op) in other:
                    ops = [*place.node.ops[:i], other[type(op)](), *place.node.ops[i + 1 :]]
                    yield place.put(ast.Compare(place.node.left, ops, place.node.comparators))


# Indices and extents


@_operator("index-off-by-one", "an index, or both ends of a slice, moved by one up or down")
def _index_off_by_one(subject: _Subject) -> Iterator[_Change]:
    for place in subject.places:
        if not isinstance(place.node, ast.Subscript):
            continue
        base = _brief(place.node.value)
        for axis, index in enumerate(_indices(place)):
            for by in (1, -1):
                moved = _moved(subject, place.node, index.node, by)
                if moved is not None:
                    text = f"slice{by:+d}" if isinstance(index.node, ast.Slice) else _brief(moved)
                    yield index.put(moved, f"{base}.{axis}.{text}", _index_becomes(place.node, index.node, moved, axis))


def _index_becomes(node: ast.Subscript, old: ast.expr, new: ast.expr, axis: int) -> str:
    return f"index {axis} of {ast.unparse(node)}: {ast.unparse(old)} becomes {ast.unparse(new)}"


def _moved(subject: _Subject, subscript: ast.Subscript, index: ast.expr, by: int) -> ast.expr | None:
    if isinstance(index, ast.Slice):
        if index.lower is None and index.upper is None:
            return None
        lower, upper = (None if bound is None else _plus(bound, by) for bound in (index.lower, index.upper))
        return ast.Slice(lower, upper, index.step)
    if isinstance(index, ast.Constant) and _number(index) is None:
        return None  # None and ... are axes, not numbers
    if isinstance(index, ast.Name) and index.id in subject.slices:
        return None
    buffer = subject.buffers.get(_base(subscript) or "")
    if buffer is not None and buffer.shape == "[1]":
        return None  # there is no other element
    return _plus(index, by)


def _plus(node: ast.expr, by: int) -> ast.expr:
    number = _number(node)
    if number is not None:
        return _literal(number + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


@_operator("range-off-by-one", "a loop, or a number of blocks, one longer or shorter")
def _range_off_by_one(subject: _Subject) -> Iterator[_Change]:
    for place in subject.places:
        extent = isinstance(place.node, ast.Call) and _callee(place.node) == "ceildiv"
        call = place.parent
        if isinstance(call, ast.Call) and place.field == "args" and _is_loop(place.where, call) and place.in_extent:
            # range(start, stop): the start is no extent.
            extent = not (_callee(call) == "range" and len(call.args) > 1 and place.index != 1)
        if extent:
            for by in (1, -1):
                yield place.put(_plus(place.node, by))


def _is_loop(where: _Where, call: ast.Call) -> bool:
    return where.name.startswith("for-") and _callee(call) in LOOPS


# Arithmetic


@_operator("sign", "+ and - change places; the argument of an exponential changes its sign")
def _sign(subject: _Subject) -> Iterator[_Change]:
    for place, call in subject.calls(EXPONENTIALS):
        if call.args:
            argument = _negated(call.args[0])
            yield place.put(ast.Call(call.func, [argument, *call.args[1:]], call.keywords))
    for place, node in subject.operations(ast.Add, ast.Sub):
        yield place.put(ast.BinOp(node.left, OPPOSITE[type(node.op)](), node.right))
    for line in subject.lines:
        update = line.node
        if isinstance(update, ast.AugAssign) and type(update.op) in OPPOSITE:
            new = ast.AugAssign(update.target, OPPOSITE[type(update.op)](), update.value)
            old, other = SYMBOLS[type(update.op)], SYMBOLS[type(new.op)]
            yield line.put([new], f"{old}=..{other}=", f"in {line.where.words}: {old}= becomes {other}=")


def _negated(node: ast.expr) -> ast.expr:
    # -a * b is (-a) * b: the sign is that of the first factor.
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)) and _leads_with_minus(node.left):
        return ast.BinOp(_negated(node.left), node.op, node.right)
    return ast.UnaryOp(ast.USub(), node)


def _leads_with_minus(node: ast.expr) -> bool:
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        node = node.left
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


@_operator("factor-dropped", "a product becomes one of its factors")
def _factor_dropped(subject: _Subject) -> Iterator[_Change]:
    for place, node in subject.operations(ast.Mult):
        yield place.put(node.left)
        yield place.put(node.right)


@_operator("term-dropped", "a sum or difference becomes one of its terms")
def _term_dropped(subject: _Subject) -> Iterator[_Change]:
    for place, node in subject.operations(ast.Add, ast.Sub):
        yield place.put(node.left)
        yield place.put(node.right if isinstance(node.op, ast.Add) else ast.UnaryOp(ast.USub(), node.right))


@_operator("operand-swap", "the sides of a difference, the operands of a gemm, or two indices change places")
def _operand_swap(subject: _Subject) -> Iterator[_Change]:
    for place, node in subject.operations(ast.Sub):
        yield place.put(ast.BinOp(node.right, node.op, node.left))
    for place, call in subject.calls({"gemm"}):
        if len(call.args) >= 2:
            a, b, *rest = call.args
            before, after = f"{_brief(a)}.{_brief(b)}", f"{_brief(b)}.{_brief(a)}"
            becomes = f"the operands {ast.unparse(a)} and {ast.unparse(b)} change places"
            yield place.put(ast.Call(call.func, [b, a, *rest], call.keywords), f"{before}..{after}", becomes)
    for place in subject.places:
        if isinstance(place.node, ast.Subscript):
            indices = [index.node for index in _indices(place)]
            if len(indices) == 2 and not any(_is_axis(index) for index in indices):
                what = f"{_brief(place.node.value)}.{_brief(indices[1])}.{_brief(indices[0])}"
                yield place.put(ast.Subscript(place.node.value, ast.Tuple(indices[::-1]), place.node.ctx), what)


def _is_axis(index: ast.expr) -> bool:
    return isinstance(index, ast.Slice) or (isinstance(index, ast.Constant) and _number(index) is None)


# Products of tiles


@_operator("transpose-flag", "transpose_A or transpose_B of a product of tiles is set or left out")
def _transpose_flag(subject: _Subject) -> Iterator[_Change]:
    yield from _flag_flipped(subject, "transpose-flag")


@_operator("clear-flag", "clear_accum of a product of tiles is set or left out")
def _clear_flag(subject: _Subject) -> Iterator[_Change]:
    yield from _flag_flipped(subject, "clear-flag")


def _flag_flipped(subject: _Subject, operator: str) -> Iterator[_Change]:
    for place, call in subject.calls({"gemm"}):
        if not isinstance(call.func, ast.Attribute):
            continue  # the mirror's gemm takes no flags
        for flag in (name for name, kind in FLAGS.items() if kind == operator):
            given = [keyword for keyword in call.keywords if keyword.arg == flag]
            others = [keyword for keyword in call.keywords if keyword.arg != flag]
            # A flag that is given as False is as good as absent.
            on = any(not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in given)
            keywords = others if on else [*others, ast.keyword(flag, ast.Constant(True))]
            new = ast.Call(call.func, call.args, keywords)
            verb = "removed" if on else "added"
            yield place.put(new, f"{flag}-{verb}", f"{flag}=True is {verb}")


# Statements


@_operator("dropped-statement", "a statement, a loop or a guarded block is deleted")
def _dropped_statement(subject: _Subject) -> Iterator[_Change]:
    for line in subject.lines:
        if _is_movable(line.node) and not line.alone and not _is_needed(subject, line.node):
            yield line.put([], _statement_brief(line.node), f"deleted: {_statement_words(line.node)}")


def _is_needed(subject: _Subject, node: ast.stmt) -> bool:
    """Whether `node` gives names their first value that others use: without it nothing runs."""
    if not isinstance(node, ast.Assign) or not all(_is_plain(target) for target in node.targets):
        return False
    own = _loads(node)
    bound = {name for target in node.targets for name in _names(target)}
    return any(subject.loads[name] > own[name] and not own[name] for name in bound)


@_operator("guard-dropped", "a guarded block runs always; where there is an else, either block")
def _guard_dropped(subject: _Subject) -> Iterator[_Change]:
    for line in subject.lines:
        if isinstance(line.node, ast.If):
            words, brief = line.where.words, _brief(line.node.test)
            yield line.put(line.node.body, f"{brief}..true", f"in {words}: the block is always run")
            if line.node.orelse:
                yield line.put(line.node.orelse, f"{brief}..false", f"in {words}: the else block is always run")


@_operator("mask-dropped", "a selection (if_then_else, where) becomes its second argument")
def _mask_dropped(subject: _Subject) -> Iterator[_Change]:
    for place, call in subject.calls(SELECTIONS):
        if len(call.args) == 3:
            yield place.put(call.args[1], _brief(call.args[0]))


@_operator("swapped-neighbours", "two statements in a row, one of which touches what the other writes, change places")
def _swapped_neighbours(subject: _Subject) -> Iterator[_Change]:
    for line in subject.lines:
        for second in line.block[line.index + 1 : line.index + 2]:
            first = line.node
            if not (_is_movable(first) and _is_movable(second)):
                continue
            one, other = _touched(first), _touched(second)
            if one.binds & other.reads:
                continue  # there would be no value to read
            # Statements that touch nothing of each other do the same in either order.
            if one.writes & (other.reads | other.writes) or one.reads & other.writes:
                sentence = f"moved below {_where(second).words}: {_statement_words(first)}"
                yield line.put([second, first], _where(second).name, sentence, count=2)


# Values


@_operator("constant", "a number becomes another: 0 becomes 1, 1 becomes 0 or 2, x becomes x + 1")
def _constant(subject: _Subject) -> Iterator[_Change]:
    for place in subject.places:
        if place.in_subscript or place.in_extent:
            continue  # off by one there already
        if isinstance(place.parent, ast.UnaryOp) and _number(place.parent) is not None:
            continue  # the number is -x, not x
        number = _number(place.node)
        if number is not None:
            for other in (0, 2) if number == 1 else (number + 1,):
                yield place.put(_literal(type(number)(other)))


@_operator("cast-dropped", "a rounding or a conversion is left out")
def _cast_dropped(subject: _Subject) -> Iterator[_Change]:
    for place in subject.places:
        inner = _cast_of(place.node)
        if inner is not None:
            assert isinstance(place.node, ast.Call)
            yield place.put(inner, f"{_callee(place.node)}-{_brief(inner)}")


@_operator("cast-narrowed", "a value that an accumulator holds is rounded to the operand format")
def _cast_narrowed(subject: _Subject) -> Iterator[_Change]:
    arrays = _Arrays(subject)
    for line in subject.lines:
        node = line.node
        if not isinstance(node, (ast.Assign, ast.AugAssign)) or _allocates(node):
            continue
        for place, target in _values(line):
            new = arrays.rounded(place.node) or _rounded(subject, target, place.node)
            if new is not None:
                yield place.put(new, _brief(place.node), f"{ast.unparse(place.node)} is rounded to the operand format")


def _rounded(subject: _Subject, target: ast.expr, value: ast.expr) -> ast.expr | None:
    """`value` rounded and widened again, where it goes to an element of an accumulator and may lose bits."""
    buffer = subject.buffers.get(_base(target) or "")
    if buffer is None or buffer.dtype != ACCUM or _number(value) is not None:
        return None
    if isinstance(value, ast.Call) and _callee(value) == "Cast":
        inner = subject.buffers.get(_base(value.args[-1]) or "")
        if inner is not None and inner.dtype != ACCUM:
            return None  # it has been in the operand format
    rounded = ast.Call(ast.Attribute(ast.Name(subject.dialect), "round"), [value], [])
    return ast.Call(ast.Attribute(ast.Name("T"), "Cast"), [ast.Name(ACCUM), rounded], [])


class _Arrays:
    """Which names of a NumPy function hold float arrays, and which of them are rounded already by `op`."""

    def __init__(self, subject: _Subject) -> None:
        self.used = any(isinstance(call.func, ast.Name) for _, call in subject.calls({"op"}))
        self.arrays: set[str] = set()
        self.narrow: set[str] = set()
        bound = [
            (target.id, place.node)
            for line in subject.lines
            if isinstance(line.node, (ast.Assign, ast.AugAssign))
            for place, target in _values(line)
            if isinstance(target, ast.Name)
        ]
        # Until nothing changes: in a loop, a name may be read above the statement that binds it.
        while True:
            arrays = {name for name, value in bound if self.is_array(value)}
            narrow = {name for name, _ in bound} - {name for name, value in bound if not self.is_narrow(value)}
            if (arrays, narrow) == (self.arrays, self.narrow):
                break
            self.arrays, self.narrow = arrays, narrow

    def rounded(self, value: ast.expr) -> ast.expr | None:
        """`op(value)`, where `value` is an array that is not rounded yet."""
        if self.used and self.is_array(value) and not self.is_narrow(value):
            return ast.Call(ast.Name("op"), [value], [])
        return None

    def is_array(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.arrays
            case ast.Subscript(value=value) | ast.UnaryOp(operand=value):
                return self.is_array(value)
            case ast.BinOp(left=left, right=right):
                return self.is_array(left) or self.is_array(right)
            case ast.Call(func=ast.Name(id=name)):
                return name in {"op", "exp", "gemm"}
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np")), args=args):
                inner = [item for arg in args for item in (arg.elts if isinstance(arg, ast.List) else [arg])]
                return any(self.is_array(item) for item in inner)
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                return method == "astype" or (method == "swapaxes" and self.is_array(value))
        return False

    def is_narrow(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.narrow
            case ast.Call(func=ast.Name(id="op")):
                return True
            case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value=value, attr="swapaxes")):
                return self.is_narrow(value)
        return False


# Buffers


@_operator("allocation-narrowed", "a float32 buffer is allocated in the operand format")
def _allocation_narrowed(subject: _Subject) -> Iterator[_Change]:
    for line in subject.lines:
        node = line.node
        if isinstance(node, ast.Assign) and _allocates(node) and isinstance(node.value, ast.Call):
            for i, argument in enumerate(node.value.args):
                if isinstance(argument, ast.Name) and argument.id == ACCUM:
                    narrow = ast.Attribute(ast.Name(subject.dialect), "operand")
                    yield _Place(argument, node.value, "args", i, line.where).put(narrow)


@_operator("buffer-swapped", "a read of a buffer becomes a read of another of the same shape")
def _buffer_swapped(subject: _Subject) -> Iterator[_Change]:
    for place in subject.places:
        base = _base(place.node)
        if base not in subject.buffers:
            continue
        call = place.parent
        whole = isinstance(call, ast.Call) and place.field == "args" and _callee(call) in {"gemm", "copy"}
        element = isinstance(place.node, ast.Subscript) and isinstance(place.node.ctx, ast.Load)
        if not (whole or element):
            continue
        buffer = subject.buffers[base]
        for name, other in subject.buffers.items():
            if name == base or (other.shape, other.is_global) != (buffer.shape, buffer.is_global):
                continue
            # An element is converted where it is used, a whole tile is not.
            if other.dtype == buffer.dtype or not (whole or buffer.is_global):
                new: ast.expr = ast.Name(name)
                if isinstance(place.node, ast.Subscript):
                    new = ast.Subscript(new, place.node.slice, place.node.ctx)
                yield place.put(new)


# Taking a function apart


def _lines(owner: ast.AST) -> Iterator[_Line]:
    """The statements of every block in `owner`, in order of appearance."""
    for field in ("body", "orelse"):
        for index, node in enumerate(getattr(owner, field, [])):
            yield _Line(node, owner, field, index, _where(node))
            if isinstance(node, (ast.For, ast.While, ast.If, ast.With, ast.FunctionDef)):
                yield from _lines(node)


#: The expressions of a statement that may change. A statement that is not here is left alone.
_HEADERS: dict[type[ast.stmt], tuple[str, ...]] = {
    ast.Assign: ("targets", "value"),
    ast.AugAssign: ("target", "value"),
    ast.AnnAssign: ("value",),
    ast.Expr: ("value",),
    ast.For: ("iter",),
    ast.While: ("test",),
    ast.If: ("test",),
    ast.With: ("items",),
    ast.Return: ("value",),
}


def _places(line: _Line) -> Iterator[_Place]:
    """The expressions of a statement, without those of its blocks, outermost first."""
    node = line.node
    for field in _HEADERS.get(type(node), ()):
        if field == "value" and isinstance(node, ast.Assign):
            for place, _ in _values(line):
                yield from _inside(place)
        else:
            yield from _children(node, (field,), line.where)


def _inside(place: _Place) -> Iterator[_Place]:
    node = place.node
    if isinstance(node, ast.JoinedStr):
        return
    yield place
    for field in node._fields:
        if isinstance(node, ast.Subscript) and field == "slice":
            yield from _children(node, (field,), place.where, True, place.in_extent)
        else:
            extent = place.in_extent or (isinstance(node, ast.Call) and field == "args" and _is_loop(place.where, node))
            yield from _children(node, (field,), place.where, place.in_subscript, extent)


def _children(
    node: ast.AST, fields: tuple[str, ...], where: _Where, in_subscript: bool = False, in_extent: bool = False
) -> Iterator[_Place]:
    for field in fields:
        value = getattr(node, field)
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.expr):
                yield from _inside(_Place(child, node, field, index, where, in_subscript, in_extent))
            elif isinstance(child, (ast.keyword, ast.withitem, ast.comprehension)):
                yield from _children(child, child._fields, where, in_subscript, in_extent)


def _values(line: _Line) -> Iterator[tuple[_Place, ast.expr]]:
    """What an assignment assigns, and to what; `a, b = x, y` assigns twice."""
    node = line.node
    assert isinstance(node, (ast.Assign, ast.AugAssign))
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for i, (to, item) in enumerate(zip(target.elts, value.elts, strict=True)):
            yield _Place(item, value, "elts", i, _written(_base(to) or _brief(to))), to
    else:
        yield _Place(value, node, "value", None, line.where), target


def _indices(place: _Place) -> list[_Place]:
    """The index expressions of a subscript, one for each axis it names."""
    assert isinstance(place.node, ast.Subscript)
    index = place.node.slice
    if isinstance(index, ast.Tuple):
        return [_Place(item, index, "elts", i, place.where, True) for i, item in enumerate(index.elts)]
    return [_Place(index, place.node, "slice", None, place.where, True)]


def _buffers(function: ast.FunctionDef) -> Iterator[tuple[str, _Buffer]]:
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Call) and len(node.annotation.args) == 2:
            shape, dtype = node.annotation.args
            yield node.arg, _Buffer(ast.unparse(shape), ast.unparse(dtype), True)
        if isinstance(node, ast.Assign) and _allocates(node) and isinstance(node.value, ast.Call):
            target, arguments = node.targets[0], node.value.args
            if isinstance(target, ast.Name) and len(arguments) == 2:
                yield target.id, _Buffer(ast.unparse(arguments[0]), ast.unparse(arguments[1]), False)


def _names_of_slices(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _callee(node.value) in SLICES:
            yield from (name for target in node.targets for name in _names(target))
        if isinstance(node, ast.For) and any(
            isinstance(inner, ast.Call) and _callee(inner) in SLICES for inner in ast.walk(node.iter)
        ):
            yield _names(node.target)[-1]


@dataclass(frozen=True)
class _Touched:
    """The names a statement reads and writes; those it binds it gives another object, the others it writes into."""

    reads: set[str]
    writes: set[str]
    binds: set[str]


def _touched(statement: ast.stmt) -> _Touched:
    touched = _Touched(set(), set(), set())
    counters = {name for node in ast.walk(statement) if isinstance(node, ast.For) for name in _names(node.target)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id not in counters:
            if isinstance(node.ctx, ast.Load):
                touched.reads.add(node.id)
            else:
                touched.binds.add(node.id)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            touched.writes.add(_base(node) or "")
        elif isinstance(node, ast.AugAssign):
            touched.reads.add(_base(node.target) or "")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            touched.writes.add(_destination(node.value) or _base(node.value.func) or "")
    touched.writes.update(touched.binds)
    return touched


def _destination(call: ast.Call) -> str | None:
    """The buffer that a statement `copy(a, b)` or `gemm(a, b, acc)` writes."""
    position = {"copy": 1, "gemm": 2}.get(_callee(call))
    return _base(call.args[position]) if position is not None and len(call.args) > position else None


# Statements and expressions in words


def _where(node: ast.stmt) -> _Where:
    match node:
        case ast.Assign(targets=[target, *_]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return _written("-".join(_names(target)) or _base(target) or _brief(target))
        case ast.Expr(value=ast.Call() as call):
            destination = _destination(call)
            if destination is None:
                return _Where(_brief_name(_callee(call)), f"the call of {_callee(call)}")
            if _callee(call) == "gemm":
                return _Where(f"gemm-{destination}", f"the gemm into {destination}")
            return _Where(destination, f"the {_callee(call)} to {destination}")
        case ast.For(target=target):
            counters, first = _names(target), _first_where(node)
            name = "-".join(["for", *counters, first.name])
            return _Where(name, f"the loop over {', '.join(counters)} around {first.words}")
        case ast.If(test=test) | ast.While(test=test):
            first = _first_where(node)
            return _Where(f"if-{first.name}", f"the guard {ast.unparse(test)} around {first.words}")
        case ast.With(items=[item, *_]):
            name = _callee(item.context_expr) if isinstance(item.context_expr, ast.Call) else "with"
            return _Where(_brief_name(name), f"the {name}")
    name = type(node).__name__.lower()
    return _Where(name, f"the {name}")


def _written(name: str) -> _Where:
    return _Where(_brief_name(name), f"the statement that writes {name.replace('-', ', ')}")


def _first_where(node: ast.AST) -> _Where:
    """Where the first simple statement in a block is."""
    inner = getattr(node, "body", None)
    if isinstance(inner, list) and inner:
        statement = inner[0]
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            return _written(_names(statement.targets[0])[0])
        return _first_where(statement) if isinstance(statement, (ast.For, ast.If, ast.With)) else _where(statement)
    return _Where("nothing", "nothing")


def _statement_words(node: ast.stmt) -> str:
    if isinstance(node, (ast.For, ast.If, ast.While)):
        return _where(node).words
    text = ast.unparse(node)
    return text if len(text) <= 100 else _where(node).words


def _statement_brief(node: ast.stmt) -> str:
    match node:
        case ast.Assign(value=value) | ast.AugAssign(value=value):
            return _brief(value)
        case ast.Expr(value=ast.Call(args=args)):
            return ".".join(_brief(arg) for arg in args[:2])
        case ast.If(test=test):
            return _brief(test)
    return ""


def _brief(node: ast.expr) -> str:
    """An expression in few characters, all of which a shell takes without quotes: buffers without their indices."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _brief_name(name)
        case ast.Constant(value=value):
            return _brief_name("all" if value is ... else str(value))
        case ast.Subscript(value=value):
            return _brief(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{_brief(operand)}"
        case ast.BinOp(left=left, op=op, right=right):
            return _cut(f"{_brief(left)}{_symbol(op)}{_brief(right)}")
        case ast.Compare(left=left, ops=[op, *_], comparators=[right, *_]):
            return _cut(f"{_brief(left)}{_symbol(op)}{_brief(right)}")
        case ast.Call() as call:
            inner = _cast_of(call)
            if inner is None and isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
                inner = call.func.value
            if inner is not None:
                return _brief(inner)
            return _cut(".".join([_brief_name(_callee(call)), *(_brief(argument) for argument in call.args[:1])]))
        case ast.BoolOp(op=op, values=items):
            return _cut(_symbol(op).join(_brief(item) for item in items))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return _cut(".".join(_brief(item) for item in items))
    return type(node).__name__.lower()


def _cut(text: str) -> str:
    return text[:20]


def _brief_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]", "", text)


def _symbol(op: ast.AST) -> str:
    return SYMBOLS.get(type(op), f".{type(op).__name__.lower()}.")


# Small questions about nodes


def _callee(call: ast.Call) -> str:
    """The last name of what is called: `gemm` in `on.gemm(a, b, acc)`."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _base(node: ast.expr) -> str | None:
    """`a` in `a`, `a[i]` and `a.b[i]`."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _cast_of(node: ast.expr) -> ast.expr | None:
    """What is rounded or converted: x in `T.Cast(dtype, x)`, `on.round(x)` and `op(x)`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="Cast"), args=[_, inner]):
            return inner
        case ast.Call(func=ast.Attribute(attr="round"), args=[inner]) | ast.Call(func=ast.Name(id="op"), args=[inner]):
            return inner
    return None


def _allocates(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _callee(node.value) in ALLOCATIONS


def _is_movable(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, (ast.Assign, ast.AugAssign, ast.For, ast.If)) and not _allocates(node)


def _is_text(node: ast.AST) -> bool:
    """Whether `node` is a text or a list, or joins some."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr() | ast.List():
            return True
        case ast.BinOp(left=left, right=right):
            return _is_text(left) or _is_text(right)
    return False


def _is_plain(target: ast.expr) -> bool:
    return all(isinstance(item, ast.Name) for item in (target.elts if isinstance(target, ast.Tuple) else [target]))


def _names(target: ast.expr) -> list[str]:
    """The plain names in a target, in order."""
    items = target.elts if isinstance(target, ast.Tuple) else [target]
    return [item.id for item in items if isinstance(item, ast.Name)]


def _loads(node: ast.AST) -> Counter[str]:
    return Counter(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _number(node: ast.AST) -> int | float | None:
    """The value of a literal number, negative ones included; True and False are none."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = _number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    return None


def _literal(value: int | float) -> ast.expr:
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))
