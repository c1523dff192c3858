"""What an audit of a topic says: on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from magnetar.spark.jobs.job import document_of
from magnetar.spark.jobs.running import short_topic
from rich.console import Console
from rich.markup import escape
from rich.table import Table

SAMPLES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """What a compaction of everything that is there would leave."""

    keys: int
    """Different keys that the topic's messages have."""
    messages_left: int
    bytes_saved: int
    bytes_left: int
    """Keys, values and properties as they were sent: compression and what is around them not counted."""
    tombstones: int
    """Messages with a key and no value, which delete the key."""
    keys_deleted: int
    """Keys whose newest message is one."""
    keyless: int
    keyless_bytes: int
    keyless_stay: bool
    """Whether messages without a key stay, as brokers' topicCompactionRetainNullKey says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateGroup:
    """Messages that are alike in key, value, event time and properties."""

    topic: str
    copies: int
    key: str | None
    first_message_id: str
    last_message_id: str
    apart_ms: int
    """From the first one's publishing to the last one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Messages that were there already. Whether they were sent twice by mistake nothing in a topic says for sure: a
    short time apart speaks for it."""

    messages: int
    """Beyond the first of each group."""
    bytes: int
    groups: int
    soon: int = field(metadata={"json": "groupsSoon"})
    """Groups that are all within `soon_ms`: most likely sent again, with deduplication off."""
    soon_ms: int
    samples: Sequence[DuplicateGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Entries of a ledger between read ones that hold no message for readers: markers, aborted transactions, what a
    compaction left out, chunks but for the last, or a hole."""

    topic: str
    ledger_id: int = field(metadata={"json": "ledger"})
    entries_missing: int
    of_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The longest time without a message."""

    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """The length of the silence, in seconds."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAudit:
    """All about one topic, its partitions together."""

    topic: str
    messages: int
    bytes: int
    first: datetime
    last: datetime
    compaction: CompactionOutcome
    duplicates: Duplicates
    gaps: Sequence[Gap]
    silence: Silence | None = field(metadata={"json": "longestSilence"})
    """None where there is no second minute with messages."""


def document(audits: Sequence[TopicAudit]) -> dict[str, Any]:
    """The audits as the object of the JSON file."""
    return {"topics": document_of(list(audits))}


def show(audits: Sequence[TopicAudit], console: Console) -> None:
    """Show the report on a terminal."""
    for audit in audits:
        console.print(
            f"\n[bold]{escape(short_topic(audit.topic))}[/bold]: {audit.messages:,} messages, {_size(audit.bytes)} "
            f"as sent, from {audit.first:%Y-%m-%d %H:%M:%S} to {audit.last:%Y-%m-%d %H:%M:%S} UTC",
            highlight=False,
        )
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, text in _lines(audit):
            table.add_row(name, text)
        console.print(table)
        _show_duplicates(audit.duplicates, console)


def _lines(audit: TopicAudit) -> list[tuple[str, str]]:
    compaction, duplicates = audit.compaction, audit.duplicates
    saved = compaction.bytes_saved
    percent = f" ({100 * saved / audit.bytes:.0f} %)" if audit.bytes else ""
    stay = "stay" if compaction.keyless_stay else "go"
    lines = [
        (
            "a compaction",
            f"leaves {compaction.messages_left:,} messages, {_size(compaction.bytes_left)}; "
            f"saves {_size(saved)}{percent}",
        ),
        ("keys", f"{compaction.keys:,}, of which {compaction.keys_deleted:,} are deleted by their newest message"),
        ("tombstones", f"{compaction.tombstones:,}"),
        ("without a key", f"{compaction.keyless:,}, {_size(compaction.keyless_bytes)}; they {stay} with a compaction"),
        (
            "alike",
            f"{duplicates.messages:,} messages, {_size(duplicates.bytes)}, are like one before, in "
            f"{duplicates.groups:,} groups; {duplicates.soon:,} of these within {duplicates.soon_ms / 1000:g} s",
        ),
    ]
    missing = sum(gap.entries_missing for gap in audit.gaps)
    if missing:
        worst = audit.gaps[0]
        lines.append(
            (
                "entries without messages",
                f"{missing:,} in {len(audit.gaps)} ledgers, most of them in ledger {worst.ledger_id}: "
                f"{worst.entries_missing:,} of {worst.of_entries:,}",
            )
        )
    if audit.silence is not None:
        lines.append(
            (
                "longest silence",
                f"{audit.silence.seconds / 60:,.0f} min, from {audit.silence.begin:%Y-%m-%d %H:%M} "
                f"to {audit.silence.end:%Y-%m-%d %H:%M}",
            )
        )
    return lines


def _show_duplicates(duplicates: Duplicates, console: Console) -> None:
    if not duplicates.samples:
        return
    table = Table("copies", "key", "first", "last", "apart")
    for one in duplicates.samples[:SAMPLES_SHOWN]:
        key = "" if one.key is None else escape(one.key)
        table.add_row(
            f"{one.copies:,}", key, one.first_message_id, one.last_message_id, f"{one.apart_ms / 1000:,.1f} s"
        )
    console.print(table)


def _size(size_bytes: int) -> str:
    for unit, bytes_each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size_bytes) >= bytes_each:
            return f"{size_bytes / bytes_each:,.1f} {unit}"
    return f"{size_bytes:,} B"
