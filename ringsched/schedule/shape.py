"""Does the file have the right shape? pydantic decides; its errors become one diagnostic for each slip of the pen.

pydantic reports a misspelt required key as two errors (one unknown, one missing), puts union tags into locations and
knows nothing of places. All that is mended here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Table
from collections.abc import Sequence as Errors
from dataclasses import replace
from typing import Any

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label, Span
from ringsched.schedule.tree import Mapping, Scalar, Sequence, Tree, plain
from ringsched.schedule.vocabulary import (
    ACTIVATIONS,
    CHAIN_KEYS,
    COLLECTIVES,
    COMPUTE_KEYS,
    CONSTRUCTED,
    EPILOGUES,
    FILE_KEYS,
    ITEM_KEYS,
    ITEM_NAMES,
    LINK_KEYS,
    LOWERING_KEYS,
    MOMENTS,
    OVERLAPS,
    ROOTED,
    SHARDS,
    SPEEDS,
    TOPOLOGIES,
    TOPOLOGY_KEYS,
    TRANSFER_KEYS,
    closest,
    item_kind,
    listed,
)

MAX_FINDINGS = 100  # of one file; nobody reads more
_EXAMPLES = {
    "schedule": "schedule: all_gather",
    "collective": "collective: all_gather",
    "topology": "topology: {ring: N}",
    "params": "params: {N: 4}",
    "tables": "tables: {far: [0, 1, 3]}, and far[s] in an expression",
    "synth": "synth: all_gather",
    "chunks": "chunks: [N]",
    "steps": "steps: [], or a list of items that each start with `- `",
    "send": "send: chunk[(r - s) % N]",
    "to": "to: r + 1, or to: [x + 1, y] on a mesh or torus",
    "op": "op: copy, or op: reduce",
    "for": "for: s in 0 .. N - 2",
    "each": "each: d in 1 .. N - 1",
    "do": "do: and under it a list of items that each start with `- `",
    "step": "step: and under it a list of transfers that each start with `- send:`",
    "beside": "beside: and under it a list of `- use: FILE`",
    "use": "use: reduce_scatter",
    "with": "with: {N: X}",
    "on": "on: chunk[:, 0]",
    "when": "when: r != 0, or a list of conditions that must all hold",
    "from": "from: 0",
    "compute": "compute: {multiply: on arrival, shard: rows}",
    "multiply": "multiply: on arrival, or multiply: before sending",
    "shard": "shard: rows, or shard: features",
    "overlap": "overlap: full, or overlap: none",
    "lowering": "lowering: {slots: 2}",
    "activation": "activation: sharded, or activation: whole",
    "chain": "chain: and under it a list of `- use: FILE`",
    "epilogue": "epilogue: gelu",
    "slots": "slots: 2",
    "semaphores": "semaphores: 2",
    "unroll": "unroll: true",
    "memory": "memory: vmem",
    "barrier": "barrier: writers",
    "ring": "topology: {ring: N}",
    "line": "topology: {line: N}",
    "mesh": "topology: {mesh: [X, Y]}, with one to three sides",
    "torus": "topology: {torus: [X, Y, Z]}, with one to three sides",
    "links": "topology: {links: [[0, 1], [1, 2]]}",
    "twist": "topology: {torus: [X, 2 * X], twist: {x: [0, X]}}",
    "bandwidth": "bandwidth: 2, or one for each axis: [2, 1]",
    "routed": "topology: {ring: N, routed: true}",
    "latency": "latency: 2, or one for each axis: [2, 1]",
    "between": "{between: [0, 1], bandwidth: 2}",
    "description": "description: one line about the schedule",
}
_WANTED = {
    "string_type": "text",
    "int_type": "an integer",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "expression_type": "an expression",
    "expression_item": "an expression",
}


def check_shape(tree: Mapping) -> None:
    """Raises `DiagnosticError` with every finding about keys, types and choices (RS110 … RS114).

    A file that is plainly right is not put to pydantic, whose import takes longer than everything else in loading.
    """
    if plainly_right(plain(tree)):
        return
    from pydantic import ValidationError

    from ringsched.schedule.surface import ChainModel, FileModel

    try:
        (ChainModel if "chain" in tree else FileModel).model_validate(plain(tree))
        found: list[Diagnostic] = []
    except ValidationError as error:
        found = _translate(error.errors(include_url=False)[:MAX_FINDINGS], tree)
    for key, choices in (("collective", COLLECTIVES), ("topology", TOPOLOGIES)):
        entry = tree.entry(key)
        if entry is not None and isinstance(entry.value, Mapping):
            found.extend(_check_single(key, entry.value, choices, found))
    if found:
        raise DiagnosticError(sorted(found, key=place)[:MAX_FINDINGS])


def plainly_right(data: object) -> bool:
    """True only if the models accept `data` (a test compares the two); False says nothing."""
    if isinstance(data, dict) and "chain" in data:
        return _chain_right(data)
    if not isinstance(data, dict) or not set(data) <= set(FILE_KEYS) or not isinstance(data.get("schedule"), str):
        return False
    collective, topology, chunks = data.get("collective"), data.get("topology"), data.get("chunks")
    if isinstance(collective, dict):
        if len(collective) != 1 or not all(k in (*ROOTED, "permute") and _written(v) for k, v in collective.items()):
            return False
    elif collective not in COLLECTIVES:
        return False
    if not _topology_right(topology):
        return False
    if not isinstance(data.get("description", ""), str) or not _wishes_right(data.get("lowering", {})):
        return False
    if not _tables_right(data.get("tables", {})):
        return False
    if not _compute_right(data.get("compute", {"multiply": MOMENTS[0]})) or not _parameters_right(data):
        return False
    return _list_of(chunks, 8) and _items_right(data.get("steps"))


def _chain_right(data: Table[object, object]) -> bool:
    texts = isinstance(data.get("schedule"), str) and isinstance(data.get("description", ""), str)
    if not set(data) <= set(CHAIN_KEYS) or not texts or not _topology_right(data.get("topology")):
        return False
    links = data["chain"]
    if data.get("activation", ACTIVATIONS[0]) not in ACTIVATIONS:
        return False
    if not isinstance(links, list) or not links or not _parameters_right(data):
        return False
    return all(isinstance(link, dict) and _link_right(link) for link in links)


def _link_right(link: Table[object, object]) -> bool:
    keys = set(link) <= set(LINK_KEYS) and isinstance(link.get("use"), str)
    return keys and link.get("epilogue", EPILOGUES[0]) in EPILOGUES


def _topology_right(topology: object) -> bool:
    if not isinstance(topology, dict) or not isinstance(topology.get("routed", True), bool):
        return False
    words = [(kind, sides) for kind, sides in topology.items() if kind != "routed"]
    if len(words) != 1:
        return False
    kind, sides = words[0]
    if kind in ("ring", "line"):
        return _written(sides)
    return kind in ("mesh", "torus") and _list_of(sides, 3)  # links too: let the models judge


def _parameters_right(data: Table[object, object]) -> bool:
    parameters = data.get("params", {})
    return isinstance(parameters, dict) and all(type(value) is int for value in parameters.values())


def _tables_right(tables: object) -> bool:
    if not isinstance(tables, dict):
        return False
    lists = all(isinstance(table, list) and 1 <= len(table) <= 1000 for table in tables.values())
    return lists and all(type(value) is int for table in tables.values() for value in table)


def _compute_right(compute: object) -> bool:
    if not isinstance(compute, dict) or not set(compute) <= set(COMPUTE_KEYS):
        return False
    words = compute.get("shard", SHARDS[0]) in SHARDS and compute.get("overlap", OVERLAPS[0]) in OVERLAPS
    return compute.get("multiply") in MOMENTS and words


def _wishes_right(wishes: object) -> bool:
    if not isinstance(wishes, dict) or not set(wishes) <= set(LOWERING_KEYS):
        return False
    counts = [wishes.get(key, 1) for key in ("slots", "semaphores")]
    words = wishes.get("memory", "vmem") in ("vmem", "hbm") and wishes.get("barrier", "none") in ("writers", "none")
    return words and type(wishes.get("unroll", True)) is bool and all(type(n) is int and n >= 1 for n in counts)


def _written(value: object) -> bool:
    return type(value) in (str, int)


def _list_of(value: object, most: int) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= most and all(_written(item) for item in value)


def _items_right(items: object) -> bool:
    return isinstance(items, list) and all(_item_right(item) for item in items)


def _item_right(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    if "for" in item:
        return set(item) == {"for", "do"} and isinstance(item["for"], str) and _items_right(item["do"])
    if "step" in item:
        transfers = item["step"]
        return (
            len(item) == 1 and isinstance(transfers, list) and bool(transfers) and all(map(_transfer_right, transfers))
        )
    if "use" in item:
        given = item.get("with", {})
        texts = all(isinstance(item.get(key, ""), str) for key in ("use", "on"))
        keys = set(item) <= set(ITEM_KEYS["<use>"])
        return keys and texts and isinstance(given, dict) and all(map(_written, given.values()))
    if "synth" in item:
        return len(item) == 1 and item["synth"] in CONSTRUCTED
    if "beside" in item:
        uses = item["beside"]
        some = isinstance(uses, list) and bool(uses)
        return len(item) == 1 and some and all(item_kind(use) == "<use>" and _item_right(use) for use in uses)
    return _transfer_right(item)


def _transfer_right(item: object) -> bool:
    if not isinstance(item, dict) or not {"send", "to"} <= set(item) <= set(TRANSFER_KEYS):
        return False
    texts = all(isinstance(item.get(key, ""), str) for key in ("send", "each"))
    several = all(_written(item.get(key, "")) or _list_of(item.get(key), 1000) for key in ("to", "from", "when"))
    return texts and several and item.get("op", "copy") in ("copy", "reduce")


def place(diagnostic: Diagnostic) -> tuple[str, int, int]:
    """Sorts findings by where they are."""
    span = diagnostic.primary.span if diagnostic.primary else None
    return (span.path, span.line, span.column) if span else ("", 0, 0)


def _translate(errors: Errors[Any], tree: Mapping) -> list[Diagnostic]:
    """Groups unknown and missing keys by the mapping that they concern; everything else is one to one."""
    unknown: dict[tuple[Any, ...], list[str]] = {}
    missing: dict[tuple[Any, ...], list[str]] = {}
    found: list[Diagnostic] = []
    for error in errors:
        loc = tuple(error["loc"])
        if error["type"] == "extra_forbidden":
            unknown.setdefault(loc[:-1], []).append(str(loc[-1]))
        elif error["type"] == "missing":
            missing.setdefault(loc[:-1], []).append(str(loc[-1]))
        else:
            found.append(_fault(error, tree))
    for loc in dict.fromkeys((*unknown, *missing)):
        found.extend(_keys(loc, unknown.get(loc, []), missing.get(loc, []), tree))
    return found


def _walk(loc: tuple[Any, ...], tree: Tree) -> tuple[Tree, str, str]:
    """The node at `loc`, the last key on the way to it, and the last union tag."""
    key, kind = "", ""
    for part in loc:
        if isinstance(part, str) and part.startswith("<"):
            kind = part
        elif isinstance(tree, Mapping) and isinstance(part, str) and part in tree:
            tree, key, kind = tree[part], part, ""
        elif isinstance(tree, Sequence) and isinstance(part, int) and part < len(tree.items):
            tree, kind = tree.items[part], ""
    return tree, key, kind


def _allowed(loc: tuple[Any, ...], key: str, kind: str, chain: bool) -> tuple[tuple[str, ...], str]:
    """The keys that the mapping at `loc` may have, and what to call it. `chain`: in the file of a chain."""
    if not loc:
        return (CHAIN_KEYS, "a chain") if chain else (FILE_KEYS, "a schedule file")
    if kind in ITEM_KEYS:
        return ITEM_KEYS[kind], ITEM_NAMES[kind]
    table = {
        "lowering": (LOWERING_KEYS, "`lowering:`"),
        "compute": (COMPUTE_KEYS, "`compute:`"),
        "collective": ((*ROOTED, "permute"), "`collective:`"),
        "topology": (TOPOLOGY_KEYS, "`topology:`"),
        "links": (("between", *SPEEDS), "a link"),
        "step": (TRANSFER_KEYS, "a transfer"),
        "beside": (ITEM_KEYS["<use>"], "a `use:`"),
        "chain": (LINK_KEYS, "a link of a chain"),
    }
    return table[key]


def _keys(loc: tuple[Any, ...], unknown: list[str], missing: list[str], tree: Mapping) -> list[Diagnostic]:
    node, key, kind = _walk(loc, tree)
    assert isinstance(node, Mapping)
    allowed, owner = _allowed(loc, key, kind, "chain" in tree)
    missing = list(missing)
    found: list[Diagnostic] = []
    foreign = [name for name in unknown if closest(name, missing) is None and _elsewhere(name)]
    if kind in ITEM_KEYS and foreign:  # two items run into one: a single mistake
        entry = node.entry(foreign[0])
        assert entry is not None
        found.append(_foreign_key(foreign, entry.key.span, owner, kind))
        unknown = [name for name in unknown if name not in foreign]
        missing = [name for name in missing if name != "do"]
    free = [name for name in allowed if name not in node]
    for name in unknown:
        entry = node.entry(name)
        assert entry is not None
        near = closest(name, missing) or closest(name, free)
        if near is None and len(missing) == len(unknown) == 1 and not _elsewhere(name):
            near = missing[0]
        if near in missing:
            missing.remove(near)
        found.append(_unknown_key(name, entry.key.span, owner, near, allowed))
    for name in missing:
        found.append(_missing_key(name, node, owner, not loc))
    return found


def _elsewhere(name: str) -> str | None:
    """What kind of item or mapping has this key."""
    for kind, keys in ITEM_KEYS.items():
        if name in keys:
            return ITEM_NAMES[kind]
    if name in FILE_KEYS:
        return "the top of the file"
    if name in COMPUTE_KEYS:
        return "`compute:`"
    if name == "chain":
        return "the top of the file"
    if name == "activation":
        return "the file of a chain"
    if name == "epilogue":
        return "a link of a chain"
    return "`lowering:`" if name in LOWERING_KEYS else None


def _unknown_key(name: str, span: Span, owner: str, near: str | None, allowed: tuple[str, ...]) -> Diagnostic:
    shown = name if len(name) <= 40 else name[:39] + "…"
    keys = f"the keys of {owner} are {listed(allowed)}"
    other = _elsewhere(name)
    if near is not None:
        label = f"did you mean `{near}`?"
    else:
        label = f"belongs to {other}" if other and owner != "a chain" else f"not a key of {owner}"
    return Diagnostic(code="RS110", message=f"unknown key `{shown}`", primary=Label(span=span, text=label), help=keys)


def _foreign_key(names: list[str], span: Span, owner: str, kind: str) -> Diagnostic:
    """Keys of one kind of item in another."""
    other = _elsewhere(names[0])
    help = f"start {other} with a dash of its own: `- {names[0]}: …`"
    if kind == "<loop>":
        help = "put the steps of a loop under `do:`, each starting with `- `"
    elif kind == "<step>":
        help = "put every transfer of the step into its list: `- send: …`"
    message = f"{listed(names)} {'do' if len(names) > 1 else 'does'} not belong to {owner}"
    return Diagnostic(code="RS110", message=message, primary=Label(span=span, text=f"belongs to {other}"), help=help)


def _missing_key(name: str, node: Mapping, owner: str, top: bool) -> Diagnostic:
    if top:
        first = node.entries[0].key.span if node.entries else node.span
        label = f"this file has no `{name}:`"
        span = replace(first, end_line=first.line)
    else:
        head = node.entries[0] if node.entries else None
        span = head.span if head else node.span
        label = f"{owner} needs `{name}:`"
    example = _EXAMPLES[name]
    help = f"add `{example}`" if not re.search("[,`]", example) else f"add {example}"
    primary = Label(span=span, text=label)
    return Diagnostic(code="RS111", message=f"the key `{name}` is missing", primary=primary, help=help)


def _describe(tree: Tree) -> str:
    match tree:
        case Mapping():
            return "a mapping" if tree.entries else "an empty mapping"
        case Sequence():
            return "a list" if tree.items else "an empty list"
        case Scalar():
            text = tree.text.value
            if text == "" and not tree.quoted:
                return "nothing"
            value = plain(tree)
            if value is None:
                return "null"
            shown = f"`{text if len(text) <= 30 else text[:29] + '…'}`"
            number = re.fullmatch(r"[-+]?[\d._]+(?:[eE][-+]?\d+)?", text)
            return f"the text {shown}" if isinstance(value, str) and (tree.quoted or not number) else shown


def _first_line(tree: Tree) -> Span:
    """A place to point at: the node, or where it starts if it goes on over several lines."""
    span = tree.span
    if span.line == span.end_line or isinstance(tree, Scalar):
        return span
    if isinstance(tree, Mapping) and tree.entries:
        return tree.entries[0].span if tree.entries[0].span.line == span.line else tree.entries[0].key.span
    return replace(span, end_line=span.line, end_column=span.column + 1)


def _fault(error: Any, tree: Mapping) -> Diagnostic:
    """Any error but an unknown or missing key."""
    loc = tuple(part for part in error["loc"] if not str(part).startswith("<"))  # without union tags
    kind = str(error["type"])
    context = error.get("ctx") or {}
    node, key, _ = _walk(loc, tree)
    if kind == "expression_item" and isinstance(node, Sequence):
        node = node.items[context["index"]]
    element = bool(loc) and isinstance(loc[-1], int)
    subject = f"an entry of `{key}`" if element or kind == "expression_item" else f"`{key}`"
    if key not in _EXAMPLES and len(loc) > 1:  # a name that the user chose
        subject = f"the value of `{key}`"
    example = _EXAMPLES.get(key) or _EXAMPLES.get(str(loc[0]))
    help = f"for example: {example}" if example else None
    span = _first_line(node)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _no_item(node, span)
    if kind in _WANTED:
        wanted = _WANTED[kind]
        if kind == "string_type" and key in ("send", "on", "for", "each"):
            wanted = "a chunk" if key in ("send", "on") else "a range"
        if kind == "model_type" and element:
            wanted = f"a mapping such as `{'use' if key in ('chain', 'beside') else 'send'}: …`"
        if key in ("collective", "topology"):
            wanted = "a name or a mapping" if key == "collective" else "a mapping"
        message = f"{subject} must be {wanted}, found {_describe(node)}"
        if _describe(node) == "nothing":
            message = f"{subject} is empty; expected {wanted}"
        return Diagnostic(code="RS112", message=message, primary=Label(span=span, text=f"expected {wanted}"), help=help)
    if kind == "literal_error":
        return _no_choice(node, subject, key, span, str(context.get("expected", "")))
    limits = {
        "greater_than_equal": f"at least {context.get('ge')}",
        "too_short": f"at least {_count(context.get('min_length', 1))}",
        "too_long": f"at most {_count(context.get('max_length'))}",
    }
    message = f"{subject} must {'be' if kind == 'greater_than_equal' else 'have'} {limits.get(kind, error['msg'])}"
    if key == "links" and kind in ("too_short", "too_long") and element:
        message = "a link joins two ranks: [0, 1]"
    label = f"found {_describe(node)}" if kind == "greater_than_equal" else ""
    return Diagnostic(code="RS113", message=message, primary=Label(span=span, text=label), help=help)


def _count(number: Any) -> str:
    return "one entry" if number == 1 else f"{number} entries"


def _no_item(node: Tree, span: Span) -> Diagnostic:
    help = "an item of `steps:` has one of the keys `send`, `step`, `for`, `use`, `beside`, `synth`"
    if not isinstance(node, Mapping):
        if isinstance(node, Sequence):
            help = "transfers that run at once are `- step: [ … ]`"
        return Diagnostic(
            code="RS112",
            message=f"an item of the steps must be a mapping, found {_describe(node)}",
            primary=Label(span=span, text="expected a mapping such as `send: …`"),
            help=help,
        )
    if node.entries:
        name = node.entries[0].key
        return Diagnostic(
            code="RS114",
            message=f"`{name.text.value[:40]}` is no kind of step",
            primary=Label(span=name.span, text="unknown"),
            help=help,
        )
    return Diagnostic(code="RS114", message="an empty item among the steps", primary=Label(span=span), help=help)


def _no_choice(node: Tree, subject: str, key: str, span: Span, expected: str) -> Diagnostic:
    choices = [part.strip(" '") for part in expected.replace(" or ", ",").split(",") if part.strip(" '")]
    text = node.text.value if isinstance(node, Scalar) else ""
    near = closest(text, choices)
    label = f"did you mean `{near}`?" if near else "not one of the choices"
    if key == "op" and text in ("add", "sum", "accumulate", "+", "="):
        near = "reduce" if text != "=" else "copy"
        label = f"write `{near}`"
    message = f"{subject} cannot be {_describe(node).removeprefix('the text ')}"
    return Diagnostic(
        code="RS113",
        message=message,
        primary=Label(span=span, text=label),
        help=f"choose one of {listed(choices, 'or')}",
    )


def _check_single(key: str, node: Mapping, choices: tuple[str, ...], found: list[Diagnostic]) -> list[Diagnostic]:
    """`collective:` and `topology:` name exactly one thing."""
    lines = {d.primary.span for d in found if d.primary}
    # What only adds to a topology does not count, unless it is all there is.
    more = ("twist", *SPEEDS, "routed")
    entries = [e for e in node.entries if e.key.text.value not in more] if key == "topology" else None
    node = replace(node, entries=tuple(entries)) if entries is not None else node
    names = [entry.key.text.value for entry in node.entries]
    if key == "collective" and len(names) == 1 and names[0] in choices and names[0] not in (*ROOTED, "permute"):
        found[:] = [d for d in found if not (d.primary and d.primary.span == node.entries[0].key.span)]
        return [
            Diagnostic(
                code="RS113",
                message=f"`{names[0]}` takes no argument",
                primary=Label(span=node.entries[0].span),
                help=f"write `collective: {names[0]}`",
            )
        ]
    if any(entry.key.span in lines for entry in node.entries):
        return []
    if len(names) == 1:
        entry = node.entries[0]
        if isinstance(entry.value, Scalar) and plain(entry.value) is None and entry.value.span not in lines:
            example = _EXAMPLES.get(names[0], "") if key == "topology" else f"collective: {{{names[0]}: 0}}"
            return [
                Diagnostic(
                    code="RS112",
                    message=f"`{names[0]}` has no value",
                    primary=Label(span=entry.span),
                    help=f"write `{example}`",
                )
            ]
        return []
    message = f"`{key}` must name one {key}, found {len(names)}" if names else f"`{key}` names no {key}"
    span = node.entries[1].key.span if names else node.span
    return [
        Diagnostic(
            code="RS113", message=message, primary=Label(span=span), help=f"choose one of {listed(choices, 'or')}"
        )
    ]
