import copy
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from ringsched.diagnostics import Diagnostic, DiagnosticError, exit_code
from ringsched.expr import Int, Var, show
from ringsched.schedule.loader import load, read_text, set_parameters, shipped_directory, shipped_names, sources
from ringsched.schedule.schedule import Beside, Loop, Schedule, Step, Use
from ringsched.schedule.shape import plainly_right
from ringsched.schedule.surface import FileModel, json_schema
from ringsched.schedule.tree import MAX_BYTES, parse_tree, plain
from ringsched.schedule.vocabulary import FILE_KEYS, TRANSFER_KEYS

RING = """\
schedule: all_gather
collective: all_gather
topology: {ring: N}
params: {N: 4}
chunks: [N]
steps:
  - for: s in 0 .. N - 2
    do:
      - send: chunk[(r - s) % N]
        to: r + 1
"""


def refused(call: Callable[[], object]) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as error:
        call()
    return error.value.diagnostics


def codes(text: str, path: str = "f.yaml") -> list[tuple[str, int, int]]:
    """Code, line and column of every finding."""
    found = []
    for diagnostic in refused(lambda: load(path, text)):
        assert diagnostic.primary is not None
        found.append((diagnostic.code, diagnostic.primary.span.line, diagnostic.primary.span.column))
    return found


def under(schedule: Schedule, text: str, node: object) -> str:
    """The characters of the file that a node's span covers."""
    span = node.span  # type: ignore[attr-defined]
    assert span.line == span.end_line
    return text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]


# -- files ------------------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    (tmp_path / "all_gather.yaml").write_text(RING)
    (diagnostic,) = refused(lambda: load(tmp_path / "all_gater.yaml"))
    assert diagnostic.code == "RS101"
    assert "did you mean" in (diagnostic.help or "")
    assert exit_code([diagnostic]) == 2


def test_directory(tmp_path: Path) -> None:
    assert refused(lambda: load(tmp_path))[0].code == "RS102"


def test_unreadable(tmp_path: Path) -> None:
    assert refused(lambda: load(str(tmp_path) + "/a\0b"))[0].code == "RS101"
    assert refused(lambda: load("x" * 5000))[0].code == "RS101"
    os.mkfifo(tmp_path / "pipe")
    assert refused(lambda: load(tmp_path / "pipe"))[0].code == "RS101"


def test_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"schedule: a\nparams: {N\xff: 4}\n")
    (diagnostic,) = refused(lambda: load(file))
    assert diagnostic.code == "RS103"
    assert diagnostic.primary is not None
    assert (diagnostic.primary.span.line, diagnostic.primary.span.column) == (2, 11)
    assert "0xff" in diagnostic.message


def test_too_large(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"#" * (10 << 20))
    (diagnostic,) = refused(lambda: load(file))
    assert diagnostic.code == "RS104"
    assert "10,485,760" in diagnostic.message
    file.write_text(RING + "#" * (MAX_BYTES - len(RING)))
    assert load(file).name == "all_gather"


@pytest.mark.parametrize("text", ["", "\n", "# a\n\n  # b", "\ufeff", "---\n", "   "])
def test_empty(text: str) -> None:
    assert refused(lambda: load("f.yaml", text))[0].code in ("RS105", "RS112")


@pytest.mark.parametrize("bad", ["\0", "\x1b", "\x7f", "\x85", "\u2028", "\ufffe", "\r"])
def test_control_characters(bad: str) -> None:
    assert codes(RING.replace("r + 1", f"r{bad} + 1")) == [("RS106", 10, 14)]


def test_byte_order_mark_and_line_ends() -> None:
    plain = load("f.yaml", RING)
    assert load("f.yaml", "\ufeff" + RING) == plain
    dos = load("f.yaml", RING.replace("\n", "\r\n"))
    assert dos == plain
    assert dos.steps_span == plain.steps_span


@pytest.mark.parametrize("seed", range(200))
def test_mangled_files_give_diagnostics(seed: int) -> None:
    """Cutting, doubling and swapping characters never leads to another exception."""
    random_ = random.Random(seed)
    text = RING
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(text))
        piece = random_.choice("[]{}:,&*!|>'\"%@`#?- \n\t()0r\\é")
        cut = random_.choice([0, 0, 1, 5])
        text = text[:at] + piece * random_.choice([0, 1, 1, 30]) + text[at + cut :]
    try:
        load("f.yaml", text)
    except DiagnosticError as error:
        assert all(re.fullmatch(r"RS[12]\d\d", d.code) for d in error.diagnostics)


