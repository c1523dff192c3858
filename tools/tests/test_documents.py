"""Documents name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")
_MODULE = re.compile(r"`([\w…/.-]+\.py)`")


def missing_modules(text: str, files: set[str]) -> list[str]:
    """Names of modules in `text` of which no file is, or ends with, the part behind `…/`."""
    endings = {"/".join(path.split("/")[first:]) for path in files for first in range(path.count("/") + 1)}
    return sorted({name for name in _MODULE.findall(text) if name.split("…/")[-1] not in endings})


def source_files() -> set[str]:
    """Every Python file of the tree, seen from its root."""
    skipped = {".venv", "build", "node_modules", "dist"}
    found = (path.relative_to(ROOT) for folder in ROOT.iterdir() if folder.is_dir() for path in folder.rglob("*.py"))
    return {path.as_posix() for path in found if not skipped & set(path.parts)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_that_documents_name_exist(document: str) -> None:
    assert missing_modules((ROOT / document).read_text(encoding="utf-8"), source_files()) == []


def test_a_module_that_has_moved_is_told() -> None:
    text = "`lib/…/net/connection.py`, `gone.py` and `journal/journal.py`"
    files = {"lib/src/magnetar/net/connection.py", "bookie/src/journal/journal.py", "x/not_gone.py"}
    assert missing_modules(text, files) == ["gone.py"]
