"""Probes: what a kernel holds on its way from q, k, v to o, written out by statements that are put into its source.

A probe stands before the first statement of the loop over chunks that reads its tile, once it was made: it shows what
the next step sees, however the tile was made. The kernel goes through its own launch and takes one more float32 output
for each probe, `[blocks, B, H, chunks, rows, columns]`, so that every program writes to a place of its own, rows past N
included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kda.implementations import Implementation, Memory
from kda.mutation.rewrite import Place, filled, places
from kda.problem import Inputs, Outputs, Sizes, Tile
from kda.references.forward import SUB_CHUNK
from kda.source import module_from_source

__all__ = ["FORWARD_PROBES", "PROBES", "Probe", "Probed", "Unprobed", "probed", "probes_of", "with_probes"]


class Unprobed(Exception):
    """No probe can be put into a kernel, or the probed kernel does not run: why, in a line."""


@dataclass(frozen=True)
class Probe:
    """One tile that is written out: before which statement, and which element is the one of row r and column c.

    tile: the buffer, "" for what is never in one (the loop over tokens that makes gamma has it); rows, columns: its
    size, of C, DK, block_DV and 1. before: `gemm into X`, for a buffer that holds one stage after another; the first
    statement that reads it where None. transposed: it is held column first.
    border: "rows" or "keys": it is made in a loop over sub-chunks, for the rows behind each border or the keys before
    it, C of them for each sub-chunk; "blocks": it has no block above the diagonal. What is not made is NaN.
    """

    stage: str
    tile: str
    rows: str
    columns: str
    before: str | None = None
    transposed: bool = False
    border: str = ""

    def shape(self, sizes: Sizes, tile: Tile) -> tuple[int, int]:
        """Rows and columns."""
        of = {"C": tile.C, "DK": sizes.DK, "block_DV": tile.block_DV, "1": 1}
        return of[self.rows] * (tile.C // SUB_CHUNK if self.border == "keys" else 1), of[self.columns]


#: At the end of a chunk.
_END = "the end of the chunk"

#: Every probe of `kda_chunk`, in the order in which it makes what they show.
PROBES: tuple[Probe, ...] = (
    Probe("q", "Q_s", "C", "DK"),
    Probe("k", "K_s", "C", "DK"),
    Probe("v", "V_s", "C", "block_DV"),
    Probe("beta", "beta_s", "C", "1"),
    Probe("g", "", "C", "DK"),
    Probe("S at the start", "S_f", "DK", "block_DV"),
    Probe("gamma", "", "C", "DK"),
    Probe("e^gamma", "Ep_s", "C", "DK"),
    Probe("e^-gamma", "Em_s", "C", "DK"),
    Probe("k e^gamma", "Kp_s", "C", "DK", before="M_f"),
    Probe("k e^-gamma", "Km_s", "C", "DK"),
    Probe("q e^gamma", "Qp_s", "C", "DK"),
    Probe("M", "M_f", "C", "C"),
    Probe("L", "Lt_s", "C", "C", transposed=True),
    Probe("A_qk", "A_s", "C", "C"),
    Probe("W", "Kp_s", "C", "DK", before="WS_f"),
    Probe("U", "U_s", "C", "block_DV"),
    Probe("S_s", "S_s", "DK", "block_DV"),
    Probe("W S", "WS_f", "C", "block_DV"),
    Probe("V_tilde", "Vt_s", "C", "block_DV"),
    Probe("o", "O_f", "C", "block_DV"),
    Probe("k e^(gamma_C - gamma)", "Kp_s", "C", "DK", before="S_f"),
    Probe("S", "S_f", "DK", "block_DV", before=_END),
)

#: Those of `kda_forward`.
FORWARD_PROBES: tuple[Probe, ...] = (
    Probe("q", "Q_s", "C", "DK"),
    Probe("k", "K_s", "C", "DK"),
    Probe("v", "V_s", "C", "block_DV"),
    Probe("beta", "beta_s", "C", "1"),
    Probe("g", "G_s", "C", "DK"),
    Probe("S at the start", "S_f", "DK", "block_DV"),
    Probe("q e^gamma", "Qp_s", "C", "DK"),
    Probe("e^gamma_C", "decay_s", "DK", "1"),
    Probe("q since its border", "Qb_s", "C", "DK", before="A_f", border="rows"),
    Probe("k since its border", "Kb_s", "C", "DK", before="M_f", border="rows"),
    Probe("k to its border", "Kc_s", "C", "DK", before="M_f", border="keys"),
    Probe("L", "Lt_s", "C", "C", transposed=True, border="blocks"),
    Probe("A_qk", "A_s", "C", "C"),
    Probe("W", "Kc_s", "C", "DK", before="WS_f"),
    Probe("U", "U_s", "C", "block_DV"),
    Probe("S_s", "S_s", "DK", "block_DV"),
    Probe("W S", "WS_f", "C", "block_DV"),
    Probe("V_tilde", "Vt_s", "C", "block_DV"),
    Probe("o", "O_f", "C", "block_DV"),
    Probe("k e^(gamma_C - gamma)", "Kc_s", "C", "DK", before="S_f"),
    Probe("S", "S_f", "DK", "block_DV", before=_END),
)


def probes_of(function: str) -> tuple[Probe, ...]:
    """The probes of a kernel, by the name of its function."""
    return FORWARD_PROBES if function == "kda_forward" else PROBES


@dataclass(frozen=True)
class Probed:
    """A run of a probed kernel: its outputs, and what each probe saw.

    values: stage to a float32 array `[blocks, B, H, chunks, rows, columns]`; ran: `[blocks, B, H, chunks]`, which
    programs ran which chunks. missing: the stages that could not be probed.
    """

    outputs: Outputs
    values: dict[str, np.ndarray]
    ran: np.ndarray
    missing: tuple[str, ...]


def probed(implementation: Implementation, inputs: Inputs, tile: Tile, target: str, memory: Memory) -> Probed:
    """Run `implementation` with every probe that finds its place. Unprobed: none does, or the kernel does not run."""
    import torch

    source = implementation.sources().get("kernel")
    if source is None:
        raise Unprobed(f"{implementation.name} names no kernel source")
    text, found = with_probes(source.text, source.function)
    sizes = inputs.sizes
    programs = (-(-sizes.DV // tile.block_DV), sizes.B, sizes.H, -(-sizes.N // tile.C))
    held = 4 * int(np.prod(programs)) * sum(int(np.prod(probe.shape(sizes, tile))) for probe in found)
    if held > _MOST_BYTES:
        words = f"B = {sizes.B}, N = {sizes.N}, H = {sizes.H}"
        raise Unprobed(f"the probes of {words} would hold {held / 2**30:.1f} GiB; expected at most 1")
    device = "cuda" if target == "cuda" else "cpu"
    unwritten = torch.tensor(_UNWRITTEN, dtype=torch.int32).view(torch.float32)
    outputs = [unwritten.expand(*programs, *probe.shape(sizes, tile)).contiguous().to(device) for probe in found]
    try:
        module = module_from_source(text, f"{source.function}-probed", source.module.__package__ or "")
        made = implementation.with_outputs(module, outputs)
        if made is None:
            raise Unprobed(f"the launch of {implementation.name} takes no more outputs")
        result = made.run(inputs, tile, target, replace(memory, check_tiles=False))
    except Unprobed:
        raise
    except Exception as error:
        said = next((line for line in reversed(str(error).splitlines()) if line.strip()), "")
        raise Unprobed(f"the probed kernel does not run: {type(error).__name__}: {said.strip()}") from error
    values = {probe.stage: output.cpu().numpy() for probe, output in zip(found, outputs, strict=True)}
    ran = np.zeros(programs, bool)
    for value in values.values():
        ran |= (value.view(np.int32) != _UNWRITTEN).any((-1, -2))
    missing = tuple(probe.stage for probe in probes_of(source.function) if probe not in found)
    return Probed(result, values, ran, missing)


#: Bytes that the probes of one run may hold; their steps need a few times as much.
_MOST_BYTES = 2**30
#: The bits of a NaN that no arithmetic makes.
_UNWRITTEN = 0x7FC0BEEF


def with_probes(text: str, function: str) -> tuple[str, tuple[Probe, ...]]:
    """The source of a kernel with every probe that finds its place, and those probes.

    function: as `kda.kernels.chunk.kda_chunk` or `kda.kernels.forward.kda_forward` is one. Unprobed: its program is not
    of that form, or no probe does.
    """
    tree = ast.parse(text)
    # As text, an annotation would see the names that its function uses elsewhere, and no others.
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    kernel = _Kernel(tree, function)
    found = tuple(probe for number, probe in enumerate(probes_of(function)) if kernel.put(probe, f"P_{number}"))
    kernel.finish()
    if not found:
        raise Unprobed(f"no probe finds its place in {function}")
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", found


class _Kernel:
    """The places of a kernel's source: its program, its launch, its loop over chunks."""

    def __init__(self, tree: ast.Module, name: str) -> None:
        function = _one(_functions(tree.body, name), f"function {name}")
        self.on, self.DK, self.DV, self.C, self.block_DV, *_ = _names(function.args.args, 5, f"{name} has arguments")
        self.program = _one(_functions(function.body), f"program in {name}")
        self.function = function
        self.G = _names(self.program.args.args, 4, "the program has arguments")[3]
        launch = _one([node for node in self.program.body if isinstance(node, ast.With)], f"launch in {name}")
        self.programs = self._programs(launch)
        loops = [node for node in launch.body if isinstance(node, ast.For) and _calls(node.iter, "Pipelined", "serial")]
        loop = _one(loops, f"loop over chunks in {name}")
        if not isinstance(loop.target, ast.Name):
            raise Unprobed(f"the loop over chunks in {name} counts them by {ast.unparse(loop.target)}")
        self.chunk = loop.target.id
        self.loop = loop
        # What is read where is asked of the source as it was: probes read everything once more.
        self.body = list(loop.body)
        self.before: list[tuple[list[ast.stmt], int, list[ast.stmt]]] = []

    def _programs(self, launch: ast.With) -> str:
        """The indices of a program, block, batch and head, by the grid: three axes, or one that counts all of them."""
        item = launch.items[0]
        call, names = item.context_expr, item.optional_vars
        if isinstance(call, ast.Call) and isinstance(names, ast.Tuple) and len(call.args) == len(names.elts) == 3:
            return self._of_axes(call.args, names.elts)
        if isinstance(call, ast.Call) and isinstance(names, ast.Name) and len(call.args) == 1:
            return self._of_product(call.args[0], names.id)
        raise Unprobed(f"the launch is `{ast.unparse(item)}`; expected three axes: blocks, heads, batches")

    def _of_axes(self, extents: Sequence[ast.expr], names: Sequence[ast.expr]) -> str:
        """A launch says which axis is which by the extents of its grid."""
        B, _, H, _ = _axes(self.program, 0, 4)
        by_extent = {ast.unparse(a): ast.unparse(n) for a, n in zip(extents, names, strict=True)}
        if B not in by_extent or H not in by_extent:
            raise Unprobed(f"the grid is {', '.join(by_extent)}; expected {H} and {B} among its extents")
        batch, head = by_extent.pop(B), by_extent.pop(H)
        return ", ".join((*by_extent.values(), batch, head))

    def _of_product(self, extent: ast.expr, place: str) -> str:
        """The first factor of an extent is counted the fastest; heads are an axis of v, blocks are made of block_DV."""
        factors = list(_factors(extent))
        _, heads, _ = _axes(self.program, 2, 3)
        at = {}
        for number, factor in enumerate(factors):
            before = "".join(f" // ({ast.unparse(f)})" for f in factors[:number])
            kind = "head" if ast.unparse(factor) == heads else "block" if self._counts_blocks(factor) else "sequence"
            at[kind] = f"{place}{before}" + (f" % ({ast.unparse(factor)})" if number < len(factors) - 1 else "")
        if len(factors) != 3 or len(at) != 3:
            raise Unprobed(f"the grid is {ast.unparse(extent)}; expected a product of blocks, {heads} and sequences")
        return f"{at['block']}, {at['sequence']}, {at['head']}"

    def _counts_blocks(self, extent: ast.expr) -> bool:
        made = {ast.unparse(s.targets[0]): s.value for s in self.function.body if isinstance(s, ast.Assign)}
        return _mentions(made.get(ast.unparse(extent), extent), self.block_DV)

    def put(self, probe: Probe, name: str) -> bool:
        """Put one probe in; whether it found its place."""
        index = f"{name}[{self.programs}, {self.chunk}"
        if probe.tile:
            done = (self._put_at_border if probe.border in ("rows", "keys") else self._put_tile)(probe, index)
        else:
            done = self._put_scanned(probe, index)
        if done:
            rows = self._size(probe.rows) + (f" * ({self.C} // {SUB_CHUNK})" if probe.border == "keys" else "")
            shape = (
                f"[({self.DV} + {self.block_DV} - 1) // {self.block_DV}, *P_sizes, {rows}, {self._size(probe.columns)}]"
            )
            annotation = ast.parse(f"T.Tensor({shape}, 'float32')", mode="eval").body
            self.program.args.args.append(ast.arg(name, annotation))
        return done

    def _size(self, word: str) -> str:
        return {"C": self.C, "DK": self.DK, "block_DV": self.block_DV}.get(word, word)

    def _put_tile(self, probe: Probe, index: str) -> bool:
        at = self._place(probe)
        if at is None:
            return False
        row, column = ("p_c", "p_r") if probe.transposed else ("p_r", "p_c")
        if probe.columns == "1":
            loop, place = f"for p_r in {self.on}.parallel({self._size(probe.rows)})", f"{index}, p_r, 0]"
            element = f"{probe.tile}[p_r]"
        else:
            extents = f"{self._size(probe.rows)}, {self._size(probe.columns)}"
            loop, place = f"for p_r, p_c in {self.on}.parallel({extents})", f"{index}, p_r, p_c]"
            element = f"{probe.tile}[{row}, {column}]"
        made = f"{place} = T.Cast('float32', {element})"
        if probe.border == "blocks":
            made = f"if p_c // {SUB_CHUNK} <= p_r // {SUB_CHUNK}:\n        {made}"
        self.before.append((self.loop.body, at, filled(f"{loop}:\n    {made}", {})))
        return True

    def _put_at_border(self, probe: Probe, index: str) -> bool:
        """Before the product that takes it, in the loop over sub-chunks."""
        found = [
            (loop.target.id, loop.body, at)
            for statement in self.body
            for loop in ast.walk(statement)
            if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name)
            for at, inner in enumerate(loop.body)
            if isinstance(inner, ast.Expr) and _multiplies(inner, probe.tile, probe.before or "")
        ]
        if len(found) != 1:
            return False
        ((block, body, at),) = found
        rows, columns = str(SUB_CHUNK) if probe.border == "rows" else self.C, self._size(probe.columns)
        first = f"{block} * {SUB_CHUNK if probe.border == 'rows' else self.C}"
        inside = "True" if probe.border == "rows" else f"p_r < {block} * {SUB_CHUNK}"
        made = filled(
            f"for p_r, p_c in {self.on}.parallel({rows}, {columns}):\n"
            f"    if {inside}:\n"
            f"        {index}, {first} + p_r, p_c] = T.Cast('float32', {probe.tile}[p_r, p_c])",
            {},
        )
        self.before.append((body, at, made))
        return True

    def finish(self) -> None:
        """Put the statements that have been collected into their loops, and the probes' sizes before the program."""
        for body in {id(body): body for body, _, _ in self.before}.values():
            here = [(at, made) for owner, at, made in self.before if owner is body]
            numbered = list(enumerate((*body, None)))
            body[:] = [s for i, old in numbered for s in (*(n for at, made in here if at == i for n in made), old) if s]
        at = self.function.body.index(self.program)
        self.function.body[at:at] = filled("P_sizes = T.dynamic('P_B, P_H, P_chunks')", {})

    def _place(self, probe: Probe) -> int | None:
        """The number of the statement of the loop before which a probe stands."""
        if not any(_mentions(statement, probe.tile) for statement in self.body):
            return None
        if probe.before == _END:
            return len(self.body)
        if probe.before is not None:
            into = [i for i, s in enumerate(self.body) if _multiplies(s, probe.tile, probe.before)]
            return into[0] if len(into) == 1 else None
        # The state is there from before. A statement that makes a tile and goes on with it leaves no place in between.
        made = -1
        if probe.stage != "S at the start":
            made = next((i for i, s in enumerate(self.body) if _writes(s, probe.tile)), len(self.body))
            if made < len(self.body) and _reads(self.body[made], probe.tile):
                return None
        return next((i for i, s in enumerate(self.body) if i > made and _reads(s, probe.tile)), None)

    def _put_scanned(self, probe: Probe, index: str) -> bool:
        """The gate and its running sum, at the statement that writes e^gamma: `Ep_s[r, d] = exp2(gamma[0] ...)`."""
        writes = [place for s in self.body for place in places(s, "Ep_s[_r, _d] = _e")]
        if len(writes) != 1:
            return False
        (write,) = writes
        if probe.stage == "gamma":
            entering = {ast.unparse(node) for node in _parts(write.bound["_e"]) if isinstance(node, ast.Subscript)}
            if len(entering) != 1:
                return False
            _insert(write, write.start, f"{index}, _r, _d] = {entering.pop()}")
            return True
        reads = [place for s in self.body for place in places(s, "_x[_r] = _e") if _mentions(place.bound["_e"], self.G)]
        if len(reads) != 1:
            return False
        (read,) = reads
        bound = read.bound | {"_d": write.bound["_d"]}
        _insert(replace(read, bound=bound), read.stop, f"{index}, _r, _d] = _x[_r]")
        return True


