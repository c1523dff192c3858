"""What `magnetar bookie state` shows of a bookie that is being healed."""

from __future__ import annotations

import json

import pytest
from magnetar.bookie.admin.control import storage_state
from magnetar.bookie.admin.testing import DAMAGED, FakeOperations
from magnetar.bookie.operations import LimboState
from magnetar.cli.commands.bookie_control import STATE_LABELS
from magnetar.cli.commands.output import show_object
from magnetar.cli.tools.control import running_state


def shown(limbo: LimboState, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    operations = FakeOperations()
    operations.lacks = limbo
    show_object(running_state(storage_state(operations.all())), as_json=as_json, labels=STATE_LABELS)
    return capsys.readouterr().out


def test_the_table_tells_what_is_lost_and_how_far_healing_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dict(line.split(maxsplit=1) for line in shown(DAMAGED, capsys).splitlines() if len(line.split()) > 1)
    fetched = "entries fetched from the other bookies: 700"
    assert lines["limbo"] == f"ledgers: 3 of 12, since 2023-11-14 22:13:20Z; {fetched}"
    why = "ledger 7: no other bookie ever had them"
    assert lines["not"] == f"healed     ledgers: 1; entries lost for certain: 40; {why}"
    assert lines["damage"] == "/data/journal/1.txn: its head is zeros"


def test_a_bookie_that_is_whole_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "limbo          no\n" in shown(LimboState(), capsys)


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    limbo = json.loads(shown(DAMAGED, capsys, as_json=True))["limbo"]
    assert limbo == {
        "in_limbo": True,
        "since_ms": DAMAGED.since_ms,
        "ledgers": 3,
        "ledgers_total": 12,
        "ledgers_unhealed": 1,
        "entries_lost": 40,
        "entries_fetched": 700,
        "problems": [{"ledger_id": 7, "reason": "no other bookie ever had them"}],
        "damage": ["/data/journal/1.txn: its head is zeros"],
    }
