"""Kernels with operands in HBM pass their audit whatever the plan; damaged in what streams them, they do not."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from stream_damages import Damage, damages
from test_product_audits import PRODUCTS, by_lax

import ringsched as rs
from ringsched.auditing.audit import AuditReport
from ringsched.auditing.tracing import AuditError
from ringsched.collective import as_module

SLOW = pytest.mark.slow
TILE = 128  # columns; a shard of the weight has four
ROWS = 16  # of a unit; a part of it can be a block


@functools.cache
def source(name: str, ranks: int) -> str:
    return rs.compile(name).source(N=ranks)


def shapes(name: str, ranks: int) -> dict[str, tuple[int, int]]:
    """Of x, w and the result on one rank."""
    parts = 2 if "bidirectional" in name and ranks % 2 == 0 else 1
    rows, depth, cols = ROWS, 128, 4 * TILE
    gathers, features = name.startswith("all_gather"), "features" in name
    m, k, n = (rows, parts * depth, cols) if features and gathers else (parts * rows, depth, cols)
    m, n = (rows, parts * cols) if features and not gathers else (m, n)
    if gathers:
        return {"x": (m, k), "w": (ranks * k if features else k, n), "o": (m if features else ranks * m, n)}
    if "reduce_scatter" in name:
        x, w = ((m, k), (k, ranks * n)) if features else ((ranks * m, k), (k, n))
        return {"x": x, "w": w, "o": (m, n)}
    return {"x": (ranks * m, k), "w": (k, n), "o": (ranks * m, n)}


def audit(module: ModuleType, name: str, ranks: int, with_: str = "", without: str = "") -> AuditReport:
    """with_: what there is beside x and w: "gate", "scale", "residual"; without: what is not expected to matter."""
    options = with_.split()
    sizes = shapes(name, ranks)
    weights = 1 + ("gate" in options)
    taken = [sizes["x"], *[sizes["w"]] * weights]
    taken += [sizes["o"][1:]] * weights if "scale" in options else []
    taken += [sizes["o"]] if "residual" in options else []

    def named(operands: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any, Any]:
        ws, others = operands[:weights], operands[weights:]
        scale = others[:weights] if "scale" in options else None
        return ws, scale, others[-1] if "residual" in options else None

    def ours(x: Any, *operands: Any) -> Any:
        ws, scale, residual = named(operands)
        w, scale = (ws, scale) if weights > 1 else (ws[0], scale and scale[0])
        extras = {"scale": scale, "residual": residual, "memory": "hbm"}
        return getattr(module, name)(x, w, axis_name="i", **extras)

    def theirs(x: Any, *operands: Any) -> Any:
        ws, scale, residual = named(operands)
        ys = [by_lax(name)(x, w) for w in ws]
        ys = ys if not scale or without == "scale" else [y * it for y, it in zip(ys, scale, strict=True)]
        y = ys[0] * ys[1] if weights > 1 else ys[0]
        return y if residual is None or without == "residual" else y + residual

    return rs.audit(
        ours,
        mesh_axes={"i": ranks},
        args=[jax.ShapeDtypeStruct((ranks * shape[0], *shape[1:]), jnp.float32) for shape in taken],
        in_specs="i",
        out_specs="i",
        expect=theirs,
    )


def right(report: AuditReport) -> None:
    assert (report.verdict, report.values) == ("right", "right"), str(report)
    assert not report.diagnostics


# ---- plans ------------------------------------------------------------------------------------------------------


def kind(work: Any, plan: Any) -> str:
    """How a plan has tiles of the weight and x come."""
    if plan.upto is None:
        tiles = "all tiles anew"
    elif plan.upto[0] == plan.count:
        tiles = "all tiles kept"
    elif plan.kept == 0:
        tiles = "gathered first"
    else:
        tiles = "some tiles kept from the first group" if plan.upto[0] else "some tiles kept from a later group"
    if plan.block is None:
        return tiles
    units = plan.block / work.rows
    x = "several units" if units > 1 else "one unit" if units == 1 else "a part of a unit"
    return f"{tiles}, {x} at a time"


@functools.cache
def plans(name: str, ranks: int) -> list[tuple[str, Any]]:
    """Each with its kind. They are those for units of 256 rows, then made smaller, as an audit is then faster."""
    module = as_module(source(name, ranks), name)
    found: list[tuple[str, Any]] = []

    def collect(_: str, work: Any, *rest: Any) -> Any:
        work = dataclasses.replace(work, rows=256)
        for plan in work.plans([TILE]):
            block = plan.block and plan.block * ROWS // work.rows
            found.append((kind(work, plan), dataclasses.replace(plan, block=block)))
        raise LookupError

    module._plan = collect  # type: ignore[attr-defined]
    with pytest.raises(AuditError, match="LookupError"):
        audit(module, name, ranks)
    return found


def with_plan(name: str, ranks: int, plan: Any, text: str | None = None) -> ModuleType:
    """The module, of this text, that streams by a plan of another module."""
    module = as_module(text or source(name, ranks), name)
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    module._plan = lambda *_: module._Plan(**fields)  # type: ignore[attr-defined]
    return module


def every_kind(name: str, ranks: int) -> dict[str, Any]:
    """A plan of each kind; every other one has two tiles on their way, not one."""
    found: dict[str, list[Any]] = {}
    for each, plan in plans(name, ranks):
        found.setdefault(each, []).append(plan)
    return {each: next(p for p in of if p.ahead == 1 + i % 2) for i, (each, of) in enumerate(found.items())}


NEAR = {"all tiles anew", "all tiles kept"}
IN_BLOCKS = {f"{tiles}, {x} at a time" for tiles in NEAR for x in ("one unit", "a part of a unit")}
TOGETHER = {f"{tiles}, several units at a time" for tiles in NEAR}
GATHERED = {"some tiles kept from the first group", "gathered first"}
KINDS = {  # of N = 4
    "all_gather_matmul": NEAR | IN_BLOCKS | GATHERED | {"some tiles kept from a later group"},
    "all_gather_matmul_bidirectional": NEAR | IN_BLOCKS | TOGETHER | GATHERED | {"some tiles kept from a later group"},
    "all_gather_matmul_features": {"all tiles anew"},
    "all_gather_matmul_features_bidirectional": {"all tiles anew"},
    "matmul_all_reduce": NEAR | IN_BLOCKS,
    "matmul_reduce_scatter": NEAR | IN_BLOCKS,
    "matmul_reduce_scatter_bidirectional": NEAR | IN_BLOCKS | TOGETHER,
    "matmul_reduce_scatter_features": {it for it in {"all tiles anew", *IN_BLOCKS} if "anew" in it},
    "matmul_reduce_scatter_features_bidirectional": {it for it in {"all tiles anew", *IN_BLOCKS} if "anew" in it},
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_kinds_of_plans(name: str) -> None:
    """The planner has all of them to choose from."""
    assert {found for found, _ in plans(name, 4)} == KINDS[name]
    assert {plan.ahead for _, plan in plans(name, 4)} == {1, 2, 4}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("all_gather_matmul", 3),
        ("matmul_reduce_scatter_bidirectional", 2),
        ("matmul_reduce_scatter_features", 2),
        *(pytest.param(name, ranks, marks=SLOW) for name in PRODUCTS for ranks in (2, 3, 4, 8)),
    ],
)
def test_a_plan_of_each_kind(name: str, ranks: int) -> None:
    for plan in every_kind(name, ranks).values():
        right(audit(with_plan(name, ranks, plan), name, ranks))


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, 2 + i % 3) for i, name in enumerate(PRODUCTS)]
    + [pytest.param(name, ranks, marks=SLOW) for name in PRODUCTS for ranks in (2, 3, 4, 8)],
)
def test_the_plan_of_the_model(name: str, ranks: int) -> None:
    """With all that an epilogue takes."""
    with_ = "gate scale residual" if name.startswith("all_gather") else "scale residual"
    if name == "matmul_all_reduce":
        with_ = ""  # these are the same on all ranks, which operands of an audit are not
    right(audit(as_module(source(name, ranks), name), name, ranks, with_))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_plan(name: str) -> None:
    for _, plan in plans(name, 4):
        right(audit(with_plan(name, 4, plan), name, 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_loops(name: str) -> None:
    """A kernel whose steps are rolled up into loops, in which the number of passes is unknown."""
    ranks = 18 if name.endswith("bidirectional") else 12
    module = as_module(source(name, ranks), name)
    assert module._SPEC["rolled"] is not None
    if name.startswith("all_gather_matmul_features"):
        right(audit(module, name, ranks))  # whose sums are stored behind the loop, from VMEM
        return
    found = every_kind(name, ranks)
    assert {"all tiles anew", "all tiles anew, a part of a unit at a time"} <= set(found)
    for plan in list(found.values())[:: 4 if ranks > 12 else 1]:
        right(audit(with_plan(name, ranks, plan), name, ranks))


def test_other_results_are_not_expected() -> None:
    """The values are those of this very product: an expectation with one operand less is not met."""
    name = "all_gather_matmul"
    module = as_module(source(name, 2), name)
    for with_ in ("scale", "residual"):
        report = audit(module, name, 2, with_, without=with_)
        assert (report.verdict, report.values) == ("wrong", "wrong"), str(report)


# ---- damages ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One in which damages show; `block` and `kept`: of its plan, where there are several of a kind."""

    name: str
    ranks: int
    kind: str
    ahead: int = 1
    block: int | None = None
    kept: int | None = None
    with_: str = ""
    methods: tuple[str, ...]

    def plan(self) -> Any:
        found = [p for kind, p in plans(self.name, self.ranks) if (kind, p.ahead) == (self.kind, self.ahead)]
        return next(p for p in found if self.block in (None, p.block) and self.kept in (None, p.kept))


