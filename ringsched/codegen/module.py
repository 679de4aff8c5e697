"""Programs → the text of a kernel module that imports only jax.

header      which schedule, which parameters, what was proven
function    for use inside shard_map, and one that does the shard_map itself
forward     pack, run the kernel, unpack; likewise for the transpose
kernel      one function for each Program
fixed part  the text of `template.py` after its marker, the same in all modules
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ringsched.codegen import shapes
from ringsched.codegen.chain import Texts
from ringsched.codegen.kernel import SIDE_NAMES, Arguments, kernel_lines
from ringsched.codegen.lines import WIDTH, call, fixed_part, header, listed, spaced
from ringsched.codegen.local import LocalProduct
from ringsched.codegen.multiply import Product
from ringsched.collectives import Promise
from ringsched.expr import Expr, lookups, show
from ringsched.program.printer import peer_text
from ringsched.program.program import BARRIER, Instruction, Program, Signal, Wait, When
from ringsched.program.tables import Table, tables_of
from ringsched.schedule.schedule import Chain, Multiply

IMPORTS = """\
import math
import os
import zlib

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
"""
CHAIN_IMPORTS = f"import copy\nimport itertools\n{IMPORTS}"
PRODUCT_IMPORTS = f"import copy\nimport dataclasses\nimport itertools\nimport logging\n{IMPORTS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A Program and the promise that it keeps. `compute`: what it multiplies, if it does."""

    program: Program
    promise: Promise
    memory: str | None = None
    compute: Multiply | None = None


def module_text(
    forward: Kernel, backward: Kernel | None, *, name: str, heading: str, facts: list[tuple[str, str]], debug: bool
) -> str:
    """The module. `backward` is the transpose, None: gradients go through `jax.lax`; `facts` go into the header."""
    multiplies = forward.compute is not None
    lines = header(name, heading, facts, "x, w" if multiplies else "x", PRODUCT_IMPORTS if multiplies else IMPORTS)
    lines += _sides(forward.program)
    if forward.compute is not None:
        lines += _multiplying(forward, backward, name, debug)
        names = ("operands_product", "operands", "product", "stream", "plan", "multiply")
        parts = [*(f"template_{part}.py" for part in names), "template.py"]
        return "\n\n".join([spaced(lines), *map(fixed_part, parts)])
    shape = shapes.of(forward.promise, name)
    lines += ["", "", *shape.public(), "", "", *shape.sharded()]
    lines += ["", "", *shape.forward("_forward", "_kernel", "_SPEC", forward.promise)]
    lines += ["", "", *_spec("_SPEC", forward)]
    lines += ["", "", *kernel_lines(forward.program, "_kernel", _doc(forward), debug=debug)]
    if backward is None:
        lines += ["", "", *shape.lax_transpose()]
    else:
        lines += ["", "", *shape.transpose(backward.promise)]
        lines += ["", "", *_spec("_TRANSPOSE_SPEC", backward)]
        lines += ["", "", *kernel_lines(backward.program, "_transpose_kernel", _doc(backward), debug=debug)]
    return spaced(lines) + "\n\n" + fixed_part("template.py")


def chain_text(
    program: Program, chain: Chain, promise: Promise, *, heading: str, facts: list[tuple[str, str]], debug: bool
) -> str:
    """The module of a chain. `promise`: that of its first link."""
    texts = Texts(chain=chain, promise=promise)
    lines = header(chain.name, heading, facts, ", ".join(["x", *texts.weights]), CHAIN_IMPORTS)
    lines += [*_sides(program), "", "", *texts.public(), "", "", *texts.sharded(), "", "", *texts.forward()]
    lines += ["", "", *texts.spec(program), *_synchronisation(program), "}", "", ""]
    finishes = tuple(texts.finishes().items())
    arguments = Arguments(names=("layers", "finishes"), finishes=finishes, multiply="_multiply")
    title = "All layers, as each rank runs them."
    lines += kernel_lines(program, "_kernel", title, units=texts.units(program), arguments=arguments, debug=debug)
    names = ("operands_chain", "operands", "chain", "multiply")
    parts = [*(f"template_{part}.py" for part in names), "template.py"]
    return "\n\n".join([spaced(lines), *map(fixed_part, parts)])


def _multiplying(forward: Kernel, backward: Kernel | None, name: str, debug: bool) -> list[str]:
    """A schedule that multiplies: its functions and kernels."""
    made = LocalProduct if forward.promise.kind == "none" else Product
    product = made.of(name, forward.promise, forward.compute, forward.memory)
    lines = ["", "", *product.public(), "", "", *product.sharded()]
    lines += ["", "", *_product_kernel(product, forward, ("_forward", "_kernel", "_SPEC"), debug)]
    if backward is None:
        return [*lines, "", "", *product.lax_backward()]
    other = made.of(name, backward.promise, backward.compute)
    lines += ["", "", *product.backward()]
    names = ("_transpose", "_transpose_kernel", "_TRANSPOSE_SPEC")
    return [*lines, "", "", *_product_kernel(other, backward, names, debug)]


def _product_kernel(product: Product, kernel: Kernel, names: tuple[str, str, str], debug: bool) -> list[str]:
    """The function around a kernel, its spec, and the kernel."""
    function, body, spec = names
    lines = [*product.forward(function, body, spec), "", "", *product.spec(spec, kernel.program)]
    lines += [*_synchronisation(kernel.program), "}"]
    units = product.units(kernel.program)
    return [*lines, "", "", *kernel_lines(kernel.program, body, _doc(kernel), units=units, debug=debug)]


def _doc(kernel: Kernel) -> str:
    kind = "product" if kernel.promise.kind == "none" else kernel.promise.kind.replace("_", "-")
    return f"The {kind}, as each rank runs it."


def _sides(program: Program) -> list[str]:
    if len(program.sides) == 1:
        return [f"N = {program.sides[0]}  # ranks", "SIDES = (N,)"]
    names = ", ".join(SIDE_NAMES[: len(program.sides)])
    sides = ", ".join(map(str, program.sides))
    product = " * ".join(SIDE_NAMES[: len(program.sides)])
    return [f"{names} = {sides}  # sides", f"SIDES = ({names})", f"N = {product}  # ranks"]


def _spec(name: str, kernel: Kernel) -> Iterator[str]:
    """What `_Call.launch` has to know of a Program."""
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


def _listed_tables(key: str, tables: Mapping[Table, str]) -> Iterator[str]:
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
