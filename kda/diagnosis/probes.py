"""Probes: what a kernel holds on its way from q, k, v to o, written out by statements that are put into its source.

A probe stands before the first statement of the loop over chunks that reads its tile: it shows what the next step sees,
however the tile was made. The kernel goes through its own launch and takes one more float32 output for each probe,
`[blocks, B, H, chunks, rows, columns]`, so that every program writes to a place of its own, rows past N included.
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
from kda.source import module_from_source

__all__ = ["PROBES", "Probe", "Probed", "Unprobed", "probed", "with_probes"]


class Unprobed(Exception):
    """No probe can be put into a kernel, or the probed kernel does not run: why, in a line."""


@dataclass(frozen=True)
class Probe:
    """One tile that is written out: before which statement, and which element is the one of row r and column c.

    tile: the buffer; rows, columns: its size, of C, DK, block_DV and 1. before: `gemm into X`, for a buffer that holds
    one stage after another; the first statement that reads it where None. transposed: it is held column first.
    """

    stage: str
    tile: str
    rows: str
    columns: str
    before: str | None = None
    transposed: bool = False

    def shape(self, sizes: Sizes, tile: Tile) -> tuple[int, int]:
        """Rows and columns."""
        of = {"C": tile.C, "DK": sizes.DK, "block_DV": tile.block_DV, "1": 1}
        return of[self.rows], of[self.columns]


#: Of the loop over tokens that makes gamma, whose values never lie in a tile.
_SCANNED = ("g", "gamma")
#: At the end of a chunk.
_END = "the end of the chunk"

#: Every probe, in the order in which a kernel makes what it shows.
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
    missing = tuple(probe.stage for probe in PROBES if probe not in found)
    return Probed(result, values, ran, missing)


#: Bytes that the probes of one run may hold; their steps need a few times as much.
_MOST_BYTES = 2**30
#: The bits of a NaN that no arithmetic makes.
_UNWRITTEN = 0x7FC0BEEF


def with_probes(text: str, function: str) -> tuple[str, tuple[Probe, ...]]:
    """The source of a kernel with every probe that finds its place, and those probes.

    function: as `kda.kernels.chunk.kda_chunk` is one. Unprobed: its program is not of that form, or no probe does.
    """
    tree = ast.parse(text)
    kernel = _Kernel(tree, function)
    found = tuple(probe for probe in PROBES if kernel.put(probe))
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
        self.B, self.N, self.H = _sizes(self.program)
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
        self.before: dict[int, list[ast.stmt]] = {}

    def _programs(self, launch: ast.With) -> str:
        """The indices of a program, block, batch and head: a launch says which is which by the extents of its grid."""
        item = launch.items[0]
        call, names = item.context_expr, item.optional_vars
        if not (isinstance(call, ast.Call) and isinstance(names, ast.Tuple) and len(call.args) == len(names.elts) == 3):
            raise Unprobed(f"the launch is `{ast.unparse(item)}`; expected three axes: blocks, heads, batches")
        by_extent = {ast.unparse(a): ast.unparse(n) for a, n in zip(call.args, names.elts, strict=True)}
        if self.B not in by_extent or self.H not in by_extent:
            raise Unprobed(f"the grid is {', '.join(by_extent)}; expected {self.H} and {self.B} among its extents")
        batch, head = by_extent.pop(self.B), by_extent.pop(self.H)
        return ", ".join((*by_extent.values(), batch, head))

    def put(self, probe: Probe) -> bool:
        """Put one probe in; whether it found its place."""
        name = f"P_{PROBES.index(probe)}"
        index = f"{name}[{self.programs}, {self.chunk}"
        done = self._put_scanned(probe, index) if probe.stage in _SCANNED else self._put_tile(probe, index)
        if done:
            shape = f"[({self.DV} + {self.block_DV} - 1) // {self.block_DV}, {self.B}, {self.H}, "
            shape += f"T.ceildiv({self.N}, {self.C}), {self._size(probe.rows)}, {self._size(probe.columns)}]"
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
        made = filled(f"{loop}:\n    {place} = T.Cast('float32', {element})", {})
        self.before.setdefault(at, []).extend(made)
        return True

    def finish(self) -> None:
        """Put the statements that have been collected into the loop."""
        numbered = enumerate((*self.body, None))
        self.loop.body = [s for i, statement in numbered for s in (*self.before.get(i, ()), statement) if s]

    def _place(self, probe: Probe) -> int | None:
        """The number of the statement of the loop before which a probe stands."""
        if not any(_mentions(statement, probe.tile) for statement in self.body):
            return None
        if probe.before == _END:
            return len(self.body)
        if probe.before is not None:
            into = [i for i, s in enumerate(self.body) if _multiplies(s, probe.tile, probe.before)]
            return into[0] if len(into) == 1 else None
        reader = next((i for i, s in enumerate(self.body) if _reads(s, probe.tile)), 0)
        # A statement that makes a tile and goes on with it leaves no place in between. The state is there from before.
        made = probe.stage == "S at the start" or any(_writes(s, probe.tile) for s in self.body[:reader])
        return reader if made else None

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


def _sizes(program: ast.FunctionDef) -> list[str]:
    """The names of B, N and H, from the first argument: `T.Tensor([B, N, H, DK], ...)`."""
    first = program.args.args[0].annotation if program.args.args else None
    shape = first.args[0] if isinstance(first, ast.Call) and first.args else None
    if not isinstance(shape, ast.List) or len(shape.elts) != 4:
        raise Unprobed("the program's first argument is no tensor [B, N, H, DK]")
    return [ast.unparse(size) for size in shape.elts[:3]]


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
        and _mentions(node.args[0], factor)
        and _mentions(node.args[2], into)
        for node in ast.walk(statement)
        if _calls(node, "gemm")
    )
