"""Is at the end what is promised? The findings of one layout: bounds, races, and values that are wrong.

RS814 outside of a buffer; RS817 races; RS819 a wrong result; RS821 the operand of a reduction is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ringsched.diagnostics import Diagnostic, Label
from ringsched.importers.algorithm import ROOTED, Slot, Step
from ringsched.importers.layout import Atom, Layout, Owed
from ringsched.importers.network import Event, Network
from ringsched.importers.races import races
from ringsched.importers.values import UNWRITTEN, Arrival, Held, Start, Sum, Value, counted, follow, plain

MAX_FINDINGS = 10
MAX_TERMS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`held`: None where accesses out of bounds or races leave values without a meaning."""

    layout: Layout
    findings: tuple[Diagnostic, ...]
    held: Held | None


def outcome(network: Network, layout: Layout, order: tuple[Event, ...]) -> Outcome:
    """All but the promise, which `broken` looks at."""
    found = bounds(network, layout) or races(network, layout, order)
    return Outcome(layout=layout, findings=found, held=None if found else follow(network, layout, order))


def bounds(network: Network, layout: Layout) -> tuple[Diagnostic, ...]:
    """RS814: ranges that reach out of their buffers."""
    found = []
    for block in network.blocks:
        for joined in block.steps:
            step = joined.step
            target = step.written()
            for slot in (*step.read(), *([target] if target else [])):
                ends = {0, step.count - 1}
                if any(layout.cell(block.rank, slot, ahead) is None for ahead in ends):
                    found.append(_outside(layout, block.rank, step, slot))
                    break
    return tuple(found[:MAX_FINDINGS])


def _outside(layout: Layout, rank: int, step: Step, slot: Slot) -> Diagnostic:
    size = layout.limit(rank, slot.buffer)
    which = {"i": "input", "o": "output", "s": "scratch"}[slot.buffer]
    range_ = str(slot) if step.count == 1 else f"{slot.buffer}[{slot.offset}:{slot.offset + step.count}]"
    word = "source" if slot == step.source and step.type != "r" else "destination"
    return Diagnostic(
        code="RS814",
        message=f"{range_} is outside of the {which} buffer of rank {rank}",
        primary=Label(span=step.span, text=f"its {word}"),
        notes=(f"that buffer has {size} chunks: {slot.buffer}[0:{size}]",) if size else (f"it has no {which} buffer",),
        help=f"see {which[0]}_chunks of the gpu, and nchunksperloop, which counts the chunks of the whole collective",
    )


def broken(layout: Layout, held: Held) -> tuple[Owed, ...]:
    """What is promised and not kept."""
    return tuple(owed for owed in layout.promised() if _there(layout, held, owed) != plain(owed.atoms))


def _there(layout: Layout, held: Held, owed: Owed) -> Value:
    node = held.cells.get((owed.rank, layout.place(owed.rank, "o", owed.offset)))
    return frozenset([(Atom(UNWRITTEN, -1), 0)]) if node is None else held.nodes[node].value


def wrong(network: Network, layout: Layout, held: Held, promises: tuple[Owed, ...]) -> Diagnostic:
    """RS819: the first promise that is not kept, and how many others."""
    owed = promises[0]
    key = (owed.rank, layout.place(owed.rank, "o", owed.offset))
    value = _there(layout, held, owed)
    have, want = counted(value), counted(plain(owed.atoms))
    facts = [f"there: {_terms(layout, have.elements())}", f"promised: {_terms(layout, want.elements())}"]
    facts += [f"{word}: {_terms(layout, atoms)}" for word, atoms in _difference(have, want) if atoms]
    node = held.cells.get(key)
    writer = held.writer.get(key)
    read = next((held.first_read[n] for n in _origins(held, node) if n in held.first_read), None)
    secondary = []
    if read is not None:
        secondary.append(Label(span=network.at(read).step.span, text="reads memory that nothing has written"))
    if len(promises) > 1:
        ranks = sorted({p.rank for p in promises})
        facts.append(f"{len(promises)} chunks are wrong, at ranks {', '.join(map(str, ranks[:MAX_TERMS]))}")
    span = layout.algorithm.gpus[owed.rank].span if writer is None else network.at(writer).step.span
    slot = Slot(buffer="o", offset=owed.offset)
    root = f" with root {layout.root}" if layout.algorithm.kind in ROOTED else ""
    return Diagnostic(
        code="RS819",
        message=f"{slot} of rank {owed.rank} is not what {layout.algorithm.collective}{root} promises",
        primary=Label(span=span, text="nothing writes it" if writer is None else "the last to write it"),
        secondary=tuple(secondary),
        notes=tuple(facts),
    )


def _difference(have: Iterable[Atom], want: Iterable[Atom]) -> list[tuple[str, list[Atom]]]:
    a, b = Counter(have), Counter(want)
    return [
        ("missing", sorted((b - a).elements())),
        ("too often", [atom for atom in sorted((a - b).elements()) if atom in b]),
    ]


def _origins(held: Held, node: int | None) -> list[int]:
    """The nodes that a node is made of, itself among them."""
    seen: dict[int, None] = {}
    waiting = [] if node is None else [node]
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen[number] = None
        match held.nodes[number]:
            case Arrival(source=source):
                waiting.append(source)
            case Sum(left=left, right=right):
                waiting += [left, right]
            case Start():
                pass
    return list(seen)


def _terms(layout: Layout, atoms: Iterable[Atom]) -> str:
    """`i[3] of ranks 0, 1, 1`, for each chunk."""
    by_index: dict[int, list[int]] = {}
    garbage = False
    for atom in sorted(atoms):
        if atom.rank == UNWRITTEN:
            garbage = True
        else:
            by_index.setdefault(atom.piece, []).append(atom.rank)
    parts = []
    for index, ranks in by_index.items():
        if len(ranks) > 1 and ranks == list(range(layout.algorithm.ranks)):
            parts.append(f"i[{index}] of all {len(ranks)} ranks")
        else:
            shown = ", ".join(map(str, ranks[:MAX_TERMS])) + (", …" if len(ranks) > MAX_TERMS else "")
            parts.append(f"i[{index}] of rank{'s' if len(ranks) > 1 else ''} {shown}")
    if len(parts) > MAX_TERMS:
        parts[MAX_TERMS:] = [f"and {len(parts) - MAX_TERMS} more"]
    return " + ".join([*parts, *(["memory that nothing has written"] if garbage else [])]) or "nothing"


def lost_operands(network: Network, layout: Layout, held: Held) -> tuple[Diagnostic, ...]:
    """RS821: reductions that replace input which nothing has read, in place of adding to it.

    Of a collective whose promise is not known that much can be said: the local operand of `rrc` is the source, and a
    writer who puts the sender's slot there means the destination.
    """
    found = []
    for (rank, cell), event in held.unread.items():
        step = network.at(event).step
        if step.type not in ("rrc", "rrcs"):
            continue
        ahead = next(a for a in range(step.count) if layout.cell(rank, step.target, a) == cell)
        target = Slot(buffer=step.target.buffer, offset=step.target.offset + ahead)
        source = Slot(buffer=step.source.buffer, offset=step.source.offset + ahead)
        found.append(
            Diagnostic(
                code="RS821",
                message=f"{step.type} loses {target} of rank {rank}, which nothing has read: the sum is another one",
                primary=Label(span=step.span, text=f"{target} = what arrives + {source}"),
                notes=("the local operand of a reduction is its source, not its destination",),
                help=f'to add to {target}, write srcbuf="{target.buffer}" srcoff="{step.target.offset}"',
            )
        )
    return tuple(found[:MAX_FINDINGS])
