"""function  →  the pallas_calls that each device makes, with the operand values that are known.

The function is traced inside `jax.shard_map` over an abstract mesh of TPUs, so neither a TPU nor virtual devices are
needed, and it sees the chip that it would run on.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import PartitionSpec

from ringsched.auditing.data import Argument, Exchanged, KernelResult, Lost, outcomes
from ringsched.auditing.exchange import COLLECTIVES
from ringsched.auditing.places import place_of, sub_jaxprs
from ringsched.auditing.walk import Undecided, Walker
from ringsched.diagnostics import Span

CHIP = "TPU v5p"
MOST_CALLS = 64  # of one device
LONG_LOOP = 16  # rounds of a loop around a kernel that are gone through one by one
SPELLING = r"(\w+)\[([\d,\s]*)\]"
_DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i32": "int32",
    "s32": "int32",
    "u32": "uint32",
    "i16": "int16",
    "u16": "uint16",
    "i8": "int8",
    "s8": "int8",
    "u8": "uint8",
    "bool": "bool",
}


class AuditError(ValueError):
    """What was asked for cannot be audited: a shape, a mesh, or a function that cannot be traced."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A pallas_call as one device comes upon it. `operands`: their values, those that are data as Data.

    `repeated`: it is in a long loop, and stands for all its rounds.
    """

    eqn: Any
    operands: tuple[Any, ...]
    repeated: bool

    @property
    def name(self) -> str:
        params = self.eqn.params
        return str(params.get("name") or getattr(params["jaxpr"].debug_info, "func_name", None) or "kernel")


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """What one device does in the function: its kernels, in order, and what it returns.

    `arguments`: shape and dtype of its shard of each. `exchanges`: its parts in collectives outside kernels.
    """

    calls: tuple[Call, ...]
    results: tuple[Any, ...]
    arguments: tuple[Any, ...]
    exchanges: Mapping[tuple[int, int], Exchanged]


def find_calls(
    function: Callable[..., Any],
    mesh_axes: Mapping[str, int],
    args: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    chip: str = CHIP,
    cores: int = 1,
) -> tuple[Device, ...]:
    """Each device with its pallas_calls. cores: of a device. Raises AuditError, Undecided."""
    if not mesh_axes or any(size < 1 for size in mesh_axes.values()):
        raise AuditError("a mesh has at least one axis, and each has at least one device")
    shapes = [shape_of(arg) for arg in args]
    closed = _traced(function, mesh_axes, shapes, in_specs, out_specs, chip, cores)
    found = []
    for place in itertools.product(*(range(size) for size in mesh_axes.values())):
        finder = _Finder(dict(zip(mesh_axes, place, strict=True)), dict(mesh_axes))
        arguments = [Argument(number) for number in range(len(closed.jaxpr.invars))]
        results = finder.run(closed.jaxpr, closed.consts, arguments)
        shards = tuple(finder.shards[number] for number in range(len(arguments)))
        found.append(Device(tuple(finder.calls), tuple(results), shards, finder.exchanges))
    if not any(device.calls for device in found):
        raise AuditError("the function calls no Pallas kernel")
    return tuple(found)


def _traced(
    function: Callable[..., Any],
    mesh_axes: Mapping[str, int],
    shapes: Any,
    in_specs: Any,
    out_specs: Any,
    chip: str,
    cores: int,
) -> Any:
    device = jax.sharding.AbstractDevice(device_kind=chip, num_cores=cores, platform="tpu")
    mesh = jax.sharding.AbstractMesh(tuple(mesh_axes.values()), tuple(mesh_axes), abstract_device=device)
    errors = []
    for check_vma in (False, True):
        try:
            sharded = jax.shard_map(
                function,
                mesh=mesh,
                in_specs=specs_of(in_specs, mesh_axes),
                out_specs=specs_of(out_specs, mesh_axes),
                check_vma=check_vma,
            )
            with jax.sharding.use_abstract_mesh(mesh):
                return jax.make_jaxpr(sharded)(*shapes)
        except AuditError:
            raise
        # A user's function may raise anything; whatever it is, it is no fault of ours.
        except Exception as error:
            errors.append(error)
    first = errors[0]
    text = str(first).split("\n\n")[0].strip()
    raise AuditError(f"the function cannot be traced: {type(first).__name__}: {text}") from first


def specs_of(specs: Any, mesh_axes: Mapping[str, int]) -> Any:
    """Specs as jax has them; a string names the axes of an array's dimensions: "i", "x,y", "-,i"."""
    if isinstance(specs, str):
        return parse_spec(specs, mesh_axes)
    if specs is None:
        return PartitionSpec()
    if isinstance(specs, tuple | list) and not isinstance(specs, PartitionSpec):
        return tuple(specs_of(spec, mesh_axes) for spec in specs)
    return specs


