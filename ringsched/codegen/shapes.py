"""The functions around a kernel: how an operand is cut into chunks and the result put together, for each collective.

Each shape is that of the `jax.lax` collective of the same meaning:

    all_gather, gather           axis       [..., size, ...] → [..., N * size, ...]
    reduce_scatter, scatter      axis       [..., N * size, ...] → [..., size, ...]
    all_to_all                   two axes   [..., N * size, ...] → [..., size, ..., N * size, ...]
    all_reduce, broadcast, reduce, permute  the shape stays
"""

from __future__ import annotations

from dataclasses import dataclass

from ringsched.codegen.lines import call, paragraph
from ringsched.collectives import REDUCING, Promise
from ringsched.schedule.schedule import CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The texts for one collective. `axes` are the names of its axis parameters."""

    kind: CollectiveKind
    name: str
    axes: tuple[str, ...]
    says: str
    lax: str
    promise: Promise

    def public(self) -> list[str]:
        """The function for use inside shard_map."""
        options = [f"{axis}=0" for axis in self.axes] + (["tiled=True"] if self.axes else [])
        signature = ["x", "*", "axis_name", *options, "interpret=None", "collective_id=None"]
        lines = [line.replace("*,", "*,") for line in call(f"def {self.name}(", signature, 0, "):")]
        lines.append(f'    """{self.says}')
        lines += ["", *paragraph(self.lax, 4)]
        lines += [
            "    axis_name: a mesh axis, or one for each side of the topology.",
            "    interpret: None interprets the kernel where there is no TPU.",
            "    collective_id: None derives it from the barrier and the mesh axes.",
        ]
        if self.axes:
            lines.append("    Raises ValueError where N does not divide the axis.")
        lines.append('    """')
        lines.append(f'    call = _Call("{self.name}", axis_name, interpret, collective_id)')
        lines.append("    x = call.vary(jnp.asarray(x))")
        lines += self._body()
        return lines

    def _body(self) -> list[str]:
        match self.kind:
            case "all_gather" | "gather":
                return [
                    "    axis = _axis(axis, x.ndim + (not tiled))",
                    "    if not tiled:",
                    "        x = jnp.expand_dims(x, axis)",
                    "    return _linear(call, _forward, _transpose, x, axis)",
                ]
            case "reduce_scatter" | "scatter":
                lines = [
                    "    axis = _axis(axis, x.ndim)",
                    f'    _check_divides("{self.name}", x.shape, axis, tiled)',
                ]
                if self.kind == "reduce_scatter":
                    lines += [
                        "    if x.dtype == bool:",
                        f'        raise TypeError("{self.name} does not add bool")',
                    ]
                return [
                    *lines,
                    "    out = _linear(call, _forward, _transpose, x, axis)",
                    "    return out if tiled else jnp.squeeze(out, axis)",
                ]
            case "all_to_all":
                return [
                    "    split_axis = _axis(split_axis, x.ndim)",
                    "    concat_axis = _axis(concat_axis, x.ndim)",
                    f'    _check_divides("{self.name}", x.shape, split_axis, tiled)',
                    "    if not tiled:",
                    "        x = jnp.moveaxis(x, split_axis, 0)",
                    "        out = _linear(call, _forward, _transpose, x, 0, 0)",
                    "        return jnp.moveaxis(out, 0, concat_axis)",
                    "    return _linear(call, _forward, _transpose, x, split_axis, concat_axis)",
                ]
            case "all_reduce":
                return [
                    "    x = x.astype(jnp.int32) if x.dtype == bool else x",
                    "    # The cotangent of a sum that has the type of being the same at all ranks",
                    "    # needs no sum of its own.",
                    "    transpose = _Call.vary if call.check_vma else _transpose",
                    "    return _linear(call, _forward, transpose, x)",
                ]
            case "reduce":
                return [
                    "    x = x.astype(jnp.int32) if x.dtype == bool else x",
                    "    return _linear(call, _forward, _transpose, x)",
                ]
            case _:
                return ["    return _linear(call, _forward, _transpose, x)"]

    @property
    def replicated(self) -> bool:
        """Whether all ranks have the same result."""
        return self.kind in ("all_gather", "all_reduce", "broadcast")

    def sharded_head(self) -> list[str]:
        """The function that does the shard_map itself, up to its first line; `in_specs` and `out_specs` come next."""
        what = "the same array on every device" if self.replicated else "the ranks' results, joined along axis 0"
        signature = ["x", "*", "mesh", "axis_name", "in_specs=None", "out_specs=None", "**options"]
        lines = list(call(f"def {self.name}_sharded(", signature, 0, "):"))
        lines += [
            f'    """{self.name} of an array that lies on the devices of `mesh`.',
            "",
            "    x holds the ranks' operands joined along axis 0, unless in_specs says otherwise;",
            f"    the result is {what}, unless out_specs does.",
            '    """',
        ]
        return lines

    def placed(self) -> list[str]:
        """The defaults of `in_specs` and `out_specs`, and x where they say."""
        out = "P()" if self.replicated else "P(axis_name)"
        return [
            "    in_specs = P(axis_name) if in_specs is None else in_specs",
            f"    out_specs = {out} if out_specs is None else out_specs",
            "    x = jax.device_put(x, NamedSharding(mesh, in_specs))",
        ]

    def sharded(self) -> list[str]:
        """The function that does the shard_map itself."""
        return [
            *self.sharded_head(),
            "",
            "    def apply(block):",
            f"        return {self.name}(block, axis_name=axis_name, **options)",
            "",
            *self.placed(),
            '    specs = {"in_specs": in_specs, "out_specs": out_specs}',
            "    return jax.shard_map(apply, mesh=mesh, check_vma=False, **specs)(x)",
        ]

    def forward(
        self, name: str, kernel: str, spec: str, promise: Promise, axes: tuple[str, ...] | None = None
    ) -> list[str]:
        """`name(call, x, *axes)`: pack, launch, unpack."""
        axes = self.axes if axes is None else axes
        adds = promise.kind in REDUCING
        replicated = promise.kind == "all_reduce"
        head = f"def {name}({', '.join(['call', 'x', *axes])}):"
        match promise.kind:
            case "all_gather" | "gather":
                return [
                    head,
                    f'    chunks = _pack(x[None], {spec}["operand"], adds={adds})',
                    f"    chunks = call.launch({kernel}, chunks, {spec})",
                    f"    return _join(_unpack(chunks, (N, *x.shape), x.dtype), {axes[0]})",
                ]
            case "reduce_scatter" | "scatter":
                return [
                    head,
                    f"    shards = _split(x, {axes[0]})",
                    f'    chunks = _pack(shards, {spec}["operand"], adds={adds})',
                    f"    chunks = call.launch({kernel}, chunks, {spec})",
                    "    return _unpack(chunks, (1, *shards.shape[1:]), x.dtype)[0]",
                ]
            case "all_to_all":
                return [
                    head,
                    f"    shards = _split(x, {axes[0]})",
                    f'    chunks = _pack(shards, {spec}["operand"], adds={adds})',
                    f"    chunks = call.launch({kernel}, chunks, {spec})",
                    f"    return _join(_unpack(chunks, shards.shape, x.dtype), {axes[1]})",
                ]
            case _:
                extra = ", replicated=True" if replicated else ""
                return [
                    head,
                    f'    chunks = _pack(x[None], {spec}["operand"], adds={adds})',
                    f"    chunks = call.launch({kernel}, chunks, {spec}{extra})",
                    "    return _unpack(chunks, (1, *x.shape), x.dtype)[0]",
                ]

    def transpose(self, promise: Promise) -> list[str]:
        """The transpose, by its own kernel."""
        if self.kind != "all_to_all":
            return self.forward("_transpose", "_transpose_kernel", "_TRANSPOSE_SPEC", promise)
        lines = self.forward(
            "_transpose", "_transpose_kernel", "_TRANSPOSE_SPEC", promise, ("concat_axis", "split_axis")
        )
        return [f"def _transpose(call, x, {', '.join(self.axes)}):", *lines[1:]]

    def lax_transpose(self) -> list[str]:
        """The transpose by `jax.lax`, where the schedule has none that ringsched can prove."""
        root = self.promise.root
        mask = f"jnp.where(lax.axis_index(call.axes) == {root}, {{}}, 0)"
        pairs = [(target, source) for source, target in enumerate(self.promise.permutation)]
        bodies: dict[CollectiveKind, str] = {
            "all_gather": "lax.psum_scatter(x, call.axes, scatter_dimension=axis, tiled=True)",
            "reduce_scatter": "lax.all_gather(x, call.axes, axis=axis, tiled=True)",
            "all_reduce": "lax.psum(x, call.axes)",
            "all_to_all": "lax.all_to_all(x, call.axes, concat_axis, split_axis, tiled=True)",
            "permute": f"lax.ppermute(x, call.axes, {pairs})",
            "broadcast": mask.format("lax.psum(x, call.axes)"),
            "reduce": f"lax.psum({mask.format('x')}, call.axes)",
            "gather": f"lax.psum_scatter({mask.format('x')}, call.axes, scatter_dimension=axis, tiled=True)",
            "scatter": mask.format("lax.all_gather(x, call.axes, axis=axis, tiled=True)"),
        }
        head = f"def _transpose({', '.join(['call', 'x', *self.axes])}):"
        return [head, f"    return {bodies[self.kind]}"]


