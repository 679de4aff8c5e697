"""The compiler, one line a stage.

    load → flatten → data flow → lower → expand → hazards → values → generate

A chain goes through the first seven for each of its links, and for the gather of its result where that is to be whole;
their Programs become one, and

    fit → join → expand → hazards → values → generate

The portable back end needs no Program:

    load → flatten → data flow → exchange → module       a chain: for each of its links

Each stage takes what the one before made. A stage that finds the user's input at fault raises `DiagnosticError`; a
Program of our own making that is not right raises `InternalError`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from ringsched.codegen.module import Kernel, chain_text, module_text
from ringsched.codegen.outside import function_name, names_of, spelt, with_names_spelt
from ringsched.diagnostics import Diagnostic, DiagnosticError, InternalError, Label
from ringsched.lower.chain import PROVEN_LAYERS, chain_program, decisions, finishing
from ringsched.lower.lanes import find_lanes
from ringsched.lower.links import check_links
from ringsched.lower.lower import Lowered, lower
from ringsched.lower.transpose import transpose
from ringsched.program.expand import Expansion, expand
from ringsched.program.program import Program
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.loader import load, set_overlap, set_parameters, shipped_directory, shipped_names
from ringsched.schedule.schedule import Chain, CollectiveKind, Layers, Link, Lowering, Multiply, Schedule
from ringsched.topology import Topology, topology_of
from ringsched.verify.chain_values import wrong_ranks
from ringsched.verify.dataflow import findings_of, is_symmetric, smallest_failing
from ringsched.verify.hazard_diagnostics import diagnose
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import NotComparable, WrongValue, check_values
from ringsched.xla.constants import named_sides
from ringsched.xla.exchange import Exchange
from ringsched.xla.lower import exchange_of

MOST_RANKS = 16  # of a chain whose joined Program is executed with numbers; its links are proven at any size
TESTED_WITH = "jax 0.10.2"  # what generated modules were tested with
CALLS = 2  # in a row: shows whether the barrier is strong enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A schedule whose data flow, and a Program whose every interleaving, is right at these parameters."""

    schedule: Schedule
    flat: FlatSchedule
    symmetric: bool
    lowered: Lowered

    @property
    def topology(self) -> Topology:
        return self.flat.topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenChain:
    """A chain whose links are proven, and whose Program for all layers is free of races and deadlock.

    `lowered`: for `layers` of them. `closing`: gathers the result, None: ranks keep their shards.
    """

    schedule: Chain
    links: tuple[Proven, ...]
    closing: Proven | None
    lowered: Lowered

    @property
    def topology(self) -> Topology:
        return self.links[0].topology

    @property
    def layers(self) -> Layers:
        return layers_of(self.schedule)

    def program(self, layers: int | None = None) -> Program:
        """See `chain_program`."""
        lowered = [link.lowered for link in self.links]
        closing = None if self.closing is None else self.closing.lowered
        return chain_program(self.schedule.name, lowered, layers, closing=closing)


def layers_of(chain: Chain) -> Layers:
    """What a layer computes."""
    return Layers(
        shard=_computes(chain)[0].shard,
        moments=tuple(compute.moment for compute in _computes(chain)),
        epilogues=tuple(link.epilogue for link in chain.links),
        whole=chain.activation == "whole",
    )