# -- what a good file means --------------------------------------------------------------------------------------------


def test_a_loop_of_transfers_is_one_step() -> None:
    schedule = load("f.yaml", RING)
    (loop,) = schedule.items
    assert isinstance(loop, Loop)
    (step,) = loop.body
    assert isinstance(step, Step)
    (transfer,) = step.transfers
    assert show(loop.range.last) == "N - 2"
    assert (transfer.op, transfer.when, transfer.sender, transfer.each) == ("copy", (), None, None)


def test_spans() -> None:
    schedule = load("f.yaml", RING)
    (loop,) = schedule.items
    assert isinstance(loop, Loop)
    (step,) = loop.body
    assert isinstance(step, Step)
    (transfer,) = step.transfers
    assert under(schedule, RING, schedule) == "all_gather"
    assert under(schedule, RING, schedule.topology) == "{ring: N}"
    assert under(schedule, RING, schedule.parameters[0]) == "N: 4"
    assert under(schedule, RING, loop) == "for: s in 0 .. N - 2"
    assert under(schedule, RING, loop.range) == "s in 0 .. N - 2"
    assert under(schedule, RING, transfer) == "send: chunk[(r - s) % N]"
    assert under(schedule, RING, transfer.chunk) == "chunk[(r - s) % N]"
    assert under(schedule, RING, transfer.to) == "r + 1"
    assert schedule.chunks_span is not None and schedule.chunks_span.column == 9
    assert schedule.steps_span is not None and schedule.steps_span.line == 6


def test_spans_of_wishes() -> None:
    text = RING + "lowering: {slots: 2, unroll: false, memory: hbm, barrier: none}\n"
    lowering = load("f.yaml", text).lowering
    assert (lowering.slots, lowering.unroll, lowering.memory, lowering.barrier) == (2, False, "hbm", "none")
    assert lowering.semaphores is None
    spans = dict(lowering.spans)
    assert text.split("\n")[10][spans["unroll"].column - 1 : spans["unroll"].end_column - 1] == "unroll: false"


BODY = """\
schedule: several
collective: {broadcast: N - 1}
topology: {torus: [N, 2]}
params: {N: 4}
chunks: [N, 2]
steps:
  - send: chunk[0]
    from: [0, 1]
    to: [x + 1, y]
  - step:
      - send: chunk[0, 0]
        to: r ^ 1
        op: reduce
        when: r != 0
      - {send: "chunk[d, 1]", each: d in 0 .. N - 1, to: [x - 1, y], when: [x > 0, d < 2]}
  - for: s in 0 .. 1
    do:
      - for: t in s .. 3
        do: []
      - send: chunk[s]
        to: [x, y + 1]
"""


def test_items_of_all_kinds() -> None:
    schedule = load("f.yaml", BODY)
    assert schedule.collective.root is not None and show(schedule.collective.root) == "N - 1"
    assert len(schedule.topology.sides) == 2
    first, second, third = schedule.items
    assert isinstance(first, Step) and isinstance(second, Step) and isinstance(third, Loop)
    assert first.transfers[0].sender is not None
    assert [show(c) for c in first.transfers[0].to.coordinates] == ["x + 1", "y"]
    pair = second.transfers
    assert [t.op for t in pair] == ["reduce", "copy"]
    assert [len(t.when) for t in pair] == [1, 2]
    assert pair[1].each is not None and pair[1].each.var == "d"
    assert [type(item) for item in third.body] == [Loop, Step]


def test_plain_rooted_collective_has_root_0() -> None:
    assert load("f.yaml", RING.replace("collective: all_gather", "collective: reduce")).collective.root == Int(value=0)
    assert load("f.yaml", RING).collective.root is None


def test_permutation_is_an_expression_in_r() -> None:
    schedule = load("f.yaml", RING.replace("collective: all_gather", "collective: {permute: (r + 1) % N}"))
    assert schedule.collective.permutation is not None
    assert show(schedule.collective.permutation) == "(r + 1) % N"


def test_links() -> None:
    assert load("f.yaml", RING.replace("{ring: N}", "{links: [[0, 1], [1, 2]]}")).topology.links == ((0, 1), (1, 2))


def test_empty_steps_are_legal() -> None:
    assert load("f.yaml", RING[: RING.index("steps:")] + "steps: []\n").items == ()


