"""From a schedule to messages, and their text. (What they do is tried in tests/kernels/test_xla.py.)"""

from __future__ import annotations

import ast
import itertools
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shipped import CHAINS, DOUBLING, RINGS

from ringsched.diagnostics import DiagnosticError
from ringsched.expr import Binary, Compare, Int, Var, integer
from ringsched.pipeline import compile_portable, open_schedule
from ringsched.schedule.flat import flatten
from ringsched.verify.resolve import Resolver
from ringsched.xla.exchange import Exchange, Loop, Own, Round, Shift, Step
from ringsched.xla.lower import exchange_of
from ringsched.xla.rounds import colouring
from ringsched.xla.shifts import Turn, shift_of
from ringsched.xla.translate import Translator

FOLDER = Path(__file__).parents[1] / "xla"
PLAIN = [name for name in RINGS if name not in (*CHAINS, *DOUBLING) and "matmul" not in name]


def exchange(name: str, **values: int) -> Exchange:
    path = FOLDER / f"{name}.yaml"
    return exchange_of(flatten(open_schedule(path if path.exists() else name, values)))  # type: ignore[arg-type]


def messages(found: Exchange) -> list[object]:
    steps = (node.step if isinstance(node, Loop) else node for node in found.nodes)
    return [message for step in steps if isinstance(step, Step) for message in step.messages]


# ---- messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
def test_shipped_schedules_need_no_list_of_routes(name: str) -> None:
    assert all(isinstance(message, Shift) for message in messages(exchange(name, N=6)))


def test_equal_steps_are_a_loop() -> None:
    (loop,) = exchange("all_gather", N=7).nodes
    assert isinstance(loop, Loop) and (loop.var, loop.first, loop.last, loop.even) == ("s", 0, 5, True)


def test_pairs_that_change_make_a_loop_uneven() -> None:
    (loop,) = exchange("broadcast", N=7).nodes
    assert isinstance(loop, Loop) and not loop.even
    (loop,) = exchange("all_to_all", N=7).nodes  # the number of chunks changes
    assert isinstance(loop, Loop) and not loop.even


def test_schedules_side_by_side_share_a_loop() -> None:
    """Their variables have different names."""
    first, second = exchange("torus_parts", X=4, Y=4).nodes
    assert isinstance(first, Loop) and isinstance(second, Loop)
    assert first.even and (first.var, first.turns, len(first.step.messages)) == ("s", 3, 2)


def test_transfers_of_single_ranks_travel_together() -> None:
    steps = [node for node in exchange("pinned").nodes if isinstance(node, Step)]
    assert [len(step.messages) for step in steps] == [3, 2, 1]  # as many as the busiest rank sends or receives
    assert all(isinstance(message, Round) for step in steps for message in step.messages)


def test_rounds_are_partial_permutations() -> None:
    for message in messages(exchange("pinned")):
        assert isinstance(message, Round)
        assert len({route.sender for route in message.routes}) == len(message.routes)
        assert len({route.receiver for route in message.routes}) == len(message.routes)


def test_a_name_that_is_wrong_at_one_rank_is_no_name() -> None:
    """The chunks that really move are what counts, not the statement."""
    flat = flatten(open_schedule("shift", {"N": 5}))  # type: ignore[arg-type]
    moves = tuple(Resolver(flat).step(0))
    turn = Turn(transfer=flat.steps[0][0], moves=moves)
    assert shift_of(flat, ("N",), [turn], {}, None) is not None
    for rank in range(5):
        wrong = tuple(move._replace(chunks=((rank + 1) % 5,)) if move.sender == rank else move for move in moves)
        assert shift_of(flat, ("N",), [replace(turn, moves=wrong)], {}, None) is None


def test_colouring_is_proper_and_least() -> None:
    generator = random.Random(0)
    for _ in range(300):
        ranks = generator.randint(2, 8)
        every = [edge for edge in itertools.product(range(ranks), repeat=2) if edge[0] != edge[1]]
        edges = generator.sample(every, generator.randint(1, len(every)))
        colours = colouring(edges)
        assert set(colours) == set(edges)
        for end in (0, 1):
            seen = [(edge[end], colour) for edge, colour in colours.items()]
            assert len(set(seen)) == len(seen)
        busiest = max(sum(edge[end] == rank for edge in edges) for end in (0, 1) for rank in range(ranks))
        assert max(colours.values()) + 1 == busiest


# ---- text -------------------------------------------------------------------------------------------------------


def translator(**bounds: tuple[int, int]) -> Translator:
    return Translator(env={"N": 4}, bounds=bounds)


def test_what_jax_has_no_text_for_is_a_table() -> None:
    expr = Binary(op="*", left=Int(value=3), right=Compare(first=Var(name="r"), rest=(("<", Int(value=2)),)))
    found = translator(r=(0, 3))
    assert found.traced(expr) == "3 * jnp.array(TABLE_1)[r]"
    assert list(found.table_lines()) == ["TABLE_1 = [1, 1, 0, 0]"]
    assert found.number(expr) == "3 * (r < 2)"


