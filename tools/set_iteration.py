"""Finds loops over sets: their order differs from process to process, so what is decided in them cannot be replayed.

It sees sets by their syntax and by annotations and assignments in the same module, not by type inference: a set that
comes from another module's function passes unseen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

_SET_TYPES: Final = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet"})
_SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_ORDERLESS: Final = frozenset({"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum", "update"})
"""Consumers that give the same for any order (`sum` of integers, `update` of a set)."""


def iterations_over_sets(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each set that is iterated where the order can matter."""
    known = _set_names(tree)
    harmless = _harmless_comprehensions(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor):
            sources = [node.iter]
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and node not in harmless:
            sources = [generator.iter for generator in node.generators]
        elif isinstance(node, ast.Call) and _name(node.func) in ("list", "tuple", "iter", "enumerate") and node.args:
            sources = [node.args[0]] if node not in harmless else []
        else:
            continue
        for source in sources:
            if _is_set(source, known):
                yield source.lineno, f"`{ast.unparse(source)}`"


def _harmless_comprehensions(tree: ast.Module) -> set[ast.AST]:
    """What is handed straight to a consumer that gives the same for any order."""
    return {
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node.func) in _ORDERLESS
        for argument in node.args
    }


def _set_names(tree: ast.Module) -> set[str]:
    """Names and attributes that the module annotates as sets or gives a set as their first value."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            found.add(_name(node.target))
        elif isinstance(node, ast.arg) and node.annotation is not None and _is_set_type(node.annotation):
            found.add(node.arg)
        elif isinstance(node, ast.Assign) and _is_set(node.value, frozenset()):
            found.update(_name(target) for target in node.targets)
    return found - {""}


def _is_set_type(annotation: ast.expr) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    if _name(base) == "Final" and isinstance(annotation, ast.Subscript):
        return _is_set_type(annotation.slice)
    return _name(base) in _SET_TYPES


def _is_set(node: ast.expr, known: set[str] | frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name | ast.Attribute):
        return _name(node) in known
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.Sub):
        return _is_set(node.left, known)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
            return True
        return isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return False


def _name(node: ast.expr) -> str:
    """The last name of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
