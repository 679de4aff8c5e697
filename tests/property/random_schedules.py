"""Random schedule files over all that the language has, right ones and some that are off by a little.

A plan of moves is drawn that is right for a random collective on random links; one move of it may be altered. It is
then written down in one of several forms: for single ranks, by guards, by slices of any length, by `each`, by tables
in a loop. Other files put shipped schedules together: `use`, `on`, `beside`, `synth`, `compute`, chains, `lowering`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

Chunk = tuple[int, ...]


@dataclass(frozen=True)
class Move:
    sender: int
    receiver: int
    chunk: Chunk
    op: str = "copy"


@dataclass
class Links:
    """`text`: as in a file; `pairs`: who can send to whom."""

    text: str
    sides: tuple[int, ...]
    pairs: list[tuple[int, int]]
    named: bool = False  # ranks have coordinates
    wraps: bool = False

    @property
    def ranks(self) -> int:
        return math.prod(self.sides)

    def at(self, rank: int) -> tuple[int, ...]:
        return tuple(int(i) for i in _unravel(rank, self.sides))

    def place(self, rank: int) -> str:
        return f"[{', '.join(map(str, self.at(rank)))}]" if self.named else str(rank)

    def near(self, rank: int) -> list[int]:
        return [b for a, b in self.pairs if a == rank]


@dataclass
class File:
    """`files`: others that it uses. `features`: what is in it, to count."""

    text: str
    features: set[str] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)


def schedule(seed: int) -> File:
    """The file of a seed."""
    rng = random.Random(seed)
    maker = rng.choices((planned, put_together, multiplied), (8, 3, 1))[0]
    return maker(rng)


def _unravel(rank: int, sides: tuple[int, ...]) -> tuple[int, ...]:
    place = []
    for side in reversed(sides):
        place.insert(0, rank % side)
        rank //= side
    return tuple(place)


# -- links


def links(rng: random.Random) -> Links:
    kind = rng.choice(("ring", "line", "mesh", "torus", "links", "routed", "twisted"))
    if kind in ("ring", "line", "routed"):
        n = rng.randint(2, 5)
        pairs = [(a, b) for a in range(n) for b in range(n) if _beside(a, b, n, kind != "line")]
        if kind == "routed":
            pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
            return Links(f"{{ring: {n}, routed: true}}", (n,), pairs, wraps=True)
        return Links(f"{{{kind}: {n}}}", (n,), pairs, wraps=kind == "ring")
    if kind == "links":
        n = rng.randint(2, 5)
        ends = [(rng.randrange(k), k) for k in range(1, n)]
        ends += [p for p in itertools.combinations(range(n), 2) if p not in ends and rng.random() < 0.3]
        text = ", ".join(f"[{a}, {b}]" for a, b in ends)
        return Links(f"{{links: [{text}]}}", (n,), [*ends, *((b, a) for a, b in ends)])
    sides = rng.choice(((2, 2), (2, 3), (3, 2), (2, 2, 2) if rng.random() < 0.2 else (2, 2)))
    wraps = kind != "mesh"
    ranks = math.prod(sides)
    pairs = []
    for a, b in itertools.permutations(range(ranks), 2):
        hops = [(x, y, s) for x, y, s in zip(_unravel(a, sides), _unravel(b, sides), sides, strict=True) if x != y]
        if len(hops) == 1 and _beside(hops[0][0], hops[0][1], hops[0][2], wraps):
            pairs.append((a, b))
    if kind == "twisted" and len(sides) == 2:  # once around along x is one further along y
        pairs = [p for p in pairs if _unravel(p[0], sides)[0] == _unravel(p[1], sides)[0]]
        for a in range(ranks):
            x, y = _unravel(a, sides)
            for hop in (1, -1):
                turns, there = divmod(x + hop, sides[0])
                b = there * sides[1] + (y + turns) % sides[1]
                if a != b and (a, b) not in pairs:
                    pairs.append((a, b))
        return Links(f"{{torus: [{sides[0]}, {sides[1]}], twist: {{x: [0, 1]}}}}", sides, pairs, named=True, wraps=True)
    name = "torus" if wraps else "mesh"
    return Links(f"{{{name}: [{', '.join(map(str, sides))}]}}", sides, pairs, named=True, wraps=wraps)


def _beside(a: int, b: int, n: int, wraps: bool) -> bool:
    return abs(a - b) == 1 or (wraps and a != b and abs(a - b) == n - 1)


# -- plans


KINDS = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)


def tree(rng: random.Random, net: Links, root: int) -> list[tuple[int, int]]:
    """Edges from a root to all, each after that to its parent."""
    reached, edges = [root], []
    while len(reached) < net.ranks:
        a, b = rng.choice([(a, b) for a, b in net.pairs if a in reached and b not in reached])
        reached.append(b)
        edges.append((a, b))
    return edges


def pruned(edges: list[tuple[int, int]], targets: set[int]) -> list[tuple[int, int]]:
    """Those that lead to a target."""
    wanted, kept = set(targets), []
    for a, b in reversed(edges):
        if b in wanted:
            wanted.add(a)
            kept.insert(0, (a, b))
    return kept


def spread(rng: random.Random, edges: list[tuple[int, int]], chunk: Chunk, start: int) -> Iterator[tuple[int, Move]]:
    """Copies along edges, as early as they can be or a little later."""
    ready: dict[int, int] = {}
    for a, b in edges:
        when = ready.get(a, start) + (rng.randint(0, 2) if rng.random() < 0.3 else 0)
        ready[b] = when + 1
        yield when, Move(a, b, chunk)


def collect(rng: random.Random, edges: list[tuple[int, int]], chunk: Chunk) -> tuple[list[tuple[int, Move]], int]:
    """Sums along edges, leaves first; when the root has all."""
    ready: dict[int, int] = {}
    moves = []
    for parent, child in reversed(edges):
        when = ready.get(child, 0) + (rng.randint(0, 2) if rng.random() < 0.3 else 0)
        ready[parent] = max(ready.get(parent, 0), when + 1)
        moves.append((when, Move(child, parent, chunk, "reduce")))
    return moves, ready.get(edges[0][0] if edges else 0, 0)


@dataclass
class Plan:
    kind: str
    heading: str  # of the collective, as in a file
    net: Links
    dims: tuple[int, ...]
    steps: list[list[Move]]


def plan(rng: random.Random) -> Plan:
    net, kind = links(rng), rng.choice(KINDS)
    n = net.ranks
    root = rng.randrange(n)
    by_place = net.named and rng.random() < 0.5
    owners = net.sides if by_place else (n,)
    parts = (rng.randint(1, 3),) if rng.random() < 0.6 else ()
    permutation = rng.sample(range(n), n) if kind == "permute" else []
    owned = {"all_to_all": 2, "all_reduce": 0, "broadcast": 0, "reduce": 0}.get(kind, 1)
    if kind == "all_reduce" and rng.random() < 0.5:
        owned = 1
    dims = owners * owned + parts or (rng.randint(1, 3),)

    def owner(chunk: Chunk, which: int = 0) -> int:
        place, number = chunk[which * len(owners) : (which + 1) * len(owners)], 0
        for index, side in zip(place, owners, strict=True):
            number = number * side + index
        return number

    timed: list[tuple[int, Move]] = []
    for chunk in itertools.product(*map(range, dims)):
        start = rng.randint(0, 2)
        everyone = set(range(n))
        match kind:
            case "all_gather":
                timed += spread(rng, tree(rng, net, owner(chunk)), chunk, start)
            case "broadcast":
                timed += spread(rng, tree(rng, net, root), chunk, start)
            case "scatter":
                timed += spread(rng, pruned(tree(rng, net, root), {owner(chunk)}), chunk, start)
            case "gather":
                timed += spread(rng, pruned(tree(rng, net, owner(chunk)), {root}), chunk, start)
            case "all_to_all":
                timed += spread(rng, pruned(tree(rng, net, owner(chunk)), {owner(chunk, 1)}), chunk, start)
            case "permute":
                timed += spread(rng, pruned(tree(rng, net, owner(chunk)), {permutation[owner(chunk)]}), chunk, start)
            case "reduce_scatter" | "reduce":
                timed += collect(rng, tree(rng, net, owner(chunk) if kind == "reduce_scatter" else root), chunk)[0]
            case "all_reduce":
                middle = rng.choice(sorted(everyone))
                moves, end = collect(rng, tree(rng, net, middle), chunk)
                timed += [*moves, *spread(rng, tree(rng, net, middle), chunk, end)]
    steps: list[list[Move]] = [[] for _ in range(max((when for when, _ in timed), default=-1) + 1)]
    for when, move in timed:
        steps[when].append(move)
    heading = {
        "permute": f"{{permute: {_looked_up('to', 'r')}}}",
        **{name: f"{{{name}: {root}}}" for name in ("broadcast", "reduce", "gather", "scatter")},
    }.get(kind, kind)
    if kind == "permute":
        heading = "{permute: 'moved[r]'}\ntables: {moved: " + str(permutation) + ", "
    return Plan(kind, heading, net, dims, [step for step in steps if step])


def _looked_up(table: str, index: str) -> str:
    return f"{table}[{index}]"


def altered(rng: random.Random, given: Plan) -> Plan:
    """One move is another, or missing, or in another step."""
    steps = [list(step) for step in given.steps]
    if not steps:
        return given
    number = rng.randrange(len(steps))
    which = rng.randrange(len(steps[number]))
    move = steps[number][which]
    match rng.randrange(5):
        case 0:
            del steps[number][which]
        case 1:
            side = rng.randrange(len(given.dims))
            index = list(move.chunk)
            index[side] = rng.randrange(given.dims[side])
            steps[number][which] = replace(move, chunk=tuple(index))
        case 2:
            steps[number][which] = replace(move, receiver=rng.choice(given.net.near(move.sender)))
        case 3:
            steps[number][which] = replace(move, op="copy" if move.op == "reduce" else "reduce")
        case _:
            other = rng.randrange(len(steps))
            steps[number], steps[other] = steps[other], steps[number]
    return replace(given, steps=[step for step in steps if step])


# -- how a plan is written down


def planned(rng: random.Random) -> File:
    given = plan(rng)
    wrong = rng.random() < 0.3
    if wrong:
        given = altered(rng, given)
    tables: dict[str, list[int]] = {}
    lines: list[str] = []
    features = {given.kind, given.net.text.split(":")[0].strip("{")} | ({"altered"} if wrong else set())
    if given.steps and all(len(step) <= 3 for step in given.steps) and rng.random() < 0.3:
        features.add("tables in a loop")
        lines += _in_a_loop(rng, given, tables)
    else:
        for step in given.steps:
            style = rng.choice(STYLES)
            features.add(style.__name__)
            sends = style(rng, given, step, tables)
            if rng.random() < 0.1 and len(sends) > 1:  # a loop around one step
                lines += [f"  - for: only{len(lines)} in 0 .. 0", "    do:", *(f"      - {send}" for send in sends)]
            else:
                lines += ["  - step:", *(f"      - {send}" for send in sends)]
    if not lines:
        lines = ["  []"]
    head, _, started = given.heading.partition("\ntables: {")
    known = started + ", ".join(f"{name}: {table}" for name, table in tables.items())
    text = [
        "schedule: drawn",
        f"collective: {head}",
        f"topology: {given.net.text}",
        *([f"tables: {{{known.rstrip(', ')}}}"] if known else []),
        f"chunks: [{', '.join(map(str, given.dims))}]",
        *lowering(rng, features),
        "steps:" if lines != ["  []"] else "steps: []",
        *([] if lines == ["  []"] else lines),
    ]
    return File("\n".join(text) + "\n", features)


def lowering(rng: random.Random, features: set[str]) -> list[str]:
    if rng.random() > 0.15:
        return []
    features.add("lowering")
    wishes = {
        "slots": rng.randint(1, 4),
        "semaphores": rng.randint(1, 4),
        "memory": rng.choice(("vmem", "hbm")),
        "unroll": rng.choice(("true", "false")),
    }
    asked = rng.sample(sorted(wishes), rng.randint(1, 2))
    return [f"lowering: {{{', '.join(f'{name}: {wishes[name]}' for name in asked)}}}"]


def _op(op: str) -> str:
    return ", op: reduce" if op == "reduce" else ""


def _send(chunk: str, to: str, op: str, more: str = "") -> str:
    place = to if to.startswith("[") else f"'{to.strip(chr(39))}'"
    return f"{{send: '{chunk}', to: {place}{more}{_op(op)}}}"


def _name(chunk: Chunk) -> str:
    return f"chunk[{', '.join(map(str, chunk))}]"


def pinned(rng: random.Random, given: Plan, step: list[Move], tables: dict[str, list[int]]) -> list[str]:
    """`from:` one rank `to:` another."""
    place = given.net.place
    return [_send(_name(m.chunk), place(m.receiver), m.op, f", from: {place(m.sender)}") for m in step]


def sliced(rng: random.Random, given: Plan, step: list[Move], tables: dict[str, list[int]]) -> list[str]:
    """Runs of chunks between two ranks as one slice."""
    place, found = given.net.place, []
    for (sender, receiver, op), runs in _runs(step):
        for first, count in runs:
            *outer, last = first
            index = [*map(str, outer), f"{last}:{last + count}"]
            if (last, count) == (0, given.dims[-1]):
                index[-1] = rng.choice((":", index[-1]))
            chunk = f"chunk[{', '.join(index)}]"
            found.append(_send(chunk, place(receiver), op, f", from: {place(sender)}"))
    return found


def counted(rng: random.Random, given: Plan, step: list[Move], tables: dict[str, list[int]]) -> list[str]:
    """Runs of chunks by `each`."""
    place, found = given.net.place, []
    for (sender, receiver, op), runs in _runs(step):
        for first, count in runs:
            *outer, last = first
            chunk = f"chunk[{', '.join([*map(str, outer), 'k'])}]"
            each = f", each: k in {last} .. {last + count - 1}, from: {place(sender)}"
            found.append(_send(chunk, place(receiver), op, each))
    return found


def guarded(rng: random.Random, given: Plan, step: list[Move], tables: dict[str, list[int]]) -> list[str]:
    """All ranks, of which a condition lets one through."""
    found = []
    for move in step:
        at = given.net.at(move.sender)
        names = ("x", "y", "z") if given.net.named else ("r",)
        conditions = [f"{name} == {value}" for name, value in zip(names, at, strict=False)]
        when = f", when: [{', '.join(conditions)}]"
        found.append(_send(_name(move.chunk), given.net.place(move.receiver), move.op, when))
    return found


def by_rank(rng: random.Random, given: Plan, step: list[Move], tables: dict[str, list[int]]) -> list[str]:
    """One statement for all ranks: slices whose ends, and peers, are looked up by rank; their length may be nothing."""
    if given.net.named:
        return sliced(rng, given, step, tables)
    classes: list[dict[int, tuple[Move, int]]] = []
    for (_, _, op), runs in _runs(step):
        for first, count in runs:
            move = next(
                m for m in step if m.chunk == first and m.op == op and (m.sender, m.receiver) == _ends(step, first, op)
            )
            home = next((c for c in classes if move.sender not in c and next(iter(c.values()))[0].op == op), None)
            if home is None:
                classes.append(home := {})
            home[move.sender] = (move, count)
    ranks, found = range(given.net.ranks), []
    for members in classes:
        number = len(tables)

        op = next(iter(members.values()))[0].op
        known = [members.get(rank) for rank in ranks]
        columns = {f"i{d}_{number}": [m[0].chunk[d] if m else 0 for m in known] for d in range(len(given.dims) - 1)}
        index = [f"{name}[r]" for name in columns]
        columns[f"low{number}"] = [m[0].chunk[-1] if m else 0 for m in known]
        columns[f"high{number}"] = [m[0].chunk[-1] + m[1] if m else 0 for m in known]
        columns[f"to{number}"] = [m[0].receiver if m else -1 for m in known]
        tables.update(columns)
        low, high, to = f"low{number}[r]", f"high{number}[r]", f"to{number}[r]"
        when = f"{to} >= 0" if rng.random() < 0.5 else f"{low} < {high}"
        found.append(_send(f"chunk[{', '.join([*index, f'{low}:{high}'])}]", to, op, f", when: '{when}'"))
    return found


def _ends(step: list[Move], chunk: Chunk, op: str) -> tuple[int, int]:
    move = next(m for m in step if m.chunk == chunk and m.op == op)
    return move.sender, move.receiver


def shifted(rng: random.Random, given: Plan, step: list[Move], tables: dict[str, list[int]]) -> list[str]:
    """On a ring: `to: r + hop`, chunk indices as the sender's distance where there is an owner."""
    n = given.net.ranks
    if given.net.named or not given.net.wraps:
        return pinned(rng, given, step, tables)
    found = []
    for move in step:
        hop = (move.receiver - move.sender + 1) % n - 1
        index = [str(i) for i in move.chunk]
        if given.dims[0] == n:
            index[0] = f"(r + {(move.chunk[0] - move.sender) % n}) % {n}"
        to = f"r + {hop}" if hop >= 0 else f"r - {-hop}"
        found.append(_send(f"chunk[{', '.join(index)}]", to, move.op, f", when: r == {move.sender}"))
    return found


