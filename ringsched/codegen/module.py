"""Programs and an Exchange → the text of a module that imports only jax.

header      which schedule, which parameters, what was proven
function    for use inside shard_map, and one that does the shard_map itself
kernel      one function for each Program, and its specification; none with the portable back end
transfers   the same steps as calls of `lax.ppermute`, for where there is no TPU
fixed part  of the templates what these use
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ringsched.codegen.assemble import header, module_of
from ringsched.codegen.chain import Texts
from ringsched.codegen.kernel import ADDING, COPYING, Arguments, kernel_lines
from ringsched.codegen.local import LocalProduct
from ringsched.codegen.multiply import Product
from ringsched.codegen.shapes import Shape
from ringsched.collectives import REDUCING, Promise
from ringsched.expr import Expr, lookups, names, show
from ringsched.lines import WIDTH, call, listed, spaced
from ringsched.program.printer import peer_text
from ringsched.program.program import BARRIER, Instruction, Program, Signal, Wait, When
from ringsched.program.tables import Table as KernelTable
from ringsched.program.tables import tables_of
from ringsched.schedule.schedule import Chain, Multiply
from ringsched.xla.constants import constant_lines, parts_line, translator_of
from ringsched.xla.exchange import Exchange, Own
from ringsched.xla.steps import Steps
from ringsched.xla.translate import Table, Translator


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A Program and the promise that it keeps. `compute`: what it multiplies, if it does."""

    program: Program
    promise: Promise
    memory: str | None = None
    compute: Multiply | None = None


CALL = (("ringsched.codegen", "template_call.py"),)
KERNEL = (("ringsched.codegen", "template.py"),)
PORTABLE = (("ringsched.xla", "template.py"),)


def module_text(
    forward: Kernel | None,
    backward: Kernel | None,
    exchange: Exchange,
    *,
    name: str,
    heading: str,
    facts: list[tuple[str, str]],
    debug: bool = False,
) -> str:
    """The module. `facts` go into the header.

    forward: None: it has no kernel. backward: the transpose, None: gradients take the transfers backwards.
    """
    if exchange.flat.schedule.compute is not None:
        return _product_text(forward, backward, exchange, name, heading, facts, debug)
    translator = translator_of(exchange)
    steps = Steps(exchange=exchange, translator=translator).lines()
    collective = _collective(exchange, translator, forward, backward)
    shape = Shape(name=name, promise=exchange.flat.promise, kernel=forward is not None)
    lines = [*constant_lines(exchange, translator), "", "", *shape.public(), "", "", *shape.sharded()]
    lines += ["", "", *collective]
    for kernel, body, spec in ((forward, "_kernel", "_SPEC"), (backward, "_transpose_kernel", "_TRANSPOSE_SPEC")):
        if kernel is not None:
            arguments = ADDING if kernel.promise.kind in REDUCING else COPYING
            lines += ["", "", *_spec(spec, kernel), "", ""]
            lines += kernel_lines(kernel.program, body, _doc(kernel), arguments=arguments, debug=debug)
    lines += ["", "", *steps]
    fixed = [*CALL, *(KERNEL if forward is not None else ()), *PORTABLE]
    return module_of(header(name, heading, facts, "x"), spaced(lines), fixed)


def _collective(
    exchange: Exchange, translator: Translator, forward: Kernel | None, backward: Kernel | None
) -> list[str]:
    """What the module computes, put together."""
    promise = exchange.flat.promise
    arguments = [f'"{promise.kind}"', "_transfers"]
    arguments += ["forward=_Kernel(_kernel, _SPEC)"] if forward is not None else []
    arguments += ["backward=_Kernel(_transpose_kernel, _TRANSPOSE_SPEC)"] if backward is not None else []
    arguments += [f"group={promise.group}"] if promise.group > 1 else []
    arguments += [f"root={promise.root}"] if promise.kind in ("broadcast", "reduce", "gather", "scatter") else []
    before: list[str] = []
    if promise.kind == "permute":
        before = [f"    {line}" for line in _sources(exchange, translator)]
        arguments.append("sources=sources")
    return [
        "@functools.cache",
        "def _collective():",
        *before,
        *call("return _Collective(", arguments, 4),
    ]


def _sources(exchange: Exchange, translator: Translator) -> list[str]:
    """Of each rank, the one whose operand it gets."""
    flat = exchange.flat
    expr = flat.schedule.collective.permutation
    if expr is not None and flat.topology.coordinates == ("r",) and names(expr) <= {"r", *exchange.parameters}:
        return [f"sources = sorted(range(RANKS), key=lambda r: {translator.number(expr)})"]
    permutation = flat.promise.permutation
    sources = sorted(range(len(permutation)), key=lambda rank: permutation[rank])
    return list(call("sources = [", map(str, sources), 0, "]"))


