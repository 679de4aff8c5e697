"""An equation that calls a kernel  →  what it calls, whichever primitive it is.

pallas_call   blocks of arrays and a grid        `pl.pallas_call`
mpmd_map      arrays, on a mesh of cores         `pl.kernel`
core_map      refs that it closes over, too      `pl.core_map`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax._src.pallas.mosaic.core import TensorCoreMesh

from ringsched.auditing.places import place_of, sub_jaxprs
from ringsched.auditing.walk import Undecided
from ringsched.diagnostics import Span

KERNELS = ("pallas_call", "mpmd_map", "core_map")
# These call code that is not written in jaxprs, so that nobody sees what is in it.
OPAQUE = ("tpu_custom_call", "mosaic_gpu", "triton_kernel_call", "ffi_call", "custom_call", "bass_call", "composite")


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A kernel. Its refs are the constants of `jaxpr`, then its arguments: operands, results, scratch.

    `mapping`: how a grid cuts operands and results in blocks, None where each is whole and stays in HBM.
    `in_place`: operands are results as well. `cores`: coordinates of the core on the mesh of cores that it runs on.
    """

    primitive: str
    name: str
    jaxpr: Any
    compiler_params: Any
    mapping: Any
    aliases: Mapping[int, int]  # result → operand
    operands: int
    results: tuple[Any, ...]  # their types
    in_place: bool
    cores: Mapping[str, int]

    @property
    def refs(self) -> tuple[Any, ...]:
        return (*self.jaxpr.constvars, *self.jaxpr.invars)

    @property
    def grid(self) -> tuple[int, ...]:
        return () if self.mapping is None else tuple(int(side) for side in self.mapping.grid)

    @property
    def collective_id(self) -> int | None:
        number: int | None = getattr(self.compiler_params, "collective_id", None)
        return number


def form_of(eqn: Any) -> Form:
    """Raises Undecided, naming the kernel, for one on cores that nothing is known of."""
    params, primitive = eqn.params, eqn.primitive.name
    place = place_of(eqn)
    if primitive == "pallas_call":
        _check_grid(params, place)
        aliases = {output: source for source, output in params["input_output_aliases"]}
        jaxpr, mapping, cores = params["jaxpr"], params["grid_mapping"], _cores(params.get("mesh"), params, place)
    elif primitive == "mpmd_map":
        if len(params["jaxprs"]) != 1 or params["external_meshes"]:
            raise Undecided(
                f"{_name(eqn)} runs on several meshes of cores at once",
                place,
                "one kernel for each mesh of cores: then each can be followed",
            )
        aliases = {output: source for source, output in params["input_output_aliases"].items()}
        jaxpr, mapping, cores = params["jaxprs"][0], None, _cores(params["meshes"][0], params, place)
    else:
        jaxpr, mapping, aliases, cores = params["jaxpr"], None, {}, _cores(params["mesh"], params, place)
    in_place = primitive == "core_map"
    types = [_inner(atom.aval) for atom in eqn.invars] if in_place else [variable.aval for variable in eqn.outvars]
    return Form(
        primitive=primitive,
        name=_name(eqn),
        jaxpr=jaxpr,
        compiler_params=params["compiler_params"],
        mapping=mapping,
        aliases=aliases,
        operands=len(eqn.invars),
        results=tuple(types),
        in_place=in_place,
        cores=cores,
    )


def _name(eqn: Any) -> str:
    inner = next(sub_jaxprs(eqn), None)
    name = eqn.params.get("name") or getattr(getattr(inner, "debug_info", None), "func_name", None)
    return str(name or "kernel")


def _inner(aval: Any) -> Any:
    """The type of what a ref holds."""
    return getattr(aval, "inner_aval", aval)


def _check_grid(params: Mapping[str, Any], place: Span | None) -> None:
    grid = params["grid_mapping"]
    if grid.num_dynamic_grid_bounds or grid.vmapped_dims:
        raise Undecided(
            "the size of its grid is not known, or vmapped",
            place,
            "give the grid a fixed size, and audit what jax.vmap is applied to",
        )
    if math.prod(grid.grid) > 100_000:
        raise Undecided(
            "its grid has more than 100,000 steps",
            place,
            "audit smaller operands: what goes wrong does so in the first steps",
        )


def _cores(mesh: Any, params: Mapping[str, Any], place: Span | None) -> dict[str, int]:
    """Where the one core is on its mesh."""
    if mesh is None:
        return {}
    sizes = dict(getattr(mesh, "shape", {}))
    if not isinstance(mesh, TensorCoreMesh) or math.prod(sizes.values()) != 1:
        name = params.get("name") or "a kernel"
        cores = " × ".join(f"{axis} = {size}" for axis, size in sizes.items())
        raise Undecided(
            f"{name} runs on a {type(mesh).__name__} ({cores}), whose cores the audit does not know",
            place,
            "run it on one TensorCore: pltpu.create_tensorcore_mesh(..., num_cores=1)",
        )
    return dict.fromkeys(sizes, 0)


def calls_kernel(eqn: Any, others: tuple[str, ...] = ()) -> bool:
    """Whether a kernel, or what may be one, or one of `others` is called in a jaxpr that the equation carries."""
    return any(
        inner_eqn.primitive.name in (*KERNELS, *OPAQUE, *others) or calls_kernel(inner_eqn, others)
        for inner in sub_jaxprs(eqn)
        for inner_eqn in inner.eqns
    )
