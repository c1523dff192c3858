"""A class name means one thing: no two modules of the product define the same one, public or not."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tools.tidy import ROOT, Tree

ALLOWED: Final[Mapping[str, str]] = {}
"""Names that two modules may define, each with the reason why none of them gives way."""


def names_defined_twice(tree: Tree) -> dict[str, list[str]]:
    """Classes of the product, at the top of modules or inside something, that are defined in two places, with these."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in tree.written_modules():
        if "src" in module.path.parts and module.name.startswith("magnetar."):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{module.path}:{node.lineno}")
    return {name: sorted(found) for name, found in places.items() if len(found) > 1}


@pytest.mark.slow
def test_no_two_modules_define_the_same_class() -> None:
    found = names_defined_twice(Tree.read(ROOT))
    assert {name: places for name, places in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "these exceptions are not needed any more"


def test_a_name_that_is_defined_twice_is_told(tmp_path: Path) -> None:
    sources = {
        "lib/src/magnetar/net/a.py": "class Gate: ...\nclass _Own: ...\nclass Once: ...\n",
        "lib/src/magnetar/net/b.py": "class Gate: ...\nclass Outer:\n    class Inner: ...\n",
        "proxy/src/magnetar/proxy/c.py": "x = 1\nclass _Own: ...\ndef make():\n    class Inner: ...\n",
        "proxy/tests/test_c.py": "class Once: ...\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert names_defined_twice(Tree.read(tmp_path)) == {
        "Gate": ["lib/src/magnetar/net/a.py:1", "lib/src/magnetar/net/b.py:1"],
        "_Own": ["lib/src/magnetar/net/a.py:2", "proxy/src/magnetar/proxy/c.py:2"],
        "Inner": ["lib/src/magnetar/net/b.py:3", "proxy/src/magnetar/proxy/c.py:4"],
    }