def parse_spec(text: str, mesh_axes: Mapping[str, int]) -> PartitionSpec:
    """`i` splits dimension 0 over axis i; `-,i` dimension 1; `x+y` one dimension over two axes; `-` alone: none."""
    parts: list[Any] = []
    for part in text.split(","):
        names = [name.strip() for name in part.split("+")]
        if names in (["-"], [""]):
            parts.append(None)
            continue
        unknown = [name for name in names if name not in mesh_axes]
        if unknown:
            raise AuditError(f"{text!r} names the axis {unknown[0]!r}, and the mesh has {', '.join(mesh_axes)}")
        parts.append(names[0] if len(names) == 1 else tuple(names))
    while parts and parts[-1] is None:
        parts.pop()
    return PartitionSpec(*parts)


def shape_of(arg: Any) -> Any:
    """An operand's global shape and dtype, from an array or a text such as `f32[32,8,128]`."""
    if not isinstance(arg, str):
        return jax.ShapeDtypeStruct(arg.shape, arg.dtype)
    found = re.fullmatch(SPELLING, arg.strip())
    if found is None:
        raise AuditError(f"{arg!r} is no shape; one is written f32[32,8,128]")
    name, sides = found.groups()
    try:
        dtype = np.dtype(jax.numpy.dtype(_DTYPES.get(name, name)))
        return jax.ShapeDtypeStruct(tuple(int(side) for side in sides.split(",") if side.strip()), dtype)
    except (TypeError, ValueError):
        raise AuditError(f"{arg!r} has no dtype that jax knows; there are {', '.join(_DTYPES)}") from None


class _Finder(Walker):
    """One device outside the kernels: which ones it calls, one after the other."""

    refuse_unknown: ClassVar[bool] = False

    def __init__(self, coordinates: dict[str, int], sizes: dict[str, int]) -> None:
        super().__init__(coordinates, sizes)
        self.calls: list[Call] = []
        self.shards: dict[int, Any] = {}
        self.exchanges: dict[tuple[int, int], Exchanged] = {}
        self._met: Counter[int] = Counter()
        self._repeats = 0

    def place(self, eqn: Any) -> Span | None:
        return place_of(eqn)

    def effect(self, eqn: Any, values: list[Any]) -> list[Any] | None:
        match eqn.primitive.name:
            case "pallas_call":
                if len(self.calls) >= MOST_CALLS:
                    raise Undecided(f"it calls more than {MOST_CALLS} kernels", self.place(eqn))
                self.calls.append(Call(eqn, tuple(values), self._repeats > 0))
                return [KernelResult(len(self.calls) - 1, number) for number in range(len(eqn.outvars))]
            case "shard_map":
                for value, variable in zip(values, eqn.params["jaxpr"].invars, strict=True):
                    if isinstance(value, Argument):  # constants of the function come in as operands, too
                        self.shards[value.number] = variable.aval
                return self.enter(eqn.params["jaxpr"], values)
            case name if name in COLLECTIVES and not self._repeats:
                occurrence = self._met[id(eqn)]
                self._met[id(eqn)] += 1
                found = [Exchanged(eqn, tuple(values), number, occurrence) for number in range(len(eqn.outvars))]
                self.exchanges[found[0].key] = found[0]
                return list(found)
            case "while" | "cond" | "scan" if not _calls_kernels(eqn):
                return outcomes(eqn, values)
            case "scan" if eqn.params["length"] > LONG_LOOP:
                return self._repeat(eqn)
            case _:
                return None

    def open_choice(self, eqn: Any, values: list[Any]) -> list[Any]:
        raise Undecided("whether it calls a kernel depends on data", self.place(eqn))

    def _other(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Operations that carry a jaxpr in a way of their own may call a kernel in it, who knows when."""
        if _calls_kernels(eqn):
            raise Undecided(f"the operation `{eqn.primitive.name}` calls a kernel", self.place(eqn))
        return super()._other(eqn, values)

    def _repeat(self, eqn: Any) -> list[Any]:
        """One round for all: with nothing known of what is carried from round to round."""
        (inner,) = sub_jaxprs(eqn)
        self._repeats += 1
        unknown = Lost("a kernel in a long loop")
        self.run(inner, [unknown] * len(inner.constvars), [unknown] * len(inner.invars))
        self._repeats -= 1
        return [unknown] * len(eqn.outvars)


def _calls_kernels(eqn: Any) -> bool:
    return any(
        inner_eqn.primitive.name == "pallas_call" or _calls_kernels(inner_eqn)
        for inner in sub_jaxprs(eqn)
        for inner_eqn in inner.eqns
    )