STYLES = (pinned, sliced, counted, guarded, by_rank, shifted)


def _runs(step: list[Move]) -> Iterator[tuple[tuple[int, int, str], list[tuple[Chunk, int]]]]:
    """By sender, receiver and operation: first chunks and how many follow in the last dimension."""
    groups: dict[tuple[int, int, str], list[Chunk]] = {}
    for move in step:
        groups.setdefault((move.sender, move.receiver, move.op), []).append(move.chunk)
    for key, chunks in groups.items():
        runs: list[tuple[Chunk, int]] = []
        for chunk in sorted(chunks):
            if runs and runs[-1][0][:-1] == chunk[:-1] and runs[-1][0][-1] + runs[-1][1] == chunk[-1]:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((chunk, 1))
        yield key, runs


def _in_a_loop(rng: random.Random, given: Plan, tables: dict[str, list[int]]) -> list[str]:
    """All steps as one loop that looks up what is sent; a step with less has -1 as its sender's number."""
    most, lines = max(map(len, given.steps)), [f"  - for: s in 0 .. {len(given.steps) - 1}", "    do:"]
    names = ("x", "y", "z")[: len(given.net.sides)] if given.net.named else ("r",)
    for slot in range(most):
        moves = [step[slot] if slot < len(step) else None for step in given.steps]
        for op in sorted({move.op for move in moves if move}):
            tag = f"{slot}{op[0]}"
            mine = [move if move and move.op == op else None for move in moves]
            first = next(move for move in mine if move)
            known = [move or first for move in mine]
            tables[f"on{tag}"] = [int(move is not None) for move in mine]
            for d in range(len(given.dims)):
                tables[f"c{d}_{tag}"] = [move.chunk[d] for move in known]
            for d, name in enumerate(names):
                tables[f"f{name}{tag}"] = [given.net.at(move.sender)[d] for move in known]
                tables[f"t{name}{tag}"] = [given.net.at(move.receiver)[d] for move in known]
            chunk = f"chunk[{', '.join(f'c{d}_{tag}[s]' for d in range(len(given.dims)))}]"
            to = [f"t{name}{tag}[s]" for name in names]
            when = [f"on{tag}[s] == 1", *(f"{name} == f{name}{tag}[s]" for name in names)]
            quoted = ", ".join(f"'{each}'" for each in to)
            place = f"[{quoted}]" if given.net.named else to[0]
            conditions = ", ".join(f"'{each}'" for each in when)
            lines.append("      - " + _send(chunk, place, op, f", when: [{conditions}]"))
    return lines


