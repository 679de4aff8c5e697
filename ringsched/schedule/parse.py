"""Expression text → `Expr`, `ChunkRef`, `Range`, with the place of every node in the file.

Python's own parser reads the text (never its evaluator); a white list turns the result into our nodes. What is not on
the list is RS203 with the place and what to write in its stead. A text that is no expression at all is RS201.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NoReturn

from ringsched.diagnostics import Span
from ringsched.expr import LIMIT, Binary, Compare, Expr, Extremum, Int, Lookup, Neg, Var
from ringsched.schedule.schedule import ChunkRef, Range, Slice
from ringsched.schedule.tree import Text, fail

MAX_LENGTH = 2000
MAX_DEPTH = 64

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitXor: "^",
    ast.LShift: "<<",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
# operators that are not allowed: their text and what to write instead
_REFUSED_BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.Div: ("/", "use // for integer division"),
    ast.Pow: ("**", "write the product out; a power of two is 1 << k"),
    ast.RShift: (">>", "use // with a power of two: a // (1 << k)"),
    ast.BitAnd: ("&", "use % for the low bits: a % (1 << k); write several conditions as a list under `when:`"),
    ast.BitOr: ("|", "use + for bits that do not overlap; write alternatives as transfers of their own"),
    ast.MatMult: ("@", "use * for a product"),
}
_REFUSED_COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Is: ("is", "use == to compare"),
    ast.IsNot: ("is not", "use != to compare"),
    ast.In: ("in", "write a range as a chain: a <= r < b"),
    ast.NotIn: ("not in", "write two transfers, one for each side of the range"),
}
_ALLOWED = "expressions hold integers, names, + - * // % ^ <<, comparisons, min(…), max(…), and entries of `tables:`"
Tables = Mapping[str, tuple[int, ...]]  # tables of constants by their names
_NO_TABLES: Tables = {}
_TOKEN = re.compile(
    r"\s*(?:(?P<float>\d+\.(?!\.)\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+\b|\.\d+)|(?P<radix>0[xXoObB]\w+)"
    r"|(?P<int>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<op>\.\.|&&|\|\||\*\*|//|<<|>>|[=!<>:]=|->|[-+*/%^<>=!(),.\[\]:&|~@'\"{}?])"
    r"|(?P<bad>\S))",
    re.ASCII,
)
_WORDS = frozenset({"and", "or", "not", "in", "is", "if", "else", "lambda", "for", "await", "yield", "async"})


def parse_expression(text: Text, tables: Tables = _NO_TABLES) -> Expr:
    """The expression that is the whole of `text`; raises `DiagnosticError` (RS201, RS202, RS203, RS205, RS215)."""
    return _Reader(text, tables).read()


def parse_chunk(text: Text, tables: Tables = _NO_TABLES) -> ChunkRef:
    """`chunk[i, a:b, :]`, or `chunk` alone for all of it."""
    return _Reader(text, tables).chunk()


def parse_range(text: Text, tables: Tables = _NO_TABLES) -> Range:
    """`VAR in FIRST .. LAST`."""
    value = text.value
    wanted = "write `s in 0 .. N - 2`; both ends are included"
    head = re.match(r"\s*(\w+)\s+in\b", value)
    if not head:
        if re.match(r"\s*(\w+)\s*=", value):
            wanted = "write `in` for `=`: `s in 0 .. N - 2`"
        raise fail("RS201", "not a range", text.at(0, len(value)), "expected `NAME in FIRST .. LAST`", wanted)
    ends = value[head.end() :].split("..")
    if len(ends) != 2:
        start = text.part(head.end(), len(value))
        if re.match(r"\s*range\s*\(", value[head.end() :]):
            wanted = "write `range(n)` as `0 .. n - 1`; both ends are included"
        label = "expected `FIRST .. LAST`" if len(ends) < 2 else "`..` is given more than once"
        raise fail("RS201", "not a range", start.span if start.value else text.span, label, wanted)
    middle = head.end() + len(ends[0])
    first, last = text.part(head.end(), middle), text.part(middle + 2, len(value))
    for piece, name, place in ((first, "FIRST", middle), (last, "LAST", len(value) - 1)):
        if not piece.value:
            raise fail("RS201", f"the range has no {name}", text.at(place, place + 1), "missing here", wanted)
    span = text.part(0, len(value)).span
    ends_of = parse_expression(first, tables), parse_expression(last, tables)
    return Range(var=head[1], first=ends_of[0], last=ends_of[1], span=span)


class _Reader:
    def __init__(self, text: Text, tables: Tables) -> None:
        self.tables = tables
        self.text = text.part(0, len(text.value)) if text.column is not None else text
        self.source = re.sub(r"\s", " ", self.text.value).strip()

    # -- text → Python's tree -------------------------------------------------------------------------------------

    def _parse(self) -> ast.expr:
        if not self.source:
            raise fail("RS201", "an expression is missing", self.text.span, "expected an expression here", _ALLOWED)
        if len(self.source) > MAX_LENGTH:
            raise fail(
                "RS215",
                f"an expression of {len(self.source):,} characters; the limit is {MAX_LENGTH:,}",
                self.text.span,
                "too long",
                "simplify it, or split the work over several steps",
            )
        self._check_tokens()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.source, mode="eval").body
        except SyntaxError as error:
            start = min(max((error.offset or 1) - 1, 0), len(self.source) - 1)
            self._fail("RS201", "not an expression", start, start + 1, "this cannot stand here", _ALLOWED)
        except (MemoryError, RecursionError, ValueError):
            self._too_deep(0, len(self.source))

    def _check_tokens(self) -> None:
        """What can be said better from the tokens than from Python's syntax error."""
        opened: list[tuple[str, int]] = []
        previous: re.Match[str] | None = None
        for token in _TOKEN.finditer(self.source):
            kind = token.lastgroup or "op"
            word = token[kind]
            start, stop = token.span(kind)
            self._check_token(kind, word, start, stop)
            if word in ("(", "["):
                if len(opened) >= MAX_DEPTH:
                    self._too_deep(start, stop)
                opened.append((word, start))
            elif word in (")", "]"):
                if not opened or (opened[-1][0] == "(") != (word == ")"):
                    label = "nothing to close" if not opened else f"closes a `{opened[-1][0]}`"
                    self._fail("RS201", f"unbalanced `{word}`", start, stop, label, "pair every bracket")
                opened.pop()
            if previous is not None:
                self._check_pair(previous, token, kind, word)
            previous = token
        if opened:
            word, start = opened[-1]
            self._fail(
                "RS201",
                f"`{word}` is never closed",
                start,
                start + 1,
                "opened here",
                f"add `{')' if word == '(' else ']'}`",
            )
        if previous is not None and previous.lastgroup == "op" and previous["op"] not in (")", "]"):
            start, stop = previous.span("op")
            if previous["op"] in ("'", '"', "}"):
                return
            label = f"something must follow `{previous['op']}`"
            self._fail("RS201", "the expression ends too early", start, stop, label, "add the missing operand")

    def _check_token(self, kind: str, word: str, start: int, stop: int) -> None:
        if kind == "bad":
            shown = word if word.isprintable() else f"U+{ord(word):04X}"
            help = {
                "−": "use the minus sign of the keyboard, -",
                "×": "use *",
                "≤": "use <=",
                "≥": "use >=",
                "≠": "use !=",
                "…": "a range is written with two dots, ..",
            }.get(word, _ALLOWED)
            self._fail("RS201", f"unexpected character `{shown}`", start, stop, "not part of an expression", help)
        if kind == "float":
            self._fail(
                "RS203",
                f"`{word}` is not an integer",
                start,
                stop,
                "only integers are allowed",
                "use // for integer division instead of fractions",
            )
        if kind == "radix":
            self._fail(
                "RS203",
                f"`{word}` is not a decimal integer",
                start,
                stop,
                "only decimal integers are allowed",
                f"write {_decimal(word)}",
            )
        if kind == "int" and int(word) >= LIMIT:
            self._fail(
                "RS205",
                f"`{word if len(word) <= 24 else word[:21] + '…'}` does not fit 63 bits",
                start,
                stop,
                "too large",
                "indices and sizes are below 2^62",
            )
        if kind == "int" and len(word) > 1 and word[0] == "0":
            self._fail(
                "RS203",
                f"`{word}` starts with 0",
                start,
                stop,
                "only decimal integers are allowed",
                f"write {int(word)}",
            )
        refused = {
            "=": ("`=` is not allowed", "use == to compare"),
            ":=": ("`:=` is not allowed", "an expression cannot assign; use parameters or loop variables"),
            "&&": ("`&&` is not allowed", "write several conditions as a list: when: [a, b]"),
            "||": ("`||` is not allowed", "write alternatives as transfers of their own, each with its `when:`"),
            "!": ("`!` is not allowed", "turn the comparison round: != for =="),
            "..": ("`..` stands outside a range", "ranges belong in `for:` and `each:`; a slice is a:b"),
            "?": ("`?` is not allowed", "use `when:` to choose"),
        }.get(word)
        if refused and kind == "op":
            self._fail("RS203", refused[0], start, stop, "not allowed in an expression", refused[1])

    def _check_pair(self, before: re.Match[str], token: re.Match[str], kind: str, word: str) -> None:
        """Two operands in a row: an operator is missing."""
        earlier = before[before.lastgroup or "op"]
        ends = before.lastgroup in ("int", "name") and earlier not in _WORDS
        if ends and kind in ("int", "name") and word not in _WORDS:
            start = before.start(before.lastgroup or "op")
            self._fail(
                "RS201",
                f"no operator between `{earlier}` and `{word}`",
                start,
                token.end(kind),
                "two operands in a row",
                f"write {earlier} * {word} for the product",
            )

    def _too_deep(self, start: int, stop: int) -> NoReturn:
        self._fail(
            "RS215",
            f"an expression nested more than {MAX_DEPTH} deep",
            start,
            stop,
            "",
            "simplify it, or split the work over several steps",
        )

    def _fail(
        self, code: str, message: str, start: int, stop: int, label: str = "", help: str | None = None
    ) -> NoReturn:
        raise fail(code, message, self.text.at(start, stop), label, help)

    # -- Python's tree → nodes ------------------------------------------------------------------------------------

    def read(self) -> Expr:
        return self._expr(self._parse(), 1)

    def chunk(self) -> ChunkRef:
        node = self._parse()
        span = self.text.at(0, len(self.source))
        if isinstance(node, ast.Name) and node.id == "chunk":
            return ChunkRef(index=(), span=span)
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id != "chunk":
            help = "write chunk[INDEX], with one index for each dimension of `chunks:`"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "chunk":
                help = "use square brackets: chunk[…]"
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                help = f"the data is always called chunk: write chunk, not {node.value.id}"
                self._refuse(node.value, "not a chunk", help, "expected `chunk`")
            self._refuse(node, "not a chunk", help, "expected `chunk[…]`")
        inner = node.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if not parts:
            self._refuse(node, "not a chunk", "name an index: chunk[r]", "no index")
        return ChunkRef(index=tuple(self._index(part) for part in parts), span=span)

    def _index(self, node: ast.expr) -> Expr | Slice:
        if not isinstance(node, ast.Slice):
            return self._expr(node, 1)
        if node.step is not None:
            self._refuse(
                node.step,
                "a slice with a step",
                "send the parts as transfers of their own, or use `each:`",
                "not allowed",
            )
        start = self._expr(node.lower, 1) if node.lower else None
        stop = self._expr(node.upper, 1) if node.upper else None
        return Slice(start=start, stop=stop, span=self._span(node))

    def _expr(self, node: ast.expr, depth: int) -> Expr:
        if depth > MAX_DEPTH:
            self._too_deep(0, len(self.source))
        span = self._span(node)
        match node:
            case ast.Constant(value=bool() | None):
                self._refuse(node, f"`{node.value!r}` is not allowed", "use a comparison, or 0 and 1", "not an integer")
            case ast.Constant(value=int() as value):
                return Int(value=value, span=span)
            case ast.Name(id=name) if name in self.tables:
                help = f"write {name}[s] for one of its entries"
                self._refuse(node, f"`{name}` is a table", help, "used like a number")
            case ast.Name(id="chunk" | "min" | "max" as name):
                help = f"write {name}(a, b)" if name != "chunk" else "`chunk[…]` belongs in `send:` and `on:`"
                self._refuse(node, f"`{name}` is no value", help, "used like a number")
            case ast.Name():
                return Var(name=node.id, span=span)
            case ast.UnaryOp(op=ast.USub()):
                operand = self._expr(node.operand, depth + 1)
                if isinstance(operand, Int) and operand.value >= 0:
                    return Int(value=-operand.value, span=span)
                return Neg(operand=operand, span=span)
            case ast.BinOp(op=op) if type(op) in _BINARY:
                left, right = self._expr(node.left, depth + 1), self._expr(node.right, depth + 1)
                return Binary(op=_BINARY[type(op)], left=left, right=right, span=span)
            case ast.Compare() if all(type(op) in _COMPARE for op in node.ops):
                pairs = zip(node.ops, node.comparators, strict=True)
                rest = tuple((_COMPARE[type(op)], self._expr(e, depth + 1)) for op, e in pairs)
                return Compare(first=self._expr(node.left, depth + 1), rest=rest, span=span)
            case ast.Call(func=ast.Name(id="min" | "max" as name)) if self._plain_arguments(node):
                operands = tuple(self._expr(e, depth + 1) for e in node.args)
                return Extremum(name=name, operands=operands, span=span)
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name in self.tables:
                if isinstance(index, ast.Slice | ast.Tuple):
                    self._refuse(index, "one entry of a table is wanted", f"write {name}[s]", "not one expression")
                return Lookup(name=name, table=self.tables[name], index=self._expr(index, depth + 1), span=span)
            case _:
                self._refuse_node(node)

    def _plain_arguments(self, node: ast.Call) -> bool:
        return bool(node.args) and not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)

    def _span(self, node: ast.expr) -> Span:
        return self.text.at(node.col_offset, node.end_col_offset or node.col_offset + 1)

    def _refuse(self, node: ast.expr, message: str, help: str, label: str = "not allowed in an expression") -> NoReturn:
        raise fail("RS203", message, self._span(node), label, help)

    def _refuse_operator(self, left: ast.expr, right: ast.expr, symbol: str, help: str) -> NoReturn:
        """The caret goes under the operator, which stands between its operands (and their parentheses)."""
        begin, end = left.end_col_offset or 0, right.col_offset
        found = re.search(re.escape(symbol).replace(r"\ ", r"\s+"), self.source[begin:end])
        start = begin + (found.start() if found else 0)
        stop = begin + (found.end() if found else 1)
        self._fail("RS203", f"`{symbol}` is not allowed", start, stop, "not allowed in an expression", help)

    def _refuse_node(self, node: ast.expr) -> NoReturn:
        match node:
            case ast.BinOp():
                self._refuse_operator(node.left, node.right, *_REFUSED_BINARY[type(node.op)])
            case ast.BoolOp(op=ast.And()):
                parts = [self.source[v.col_offset : v.end_col_offset] for v in node.values]
                example = "a, b" if any("," in part or len(part) > 30 for part in parts) else ", ".join(parts)
                help = f"write several conditions as a list: when: [{example}]"
                self._refuse_operator(node.values[0], node.values[1], "and", help)
            case ast.BoolOp():
                self._refuse_operator(
                    node.values[0],
                    node.values[1],
                    "or",
                    "write alternatives as transfers of their own, each with its `when:`",
                )
            case ast.Compare():
                left = node.left
                for op, right in zip(node.ops, node.comparators, strict=True):
                    if type(op) in _REFUSED_COMPARE:
                        self._refuse_operator(left, right, *_REFUSED_COMPARE[type(op)])
                    left = right
            case ast.UnaryOp():
                symbol, help = {
                    ast.Not: ("not", "turn the comparison round: != for =="),
                    ast.Invert: ("~", "use ^ to flip bits: a ^ 1"),
                }.get(type(node.op), ("+", "leave out the sign"))
                start = node.col_offset
                self._fail(
                    "RS203",
                    f"`{symbol}` is not allowed",
                    start,
                    start + len(symbol),
                    "not allowed in an expression",
                    help,
                )
            case ast.Call():
                self._refuse_call(node)
            case ast.Constant(value=str()):
                self._refuse(node, "text in an expression", "leave out the quotes", "not a number")
            case ast.Subscript(value=ast.Name(id=name)) if name != "chunk":
                near = get_close_matches(name, self.tables, n=1)
                help = f"introduce it by `tables: {{{name[:40]}: [0, 1]}}`"
                if self.tables:
                    help = f"did you mean `{near[0]}`?" if near else f"the tables are {', '.join(self.tables)}"
                raise fail("RS202", f"unknown table `{name[:40]}`", self._span(node.value), "not in `tables:`", help)
            case ast.Subscript():
                self._refuse(
                    node,
                    "an index is not allowed here",
                    "compute it from r and the loop variables, or look it up in one of `tables:`",
                    "not a number",
                )
            case ast.Attribute():
                self._refuse(node, "an attribute is not allowed", _ALLOWED)
            case ast.IfExp():
                self._refuse(node, "`if … else` is not allowed", "write two transfers, each with its `when:`")
            case ast.Tuple():
                self._refuse(
                    node,
                    "one expression is wanted here, not several",
                    "remove the commas",
                    f"{len(node.elts)} expressions",
                )
            case ast.List():
                self._refuse(node, "a list is not allowed in an expression", _ALLOWED)
            case ast.Lambda():
                self._refuse(node, "`lambda` is not allowed", _ALLOWED)
            case _:
                self._refuse(node, "this is not allowed", _ALLOWED)
        raise AssertionError("unreachable")

    def _refuse_call(self, node: ast.Call) -> NoReturn:
        if not isinstance(node.func, ast.Name):
            self._refuse(node, "a call is not allowed", "only min(…) and max(…) can be called")
        name = node.func.id
        if name in ("min", "max"):
            self._refuse(node, f"`{name}` takes one or more expressions", f"write {name}(a, b)", "wrong operands")
        close = get_close_matches(name.lower(), ["min", "max", "minimum", "maximum"], n=1, cutoff=0.6)
        help = "only min(…) and max(…) can be called"
        if close:
            help = f"did you mean {close[0][:3]}(…)? {help}"
        elif name == "abs":
            help = f"write max(a, -a); {help}"
        elif name == "chunk":
            help = "use square brackets: chunk[…]"
        elif name in ("mod", "divmod", "rem"):
            help = f"write a % b; {help}"
        self._refuse(node.func, f"the function `{name}` is not allowed", help)


def _decimal(word: str) -> str:
    try:
        return str(int(word, 0))
    except ValueError:
        return "it in decimal"