def test_words_that_other_yaml_readers_change() -> None:
    text = RING.replace("N: 4", "on: 4, yes: 1, null: 2").replace("N", "on")
    assert [p.name for p in load("f.yaml", text).parameters] == ["on", "yes", "null"]
    quoted = text.replace("{ring: on}", '{ring: "null"}')
    assert load("f.yaml", quoted).topology.sides == (Var(name="null"),)


# -- use --------------------------------------------------------------------------------------------------------------

OUTER = """\
schedule: outer
collective: all_gather
topology: {ring: N}
params: {N: 8, M: 3}
chunks: [N, 2]
steps:
"""


def test_use_relative_and_by_name(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "inner.yaml").write_text(RING.replace("{N: 4}", "{N: 4, K: 2, L: 1}"))
    (tmp_path / "near.yaml").write_text(RING)
    outer = tmp_path / "outer.yaml"
    outer.write_text(
        OUTER
        + "  - use: parts/inner.yaml\n    with: {K: M + 1}\n    on: chunk[:, 0]\n"
        + "  - beside:\n      - use: near\n      - use: near\n        with: {N: M}\n"
    )
    use, beside = load(outer).items
    assert isinstance(use, Use) and isinstance(beside, Beside)
    assert use.path == "parts/inner.yaml" and use.schedule.name == "all_gather"
    assert [(name, show(e)) for name, e in use.arguments] == [("N", "N"), ("K", "M + 1")]
    assert use.on is not None and len(use.on.index) == 2
    assert [{n: show(e) for n, e in u.arguments} for u in beside.uses] == [{"N": "N"}, {"N": "M"}]
    assert beside.uses[0].schedule is beside.uses[1].schedule  # read once


def test_use_of_a_shipped_schedule(tmp_path: Path) -> None:
    if "all_gather" not in shipped_names():
        pytest.skip("no shipped schedules in this tree")
    outer = tmp_path / "outer.yaml"
    outer.write_text(OUTER + "  - use: all_gather\n")
    (use,) = load(outer).items
    assert isinstance(use, Use) and use.schedule.path == str(shipped_directory() / "all_gather.yaml")


def test_use_goes_only_so_deep(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"f{number}.yaml").write_text(OUTER + f"  - use: f{number + 1}\n")
    assert refused(lambda: load(tmp_path / "f0.yaml"))[0].code == "RS122"


def test_many_uses_are_read_once(tmp_path: Path) -> None:
    for number in range(12):  # 2^12 paths, 12 files
        (tmp_path / f"f{number}.yaml").write_text(OUTER + f"  - use: f{number + 1}\n" * 2)
    (tmp_path / "f12.yaml").write_text(OUTER + "  - send: chunk[q]\n    to: r + 1\n")
    assert [d.code for d in refused(lambda: load(tmp_path / "f0.yaml"))] == ["RS202"]


def test_use_of_a_bad_file_points_at_the_use(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "outer.yaml").write_text(OUTER + "  - use: empty\n")
    (diagnostic,) = refused(lambda: load(tmp_path / "outer.yaml"))
    assert diagnostic.code == "RS105" and diagnostic.primary is not None
    assert (diagnostic.primary.span.line, diagnostic.primary.span.column) == (7, 10)


# -- findings ---------------------------------------------------------------------------------------------------------


def test_findings_are_collected() -> None:
    text = RING.replace("(r - s) % N", "(r - s) / N").replace("to: r + 1", "to: q").replace("s in 0", "N in 0")
    assert codes(text) == [("RS212", 7, 10), ("RS203", 9, 29), ("RS202", 10, 13)]


def test_one_typo_one_finding() -> None:
    for key in ("schedule", "collective", "topology", "chunks", "steps", "for", "do", "send", "to", "ring"):
        wrong = key[:-1] + "q" if len(key) > 2 else key + "o"
        text = re.sub(rf"(^|- |\{{| ){key}:", rf"\g<1>{wrong}:", RING, count=1, flags=re.MULTILINE)
        assert text != RING
        found = codes(text)
        assert [code for code, _, _ in found] == ["RS110"], (key, found)


def test_an_unknown_name_is_reported_once() -> None:
    (diagnostic,) = refused(lambda: load("f.yaml", RING.replace("params: {N: 4}\n", "")))
    assert diagnostic.code == "RS202"
    assert diagnostic.notes == ("names in scope: none", "also in lines 4, 6, 8")