# -- files that put others together


RING_GATHERS = ("all_gather", "all_gather_bidirectional")
RING_SCATTERS = ("reduce_scatter", "reduce_scatter_bidirectional")


def put_together(rng: random.Random) -> File:
    """`use`, `on`, `beside`, `with`, `synth`, of shipped schedules; now and then one too many, or another size."""
    n = rng.randint(2, 6)
    features: set[str] = set()
    match rng.randrange(6):
        case 0:  # two ways to do one thing on two halves
            features |= {"beside", "on"}
            which = rng.choice(("gather", "scatter"))
            names = [
                rng.choice(("all_gather", "backwards") if which == "gather" else ("reduce_scatter",)) for _ in "ab"
            ]
            collective = "all_gather" if which == "gather" else "reduce_scatter"
            uses = [f"{{use: {name}, on: 'chunk[:, {k}]'}}" for k, name in enumerate(names)]
            if rng.random() < 0.2:
                uses[1] = uses[0]
                features.add("altered")
            body = [f"  - beside: [{', '.join(uses)}]"] if rng.random() < 0.6 else [f"  - {use}" for use in uses]
            text = _file(collective, f"{{ring: {n}}}", f"[{n}, 2]", body, rng, features, params=f"{{N: {n}}}")
            return File(text, features, {"backwards.yaml": BACKWARDS})
        case 1:  # one after the other
            features.add("use")
            first, second = rng.choice(RING_SCATTERS), rng.choice(RING_GATHERS)
            halves = "bidirectional" in first or "bidirectional" in second
            dims = f"[{n}, {2 - n % 2}]" if halves else f"[{n}]"
            steps = [f"  - use: {name}" for name in (first, second)]
            if rng.random() < 0.2:
                rng.shuffle(steps)
                features.add("altered")
            if ("bidirectional" in first) != ("bidirectional" in second) and halves:
                plain = [("bidirectional" in step) for step in steps]
                steps = [s if two else f"{s}\n    on: 'chunk[:, {0}]'" for s, two in zip(steps, plain, strict=True)]
            return File(
                _file("all_reduce", f"{{ring: {n}}}", dims, steps, rng, features, params=f"{{N: {n}}}"), features
            )
        case 2:  # made by the compiler
            features.add("synth")
            net, dims = rng.choice(
                (
                    (f"{{ring: {n}}}", f"[{n}, {rng.randint(1, 2)}]"),
                    ("{torus: [2, 3]}", "[2, 3, 4]"),
                    ("{mesh: [2, 2]}", "[2, 2, 2]"),
                    ("{mesh: [2, 3]}", "[2, 3]"),
                    ("{links: [[0, 1], [1, 2], [0, 2], [2, 3]]}", "[4]"),
                    (f"{{line: {n}}}", f"[{n}]"),
                )
            )
            kind = rng.choice(("all_gather", "reduce_scatter", "all_reduce"))
            return File(_file(kind, net, dims, [f"  - synth: {kind}"], rng, features), features)
        case 3:  # parameters of another name
            features |= {"use", "with"}
            steps = [f"  - use: {rng.choice(('all_gather', 'reduce_scatter'))}\n    with: {{N: M}}"]
            kind = rng.choice(("all_gather", "reduce_scatter"))
            return File(_file(kind, "{ring: M}", "[M]", steps, rng, features, params=f"{{M: {n}}}"), features)
        case 4:  # a plain loop that runs too far or not far enough
            features |= {"for", "altered"}
            last, by = rng.choice(("N - 2", "N - 1", "N - 3")), rng.choice(("r - s", "r - s - 1", "r + s"))
            op = rng.choice(("", ", op: reduce"))
            steps = [f"  - for: s in 0 .. {last}", "    do:", f"      - {{send: 'chunk[({by}) % N]', to: r + 1{op}}}"]
            kind = rng.choice(("all_gather", "reduce_scatter", "all_reduce"))
            return File(_file(kind, f"{{ring: {'N'}}}", "[N]", steps, rng, features, params=f"{{N: {n}}}"), features)
        case _:  # on the axes of a torus
            features |= {"use", "on", "torus"}
            x, y = rng.randint(2, 3), rng.randint(2, 3)
            steps = [
                "  - for: s in 0 .. X - 2\n    do:\n      - {send: 'chunk[(x - s) % X, y]', to: [x + 1, y]}",
                "  - for: s in 0 .. Y - 2\n    do:\n      - {send: 'chunk[:, (y - s) % Y]', to: [x, y + 1]}",
            ]
            if rng.random() < 0.3:
                steps.reverse()
                features.add("altered")
            params = f"{{X: {x}, Y: {y}}}"
            return File(_file("all_gather", "{torus: [X, Y]}", "[X, Y]", steps, rng, features, params=params), features)


