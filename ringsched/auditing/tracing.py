"""function  →  the kernels that each device calls, with the operand values that are known.

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
from jax._src.mesh import empty_abstract_mesh
from jax._src.state.indexing import Slice
from jax.sharding import PartitionSpec

from ringsched.auditing.data import Added, Argument, Exchanged, KernelResult, Lost, outcomes
from ringsched.auditing.exchange import COLLECTIVES
from ringsched.auditing.form import KERNELS, OPAQUE, Form, calls_kernel, form_of
from ringsched.auditing.places import place_of, sub_jaxprs
from ringsched.auditing.scalars import MOST_ELEMENTS, Unknown, known
from ringsched.auditing.walk import MAKE_CONSTANT, Reference, Undecided, Walker
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
    """A kernel as one device comes upon it. `operands`: their values, those that are data as Data.

    `repeated`: it is in a long loop, and stands for all its rounds.
    """

    eqn: Any
    form: Form
    operands: tuple[Any, ...]
    repeated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """What one device does in the function: its kernels, in order, and what it returns.

    `arguments`: shape and dtype of its shard of each; `constants`: the shards of those whose values were given.
    `exchanges`: its parts in collectives outside kernels.
    """

    calls: tuple[Call, ...]
    results: tuple[Any, ...]
    arguments: tuple[Any, ...]
    constants: Mapping[int, np.ndarray]
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
    """Each device with the kernels that it calls. cores: of a device. Raises AuditError, Undecided."""
    if not mesh_axes or any(size < 1 for size in mesh_axes.values()):
        raise AuditError("a mesh has at least one axis, and each has at least one device")
    shapes = [shape_of(arg) for arg in args]
    closed = _traced(function, mesh_axes, shapes, in_specs, out_specs, chip, cores)
    found: list[Device] = []
    forms: dict[int, Form] = {}
    given = {number: np.asarray(arg) for number, arg in enumerate(args) if is_constant(arg)}
    for place in itertools.product(*(range(size) for size in mesh_axes.values())):
        finder = _Finder(dict(zip(mesh_axes, place, strict=True)), dict(mesh_axes), forms, given)
        arguments = [Argument(number) for number in range(len(closed.jaxpr.invars))]
        results = finder.run(closed.jaxpr, closed.consts, arguments)
        shards = tuple(finder.shards[number] for number in range(len(arguments)))
        found.append(Device(tuple(finder.calls), tuple(results), shards, finder.constants, finder.exchanges))
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
    errors: list[BaseException] = []
    for check_vma in (False, True):
        try:
            sharded = jax.shard_map(
                function,
                mesh=mesh,
                in_specs=specs_of(in_specs, mesh_axes),
                out_specs=specs_of(out_specs, mesh_axes),
                check_vma=check_vma,
            )
            # A mesh that the caller has set (jax.set_mesh) is not the function's: it could only have as many devices.
            with jax.sharding.use_abstract_mesh(empty_abstract_mesh), jax.sharding.use_abstract_mesh(mesh):
                return jax.make_jaxpr(sharded)(*shapes)
        except AuditError:
            raise
        # A user's function may raise anything, SystemExit too; whatever it is, it is no fault of ours.
        except (Exception, SystemExit) as error:
            errors.append(error)
    raise AuditError(f"the function cannot be traced: {told(errors[0])}") from errors[0]


def told(error: BaseException) -> str:
    """What somebody else's code raised, in a line or a few."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r})" if error.code is not None else "it calls sys.exit()"
    text = str(error).split("\n\n")[0].strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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


def is_constant(arg: Any) -> bool:
    """Whether an operand stands for its values: an array of integers that is small enough to be looked at."""
    is_array = isinstance(arg, np.ndarray | jax.Array) and not isinstance(arg, jax.core.Tracer)
    return is_array and np.dtype(arg.dtype).kind in "biu" and arg.size <= MOST_ELEMENTS


def shape_of(arg: Any) -> Any:
    """An operand's global shape and dtype, from an array or a text such as `f32[32,8,128]`."""
    if not isinstance(arg, str):
        return jax.ShapeDtypeStruct(arg.shape, jax.dtypes.canonicalize_dtype(arg.dtype))
    found = re.fullmatch(SPELLING, arg.strip())
    if found is None:
        raise AuditError(f"{arg!r} is no shape; one is written f32[32,8,128]")
    name, sides = found.groups()
    try:
        dtype = np.dtype(jax.numpy.dtype(_DTYPES.get(name, name)))
        return jax.ShapeDtypeStruct(tuple(int(side) for side in sides.split(",") if side.strip()), dtype)
    except (TypeError, ValueError):
        raise AuditError(f"{arg!r} has no dtype that jax knows; there are {', '.join(_DTYPES)}") from None


