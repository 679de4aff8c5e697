"""Damaged versions of the items of a schedule, each with a name."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ringsched.expr import Var, binary
from ringsched.schedule.schedule import Item, Loop, Slice, Step, Transfer


def mutants(items: tuple[Item, ...]) -> Iterator[tuple[str, tuple[Item, ...]]]:
    for number, item in enumerate(items):
        for name, new in item_mutants(item):
            yield f"{number}.{name}", (*items[:number], *new, *items[number + 1 :])


def item_mutants(item: Item) -> Iterator[tuple[str, tuple[Item, ...]]]:
    if isinstance(item, Loop):
        yield "short", (replace(item, range=replace(item.range, last=binary("-", item.range.last, 1))),)
        yield "late", (replace(item, range=replace(item.range, first=binary("+", item.range.first, 1))),)
        for name, body in mutants(item.body):
            yield name, (replace(item, body=body),)
    elif isinstance(item, Step):
        for number, transfer in enumerate(item.transfers):
            for name, new in transfer_mutants(transfer):
                transfers = (*item.transfers[:number], *new, *item.transfers[number + 1 :])
                yield f"{number}.{name}", (replace(item, transfers=transfers),)


def transfer_mutants(transfer: Transfer) -> Iterator[tuple[str, tuple[Transfer, ...]]]:
    yield "dropped", ()
    yield "doubled", (transfer, transfer)
    yield "swapped", (replace(transfer, op="copy" if transfer.op == "reduce" else "reduce"),)
    yield "not at rank 0", (replace(transfer, when=(*transfer.when, Var(name="r"))),)
    for shift, (d, index) in itertools.product((1, -1), enumerate(transfer.chunk.index)):
        if isinstance(index, Slice):
            continue
        new = binary("+", index, shift)
        if hasattr(index, "op") and index.op == "%":
            new = replace(index, left=binary("+", index.left, shift))
        parts = (*transfer.chunk.index[:d], new, *transfer.chunk.index[d + 1 :])
        yield f"index {d} {shift:+}", (replace(transfer, chunk=replace(transfer.chunk, index=parts)),)
    if transfer.each:
        for end, shift in (("first", 1), ("last", -1)):
            each = replace(transfer.each, **{end: binary("+", getattr(transfer.each, end), shift)})
            yield f"each {end} {shift:+}", (replace(transfer, each=each),)
