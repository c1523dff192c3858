"""The mistakes that can be made in a source without thinking: a condition negated, a statement forgotten, one off.

Only functions are looked into. What no promise rests on is left alone: messages, logs, metrics, assertions, texts.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from tools.mutants.model import Mutant, fold

_UNWATCHED: Final = re.compile(
    r"\b_?(logger|log|metrics?|counters?|counts?|statistics|stats|histograms?|trace|report\w*)\b\s*[.(\[]"
    r"|^(self\.)?_?\w*(statistics|counters?|metrics)\w*\b",
    re.IGNORECASE,
)
"""Statements that tell what is done and do nothing themselves."""
_TUNING: Final = re.compile(r"(timeout|pause|interval|period|seconds|_ms|bytes|delay|backoff|max|min)\b", re.IGNORECASE)
"""Numbers beside such names are limits, which nobody can hold to one exact value."""
_SKIPPED_FUNCTIONS: Final = frozenset({"__repr__", "__str__", "validate"})
_NEIGHBOURS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_SWAPPED_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Edit(NamedTuple):
    operator: str
    start: int
    end: int
    after: str


def candidates(module: str, source: str) -> list[Mutant]:
    """All mutants of a source that can be generated, in the order of the source."""
    places = _Places(source)
    found: list[Mutant] = []
    for name, function in _functions(ast.parse(source), ""):
        seen: Counter[tuple[str, str, str]] = Counter()
        for edit in sorted(set(_edits_of(function, places)), key=lambda edit: (edit.start, edit.end, edit.after)):
            before = fold(source[edit.start : edit.end])
            same = (edit.operator, before, edit.after)
            line = source.count("\n", 0, edit.start) + 1
            mutant = Mutant(module, name, edit.operator, edit.start, edit.end, line, before, edit.after)
            found.append(replace(mutant, occurrence=seen[same]))
            seen[same] += 1
    return found


def function_at(source: str, offset: int) -> str:
    """The qualified name of the function around a place; empty outside of all."""
    inside = ""
    for name, start, end in _spans_of_functions(source):
        if start <= offset < end:
            inside = name
    return inside


@functools.lru_cache(maxsize=8)  # Mistakes of one module are listed one after the other.
def _spans_of_functions(source: str) -> list[tuple[str, int, int]]:
    places = _Places(source)
    return [(name, *places.span(function)) for name, function in _functions(ast.parse(source), "")]


class _Places:
    """Offsets into a source, from the lines and UTF-8 columns of its tree."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """A node's own source."""
        start, end = self.span(node)
        return self.source[start:end]

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _edits_of(function: _Function, places: _Places) -> Iterator[_Edit]:
    if function.name in _SKIPPED_FUNCTIONS:
        return
    for statement in function.body:
        # An attribute that is never set is an error at the first touch, and proves nothing about tests.
        if function.name != "__init__" or not isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from _in_statement(statement, places)
    yield from _wrong_parameters(function, places)


def _in_statement(node: ast.AST, places: _Places) -> Iterator[_Edit]:
    """Edits of a node and of what it holds, without nested functions, which have their own."""
    if isinstance(node, (_Function, ast.ClassDef, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.stmt) and _is_unwatched(node, places):
        return
    if isinstance(node, ast.Raise):
        yield _Edit("drop a raise", *places.span(node), "pass")
        return
    if isinstance(node, ast.stmt):
        yield from _of_statement(node, places)
    elif isinstance(node, ast.expr):
        yield from _of_expression(node, places)
    elif isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Tuple):
        first = places.text(node.type.elts[0])
        yield _Edit("catch less", *places.span(node.type), first)
    for child in ast.iter_child_nodes(node):
        yield from _in_statement(child, places)


def _is_unwatched(node: ast.stmt, places: _Places) -> bool:
    if isinstance(node, ast.If) and places.text(node.test) == "TYPE_CHECKING":
        return True
    simple = isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign))
    return simple and _UNWATCHED.search(places.text(node)) is not None


