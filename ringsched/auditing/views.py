"""ref, transforms  →  Region: which elements of a buffer a view of a ref shows, and in which shape.

Each axis of a view is made of factors, outermost first: steps along a dimension of the buffer. Indexing picks within
factors, a reshape cuts and joins them. In the end those of each dimension have to make one evenly spaced range.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax._src import dtypes
from jax._src.state import indexing, types

from ringsched.auditing.memory import Buffer, OutOfBounds, Range, Region, whole
from ringsched.auditing.scalars import Unknown
from ringsched.auditing.walk import MAKE_CONSTANT, Reference, Undecided
from ringsched.diagnostics import Span


def resolve(ref: Any, span: Span | None) -> Region:
    """The region of a ref or a transformed one, indices known. Raises OutOfBounds, Undecided."""
    if not isinstance(ref, types.TransformedRef):
        return whole(_known(ref, span))
    base, transforms = ref.ref, tuple(ref.transforms)
    if ref.multiref:
        select, *rest = transforms
        if not isinstance(select, types.SelectTransform):
            raise Undecided(
                f"the view `{type(select).__name__}` of several refs is not known to the audit",
                span,
                "select one of them first: pl.select_ref",
            )
        which = _number(select.idx, span)
        if not 0 <= which < len(base):
            raise Undecided(f"it selects ref {which} of {len(base)}", span, "select one that is there")
        base, transforms = base[which], tuple(rest)
    return view(base, transforms, span)


def view(buffer: Any, transforms: Sequence[Any], span: Span | None) -> Region:
    """The region that is left of a buffer after these transforms, in order. Raises OutOfBounds, Undecided."""
    if isinstance(buffer, types.TransformedRef):
        return resolve(buffer, span)
    found = _View(_known(buffer, span), span)
    for transform in transforms:
        match transform:
            case indexing.NDIndexer():
                found.index(transform)
            case types.TransposeTransform():
                found.axes = [found.axes[d] for d in transform.permutation]
            case types.ReshapeTransform():
                found.reshape(tuple(transform.shape))
            case types.BitcastTransform():
                found.bitcast(transform.dtype)
            case _:
                raise Undecided(
                    f"the view `{type(transform).__name__}` of a ref is not known to the audit",
                    span,
                    "index, reshape, transpose and bitcast of a ref can be followed",
                )
    return found.region()


def _known(ref: Any, span: Span | None) -> Buffer:
    if not isinstance(ref, Buffer):
        raise Undecided(
            "it uses a ref that the audit does not know",
            span,
            "give it to the kernel as an operand, or allocate it in scratch_shapes",
        )
    return ref


@dataclass(frozen=True, slots=True)
class _Factor:
    """`count` steps of `stride` indices along dimension `dimension`; None: parts of an element."""

    dimension: int | None
    count: int
    stride: int = 1


_Axis = tuple[_Factor, ...]


@dataclass(slots=True)
class _View:
    """`starts`: the first index in each dimension. `hidden`: factors of which every element of the view has all."""

    buffer: Buffer
    span: Span | None
    axes: list[_Axis] = field(init=False)
    starts: list[int] = field(init=False)
    hidden: list[_Factor] = field(default_factory=list)
    dtype: Any = field(init=False)

    def __post_init__(self) -> None:
        self.axes = [(_Factor(d, side),) for d, side in enumerate(self.buffer.shape)]
        self.starts = [0] * len(self.axes)
        self.dtype = self.buffer.dtype

    def refuse(self, what: str) -> Undecided:
        return Undecided(
            f"{self.buffer.name} is {what} in a way that the audit does not follow",
            self.span,
            "take the slice of the ref first, and whole words of it",
        )

    # -- indexing

    def index(self, indexer: Any) -> None:
        if tuple(indexer.int_indexer_shape):
            raise Undecided("a ref is indexed by an array", self.span, "a loop over its numbers, one slice for each")
        left: list[_Axis] = []
        for number, (axis, index) in enumerate(zip(self.axes, indexer.indices, strict=True)):
            side = _size(axis)
            if isinstance(index, indexing.Slice):
                start, count = _number(index.start, self.span), _number(index.size, self.span)
                stride = max(_number(index.stride, self.span), 1)
            else:
                start, count, stride = _number(index, self.span), 1, 1
            last = start + (count - 1) * stride
            if start < 0 or count < 0 or (last >= side if count else start > side):
                raise OutOfBounds(self.buffer, _dimension(axis, number), start, last, side)
            cut = self.cut(axis, start, count, stride)
            if isinstance(index, indexing.Slice):
                left.append(cut)
        self.axes = left

    def cut(self, axis: _Axis, start: int, count: int, stride: int) -> _Axis:
        """`count` elements of an axis, from `start` on, `stride` apart."""
        if not axis or (start, count, stride) == (0, _size(axis), 1):
            return axis if count else (_Factor(0, 0),)
        first, *rest = axis
        inner = _size(tuple(rest))
        if not rest:
            if first.dimension is None:
                raise self.refuse("cut within elements of a bitcast")
            self.starts[first.dimension] += start * first.stride
            return (replace(first, count=count, stride=first.stride * stride),)
        if stride == 1 and start % inner == 0 and count % inner == 0:
            return (*self.cut((first,), start // inner, count // inner, 1), *rest)
        if stride % inner == 0 and count > 1:
            within = self.cut(tuple(rest), start % inner, 1, 1)
            return (*self.cut((first,), start // inner, count, stride // inner), *within)
        if start // inner == (start + (count - 1) * stride) // inner:
            outer = self.cut((first,), start // inner, 1, 1)
            return (*outer, *self.cut(tuple(rest), start % inner, count, stride))
        raise self.refuse("reshaped and cut")

    # -- other views

    def reshape(self, shape: tuple[int, ...]) -> None:
        if -1 in shape:
            total, known = math.prod(map(_size, self.axes)), -math.prod(shape)
            shape = tuple(total // known if side == -1 else side for side in shape)
        if 0 in shape:
            raise self.refuse("reshaped")
        factors = [factor for axis in self.axes for factor in axis if factor.count != 1]
        found: list[_Axis] = []
        for side in shape:
            axis: list[_Factor] = []
            while _size(tuple(axis)) < side:
                wanted, first = side // _size(tuple(axis)), factors.pop(0)
                if side % _size(tuple(axis)) or (first.count % wanted and wanted % first.count):
                    raise self.refuse("reshaped")
                if first.count > wanted:
                    first, rest = _split(first, wanted)
                    factors.insert(0, rest)
                axis.append(first)
            if _size(tuple(axis)) != side:
                raise self.refuse("reshaped")
            found.append(tuple(_joined(axis)))
        self.axes = found

    def bitcast(self, dtype: Any) -> None:
        """Elements of another width lie along the second-last axis, as they are packed in a TPU's registers."""
        old, new = int(dtypes.itemsize_bits(self.dtype)), int(dtypes.itemsize_bits(dtype))
        self.dtype = np.dtype(dtype)
        if old == new:
            return
        rows, columns = len(self.buffer.shape) - 2, len(self.buffer.shape) - 1
        if (
            len(self.axes) < 2
            or any(factor.dimension not in (rows, None) for factor in self.axes[-2][-1:])
            or any(factor.dimension != columns for factor in self.axes[-1])
        ):
            raise self.refuse("bitcast")
        axis = list(self.axes[-2])
        if new < old:
            axis.append(_Factor(None, old // new))
        elif not axis or axis[-1].dimension is None or axis[-1].count % (new // old):
            raise self.refuse("bitcast")
        else:
            outer, inner = _split(axis.pop(), axis_count := self.axes[-2][-1].count // (new // old))
            axis += [outer] if axis_count > 1 else []
            self.hidden.append(inner)
        self.axes[-2] = tuple(axis)

    # -- what it is of the buffer

    def region(self) -> Region:
        shown = [factor for axis in self.axes for factor in axis]
        ranges = [
            self.range(d, [factor for factor in (*shown, *self.hidden) if factor.dimension == d])
            for d in range(len(self.buffer.shape))
        ]
        order = [f.dimension for f in shown if f.dimension is not None and f.count != 1]
        dimensions = [d for d, _ in itertools.groupby(order)]
        if len(set(dimensions)) < len(dimensions) or not self.in_order(shown):
            raise self.refuse("reshaped and transposed")
        shape = tuple(map(_size, self.axes))
        return Region(self.buffer, tuple(ranges), shape, tuple(dimensions), self.dtype)

    def range(self, dimension: int, factors: list[_Factor]) -> Range:
        factors = sorted((f for f in factors if f.count != 1), key=lambda f: -f.stride)
        joined = _joined(factors)
        if len(joined) > 1:
            raise self.refuse("reshaped and cut")
        only = joined[0] if joined else _Factor(dimension, 1)
        return Range(self.starts[dimension], only.count, only.stride)

    def in_order(self, shown: list[_Factor]) -> bool:
        """Whether the factors of each dimension come outermost first."""
        return all(
            left.stride >= right.stride
            for left, right in itertools.combinations([f for f in shown if f.count != 1], 2)
            if left.dimension is not None and left.dimension == right.dimension
        )


def _size(axis: _Axis) -> int:
    return math.prod(factor.count for factor in axis)


def _dimension(axis: _Axis, number: int) -> int:
    return axis[0].dimension if axis and axis[0].dimension is not None else number


def _split(factor: _Factor, outer: int) -> tuple[_Factor, _Factor]:
    """In two, the first of which has `outer` steps."""
    inner = factor.count // outer
    return replace(factor, count=outer, stride=factor.stride * inner), replace(factor, count=inner)


def _joined(factors: Sequence[_Factor]) -> list[_Factor]:
    """Neighbours that are evenly spaced together are one."""
    found: list[_Factor] = []
    for factor in factors:
        last = found[-1] if found else None
        if (
            last is not None
            and last.dimension is not None
            and last.dimension == factor.dimension
            and last.stride == factor.count * factor.stride
        ):
            found[-1] = replace(factor, count=last.count * factor.count)
        else:
            found.append(factor)
    return found


def _number(value: Any, span: Span | None) -> int:
    if type(value) is int:
        return value
    if isinstance(value, Unknown | Reference):
        raise Undecided("an index depends on data that the audit does not know", span, MAKE_CONSTANT)
    if np.ndim(value):
        raise Undecided("a ref is indexed by an array", span, "a loop over its numbers, one slice for each")
    return int(value)