KERNELS = (
    Kernel(
        name="all_gather_matmul",
        ranks=3,
        kind="some tiles kept from the first group",
        kept=2,
        with_="scale residual",
        methods=("__init__", "__call__", "group", "arrive", "load", "wait", "tiles", "slot", "slots"),
    ),
    Kernel(
        name="all_gather_matmul_bidirectional",
        ranks=2,
        kind="all tiles anew",
        ahead=2,
        methods=("__call__", "anew", "load", "tiles", "loads", "slots"),
    ),
    Kernel(
        name="all_gather_matmul_bidirectional",
        ranks=2,
        kind="all tiles anew, one unit at a time",
        methods=("in_blocks",),
    ),
    Kernel(
        name="all_gather_matmul_bidirectional",
        ranks=4,
        kind="all tiles kept, several units at a time",
        block=2 * ROWS,
        methods=("group", "in_blocks"),
    ),
    Kernel(
        name="all_gather_matmul_bidirectional",
        ranks=2,
        kind="all tiles kept, a part of a unit at a time",
        methods=("in_rows",),
    ),
    Kernel(
        name="matmul_reduce_scatter",
        ranks=2,
        kind="all tiles anew, a part of a unit at a time",
        methods=("in_rows", "anew", "tiles"),
    ),
    Kernel(
        name="all_gather_matmul_features_bidirectional",
        ranks=2,
        kind="all tiles anew",
        with_="gate",
        methods=("anew", "parts", "tiles"),
    ),
    Kernel(
        name="matmul_reduce_scatter_features_bidirectional",
        ranks=2,
        kind="all tiles anew",
        methods=("_apart", "anew"),
    ),
    Kernel(
        name="all_gather_matmul",
        ranks=2,
        kind="some tiles kept from the first group",
        kept=1,
        methods=("tiles",),
    ),
)
METHODS = sorted({method for kernel in KERNELS for method in kernel.methods})
SYNCHRONISE = ("anew", "arrive", "in_blocks", "in_rows", "load", "tiles", "wait")


