"""The operand of a kernel: its shape and dtype on one rank, from `--shape` or chosen to suit the collective."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringsched.collectives import Promise
from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.schedule.schedule import Chain, Multiply

DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8_e4m3fn": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "bool": "bool",
}
_BYTES = {"32": 4, "16": 2}
SPLIT = frozenset({"reduce_scatter", "scatter", "all_to_all"})  # axis 0 is shared out among the ranks
MAX_BYTES = 1 << 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """An operand of the kernel function: its shape on one rank (one dimension at least), and its dtype.

    The dtype is a name that jax.numpy knows: bfloat16, not bf16.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """`x=8x128:f32`, as `--shape` takes it."""
        short = next((short for short, name in DTYPES.items() if name == self.dtype), self.dtype)
        return f"{self.name}={'x'.join(map(str, self.shape))}:{short}"

    @property
    def item_bytes(self) -> int:
        return next((size for bits, size in _BYTES.items() if self.dtype.endswith(bits)), 1)


def parse_dtype(text: str) -> str:
    """`bf16` or `bfloat16` → bfloat16. Raises RS112."""
    name = text.strip()
    if name in DTYPES:
        return DTYPES[name]
    if name in DTYPES.values():
        return name
    wide = re.fullmatch(r"(?:[fiuc]|float|int|uint|complex)(?:64|128)", name)
    reason = "a TPU kernel takes no dtype wider than 32 bits" if wide else "there is no such dtype"
    raise _fault(f"`{text}`: {reason}", f"the dtypes are {', '.join(DTYPES)}")


def parse_operand(text: str, dtype: str | None = None) -> Operand:
    """`x=256x1024:bf16`. `dtype`: where the text has none. Raises RS112."""
    match = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9x× ]+?)\s*(?::\s*(\S+)\s*)?", text)
    sizes = re.split(r"\s*[x×]\s*", match[2]) if match else []
    if match is None or not all(re.fullmatch(r"[0-9]{1,12}", size) for size in sizes):
        raise _fault(f"`--shape {text}` is not of the form NAME=SIZES:DTYPE", "write --shape x=256x1024:bf16")
    if not re.fullmatch(r"x|w[0-9]{0,3}", match[1]):
        help_ = "the operand is x, the weight of a schedule that multiplies w, and those of a chain w1, w2, …"
        raise _fault(f"`--shape {text}`: there is no operand `{match[1]}`", help_)
    written = parse_dtype(match[3]) if match[3] else None
    if written and dtype and written != dtype:
        raise _fault(f"`--shape` says {written} and `--dtype` says {dtype}", "give the dtype once")
    operand = Operand(name=match[1], shape=tuple(map(int, sizes)), dtype=written or dtype or "float32")
    if math.prod(operand.shape) * operand.item_bytes > MAX_BYTES:
        raise _fault(f"`--shape {text}` takes more than 64 GiB on one rank", "write --shape x=256x1024:bf16")
    return operand


def parse_operands(texts: Sequence[str], dtype: str | None = None) -> tuple[Operand, ...]:
    """One `--shape` for each operand. Raises RS112."""
    found = tuple(parse_operand(text, dtype) for text in texts)
    if len({operand.name for operand in found}) < len(found):
        raise _fault("`--shape` gives an operand twice", "write --shape x=256x1024:bf16 --shape w=1024x4096:bf16")
    return found