def chain_text(
    program: Program | None,
    chain: Chain,
    exchanges: Sequence[Exchange],
    *,
    heading: str,
    facts: list[tuple[str, str]],
    debug: bool = False,
) -> str:
    """The module of a chain, of whose links the Exchanges are. program: None: it has no kernel."""
    first = exchanges[0]
    texts = Texts(chain=chain, promise=first.flat.promise, kernel=program is not None)
    tables: dict[Table, str] = {}
    functions: list[str] = []
    for number, exchange in enumerate(exchanges, 1):
        steps = Steps(exchange=exchange, translator=translator_of(exchange, tables), name=f"_transfers_{number}")
        functions += ["", "", *steps.lines()]
    lines = [*constant_lines(first, translator_of(first, tables)), parts_line(first), *_cutting(first, texts.by_rows)]
    lines += ["SHARES = RANKS  # of a sum", "", *texts.constants()]
    lines += ["", "", *texts.public(), "", "", *texts.sharded()]
    if program is not None:
        lines += ["", "", *texts.forward(), "", "", *texts.spec(program), *_synchronisation(program), "}", "", ""]
        finishes = tuple(texts.finishes().items())
        arguments = Arguments(names=("layers", "finishes"), finishes=finishes, multiply="_multiply")
        title = "All layers, as each rank runs them."
        lines += kernel_lines(program, "_kernel", title, units=texts.units(program), arguments=arguments, debug=debug)
    lines += ["", "", *texts.by_lax(), "", "", *texts.layers()]
    lines += ["", "", *texts.whole_layers()] if texts.whole else []
    lines += functions
    fixed = [*CALL, *_files("template_operands", "template_operands_chain")]
    if program is not None:
        fixed += [*KERNEL, *_files("template_chain", "template_multiply")]
    fixed += [("ringsched.xla", f"template_{part}.py") for part in ("gathered", "summed", "product")]
    operands = ", ".join(["x", *texts.weights])
    return module_of(header(chain.name, heading, facts, operands), spaced(lines), [*fixed, *PORTABLE])


def _files(*names: str) -> list[tuple[str, str]]:
    return [("ringsched.codegen", f"{name}.py") for name in names]


def _product_text(
    forward: Kernel | None,
    backward: Kernel | None,
    exchange: Exchange,
    name: str,
    heading: str,
    facts: list[tuple[str, str]],
    debug: bool,
) -> str:
    """The module of a schedule that multiplies: its functions and kernels."""
    promise = exchange.flat.promise
    made = LocalProduct if promise.kind == "none" else Product
    memory = None if forward is None else forward.memory
    product = made.of(name, promise, _compute(exchange, forward is not None), memory, kernel=forward is not None)
    translator = translator_of(exchange)
    steps = Steps(exchange=exchange, translator=translator).lines()
    lines = [*constant_lines(exchange, translator), *_cutting(exchange, product.by_rows)]
    if promise.kind != "none":
        lines.append(parts_line(exchange))
    if not product.gathers:
        lines.append(f"SHARES = {'RANKS' if product.shares() != '1' else '1'}  # of a sum")
    lines += ["", "", *product.public(), "", "", *product.sharded()]
    lines += ["", "", *product.multiplied(forward is not None, backward is not None), "", "", *product.portable()]
    if forward is not None:
        lines += ["", "", *_product_kernel(product, forward, ("_forward", "_kernel", "_SPEC"), debug)]
    if backward is not None:
        other = made.of(name, backward.promise, backward.compute, kernel=True)
        names = ("_transpose", "_transpose_kernel", "_TRANSPOSE_SPEC")
        lines += ["", "", *_product_kernel(other, backward, names, debug)]
    fixed = [*CALL, *_files("template_operands", "template_operands_product", "template_times")]
    if forward is not None:
        fixed += [*KERNEL, *_files("template_product", "template_stream", "template_plan", "template_multiply")]
    if promise.kind != "none":
        lines += ["", "", *steps]
        part = "gathered" if product.gathers else "summed"
        fixed += [("ringsched.xla", f"template_{part}.py"), ("ringsched.xla", "template_product.py")]
    return module_of(header(name, heading, facts, "x, w"), spaced(lines), [*fixed, *PORTABLE])


def _compute(exchange: Exchange, kernel: bool) -> Multiply:
    """With what became of the overlap where there is no kernel."""
    compute = exchange.flat.schedule.compute
    assert compute is not None
    apart = any(isinstance(node, Own) and not node.index for node in exchange.nodes)
    return replace(compute, overlap="none") if apart and not kernel else compute


