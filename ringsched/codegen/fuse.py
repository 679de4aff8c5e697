"""Products in a row → fewer and larger ones, which the TPU compiler turns into less and faster code.

    t = a @ u; t = t + b @ v; h = t + c @ w      →  h = a @ u + b @ v + c @ w        t being of no further use
    p = a @ w[…, 0]; q = a @ w[…, 1]             →  p, q = a @ w[…], cut into columns

A sum is stored once instead of once for each product; what is done to it in the end is hidden behind all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringsched.expr import Int
from ringsched.program.program import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The sum over `factors`, each a source and its weight, and `plus`; its columns shared out among `targets`."""

    targets: tuple[Region, ...]
    factors: tuple[tuple[Region, Region], ...]
    plus: Region | None = None


def fuse(
    products: Sequence[Product], parts: Callable[[Region], int], complete: Callable[[Region], bool]
) -> list[list[Product]]:
    """`products` stand in a row, with nothing in between; of those of one list, none reads what another writes.

    parts: into how many blocks of columns the last dimension of a weight's grid is cut, 0 where they are none.
    complete: whether a target is that of a finished sum; what was summed up before is then of no further use, and it is
    a target of its own.
    """
    found = _independent(_sums(products, complete))
    return [part if any(complete(p.targets[0]) for p in part) else _columns(part, parts) for part in found]


def _independent(products: Sequence[Product]) -> list[list[Product]]:
    """Cut where a product reads what one before has written, or the reverse."""
    found: list[list[Product]] = [[]]
    read: set[str] = set()
    written: set[str] = set()
    for product in products:
        reads = {region.buffer for pair in product.factors for region in pair}
        reads |= {product.plus.buffer} if product.plus else set()
        writes = {target.buffer for target in product.targets}
        if reads & written or writes & read:
            found.append([])
            read, written = set(), set()
        found[-1].append(product)
        read |= reads
        written |= writes
    return found


def _sums(products: Sequence[Product], complete: Callable[[Region], bool]) -> list[Product]:
    found: list[Product] = []
    for product in products:
        before = found[-1] if found else None
        (target,) = product.targets
        if before and product.plus == before.targets[0] and (target == product.plus or complete(target)):
            found[-1] = Product(targets=(target,), factors=before.factors + product.factors, plus=before.plus)
        else:
            found.append(product)
    return found


def _columns(products: list[Product], parts: Callable[[Region], int]) -> list[Product]:
    """Blocks of columns that are one behind the other, of products of which none reads what another writes."""
    if any(product.plus is not None or len(product.factors) > 1 for product in products):
        return products
    groups: dict[tuple[Region, Region], list[Product]] = {}
    for product in products:
        ((source, weight),) = product.factors
        outer = Region(buffer=weight.buffer, index=weight.index[:-1])
        groups.setdefault((source, outer), []).append(product)
    found: list[Product] = []
    for (source, outer), group in groups.items():
        count = parts(outer)
        group = sorted(group, key=_number)
        if count > 1 and [_number(product) for product in group] == list(range(count)):
            targets = tuple(target for product in group for target in product.targets)
            found.append(Product(targets=targets, factors=((source, outer),)))
        else:
            found += group
    return found


def _number(product: Product) -> int:
    """Which block of columns a product multiplies by, -1 where it is no number."""
    ((_, weight),) = product.factors
    last = weight.index[-1] if weight.index else None
    return last.value if isinstance(last, Int) else -1