def test_scopes() -> None:
    each = RING.replace("to: r + 1", "to: r + d\n        each: d in 1 .. s\n        when: d < 3\n        from: s")
    assert load("f.yaml", each)
    assert codes(each.replace("from: s", "from: d")) == [("RS202", 13, 15)]
    assert codes(each.replace("1 .. s", "1 .. r")) == [("RS202", 11, 25)]
    assert codes(each.replace("d in 1", "s in 1")) == [("RS202", 10, 17), ("RS212", 11, 15)]
    after = RING + "  - send: chunk[s]\n    to: r + 1\n"  # the loop is over
    assert codes(after) == [("RS202", 11, 17)]
    assert codes(RING.replace("chunks: [N]", "chunks: [r]")) == [("RS202", 5, 10)]


def test_set_parameters() -> None:
    schedule = load("f.yaml", RING)
    assert set_parameters(schedule, {"N": 8}).parameters[0].value == 8
    assert set_parameters(schedule, {}) == schedule
    (diagnostic,) = refused(lambda: set_parameters(schedule, {"n": 8}))
    assert diagnostic.code == "RS213" and "did you mean `N`?" in (diagnostic.help or "")
    assert refused(lambda: set_parameters(schedule, {"N": 1 << 62}))[0].code == "RS205"


def test_sources_are_those_of_the_findings(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(RING.replace("r + 1", "r / 1"))
    found = refused(lambda: load(file))
    assert list(sources(found)) == [str(file)]
    assert read_text(file) == sources(found)[str(file)]


# -- the JSON schema --------------------------------------------------------------------------------------------------


def test_json_schema_names_every_key() -> None:
    schema = json_schema()
    defined = schema["$defs"]
    assert isinstance(defined, dict)
    assert set(defined["FileModel"]["properties"]) == set(FileModel.model_fields)
    assert defined["FileModel"]["required"] == ["schedule", "collective", "topology", "chunks", "steps"]
    assert defined["ChainModel"]["required"] == ["schedule", "topology", "chain"]
    text = str(schema)
    for key in ("'for'", "'with'", "'from'", "'send'", "'beside'", "'slots'"):
        assert key in text


# -- the short cut past pydantic ---------------------------------------------------------------------------------------


def accepted(data: object) -> bool:
    try:
        FileModel.model_validate(data)
    except ValidationError:
        return False
    return True


def test_what_is_plainly_right_is_right() -> None:
    """Random damage to good data: whatever the short cut lets pass, the models let pass."""
    random_ = random.Random(1)
    values = [None, True, 1, "r", [], {}, ["r"], {"r": 1}, [None], [[0, 1]], {"send": "chunk", "to": 1}, {"use": "a"}]
    more = ["step", "for", "do", "use", "with", "on", "beside", "ring", "reduce", "slots", "unroll", "q"]
    keys = [*TRANSFER_KEYS, *FILE_KEYS, *more]
    passed = 0
    good = [plain(parse_tree(text, "f")) for text in (RING + WISHES, BODY, OUTER + USES)]
    for _ in range(4000):
        data = copy.deepcopy(random_.choice(good))
        for _ in range(random_.randint(1, 3)):
            damage(data, random_, values, keys)
        if plainly_right(data):
            passed += 1
            assert accepted(data), data
    assert passed > 100


WISHES = "lowering: {slots: 2, semaphores: 1, memory: hbm, unroll: false, barrier: none}\n"
USES = """\
  - use: a
    with: {N: M + 1}
    on: chunk[:, 0]
  - beside:
      - use: near
      - use: near
        with: {N: M}
"""


def damage(data: object, random_: random.Random, values: list[object], keys: list[str]) -> None:
    """Changes, removes or adds one thing somewhere in `data`."""
    places: list[dict[str, object] | list[object]] = []

    def visit(node: object) -> None:
        if isinstance(node, dict | list):
            places.append(node)
            for child in node.values() if isinstance(node, dict) else node:
                visit(child)

    visit(data)
    place = random_.choice(places)
    value = copy.deepcopy(random_.choice(values))
    if isinstance(place, list):
        place.insert(random_.randint(0, len(place)), value)
    elif random_.random() < 0.3 and place:
        del place[random_.choice(list(place))]
    else:
        place[random_.choice([*place, *keys])] = value


@pytest.mark.parametrize("text", [RING + WISHES, BODY, OUTER + USES], ids=["ring", "body", "uses"])
def test_good_files_take_the_short_cut(text: str) -> None:
    assert plainly_right(plain(parse_tree(text, "f")))