def _cutting(exchange: Exchange, by_rows: bool) -> list[str]:
    return [
        f"ALONG = {0 if by_rows else 1}  # shards are {'rows' if by_rows else 'columns'} of a matrix",
        f"GROUP = {exchange.flat.promise.group}  # how many dimensions of CHUNKS say whose a chunk is",
    ]


def _product_kernel(product: Product, kernel: Kernel, names: tuple[str, str, str], debug: bool) -> list[str]:
    """The function around a kernel, its spec, and the kernel."""
    function, body, spec = names
    lines = [*product.forward(function, body, spec), "", "", *product.spec(spec, kernel.program)]
    lines += [*_synchronisation(kernel.program), "}"]
    units = product.units(kernel.program)
    arguments = Arguments()
    return [
        *lines,
        "",
        "",
        *kernel_lines(kernel.program, body, _doc(kernel), units=units, arguments=arguments, debug=debug),
    ]


def _doc(kernel: Kernel) -> str:
    kind = "product" if kernel.promise.kind == "none" else kernel.promise.kind.replace("_", "-")
    return f"The {kind}, as each rank runs it."


def _spec(name: str, kernel: Kernel) -> Iterator[str]:
    """What `_launch` has to know of a Program."""
    program = kernel.program
    buffers = {b.space: b for b in program.buffers}
    scratch = [b for b in program.buffers if b.space == "scratch"]
    yield "# Grids of chunks, semaphores, the pattern of the barrier; memory None: by size."
    yield f"{name} = {{"
    yield f'    "operand": {_grid(buffers["input"].shape)},'
    yield f'    "result": {_grid(buffers["output"].shape)},'
    yield from call('"scratch": [', [_grid(b.shape) for b in scratch], 4, "],")
    yield from _tables(program)
    yield from _synchronisation(program)
    memory = f'"{kernel.memory}"' if kernel.memory else None
    yield f'    "memory": {memory},'
    yield "}"


def _tables(program: Program) -> Iterator[str]:
    """The constants that the kernel looks up, each table with its name."""
    tables = tables_of(program)
    for key, some in (("by_rank", tables.by_rank), ("tables", tables.whole)):
        if some:
            yield from _listed_tables(key, some)


def _listed_tables(key: str, tables: Mapping[KernelTable, str]) -> Iterator[str]:
    yield f'    "{key}": ['
    for table, name in tables.items():
        yield f"        # {name}"
        # A formatter joins lines that fit one of 120 columns, and leaves a longer one alone.
        text = " ".join(map(str, table))
        rows = [text] if len(text) < 108 else textwrap.wrap(text, WIDTH - 16)
        if len(rows) == 1:
            yield f'        "{text}",'
            continue
        yield "        ("
        yield from (f'            "{row} "' for row in rows[:-1])
        yield f'            "{rows[-1]}"'
        yield "        ),"
    yield "    ],"


def _synchronisation(program: Program) -> Iterator[str]:
    rows = []
    for semaphore in program.semaphores:
        if semaphore.kind != "barrier":
            kind = f"pltpu.SemaphoreType.{semaphore.kind.upper()}"
            rows.append(f"{kind}{f'(({semaphore.count},))' if semaphore.count > 1 else ''},  # {semaphore.name}")
    yield from listed("semaphores", rows)
    pattern = barrier_pattern(program)
    yield f'    "barrier": {repr(pattern).replace(chr(39), chr(34)) if pattern else None},'


def _grid(shape: tuple[int, ...]) -> str:
    return repr(shape)


def barrier_pattern(program: Program) -> str:
    """Who signals whom at the start, as text: kernels with the same pattern may share a barrier semaphore."""
    return "; ".join(_patterns(program.body, ()))


def _patterns(body: tuple[Instruction, ...], conditions: tuple[Expr, ...]) -> Iterator[str]:
    where = " if " + " and ".join(map(show, conditions)) if conditions else ""
    for i in body:
        match i:
            case When():
                yield from _patterns(i.body, (*conditions, *i.conditions))
            case Signal() if i.semaphore.semaphore == BARRIER:
                yield f"tell {peer_text(i.peer)}{where}{_entries((*i.peer, *conditions))}"
            case Wait() if i.semaphore.semaphore == BARRIER:
                yield f"await {i.amount}{where}{_entries(conditions)}"
            case _:
                pass


def _entries(exprs: tuple[Expr, ...]) -> str:
    """What stands in the tables that these look up: a name alone would not tell."""
    tables = {lookup.name: lookup.table for expr in exprs for lookup in lookups(expr)}
    said = (f"{name} is {hashlib.sha256(repr(table).encode()).hexdigest()[:12]}" for name, table in tables.items())
    return "".join(f", {text}" for text in said)
