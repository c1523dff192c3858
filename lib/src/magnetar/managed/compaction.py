"""The cursor `__compaction` of a managed ledger: its mark is the last compaction's horizon, a property its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.ledger.api import Announce, LedgerOptions
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.cursors.internal_properties import INTERNAL_PREFIX
from magnetar.managed.settings import ManagedLedgerSettings

COMPACTION_CURSOR: Final = "__compaction"
"""The cursor that holds a topic's compaction (Pulsar: `Compactor.COMPACTION_SUBSCRIPTION`)."""

LEDGER_PROPERTY: Final = "CompactedTopicLedger"
"""Stored with that cursor's position (Pulsar: `Compactor.COMPACTED_TOPIC_LEDGER_PROPERTY`)."""

RUN_PROPERTY: Final = INTERNAL_PREFIX + "magnetar.compaction"
"""Ours, among the cursor's own properties while a compaction runs: the ids of the ledger that it writes and of the one
that it is to replace. Whoever loads the topic after a crash deletes the one that is not the compaction's ledger.
Apache's brokers keep it and, for how it begins, show it to nobody (`ManagedCursorImpl`)."""


def ledgers_of_cursor(cursor: Cursor) -> set[int]:
    """Ids of ledgers that only this cursor names, and that are deleted with it: the compaction's, and those of a run
    that did not end. None for any other cursor."""
    if cursor.name != COMPACTION_CURSOR:
        return set()
    found = run_ledgers(cursor.cursor_properties)
    if LEDGER_PROPERTY in cursor.properties:
        found.add(cursor.properties[LEDGER_PROPERTY])
    return found


def run_ledgers(cursor_properties: Mapping[str, str]) -> set[int]:
    """The ledgers that a run has noted; none when nothing runs, or when the note makes no sense."""
    texts = cursor_properties.get(RUN_PROPERTY, "").split(",")
    return {int(text) for text in texts if text.isascii() and text.isdecimal()}


def compacted_ledger_options(
    settings: ManagedLedgerSettings, topic: str, compacted_to: bytes, announce: Announce
) -> LedgerOptions:
    """How Apache's brokers spread and label the ledger of a compaction: by the broker's own settings, whatever the
    namespace's policies are, with an empty password and CRC32 (`AbstractTwoPhaseCompactor.createLedger`)."""
    return LedgerOptions(
        ensemble_size=settings.ensemble_size,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        digest_type="CRC32",
        custom_metadata={
            "application": b"pulsar",
            "component": b"compacted-ledger",
            "pulsar/compactedTopic": topic.encode(),
            "pulsar/compactedTo": compacted_to,
        },
        announce=announce,
    )
