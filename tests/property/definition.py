"""What a schedule file means, by the words of docs/language.md and by nothing else of this project: right or wrong.

The file is read as plain YAML, expressions by Python's own parser. A rank's state maps each chunk to the ranks that
have contributed to it. `synth:` is left to the compiler by the definition, so there is nothing to say about it: None.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

Chunk = tuple[int, ...]
State = dict[tuple[int, Chunk], frozenset[int]]  # of rank and chunk
Env = dict[str, Any]
REDUCING = ("reduce_scatter", "all_reduce", "reduce")
OWNERS = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 2, "permute": 1, "gather": 1, "scatter": 1}

BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
}
COMPARE: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Wrong(Exception):
    """The schedule does not do what it promises, or says something that has no meaning."""


class LeftOpen(Exception):
    """The definition leaves it to the compiler."""


def meaning(path: Path, values: Mapping[str, int] | None = None) -> str | None:
    """`""` where a schedule file is right, else what is wrong with it; None where the compiler has to choose."""
    try:
        _Schedule.read(path, dict(values or {})).check()
    except Wrong as error:
        return str(error) or "wrong"
    except LeftOpen:
        return None
    return ""


def value(text: Any, env: Env) -> int:
    """An expression. Raises Wrong."""
    if isinstance(text, int):
        return text
    try:
        return int(_evaluate(_parsed(str(text).strip()), env))
    except (SyntaxError, KeyError, IndexError, ZeroDivisionError, ValueError) as error:
        raise Wrong(f"{text}: {error!r}") from None


@functools.cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _evaluate(node: ast.expr, env: Env) -> Any:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return env[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, env)
        case ast.BinOp(left=left, op=op, right=right):
            return BINARY[type(op)](_evaluate(left, env), _evaluate(right, env))
        case ast.Compare(left=left, ops=ops, comparators=others):
            numbers = [_evaluate(each, env) for each in (left, *others)]
            return all(COMPARE[type(op)](a, b) for op, (a, b) in zip(ops, itertools.pairwise(numbers), strict=True))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            return (min if name == "min" else max)(*(_evaluate(each, env) for each in args))
        case ast.Subscript(value=ast.Name(id=name), slice=index):
            at = _evaluate(index, env)
            if not 0 <= at < len(env[name]):
                raise IndexError(at)
            return env[name][at]
    raise SyntaxError(ast.dump(node))


@dataclass(frozen=True)
class _Links:
    """Ranks and their neighbours. `sides`: of the coordinates; `names`: those of a rank in expressions."""

    kind: str
    sides: tuple[int, ...]
    names: tuple[str, ...]
    pairs: frozenset[tuple[int, int]]
    twist: Mapping[str, Sequence[int]]
    routed: bool

    @property
    def ranks(self) -> int:
        return math.prod(self.sides)

    def at(self, rank: int) -> tuple[int, ...]:
        place = []
        for side in reversed(self.sides):
            place.insert(0, rank % side)
            rank //= side
        return tuple(place)

    def env(self, rank: int) -> Env:
        return {"r": rank, **dict(zip(self.names, self.at(rank), strict=False))}

    def named(self, given: Any, env: Env) -> int:
        """What `to:` or `from:` names: only what is counted from a rank's own coordinate goes around."""
        texts, place = given if isinstance(given, list) else [given], _place(given, env)
        if len(place) == len(self.sides) and self.kind in ("ring", "torus"):
            for text, at, side in zip(texts, place, self.sides, strict=True):
                if not set(re.findall(r"\w+", str(text))) & {"r", *self.names} and not 0 <= at < side:
                    raise Wrong(f"there is no rank {place}")
        return self.rank(place)

    def rank(self, place: Sequence[int]) -> int:
        """Raises Wrong where there is none."""
        if len(place) == 1 and len(self.sides) > 1:
            place = self.at(place[0]) if 0 <= place[0] < self.ranks else (-1,) * len(self.sides)
        found = list(place)
        if self.kind in ("ring", "torus"):
            for axis in self.order():
                turns, found[axis] = divmod(found[axis], self.sides[axis])
                for other, shift in enumerate(self.twist.get(self.names[axis], ()) if self.twist else ()):
                    found[other] += turns * shift
            found = [each % side for each, side in zip(found, self.sides, strict=True)]
        if any(not 0 <= each < side for each, side in zip(found, self.sides, strict=True)):
            raise Wrong(f"there is no rank {tuple(place)}")
        number = 0
        for each, side in zip(found, self.sides, strict=True):
            number = number * side + each
        return number

    def order(self) -> list[int]:
        """Axes that shift others come before those."""
        axes = list(range(len(self.sides)))
        if not self.twist:
            return axes
        shifts = {a: {o for o, by in enumerate(self.twist.get(self.names[a], ())) if by} for a in axes}
        found: list[int] = []
        while len(found) < len(axes):
            found.append(
                next(a for a in axes if a not in found and not any(a in shifts[b] for b in axes if b not in found))
            )
        return found

    def reach(self, sender: int, receiver: int) -> bool:
        return sender != receiver and (self.routed or (sender, receiver) in self.pairs)


