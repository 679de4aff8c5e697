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

from ringsched.codegen.kernel import Unit
from ringsched.codegen.lines import call, listed, paragraph
from ringsched.collectives import Promise
from ringsched.program.program import Program
from ringsched.schedule.schedule import Multiply


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The texts of one schedule that multiplies."""

    name: str
    promise: Promise
    compute: Multiply

    @classmethod
    def of(cls, name: str, promise: Promise, compute: Multiply | None) -> Product:
        """compute: not None; a schedule without one has other functions."""
        assert compute is not None
        return cls(name=name, promise=promise, compute=compute)

    @property
    def gathers(self) -> bool:
        return self.compute.moment == "on arrival"

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
        return f"lax.psum_scatter(_dot(x, w), a, scatter_dimension={0 if self.by_rows else 1}, tiled=True)"

    def public(self) -> list[str]:
        """The function for use inside shard_map."""
        options = ["x", "w", "*", "axis_name", "epilogue=None", "out_dtype=None"]
        options += [] if self.gathers else ["partial_dtype=None"]
        options += ["interpret=None", "collective_id=None"]
        lines = [line.replace("*,", "*,") for line in call(f"def {self.name}(", options, 0, "):")]
        lines += [f'    """{self._says()}', "", *paragraph(self._shapes(), 4)]
        lines += [
            "    axis_name: a mesh axis, or one for each side of the topology.",
            "    epilogue: elementwise, on complete sums in 32 bits, before they are stored:",
            '    "gelu", "gelu_exact", "silu", "relu", or a function of jax.',
            "    out_dtype: of the result; None: that of x.",
        ]
        if not self.gathers:
            lines.append("    partial_dtype: in which sums travel; None: that of the result.")
        lines += [
            "    interpret: None interprets the kernel where there is no TPU.",
            "    collective_id: None derives it from the barrier and the mesh axes.",
            "    Raises ValueError where shapes do not match or do not fit VMEM.",
            '    """',
            f'    name = "{self.name}"',
            "    call = _Call(name, axis_name, interpret, collective_id)",
            "    x, w = call.vary(jnp.asarray(x)), call.vary(jnp.asarray(w))",
            f"    _check_product(call, x, w, {self._depth_factor()}, {self._splits()})",
            "    out_dtype = x.dtype if out_dtype is None else jnp.dtype(out_dtype)",
            "    finish = _epilogue(name, epilogue)",
        ]
        if self.gathers:
            lines.append("    rest = (out_dtype, finish)")
        else:
            lines.append("    partial = out_dtype if partial_dtype is None else jnp.dtype(partial_dtype)")
            lines.append("    rest = (out_dtype, finish, partial)")
        lines += ["    return _differentiable(call, _forward, _backward, x, w, *rest)"]
        return lines

    def _says(self) -> str:
        when = "all parts are computed before any is sent"
        if self.gathers:
            when = "each shard is multiplied as it arrives"
            when = when if self.compute.overlap == "full" else "all shards are multiplied when all are there"
            return f"The gathered x times w; {when}."
        when = when if self.compute.overlap == "none" else "each part is computed just before it is sent"
        if self.promise.kind == "all_reduce":
            return f"The sum of x @ w over all ranks; {when}."
        return f"The r-th shard of the sum of x @ w; {when}."

    def _shapes(self) -> str:
        along = "rows" if self.by_rows else "features"
        if self.gathers:
            return f"x: this rank's shard along its {along}; w: [depth, cols], this rank's own. As {self.lax()}."
        return f"x: [rows, depth] and w: [depth, cols], this rank's parts of the contraction. As {self.lax()}."

    def _depth_factor(self) -> str:
        """How many times the depth of x that of w is."""
        return "N" if self.gathers and not self.by_rows else "1"

    def _splits(self) -> str:
        """Which dimension of the product is shared out among the ranks."""
        return "None" if self._shares() == "1" or self.gathers else "0" if self.by_rows else "1"

    def _shares(self) -> str:
        """Into how many shards the result of a sum is cut."""
        return "1" if self.promise.kind == "all_reduce" else "N"

    def _specs(self) -> tuple[str, str, str]:
        """How x, w and the result are split over the mesh axes `a`."""
        x = "P(a, None)" if self.gathers and self.by_rows else "P(None, a)"
        w = "P(None, a)" if self.gathers else "P(a, None)"
        out = "P(None, a)" if self.gathers or not self.by_rows else "P(a, None)"
        return x, w, "P(None, None)" if self.promise.kind == "all_reduce" else out

    def sharded(self) -> list[str]:
        """The function that does the shard_map itself."""
        x, w, out = self._specs()
        lines = list(call(f"def {self.name}_sharded(", ["x", "w", "*", "mesh", "axis_name", "**options"], 0, "):"))
        lines += [
            f'    """{self.name} on the devices of `mesh`.',
            "",
            "    x: the whole [rows, depth]; w: the whole [depth, cols].",
            '    """',
            f"    a, function = axis_name, {self.name}",
            f"    in_specs, out_specs = ({x}, {w}), {out}",
            "",
            "    def apply(x, w):",
            "        return function(x, w, axis_name=axis_name, **options)",
            "",
            "    pairs = zip((x, w), in_specs, strict=True)",
            "    x, w = (jax.device_put(it, NamedSharding(mesh, spec)) for it, spec in pairs)",
            '    specs = {"in_specs": in_specs, "out_specs": out_specs}',
            "    return jax.shard_map(apply, mesh=mesh, check_vma=False, **specs)(x, w)",
        ]
        return lines

    def backward(self) -> list[str]:
        """The gradient: that of x by the transposed schedule, which multiplies as well."""
        along = 0 if self.by_rows else 1
        gathered = "x" if self.gathers else "ct"
        whole = f"    whole = lax.all_gather({gathered}, call.axes, axis={along}, tiled=True)"
        product = "_dot(whole.T, ct)" if self.gathers else "_dot(x.T, whole)"
        partial = "" if self.gathers else ", _WIDE"
        back = ", x.dtype" if self.gathers else ""
        return [
            "def _backward(call, x, w, ct, out_dtype, finish, *_):",
            '    """The gradients of x and w; what the epilogue needs is computed once more."""',
            "    if finish is not None:",
            f"        y = _forward(call, x, w, _WIDE, None{partial})",
            "        (ct,) = jax.vjp(finish, y)[1](ct.astype(_WIDE))",
            "    ct = ct.astype(x.dtype)",
            f"    dx = _transpose(call, ct, w.T, x.dtype, None{back})",
            whole,
            f"    return dx, {product}.astype(w.dtype)",
        ]

    def lax_backward(self) -> list[str]:
        """The gradient by jax.lax."""
        return [
            "def _backward(call, x, w, ct, out_dtype, finish, *_):",
            '    """The gradients of x and w."""',
            "",
            "    def by_lax(x, w):",
            "        a = call.axes",
            f"        y = {self.lax()}",
            "        y = y if finish is None else finish(y)",
            "        return y.astype(out_dtype)",
            "",
            "    return jax.vjp(by_lax, x, w)[1](ct)",
        ]

    def forward(self, function: str, kernel: str, spec: str) -> list[str]:
        """`function(call, x, w, …)`: cut and pad, launch, put together."""
        parts, whole = math.prod(self.promise.dims[self.promise.group :]), self._shares()
        launch = f"y = _launch_product(call, {kernel}, x, w, {spec}, units, finish)"
        match self.gathers, self.by_rows:
            case True, True:
                body = [
                    "(m, k), n = x.shape, w.shape[1]",
                    "units = _Units((m, k, n), (parts, 1, 1), x.dtype, out_dtype)",
                    "x = _padded(x, parts * units.rows, units.depth)",
                    "w = _padded(w, units.depth, units.cols)",
                    launch,
                    "return y.reshape(N, -1, units.cols)[:, :m, :n].reshape(N * m, n)",
                ]
            case True, False:
                body = [
                    "(m, k), n = x.shape, w.shape[1]",
                    "units = _Units((m, k, n), (1, parts, 1), x.dtype, out_dtype)",
                    "x = _padded(x, units.rows, parts * units.depth)",
                    "x = jnp.moveaxis(x.reshape(units.rows, parts, units.depth), 1, 0)",
                    "w = _padded(w.reshape(N, k, n), parts * units.depth, units.cols)",
                    launch,
                    "return y.reshape(units.rows, units.cols)[:m, :n]",
                ]
            case False, True:
                body = [
                    f"m, k, n = x.shape[0] // {whole}, x.shape[1], w.shape[1]",
                    "units = _Units((m, k, n), (parts, 1, 1), x.dtype, out_dtype, partial)",
                    f"x = _padded(x.reshape({whole}, m, k), parts * units.rows, units.depth)",
                    "w = _padded(w, units.depth, units.cols)",
                    launch,
                    "y = y.reshape(-1, parts * units.rows, units.cols)[:, :m, :n]",
                    "return y.reshape(-1, n)",
                ]
            case _:
                body = [
                    f"(m, k), n = x.shape, w.shape[1] // {whole}",
                    "units = _Units((m, k, n), (1, 1, parts), x.dtype, out_dtype, partial)",
                    "x = _padded(x, units.rows, units.depth)",
                    f"w = _padded(w.reshape(k, {whole}, n), {whole}, parts * units.cols)",
                    "w = jnp.pad(w, ((0, units.depth - k), (0, 0), (0, 0))).reshape(units.depth, -1)",
                    launch,
                    "y = y.reshape(-1, parts, units.rows, units.cols)[:, :, :m]",
                    "y = jnp.moveaxis(y, 2, 1).reshape(-1, m, parts * units.cols)[:, :, :n]",
                    "return jnp.moveaxis(y, 0, 1).reshape(m, -1)",
                ]
        partial = "" if self.gathers else ", partial"
        head = f"def {function}(call, x, w, out_dtype, finish{partial}):"
        return [head, f"    parts = {parts}  # of a shard", *(f"    {line}" for line in body)]

    def spec(self, name: str, program: Program) -> Iterator[str]:
        """What `_Call.multiply` has to know of a Program: each buffer's grid, and what its units are."""
        kinds = {"x": "x", "gathered": "x", "w": "w", "o": "o", "total": "sum", "partial": "sum"}
        scratch = [b for b in program.buffers if b.space == "scratch"]
        yield "# Grids of units, and of which kind they are; semaphores, the pattern of the barrier."
        yield f"{name} = {{"
        for buffer in program.buffers:
            if buffer.space != "scratch":
                yield f'    "{buffer.name}": {buffer.shape!r},'
        yield f'    "in_columns": {self.units(program)["w"].in_columns},'
        yield f'    "replicated": {self.promise.kind == "all_reduce"},'
        rows = [f'({b.shape!r}, "{kinds.get(b.name, "partial")}"),  # {b.name}' for b in scratch]
        yield from listed("scratch", rows)