def operands_for(
    promise: Promise, compute: Multiply | None, given: Sequence[Operand], *, dtype: str = "float32", smallest: bool
) -> tuple[Operand, ...]:
    """x, and where the schedule multiplies w: as given, the rest to suit them. Raises RS607, RS112."""
    table = {operand.name: operand for operand in given}
    _check_names(table, ("x", "w"))
    if compute is None:
        if "w" in table:
            raise _fault("`--shape w=…`: the schedule multiplies nothing", "leave it out")
        fitting = smallest_operand(promise, dtype) if smallest else default_operand(promise, dtype)
        x = table.get("x", fitting)
        check_operand(promise, x)
        return (x,)
    ranks = promise.topology.ranks
    dtype = next((operand.dtype for operand in given), dtype)
    gathers, by_rows = compute.moment == "on arrival", compute.shard == "rows"
    if promise.kind == "none":
        ranks = 1  # each has all that it multiplies
    rows, depth, cols = (256, 1024 // ranks if gathers else 1024, 1024)
    if smallest:  # a tile of each part of what is split
        parts = math.prod(promise.dims[promise.group or len(promise.topology.sides) :])
        shares = 1 if gathers else ranks
        sublanes = 32 // Operand(name="x", shape=(), dtype=dtype).item_bytes
        rows = sublanes * (parts * shares if by_rows else 1)
        depth = 128 * (parts if gathers and not by_rows else 1)
        cols = 128 * (parts * shares if not gathers and not by_rows else 1)
    elif not gathers and by_rows:
        rows = -(-rows // ranks) * ranks
    elif not gathers:
        cols = -(-cols // ranks) * ranks
    if "w" in table and len(table["w"].shape) == 2:
        cols, depth = table["w"].shape[1], table["w"].shape[0]
        depth = depth // ranks if gathers and compute.shard == "features" else depth
    x = table.get("x", Operand(name="x", shape=(rows, depth), dtype=dtype))
    depth = x.shape[-1] * (ranks if gathers and compute.shard == "features" else 1)
    return x, table.get("w", Operand(name="w", shape=(depth, cols), dtype=dtype))


def chain_operands(
    chain: Chain, ranks: int, given: Sequence[Operand], *, dtype: str = "float32", smallest: bool
) -> tuple[Operand, ...]:
    """x and the weights of a chain: as given, the rest to suit them. Raises RS112."""
    names = [f"w{number}" for number in range(1, len(chain.links) + 1)]
    table = {operand.name: operand for operand in given}
    _check_names(table, ("x", *names))
    dtype = next((operand.dtype for operand in given), dtype)
    computes = [link.schedule.compute for link in chain.links]
    features = computes[0] is not None and computes[0].shard == "features"
    shares = ranks if features else 1
    layers = next((operand.shape[0] for name, operand in table.items() if name != "x"), 2 if smallest else 3)
    first = table.get(names[0])
    known = first is not None and len(first.shape) == 3
    width = first.shape[1] // shares if known and first is not None else 256 if features or not smallest else 128
    x = table.get("x", Operand(name="x", shape=(16 if smallest else 256, width), dtype=dtype))
    found, width = [x], x.shape[-1]
    for name, compute in zip(names, computes, strict=True):
        gathers = compute is not None and compute.moment == "on arrival"
        inner = 128 if smallest else 4096
        cols = inner if gathers else x.shape[-1] * shares
        weight = Operand(name=name, shape=(layers, width * (shares if gathers else 1), cols), dtype=dtype)
        found.append(table.get(name, weight))
        width = found[-1].shape[-1] // (1 if gathers else shares)
    return tuple(found)


def _check_names(given: Mapping[str, Operand], known: Sequence[str]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        have = ", ".join(known)
        raise _fault(f"`--shape {unknown}=…`: there is no operand `{unknown}`", f"the operands are {have}")


def default_operand(promise: Promise, dtype: str = "float32") -> Operand:
    """256 rows of 512, for each rank where the collective shares them out or sums them."""
    gathers = promise.kind in ("all_gather", "gather", "permute", "broadcast")
    rows = 256 if gathers else 256 * promise.topology.ranks
    return Operand(name="x", shape=(rows, 512), dtype=dtype)


def smallest_operand(promise: Promise, dtype: str = "float32") -> Operand:
    """The operand whose units are one tile each: enough to see a kernel work, and quick to interpret."""
    tile = Operand(name="x", shape=(1, 128), dtype=dtype)
    rows = math.prod(promise.input_shape()) * (32 // tile.item_bytes)
    return Operand(name="x", shape=(rows, 128), dtype=dtype)


def check_operand(promise: Promise, operand: Operand) -> None:
    """Raises RS607 where the collective cannot take the operand."""
    ranks = promise.topology.ranks
    rows = operand.shape[0]
    if promise.kind in SPLIT and rows % ranks:
        fitting = "x".join(map(str, (-(-rows // ranks) * ranks, *operand.shape[1:])))
        message = f"{promise.kind} shares out axis 0 among {ranks} ranks, and {rows} is not a multiple of {ranks}"
        raise DiagnosticError([Diagnostic(code="RS607", message=message, help=f"--shape x={fitting}")])
    if promise.kind == "reduce_scatter" and operand.dtype == "bool":
        message = "reduce_scatter does not add bool"
        raise DiagnosticError([Diagnostic(code="RS607", message=message, help="--shape x=…:i32, or another dtype")])


def _fault(message: str, help: str) -> DiagnosticError:
    return DiagnosticError([Diagnostic(code="RS112", message=message, help=help)])
