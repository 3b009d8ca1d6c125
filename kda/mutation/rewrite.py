"""Rewriting source by its syntax tree: a pattern finds what a mistake is about, another takes its place.

A pattern is Python with holes. A name that begins with an underscore stands for any expression (`_`: for one that is
not needed again), and the same name for the same expression; on a line of its own it stands for any run of statements,
and with a star, last in a list of arguments, for those that remain.
So `Lt_s[_j, _i] = _` finds the statement that writes L whatever it is called with, and edits elsewhere, other names of
its loop variables, comments and line breaks do not disturb it.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kda.source import module_from_source

__all__ = ["Edit", "Place", "Stale", "filled", "module_from_source", "places", "rewritten"]

Bindings = dict[str, object]


class Stale(LookupError):
    """What a rewrite is about is no longer in the source, or is there more than once."""


@dataclass(frozen=True)
class Edit:
    """One rewrite.

    what: what is rewritten, by its meaning ("the strict mask on L"); find, put: patterns, an empty `put` deletes a
    statement; inside: the pattern of the one statement that holds it, for a `find` that is part of a statement;
    function: the top-level function it is made in, where that is not the one the mutant is about ("": the module).
    """

    what: str
    find: str
    put: str
    inside: str | None = None
    function: str | None = None


def rewritten(source: str, function: str, edits: Sequence[Edit]) -> str:
    """The source of a module with `edits` made in its top-level `function`, one after the other.

    Stale: there is no such function, or an edit does not find exactly one place.
    """
    tree = ast.parse(source)
    for edit in edits:
        name = function if edit.function is None else edit.function
        _apply(_function(tree, name), edit, name or "the module")
    return ast.unparse(tree) + "\n"


@dataclass(frozen=True)
class Place:
    """A run of statements that a pattern matches: body[start:stop], and what its holes stand for."""

    body: list[ast.stmt]
    start: int
    stop: int
    bound: Bindings


def places(root: ast.AST, pattern: str) -> list[Place]:
    """Every run of statements below `root` that matches."""
    return [Place(*found) for found in _statements(root, _parse(pattern))]


def filled(pattern: str, bound: Bindings) -> list[ast.stmt]:
    """The statements of a pattern, its holes filled."""
    return _filled_block(_parse(pattern), bound)


def _function(tree: ast.Module, name: str) -> ast.AST:
    if not name:
        return tree
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(found) != 1:
        raise Stale(f"there is no function {name} to rewrite")
    return found[0]


def _apply(function: ast.AST, edit: Edit, name: str) -> None:
    find, put = _parse(edit.find), _parse(edit.put)
    as_expression = _is_expression(find) and _is_expression(put)
    roots: list[ast.AST] = [function]
    if edit.inside is not None:
        holders = list(_statements(function, _parse(edit.inside)))
        if len(holders) != 1:
            raise Stale(_not_once(edit, name, len(holders), edit.inside))
        body, start, stop, _ = holders[0]
        roots = list(body[start:stop])
    if as_expression:
        pattern, template = find[0].value, put[0].value  # type: ignore[attr-defined]
        places = [place for root in roots for place in _expressions(root, pattern)]
        if len(places) != 1:
            raise Stale(_not_once(edit, name, len(places), edit.find))
        parent, field, index, bound = places[0]
        made = _filled(template, bound)
        if index is None:
            setattr(parent, field, made)
        else:
            getattr(parent, field)[index] = made
        return
    runs = [run for root in roots for run in _statements(root, find)]
    if len(runs) != 1:
        raise Stale(_not_once(edit, name, len(runs), edit.find))
    body, start, stop, bound = runs[0]
    body[start:stop] = _filled_block(put, bound) or ([ast.Pass()] if len(body) == stop - start else [])


def _not_once(edit: Edit, name: str, times: int, pattern: str) -> str:
    where = "nowhere" if times == 0 else f"{times} times"
    return f"{edit.what}: `{' '.join(pattern.split())}` is {where} in {name}; expected once"


def _parse(text: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(text).strip()).body


def _is_expression(statements: list[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


def _hole(node: object) -> str | None:
    return node.id if isinstance(node, ast.Name) and node.id.startswith("_") else None


def _starred(nodes: list[ast.AST]) -> str | None:
    return _hole(nodes[-1].value) if nodes and isinstance(nodes[-1], ast.Starred) else None


def _statement_hole(node: ast.stmt) -> str | None:
    return _hole(node.value) if isinstance(node, ast.Expr) else None


def _expressions(root: ast.AST, pattern: ast.expr) -> Iterator[tuple[ast.AST, str, int | None, Bindings]]:
    for parent in ast.walk(root):
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.expr):
                    bound: Bindings = {}
                    if _same(pattern, node, bound):
                        yield parent, field, index, bound


def _statements(root: ast.AST, pattern: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int, int, Bindings]]:
    for parent in ast.walk(root):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(parent, field, None)
            if isinstance(body, list):
                for start in range(len(body)):
                    for stop, bound in _runs(pattern, body, start, {}):
                        yield body, start, stop, bound
                        break


def _runs(pattern: list[ast.stmt], body: list[ast.stmt], at: int, bound: Bindings) -> Iterator[tuple[int, Bindings]]:
    """Where runs of `body` that begin at `at` and match `pattern` end, the shortest first."""
    if not pattern:
        yield at, bound
        return
    hole = _statement_hole(pattern[0])
    if hole is not None:
        for stop in range(at, len(body) + 1):
            yield from _runs(pattern[1:], body, stop, bound | {hole: body[at:stop]})
    elif at < len(body):
        more = dict(bound)
        if _same(pattern[0], body[at], more):
            yield from _runs(pattern[1:], body, at + 1, more)


def _same(pattern: object, node: object, bound: Bindings) -> bool:
    hole = _hole(pattern)
    if hole is not None:
        if not isinstance(node, ast.expr):
            return False
        if hole == "_":
            return True
        if hole in bound:
            return _text(bound[hole]) == _text(node)
        bound[hole] = node
        return True
    if isinstance(pattern, ast.AST):
        if type(pattern) is not type(node):
            return False
        return all(
            _same(value, getattr(node, field, None), bound)
            for field, value in ast.iter_fields(pattern)
            if field not in ("ctx", "type_comment", "kind")
        )
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return False
        if pattern and isinstance(pattern[0], ast.stmt):
            for stop, more in _runs(pattern, node, 0, dict(bound)):
                if stop == len(node):
                    bound.update(more)
                    return True
            return False
        rest = _starred(pattern)
        if rest is not None and len(node) >= len(pattern) - 1:
            bound[rest] = node[len(pattern) - 1 :]
            pattern, node = pattern[:-1], node[: len(pattern) - 1]
        return len(pattern) == len(node) and all(_same(p, n, bound) for p, n in zip(pattern, node, strict=True))
    return pattern == node and type(pattern) is type(node)


def _text(node: object) -> str:
    # Without ctx: a name that is written and one that is read are the same name.
    return ast.unparse(node) if isinstance(node, ast.AST) else repr(node)


class _Fill(ast.NodeTransformer):
    def __init__(self, bound: Bindings) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if _hole(node) is None:
            return node
        made = copy.deepcopy(self.bound_to(node.id))
        assert isinstance(made, ast.expr)
        return _loaded(made, node.ctx)

    def bound_to(self, name: str) -> Any:
        if name not in self.bound:
            raise ValueError(f"{name} stands for nothing that was found")
        return self.bound[name]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                # A run may be empty; a block may not.
                block = _filled_block(body, self.bound)
                setattr(node, field, block or ([ast.Pass()] if field == "body" else []))
        for field, value in list(ast.iter_fields(node)):
            if field in ("body", "orelse") and isinstance(value, list):
                continue
            if isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
            elif isinstance(value, list):
                rest = _starred(value)
                made = [self.visit(v) if isinstance(v, ast.AST) else v for v in (value[:-1] if rest else value)]
                setattr(node, field, made + copy.deepcopy(self.bound_to(rest)) if rest else made)
        return node


def _loaded(node: ast.expr, context: ast.expr_context) -> ast.expr:
    if isinstance(node, (ast.Name, ast.Subscript, ast.Attribute)):
        node.ctx = context
    return node


def _filled(template: ast.AST, bound: Bindings) -> ast.AST:
    return _Fill(bound).visit(copy.deepcopy(template))


def _filled_block(template: list[ast.stmt], bound: Bindings) -> list[ast.stmt]:
    fill = _Fill(bound)
    made: list[ast.stmt] = []
    for statement in template:
        hole = _statement_hole(statement)
        run = fill.bound_to(hole) if hole is not None else None
        if isinstance(run, list):
            made.extend(copy.deepcopy(run))
        else:
            made.append(fill.visit(copy.deepcopy(statement)))
    return made