BACKWARDS = """schedule: backwards
collective: all_gather
topology: {ring: N}
params: {N: 4}
chunks: [N]
steps:
  - for: s in 0 .. N - 2
    do:
      - {send: 'chunk[(r + s) % N]', to: r - 1}
"""


def _file(
    collective: str, net: str, dims: str, steps: list[str], rng: random.Random, features: set[str], params: str = ""
) -> str:
    lines = [
        "schedule: drawn",
        f"collective: {collective}",
        f"topology: {net}",
        *([f"params: {params}"] if params else []),
        f"chunks: {dims}",
        *lowering(rng, features),
        "steps:",
        *steps,
    ]
    return "\n".join(lines) + "\n"


def multiplied(rng: random.Random) -> File:
    """`compute:` and chains."""
    n = rng.choice((2, 3, 4))
    if rng.random() < 0.3:
        kind = rng.choice(("", "_features"))
        ways = [rng.choice(("", "_bidirectional")) for _ in "ab"]
        if rng.random() < 0.7:
            ways[1] = ways[0]
        epilogue = rng.choice(("", "\n    epilogue: gelu", "\n    epilogue: relu"))
        whole = "activation: whole\n" if rng.random() < 0.3 else ""
        text = (
            f"schedule: drawn\ntopology: {{ring: N}}\nparams: {{N: {n}}}\n{whole}chain:\n"
            f"  - use: all_gather_matmul{kind}{ways[0]}{epilogue}\n  - use: matmul_reduce_scatter{kind}{ways[1]}\n"
        )
        return File(text, {"chain"})
    features = {"compute"}
    gathers = rng.random() < 0.5
    name = rng.choice(RING_GATHERS if gathers else RING_SCATTERS)
    dims = f"[{n}, {2 - n % 2}]" if "bidirectional" in name else f"[{n}]"
    moment = rng.choice(("on arrival", "before sending")) if rng.random() < 0.2 else ""
    moment = moment or ("on arrival" if gathers else "before sending")
    shard = rng.choice((", shard: features", ", shard: rows", ""))
    overlap = rng.choice((", overlap: none", "", ""))
    text = _file(
        "all_gather" if gathers else "reduce_scatter", f"{{ring: {n}}}", dims, [f"  - use: {name}"], rng, features
    )
    text = text.replace("steps:\n", f"compute: {{multiply: {moment}{shard}{overlap}}}\nsteps:\n")
    if f"{{ring: {n}}}" in text:
        text = text.replace(f"{{ring: {n}}}", f"{{ring: N}}\nparams: {{N: {n}}}")
    return File(text, features)