@functools.cache
def damages_of(name: str, ranks: int) -> list[Damage]:
    """Those of one number are the same in every module, as the text that streams is."""
    return damages(source(name, ranks))


def shown(number: int) -> bool:
    """Whether the damage of this number is called wrong, or is an error while the kernel is traced, in one of them."""
    for kernel in KERNELS:
        damage = damages_of(kernel.name, kernel.ranks)[number]
        if damage.method not in kernel.methods:
            continue
        module = with_plan(kernel.name, kernel.ranks, kernel.plan(), damage.text)
        module._damaged = lambda it=None: it  # type: ignore[attr-defined]
        try:
            if audit(module, kernel.name, kernel.ranks, kernel.with_).verdict == "wrong":
                return True
        except AuditError:
            return True
    return False


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.name} {kernel.kind}".replace(" ", "_"))
def test_they_are_right_without_damage(kernel: Kernel) -> None:
    module = with_plan(kernel.name, kernel.ranks, kernel.plan())
    right(audit(module, kernel.name, kernel.ranks, kernel.with_))


@pytest.mark.parametrize("method", SYNCHRONISE)
def test_kernels_that_do_not_wait_are_wrong(method: str) -> None:
    """Each copy and each wait is needed."""
    check_damages(method, True)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_other_damaged_kernels_are_wrong(method: str) -> None:
    """Each slot, tile, block, count and bound is that very one."""
    check_damages(method, False)


def check_damages(method: str, synchronises: bool) -> None:
    found = damages_of(KERNELS[0].name, KERNELS[0].ranks)
    numbers = [k for k, it in enumerate(found) if (it.method, it.synchronises) == (method, synchronises)]
    assert numbers
    for number in numbers:
        assert shown(number), str(found[number])


def test_every_damage_has_a_kernel() -> None:
    found = damages_of(KERNELS[0].name, KERNELS[0].ranks)
    assert {damage.method for damage in found} == set(METHODS)
    assert {damage.method for damage in found if damage.synchronises} == set(SYNCHRONISE)
