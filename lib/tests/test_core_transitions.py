"""The tables of states: what they lack is refused, and each state can be reached and left as its parts do it."""

from __future__ import annotations

import enum
from itertools import product
from typing import Any

import pytest
from magnetar.core.errors import Misuse
from magnetar.core.transitions import Transitions
from magnetar.ledger.appender import TRANSITIONS as APPENDER
from magnetar.ledger.appender import AppenderState
from magnetar.ledger.bookie_client.tcp_bookie import TRANSITIONS as LINK
from magnetar.ledger.bookie_client.tcp_bookie import LinkState
from magnetar.managed.cursors.storage import STORAGE_TRANSITIONS, WRITE_TRANSITIONS, StorageState, WriteState
from magnetar.managed.states import TRANSITIONS as MANAGED
from magnetar.managed.states import ManagedLedgerState
from magnetar.metadata.coordination import LOCK_TRANSITIONS, LockState
from magnetar.net.connection import TRANSITIONS as CONNECTION
from magnetar.net.connection import ConnectionState


class Door(enum.Enum):
    OPEN = enum.auto()
    SHUT = enum.auto()
    GONE = enum.auto()


DOOR = Transitions("a door", {Door.OPEN: {Door.SHUT}, Door.SHUT: {Door.OPEN, Door.SHUT, Door.GONE}, Door.GONE: ()})


def test_what_the_table_has_is_taken() -> None:
    assert DOOR.step(Door.OPEN, Door.SHUT) is Door.SHUT
    assert DOOR.step(Door.SHUT, Door.SHUT) is Door.SHUT


@pytest.mark.parametrize(("before", "after"), [(Door.OPEN, Door.OPEN), (Door.OPEN, Door.GONE), (Door.GONE, Door.OPEN)])
def test_what_the_table_lacks_is_told(before: Door, after: Door) -> None:
    with pytest.raises(Misuse, match=f"a door does not go from {before.name} to {after.name}"):
        DOOR.step(before, after)


def test_every_state_has_its_row() -> None:
    with pytest.raises(AssertionError):
        Transitions("a door", {Door.OPEN: {Door.SHUT}})


@pytest.mark.parametrize(
    ("table", "before", "after"),
    [
        (APPENDER, AppenderState.FAILED, AppenderState.OPEN),
        (LINK, LinkState.CLOSED, LinkState.IDLE),
        (LOCK_TRANSITIONS, LockState.LOST, LockState.HELD),
        (MANAGED, ManagedLedgerState.CLOSED, ManagedLedgerState.LEDGER_OPENED),
        (STORAGE_TRANSITIONS, StorageState.DELETING, StorageState.OPEN),
        (CONNECTION, ConnectionState.CLOSED, ConnectionState.OPEN),
    ],
)
def test_what_has_ended_stays_so(table: Transitions[enum.Enum], before: enum.Enum, after: enum.Enum) -> None:
    with pytest.raises(Misuse):
        table.step(before, after)


@pytest.mark.parametrize(
    ("table", "states", "allowed"),
    [
        (APPENDER, AppenderState, {"OPEN": "CHANGING FAILED", "CHANGING": "CHANGING OPEN FAILED", "FAILED": ""}),
        (
            LINK,
            LinkState,
            {
                "IDLE": "IDLE CONNECTING CONNECTED CLOSED",
                "CONNECTING": "IDLE CONNECTED CLOSED",
                "CONNECTED": "IDLE CONNECTED CLOSED",
                "CLOSED": "CLOSED",
            },
        ),
        (
            LOCK_TRANSITIONS,
            LockState,
            {"FREE": "FREE HELD LOST", "HELD": "IN_DOUBT LOST FREE", "IN_DOUBT": "HELD LOST FREE", "LOST": ""},
        ),
        (STORAGE_TRANSITIONS, StorageState, {"OPEN": "CLOSED DELETING", "CLOSED": "CLOSED DELETING", "DELETING": ""}),
        (
            WRITE_TRANSITIONS,
            WriteState,
            {"IDLE": "IDLE BY_LEDGER", "BY_LEDGER": "IDLE BY_NODE", "BY_NODE": "IDLE BY_LEDGER"},
        ),
        (
            CONNECTION,
            ConnectionState,
            {
                "CONNECTING": "UNWANTED OPEN",
                "UNWANTED": "CLOSED",
                "OPEN": "UPGRADING CLOSING CLOSED",
                "UPGRADING": "OPEN CLOSED",
                "CLOSING": "CLOSED",
                "CLOSED": "",
            },
        ),
    ],
)
def test_each_pair_is_allowed_or_told(
    table: Transitions[Any], states: type[enum.Enum], allowed: dict[str, str]
) -> None:
    for before, after in product(states, states):
        if after.name in allowed[before.name].split():
            assert table.allows(before, after)
            assert table.step(before, after) is after
        else:
            assert not table.allows(before, after)
            with pytest.raises(Misuse, match=f"from {before.name} to {after.name}"):
                table.step(before, after)
