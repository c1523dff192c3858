"""docs/COMPATIBILITY.md names every operation, code, route, metric and setting of a bookie, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from magnetar.bookie.admin.application import make_application
from magnetar.bookie.admin.metrics import BookieMetrics
from magnetar.bookie.admin.testing import FakeOperations
from magnetar.bookie.setting_names import SETTINGS
from magnetar.net.http.connections import HttpConnections
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.v3 import Operation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "COMPATIBILITY.md").read_text().partition("\n# BookKeeper\n")[2].partition("\n# Spark\n")[0]
TESTS = ("bookie/tests", "lib/tests", "standalone/tests", "cli/tests", "e2e")


def rows(title: str) -> list[list[str]]:
    """The cells of one section's table, without its head."""
    section = re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(title: str, column: int = 0) -> list[str]:
    """What one section's table is about."""
    return [name for row in rows(title) for name in re.findall(r"`([^`]+)`", row[column])]


def test_every_operation_and_every_error_code_is_on_the_page() -> None:
    served = {int(row[0].split()[1]) for row in rows("Version 2") if not row[1].startswith("closes")}
    assert served == {v2.ADD, v2.READ, v2.AUTH, v2.BATCH_READ}
    assert names("Version 3") == [operation.name for operation in Operation]
    assert names("Error codes") == [code.name for code in BookieCode if code is not BookieCode.UNREACHABLE]


async def test_every_route_of_a_bookie_is_on_the_page() -> None:
    application = make_application(FakeOperations().all(), str, HttpConnections())
    served = {resource.canonical for resource in application.router.resources()}
    assert sorted(names("HTTP")) == sorted(path for path in served if not path.endswith("/"))


def test_every_metric_is_on_the_page() -> None:
    text = BookieMetrics(FakeOperations().all()).render()
    patterns = [name.removesuffix("*") for name in names("Metrics")]
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        assert name.startswith(tuple(patterns)), name


def test_every_setting_with_an_effect_is_on_the_page() -> None:
    assert set(names("Settings", column=1)) == SETTINGS.with_effect


def test_every_row_names_tests_and_all_of_them_exist() -> None:
    defined = {
        name
        for folder in TESTS
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= defined
    for line in PAGE.splitlines():
        if line.startswith("| ") and "shown by" not in line and "---" not in line:
            assert "`test_" in line.split("|")[-2], line
