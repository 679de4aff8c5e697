"""The functions that call a collective: for use inside shard_map, and one that does the shard_map itself.

Each shape is that of the `jax.lax` collective of the same meaning:

    all_gather, gather           axis       [..., size, ...] → [..., N * size, ...]
    reduce_scatter, scatter      axis       [..., N * size, ...] → [..., size, ...]
    all_to_all                   two axes   [..., N * size, ...] → [..., size, ..., N * size, ...]
    all_reduce, broadcast, reduce, permute  the shape stays
"""

from __future__ import annotations

from dataclasses import dataclass

from ringsched.collectives import REDUCING, Promise
from ringsched.lines import call, paragraph
from ringsched.schedule.schedule import CollectiveKind

INTERPRET = (
    "    interpret: None runs the kernel on a TPU, and the schedule as `lax.ppermute` where",
    "    there is none; True interprets the kernel there.",
    "    collective_id: None derives it from the barrier and the mesh axes.",
)
KERNEL_OPTIONS = ("interpret: Any = None", "collective_id: int | None = None")
AXIS_NAME = "axis_name: str | Sequence[str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The texts for one collective. `kernel`: whether the module has one."""

    name: str
    promise: Promise
    kernel: bool

    @property
    def kind(self) -> CollectiveKind:
        return self.promise.kind

    @property
    def adds(self) -> bool:
        return self.kind in REDUCING

    def public(self) -> list[str]:
        """The function for use inside shard_map."""
        names = {
            "axis_index_groups": "Sequence[Sequence[int]] | None = None",
            **({"reduction": 'str = "sum"'} if self.adds else {}),
        }
        positional, options, arguments, alias = self._own_options()
        options = [*options, *(f"{name}: {hint}" for name, hint in names.items())]
        options += KERNEL_OPTIONS if self.kernel else ()
        signature = ["x: Any", AXIS_NAME, *positional, "*", *options]
        lines = [line.replace("*,", "*,") for line in call(f"def {self.name}(", signature, 0, ") -> Any:")]
        lines += [f'    """{self._says()}', "", *paragraph(self._like_lax(), 4), *self._described()]
        lines += [*(INTERPRET if self.kernel else ()), *self._raises(), '    """']
        given = [f"{name}={name}" for name in names]
        known = ["interpret", "collective_id"] if self.kernel else []
        made = "_KernelCall.of(" if self.kernel else "_Call.of("
        lines += call(f"call = {made}", [f'"{self.name}"', "axis_name", *known, *given], 4)
        return [*lines, *alias, *call(f"return {self._function()}(", ["call", "_collective()", "x", *arguments], 4)]

    def _own_options(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Positional parameters, others, how they are passed on, and what is done before."""
        tiled = "tiled: bool = True"
        match self.kind:
            case "all_gather":
                return [], ["axis: int = 0", tiled, 'to: str = "varying"'], ["axis", "tiled", "to"], []
            case "gather":
                return [], ["axis: int = 0", tiled], ["axis", "tiled"], []
            case "reduce_scatter" | "scatter":
                alias = ["    axis = axis if scatter_dimension is None else scatter_dimension"]
                options = ["axis: int = 0", "scatter_dimension: int | None = None", tiled]
                return [], options, ["axis", "tiled"], alias
            case "all_to_all":
                axes = ["split_axis: int = 0", "concat_axis: int = 0"]
                return axes, [tiled], ["split_axis", "concat_axis", "tiled"], []
            case "all_reduce":
                return [], [], ['"invarying"'], []
            case "broadcast":
                return [], ['to: str = "varying"'], ["to"], []
            case _:
                return [], [], [], []

    def _function(self) -> str:
        """That of the fixed part."""
        match self.kind:
            case "all_gather" | "gather":
                return "_all_gathered"
            case "reduce_scatter" | "scatter":
                return "_scattered"
            case "all_to_all":
                return "_exchanged_shards"
            case _:
                return "_kept_shape"

    def _described(self) -> list[str]:
        lines = [
            "    x: an array, or a tree of them; small ones of one dtype travel together.",
            "    axis_name: a mesh axis, or one for each side of the topology.",
        ]
        if self.kind in ("reduce_scatter", "scatter"):
            lines.append("    scatter_dimension: another name of axis.")
        if self.kind == "all_gather":
            lines.append("    to: the type of the result: varying, invarying or reduced.")
        if self.kind == "broadcast":
            lines.append("    to: the type of the result: varying or invarying.")
        lines.append("    axis_index_groups: as in jax.lax; each of as many ranks as there are here.")
        if self.adds:
            lines.append('    reduction: "sum", "mean", "max" or "min".')
        return lines

    def _raises(self) -> list[str]:
        if self._function() == "_kept_shape" or self.kind in ("all_gather", "gather"):
            return []
        return ["    Raises ValueError where N does not divide the axis."]

    @property
    def replicated(self) -> bool:
        """Whether all ranks have the same result."""
        return self.kind in ("all_gather", "all_reduce", "broadcast")

    def sharded(self) -> list[str]:
        """The function that does the shard_map itself."""
        what = "the same array on every device" if self.replicated else "the ranks' results, joined along axis 0"
        options = ["in_specs: Any = None", "out_specs: Any = None", "**options: Any"]
        signature = ["x: Any", "*", "mesh: jax.sharding.Mesh", AXIS_NAME, *options]
        out = "P()" if self.replicated else "P(axis_name)"
        typed = ['    options.setdefault("to", "invarying")'] if self.kind in ("all_gather", "broadcast") else []
        return [
            *call(f"def {self.name}_sharded(", signature, 0, ") -> Any:"),
            f'    """{self.name} of an array that lies on the devices of `mesh`.',
            "",
            "    x holds the ranks' operands joined along axis 0, unless in_specs says otherwise;",
            f"    the result is {what}, unless out_specs does.",
            '    """',
            *typed,
            "    in_specs = P(axis_name) if in_specs is None else in_specs",
            f"    out_specs = {out} if out_specs is None else out_specs",
            f"    function, specs = {self.name}, ((in_specs,), out_specs)",
            "    return _sharded(function, (x,), mesh, axis_name, specs, options)",
        ]

    def _says(self) -> str:
        root = self.promise.root
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
        return says[self.kind]

    def _like_lax(self) -> str:
        like: dict[CollectiveKind, str] = {
            "all_gather": "all_gather",
            "reduce_scatter": "psum_scatter",
            "all_reduce": "psum",
            "all_to_all": "all_to_all",
            "permute": "ppermute",
            "broadcast": "pbroadcast",
        }
        found = like.get(self.kind)
        return f"{f'As `lax.{found}`; call' if found else 'Call'} it inside `jax.shard_map`."
