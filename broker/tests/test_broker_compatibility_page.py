"""docs/COMPATIBILITY.md names every command of the protocol, every route that is registered, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from magnetar.broker.admin.application import RESOURCES
from magnetar.broker.settings.names import SETTINGS
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand

TESTS = Path(__file__).parent
ROOT = TESTS.parent.parent
PAGE = ROOT / "docs" / "COMPATIBILITY.md"
ROW = re.compile(r"^\| `([^`]+)` \|(?:.*\|)? `(\w+)` \|$", re.MULTILINE)


def brokers_part() -> str:
    """The page up to the bookies' part."""
    return PAGE.read_text().partition("\n# BookKeeper\n")[0]


def rows() -> dict[str, str]:
    """What the page's tables are about, and the test that each row names."""
    found = ROW.findall(brokers_part())
    assert len(found) == len(dict(found)), "something stands in two rows"
    return dict(found)


def test_every_command_is_on_the_page() -> None:
    commands = {name for name in rows() if re.fullmatch("[A-Z_]+", name)}
    assert commands == set(BaseCommand.Type.keys())


async def test_every_route_is_on_the_page(memory_broker: MemoryBroker) -> None:
    context = memory_broker.running.context
    registered = {
        f"{route.method} {re.sub(r':[^}]*}', '}', route.path)}"
        for resource in RESOURCES
        for route in resource.routes(context)
    }
    assert {name for name in rows() if "/" in name} == registered


def test_every_setting_with_an_effect_is_on_the_page() -> None:
    section = brokers_part().partition("## Settings of brokers\n")[2].partition("\n## ")[0]
    section = section.partition("\n### Dynamic settings that are refused\n")[0]
    table = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| refused")]
    assert set(re.findall(r"`(\w+)`", "\n".join(table))) == SETTINGS.with_effect
    ours = tuple(re.findall(r"`(\w+)…?`", section.partition("Ours alone are")[2].partition(". ")[0]))
    for row in SETTINGS.rows:
        assert row.name.startswith(ours) is row.ours, row.name


def test_every_test_on_the_page_exists() -> None:
    defined = {
        name
        for folder in ("broker", "lib", "cli", "operator", "e2e")
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert set(re.findall(r"`(test_\w+)`", brokers_part())) <= defined
