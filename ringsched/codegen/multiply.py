"""The functions around a kernel that multiplies: how operands are cut into units and the result put together.

    moment           shard      x on a rank         w on a rank        result on a rank
    on arrival       rows       [rows, depth]       [depth, cols]      [N * rows, cols]
    on arrival       features   [rows, depth / N]   [depth, cols]      [rows, cols]
    before sending   rows       [rows, depth]       [depth, cols]      [rows / N, cols]
    before sending   features   [rows, depth]       [depth, cols]      [rows, cols / N]

An all-reduce is a sum before sending whose result stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ringsched.codegen.kernel import Unit, product_groups
from ringsched.codegen.shapes import AXIS_NAME, INTERPRET, KERNEL_OPTIONS
from ringsched.collectives import Promise
from ringsched.lines import call, listed, paragraph
from ringsched.program.program import Instruction, Loop, Peer, Program, Send, When
from ringsched.schedule.schedule import Multiply

CORES_TEXT = (
    "    cores: of a device, 1 or 2, each of which takes its share of the rows; None: 2 where",
    "    the device has two cores and there are rows enough.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The texts of one schedule that multiplies."""

    name: str
    promise: Promise
    compute: Multiply
    memory: str | None = None  # where operands are, unless a call says otherwise
    kernel: bool = True  # whether the module has one

    @classmethod
    def of(
        cls, name: str, promise: Promise, compute: Multiply | None, memory: str | None = None, *, kernel: bool
    ) -> Product:
        """compute: not None; a schedule without one has other functions."""
        assert compute is not None
        return cls(name=name, promise=promise, compute=compute, memory=memory, kernel=kernel)

    @property
    def gathers(self) -> bool:
        return self.compute.moment == "on arrival"

    @property
    def keeps(self) -> bool:
        """Whether what was gathered can be kept for the gradient."""
        return self.gathers

    @property
    def by_rows(self) -> bool:
        return self.compute.shard == "rows"

    def units(self, program: Program) -> dict[str, Unit]:
        """The dimensions of each buffer's unit."""
        activation, weight = Unit(rows="rows", cols="depth"), Unit(rows="depth", cols="cols")
        if not self.gathers and not self.by_rows:
            weight = Unit(rows="depth", cols="cols", in_columns=True)
        known = {"x": activation, "gathered": activation, "w": weight}
        return {b.name: known.get(b.name, Unit(rows="rows", cols="cols")) for b in program.buffers}

    def lax(self) -> str:
        """The same by jax.lax, of one rank's x and w; `a` are the mesh axes."""
        if self.gathers:
            return f"_dot(lax.all_gather(x, a, axis={0 if self.by_rows else 1}, tiled=True), w)"
        if self.promise.kind == "all_reduce":
            return "lax.psum(_dot(x, w), a)"
        scattered = f"scatter_dimension={0 if self.by_rows else 1}, tiled=True"
        return f"lax.psum_scatter(_dot(x, w), a, {scattered})"

    def public(self) -> list[str]:
        """The function for use inside shard_map."""
        weight = "jax.Array | tuple[jax.Array, jax.Array]" if self.gathers else "jax.Array"
        options = ["x: jax.Array", f"w: {weight}", AXIS_NAME, "*", "epilogue: str | Callable[..., Any] | None = None"]
        options += ["scale: Any = None", "bias: Any = None", "residual: jax.Array | None = None"]
        options += ["transposed: bool = False", "out_dtype: Any = None"]
        if not self.gathers:
            options.append("partial_dtype: Any = None")
        if self.keeps and self.kernel:
            options.append("keep_gathered: bool = False")
        if self.kernel:
            memory = f'"{self.memory}"' if self.memory else None
            options += [f"memory: str | None = {memory}", "tile: int | None = None", "cores: int | None = None"]
            options += KERNEL_OPTIONS
        lines = [line.replace("*,", "*,") for line in call(f"def {self.name}(", options, 0, ") -> jax.Array:")]
        lines += self.described()
        if self.keeps and self.kernel:
            lines.append("    keep_gathered: for the gradient of w; else x is gathered once more.")
        if self.kernel:
            lines += [
                '    memory: of x, w and the result: "vmem", or "hbm", from which they are streamed;',
                "    None: VMEM where they take half of it at most.",
                "    tile: so many columns are streamed at a time; None: by a model of the chip.",
                *CORES_TEXT,
                *INTERPRET,
            ]
        fits = " or do not fit VMEM" if self.kernel else ""
        lines += [f"    Raises ValueError where shapes do not match{fits}.", '    """', f'    name = "{self.name}"']
        if self.kernel:
            lines.append("    call = _KernelCall.of(name, axis_name, interpret, collective_id, cores)")
        else:
            lines.append("    call = _Call.of(name, axis_name)")
        partial = "None" if self.gathers else "partial_dtype and jnp.dtype(partial_dtype)"
        lines += [
            "    x, weights = _operands(x, w)",
            "    options = {",
            '        "function": _epilogue(call.name, epilogue),',
            '        "transposed": transposed,',
            '        "out_dtype": _result_dtype(x, scale, out_dtype),',
            f'        "partial": {partial},',
            f'        "keep": {"keep_gathered" if self.keeps and self.kernel else "False"},',
            *(['        "memory": memory,', '        "tile": tile,'] if self.kernel else []),
            "    }",
            *call("    shape = _check_product(", ["call", "x", "weights", "options", *self.rule("RANKS")], 0),
        ]
        if self.kernel:
            rows = "RANKS * x.size" if self.keeps and self.by_rows else "x.size"
            lines.append(f"    call = _spread(call, {rows} // max(1, x.shape[-1]))")
        lines += [
            f"    extras = _extras(call, scale, bias, residual, shape, {self.sides()})",
            "    return _multiplied(call, _product(), x, weights, extras, options)",
        ]
        return lines

    def multiplied(self, forward: bool, backward: bool) -> list[str]:
        """What the module computes, put together."""
        arguments = [f'"{self.promise.kind}"', str(0 if self.by_rows else 1), "_portable"]
        arguments += ["forward=_forward"] if forward else []
        arguments += ["backward=_transpose"] if backward else []
        return ["@functools.cache", "def _product():", *call("return _Multiplied(", arguments, 4)]

    def portable(self) -> list[str]:
        """`_portable(call, x, weights, partial)`: the sums of each weight, in 32 bits, without a kernel."""
        lines = ["def _portable(call, x, weights, partial):"]
        if self.promise.kind == "none":
            return [*lines, "    return [_dot(x, w) for w in weights]"]
        if self.gathers:
            return [*lines, "    return _gathered_products(_transfers, call, x, weights)"]
        return [*lines, "    (w,) = weights", "    return [_summed_products(_transfers, call, x, w, partial)]"]

    def described(self) -> list[str]:
        """The docstring, up to those options that every back end has."""
        lines = [f'    """{self.says()}', "", *paragraph(self.shapes(), 4)]
        if self.gathers:
            text = (
                "w may be a pair of a gate and a weight: the result is epilogue(x @ gate) * (x @ w), SwiGLU with "
                'epilogue="silu".'
            )
            lines += paragraph(text, 4)
        lines += [
            "    axis_name: a mesh axis, or one for each side of the topology.",
            "    epilogue: elementwise, on complete sums in 32 bits, before they are stored:",
            '    "gelu", "gelu_exact", "silu", "relu", or a function of jax.',
            "    scale, bias: [columns of the result], before the epilogue: sum * scale + bias.",
            "    With a gate, a pair of each.",
            "    residual: like the result, added after the epilogue.",
            *(["    All ranks have scale, bias and residual alike."] if self.shares() == "1" else []),
            "    transposed: w is [cols, depth].",
            "    out_dtype: of the result; None: that of x, float32 for scaled integers.",
        ]
        if not self.gathers:
            lines.append("    partial_dtype: in which sums travel; None: that of the result.")
        return lines

    def sides(self) -> str:
        """Whether there is a gate, and what all ranks have alike."""
        return "False, same=True" if self.promise.kind == "all_reduce" else "len(weights) > 1"

    def rule(self, ranks: str) -> list[str]:
        """How the result's shape follows from those of x and w; `ranks`: what their number is called."""
        found = []
        if self.gathers:
            found.append(f"{'wider' if self.by_rows else 'deeper'}={ranks}")
        elif self.shares() != "1":
            found.append(f"split={0 if self.by_rows else 1}")
        return [*found, *([] if self.gathers else ["gates=False"])]

    def says(self) -> str:
        when = "all parts are computed before any is sent"
        if self.gathers:
            when = "each shard is multiplied as it arrives"
            when = when if self.compute.overlap == "full" else "all shards are multiplied when all are there"
            return f"The gathered x times w; {when}."
        when = when if self.compute.overlap == "none" else "each part is computed just before it is sent"
        if self.promise.kind == "all_reduce":
            return f"The sum of x @ w over all ranks; {when}."
        return f"The r-th shard of the sum of x @ w; {when}."

    def shapes(self) -> str:
        along = "rows" if self.by_rows else "features"
        if self.gathers:
            return f"x: this rank's shard along its {along}; w: [depth, cols], this rank's own. As {self.lax()}."
        return f"x: [rows, depth] and w: [depth, cols], this rank's parts of the contraction. As {self.lax()}."

    def shares(self) -> str:
        """Into how many shards the result of a sum is cut."""
        return "1" if self.promise.kind == "all_reduce" else "RANKS"

    def specs(self) -> tuple[str, str, str]:
        """How x, w and the result are split over the mesh axes `a`."""
        x = "P(a, None)" if self.gathers and self.by_rows else "P(None, a)"
        w = "P(None, a)" if self.gathers else "P(a, None)"
        out = "P(None, a)" if self.gathers or not self.by_rows else "P(a, None)"
        return x, w, "P()" if self.promise.kind == "all_reduce" else out

    def sharded(self) -> list[str]:
        """The function that does the shard_map itself."""
        x, w, out = self.specs()
        options = ["x: jax.Array", "w: jax.Array", "*", "mesh: jax.sharding.Mesh", AXIS_NAME, "**options: Any"]
        return [
            *call(f"def {self.name}_sharded(", options, 0, ") -> jax.Array:"),
            f'    """{self.name} on the devices of `mesh`.',
            "",
            "    x: the whole [rows, depth]; w: the whole [depth, cols].",
            '    """',
            "    a = axis_name if isinstance(axis_name, str) else tuple(axis_name)",
            f"    specs = ({x}, {w}), {out}",
            f"    function, operands = {self.name}, (x, w)",
            "    return _sharded(function, operands, mesh, a, specs, options)",
        ]

    def forward(self, function: str, kernel: str, spec: str) -> list[str]:
        """`function(call, x, weights, extras, options)`: cut and pad, launch, put together."""
        parts, shares = math.prod(self.promise.dims[self.promise.group :]), self.shares()
        cut = {
            (True, True): "(parts, 1, 1)",
            (True, False): "(1, parts, 1)",
            (False, True): "(parts, 1, 1)",
            (False, False): "(1, 1, parts)",
        }[self.gathers, self.by_rows]
        sizes = {
            (True, True): "(m, k), n = x.shape, wide",
            (True, False): "(m, k), n = x.shape, wide",
            (False, True): f"m, k, n = x.shape[0] // {shares}, x.shape[1], wide",
            (False, False): f"(m, k), n = x.shape, wide // {shares}",
        }[self.gathers, self.by_rows]
        last = "sides=len(weights)" if self.gathers else 'options["partial"]'
        body = [
            f"parts = {parts}  # of a shard",
            "wide = _shape_of(weights[0], options)[1]",
            sizes,
            'out = options["out_dtype"]',
            f"units = _Units(call, (m, k, n), {cut}, x.dtype, out, {last})",
            *self._cut(shares, spec),
            f"extras = _extras_in_units(extras, units, {spec}, pack)",
            f"spec, operands = {spec}, (x, weights, extras)",
            f"y = _launch_product(call, {kernel}, *operands, spec, units, options)",
        ]
        if self.keeps:
            body += [
                'if options["keep"]:',
                "    y, gathered = y",
                f"    whole = _whole(call, gathered, x, {parts})",
                f"    whole = {self._whole()}",
                "    return unpack(y), whole",
            ]
        body.append("return unpack(y)")
        head = f"def {function}(call, x, weights, extras, options):"
        return [head, *(f"    {line}" if line else "" for line in body)]

    def _whole(self) -> str:
        """What was gathered, of units [RANKS, parts, rows, depth]."""
        if self.by_rows:
            return "whole.reshape(RANKS, -1, units.depth)[:, :m, :k].reshape(RANKS * m, k)"
        return "_side_by_side(whole, m, k)"

    def _cut(self, shares: str, spec: str) -> list[str]:
        """Units of x and the weights, and how those of the result are made and put together."""
        depth, cols = "(1, units.depth)", "(1, units.cols)"
        match self.gathers, self.by_rows:
            case True, True:
                x = ["x = _padded(x, parts * units.rows, units.depth)"]
                pack = ["y = _padded(y.reshape(RANKS, m, n), parts * units.rows, units.cols)"]
                unpack = ["return y.reshape(RANKS, -1, units.cols)[:, :m, :n].reshape(RANKS * m, n)"]
            case True, False:
                x = ["x = _padded(x, units.rows, parts * units.depth)"]
                x += ["x = jnp.moveaxis(x.reshape(units.rows, parts, units.depth), 1, 0)"]
                depth = "(RANKS, parts * units.depth)"
                pack = ["y = _padded(y, units.rows, units.cols)"]
                unpack = ["return y.reshape(units.rows, units.cols)[:m, :n]"]
            case False, True:
                x = [f"x = _padded(x.reshape({shares}, m, k), parts * units.rows, units.depth)"]
                pack = ["y = _padded(y.reshape(-1, m, n), parts * units.rows, units.cols)"]
                unpack = ["y = y.reshape(-1, parts * units.rows, units.cols)[:, :m, :n]", "return y.reshape(-1, n)"]
            case _:
                x = ["x = _padded(x, units.rows, units.depth)"]
                cols = f"({shares}, parts * units.cols)"
                pack = [
                    "y = jnp.moveaxis(y.reshape(m, -1, n), 1, 0)",
                    "y = _padded(y, units.rows, parts * units.cols)",
                    "y = jnp.moveaxis(y.reshape(-1, units.rows, parts, units.cols), 2, 1)",
                ]
                unpack = [
                    "y = y.reshape(-1, parts, units.rows, units.cols)[:, :, :m]",
                    "y = jnp.moveaxis(y, 2, 1).reshape(-1, m, parts * units.cols)[:, :, :n]",
                    "return jnp.moveaxis(y, 0, 1).reshape(m, -1)",
                ]
        return [
            *x,
            f"cut = ({depth}, {cols})",
            "weights = _padded_weights(weights, *cut, options)",
            "",
            "def pack(y):",
            *(f"    {line}" for line in pack),
            f'    return y.reshape(*{spec}["o"], units.rows, units.cols)',
            "",
            "def unpack(y):",
            *(f"    {line}" for line in unpack),
            "",
        ]

    def spec(self, name: str, program: Program) -> Iterator[str]:
        """What `_Call.multiply` has to know of a Program: each buffer's grid, and what its units are."""
        kinds = {"x": "x", "gathered": "x", "w": "w", "o": "o", "total": "sum", "partial": "sum"}
        scratch = [b for b in program.buffers if b.space == "scratch"]
        yield "# Grids of units, and of which kind they are; semaphores, the pattern of the barrier."
        yield f"{name} = {{"
        for buffer in program.buffers:
            if buffer.space != "scratch":
                yield f'    "{buffer.name}": {buffer.shape!r},'
        groups, nested = product_groups(program, self.units(program))
        yield f'    "gathers": {self.gathers},'
        yield f'    "by_rows": {self.by_rows},'
        yield f'    "by_columns": {not self.gathers and not self.by_rows},'
        says = "calls; of each product so many units"
        line = f'    "groups": {groups!r},  # {says}'
        yield from [line] if len(line) <= 88 else _in_lines("groups", groups, says)
        yield f'    "rolled": {nested},'
        yield f'    "directions": {_directions(program.body)},'
        yield f'    "replicated": {self.promise.kind == "all_reduce"},'
        rows = [f'({b.shape!r}, "{kinds.get(b.name, "partial")}"),  # {b.name}' for b in scratch]
        yield from listed("scratch", rows)


def _in_lines(name: str, rows: tuple[object, ...], says: str) -> list[str]:
    """An entry with a line for each of its rows, as a formatter has it."""
    return [f'    "{name}": (  # {says}', *(f"        {row!r}," for row in rows), "    ),"]


def _directions(body: tuple[Instruction, ...]) -> int:
    """To how many ranks one sends."""

    def peers(body: tuple[Instruction, ...]) -> Iterator[Peer]:
        for i in body:
            if isinstance(i, Send):
                yield i.peer
            elif isinstance(i, Loop | When):
                yield from peers(i.body)

    return max(1, len(set(peers(body))))
