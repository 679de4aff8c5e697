"""A schedule file → `Schedule`: read, parse, check the shape, resolve every name, load what `use:` names.

All findings of one file are collected and raised together, each with its place. An unknown name is reported once, where
it occurs first, however often it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as Table
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from ringsched.diagnostics import Collector, Diagnostic, DiagnosticError, InternalError, Label, Span
from ringsched.expr import LIMIT, Binary, Compare, Expr, Extremum, Int, Lookup, Neg, Var, names
from ringsched.schedule.parse import parse_chunk, parse_expression, parse_range
from ringsched.schedule.schedule import (
    Activation,
    Beside,
    Chain,
    ChunkRef,
    Collective,
    CollectiveKind,
    Constructed,
    Epilogue,
    Item,
    Link,
    Loop,
    Lowering,
    Moment,
    Multiply,
    Op,
    Overlap,
    Parameter,
    Range,
    Rank,
    Schedule,
    Shard,
    Slice,
    Speed,
    Step,
    Synth,
    TopologyKind,
    TopologySpec,
    Transfer,
    Use,
)
from ringsched.schedule.shape import MAX_FINDINGS, check_shape, place
from ringsched.schedule.tree import (
    MAX_BYTES,
    Mapping,
    Scalar,
    Sequence,
    Text,
    Tree,
    decode,
    fail,
    parse_tree,
    plain,
    too_large,
)
from ringsched.schedule.vocabulary import (
    COORDINATES,
    OVERLAPS,
    RESERVED,
    ROOTED,
    SPEEDS,
    TOPOLOGIES,
    closest,
    item_kind,
    listed,
    name_fault,
)

MAX_USE_DEPTH = 16
_Node = TypeVar("_Node", bound=Tree)
_Parametric = TypeVar("_Parametric", bound=Schedule | Chain)


def load(path: str | Path, text: str | None = None) -> Schedule | Chain:
    """The schedule, or the chain of schedules, in the file at `path` (or in `text`, said to come from there).

    Raises `DiagnosticError`.
    """
    return _Files().load(str(path), text)


def read_text(path: str | Path) -> str:
    """The text of a file; RS101 … RS108 where there is none."""
    file = Path(path)
    try:
        if file.is_dir():
            raise fail("RS102", f"{path} is a directory", None, help="name a schedule file: FILE.yaml")
        if not file.is_file() and file.exists():
            raise fail("RS101", f"{path} is not a regular file", None, help="name a schedule file: FILE.yaml")
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise too_large(str(path), max(file.stat().st_size, len(data)))
    except FileNotFoundError:
        raise fail("RS101", f"there is no file {path}", None, help=_nearby(file)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise fail("RS101", f"{path} cannot be read: {reason}", None, help="check its permissions") from None
    return decode(data, str(path))


def _nearby(file: Path) -> str:
    """A file of nearly that name, in the same folder or among the shipped schedules."""
    folder = file.parent
    there = [p.name for p in sorted(folder.glob("*.y*ml"))[:500]] if folder.is_dir() else []
    near = closest(file.name, there)
    if near:
        return f"did you mean {folder / near}?"
    shipped = shipped_names()
    near = closest(file.stem, shipped)
    if near:
        return f"did you mean {near}? That schedule is shipped, as {shipped_directory() / (near + '.yaml')}"
    return "check the path; `ringsched init all_gather` writes a schedule to start from"


def shipped_directory() -> Path:
    """Where the schedules that come with ringsched are: inside the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "schedules"
    return inside if inside.is_dir() else package.parent / "schedules"


def shipped_names() -> tuple[str, ...]:
    """The names of the shipped schedules, sorted."""
    return tuple(sorted(p.stem for p in shipped_directory().glob("*.yaml")))


def set_parameters(schedule: _Parametric, values: Table[str, int]) -> _Parametric:
    """`schedule` with other values for its parameters; RS213 for a parameter it has not, RS205 beyond 63 bits."""
    known = [p.name for p in schedule.parameters]
    found = Collector()
    for name, value in values.items():
        if name not in known:
            found.add(_unknown_parameter(name, known, schedule.name, None))
        elif not -LIMIT < value < LIMIT:
            message = f"{name} = {value} does not fit 63 bits"
            found.add(Diagnostic(code="RS205", message=message, help="use a smaller value"))
    found.check()
    parameters = tuple(
        replace(p, value=values[p.name], asked=True) if p.name in values else p for p in schedule.parameters
    )
    return replace(schedule, parameters=parameters)