def test_a_table_begins_where_the_variable_does() -> None:
    found = translator(r=(0, 1), s=(2, 4))
    expr = Compare(first=Var(name="r"), rest=(("==", Binary(op="-", left=Var(name="s"), right=Int(value=2))),))
    assert found.traced(expr) == "jnp.array(TABLE_1)[r, s - 2]"
    assert list(found.table_lines()) == ["TABLE_1 = [[1, 0, 0], [0, 1, 0]]"]


def test_large_intermediate_values_become_a_table_of_small_ones() -> None:
    big = Binary(op="*", left=Var(name="r"), right=Int(value=(1 << 31) + 1))
    found = translator(r=(0, 3))
    assert found.traced(Binary(op="%", left=big, right=Var(name="N"))) == "jnp.array(TABLE_1)[r]"
    assert list(found.table_lines()) == ["TABLE_1 = [0, 1, 2, 3]"]
    small = Binary(op="*", left=Var(name="r"), right=Int(value=1 << 29))
    assert found.traced(small) == f"r * {1 << 29}"


def test_a_loop_that_python_runs_has_numbers() -> None:
    found = translator(r=(0, 3), s=(0, 2))
    found.plain.add("s")
    expr = Compare(first=Var(name="s"), rest=(("<", Int(value=2)),))
    assert found.traced(expr) == "s < 2"
    assert integer(expr, {"s": 1}) == 1


def size(name: str, ranks: int) -> int:
    return sum(1 for _ in ast.walk(ast.parse(compile_portable(open_schedule(name, {"N": ranks})).source)))


@pytest.mark.parametrize("name", PLAIN)
def test_no_larger_at_32_ranks_than_at_20(name: str) -> None:
    """At both, the loops of an even number of messages are those of jax."""
    assert size(name, 32) <= size(name, 20)


@pytest.mark.parametrize("parameters", ["{K: 2, N: 1}", "{K: 2, N: 5}"])
def test_a_parameter_with_the_name_of_a_side(parameters: str) -> None:
    """N is the number of ranks in the text of kernels: another N stands there as a number."""
    text = f"""
schedule: gather
collective: all_gather
topology: {{ring: 2 * K}}
params: {parameters}
chunks: [2 * K]
steps:
  - for: s in 0 .. 2 * K - 2
    do:
      - send: chunk[(r - s * N) % (2 * K)]
        to: r + N
"""
    source = compile_portable(_written(text)).source
    assert source.count("\nN = ") == 1 and "\nN = 4  # ranks\n" in source and "+ N)" not in source
    assert f"_pairs(lambda r: r + {parameters[-2]})" in source


def test_reserved_names_are_not_used() -> None:
    """Parameters and loop variables of such names get others."""
    text = """
schedule: gather
collective: all_gather
topology: {ring: held}
params: {held: 4, pairs: 1}
chunks: [held]
steps:
  - for: axes in 0 .. held - 2
    do:
      - send: chunk[(r - axes) % held]
        to: r + pairs
"""
    source = compile_portable(_written(text)).source
    assert "\nheld_ = 4\npairs_ = 1\nCHUNKS = (held_,)\n" in source
    assert "pairs = _pairs(lambda r: r + pairs_)\n\n    for axes_ in range(3):" in source
    assert "arrived = _permute(held[(r - axes_) % held_], axes, pairs)" in source


def _written(text: str):  # type: ignore[no-untyped-def]
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return open_schedule(file.name)


# ---- products -----------------------------------------------------------------------------------------------------


def products(found: Exchange) -> list[str]:
    """What is multiplied in which order: chunks that a rank has (`own`, or `all` at one time), and messages (`+`)."""
    order = []
    for node in found.nodes:
        match node:
            case Own():
                order.append("own" if node.index else "all")
            case Loop():
                order.append(("+" if node.multiplies else "-") * node.turns)
            case _:
                order += ["+" if isinstance(m, Shift) and m.multiplies else "-" for m in node.messages]
    return order


def test_each_chunk_is_multiplied_as_it_arrives() -> None:
    assert products(exchange("all_gather_matmul", N=5)) == ["own", "++++"]
    assert products(exchange("all_gather_matmul_features_bidirectional", N=5)) == ["own", "++"]


def test_each_term_is_computed_before_it_is_sent() -> None:
    assert products(exchange("matmul_reduce_scatter", N=5)) == ["own", "++++"]
    assert products(exchange("matmul_all_reduce", N=5)) == ["own", "++++", "----"]


def test_a_part_that_something_comes_for_is_computed_by_itself() -> None:
    """At even sizes the two halves of the opposite rank's chunk go different ways."""
    found = exchange("matmul_reduce_scatter_bidirectional", N=4)
    assert products(found) == ["own", "own", "+", "+", "own", "own", "+", "-"]
    halves = [node.index[-1] for node in found.nodes if isinstance(node, Own)]
    assert halves == [Int(value=half) for half in (0, 1, 1, 0)]


def test_a_rank_alone_multiplies() -> None:
    assert products(exchange("all_gather_matmul", N=1)) == ["own"]
    assert products(exchange("matmul_reduce_scatter", N=1)) == ["all"]