def _insert(place: Place, at: int, pattern: str) -> None:
    place.body[at:at] = filled(pattern, place.bound)


def _functions(body: Sequence[ast.stmt], name: str | None = None) -> list[ast.FunctionDef]:
    return [node for node in body if isinstance(node, ast.FunctionDef) and name in (None, node.name)]


def _one(found: Sequence[Any], what: str) -> Any:
    if len(found) != 1:
        raise Unprobed(f"there are {len(found)} of {what}; expected one")
    return found[0]


def _names(arguments: Sequence[ast.arg], least: int, what: str) -> list[str]:
    if len(arguments) < least:
        raise Unprobed(f"{what} {', '.join(a.arg for a in arguments)}; expected those of kda_chunk")
    return [argument.arg for argument in arguments]


def _axes(program: ast.FunctionDef, number: int, rank: int) -> list[str]:
    """The names of the axes of one argument: `T.Tensor([B, N, H, DK], ...)`."""
    annotation = program.args.args[number].annotation if number < len(program.args.args) else None
    shape = annotation.args[0] if isinstance(annotation, ast.Call) and annotation.args else None
    if not isinstance(shape, ast.List) or len(shape.elts) != rank:
        raise Unprobed(f"argument {number} of the program is no tensor of rank {rank}")
    return [ast.unparse(size) for size in shape.elts]


