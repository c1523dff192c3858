"""What the compiler of hot modules changes in mypyc's text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import compile as compiler
from tools.compile import ROOT, acyclic_classes, hot_modules, without_trashcan

ACYCLIC = """
    static void
    entry___Entry_dealloc(magnetar___EntryObject *self)
    {
        CPy_TRASHCAN_BEGIN(self, entry___Entry_dealloc)
        CPyDef_entry___Entry_clear((PyObject *)self);
        Py_TYPE(self)->tp_free((PyObject *)self);
        CPy_TRASHCAN_END(self)
        done: ;
    }
"""
COLLECTED = ACYCLIC.replace("Entry", "Producer").replace(
    "        CPy_TRASHCAN_BEGIN", "        PyObject_GC_UnTrack(self);\n        CPy_TRASHCAN_BEGIN"
)


def test_only_acyclic_objects_are_freed_without_the_trashcan() -> None:
    text, count = without_trashcan(ACYCLIC + COLLECTED + ACYCLIC.replace("Entry", "View"))
    assert count == 2
    assert text.count("CPy_TRASHCAN_BEGIN") == text.count("CPy_TRASHCAN_END") == 1
    assert COLLECTED in text
    assert "{\n        CPyDef_entry___Entry_clear((PyObject *)self);\n" in text


def test_a_class_is_named_by_its_decorator(tmp_path: Path) -> None:
    module = tmp_path / hot_modules(ROOT)[0]
    module.parent.mkdir(parents=True)
    module.write_text("@mypyc_attr(acyclic=True)\nclass One:\n    pass\n\nclass Two:\n    pass\n")
    assert acyclic_classes(tmp_path) == ["One"]


def test_acyclic_classes_hold_nothing_that_leads_back() -> None:
    """What is in a cycle with one of these is never freed."""
    acyclic = acyclic_classes(ROOT)
    assert acyclic
    held: dict[str, set[str]] = {}
    for module in hot_modules(ROOT):
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(node, ast.ClassDef) and node.name in acyclic:
                annotations = [one.annotation for one in ast.walk(node) if isinstance(one, ast.AnnAssign)]
                held[node.name] = {type_ for each in annotations for type_ in ast.unparse(each).split(" | ")}
                assert _annotated(node) == _slots(node), "what has no annotation could be anything"
                assert not node.bases
    assert held.keys() == set(acyclic)
    allowed = {"int", "float", "bool", "str", "bytes", "None", *acyclic}
    assert all(types and types <= allowed for types in held.values()), held


def _annotated(node: ast.ClassDef) -> set[str]:
    targets = [one.target for one in ast.walk(node) if isinstance(one, ast.AnnAssign)]
    return {target.attr for target in targets if isinstance(target, ast.Attribute)}


def _slots(node: ast.ClassDef) -> set[str]:
    (value,) = [
        one.value for one in node.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__slots__"
    ]
    return set(ast.literal_eval(value))


def test_a_compiler_that_writes_other_text_is_refused(tmp_path: Path) -> None:
    """It would write before the object where such a class is freed."""
    source = tmp_path / "group.c"
    source.write_text(ACYCLIC.replace("CPy_TRASHCAN_BEGIN", "OTHER_TRASHCAN_BEGIN"))
    with pytest.raises(SystemExit, match=r"\['Entry'\], 0 found"):
        compiler._rewrite([source], ["Entry"])
    source.write_text(ACYCLIC)
    compiler._rewrite([source], ["Entry"])
    assert "TRASHCAN" not in source.read_text()
