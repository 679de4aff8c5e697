"""The functions around the kernel of a chain: how operands are cut into units and the result put together.

x and result on a rank: [rows, width_0], a shard along rows or along features, or the whole that N of them make up
weight k (from 1)       a link that gathers    [layers, depth, width_k]; along features its depth is N * width_{k - 1}
                        a link that scatters   [layers, width_{k - 1}, cols]; along features cols is N * width_k
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ringsched.codegen.kernel import Unit
from ringsched.codegen.lines import call, listed, paragraph
from ringsched.codegen.multiply import CORES_TEXT
from ringsched.collectives import Promise
from ringsched.lower.chain import LAST, activation, finishing
from ringsched.lower.streams import fetched, weight
from ringsched.program.program import Buffer, Program
from ringsched.schedule.schedule import Chain, Multiply


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts of one chain. `promise`: of the first link; all cut shards in the same way.

    ranks: what their number is called.
    """

    chain: Chain
    promise: Promise
    ranks: str = "N"

    @property
    def name(self) -> str:
        return self.chain.name

    @property
    def count(self) -> int:
        return len(self.chain.links)

    @property
    def by_rows(self) -> bool:
        return self._compute(1).shard == "rows"

    @property
    def whole(self) -> bool:
        return self.chain.activation == "whole"

    @property
    def weights(self) -> list[str]:
        return [weight(number) for number in range(1, self.count + 1)]

    def _compute(self, number: int) -> Multiply:
        compute = self.chain.links[number - 1].schedule.compute
        assert compute is not None
        return compute

    def gathers(self, number: int) -> bool:
        """Whether this product is behind a gather."""
        return self._compute(number).moment == "on arrival"

    def _in_columns(self, number: int) -> bool:
        """Whether units of the weight are blocks of its columns."""
        return not self.by_rows and not self.gathers(number)

    # -- what the kernel's buffers are made of ------------------------------------------------------------------------

    def units(self, program: Program) -> dict[str, Unit]:
        """The dimensions of each buffer's unit."""
        found = {b.name: self._unit(b) for b in program.buffers if b.name not in self.weights}
        for number in range(1, self.count + 1):
            unit = Unit(rows=_width(number - 1), cols=_width(number % self.count), in_columns=self._in_columns(number))
            found[fetched(number)] = unit
            found[weight(number)] = Unit(rows=unit.rows, cols=unit.cols, in_columns=unit.in_columns, layers=True)
        return found

    def _unit(self, buffer: Buffer) -> Unit:
        if buffer.name in ("x", "o"):
            return Unit(rows="rows", cols=_width(0))
        name, number = self._link_of(buffer)
        wide = 0 if name == LAST else number - 1 if name in ("x", "gathered") else number % self.count
        return Unit(rows="rows", cols=_width(wide))

    def _link_of(self, buffer: Buffer) -> tuple[str, int]:
        """A scratch buffer's name in the Program of its link, and the link's number; LAST, or of the closing gather."""
        for number in range(1, self.count + 1):
            if buffer.name == activation(number - 1, self.count):
                return "x", number
            if buffer.name == fetched(number):
                return "w", number
        name, _, number_ = buffer.name.rpartition("_")
        if buffer.name == LAST or int(number_) > self.count:
            return LAST, self.count
        return name, int(number_)

    def finishes(self) -> dict[str, str]:
        """Buffer → the epilogue of what is computed into it."""
        found = finishing(self.count, whole=self.whole)
        return {name: f"finishes[{number - 1}]" for name, number in found.items()}

    # -- functions ----------------------------------------------------------------------------------------------------

    def public(self) -> list[str]:
        """The function for use inside shard_map."""
        more = ["cores=None", "interpret=None", "collective_id=None"]
        return [
            *self.described(more),
            *CORES_TEXT,
            "    interpret: None interprets the kernel where there is no TPU.",
            "    collective_id: None derives it from the barrier and the mesh axes.",
            "    Raises ValueError where shapes do not match or do not fit VMEM.",
            '    """',
            f'    name = "{self.name}"',
            "    call = _Call(name, axis_name, interpret, collective_id, cores)",
            *self.taken(),
            f"    _spread(call, {'N * ' if self.by_rows and not self.whole else ''}x.shape[0])",
            *self.options(),
            "    rest = (finishes, out_dtype, partial)",
            "    return _differentiable(call, _forward, _backward, x, tuple(weights), *rest)",
            "",
            "",
            *self.constants(),
            "",
            "",
            *self.by_lax(),
            "",
            "",
            "def _backward(call, x, weights, ct, *rest):",
            '    """The gradients of x and of the weights, by jax.lax."""',
            "",
            "    def by_lax(x, weights):",
            "        return _by_lax(x, weights, call.axes, *rest)",
            "",
            "    return jax.vjp(by_lax, x, weights)[1](ct)",
        ]

    def described(self, more: list[str]) -> list[str]:
        """The function's head, with `more` parameters, and its docstring up to those of every back end."""
        options = ["x", *self.weights, "*", "axis_name", "epilogue=None", "out_dtype=None", "partial_dtype=None"]
        along = "rows" if self.by_rows else "features"
        x = "the whole activation, the same at all ranks, as is the result" if self.whole else "this rank's shard"
        shapes = f"x: {x}{'' if self.whole else f' along its {along}'}; {self._weights_text()}"
        kernel = "; one kernel runs all layers" if more else ""
        return [
            *call(f"def {self.name}(", [*options, *more], 0, "):"),
            f'    """{self.count} products in each layer{kernel}.',
            "",
            *paragraph(shapes, 4),
            *(["    The same as _by_lax, below, but for rounding."] if more else []),
            "    axis_name: a mesh axis, or one for each side of the topology.",
            "    epilogue: elementwise, on complete sums in 32 bits, before they are stored:",
            '    "gelu", "gelu_exact", "silu", "relu", or a function of jax. A tuple has one for',
            "    each product, None for none; a single one is that of the first.",
            f"    None: {self._epilogues()}.",
            "    out_dtype: of the last layer's result; None: that of x.",
            "    partial_dtype: in which sums travel; None: that of x.",
        ]

    def options(self) -> list[str]:
        """What the options come to."""
        return [
            "    finishes = _epilogues(call.name, epilogue, _EPILOGUES)",
            "    out_dtype = x.dtype if out_dtype is None else jnp.dtype(out_dtype)",
            "    partial = x.dtype if partial_dtype is None else jnp.dtype(partial_dtype)",
        ]

    def _epilogues(self) -> str:
        return repr(tuple(link.epilogue for link in self.chain.links)).replace("'", '"')

    def constants(self) -> list[str]:
        """How wide weights are, and the epilogues of the schedule."""
        return [
            "# By how much more than the width before a weight has rows; into how many shards its",
            "# columns are cut.",
            f"_WIDTHS = ({', '.join(map(self._factors, range(1, self.count + 1)))})",
            f"_EPILOGUES = {self._epilogues()}",
        ]

    def taken(self) -> list[str]:
        """The operands, checked."""
        varied = "    x = _varying_with(call, x, weights)"
        if not self.whole:
            operands = ", ".join(["x", *self.weights])
            return [
                f"    x, *weights = [call.vary(jnp.asarray(it)) for it in ({operands})]",
                "    _check_chain(call, x, weights, _WIDTHS)",
                varied,
            ]
        axis = 0 if self.by_rows else 1
        return [
            f"    weights = [call.vary(jnp.asarray(it)) for it in ({', '.join(self.weights)})]",
            "    x = jnp.asarray(x)",
            f"    _check_chain(call, _shard_of_whole(call, x, {axis}), weights, _WIDTHS)",
            varied,
        ]

    def _weights_text(self) -> str:
        texts = []
        for number, name in enumerate(self.weights, 1):
            rows = "N * " if not self.by_rows and self.gathers(number) else ""
            cols = "N * " if self._in_columns(number) else ""
            texts.append(f"{name}: [layers, {rows}{_width(number - 1)}, {cols}{_width(number % self.count)}]")
        return f"{', '.join(texts)}, this rank's own."

    def _factors(self, number: int) -> str:
        if self.by_rows:
            return "(1, 1)"
        return f"({self.ranks}, 1)" if self.gathers(number) else f"(1, {self.ranks})"

    def by_lax(self) -> list[str]:
        """`_by_lax(x, weights, a, …)`, over mesh axes `a`."""
        along = 0 if self.by_rows else 1
        head = "def _by_lax(x, weights, a, finishes, out_dtype, *_):"
        lines = [head, '    """What the kernel computes, by jax.lax."""', "", "    def layer(x, weights):"]
        for number in range(1, self.count + 1):
            operand = "x"
            if self.gathers(number) and not self.whole:
                lines.append(f"        y = lax.all_gather(x, a, axis={along}, tiled=True)")
                operand = "y"
            lines.append(f"        y = _dot({operand}, weights[{number - 1}])")
            if not self.gathers(number):
                scattered = f"lax.psum_scatter(y, a, scatter_dimension={along}, tiled=True)"
                lines.append(f"        y = {'lax.psum(y, a)' if self.whole else scattered}")
            lines.append(f"        x = _finished(y, finishes[{number - 1}], x.dtype)")
        lines += ["        return x, None", ""]
        return [*lines, "    return lax.scan(layer, x, weights)[0].astype(out_dtype)"]

    def sharded(self, mapped: str = "jax.shard_map(apply, mesh=mesh, check_vma=False, **specs)") -> list[str]:
        """The function that does the shard_map itself."""
        x = "P(None, None)" if self.whole else "P(a, None)" if self.by_rows else "P(None, a)"
        specs = [x]
        specs += ["P(None, None, a)" if self.gathers(n) else "P(None, a, None)" for n in range(1, self.count + 1)]
        head = ["x", *self.weights, "*", "mesh", "axis_name", "**options"]
        return [
            *call(f"def {self.name}_sharded(", head, 0, "):"),
            f'    """{self.name} of whole arrays on the devices of `mesh`."""',
            f"    a, function = axis_name, {self.name}",
            *listed_specs(specs),
            "",
            "    def apply(*operands):",
            "        return function(*operands, axis_name=axis_name, **options)",
            "",
            f"    pairs = zip((x, {', '.join(self.weights)}), in_specs, strict=True)",
            "    operands = [jax.device_put(it, NamedSharding(mesh, spec)) for it, spec in pairs]",
            '    specs = {"in_specs": in_specs, "out_specs": in_specs[0]}',
            f"    return {mapped}(*operands)",
        ]

    def forward(self) -> list[str]:
        """`_forward(call, x, weights, …)`: cut and pad, launch, put together."""
        parts = math.prod(self.promise.dims[self.promise.group :])
        lines = [f"{', '.join(self.weights)} = weights", *self._sizes()]
        lines.append("rows, cols = units[0].rows, units[0].depth")
        lines += self._cut()
        for number, name in enumerate(self.weights, 1):
            unit = f"units[{number - 1}]"
            if self.by_rows:
                lines.append(f"{name} = _padded({name}, {unit}.depth, {unit}.cols)")
            elif self.gathers(number):
                lines.append(f"{name} = _weight_of_gather({name}, {unit}, PARTS)")
            else:
                lines.append(f"{name} = _weight_of_scatter({name}, {unit}, PARTS)")
        lines.append(f"weights = ({', '.join(self.weights)})")
        lines.append("y = _launch_chain(call, _kernel, x, weights, _SPEC, units, finishes)")
        lines += self._put_together()
        head = "def _forward(call, x, weights, finishes, out_dtype, partial):"
        return [f"PARTS = {parts}  # of a shard", "", "", head, *(f"    {line}" for line in lines)]

    def _sizes(self) -> Iterator[str]:
        """Those of a shard, and of the units of each product."""
        yield "m, width_0 = x.shape"
        if self.whole:
            yield "m = m // N" if self.by_rows else "width_0 = width_0 // N"
        for number in range(1, self.count):
            shares = " // N" if self._in_columns(number) else ""
            yield f"width_{number} = {weight(number)}.shape[2]{shares}"
        yield "units = ["
        for number in range(1, self.count + 1):
            cut = "(PARTS, 1, 1)" if self.by_rows else "(1, PARTS, 1)" if self.gathers(number) else "(1, 1, PARTS)"
            sizes = f"(m, {_width(number - 1)}, {_width(number % self.count)})"
            yield f"    _Units(call, {sizes}, {cut}, x.dtype, out_dtype, partial),"
        yield "]"

    def _cut(self) -> list[str]:
        """x as units."""
        match self.whole, self.by_rows:
            case False, True:
                return ["x = _padded(x, PARTS * rows, cols)"]
            case True, True:
                return ["x = _padded(call.vary(x).reshape(N, m, width_0), PARTS * rows, cols)"]
            case False, False:
                return [
                    "x = _padded(x, rows, PARTS * cols).reshape(rows, PARTS, cols)",
                    "x = jnp.moveaxis(x, 1, 0)",
                ]
            case _:
                return [
                    "x = jnp.moveaxis(call.vary(x).reshape(m, N, width_0), 1, 0)",
                    "x = _padded(x, rows, PARTS * cols).reshape(N, rows, PARTS, cols)",
                    "x = jnp.moveaxis(x, 2, 1)",
                ]

    def _put_together(self) -> list[str]:
        """The result of its units."""
        match self.whole, self.by_rows:
            case False, True:
                return ["return y.reshape(PARTS * rows, cols)[:m, :width_0]"]
            case True, True:
                return ["y = y.reshape(N, PARTS * rows, cols)[:, :m, :width_0]", "return y.reshape(N * m, width_0)"]
            case False, False:
                return [
                    "y = jnp.moveaxis(y.reshape(PARTS, rows, cols), 0, 1)",
                    "return y.reshape(rows, PARTS * cols)[:m, :width_0]",
                ]
            case _:
                return [
                    "y = jnp.moveaxis(y.reshape(N, PARTS, rows, cols), 2, 0)",
                    "y = y.reshape(rows, N, PARTS * cols)[:m, :, :width_0]",
                    "return y.reshape(m, N * width_0)",
                ]

    def spec(self, program: Program) -> Iterator[str]:
        """What `_launch_chain` has to know: each buffer's grid, what its units are, and of which link."""
        kinds = {"x": "x", "gathered": "x", "total": "sum", "partial": "sum", LAST: "o"}
        yield "# Grids of units, of which kind they are, of which product; semaphores, the barrier."
        yield "_SPEC = {"
        for name in ("x", "o"):
            yield f'    "{name}": {program.buffer(name).shape!r},'
        yield f'    "whole": {self.whole},'
        grids = [program.buffer(name).shape[1:] for name in self.weights]
        shown = ["None" if self._in_columns(n) else repr(grid) for n, grid in enumerate(grids, 1)]
        yield from listed("weights", [f"{grid}," for grid in shown])
        rows = []
        for b in program.buffers:
            if b.space == "scratch":
                name, number = self._link_of(b)
                kind = kinds.get(name, "partial")
                if name == "w":
                    kind = "columns" if self._in_columns(number) else "w"
                rows.append(f'({b.shape!r}, "{kind}", {number - 1}),  # {b.name}')
        yield from listed("scratch", rows)


def listed_specs(specs: list[str]) -> list[str]:
    """`in_specs = (…)`, a line if it fits."""
    line = f"    in_specs = ({', '.join(specs)})"
    if len(line) <= 88:
        return [line]
    return ["    in_specs = (", *(f"        {spec}," for spec in specs), "    )"]


def _width(number: int) -> str:
    return f"width_{number}"
