"""`pulsar-admin` and `pulsarctl` print against our cluster what they print against Apache's, every subcommand of both.

What Apache's printed was recorded by `python -m e2e.admin_cli --record`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.admin_cli import coverage, different, recording, targets
from e2e.admin_cli.targets import Target
from e2e.admin_cli.tools import Tool
from e2e.admin_cli.walks import WALKS
from e2e.clients import builds
from e2e.interchange import parts

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with targets.running("") as running:
        yield running


@pytest.fixture(scope="module", params=list(WALKS))
def tool(request: pytest.FixtureRequest, target: Target) -> Iterator[Tool]:
    reason = builds.missing("pulsarctl") if request.param == "pulsarctl" else None
    if reason is not None:
        pytest.skip(reason)
    with recording.TOOLS[request.param](target.admin_url) as opened:
        yield opened


def test_every_subcommand_is_walked_or_left_out_by_name(tool: Tool) -> None:
    found = coverage.subcommands(tool)
    assert len(found) >= coverage.COUNTS_MIN[tool.name], "the tool's help was not understood"
    assert coverage.unexplained(found, tool, WALKS[tool.name]) == []


def test_tools_print_what_they_print_against_apache(tool: Tool, target: Target) -> None:
    outcomes = recording.walk(target, tool)
    found = recording.differences(tool.name, outcomes)
    unexplained, vanished = different.judge(target.name, tool.name, outcomes, found)
    assert unexplained == []
    assert vanished == [], "these differ no more and belong out of the list"