def _links(given: Mapping[str, Any], env: Env) -> _Links:
    kind = next(k for k in ("ring", "line", "mesh", "torus", "links") if k in given)
    size = given[kind]
    if kind == "links":
        ends = [tuple(each["between"] if isinstance(each, dict) else each) for each in size]
        pairs = [tuple(value(end, env) for end in each) for each in ends]
        sides: tuple[int, ...] = (max(map(max, pairs)) + 1,)
        both = frozenset((a, b) for x, y in pairs for a, b in ((x, y), (y, x)))
        return _Links("links", sides, (), both, {}, bool(given.get("routed")))
    sides = tuple(value(each, env) for each in (size if isinstance(size, list) else [size]))
    names = ("x", "y", "z")[: len(sides)] if kind in ("mesh", "torus") else ()
    twist = {axis: [value(by, env) for by in shifts] for axis, shifts in (given.get("twist") or {}).items()}
    wraps = "torus" if kind in ("ring", "torus") else "mesh"
    links = _Links(
        {"ring": "ring", "line": "line"}.get(kind, kind), sides, names, frozenset(), twist, bool(given.get("routed"))
    )
    pairs_found = set()
    for rank in range(links.ranks):
        for axis in range(len(sides)):
            for hop in (1, -1):
                place = list(links.at(rank))
                place[axis] += hop
                if wraps == "torus" or 0 <= place[axis] < sides[axis]:
                    pairs_found.add((rank, links.rank(place)))
    return _Links(links.kind, sides, names, frozenset(pairs_found), twist, links.routed)


@dataclass(frozen=True)
class _Move:
    sender: int
    receiver: int
    chunk: Chunk
    reduce: bool


Step = list[_Move]


