"""MSCCL algorithms with one thing altered: a dependence, a step, an offset, a count, a peer, a channel, a size."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop")


def is_spelt_out(text: str) -> bool:
    """Whether every attribute that the executor reads is there, under its usual name."""
    names = {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"}
    return all(names <= set(step.attrib) for step in ElementTree.fromstring(text).iter("step"))


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """What was altered, and the text."""
    tree = ElementTree.fromstring(text)
    for gpu_number, gpu in enumerate(tree.findall("gpu")):
        for tb_number, tb in enumerate(gpu.findall("tb")):
            for step_number, step in enumerate(tb.findall("step")):
                place = (gpu_number, tb_number, step_number)
                for name, value in _alterations(gpu, tb, step):
                    yield _altered(tree, place, name, value)
            for name in ("send", "recv", "chan"):
                for value in sorted({-1, 0, 1, int(tb.get(name, 0)) + 1} - {int(tb.get(name, 0))}):
                    if not (name == "chan" and value < 0):
                        yield _altered(tree, (gpu_number, tb_number), name, str(value))
            yield from _structure(tree, gpu_number, tb_number, len(tb.findall("step")))
        for name in ("i_chunks", "o_chunks", "s_chunks"):
            for value in (int(gpu.get(name, 0)) - 1, int(gpu.get(name, 0)) + 1):
                if value >= 0:
                    yield _altered(tree, (gpu_number,), name, str(value))
    chunks = int(tree.get("nchunksperloop", 1))
    for value in (chunks - 1, chunks + 1, 2 * chunks):
        yield _altered(tree, (), "nchunksperloop", str(value))
    yield _altered(tree, (), "inplace", "0" if tree.get("inplace") == "1" else "1")


def _alterations(
    gpu: ElementTree.Element, tb: ElementTree.Element, step: ElementTree.Element
) -> Iterator[tuple[str, str]]:
    blocks = [t.get("id", "0") for t in gpu.findall("tb")]
    for block in ["-1", *blocks]:
        if block != step.get("depid"):
            yield "depid", block
    for number in (-1, 0, 1):
        value = int(step.get("deps", -1)) + (number or 2)
        if int(step.get("depid", -1)) >= 0 and value >= 0:
            yield "deps", str(value)
    yield "hasdep", "0" if step.get("hasdep") == "1" else "1"
    for kind in TYPES:
        if kind != step.get("type"):
            yield "type", kind
    for name in ("srcbuf", "dstbuf"):
        for buffer in "ios":
            if buffer != step.get(name):
                yield name, buffer
    for name in ("srcoff", "dstoff"):
        for by in (-1, 1, 2):
            yield name, str(int(step.get(name, 0)) + by)
    for by in (-1, 1):
        if int(step.get("cnt", 1)) + by >= 0:
            yield "cnt", str(int(step.get("cnt", 1)) + by)


def _altered(tree: ElementTree.Element, place: tuple[int, ...], name: str, value: str) -> tuple[str, str]:
    other = copy.deepcopy(tree)
    element = other
    for tag, number in zip(("gpu", "tb", "step"), place, strict=False):
        element = element.findall(tag)[number]
    was = element.get(name)
    element.set(name, value)
    if name == "depid" and element.get("deps") == "-1":
        element.set("deps", "0")
    return f"{element.tag} {place}: {name} {was} → {value}", ElementTree.tostring(other, encoding="unicode")


def _structure(tree: ElementTree.Element, gpu: int, tb: int, steps: int) -> Iterator[tuple[str, str]]:
    """A step left out, and two steps exchanged, numbers as they were."""
    for number in range(steps):
        other = copy.deepcopy(tree)
        block = other.findall("gpu")[gpu].findall("tb")[tb]
        block.remove(block.findall("step")[number])
        yield f"tb {(gpu, tb)}: without step {number}", ElementTree.tostring(other, encoding="unicode")
    for number in range(steps - 1):
        other = copy.deepcopy(tree)
        a, b = other.findall("gpu")[gpu].findall("tb")[tb].findall("step")[number : number + 2]
        for name in set(a.attrib) - {"s"}:
            first, second = a.get(name, ""), b.get(name, "")
            a.set(name, second)
            b.set(name, first)
        yield (
            f"tb {(gpu, tb)}: steps {number} and {number + 1} exchanged",
            ElementTree.tostring(other, encoding="unicode"),
        )