def of(promise: Promise, name: str) -> Shape:
    """The shape of a collective."""
    along: dict[CollectiveKind, tuple[str, ...]] = {
        "all_gather": ("axis",),
        "gather": ("axis",),
        "reduce_scatter": ("axis",),
        "scatter": ("axis",),
        "all_to_all": ("split_axis", "concat_axis"),
    }
    root = promise.root
    says: dict[CollectiveKind, str] = {
        "all_gather": "The shards x of all ranks along `axis`, at every rank.",
        "reduce_scatter": "The r-th of N shards along `axis` of the sum of x, at rank r.",
        "all_reduce": "The sum of x over all ranks, at every rank.",
        "all_to_all": "The r-th shard along `split_axis` of every rank's x, at rank r.",
        "permute": "The x of the rank that the schedule's permutation maps to this one.",
        "broadcast": f"Rank {root}'s x, at every rank.",
        "reduce": f"The sum of x over all ranks, at rank {root}; zeros elsewhere.",
        "gather": f"The shards x of all ranks along `axis`, at rank {root}; zeros elsewhere.",
        "scatter": f"The r-th of N shards along `axis` of rank {root}'s x, at rank r.",
    }
    lax: dict[CollectiveKind, str] = {
        "all_gather": "As `lax.all_gather`; call it inside `jax.shard_map`.",
        "reduce_scatter": "As `lax.psum_scatter`; call it inside `jax.shard_map`.",
        "all_reduce": "As `lax.psum`; call it inside `jax.shard_map`.",
        "all_to_all": "As `lax.all_to_all`; call it inside `jax.shard_map`.",
        "permute": "As `lax.ppermute`; call it inside `jax.shard_map`.",
    }
    return Shape(
        kind=promise.kind,
        name=name,
        axes=along.get(promise.kind, ()),
        says=says[promise.kind],
        lax=lax.get(promise.kind, "Call it inside `jax.shard_map`."),
        promise=promise,
    )
