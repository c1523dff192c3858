"""The inside of persistent topics: ledgers and cursors, live (`internalStats`), as stored (`internal-info`), and what
they hold for whom (`backlog`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.admin.topics.stats import iso_time, position_text, without_nulls
from magnetar.broker.compaction.compacted_topic import compaction_of
from magnetar.broker.resources import Document
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.managed.info_codec import POSITION_IN_NODE, decode_cursor_info, decode_ledger_info
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import cursor_path, decode, ledger_path
from magnetar.managed.stats import CursorStats, LedgerStats
from magnetar.metadata.store import MetadataStore, Stat
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

STRETCHES_MAX: Final = 10_000
"""Acknowledged stretches of one cursor that are told, 250 KB of text: as many as are stored of it by default (Pulsar:
`managedLedgerMaxUnackedRangesToPersist`), so that a read-only broker takes a subscription over with all of them. Of
further ones the messages come again, none is lost."""

STRETCHES_OF_TOPIC_MAX: Final = 1_000_000
"""Of all cursors of a topic, 25 MB. Then each has `STRETCHES_MIN`, as tools only show them."""

STRETCHES_MIN: Final = 100

NOTHING_STORED: Final[dict[str, Any]] = {
    "entriesAddedCounter": 0,
    "numberOfEntries": 0,
    "totalSize": 0,
    "currentLedgerEntries": 0,
    "currentLedgerSize": 0,
    "waitingCursorsCount": 0,
    "pendingAddEntriesCount": 0,
    "cursors": {},
}
"""The internal stats of a non-persistent topic."""

NO_LEDGER: Final = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}


async def internal_stats(topic: PersistentTopic) -> Document:
    """Ledgers and cursors of one topic (or partition), gathered in turns with what clients send."""
    document = await ledger_stats(topic.ledger, topic.subscriptions)
    properties = document.pop("properties", None)
    document.update({"schemaLedgers": [], "compactedLedger": await compacted_ledger_document(topic.ledger)})
    return document if properties is None else {**document, "properties": properties}


async def ledger_stats(ledger: ManagedLedger, subscriptions: Mapping[str, Subscription]) -> Document:
    """The ledgers and cursors of a managed ledger, gathered in turns with what clients send; `subscriptions` are those
    that its cursors belong to (Pulsar: `ManagedLedgerInternalStats`)."""
    stats = ledger.internal_stats(with_cursors=False)
    turn = TimeSlice()
    stretches_left = STRETCHES_OF_TOPIC_MAX
    cursors: dict[str, Document] = {}
    for name in list(ledger.cursors):
        if turn.over:
            await turn.pause()
        cursor = ledger.cursors.get(name)
        if cursor is None:
            continue  # Removed meanwhile.
        shown = min(STRETCHES_MAX, max(stretches_left, STRETCHES_MIN))
        stretches_left -= min(cursor.individual_ranges, shown)
        one = cursor_document(cursor.stats(shown), stats.entries_added, subscriptions.get(name), ledger)
        cursors[name] = without_nulls(one)
    document = {
        "entriesAddedCounter": stats.entries_added,
        "numberOfEntries": stats.number_of_entries,
        "totalSize": stats.total_size_bytes,
        "currentLedgerEntries": stats.current_ledger_entries,
        "currentLedgerSize": stats.current_ledger_size_bytes,
        "lastLedgerCreatedTimestamp": iso_time(stats.last_ledger_created_ms),
        "lastLedgerCreationFailureTimestamp": None,
        "waitingCursorsCount": sum(cursor["waitingReadOp"] for cursor in cursors.values()),
        "pendingAddEntriesCount": stats.pending_entries,
        "lastConfirmedEntry": position_text(stats.last_confirmed),
        "state": stats.state,
        "ledgers": [ledger_document(each) for each in stats.ledgers],
        "cursors": cursors,
        "properties": stats.properties or None,
    }
    # Those of the cursors are without nulls already: there may be many.
    return {
        key: value if key == "cursors" else without_nulls(value) for key, value in document.items() if value is not None
    }


async def compacted_ledger_document(ledger: ManagedLedger) -> Document:
    """The ledger that the newest compaction has written; of one that cannot be opened no more than its id is known."""
    compaction = compaction_of(ledger)
    if compaction is None:
        return NO_LEDGER
    try:
        reader = await ledger.open_other(compaction.ledger_id)
    except MagnetarError:
        return {**NO_LEDGER, "ledgerId": compaction.ledger_id}
    try:
        entries = reader.last_add_confirmed + 1
        return {**NO_LEDGER, "ledgerId": compaction.ledger_id, "entries": entries, "size": reader.length_bytes}
    finally:
        await reader.close()


def ledger_document(ledger: LedgerStats) -> Document:
    """One ledger; the one in use shows no entries, as its record has none yet."""
    in_use = ledger.closed_ms == 0
    return {
        "ledgerId": ledger.ledger_id,
        "entries": 0 if in_use else ledger.entries,
        "size": 0 if in_use else ledger.size_bytes,
        "offloaded": ledger.offloaded,
        "underReplicated": False,
    }


def cursor_document(
    cursor: CursorStats, entries_added: int, subscription: Subscription | None, ledger: ManagedLedger
) -> Document:
    """A cursor's internal statistics as JSON."""
    active = subscription is not None and bool(subscription.consumers)
    waiting = active and cursor.read_position > ledger.last_confirmed
    ahead = ledger.ledgers.previous_position(cursor.read_position)
    return {
        "markDeletePosition": position_text(cursor.mark_delete),
        "readPosition": position_text(cursor.read_position),
        "waitingReadOp": waiting,
        "pendingReadOps": 0,
        "messagesConsumedCounter": max(entries_added - cursor.backlog_entries, 0),
        "cursorLedger": cursor.cursor_ledger,
        "cursorLedgerLastEntry": cursor.cursor_ledger_last_entry,
        "individuallyDeletedMessages": cursor.individually_acknowledged,
        "lastLedgerSwitchTimestamp": iso_time(cursor.last_ledger_switch_ms),
        "state": "Open" if cursor.cursor_ledger >= 0 else "NoLedger",
        "active": active,
        # Apache's counts the entry that is read next as well.
        "numberOfEntriesSinceFirstNotAckedMessage": ledger.ledgers.entries_between(cursor.mark_delete, ahead) + 1,
        "totalNonContiguousDeletedMessagesRange": cursor.individual_count,
        "subscriptionHavePendingRead": waiting,
        "subscriptionHavePendingReplayRead": False,
        "properties": cursor.properties,
    }