def _of_statement(node: ast.stmt, places: _Places) -> Iterator[_Edit]:
    span = places.span(node)
    if isinstance(node, (ast.Break, ast.Continue)):
        yield _Edit("drop a jump", *span, "pass")
    elif isinstance(node, ast.Expr) and not isinstance(node.value, (ast.Constant, ast.Yield, ast.YieldFrom)):
        yield _Edit("drop a call", *span, "pass")
    elif isinstance(node, ast.AugAssign) or (
        # Without the first assignment of a name nothing runs at all.
        isinstance(node, ast.Assign | ast.Delete)
        and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    ):
        yield _Edit("drop an assignment", *span, "pass")
    elif isinstance(node, (ast.If, ast.While)):
        start, end = places.span(node.test)
        yield _Edit("negate a condition", start, end, f"not ({places.source[start:end]})")
    elif isinstance(node, ast.Return):
        if node.value is None:
            yield _Edit("drop a return", *span, "pass")
        elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            yield _Edit("turn an answer round", *span, f"return {not node.value.value}")


def _of_expression(node: ast.expr, places: _Places) -> Iterator[_Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _Edit("remove a not", *places.span(node), f"({places.text(node.operand)})")
    elif isinstance(node, ast.Compare):
        yield from _of_comparison(node, places)
    elif isinstance(node, ast.BoolOp):
        yield from _of_and_or(node, places)
    elif isinstance(node, ast.IfExp):
        yield _Edit("negate a condition", *places.span(node.test), f"not ({places.text(node.test)})")
    elif isinstance(node, ast.comprehension | ast.Slice):
        return
    elif isinstance(node, ast.BinOp):
        yield from _of_arithmetic(node, places)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED_CALLS:
        yield _Edit("the opposite of a call", *places.span(node.func), _SWAPPED_CALLS[node.func.id])


def _of_comparison(node: ast.Compare, places: _Places) -> Iterator[_Edit]:
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        before, after = _NEIGHBOURS[type(operator)]
        start, end = places.span(left)[1], places.span(right)[0]
        at = places.source.find(before.split()[0], start, end)
        if at >= 0:
            length = len(re.match(r"\s+".join(map(re.escape, before.split())), places.source[at:end])[0])  # type: ignore[index]
            # The whole comparison is replaced, so that it can be told from its likes.
            first, last = places.span(node)
            text = places.source[first:at] + after + places.source[at + length : last]
            yield _Edit("the neighbour of a comparison", first, last, text)
        left = right


def _of_and_or(node: ast.BoolOp, places: _Places) -> Iterator[_Edit]:
    before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    first, last = places.span(node)
    for left, right in zip(node.values, node.values[1:], strict=False):
        start, end = places.span(left)[1], places.span(right)[0]
        between = places.source[start:end]
        swapped = re.sub(rf"\b{before}\b", after, between, count=1)
        yield _Edit("swap and with or", first, last, places.source[first:start] + swapped + places.source[end:last])
    start, end = places.span(node.values[-2])[1], places.span(node.values[-1])[1]
    if places.source[start:end].count(")") == places.source[start:end].count("("):
        yield _Edit("forget a condition", first, last, places.source[first:start] + places.source[end:last])


def _of_arithmetic(node: ast.BinOp, places: _Places) -> Iterator[_Edit]:
    if not isinstance(node.op, (ast.Add, ast.Sub)) or _TUNING.search(places.text(node)):
        return
    number = node.right
    if isinstance(number, ast.Constant) and type(number.value) is int and number.value in (1, 2):
        start, end = places.span(node)
        yield _Edit("one off", start, end, places.source[start : places.span(node.left)[1]])


def _wrong_parameters(function: _Function, places: _Places) -> Iterator[_Edit]:
    """A parameter taken for the next one of the same type."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    by_type: dict[str, list[str]] = {}
    for parameter in parameters:
        if parameter.annotation is not None:
            by_type.setdefault(ast.unparse(parameter.annotation), []).append(parameter.arg)
    other = {
        name: names[(at + 1) % len(names)]
        for names in by_type.values()
        if len(names) > 1
        for at, name in enumerate(names)
    }
    if not other or function.name == "__init__":
        return
    for statement in function.body:
        yield from _wrong_names(statement, other, places)


def _wrong_names(node: ast.AST, other: dict[str, str], places: _Places) -> Iterator[_Edit]:
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert, _Function, ast.ClassDef)):
        return
    if isinstance(node, ast.stmt) and _is_unwatched(node, places):
        return
    if isinstance(node, ast.Call):
        for argument in node.args:
            if isinstance(argument, ast.Name) and argument.id in other:
                start, end = places.span(node)
                first, last = places.span(argument)
                text = places.source[start:first] + other[argument.id] + places.source[last:end]
                yield _Edit("a wrong variable", start, end, text)
    for child in ast.iter_child_nodes(node):
        yield from _wrong_names(child, other, places)