@dataclass(slots=True, eq=False)
class Cell(Reference):
    """A ref outside kernels, and what it holds now."""

    value: Any


class _Finder(Walker):
    """One device outside the kernels: which ones it calls, one after the other."""

    refuse_unknown: ClassVar[bool] = False

    def __init__(
        self,
        coordinates: dict[str, int],
        sizes: dict[str, int],
        forms: dict[int, Form],
        given: Mapping[int, np.ndarray],
    ) -> None:
        """forms: of the kernels that other devices have come upon. given: arguments whose values are known."""
        super().__init__(coordinates, sizes)
        self.given = given
        self.constants: dict[int, np.ndarray] = {}
        self.calls: list[Call] = []
        self.shards: dict[int, Any] = {}
        self.exchanges: dict[tuple[int, int], Exchanged] = {}
        self._met: Counter[int] = Counter()
        self._forms = forms
        self._repeats = 0
        self._depth = 0  # of shard_maps

    def place(self, eqn: Any) -> Span | None:
        return place_of(eqn)

    def done(self) -> int:
        """Kernels and refs may have another state each time."""
        return self.steps

    def effect(self, eqn: Any, values: list[Any]) -> list[Any] | None:
        match eqn.primitive.name:
            case name if name in KERNELS:
                return self._call(eqn, values)
            case name if name in OPAQUE:
                raise Undecided(
                    f"the operation `{name}` calls code that the audit does not see",
                    self.place(eqn),
                    "audit a function that leaves it out, and check it by itself",
                )
            case "shard_map":
                return self._shard_map(eqn, values)
            case "new_ref":
                return [Cell(values[0])]
            case "freeze":
                return [values[0].value]
            case "get":
                return [_whole(values[0], values[1:], eqn)]
            case "swap" | "addupdate":
                return self._swap(eqn, values)
            case "run_state":
                return self._run_state(eqn, values)
            case name if name in COLLECTIVES and not self._repeats:
                occurrence = self._met[id(eqn)]
                self._met[id(eqn)] += 1
                found = [Exchanged(eqn, tuple(values), number, occurrence) for number in range(len(eqn.outvars))]
                self.exchanges[found[0].key] = found[0]
                return list(found)
            case "while" | "cond" | "scan" if not calls_kernel(eqn, COLLECTIVES):
                return outcomes(eqn, self._let_go(values))
            case "scan" if eqn.params["length"] > LONG_LOOP:
                return self._repeat(eqn, values)
            case _:
                return None

    def _call(self, eqn: Any, values: list[Any]) -> list[Any]:
        if len(self.calls) >= MOST_CALLS:
            raise Undecided(
                f"it calls more than {MOST_CALLS} kernels",
                self.place(eqn),
                "audit a part of the function: its calls repeat",
            )
        form = self._forms.get(id(eqn)) or self._forms.setdefault(id(eqn), form_of(eqn))
        if not form.in_place and any(isinstance(value, Cell) for value in values):
            raise Undecided(
                f"{form.name} is given a ref as an operand", self.place(eqn), "give it the array, and let it return one"
            )
        cells = [value for value in values if isinstance(value, Cell)]
        if len({id(cell) for cell in cells}) < len(cells):
            raise Undecided(f"{form.name} is given one ref twice", self.place(eqn), "give it the ref once")
        operands = tuple(value.value if isinstance(value, Cell) else value for value in values)
        results = [KernelResult(len(self.calls), number) for number in range(len(form.results))]
        self.calls.append(Call(eqn, form, operands, self._repeats > 0))
        if not form.in_place:
            return list(results)
        for cell, result in zip(values, results, strict=True):
            if isinstance(cell, Cell):
                cell.value = result
        return []

    def _shard_map(self, eqn: Any, values: list[Any]) -> list[Any]:
        """This device's shards. Within another one they are shards of shards, which nobody follows."""
        params, inner = eqn.params, eqn.params["jaxpr"]
        self._depth += 1
        shards = []
        for value, spec, variable in zip(values, params["in_specs"], inner.invars, strict=True):
            if isinstance(value, Argument) and self._depth == 1:
                self.shards[value.number] = variable.aval
                shards.append(self._argument(value, spec, variable.aval.dtype))
            else:
                shards.append(self._shard(value, spec))
        results = self.enter(inner, shards)
        self._depth -= 1
        if not self._depth:
            return results
        nested = Lost("a result of a nested shard_map that is split over an axis")
        return [nested if any(spec) else result for result, spec in zip(results, params["out_specs"], strict=True)]

    def _argument(self, argument: Argument, spec: Any, dtype: Any) -> Any:
        if argument.number not in self.given:
            return argument
        shard = np.asarray(self._shard(self.given[argument.number], spec)).astype(dtype)
        self.constants[argument.number] = shard
        return known(shard)

    def _shard(self, value: Any, spec: Any) -> Any:
        """This device's part of an array whose values are known, or which is not split."""
        if not any(spec):
            return value
        if isinstance(value, Unknown | Reference):
            return Lost("an array that is split over an axis and is no argument of the function")
        pieces = []
        for side, axes in itertools.zip_longest(np.shape(value), spec):
            place, count = 0, 1
            for axis in (axes,) if isinstance(axes, str) else axes or ():
                place, count = place * self.sizes[axis] + self.coordinates[axis], count * self.sizes[axis]
            pieces.append(slice(place * (side // count), (place + 1) * (side // count)))
        return known(np.asarray(value)[tuple(pieces)])

    def _swap(self, eqn: Any, values: list[Any]) -> list[Any]:
        cell, value = values[:2]
        old = _whole(cell, values[2:], eqn)
        adds = eqn.primitive.name == "addupdate"
        if isinstance(old, Lost):
            value = Lost("a ref that is written in part outside of kernels")
        cell.value = Added(old, value) if adds and not isinstance(old, Lost) else value
        return [] if adds else [old]

    def _run_state(self, eqn: Any, values: list[Any]) -> list[Any]:
        """A body over refs, of which some begin with a value."""
        given = iter(values)
        initialized = eqn.params.get("is_initialized") or (True,) * len(values)
        cells = [Cell(next(given) if is_given else Lost("a ref that nothing has written")) for is_given in initialized]
        self.enter(eqn.params["jaxpr"], cells)
        return [cell.value for cell in cells]

    def open_choice(self, eqn: Any, values: list[Any]) -> list[Any]:
        what = "calls a kernel" if calls_kernel(eqn) else "takes part in a collective"
        raise Undecided(f"whether it {what} depends on data", self.place(eqn), MAKE_CONSTANT)

    def _other(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Operations that carry a jaxpr in a way of their own may call a kernel in it, who knows when."""
        if calls_kernel(eqn):
            raise Undecided(
                f"the operation `{eqn.primitive.name}` calls a kernel", self.place(eqn), "call the kernel outside of it"
            )
        unknown = [effect for effect in eqn.effects if type(effect).__name__ not in _HARMLESS]
        if unknown:
            reason = f"the operation `{eqn.primitive.name}` has an effect that the audit does not know"
            raise Undecided(reason, self.place(eqn), "leave it out of what is audited: it cannot be seen what it does")
        return super()._other(eqn, self._let_go(values))

    def _let_go(self, values: list[Any]) -> list[Any]:
        """Operands of an operation that is not followed: it may write to the refs among them."""
        lost = Lost("a ref that an operation outside of kernels may have written")
        for value in values:
            if isinstance(value, Cell):
                value.value = lost
        return [lost if isinstance(value, Cell) else value for value in values]

    def _repeat(self, eqn: Any, values: list[Any]) -> list[Any]:
        """One round for all: with nothing known of what is carried from round to round."""
        (inner,) = sub_jaxprs(eqn)
        self._repeats += 1
        unknown = Lost("a kernel in a long loop")
        self._let_go(values)
        inside = [Cell(unknown) if isinstance(value, Cell) else unknown for value in values]
        self.run(inner, [unknown] * len(inner.constvars), inside)
        self._repeats -= 1
        return [unknown] * len(eqn.outvars)


# Effects outside of kernels that touch no memory and no semaphore of a kernel.
_HARMLESS = {
    "DebugEffect",
    "OrderedDebugEffect",
    "IOEffect",
    "OrderedIOEffect",
    "NamedAxisEffect",
    "ReadEffect",
    "WriteEffect",
    "AccumEffect",
    "InternalMutableArrayEffect",
}


def _whole(cell: Any, leaves: list[Any], eqn: Any) -> Any:
    """What a ref outside kernels holds, where all of it is meant."""
    transforms = eqn.params["tree"].unflatten(leaves)
    aval = eqn.invars[0].aval
    if all(_is_all(transform, aval.shape) for transform in transforms):
        return cell.value
    return Lost("a ref that is read in part outside of kernels")


def _is_all(transform: Any, shape: tuple[int, ...]) -> bool:
    indices = getattr(transform, "indices", None)
    return indices is not None and all(
        isinstance(index, Slice)
        and type(index.start) is int
        and (index.start, index.size, index.stride) == (0, side, 1)
        for index, side in zip(indices, shape, strict=True)
    )
