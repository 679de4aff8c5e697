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
from ringsched.codegen.multiply import CORES_TEXT
from ringsched.codegen.shapes import AXIS_NAME, INTERPRET, KERNEL_OPTIONS
from ringsched.collectives import Promise
from ringsched.lines import call, listed, paragraph
from ringsched.lower.chain import LAST, activation, finishing
from ringsched.lower.streams import fetched, weight
from ringsched.program.program import Buffer, Program
from ringsched.schedule.schedule import Chain, Multiply


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts of one chain. `promise`: of the first link; all cut shards in the same way.

    kernel: whether the module has one.
    """

    chain: Chain
    promise: Promise
    kernel: bool

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
        lines = self.described()
        if self.kernel:
            lines += [*CORES_TEXT, *INTERPRET]
        fits = " or do not fit VMEM" if self.kernel else ""
        lines += [f"    Raises ValueError where shapes do not match{fits}.", '    """', f'    name = "{self.name}"']
        if self.kernel:
            lines.append("    call = _KernelCall.of(name, axis_name, interpret, collective_id, cores)")
        else:
            lines.append("    call = _Call.of(name, axis_name)")
        lines += self.taken()
        if self.kernel:
            lines.append(f"    call = _spread(call, {'RANKS * ' if self.by_rows and not self.whole else ''}x.shape[0])")
        run = "_whole_layers" if self.whole else "_layers"
        lines += [*self.options(), "    rest = (finishes, out_dtype, partial)"]
        if self.kernel:
            lines += [
                "    if not call.portable:",
                "        return _Chained(call, _forward, _by_lax, rest)(x, *weights)[0]",
            ]
        if self.whole:
            return [*lines, f"    return _Chained(call, {run}, _by_lax, rest)(x, *weights)[0]"]
        return [*lines, f"    return {run}(call, x, tuple(weights), *rest)"]

    def layers(self) -> list[str]:
        """`_layers(call, x, weights, …)`: shard to shard, without a kernel."""
        lines = [
            "@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))",
            "def _layers(call, x, weights, finishes, out_dtype, partial):",
            '    """All layers, from shard to shard; what a layer gives is in 32 bits."""',
            "    dtype, wide = x.dtype, _wide(x.dtype)",
            "",
            "    def layer(y, weights):",
            "        y = y.astype(dtype)",
        ]
        for number in range(1, self.count + 1):
            index, transfers = number - 1, f"_transfers_{number}"
            if self.gathers(number):
                lines.append(f"        (y,) = _gathered_products({transfers}, call, y, [weights[{index}]])")
            else:
                lines.append(f"        y = _summed_products({transfers}, call, y, weights[{index}], partial)")
            dtype = "wide" if number == self.count else "dtype"
            lines.append(f"        y = _finished(y, finishes[{index}], {dtype})")
        return [
            *lines,
            "        return y, None",
            "",
            "    y, _ = lax.scan(layer, x.astype(wide), weights)",
            "    return y.astype(out_dtype)",
        ]

    def whole_layers(self) -> list[str]:
        """`_whole_layers(call, x, weights, …)`: all of the activation to all of it."""
        return [
            "def _whole_layers(call, x, weights, *rest):",
            '    """All layers, from the whole activation to the whole of it."""',
            "    size, axes = x.shape[ALONG] // RANKS, call.place",
            "    y = lax.dynamic_slice_in_dim(call.vary(x), axes.index * size, size, ALONG)",
            "    y = _layers(call, y, weights, *rest)",
            "    held, _ = _transfers_1(_own_placed(y, axes), axes, _Gathered([], []))",
            "    return _unblocked(held, ALONG, size, RANKS)",
        ]

    def described(self) -> list[str]:
        """The function's head, and its docstring up to the parameters of every module."""
        options = ["x: jax.Array", *(f"{w}: jax.Array" for w in self.weights), AXIS_NAME, "*"]
        options += ["epilogue: Any = None", "out_dtype: Any = None", "partial_dtype: Any = None"]
        options += ["cores: int | None = None", *KERNEL_OPTIONS] if self.kernel else []
        along = "rows" if self.by_rows else "features"
        x = "the whole activation, the same at all ranks, as is the result" if self.whole else "this rank's shard"
        shapes = f"x: {x}{'' if self.whole else f' along its {along}'}; {self._weights_text()}"
        kernel = "; one kernel runs all layers" if self.kernel else ""
        return [
            *call(f"def {self.name}(", options, 0, ") -> jax.Array:"),
            f'    """{self.count} products in each layer{kernel}.',
            "",
            *paragraph(shapes, 4),
            "    The same as _by_lax, below, but for rounding.",
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
        lines = [
            f"    weights = [jnp.asarray(it) for it in ({', '.join(self.weights)})]",
            "    x = jnp.asarray(x)",
        ]
        if not self.whole:
            lines.append("    _check_chain(call, x, weights, _WIDTHS)")
            return [*lines, "    (x, *weights), _ = _alike(call, (x, *weights))"]
        shard = f"_shard_of_whole(call, x, {0 if self.by_rows else 1})"
        lines.append(f"    _check_chain(call, {shard}, weights, _WIDTHS)")
        return [*lines, "    weights, (x,) = _alike(call, weights, (x,))"]

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
        return "(RANKS, 1)" if self.gathers(number) else "(1, RANKS)"

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

    def sharded(self) -> list[str]:
        """The function that does the shard_map itself."""
        x = "P()" if self.whole else "P(a, None)" if self.by_rows else "P(None, a)"
        specs = [x]
        specs += ["P(None, None, a)" if self.gathers(n) else "P(None, a, None)" for n in range(1, self.count + 1)]
        operands = ["x", *self.weights]
        head = [*(f"{it}: jax.Array" for it in operands), "*", "mesh: jax.sharding.Mesh", AXIS_NAME, "**options: Any"]
        return [
            *call(f"def {self.name}_sharded(", head, 0, ") -> jax.Array:"),
            f'    """{self.name} of whole arrays on the devices of `mesh`."""',
            "    a = axis_name if isinstance(axis_name, str) else tuple(axis_name)",
            *listed_specs(specs),
            f"    function, operands = {self.name}, ({', '.join(operands)})",
            "    specs = in_specs, in_specs[0]",
            "    return _sharded(function, operands, mesh, a, specs, options)",
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
                lines.append(f"{name} = _weight_of_gather({name}, {unit}, COUNT)")
            else:
                lines.append(f"{name} = _weight_of_scatter({name}, {unit}, COUNT)")
        lines.append(f"weights = ({', '.join(self.weights)})")
        lines.append("y = _launch_chain(call, _kernel, x, weights, _SPEC, units, finishes)")
        lines += self._put_together()
        head = "def _forward(call, x, weights, finishes, out_dtype, partial):"
        return [f"COUNT = {parts}  # of a shard", "", "", head, *(f"    {line}" for line in lines)]

    def _sizes(self) -> Iterator[str]:
        """Those of a shard, and of the units of each product."""
        yield "m, width_0 = x.shape"
        if self.whole:
            yield "m = m // RANKS" if self.by_rows else "width_0 = width_0 // RANKS"
        for number in range(1, self.count):
            shares = " // RANKS" if self._in_columns(number) else ""
            yield f"width_{number} = {weight(number)}.shape[2]{shares}"
        yield "units = ["
        for number in range(1, self.count + 1):
            cut = "(COUNT, 1, 1)" if self.by_rows else "(1, COUNT, 1)" if self.gathers(number) else "(1, 1, COUNT)"
            sizes = f"(m, {_width(number - 1)}, {_width(number % self.count)})"
            yield f"    _Units(call, {sizes}, {cut}, x.dtype, out_dtype, partial),"
        yield "]"

    def _cut(self) -> list[str]:
        """x as units."""
        match self.whole, self.by_rows:
            case False, True:
                return ["x = _padded(x, COUNT * rows, cols)"]
            case True, True:
                return ["x = _padded(call.vary(x).reshape(RANKS, m, width_0), COUNT * rows, cols)"]
            case False, False:
                return [
                    "x = _padded(x, rows, COUNT * cols).reshape(rows, COUNT, cols)",
                    "x = jnp.moveaxis(x, 1, 0)",
                ]
            case _:
                return [
                    "x = jnp.moveaxis(call.vary(x).reshape(m, RANKS, width_0), 1, 0)",
                    "x = _padded(x, rows, COUNT * cols).reshape(RANKS, rows, COUNT, cols)",
                    "x = jnp.moveaxis(x, 2, 1)",
                ]

    def _put_together(self) -> list[str]:
        """The result of its units."""
        match self.whole, self.by_rows:
            case False, True:
                return ["return y.reshape(COUNT * rows, cols)[:m, :width_0]"]
            case True, True:
                return [
                    "y = y.reshape(RANKS, COUNT * rows, cols)[:, :m, :width_0]",
                    "return y.reshape(RANKS * m, width_0)",
                ]
            case False, False:
                return [
                    "y = jnp.moveaxis(y.reshape(COUNT, rows, cols), 0, 1)",
                    "return y.reshape(rows, COUNT * cols)[:m, :width_0]",
                ]
            case _:
                return [
                    "y = jnp.moveaxis(y.reshape(RANKS, COUNT, rows, cols), 2, 0)",
                    "y = y.reshape(rows, RANKS, COUNT * cols)[:m, :, :width_0]",
                    "return y.reshape(m, RANKS * width_0)",
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