def set_overlap(schedule: _Parametric, overlap: str | None) -> _Parametric:
    """`schedule` with its products in between its transfers, or not; None: as it says. RS218 where it has none."""
    if overlap is None:
        return schedule
    if overlap not in OVERLAPS:
        message = f"`overlap` is {listed(OVERLAPS, 'or')}, not {overlap!r}"
        raise fail("RS218", message, None, help='rs.compile("all_gather_matmul", overlap="none")')
    if isinstance(schedule, Chain) or schedule.compute is None:
        message = f"`overlap` is for one schedule that multiplies, and {schedule.name} "
        message += "is a chain of them" if isinstance(schedule, Chain) else "multiplies nothing"
        raise fail("RS218", message, None, help="leave it out, or take a schedule such as all_gather_matmul")
    compute = replace(schedule.compute, overlap=cast(Overlap, overlap))
    return cast(_Parametric, replace(schedule, compute=compute))


def sources(diagnostics: Iterable[Diagnostic], known: Table[str, str] | None = None) -> dict[str, str]:
    """The text of every file that the findings point into, for `diagnostics.render`."""
    texts = dict(known or {})
    for diagnostic in diagnostics:
        for label in (diagnostic.primary, *diagnostic.secondary):
            if label is not None and label.span.path not in texts:
                try:
                    data = Path(label.span.path).read_bytes()[:MAX_BYTES]
                except (OSError, ValueError):
                    data = b""
                texts[label.span.path] = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    return texts


def _unknown_parameter(name: str, known: list[str], owner: str, span: Span | None) -> Diagnostic:
    near = closest(name, known)
    has = f"its parameters are {listed(known)}" if known else "it has no parameters"
    return Diagnostic(
        code="RS213",
        message=f"{owner} has no parameter `{name}`",
        primary=Label(span=span, text="unknown parameter") if span else None,
        help=f"did you mean `{near}`? {has}" if near else has,
    )