def _computes(chain: Chain) -> tuple[Multiply, ...]:
    return tuple(c for c in (link.schedule.compute for link in chain.links) if c is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """`source`: the kernel module. `backward`: the proven transpose, None where gradients go through `jax.lax`."""

    proven: Proven
    backward: Proven | None
    source: str

    @property
    def function(self) -> str:
        """What the module calls the schedule's function."""
        return function_name(self.source, self.proven.schedule.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledChain:
    """`source`: the kernel module."""

    proven: ProvenChain
    source: str

    @property
    def function(self) -> str:
        """What the module calls the chain's function."""
        return function_name(self.source, self.proven.schedule.name)


AnyCompiled = Compiled | CompiledChain


@dataclass(frozen=True, slots=True, kw_only=True)
class Portable:
    """A schedule whose data flow is right, as a module of `jax.lax` calls.

    `flat`: of a chain, that of its last link, whose promise the result keeps.
    """

    schedule: Schedule | Chain
    flat: FlatSchedule
    source: str

    @property
    def topology(self) -> Topology:
        return self.flat.topology

    @property
    def function(self) -> str:
        """What the module calls the schedule's function."""
        return function_name(self.source, self.schedule.name)


def open_schedule(
    path: str | Path, values: dict[str, int] | None = None, overlap: str | None = None
) -> Schedule | Chain:
    """Load a file, or a shipped schedule by its name, and set parameters. Raises RS1xx, RS2xx.

    overlap: takes the place of that in the file.
    """
    name = str(path)
    if name in shipped_names() and not Path(name).exists():
        path = shipped_directory() / f"{name}.yaml"
    return set_overlap(set_parameters(load(path), values or {}), overlap)


@overload
def prove(schedule: Schedule) -> Proven: ...
@overload
def prove(schedule: Chain) -> ProvenChain: ...
@overload
def prove(schedule: Schedule | Chain) -> Proven | ProvenChain: ...


def prove(schedule: Schedule | Chain) -> Proven | ProvenChain:
    """All stages up to the last check. Raises RS2xx … RS5xx with the smallest counterexample."""
    return _prove_chain(schedule) if isinstance(schedule, Chain) else _prove(schedule)


def _prove_chain(chain: Chain) -> ProvenChain:
    topology = topology_of(chain, {p.name: p.value for p in chain.parameters})
    links = tuple(_prove(_at(link, chain)) for link in chain.links)
    check_links(chain, topology, [link.flat for link in links])
    whole = chain.activation == "whole"
    closing = _prove(replace(_at(chain.links[0], chain), compute=None)) if whole else None
    lowered = [link.lowered for link in links]
    program = chain_program(chain.name, lowered, closing=None if closing is None else closing.lowered)
    joined = Lowered(program=program, decisions=decisions(chain.links, lowered, whole=whole))
    proven = ProvenChain(schedule=chain, links=links, closing=closing, lowered=joined)
    for layers in PROVEN_LAYERS:
        _check_layers(proven, layers)
    return proven


def _check_layers(proven: ProvenChain, layers: int) -> None:
    """Raises InternalError where the joined Program has a hazard, or computes something else than its links in turn."""
    program = proven.program(layers)
    execution = expand(program).execution
    report = check_hazards(execution, calls=CALLS)
    if not report.ok:
        found = "; ".join(f.message for f in diagnose(report, execution))
        raise InternalError(f"the program of {layers} layers is wrong: {found}")
    if proven.topology.ranks > MOST_RANKS:
        return
    full = expand(program, symmetric=False).execution
    finishes = finishing(len(proven.links), whole=proven.layers.whole)
    wrong = wrong_ranks(program, full, proven.links[0].flat.promise, proven.layers, finishes)
    if wrong:
        raise InternalError(f"the program of {layers} layers computes something else at rank {wrong[0]}")


def _at(link: Link, chain: Chain) -> Schedule:
    """A link's schedule at the parameters of the chain."""
    known = {p.name for p in link.schedule.parameters}
    return set_parameters(link.schedule, {p.name: p.value for p in chain.parameters if p.name in known})


def _prove(schedule: Schedule) -> Proven:
    return _prove_flat(schedule, _right_flow(schedule))


def _right_flow(schedule: Schedule) -> FlatSchedule:
    """A schedule whose data flow is right. Raises RS2xx, RS3xx."""
    try:
        flat = flatten(schedule)
        found = findings_of(flat)
    except DiagnosticError:
        found = ()
        flat = None
    if flat is None or found:
        raise DiagnosticError(smallest_failing(schedule) or found)
    return flat


def _prove_flat(schedule: Schedule, flat: FlatSchedule) -> Proven:
    symmetric = is_symmetric(flat)
    lowered = lower(flat, symmetric=symmetric)
    expansion = expand(lowered.program)
    report = check_hazards(expansion.execution, calls=CALLS)
    if not report.ok:
        findings = diagnose(report, expansion.execution)
        if flat.schedule.lowering != Lowering():
            raise DiagnosticError(_wished(_smallest_hazard(schedule) or findings, flat.schedule.lowering))
        raise InternalError("the lowered program is wrong: " + "; ".join(f.message for f in findings))
    wrong = _values(lowered, expansion, flat)
    if wrong:
        raise InternalError(f"the lowered program computes something else: {wrong[0]}")
    return Proven(schedule=schedule, flat=flat, symmetric=symmetric, lowered=lowered)


_INSTEAD = {
    "slots": "ask for more slots, or leave `slots` out: the compiler takes as many as it needs, or credits",
    "semaphores": "ask for more semaphores, or leave `semaphores` out",
    "barrier": "leave `barrier: none` out: the compiler puts in the barrier that is needed",
}


def _wished(findings: tuple[Diagnostic, ...], wishes: Lowering) -> tuple[Diagnostic, ...]:
    """The first finding of each code, with the wish of `lowering:` that brought it about."""
    spans = [(name, span) for name, span in wishes.spans if name in _INSTEAD]
    first = {f.code: f for f in reversed(findings)}
    asked = tuple(Label(span=span, text="asked for here") for _, span in spans)
    help_ = "; ".join(_INSTEAD[name] for name, _ in spans) or None
    return tuple(
        replace(f, secondary=(*f.secondary, *asked), help=help_ or f.help) for f in findings if first[f.code] is f
    )


def _values(lowered: Lowered, expansion: Expansion, flat: FlatSchedule) -> tuple[WrongValue, ...]:
    try:
        return check_values(expansion, flat.promise, flat.schedule.compute)
    except NotComparable:
        full = expand(lowered.program, symmetric=False)
        return check_values(full, flat.promise, flat.schedule.compute)


def _smallest_hazard(schedule: Schedule) -> tuple[Diagnostic, ...]:
    """The hazards of the smallest number of ranks for which the wishes of `lowering:` fail."""
    names = [p.name for p in schedule.parameters]
    if names != ["N"] or schedule.parameters[0].asked:
        return ()
    for size in range(2, schedule.parameters[0].value):
        try:
            smaller = set_parameters(schedule, {"N": size})
            flat = flatten(smaller)
            if findings_of(flat):
                continue
            expansion = expand(lower(flat, symmetric=is_symmetric(flat)).program)
        except DiagnosticError:
            continue
        report = check_hazards(expansion.execution, calls=CALLS)
        if not report.ok:
            return diagnose(report, expansion.execution)
    return ()


def prove_transpose(proven: Proven) -> Proven | None:
    """The schedule backwards in time, for the gradient; None where it does not exist or is not right."""
    compute = proven.flat.schedule.compute
    if compute is not None and proven.flat.promise.kind == "all_reduce":
        return None
    flat = transpose(find_lanes(proven.flat, symmetric=proven.symmetric))
    if flat is None:
        return None
    try:
        if findings_of(flat):
            return None
        backward = replace(
            flat.schedule, lowering=Lowering(), compute=compute and _opposite(compute, flat.promise.kind)
        )
        return _prove_flat(proven.schedule, replace(flat, schedule=backward))
    except DiagnosticError:
        return None


def _opposite(compute: Multiply, kind: CollectiveKind) -> Multiply:
    """What is multiplied on the way back: what was gathered is summed, and the reverse; what stays, stays."""
    if kind == "none":
        return compute
    return replace(compute, moment="before sending" if compute.moment == "on arrival" else "on arrival")


@overload
def compile_schedule(schedule: Schedule, *, debug: bool = False) -> Compiled: ...
@overload
def compile_schedule(schedule: Chain, *, debug: bool = False) -> CompiledChain: ...
@overload
def compile_schedule(schedule: Schedule | Chain, *, debug: bool = False) -> Compiled | CompiledChain: ...


def compile_schedule(schedule: Schedule | Chain, *, debug: bool = False) -> Compiled | CompiledChain:
    """Prove, and generate the kernel module."""
    if isinstance(schedule, Chain):
        chain = _prove_chain(schedule)
        facts = _facts(chain, None)
        exchanges = _exchanges(schedule, [link.flat for link in chain.links])
        heading = _heading(chain.topology, "Chain of products")
        names = frozenset[str]().union(*(names_of(link.flat) for link in chain.links))
        program = with_names_spelt(chain.lowered.program, names)
        named = replace(schedule, name=spelt(schedule.name))
        source = chain_text(program, named, exchanges, heading=heading, facts=facts, debug=debug)
        return CompiledChain(proven=chain, source=source)
    proven = prove(schedule)
    backward = prove_transpose(proven)
    source = module_text(
        _kernel(proven),
        _kernel(backward) if backward else None,
        _exchange(proven.flat),
        name=spelt(schedule.name),
        heading=_heading(proven.topology, _title(proven.flat)),
        facts=_facts(proven, backward),
        debug=debug,
    )
    return Compiled(proven=proven, backward=backward, source=source)


def compile_portable(schedule: Schedule | Chain) -> Portable:
    """The schedule as `lax.ppermute`, slices, sums and products. Raises RS2xx, RS3xx."""
    facts = [
        *_origin(schedule),
        ("proven", "for these sizes: data flow, and that each message carries what the schedule says"),
    ]
    if isinstance(schedule, Chain):
        return _port_chain(schedule, facts)
    flat = _right_flow(schedule)
    heading = _heading(flat.topology, _title(flat))
    facts.append(("gradient", "by the transfers, backwards"))
    source = module_text(None, None, _exchange(flat), name=spelt(schedule.name), heading=heading, facts=facts)
    return Portable(schedule=schedule, flat=flat, source=source)


def _port_chain(chain: Chain, facts: list[tuple[str, str]]) -> Portable:
    topology = topology_of(chain, {p.name: p.value for p in chain.parameters})
    flats = [_right_flow(_at(link, chain)) for link in chain.links]
    check_links(chain, topology, flats)
    facts.append(("gradient", "by jax.lax" if chain.activation == "whole" else "by jax"))
    heading = _heading(topology, "Chain of products")
    named = replace(chain, name=spelt(chain.name))
    source = chain_text(None, named, _exchanges(chain, flats), heading=heading, facts=facts)
    return Portable(schedule=chain, flat=flats[-1], source=source)


def _exchanges(chain: Chain, flats: Sequence[FlatSchedule]) -> list[Exchange]:
    """Those of a chain's links, whose text may name the parameters of the chain."""
    parameters = {p.name for p in chain.parameters}
    return [_exchange(flat, parameters) for flat in flats]


def _exchange(flat: FlatSchedule, parameters: Collection[str] | None = None) -> Exchange:
    """As it goes into text: the writer's names are spelt so that they cannot be the module's own."""
    own = named_sides(flat.topology).keys() & flat.env.keys()  # both call a side by one name
    names = names_of(flat) - own
    named = None if parameters is None else {spelt(name) if name in names else name for name in parameters}
    return exchange_of(with_names_spelt(flat, names), named)


def _kernel(proven: Proven) -> Kernel:
    memory = proven.flat.schedule.lowering.memory
    program, promise = proven.lowered.program, proven.flat.promise
    program = with_names_spelt(program, names_of(proven.flat))
    return Kernel(program=program, promise=promise, memory=memory, compute=proven.flat.schedule.compute)


def _title(flat: FlatSchedule) -> str:
    kind = flat.promise.kind
    return "Products without communication" if kind == "none" else kind.replace("_", "-").capitalize()


def _heading(topology: Topology, what: str) -> str:
    sides = " × ".join(map(str, topology.sides))
    place = f"links of {sides} ranks" if topology.kind == "links" else f"a {topology.kind} of {sides} ranks"
    return f"{what} over {place}. Generated by ringsched; edit the schedule instead."


def _facts(proven: Proven | ProvenChain, backward: Proven | None) -> list[tuple[str, str]]:
    """The header: where it comes from and what was proven, for which sizes."""
    gradient = "by the transpose, proven likewise" if backward else "by jax.lax"
    calls = f"{CALLS} calls in a row"
    if isinstance(proven, ProvenChain):
        calls = f"{CALLS} calls in a row, of 1, 2 and 3 layers, and so of any number"
    compute = None if isinstance(proven, ProvenChain) else proven.flat.schedule.compute
    sequential = compute is not None and compute.overlap == "none"
    return [
        *_origin(proven.schedule),
        *([("overlap", "none: products and transfers one after the other")] if sequential else []),
        ("proven", f"for these sizes: data flow, values, no race, no deadlock, no leftover; {calls}"),
        ("gradient", gradient),
    ]


def _origin(schedule: Schedule | Chain) -> list[tuple[str, str]]:
    """Which file, at which parameters."""
    path = Path(schedule.path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "unknown"
    parameters = ", ".join(f"{p.name} = {p.value}" for p in schedule.parameters) or "none"
    return [("schedule", f"{path.name}, sha256 {digest}…"), ("params", parameters), ("tested", f"with {TESTED_WITH}")]