def _factors(product: ast.expr) -> Iterator[ast.expr]:
    if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
        yield from _factors(product.left)
        yield from _factors(product.right)
    else:
        yield product


def _calls(node: ast.AST | None, *methods: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods


def _parts(node: object) -> Iterator[ast.AST]:
    return ast.walk(node) if isinstance(node, ast.AST) else iter(())


def _mentions(node: object, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in _parts(node))


#: Which argument of a call is written to.
_WRITTEN = {"copy": 1, "gemm": 2, "clear": 0, "fill": 0}


def _written(statement: ast.stmt) -> Iterator[ast.AST]:
    """The names of the tiles that parts of a statement only write to."""
    for node in ast.walk(statement):
        target: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            at = _WRITTEN.get(node.func.attr)
            target = node.args[at] if at is not None and at < len(node.args) else None
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            target = node.value.args[-1] if node.value.args else None  # a macro, which writes to its last argument
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            yield target


def _reads(statement: ast.stmt, name: str) -> bool:
    only_written = set(map(id, _written(statement)))
    return any(
        isinstance(part, ast.Name) and part.id == name and id(part) not in only_written for part in ast.walk(statement)
    )


def _writes(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in _written(statement))


def _multiplies(statement: ast.stmt, factor: str, into: str) -> bool:
    """Whether it holds a product with `factor` that is added to `into`."""
    return any(
        isinstance(node, ast.Call)
        and len(node.args) > 2
        and any(_mentions(argument, factor) for argument in node.args[:2])
        and _mentions(node.args[2], into)
        for node in ast.walk(statement)
        if _calls(node, "gemm")
    )
