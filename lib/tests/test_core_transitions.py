"""The tables of states: what they lack is refused, and each state can be reached and left as its parts do it."""

from __future__ import annotations

import enum

import pytest
from magnetar.core.errors import Misuse
from magnetar.core.transitions import Transitions
from magnetar.ledger.appender import TRANSITIONS as APPENDER
from magnetar.ledger.appender import AppenderState
from magnetar.ledger.bookie_client.tcp_bookie import TRANSITIONS as LINK
from magnetar.ledger.bookie_client.tcp_bookie import LinkState
from magnetar.managed.states import TRANSITIONS as MANAGED
from magnetar.managed.states import ManagedLedgerState
from magnetar.metadata.coordination import LOCK_TRANSITIONS, LockState


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
    ],
)
def test_what_has_ended_stays_so(table: Transitions[enum.Enum], before: enum.Enum, after: enum.Enum) -> None:
    with pytest.raises(Misuse):
        table.step(before, after)
