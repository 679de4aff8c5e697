"""Exchange → the text of a module that imports only jax.

header      which schedule, which parameters, what was proven
function    for use inside shard_map, and one that does the shard_map itself: those of the kernel's module
transfers   the steps of the schedule
fixed part  the text of `template.py` after its marker, the same in all modules
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringsched.codegen import shapes
from ringsched.codegen.lines import call, fixed_part, header, paragraph, spaced
from ringsched.expr import names
from ringsched.xla.constants import TYPED, constant_lines, translator_of
from ringsched.xla.exchange import Exchange
from ringsched.xla.steps import Steps
from ringsched.xla.translate import Translator

IMPORTS = """\
import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax
{more}from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
"""


def module_text(exchange: Exchange, *, name: str, heading: str, facts: list[tuple[str, str]]) -> str:
    """The module; `facts` go into the header."""
    module = _Module(exchange=exchange, name=name)
    steps = module.steps()
    typed = exchange.flat.promise.kind == "all_reduce"
    imports = IMPORTS.format(more=TYPED if typed else "")
    constants = constant_lines(exchange, module.translator)
    lines = [*header(name, heading, facts, "x", imports), *constants]
    lines += ["", "", *module.public(), "", "", *module.sharded()]
    lines += ["", "", *module.inner(), "", "", *steps] if typed else ["", "", *steps]
    parts = ["template_sum.py", "template.py"] if typed else ["template.py"]
    return "\n\n".join([spaced(lines), *(fixed_part(part, "ringsched.xla") for part in parts)])


@dataclass(slots=True)
class _Module:
    exchange: Exchange
    name: str
    shape: shapes.Shape = field(init=False)
    translator: Translator = field(init=False)

    def __post_init__(self) -> None:
        flat = self.exchange.flat
        self.shape = shapes.of(flat.promise, self.name)
        self.translator = translator_of(self.exchange)

    def steps(self) -> list[str]:
        return Steps(exchange=self.exchange, translator=self.translator).lines()

    # ---- the function -------------------------------------------------------------------------------------------

    def public(self) -> list[str]:
        """For use inside shard_map."""
        shape = self.shape
        options = [f"{axis}=0" for axis in shape.axes] + (["tiled=True"] if shape.axes else [])
        signature = ["x", "*", "axis_name", *options]
        lines = [*call(f"def {self.name}(", signature, 0, "):"), f'    """{shape.says}', ""]
        lines += [*paragraph(shape.lax, 4), "    axis_name: a mesh axis, or one for each side of the topology."]
        if shape.axes:
            lines.append("    Raises ValueError where the number of ranks does not divide the axis.")
        lines += ['    """', f'    axes = _axes("{self.name}", axis_name)', "    x = _vary(jnp.asarray(x), axes)"]
        return [*lines, *(f"    {line}" if line else "" for line in self._body())]

    def sharded(self) -> list[str]:
        """The function that does the shard_map itself; one by one, its operations would be compiled one by one."""
        return [
            *self.shape.sharded_head(),
            *self.shape.placed(),
            "    axes = axis_name if isinstance(axis_name, str) else tuple(axis_name)",
            "    return _mapped(mesh, axes, in_specs, out_specs, **options)(x)",
            "",
            "",
            "@functools.cache",
            "def _mapped(mesh, axis_name, in_specs, out_specs, **options):",
            *call("apply = functools.partial(", [self.name, "axis_name=axis_name", "**options"], 4),
            '    specs = {"in_specs": in_specs, "out_specs": out_specs}',
            "    return jax.jit(jax.shard_map(apply, mesh=mesh, check_vma=False, **specs))",
        ]

    @property
    def _place(self) -> str:
        """This rank's own place in the leading dimensions of the chunks."""
        if self.exchange.flat.promise.group == 1:
            return "lax.axis_index(axes)"
        return "tuple(_coordinates(axes))"

    def _rooted(self, value: str) -> list[str]:
        root = self.exchange.flat.promise.root
        return [
            f"at_root = lax.axis_index(axes) == {root}",
            f"{value} = jnp.where(at_root, {value}, jnp.zeros_like({value}))",
        ]

    def _body(self) -> list[str]:
        match self.shape.kind:
            case "all_gather" | "gather":
                lines = [
                    "axis = _axis(axis, x.ndim + (not tiled))",
                    "if not tiled:",
                    "    x = jnp.expand_dims(x, axis)",
                    f"held = _placed(_cut(x, PARTS), {self._place})",
                    "held = _transfers(held, axes)",
                ]
                if self.shape.kind == "gather":
                    lines += self._rooted("held")
                return [*lines, "return _join(_uncut(held, (RANKS, *x.shape), RANKS), axis)"]
            case "reduce_scatter" | "scatter":
                lines = ["axis = _axis(axis, x.ndim)", f'_check_divides("{self.name}", x.shape, axis, tiled)']
                if self.shape.kind == "reduce_scatter":
                    lines += ["if x.dtype == bool:", f'    raise TypeError("{self.name} does not add bool")']
                lines += ["shards = _split(x, axis)", "held = _cut(shards, CHUNKS, RANKS)"]
                if self.shape.kind == "scatter":
                    lines += self._rooted("held")
                return [
                    *lines,
                    "held = _transfers(held, axes)",
                    f"out = _uncut(held[{self._place}], shards.shape[1:])",
                    "return out if tiled else jnp.squeeze(out, axis)",
                ]
            case "all_to_all":
                group = self.exchange.flat.promise.group
                grid = "(RANKS, *PARTS)" if group == 1 else "(*SIDES, *PARTS)"
                place = "[:, lax.axis_index(axes)]" if group == 1 else "[(slice(None),) * len(SIDES) + place]"
                return [
                    "split_axis = _axis(split_axis, x.ndim)",
                    "concat_axis = _axis(concat_axis, x.ndim)",
                    f'_check_divides("{self.name}", x.shape, split_axis, tiled)',
                    "x = x if tiled else jnp.moveaxis(x, split_axis, 0)",
                    "shards = _split(x, split_axis if tiled else 0)",
                    *([f"place = {self._place}"] if group > 1 else []),
                    f"held = _placed(_cut(shards, {grid}, RANKS), {'place' if group > 1 else self._place})",
                    "held = _transfers(held, axes)",
                    f"out = _uncut(held{place}, shards.shape, RANKS)",
                    "out = _join(out, concat_axis if tiled else 0)",
                    "return out if tiled else jnp.moveaxis(out, 0, concat_axis)",
                ]
            case "all_reduce":
                return [
                    "x = x.astype(jnp.int32) if x.dtype == bool else x",
                    "typed = jax.typeof(lax.axis_index(axes)).mat.varying",
                    "if not typed:",
                    "    return _sum(x, axes)",
                    "return _typed_sum(lambda x: _sum(x, axes), lambda x: x, axes, x)",
                ]
            case "reduce":
                lines = ["x = x.astype(jnp.int32) if x.dtype == bool else x", *_TRANSFERRED]
                return [*lines, *self._rooted("held"), "return _uncut(held, x.shape)"]
            case "broadcast":
                cut, transfers = _TRANSFERRED
                return [cut, *self._rooted("held"), transfers, "return _uncut(held, x.shape)"]
            case _:
                return [
                    f"held = _placed(_cut(x, PARTS), {self._place})",
                    "held = _transfers(held, axes)",
                    *self._source(),
                    "return _uncut(held.reshape(RANKS, -1)[source], x.shape)",
                ]

    def _source(self) -> list[str]:
        """The rank whose operand this one gets."""
        flat = self.exchange.flat
        expr = flat.schedule.collective.permutation
        if expr is not None and flat.topology.coordinates == ("r",) and names(expr) <= {"r", *self.exchange.parameters}:
            rule = f"lambda r: {self.translator.number(expr)}"
            return [
                f"sources = sorted(range(RANKS), key={rule})",
                "source = jnp.array(sources)[lax.axis_index(axes)]",
            ]
        permutation = flat.promise.permutation
        sources = sorted(range(len(permutation)), key=lambda rank: permutation[rank])
        return [
            *call("sources = [", map(str, sources), 0, "]"),
            "source = jnp.array(sources)[lax.axis_index(axes)]",
        ]

    def inner(self) -> list[str]:
        """The sum of an all-reduce, whatever its type."""
        return ["def _sum(x, axes):", *(f"    {line}" for line in _TRANSFERRED), "    return _uncut(held, x.shape)"]


_TRANSFERRED = ("held = _cut(x, CHUNKS)", "held = _transfers(held, axes)")
