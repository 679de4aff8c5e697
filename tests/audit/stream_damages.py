"""Modules of collective matmuls with one damage in the part that streams operands from HBM."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What takes the place of one piece of the text; `method`: where it stands, of `_Streamed` or `_Plan`.

    The text calls `_damaged` where the damage is reached; what that gets, it returns.
    """

    method: str
    old: str
    new: str
    line: int
    text: str

    @property
    def synchronises(self) -> bool:
        """Whether it takes out a statement that copies or waits, or the call of one for a tile of the weight."""
        return self.new == "_damaged()" and bool(re.match(r"(_wait|_copy|self\.wait|arrive)\(", self.old))

    def __str__(self) -> str:
        return f"{self.method}: {self.old} → {self.new}, line {self.line}"


# Statements that are taken out.
DROPPED = (
    r"_wait\(|_copy\(|self\.wait\(|self\.load\(|fetch\(|arrive\(|multiply\(0|"
    r"start \+= |self\.(passes|calls) \+= |self\.known = max"
)

# Expressions, and what is written in their place: each occurrence by itself.
REPLACED = {
    # a slot, or one of two buffers, that is another one's
    "plan.slot(q)": "plan.slot(q + 1)",
    "plan.slot(j)": "plan.slot(j + 1)",
    "plan.slot(first + j)": "plan.slot(first + j + 1)",
    "plan.slot(following)": "plan.slot(following + 1)",
    "plan.slot": "lambda j: plan.slot(j + 1)",
    "slot(j)": "slot(j + 1)",
    "number % 2": "0",
    "i % 2": "0",
    "(j - first) % 2": "0",
    "fetch(i + 1, 1 - k)": "fetch(i + 1, k)",
    "fetch(j + 1, 1 - k)": "fetch(j + 1, k)",
    "out.at[k, place]": "out.at[1 - k, place]",
    "stored.at[k]": "stored.at[1 - k]",
    "residual.at[k, place]": "residual.at[1 - k, place]",
    "fetched.at[k]": "fetched.at[1 - k]",
    "x.at[k]": "x.at[1 - k]",
    "arrived.at[k]": "arrived.at[1 - k]",
    "self.buffers['loaded'].at[slot]": "self.buffers['loaded'].at[0]",
    "self.kept + self.ahead + 1": "self.kept + self.ahead",
    "jnp.where(j < kept, j, later)": "later",
    "kept + (j - kept) % others": "kept + (j - kept) // 2 % others",
    # loaded, stored or awaited once too often, or once too little
    "following < total": ("following <= total", "following + 1 < total"),
    "j + plan.ahead < plan.count": ("j + plan.ahead <= plan.count", "j + plan.ahead + 1 < plan.count"),
    "j + 1 < last": ("j + 1 <= last", "j + 2 < last"),
    "j - first > 1": ("j - first > 0", "j - first > 2"),
    "i + 1 < count": ("i + 1 <= count", "i + 2 < count"),
    "number + 1 < len(blocks)": "number + 2 < len(blocks)",
    "min(2, last - first)": "min(1, last - first)",
    "min(plan.ahead, plan.loads)": ("min(plan.ahead, plan.loads) - 1", "min(plan.ahead, plan.loads) + 1"),
    "min(plan.ahead, count)": ("min(plan.ahead, count) - 1", "min(plan.ahead, count) + 1"),
    "self.count * self.passes": ("self.count * (self.passes - 1)", "self.count * (self.passes + 1)"),
    "self.arrive": "None",
    # another tile, other rows or columns
    "part(target, j)": "part(target, (j + 1) % last)",
    "part(product.targets[0], j)": ("part(product.targets[0], j + 1)", "part(product.targets[0], 0)"),
    "part(product.finish.residual, j)": "part(product.finish.residual, 0)",
    "part(plus, j)": "part(plus, 0)",
    "part(ref, j)": "part(ref, 0)",
    "w.columns(j, self.plan.tile)": "w.columns(0, self.plan.tile)",
    "w.columns(i, target.shape[-1])": "w.columns(0, target.shape[-1])",
    "j + plan.ahead": "j",
    "following % count": ("following", "0"),
    "q % plan.count": "q % plan.count + 1",
    "pl.ds(i * rows, rows)": "pl.ds(0, rows)",
    "pl.ds(i * tile, tile)": "pl.ds(0, tile)",
    "i % each * size": "0",
    "i // each": "0",
    "(self.passes + number) * count": ("self.passes * count", "number * count", "(self.passes + number) * count + 1"),
    "[*self.seen, *products]": "products",
    "int(alone)": "0",
    "upto": "plan.count",
}


def damages(source: str) -> list[Damage]:
    """The module with each statement of DROPPED taken out, with each expression of REPLACED replaced."""
    lines = source.splitlines(keepends=True)
    found = []
    for method, node in _nodes(source):
        old = ast.unparse(node)
        if isinstance(node, ast.stmt):
            news = ["_damaged()"] if re.match(DROPPED, old) else []
        else:
            known = REPLACED.get(old, ())
            news = [f"_damaged({new})" for new in ((known,) if isinstance(known, str) else known)]
        for new in news:
            text = _replaced(lines, node, new)
            found.append(Damage(method=method, old=old, new=new, line=node.lineno, text=text))
    return found


def _nodes(source: str) -> list[tuple[str, ast.stmt | ast.expr]]:
    """What may be damaged, and the method or function that it belongs to."""
    found = []
    for top in ast.parse(source).body:
        if isinstance(top, ast.ClassDef) and top.name in ("_Streamed", "_Plan"):
            functions = [f for f in top.body if isinstance(f, ast.FunctionDef)]
        else:
            functions = [top] if isinstance(top, ast.FunctionDef) and top.name == "_apart" else []
        for function in functions:
            within = [node for statement in function.body for node in ast.walk(statement)]
            calls = [node for node in within if isinstance(node, ast.Call)]
            spared = {id(node.func) for node in calls}
            # How many bytes are awaited is all that what is awaited tells.
            spared |= {
                id(node) for call in calls if ast.unparse(call.func) == "_wait" for node in ast.walk(call.args[0])
            }
            for node in within:
                statement = isinstance(node, ast.Expr | ast.Assign | ast.AugAssign)
                loaded = isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store)
                if (statement or loaded) and id(node) not in spared:
                    found.append((function.name, node))
    return found


def _replaced(lines: list[str], node: ast.stmt | ast.expr, new: str) -> str:
    assert node.end_lineno is not None and node.end_col_offset is not None
    first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
    middle = first[: node.col_offset] + new.encode() + last[node.end_col_offset :]
    return "".join([*lines[: node.lineno - 1], middle.decode(), *lines[node.end_lineno :]])