async def add_ledger_metadata(document: Document, metadata: LedgerMetadataOps) -> None:
    """What the ledgers' own metadata says of each ledger, as BookKeeper prints it."""
    for ledger in document["ledgers"]:
        try:
            found, _ = await metadata.read(ledger["ledgerId"])
        except LedgerNotFound:
            continue
        ledger["metadata"] = metadata_text(found)


def metadata_text(metadata: LedgerMetadata) -> str:
    """A ledger's metadata as text (BookKeeper: `LedgerMetadataImpl.toSafeString`)."""
    parts = [
        "formatVersion=3",
        f"ensembleSize={metadata.ensemble_size}",
        f"writeQuorumSize={metadata.write_quorum}",
        f"ackQuorumSize={metadata.ack_quorum}",
        f"state={metadata.state.name}",
    ]
    if metadata.state.name == "CLOSED":
        parts += [f"length={metadata.length_bytes}", f"lastEntryId={metadata.last_entry_id}"]
    if metadata.digest_type is not None:
        parts += [f"digestType={metadata.digest_type}", "password=OMITTED"]
    ensembles = ", ".join(f"{first}=[{', '.join(bookies)}]" for first, bookies in metadata.ensembles)
    return f"LedgerMetadata{{{', '.join(parts)}, ensembles={{{ensembles}}}}}"