@dataclass(frozen=True)
class _Schedule:
    file: Mapping[str, Any]
    folder: Path
    env: Env
    links: _Links
    dims: tuple[int, ...]

    @staticmethod
    def read(path: Path, values: dict[str, int], outer: _Links | None = None) -> _Schedule:
        file = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        if "chain" in file:
            raise LeftOpen
        env: Env = {**(file.get("params") or {}), **values, **(file.get("tables") or {})}
        links = outer or _links(file["topology"], env)
        dims = tuple(value(each, env) for each in file.get("chunks", [links.ranks]))
        if any(side < 1 for side in dims):
            raise Wrong("a dimension of no chunks")
        return _Schedule(file, path.parent, env, links, dims)

    def check(self) -> None:
        state = self.initial()
        for step in self.steps(self.file.get("steps") or [], self.env):
            self.advance(state, step)
        for cell, wanted in self.promised().items():
            if state.get(cell) != wanted:
                raise Wrong(f"chunk {cell[1]} at rank {cell[0]}")

    # -- the collective

    def kind(self) -> tuple[str, int, list[int]]:
        """Its name, root and permutation."""
        given = self.file["collective"]
        if isinstance(given, str):
            return given, 0, []
        ((name, text),) = given.items()
        if name != "permute":
            root = value(text, self.env)
            if not 0 <= root < self.links.ranks:
                raise Wrong("no such root")
            return name, root, []
        targets = [value(text, {**self.env, **self.links.env(rank)}) for rank in range(self.links.ranks)]
        if sorted(targets) != list(range(self.links.ranks)):
            raise Wrong("no permutation")
        return name, 0, targets

    def owner(self, chunk: Chunk, which: int = 0) -> int:
        group = self.group()
        return self.links.rank(chunk[which * group : (which + 1) * group]) if group > 1 else chunk[which]

    def group(self) -> int:
        """How many dimensions name a rank."""
        name, _, _ = self.kind()
        sides, ranks, count = self.links.sides, self.links.ranks, OWNERS.get(name, 0)
        if len(sides) > 1 and self.dims[: count * len(sides)] == sides * count:
            return len(sides)
        if self.dims[:count] != (ranks,) * count:
            raise Wrong("chunks do not fit")
        return 1

    def chunks(self) -> Iterator[Chunk]:
        return itertools.product(*map(range, self.dims))

    def initial(self) -> State:
        name, root, _ = self.kind()
        self.group()
        ranks = range(self.links.ranks)
        if name in (*REDUCING, "none"):
            return {(rank, chunk): frozenset({rank}) for rank in ranks for chunk in self.chunks()}
        if name in ("broadcast", "scatter"):
            return {(root, chunk): frozenset({root}) for chunk in self.chunks()}
        return {(self.owner(c), c): frozenset({self.owner(c)}) for c in self.chunks()}

    def promised(self) -> State:
        name, root, targets = self.kind()
        ranks, everyone = range(self.links.ranks), frozenset(range(self.links.ranks))
        chunks = list(self.chunks())
        match name:
            case "all_gather":
                return {(rank, c): frozenset({self.owner(c)}) for rank in ranks for c in chunks}
            case "reduce_scatter":
                return {(self.owner(c), c): everyone for c in chunks}
            case "all_reduce":
                return {(rank, c): everyone for rank in ranks for c in chunks}
            case "all_to_all":
                return {(self.owner(c, 1), c): frozenset({self.owner(c)}) for c in chunks}
            case "permute":
                return {(targets[self.owner(c)], c): frozenset({self.owner(c)}) for c in chunks}
            case "broadcast":
                return {(rank, c): frozenset({root}) for rank in ranks for c in chunks}
            case "reduce":
                return {(root, c): everyone for c in chunks}
            case "gather":
                return {(root, c): frozenset({self.owner(c)}) for c in chunks}
            case "scatter":
                return {(self.owner(c), c): frozenset({root}) for c in chunks}
            case "none":
                return self.initial()
        raise LeftOpen

    # -- the steps

    def steps(self, items: Sequence[Any], env: Env) -> Iterator[Step]:
        for item in items:
            if "send" in item:
                yield list(self.transfer(item, env))
            elif "step" in item:
                yield [move for each in item["step"] for move in self.transfer(each, env)]
            elif "for" in item:
                name, first, last = _range(item["for"], env)
                body = item["do"]
                for number in range(first, last + 1):
                    inner = {**env, name: number}
                    if all("send" in each for each in body):
                        yield [move for each in body for move in self.transfer(each, inner)]
                    else:
                        yield from self.steps(body, inner)
            elif "use" in item:
                yield from self.used(item, env)
            elif "beside" in item:
                each_one = [list(self.used(each, env)) for each in item["beside"]]
                for number in range(max(map(len, each_one), default=0)):
                    yield [move for steps in each_one for move in (steps[number] if number < len(steps) else [])]
            else:
                raise LeftOpen

    def used(self, item: Mapping[str, Any], env: Env) -> Iterator[Step]:
        """Another file's steps, its chunks put where `on:` has slices."""
        name = str(item["use"])
        path = self.folder / (name if name.endswith(".yaml") else f"{name}.yaml")
        if not path.exists():
            path = Path(__file__).parents[2] / "schedules" / path.name
        known = YAML(typ="safe").load(path.read_text(encoding="utf-8")).get("params") or {}
        values = {key: env[key] for key in known if key in self.env and isinstance(env[key], int)}
        values |= {key: value(text, env) for key, text in (item.get("with") or {}).items()}
        inner = _Schedule.read(path, values, self.links)
        on = item.get("on")
        for step in inner.steps(inner.file.get("steps") or [], inner.env):
            yield [_Move(m.sender, m.receiver, self.place(on, m.chunk, env), m.reduce) for m in step]

    def place(self, on: Any, chunk: Chunk, env: Env) -> Chunk:
        if on is None:
            return chunk
        left, found = list(chunk), []
        for part in _parts(on):
            if ":" not in part:
                found.append(value(part, env))
                continue
            found.append(left.pop(0) + (value(part.split(":")[0], env) if part.split(":")[0].strip() else 0))
        return (*found, *left)

    def transfer(self, item: Mapping[str, Any], env: Env) -> Iterator[_Move]:
        each = _range(item["each"], env) if "each" in item else ("", 0, 0)
        conditions = item.get("when", [])
        conditions = conditions if isinstance(conditions, list) else [conditions]
        for number in range(each[1], each[2] + 1):
            here = {**env, each[0]: number} if each[0] else dict(env)
            senders = range(self.links.ranks)
            if "from" in item:
                rank = self.links.named(item["from"], here)
                senders = range(rank, rank + 1)
            for sender in senders:
                own = {**here, **self.links.env(sender)}
                if not all(value(condition, own) for condition in conditions):
                    continue
                receiver = self.links.named(item["to"], own)
                for chunk in self.named(item["send"], own):
                    if not self.links.reach(sender, receiver):
                        raise Wrong(f"rank {sender} has no link to {receiver}")
                    yield _Move(sender, receiver, chunk, item.get("op", "copy") == "reduce")

    def named(self, text: str, env: Env) -> list[Chunk]:
        ranges = []
        parts = _parts(text)
        if len(parts) > len(self.dims):
            raise Wrong("more indices than dimensions")
        for part, side in itertools.zip_longest(parts, self.dims, fillvalue=":"):
            if ":" in part:
                first, last = part.split(":")
                bounds = value(first, env) if first.strip() else 0, value(last, env) if last.strip() else side
                if not 0 <= bounds[0] < bounds[1] <= side:
                    raise Wrong(f"{text} leaves its dimension")
                ranges.append(range(*bounds))
            else:
                at = value(part, env)
                if not 0 <= at < side:
                    raise Wrong(f"{text} leaves its dimension")
                ranges.append(range(at, at + 1))
        return list(itertools.product(*ranges))

    def advance(self, state: State, step: Step) -> None:
        """All read what was there before; what two write at once has to be a sum."""
        written: State = {}
        copied: set[tuple[int, Chunk]] = set()
        for move in step:
            cell, terms = (move.receiver, move.chunk), state.get((move.sender, move.chunk))
            if terms is None:
                raise Wrong(f"rank {move.sender} does not hold {move.chunk}")
            if cell in copied or (cell in written and not move.reduce):
                raise Wrong(f"{cell} is written twice")
            before = written.get(cell) or state.get(cell)
            if move.reduce and (before is None or before & terms):
                raise Wrong(f"{cell}: nothing to add to, or twice")
            written[cell] = terms | before if move.reduce and before else terms
            if not move.reduce:
                copied.add(cell)
        state.update(written)


def _range(text: Any, env: Env) -> tuple[str, int, int]:
    name, _, bounds = str(text).partition(" in ")
    first, _, last = bounds.partition("..")
    return name.strip(), value(first, env), value(last, env)


def _place(given: Any, env: Env) -> tuple[int, ...]:
    return tuple(value(each, env) for each in (given if isinstance(given, list) else [given]))


def _parts(text: str) -> list[str]:
    """The indices of `chunk[a, b:c]`, split at commas that are in no brackets."""
    text = str(text).strip()
    if "[" not in text:
        return []
    parts, depth = [""], 0
    for letter in text[text.index("[") + 1 : text.rindex("]")]:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
