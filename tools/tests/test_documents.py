"""Documents are as short as they promise, and name what is there."""

from __future__ import annotations

from typing import Final

import pytest

from tools.documents import MAPS, PACKAGES, Names, unknown_names
from tools.source_tree import ROOT, Tree

ARCHITECTURE_BYTES_MAX: Final = 12_000
"""Ten minutes of reading."""

GLOSSARY_WORDS_MAX: Final = 40
"""What a newcomer can learn at once."""

COLUMNS_MAX: Final = 120

UNWRAPPED: Final = frozenset(
    ["CHANGELOG.md", "README.md", "docs/COMPATIBILITY.md", "docs/operations.md", "docs/spark.md"]
    + [f"docs/{what}-benchmarks.md" for what in ("bookie", "cluster", "spark")]
    + ["docs/adr/0011-modular-load-manager.md", "docs/adr/0026-official-kubernetes-client.md", "docs/adr/README.md"]
)
"""Documents from before the rule, or written by a program, in which lines of prose may be longer."""


def long_lines(text: str, *, everything: bool) -> list[int]:
    """Numbers of lines that are too long. What cannot be wrapped (rows of tables, code) counts if `everything`."""
    found: list[int] = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        wrappable = not (fenced or line.lstrip().startswith("|") or line.startswith("    "))
        if len(line) > COLUMNS_MAX and (everything or wrappable):
            found.append(number)
    return found


def test_each_package_has_a_page() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/pyproject.toml")}
    assert packages <= set(PACKAGES)


def test_the_architecture_is_read_in_ten_minutes() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= ARCHITECTURE_BYTES_MAX


def test_the_glossary_is_short_and_in_order() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    words = [line for line in glossary.splitlines()[2:] if line]
    assert words == sorted(
        (line for line in words if line.startswith("- **")), key=lambda line: line.split("**")[1].casefold()
    )
    assert 0 < len(words) <= GLOSSARY_WORDS_MAX


@pytest.mark.parametrize("document", MAPS)
def test_lines_of_maps_fit_into_a_terminal(document: str) -> None:
    assert long_lines((ROOT / document).read_text(encoding="utf-8"), everything=True) == []


def test_lines_of_documents_fit_into_a_terminal() -> None:
    documents = [path for path in Tree.read(ROOT).files if path.suffix == ".md"]
    found = {
        path.as_posix(): long_lines((ROOT / path).read_text(encoding="utf-8"), everything=False) for path in documents
    }
    assert {path: lines for path, lines in found.items() if lines and path not in UNWRAPPED} == {}
    assert {path for path, lines in found.items() if lines} >= UNWRAPPED


SOURCES: Final = {
    "lib/src/magnetar/net/connection.py": "PAUSE: int = 1\nclass Base:\n    def close(self): ...\n"
    "class Connection(Base):\n    def __init__(self):\n        self.peer = ''\n    def write(self, data): ...\n",
    "bookie/src/magnetar/bookie/journal/journal.py": "import asyncio\ndef run_group(): ...\n",
    "docs/adr/0001-layout.md": "",
}

CASES: Final = [
    ("`lib/…/net/connection.py`, `journal/journal.py`, `lib/src`, `docs/adr/*.md`, `magnetar`", []),
    ("`gone.py`", ["gone.py"]),
    ("`net/journal.py` and `lib/…/journal.py`", ["net/journal.py", "lib/…/journal.py"]),
    ("`nal.py` is no end of a name", ["nal.py"]),
    ("`docs/gone` and `docs/adr/*.txt`", ["docs/gone", "docs/adr/*.txt"]),
    ("`Connection`, `Connection.write`, `Connection.peer`, `Connection.close`, `run_group`, `PAUSE`, `data`", []),
    ("`Conection`, `Connection.read`, `run_groups`", ["Conection", "Connection.read", "run_groups"]),
    ("`net.connection`, `net.connection.PAUSE`, `magnetar.net.connection.Connection.write`", []),
    ("`net.connection.STOP`, `net.gone`", ["net.connection.STOP", "net.gone"]),
    ("`asyncio.Protocol`, `make test`, `--no-sync`, `kill -9`, `ValueError`, `a == b`", []),
    ("[a](docs/adr/0001-layout.md#why), [b](https://example.org/gone.md)", []),
    ("[a](docs/adr/0002-gone.md)", ["docs/adr/0002-gone.md"]),
    ("```\n`gone.py`\n```\n", []),
]


@pytest.fixture(scope="module")
def few_names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    root = tmp_path_factory.mktemp("tree")
    for name, text in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Names.of(Tree.read(root))


@pytest.mark.parametrize(("text", "unknown"), CASES)
def test_a_name_that_is_gone_is_told(text: str, unknown: list[str], few_names: Names) -> None:
    assert list(unknown_names(text, few_names)) == unknown


def test_a_page_of_a_package_means_its_own_files(few_names: Names) -> None:
    text = "`connection.py`, `journal.py`, `net/connection.py`, [up](../docs/adr/0001-layout.md)"
    assert list(unknown_names(text, few_names, "lib")) == ["journal.py"]


def test_a_long_line_is_told() -> None:
    long = "x" * COLUMNS_MAX
    text = f"{long}\n{long}y\n| {long} |\n```\n{long}y\n```\n{long}y\n"
    assert long_lines(text, everything=False) == [2, 7]
    assert long_lines(text, everything=True) == [2, 3, 5, 7]
