"""A topic in memory for tests: entries as brokers store them, and neighbours that read them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from magnetar.spark.assembly.neighbours import NO_ENTRY
from magnetar.spark.entries import EntryBlock
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange, Slice
from magnetar.wire.pulsar.batch import build_batch, build_message
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

TOPIC = "persistent://public/default/t"


def metadata(
    sequence_id: int, *, producer: str = "p", transaction: tuple[int, int] | None = None, publish_time_ms: int = 1000
) -> MessageMetadata:
    """What every message has."""
    made = MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=publish_time_ms)
    if transaction is not None:
        made.txnid_most_bits, made.txnid_least_bits = transaction
    return made


def plain(sequence_id: int, payload: bytes = b"plain", **more: object) -> bytes:
    """A message by itself."""
    return build_message(metadata(sequence_id, **more), payload)  # type: ignore[arg-type] # Handed through.


def batch(sequence_id: int, payloads: Sequence[bytes], **more: object) -> bytes:
    """Several messages in one entry."""
    singles = [(SingleMessageMetadata(), payload) for payload in payloads]
    return build_batch(metadata(sequence_id, **more), singles)  # type: ignore[arg-type] # Handed through.


def chunk(sequence_id: int, number: int, payloads: Sequence[bytes], **more: object) -> bytes:
    """One chunk of a message whose chunks have these payloads."""
    made = metadata(sequence_id, **more)  # type: ignore[arg-type] # Handed through.
    made.uuid = f"{made.producer_name}-{sequence_id}"
    made.chunk_id = number
    made.num_chunks_from_msg = len(payloads)
    made.total_chunk_msg_size = sum(map(len, payloads))
    return build_message(made, payloads[number])


def marker(marker_type: int, transaction: tuple[int, int] | None = None) -> bytes:
    """A marker of the broker."""
    made = metadata(0, producer="", transaction=transaction)
    made.marker_type = marker_type
    return build_message(made, b"")


class MemoryTopic:
    """Ledgers with their entries. Entries may be taken out (`None`): holes."""

    def __init__(self, ledgers: dict[int, list[bytes | None]]) -> None:
        self.ledgers = ledgers
        self.entries_read = 0

    def block(self, ledger_id: int, first: int, last: int) -> EntryBlock:
        """Entries first..last, as an entry source gives them."""
        entries = self.ledgers.get(ledger_id, [])
        found = [(entry_id, data) for entry_id, data in enumerate(entries) if first <= entry_id <= last and data]
        return EntryBlock(ledger_id, [entry_id for entry_id, _ in found], [data for _, data in found])

    def slice_of(self, first: MessagePosition, end: MessagePosition) -> Slice:
        """Everything from first up to before end, cut at entries."""
        ranges = []
        for ledger_id, entries in self.ledgers.items():
            begin = first.entry_id if ledger_id == first.ledger_id else 0
            behind = min(end.entry_id, len(entries)) if ledger_id == end.ledger_id else len(entries)
            if first.ledger_id <= ledger_id <= end.ledger_id and begin < behind:
                wanted = LedgerRange(ledger_id=ledger_id, first_entry_id=begin, last_entry_id=behind - 1, size_bytes=1)
                ranges.append(wanted)
        return Slice(topic=TOPIC, first=first, end=end, ranges=tuple(ranges))

    async def read(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> EntryBlock:
        """The entries of this range that the made topic has; counts what was asked for."""
        self.entries_read += last_entry_id - first_entry_id + 1
        return self.block(ledger_id, first_entry_id, last_entry_id)

    async def last_entry(self, ledger_id: int) -> int:
        """The last entry of a ledger of the made topic; -1 when there is no such ledger."""
        return len(self.ledgers.get(ledger_id, ())) - 1 if ledger_id in self.ledgers else NO_ENTRY

    async def previous(self, ledger_id: int) -> int | None:
        """The ledger before this one; None: there is none."""
        known = sorted(self.ledgers)
        at = bisect_left(known, ledger_id)
        return known[at - 1] if at else None

    async def following(self, ledger_id: int) -> int | None:
        """The ledger behind this one; None: there is none."""
        return min((each for each in self.ledgers if each > ledger_id), default=None)

    async def unknown(self) -> str:
        """Empty: all ledgers of the made topic are known."""
        return ""
