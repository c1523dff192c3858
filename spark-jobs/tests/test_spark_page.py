"""What docs/spark.md and docs/COMPATIBILITY.md say, as far as that can be compared without Spark: examples are run by
e2e/spark."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from magnetar.spark.options.reading import OPTIONS
from magnetar.spark.sink.options import SINK_OPTIONS

from e2e.spark.document import ANYTHING, Example, examples, is_as_printed
from tools import generate_spark_options

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/spark.md"
COMPATIBILITY = ROOT / "docs/COMPATIBILITY.md"
SOURCES = (ROOT / "spark-jobs/src/magnetar/spark", ROOT / "lib/src/magnetar/wire")


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_options_are_those_that_are_checked(text: str) -> None:
    assert generate_spark_options.written(text) == text, "run `make generate`"


def test_examples_are_python() -> None:
    found = examples(PAGE, "A walk-through")
    assert len(found) > 10
    assert any(one.printed for one in found)
    for one in found:
        if one.language == "python":
            ast.parse(one.text)


def test_links_lead_somewhere(text: str) -> None:
    anchors = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert not path or (PAGE.parent / path).exists(), target
        assert path or anchor in anchors, target


def test_what_troubles_are_told_by_is_what_is_said(text: str) -> None:
    """Each text of the table that is of ours stands in the sources; Spark's own begin with its class of error."""
    said = " ".join(_literals(path) for sources in SOURCES for path in sources.glob("**/*.py"))
    rows = re.findall(r"^\| `(.+?)`.* \|", text.partition("## Troubleshooting")[2], re.MULTILINE)
    assert len(rows) > 10
    for row in rows:
        if not row.startswith(("[", "ModuleNotFoundError")):
            parts = [part.strip() for part in row.split(ANYTHING)]
            assert all(part in said for part in parts), row


def test_tests_that_show_what_is_compatible_exist() -> None:
    part = COMPATIBILITY.read_text(encoding="utf-8").partition("\n# Spark\n")[2]
    files = [path for folder in ("spark-jobs/tests", "e2e/spark") for path in (ROOT / folder).glob("test_*.py")]
    defined = {
        name for path in files for name in re.findall(r"^ *(?:async def|def|class) (\w+)", path.read_text(), re.M)
    }
    named = set(re.findall(r"`([tT]est_?\w+)`", part))
    assert len(named) > 20
    assert named <= defined


def test_options_of_the_jvm_connector_are_all_told_of() -> None:
    """Other names of options are the connector's, or those that its users write in other places."""
    part = COMPATIBILITY.read_text(encoding="utf-8").partition("## Options of the connector\n")[2].partition("\n## ")[0]
    named = {
        name
        for row in part.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([\w.]+)`", row.split("|")[1])
    }
    known = {name for option in (*OPTIONS, *SINK_OPTIONS) for name in (option.name, *option.aliases)}
    refused = {"subscriptionPrefix", "topic.schema.class"}
    prefixes = {"pulsar.client.", "pulsar.admin.", "pulsar.reader.", "pulsar.producer."}
    assert named - prefixes - refused <= known
    wanted = {alias for option in SINK_OPTIONS for alias in option.aliases if alias.startswith("pulsar.producer.")}
    assert wanted <= named


def _literals(path: Path) -> str:
    """All texts of a module, one behind the other, formatted ones without what is put into them."""
    return " ".join(
        "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        if isinstance(node, ast.JoinedStr)
        else str(node.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr | ast.Constant)
    )


class TestDocument:
    def test_blocks_of_one_section(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text(
            "# P\n## A\n```python\nprint(1)\n```\n\n```text\n1\n```\n```console\n$ no\n```\n"
            "```sh\nls\n```\nthen\n```text\nno\n```\n### B\n```sh\nid\n```\n## C\n```sh\nno\n```\n"
        )
        assert examples(page, "A") == [
            Example(language="python", text="print(1)", line=4, printed="1"),
            Example(language="sh", text="ls", line=14, printed=None),
            Example(language="sh", text="id", line=22, printed=None),
        ]

    @pytest.mark.parametrize(
        ("wanted", "printed", "same"),
        [
            ("a\nb", "a  \nb\n", True),
            ("a … c", "a b\nb c", True),
            ("a", "a b", False),
            ("a.c", "abc", False),
            ("", " \n", True),
        ],
    )
    def test_what_is_printed(self, wanted: str, printed: str, same: bool) -> None:
        assert is_as_printed(wanted, printed) == same
