"""What docs/spark.md shows is done as it stands there, in one process, and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.server import StandaloneProcess
from e2e.spark.document import examples, is_as_printed
from e2e.spark.running import Spark

PAGE = Path(__file__).parents[2] / "docs/spark.md"
SECTION = "A walk-through"
PROGRAM = Path(__file__).parent / "programs" / "examples.py"
BEGINNING = "make run"
"""Its cluster runs already, on ports of its own."""

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_walk_through_prints_what_it_shows(server: StandaloneProcess, our_spark: Spark) -> None:
    def with_ports(text: str) -> str:
        here = text.replace("127.0.0.1:6650", f"127.0.0.1:{server.port}")
        return here.replace("127.0.0.1:8080", f"127.0.0.1:{server.http_port}")

    shown = examples(PAGE, SECTION)
    assert shown[0].text == BEGINNING
    told = [{"language": one.language, "text": with_ports(one.text), "line": one.line} for one in shown[1:]]
    printed = our_spark.run(PROGRAM, {"page": str(PAGE.name), "examples": told}, timeout_s=1000)
    for one, text in zip(shown[1:], printed, strict=True):
        wanted = "" if one.printed is None else with_ports(one.printed)
        assert is_as_printed(wanted, text), f"line {one.line}: it prints\n{text}\nand not\n{wanted}"
