"""Finds imports that run in a circle, between modules and between packages that stand side by side.

An import counts wherever it stands: for types alone, or inside a function. Who needs the other's names to be read
needs the other to be understood.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tools.source_tree import Nodes


class Arrow(NamedTuple):
    """One import: the module that has it, its line, and the module that it names."""

    importer: str
    line: int
    imported: str


class Cycle(NamedTuple):
    """What stands in one package and runs in a circle, with the import that is last in it."""

    members: tuple[str, ...]
    last: Arrow


def cycles(modules: Mapping[str, Nodes]) -> Iterator[Cycle]:
    """Every circle between siblings, package by package, of modules by their dotted names."""
    packages: defaultdict[str, defaultdict[str, dict[str, Arrow]]] = defaultdict(lambda: defaultdict(dict))
    for arrow in _arrows(modules):
        package, one, other = _siblings(arrow)
        packages[package][one].setdefault(other, arrow)
    for _, graph in sorted(packages.items()):
        for members in _knots(graph):
            circle = _circle(graph, members)
            yield Cycle(tuple(circle), graph[circle[-1]][circle[0]])


def _arrows(modules: Mapping[str, Nodes]) -> Iterator[Arrow]:
    for importer, nodes in sorted(modules.items(), key=lambda item: item[0]):
        found = [(node.lineno, alias.name) for node in nodes.of(ast.Import) for alias in node.names]
        for node in nodes.of(ast.ImportFrom):
            if node.module and not node.level:
                found.extend((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        for line, name in sorted(found):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and name != importer:
                yield Arrow(importer, line, name)


def _siblings(arrow: Arrow) -> tuple[str, str, str]:
    """The innermost package that holds both ends, and what stands in it at either end: a module, a package, or the
    package's own file, which has the package's name."""
    one, other = arrow.importer.split("."), arrow.imported.split(".")
    depth = 0
    while depth < min(len(one), len(other)) and one[depth] == other[depth]:
        depth += 1
    return ".".join(one[:depth]), ".".join(one[: depth + 1]), ".".join(other[: depth + 1])


def _knots(graph: Mapping[str, Mapping[str, Arrow]]) -> list[list[str]]:
    """Those that all reach each other (strongly connected components), by reachability: the graphs are small."""
    reached = {start: _reached(graph, start) for start in sorted(graph)}
    knots: list[list[str]] = []
    for start, ends in reached.items():
        if start in ends and not any(start in knot for knot in knots):
            knots.append(sorted(end for end in ends if start in reached.get(end, ())))
    return knots


def _reached(graph: Mapping[str, Mapping[str, Arrow]], start: str) -> set[str]:
    found: set[str] = set()
    open_ends = [start]
    while open_ends:
        for end in graph.get(open_ends.pop(), ()):
            if end not in found:
                found.add(end)
                open_ends.append(end)
    return found


def _circle(graph: Mapping[str, Mapping[str, Arrow]], knot: list[str]) -> list[str]:
    """The shortest way from the first of a knot back to it."""
    ways = [[knot[0]]]
    seen = set(ways[0])
    while True:
        way = ways.pop(0)
        for end in sorted(graph[way[-1]]):
            if end == knot[0]:
                return way
            if end in knot and end not in seen:
                seen.add(end)
                ways.append([*way, end])