def test_products_one_after_the_other() -> None:
    """`overlap: none`."""
    for name, expected in (("all_gather_matmul", ["----", "all"]), ("matmul_reduce_scatter", ["all", "----"])):
        schedule = open_schedule(name, {"N": 5}, "none")
        assert products(exchange_of(flatten(schedule))) == expected  # type: ignore[arg-type]


GATHER = """\
schedule: product
collective: all_gather
topology: {line: N}
params: {N: 3}
chunks: [N]
compute: {multiply: on arrival, shard: features}
steps:
  - for: s in 0 .. N - 2
    do:
      - {send: "chunk[r - s]", to: r + 1, when: [r < N - 1, r - s >= 0]}
      - {send: "chunk[r + s]", to: r - 1, when: [r > 0, r + s < N]}
"""


@pytest.mark.parametrize(
    "more",
    [
        '  - {send: "chunk[r]", to: r + 1, when: r < N - 1}\n',  # a chunk comes again
        '  - {send: "chunk[0]", from: 0, to: 1}\n',  # and to a single rank
    ],
)
def test_what_comes_twice_is_multiplied_once(more: str) -> None:
    assert "all" not in products(exchange_of(flatten(_written(GATHER))))
    assert products(exchange_of(flatten(_written(GATHER + more))))[-1] == "all"


SUM = """\
schedule: product
collective: reduce_scatter
topology: {ring: N, routed: true}
params: {N: 3}
chunks: [N]
compute: {multiply: before sending, shard: rows}
steps:
"""


def test_terms_that_some_ranks_send_are_computed_before() -> None:
    steps = """\
  - {send: "chunk[(r + 1) % N]", to: r + 1, op: reduce, when: r < 2}
  - {send: "chunk[(r + 1) % N]", to: r + 1, op: reduce, when: r == 2}
  - {send: "chunk[(r + 2) % N]", to: r - 1, op: reduce}
"""
    assert products(exchange_of(flatten(_written(SUM + steps))))[0] == "all"


def test_turns_that_compute_terms_are_no_loop() -> None:
    """In each turn the term of another chunk is sent for the first time."""
    steps = """\
  - for: h in 1 .. N - 1
    do:
      - {send: "chunk[(r + h) % N]", to: r + h, op: reduce}
"""
    assert products(exchange_of(flatten(_written(SUM + steps)))) == ["own", "+", "own", "-"]


def test_parts_that_some_ranks_only_need_are_computed_before() -> None:
    """The last step brings some ranks a chunk of which one half is touched: the others have no such half to compute."""
    text = """\
schedule: product
collective: reduce_scatter
topology: {ring: N}
params: {N: 3}
chunks: [N, 2]
compute: {multiply: before sending, shard: rows}
steps:
  - {send: "chunk[(r + 1) % N]", to: r - 1, op: reduce}
  - {send: "chunk[(r + 1) % N, 0]", to: r + 1, op: reduce}
  - {send: "chunk[(r + 1) % N]", to: r + 1, op: reduce}
"""
    everyone = exchange_of(flatten(_written(text)))
    assert products(everyone) == ["own", "+", "+", "own", "-"]
    guarded = text.rstrip()[:-1] + ", when: r < 2}\n"
    guarded += '  - {send: "chunk[(r + 1) % N, 1]", to: r + 1, op: reduce, when: r == 2}\n'
    assert products(exchange_of(flatten(_written(guarded))))[0] == "all"


def test_terms_that_some_ranks_only_need_are_computed_before() -> None:
    """On a line the ends send first: the others would compute what they do not have to have yet."""
    text = """\
schedule: product
collective: reduce_scatter
topology: {line: N}
params: {N: 3}
chunks: [N]
compute: {multiply: before sending, shard: rows}
steps:
  - {send: "chunk[2]", from: 0, to: 1, op: reduce}
  - {send: "chunk[0]", from: 2, to: 1, op: reduce}
  - {send: "chunk[r + 1]", to: r + 1, op: reduce, when: r < N - 1}
  - {send: "chunk[r - 1]", to: r - 1, op: reduce, when: r > 0}
"""
    found = products(exchange_of(flatten(_written(text))))
    assert found[0] == "all" and set(found[1:]) == {"-"}


def test_a_wrong_schedule_is_refused() -> None:
    wrong = open_schedule("all_gather", {"N": 4})
    text = Path(wrong.path).read_text(encoding="utf-8").replace("(r - s)", "(r - s - 1)")
    with pytest.raises(DiagnosticError) as found:
        compile_portable(_written(text))
    assert found.value.diagnostics[0].code == "RS301"


def test_importing_a_module_does_not_start_jax() -> None:
    """`jax.distributed.initialize` must come before jax makes its devices."""
    source = compile_portable(open_schedule("all_reduce", {"N": 4})).source
    check = "\nfrom jax._src import xla_bridge\nassert not xla_bridge.backends_are_initialized()\n"
    result = subprocess.run(
        [sys.executable, "-c", source + check], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
