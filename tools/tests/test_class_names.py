"""A class name means one thing: no two packages define the same public one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tools.tidy import ROOT, Tree

ALLOWED: Final[Mapping[str, str]] = {}
"""Names that two packages may define, each with the reason why none of them gives way."""


def names_defined_twice(tree: Tree) -> dict[str, list[str]]:
    """Public classes at the top of modules that stand in several packages below `magnetar`, with their places."""
    places: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for module in tree.written_modules():
        package = module.name.split(".")[:2]
        if "src" in module.path.parts and package[0] == "magnetar":
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name][package[-1]] = f"{module.path}:{node.lineno}"
    return {name: sorted(found.values()) for name, found in places.items() if len(found) > 1}


@pytest.mark.slow
def test_no_two_packages_define_the_same_class() -> None:
    found = names_defined_twice(Tree.read(ROOT))
    assert {name: places for name, places in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "these exceptions are not needed any more"


def test_a_name_that_is_defined_twice_is_told(tmp_path: Path) -> None:
    sources = {
        "lib/src/magnetar/net/a.py": "class Gate: ...\nclass _Own: ...\n",
        "lib/src/magnetar/net/b.py": "class Gate: ...\n",
        "proxy/src/magnetar/proxy/c.py": "x = 1\nclass Gate: ...\nclass _Own: ...\nclass Once: ...\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert names_defined_twice(Tree.read(tmp_path)) == {
        "Gate": ["lib/src/magnetar/net/b.py:1", "proxy/src/magnetar/proxy/c.py:2"]
    }