@dataclass(slots=True)
class _Files:
    """The files of one load: each is read once; the chain of those being read shows a cycle."""

    done: dict[Path, Schedule] = field(default_factory=dict)
    failed: set[Path] = field(default_factory=set)
    chain: list[tuple[Path, str]] = field(default_factory=list)

    def load(self, path: str, text: str | None = None) -> Schedule | Chain:
        content = read_text(path) if text is None else decode(text.encode("utf-8", errors="surrogatepass"), path)
        self.chain.append((Path(path).resolve(), path))
        try:
            tree = parse_tree(content, path)
            check_shape(tree)
            reader = _Reader(path, tree, self)
            return reader.chain() if "chain" in tree else reader.schedule()
        finally:
            self.chain.pop()

    def used(self, name: str, span: Span, origin: str) -> Schedule | None:
        """The schedule that `use: name` means; None where it failed and that was reported before."""
        file = self._find(name, span, origin)
        real = file.resolve()
        if real in self.done:
            return self.done[real]
        if real in self.failed:
            return None
        if real in [path for path, _ in self.chain]:
            start = [path for path, _ in self.chain].index(real)
            files = " → ".join([shown for _, shown in self.chain[start:]] + [str(file)])
            alone = len(self.chain) - start == 1
            message = "a schedule uses itself" if alone else "schedules use each other in a circle"
            raise fail(
                "RS121",
                message,
                span,
                "leads back to a file that is being read",
                f"the chain is {files}; a schedule must end somewhere",
            )
        if len(self.chain) >= MAX_USE_DEPTH:
            raise fail("RS122", f"`use:` goes more than {MAX_USE_DEPTH} files deep", span)
        try:
            found = self.load(str(file))
            if isinstance(found, Chain):
                help = "a chain is compiled by itself; use its links"
                raise fail("RS216", f"`{name[:100]}` is a chain", span, "only a schedule can be used", help)
            self.done[real] = found
        except DiagnosticError as error:
            self.failed.add(real)
            if all(d.primary is None for d in error.diagnostics):  # about the file as a whole: point at the `use:`
                label = Label(span=span, text="used here")
                raise DiagnosticError(replace(d, primary=label) for d in error.diagnostics) from None
            raise
        return self.done[real]

    def _find(self, name: str, span: Span, origin: str) -> Path:
        folder = Path(origin).parent
        bare = re.fullmatch(r"[\w-]+", name) is not None
        tried = [folder / name] + ([folder / f"{name}.yaml"] if bare else [])
        for file in [*tried, *([shipped_directory() / f"{name}.yaml"] if bare else [])]:
            try:
                if file.is_file():
                    return file
            except (OSError, ValueError):
                break
        there = {p.stem for p in sorted(folder.glob("*.yaml"))[:500]} | {*shipped_names()} if bare else set()
        near = closest(name, sorted(there), cutoff=0.7)
        places = [str(p) for p in tried] + (["the schedules that come with ringsched"] if bare else [])
        diagnostic = Diagnostic(
            code="RS120",
            message=f"there is no schedule `{name[:100]}` to use",
            primary=Label(span=span, text="no such file"),
            notes=(f"looked for {', '.join(places)}",) if len(name) < 200 else (),
            help=f"did you mean `{near}`?" if near else "a path in `use:` is relative to the file that it stands in",
        )
        raise DiagnosticError([diagnostic])


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that an expression may use, and where they come from."""

    names: tuple[str, ...]
    place: str  # said when the rank is used where it is not known

    def plus(self, *names: str) -> _Scope:
        return _Scope((*self.names, *names), self.place)


class _Reader:
    """Builds one file's Schedule. The shape was checked, so nodes have the types that the models promise."""

    def __init__(self, path: str, tree: Mapping, files: _Files) -> None:
        self.path = path
        self.tree = tree
        self.files = files
        self.found = Collector()
        self.unknown: dict[str, tuple[int, list[Span]]] = {}
        self.parameters: tuple[Parameter, ...] = ()
        self.tables: dict[str, tuple[int, ...]] = {}
        self.coordinates: tuple[str, ...] = ()
        self.ranks = 1  # how many coordinates a rank has

    # -- the top ----------------------------------------------------------------------------------------------------

    def schedule(self) -> Schedule:
        tree = self.tree
        name = self._name()
        self.parameters = self._parameters()
        self.tables = self._tables()
        scope = _Scope(tuple(p.name for p in self.parameters), "")
        topology = self._topology(tree["topology"], scope)
        collective = self._collective(tree["collective"], scope)
        chunks = _as(Sequence, tree["chunks"])
        sizes = tuple(self._expression(item, replace(scope, place="`chunks:`")) for item in chunks.items)
        steps = tree.entry("steps")
        assert steps is not None
        items = self._items(_as(Sequence, steps.value), scope)
        compute = self._compute(collective)
        if collective.kind == "none" and tree.entry("compute") is None:
            help = "write `compute: {multiply: on arrival}`, or the collective that the steps are for"
            self._add(
                "RS217", "`none` moves nothing, and nothing is computed", tree["collective"].span, "no `compute:`", help
            )
        lowering = self._lowering()
        self._check()
        return Schedule(
            name=name.value,
            collective=collective,
            topology=topology,
            parameters=self.parameters,
            tables=tuple(self.tables.items()),
            chunks=sizes,
            items=items,
            compute=compute,
            lowering=lowering,
            description=self._description(),
            path=self.path,
            span=name.span,
            steps_span=steps.key.span,
            chunks_span=chunks.span,
        )

    def chain(self) -> Chain:
        name = self._name()
        self.parameters = self._parameters()
        scope = _Scope(tuple(p.name for p in self.parameters), "")
        topology = self._topology(self.tree["topology"], scope)
        links = tuple(self._link(_as(Mapping, item)) for item in _as(Sequence, self.tree["chain"]).items)
        self._check()
        return Chain(
            name=name.value,
            topology=topology,
            parameters=self.parameters,
            links=links,
            activation=cast(Activation, plain(self.tree["activation"]) if "activation" in self.tree else "sharded"),
            description=self._description(),
            path=self.path,
            span=name.span,
        )

    def _link(self, node: Mapping) -> Link:
        path = _as(Scalar, node["use"]).text
        schedule = _nothing(path.value)
        try:
            schedule = self.files.used(path.value, path.span, self.path) or schedule
        except DiagnosticError as error:
            self.found.diagnostics.extend(error.diagnostics)
        else:
            if schedule.compute is None:
                self._add(
                    "RS217",
                    f"`{path.value}` multiplies nothing",
                    path.span,
                    "has no `compute:`",
                    "the links of a chain are collective matmuls, such as all_gather_matmul",
                )
            elif schedule.collective.kind == "none":
                self._add(
                    "RS217",
                    f"`{path.value}` moves nothing",
                    path.span,
                    "has `collective: none`",
                    "the links of a chain are collective matmuls, such as all_gather_matmul",
                )
            elif schedule.compute.overlap == "none":
                self._add(
                    "RS217",
                    f"`{path.value}` overlaps nothing",
                    path.span,
                    "has `overlap: none`",
                    "the links of a chain multiply while chunks travel: leave `overlap: none` out",
                )
            if schedule.lowering.memory == "hbm":
                self._add(
                    "RS219",
                    f"`{path.value}` cannot have its operands in HBM here",
                    dict(schedule.lowering.spans)["memory"],
                    "asked for here",
                    "leave `memory` out: a chain keeps its weights in HBM by itself, and one layer of each in VMEM, "
                    "where its activations are",
                )
        epilogue = cast("Epilogue | None", plain(node["epilogue"]) if "epilogue" in node else None)
        return Link(path=path.value, schedule=schedule, epilogue=epilogue, span=path.span)

    def _name(self) -> Text:
        name = _as(Scalar, self.tree["schedule"]).text
        fault = name_fault(name.value)
        if fault:
            suggestion = re.sub(r"\W+", "_", name.value, flags=re.ASCII).strip("_")
            help = f"write `schedule: {suggestion}`" if suggestion and name_fault(suggestion) is None else None
            self._add("RS115", "the schedule's name cannot be used", name.span, fault, help)
        return name

    def _description(self) -> str:
        entry = self.tree.entry("description")
        if entry is None or plain(entry.value) is None:
            return ""
        return " ".join(_as(Scalar, entry.value).text.value.split())

    def _check(self) -> None:
        """Raises what was found, in the order of the file."""
        self._report_unknown()
        self.found.diagnostics.sort(key=place)
        del self.found.diagnostics[MAX_FINDINGS:]
        self.found.check()

    def _parameters(self) -> tuple[Parameter, ...]:
        if "params" not in self.tree:
            return ()
        result = []
        for entry in _as(Mapping, self.tree["params"]).entries:
            name, value = entry.key.text.value, plain(entry.value)
            assert isinstance(value, int)
            self._check_name(entry.key.text, "parameter", {})
            if not -LIMIT < value < LIMIT:
                self._add("RS205", f"the value of `{name}` does not fit 63 bits", entry.value.span, "too large")
            result.append(Parameter(name=name, value=value, span=entry.span))
        return tuple(result)

    def _tables(self) -> dict[str, tuple[int, ...]]:
        entry = self.tree.entry("tables")
        if entry is None or not isinstance(entry.value, Mapping):
            return {}
        taken = {p.name: "a parameter" for p in self.parameters}
        found: dict[str, tuple[int, ...]] = {}
        for table in entry.value.entries:
            self._check_name(table.key.text, "table", taken)
            items = _as(Sequence, table.value).items
            values = [cast(int, plain(item)) for item in items]
            for item, value in zip(items, values, strict=True):
                if not -LIMIT < value < LIMIT:
                    self._add("RS205", "an entry does not fit 63 bits", item.span, "too large")
            if table.key.text.value not in taken:
                found[table.key.text.value] = tuple(values)
        return found

    def _topology(self, node: Tree, scope: _Scope) -> TopologySpec:
        tree = _as(Mapping, node)
        entry = next(e for e in tree.entries if e.key.text.value in TOPOLOGIES)
        kind = cast(TopologyKind, entry.key.text.value)
        scope = replace(scope, place="`topology:`")
        nodes = entry.value.items if isinstance(entry.value, Sequence) else (entry.value,)
        if kind in ("mesh", "torus"):
            self.ranks = len(nodes)
            self.coordinates = COORDINATES[: self.ranks]
        twist = self._twist(tree, kind, scope)
        speeds = self._speeds(tree, kind, len(nodes))
        routed = "routed" in tree and bool(plain(tree["routed"]))
        if kind == "links":
            links, speeds = self._links(nodes)
            return TopologySpec(kind=kind, links=links, speeds=speeds, routed=routed, span=node.span)
        sides = tuple(self._expression(side, scope) for side in nodes)
        return TopologySpec(kind=kind, sides=sides, twist=twist, speeds=speeds, routed=routed, span=node.span)

    def _links(self, nodes: tuple[Tree, ...]) -> tuple[tuple[tuple[int, int], ...], tuple[Speed, ...]]:
        links: dict[tuple[int, int], Speed] = {}
        for item in nodes:
            words = cast("dict[str, Any]", plain(item) if isinstance(item, Mapping) else {"between": plain(item)})
            a, b = words["between"]
            if a == b:
                self._add("RS210", "a link from a rank to itself", item.span, "joins nothing", "remove it")
            if max(a, b) >= LIMIT:
                self._add("RS205", "the rank does not fit 63 bits", item.span, "too large")
            if (a, b) in links or (b, a) in links:
                help = "a link carries data both ways; of two side by side say {between: [0, 1], bandwidth: 2}"
                self._add("RS210", "a link that is there already", item.span, f"joins {a} and {b} again", help)
            links[a, b] = Speed(words.get("bandwidth", 1), words.get("latency", 1))
        return tuple(links), tuple(links.values()) if set(links.values()) != {Speed()} else ()

    def _twist(self, tree: Mapping, kind: TopologyKind, scope: _Scope) -> tuple[tuple[int, tuple[Expr, ...]], ...]:
        entry = tree.entry("twist")
        if entry is None:
            return ()
        if kind != "torus":
            label = f"a {kind} does not" if kind != "links" else "explicit links do not"
            self._add("RS210", "only a torus wraps around with a twist", entry.key.span, label, "leave `twist` out")
            return ()
        rows: dict[int, tuple[Expr, ...]] = {}
        for row in _as(Mapping, entry.value).entries:
            axis, shifts = row.key.text.value, _as(Sequence, row.value).items
            if axis not in self.coordinates:
                label = f"the axes are {listed(self.coordinates)}"
                self._add("RS210", f"the torus has no axis `{axis}`", row.key.span, label)
            elif len(shifts) != self.ranks:
                label = f"{len(shifts)} for {self.ranks} axes"
                help = f"say what once around along {axis} adds to each of {listed(self.coordinates)}"
                self._add("RS210", "a twist has one number for each axis", row.value.span, label, help)
            else:
                rows[self.coordinates.index(axis)] = tuple(self._expression(shift, scope) for shift in shifts)
        return tuple(sorted(rows.items()))

    def _speeds(self, tree: Mapping, kind: TopologyKind, axes: int) -> tuple[Speed, ...]:
        """Of each axis; none where all are plain."""
        given: dict[str, list[int]] = {}
        for name in SPEEDS:
            entry = tree.entry(name)
            if entry is None:
                continue
            value = cast("int | list[int]", plain(entry.value))
            given[name] = value if isinstance(value, list) else [value] * axes
            if kind == "links":
                help = f"give it to those links that have another one: {{between: [0, 1], {name}: 2}}"
                self._add("RS210", f"explicit links have no `{name}` in common", entry.key.span, "", help)
            elif len(given[name]) != axes:
                many = f"{axes} axes" if axes > 1 else "one axis"
                self._add("RS210", f"`{name}` has one number for each axis", entry.value.span, f"the {kind} has {many}")
        plain_axes = [1] * axes
        pairs = zip(given.get("bandwidth", plain_axes), given.get("latency", plain_axes), strict=False)
        speeds = tuple(Speed(bandwidth, latency) for bandwidth, latency in pairs)
        return speeds if set(speeds) != {Speed()} else ()

    def _collective(self, node: Tree, scope: _Scope) -> Collective:
        if isinstance(node, Scalar):
            kind = cast(CollectiveKind, node.text.value)
            if kind == "permute":
                self._add(
                    "RS111",
                    "`permute` needs the permutation",
                    node.span,
                    "where does chunk i go?",
                    "write `collective: {permute: (r + 1) % N}`: the rank that the chunk of rank r goes to",
                )
            return Collective(kind=kind, root=Int(value=0) if kind in ROOTED else None, span=node.span)
        entry = _as(Mapping, node).entries[0]
        kind = cast(CollectiveKind, entry.key.text.value)
        if kind == "permute":
            permutation = self._expression(entry.value, scope.plus("r"))
            return Collective(kind=kind, permutation=permutation, span=node.span)
        root = self._expression(entry.value, replace(scope, place="the root"))
        return Collective(kind=kind, root=root, span=node.span)

    def _compute(self, collective: Collective) -> Multiply | None:
        entry = self.tree.entry("compute")
        if entry is None or not isinstance(entry.value, Mapping):
            return None
        words = {e.key.text.value: plain(e.value) for e in entry.value.entries}
        moment = cast(Moment, words["multiply"])
        fitting = {"on arrival": ("all_gather", "none"), "before sending": ("reduce_scatter", "all_reduce")}[moment]
        if collective.kind not in fitting:
            self._add(
                "RS217",
                f"`multiply: {moment}` does not go with `{collective.kind}`",
                entry.value["multiply"].span,
                f"goes with {listed(fitting, 'or')}",
                "multiply: on arrival gathers first; multiply: before sending sums what it has computed",
            )
        if collective.kind == "none" and words.get("shard", "rows") != "rows":
            help = "leave it out: what each rank has is all that there is"
            self._add("RS217", "`none` shards nothing", entry.value["shard"].span, "not shared out", help)
        shard, overlap = cast(Shard, words.get("shard", "rows")), cast(Overlap, words.get("overlap", "full"))
        return Multiply(moment=moment, shard=shard, overlap=overlap, span=entry.span)

    def _lowering(self) -> Lowering:
        entry = self.tree.entry("lowering")
        if entry is None or not isinstance(entry.value, Mapping):
            return Lowering()
        wishes = {e.key.text.value: plain(e.value) for e in entry.value.entries}
        spans = tuple((e.key.text.value, e.span) for e in entry.value.entries)
        return Lowering(**wishes, spans=spans)  # type: ignore[arg-type]

    # -- steps ------------------------------------------------------------------------------------------------------

    def _items(self, node: Sequence, scope: _Scope) -> tuple[Item, ...]:
        return tuple(self._item(_as(Mapping, item), scope) for item in node.items)

    def _item(self, node: Mapping, scope: _Scope) -> Item:
        match item_kind(plain(node)):
            case "<transfer>":
                transfer = self._transfer(node, scope)
                return Step(transfers=(transfer,), span=transfer.span)
            case "<step>":
                transfers = _as(Sequence, node["step"]).items
                return self._step(transfers, scope, node.entries[0].key.span)
            case "<loop>":
                return self._loop(node, scope)
            case "<use>":
                return self._use(node, scope)
            case "<beside>":
                uses = tuple(self._use(_as(Mapping, item), scope) for item in _as(Sequence, node["beside"]).items)
                return Beside(uses=uses, span=node.entries[0].key.span)
            case "<synth>":
                entry = node.entries[0]
                return Synth(kind=cast(Constructed, plain(entry.value)), span=entry.span)
            case kind:
                raise InternalError(f"an item of kind {kind} passed the check of its shape")

    def _step(self, nodes: tuple[Tree, ...], scope: _Scope, span: Span | None) -> Step:
        return Step(transfers=tuple(self._transfer(_as(Mapping, item), scope) for item in nodes), span=span)

    def _loop(self, node: Mapping, scope: _Scope) -> Loop:
        head = node.entry("for")
        assert head is not None
        loop_range, inner = self._range(_as(Scalar, head.value).text, scope, "loop variable")
        body = _as(Sequence, node["do"])
        items: tuple[Item, ...]
        if body.items and all(item_kind(plain(item)) == "<transfer>" for item in body.items):
            step = self._step(body.items, inner, None)
            items = (replace(step, span=step.transfers[0].span),)
        else:
            items = self._items(body, inner)
        return Loop(range=loop_range, body=items, span=head.span)

    def _transfer(self, node: Mapping, scope: _Scope) -> Transfer:
        entry = node.entry("send")
        assert entry is not None
        each, inner = None, scope
        if "each" in node and plain(node["each"]) is not None:
            outside = replace(scope, place="the range of `each:`")
            each, inner = self._range(_as(Scalar, node["each"]).text, outside, "`each:` variable")
            inner = scope.plus(inner.names[-1])
        everywhere = inner.plus("r", *self.coordinates)
        return Transfer(
            chunk=self._chunk(_as(Scalar, entry.value), everywhere),
            to=self._rank(node["to"], everywhere, "to"),
            op=cast(Op, plain(node["op"]) if "op" in node else "copy"),
            when=self._conditions(node, everywhere),
            each=each,
            sender=self._sender(node, scope),
            span=entry.span,
        )

    def _conditions(self, node: Mapping, scope: _Scope) -> tuple[Expr, ...]:
        entry = node.entry("when")
        if entry is None or plain(entry.value) is None:
            return ()
        parts = entry.value.items if isinstance(entry.value, Sequence) else (entry.value,)
        return tuple(self._expression(part, scope) for part in parts)

    def _sender(self, node: Mapping, scope: _Scope) -> Rank | None:
        entry = node.entry("from")
        if entry is None or plain(entry.value) is None:
            return None
        return self._rank(entry.value, replace(scope, place="`from:`, which says the rank"), "from")

    def _rank(self, node: Tree, scope: _Scope, key: str) -> Rank:
        parts = node.items if isinstance(node, Sequence) else (node,)
        if isinstance(node, Sequence) and len(parts) != self.ranks:
            wanted = "one expression" if self.ranks == 1 else f"{self.ranks} expressions, one for each coordinate"
            help = f"write `{key}: r + 1`"
            if self.ranks > 1:
                first = ", ".join([f"{self.coordinates[0]} + 1", *self.coordinates[1:]])
                help = f"write `{key}: [{first}]`; an expression with commas inside brackets needs quotes"
            self._add("RS214", f"`{key}` has {len(parts)} coordinates", node.span, f"expected {wanted}", help)
        return Rank(coordinates=tuple(self._expression(part, scope) for part in parts), span=node.span)

    def _use(self, node: Mapping, scope: _Scope) -> Use:
        entry = node.entry("use")
        assert entry is not None
        path = _as(Scalar, entry.value).text
        inner: Schedule | None = None
        try:
            inner = self.files.used(path.value, path.span, self.path)
        except DiagnosticError as error:
            self.found.diagnostics.extend(error.diagnostics)
        scope = replace(scope, place="`use:`")
        given: dict[str, Expr] = {}
        known = [p.name for p in inner.parameters] if inner else []
        if "with" in node and isinstance(node["with"], Mapping):
            for argument in node["with"].entries:
                name = argument.key.text
                given[name.value] = self._expression(argument.value, scope)
                if inner and name.value not in known:
                    self.found.add(_unknown_parameter(name.value, known, path.value, name.span))
        if inner and inner.compute is not None:
            self._add(
                "RS217",
                f"`{path.value}` has a `compute:` of its own",
                path.span,
                "only its transfers can be used",
                "write the `compute:` in this file, and use the schedule without it",
            )
        outer = {p.name for p in self.parameters}
        arguments = [(name, given.get(name, Var(name=name))) for name in known if name in given or name in outer]
        on = None
        if "on" in node and plain(node["on"]) is not None:
            on = self._chunk(_as(Scalar, node["on"]), scope)
        schedule = inner or _nothing(path.value)
        return Use(path=path.value, schedule=schedule, arguments=tuple(arguments), on=on, span=entry.span)

    # -- scalars ----------------------------------------------------------------------------------------------------

    def _chunk(self, node: Scalar, scope: _Scope) -> ChunkRef:
        try:
            chunk = parse_chunk(node.text, self.tables)
        except DiagnosticError as error:
            self.found.diagnostics.extend(error.diagnostics)
            return ChunkRef(index=())
        for part in chunk.index:
            for expr in (part.start, part.stop) if isinstance(part, Slice) else (part,):
                if expr is not None:
                    self._resolve(expr, scope)
        return chunk

    def _expression(self, node: Tree, scope: _Scope) -> Expr:
        try:
            expr = parse_expression(_as(Scalar, node).text, self.tables)
        except DiagnosticError as error:
            self.found.diagnostics.extend(error.diagnostics)
            return Int(value=0)
        self._resolve(expr, scope)
        return expr

    def _range(self, text: Text, scope: _Scope, what: str) -> tuple[Range, _Scope]:
        """The range and the scope inside it; after a mistake the variable is known all the same."""
        try:
            found = parse_range(text, self.tables)
        except DiagnosticError as error:
            self.found.diagnostics.extend(error.diagnostics)
            name = re.match(r"\s*(\w+)", text.value)
            var = name[1] if name else "_"
            return Range(var=var, first=Int(value=0), last=Int(value=0)), scope.plus(var)
        for expr in (found.first, found.last):
            self._resolve(expr, scope)
        start = text.value.index(found.var)
        taken = dict.fromkeys(scope.names, "a loop variable") | {p.name: "a parameter" for p in self.parameters}
        taken |= dict.fromkeys(self.tables, "a table")
        self._check_name(text.part(start, start + len(found.var)), what, taken)
        return found, scope.plus(found.var)

    def _check_name(self, name: Text, what: str, taken: dict[str, str]) -> None:
        fault = name_fault(name.value)
        if fault:
            self._add("RS115", f"`{name.value[:40]}` cannot name a {what.strip('`')}", name.span, fault)
        elif name.value in RESERVED:
            meaning = {"r": "the rank", "chunk": "the data", "min": "the minimum", "max": "the maximum"}
            means = meaning.get(name.value, "a coordinate of the rank")
            self._add(
                "RS115",
                f"`{name.value}` cannot name a {what.strip('`')}",
                name.span,
                f"means {means}",
                "choose another name",
            )
        elif name.value in taken:
            self._add(
                "RS212",
                f"the name `{name.value}` is taken",
                name.span,
                f"is {taken[name.value]} already",
                "choose another name for one of the two",
            )

    # -- names ------------------------------------------------------------------------------------------------------

    def _resolve(self, expr: Expr, scope: _Scope) -> None:
        for name in sorted(names(expr) - set(scope.names)):
            spans = [span for span in _occurrences(expr, name) if span]
            self._unknown(name, spans, scope)

    def _unknown(self, name: str, spans: list[Span], scope: _Scope) -> None:
        if name in self.unknown:
            self.unknown[name][1].extend(spans)
            return
        self.unknown[name] = (len(self.found.diagnostics), spans)
        near = closest(name, scope.names)
        known = "names in scope: " + (", ".join(dict.fromkeys(scope.names)) or "none")
        label, advice = "not in scope", f"did you mean `{near}`?" if near else ""
        if name in ("r", *self.coordinates) and scope.place:
            label = f"{'the rank' if name == 'r' else 'a coordinate'} is not known in {scope.place}"
            advice = "use parameters"
        elif name in COORDINATES:
            label, advice = "coordinates exist on a mesh or torus", "write the rank as r"
            if self.coordinates:
                label = "a coordinate that this topology has not"
                advice = f"its coordinates are {listed(self.coordinates)}"
        elif not near and len(name) <= 20 and not self.tree.entry("params"):
            advice = f"a parameter is introduced by `params: {{{name}: 4}}`"
        diagnostic = Diagnostic(
            code="RS202",
            message=f"unknown name `{name[:40]}`",
            primary=Label(span=spans[0], text=label) if spans else None,
            notes=(known,),
            help=advice or "introduce it, as a parameter under `params:` or as a loop variable with `for:`",
        )
        self.found.add(diagnostic)

    def _report_unknown(self) -> None:
        """Says in the first report of each unknown name where else it stands."""
        for index, spans in self.unknown.values():
            lines = sorted({s.line for s in spans[1:]} - {spans[0].line}) if spans else []
            if not lines:
                continue
            shown = ", ".join(str(line) for line in lines[:8]) + (" …" if len(lines) > 8 else "")
            also = f"also in line{'s' if len(lines) > 1 else ''} {shown}"
            old = self.found.diagnostics[index]
            self.found.diagnostics[index] = replace(old, notes=(*old.notes, also))

    def _add(self, code: str, message: str, span: Span, label: str = "", help: str | None = None) -> None:
        self.found.add(Diagnostic(code=code, message=message, primary=Label(span=span, text=label), help=help))


def _occurrences(expr: Expr, name: str) -> list[Span | None]:
    match expr:
        case Var():
            return [expr.span] if expr.name == name else []
        case Int():
            return []
        case Neg():
            return _occurrences(expr.operand, name)
        case Binary():
            return _occurrences(expr.left, name) + _occurrences(expr.right, name)
        case Compare():
            parts = (expr.first, *(e for _, e in expr.rest))
        case Extremum():
            parts = expr.operands
        case Lookup():
            return _occurrences(expr.index, name)
    return [span for part in parts for span in _occurrences(part, name)]


def _as(kind: type[_Node], node: Tree) -> _Node:
    if not isinstance(node, kind):
        raise InternalError(f"{node.span}: expected a {kind.__name__}, and the check of the shape let it pass")
    return node


def _nothing(name: str) -> Schedule:
    """Stands for a used schedule that could not be loaded, until the findings are raised."""
    return Schedule(
        name=name,
        collective=Collective(kind="all_gather"),
        topology=TopologySpec(kind="ring"),
        parameters=(),
        chunks=(),
        items=(),
    )
