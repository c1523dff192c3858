"""A class name means one thing: no two modules of the product define the same one, public or not."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tools.source_tree import Module, Tree, Violation


def check_class_names(tree: Tree) -> Iterator[Violation]:
    """Whoever reads a class name knows which class is meant, wherever it is defined: at the top or inside something."""
    places: defaultdict[str, list[tuple[Module, int]]] = defaultdict(list)
    for module in tree.written_modules():
        if "src" in module.path.parts and module.name.startswith("magnetar."):
            for node in module.nodes.of(ast.ClassDef):
                places[node.name].append((module, node.lineno))
    for name, ((first, first_line), *others) in places.items():
        for module, line in others:
            what = f"class {name} is also in {first.path}:{first_line}"
            yield Violation(module.path, line, what, "give one of them a name of its own")