async def stored_info(store: MetadataStore, name: TopicName) -> Document | None:
    """A topic's records in the metadata store; None when there is no such topic."""
    node = await store.get(ledger_path(name.persistence_name), watch=False)
    if node is None:
        return None
    info = decode_ledger_info(node.value)
    document = {
        **record_dates(node.stat),
        "ledgers": [
            {
                "ledgerId": record.ledger_id,
                **({"entries": record.entries, "size": record.size_bytes} if record.closed_ms else {}),
                "timestamp": record.closed_ms,
                "isOffloaded": record.rest is not None and record.rest.offloadContext.complete,
            }
            for record in info.records
        ],
        "cursors": {},
    }
    if info.terminated_at is not None:
        document["terminatedPosition"] = position_document(*info.terminated_at)
    if info.properties:
        document["properties"] = info.properties
    for encoded in await store.children(ledger_path(name.persistence_name)):
        cursor = await store.get(cursor_path(name.persistence_name, decode(encoded)), watch=False)
        if cursor is not None:
            document["cursors"][encoded] = stored_cursor(cursor.value, cursor.stat)
    return document


def stored_cursor(value: bytes, stat: Stat) -> Document:
    """A cursor's record."""
    info = decode_cursor_info(value)
    document = {**record_dates(stat), "cursorsLedgerId": info.cursorsLedgerId}
    if info.cursorsLedgerId == POSITION_IN_NODE or info.HasField("markDeleteLedgerId"):
        document["markDelete"] = position_document(info.markDeleteLedgerId, info.markDeleteEntryId)
    if info.individualDeletedMessages:
        document["individualDeletedMessages"] = [
            {
                "lowerEndpoint": position_document(each.lowerEndpoint.ledgerId, each.lowerEndpoint.entryId),
                "upperEndpoint": position_document(each.upperEndpoint.ledgerId, each.upperEndpoint.entryId),
            }
            for each in info.individualDeletedMessages
        ]
    if info.properties:
        document["properties"] = {each.name: each.value for each in info.properties}
    return document


def record_dates(stat: Stat) -> Document:
    """When a record was made and changed."""
    return {
        "version": stat.version,
        "creationDate": iso_time(stat.created_ms),
        "modificationDate": iso_time(stat.modified_ms),
    }


def position_document(ledger_id: int, entry_id: int) -> dict[str, int]:
    """A position in a record."""
    return {"ledgerId": ledger_id, "entryId": entry_id}


def backlog_document(name: TopicName, host: str, now_ms: int, topic: PersistentTopic | None) -> Document:
    """What a topic stores and who has how much of it before it (Pulsar `PersistentOfflineTopicStats`)."""
    ledgers: list[LedgerStats] = []
    cursors: Mapping[str, CursorStats] = {}
    if topic is not None:
        stats = topic.ledger.internal_stats()
        ledgers, cursors = stats.ledgers, stats.cursors
    return {
        "storageSize": sum(ledger.size_bytes for ledger in ledgers),
        "totalMessages": sum(ledger.entries for ledger in ledgers),
        "messageBacklog": sum(cursor.backlog_entries for cursor in cursors.values()),
        "brokerName": host,
        "topicName": f"{name.namespace_name}/{name.domain}/{name.local_name}",
        "dataLedgerDetails": [
            {
                "entries": ledger.entries,
                "timestamp": ledger.closed_ms,
                "size": ledger.size_bytes,
                "ledgerId": ledger.ledger_id,
            }
            for ledger in ledgers
        ],
        "cursorDetails": {
            cursor_name: {"cursorBacklog": cursor.backlog_entries, "cursorLedgerId": cursor.cursor_ledger}
            for cursor_name, cursor in cursors.items()
        },
        "statGeneratedAt": now_ms,
    }
