"""Chunked messages, joined as Pulsar's Java client does it (`ConsumerImpl.processMessageChunk`).

A chunk 0 begins a message anew. The next chunk is appended, one that was there already is left out, and a gap spoils
the message. Its last chunk ends it, and the message is at that chunk's place. Chunks after that, up to the next
chunk 0, are those of a producer that did not get its receipts and sent them again.

Unlike the Java client, which says nothing, a message that ends without being whole is handed on as a bad record.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from magnetar.spark.assembly.neighbours import Bounds, EntryWalk
from magnetar.spark.assembly.transactions import TransactionId, transaction_of
from magnetar.spark.entries import EntryBlock, WholeEntry
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import MessageMetadataView, skim

ChunkKey = tuple[str, str, TransactionId | None]
"""Producer name, uuid and transaction: chunks of an aborted transaction are not those of a later attempt."""

_UNKNOWN: Final = 0
_BEGUN: Final = 1
_ENDED: Final = 2


def is_chunk(view: MessageMetadataView) -> bool:
    """A message of one chunk is none."""
    return view.num_chunks > 1


def chunk_key(view: MessageMetadataView) -> ChunkKey:
    """What the chunks of one message have in common."""
    return view.producer_name, view.uuid, transaction_of(view)


class Chunk:
    """One chunk as it is stored."""

    __slots__ = ("chunk_id", "data", "payload_start")

    def __init__(self, view: MessageMetadataView, data: bytes) -> None:
        self.chunk_id: int = view.chunk_id
        self.payload_start: int = view.payload_start
        self.data: bytes = data


@dataclass(slots=True, eq=False)
class ChunkedMessage:
    """What is known of one uuid: from its newest chunk 0 on, or else from the beginning of the slice."""

    headless: bool
    """No chunk 0 was seen: what is before the slice has to be looked at."""
    chunks: list[Chunk] = field(default_factory=list)
    """In the order of the topic. Without gaps and duplicates, unless headless."""
    size_bytes: int = 0
    lost: str = ""
    """Why it cannot become whole."""
    ended: bool = False
    """Its last chunk was there; what comes before the next chunk 0 was sent twice."""

    def add(self, chunk: Chunk) -> None:
        """Append a chunk, or leave it out, or give up."""
        if self.lost:
            return
        if not self.headless:
            expected = len(self.chunks)
            if chunk.chunk_id < expected:
                return
            if chunk.chunk_id > expected:
                self.lose(f"chunk {chunk.chunk_id} follows chunk {expected - 1}" if expected else "chunk 0 is missing")
                return
        self.chunks.append(chunk)
        self.size_bytes += len(chunk.data) - chunk.payload_start

    def lose(self, reason: str) -> None:
        """Give up, and let go of what was kept."""
        self.lost = reason
        self.let_go()

    def let_go(self) -> None:
        """Forget the chunks."""
        self.chunks = []
        self.size_bytes = 0

    def joined(self) -> bytes:
        """The whole payload, still compressed."""
        return b"".join([memoryview(each.data)[each.payload_start :] for each in self.chunks])


@dataclass(slots=True, eq=False)
class _Found:
    chunks: list[Chunk] = field(default_factory=list)
    """The chunks of one message that were found, the last one first."""
    state: int = _UNKNOWN


class EarlierChunks:
    """Looks for chunks before a slice, backwards, for all its messages in one walk.

    It keeps the chunks of messages that are not complete there; the walk's bound bounds them."""

    def __init__(self, walk: EntryWalk) -> None:
        self._walk = walk
        self._found: dict[ChunkKey, _Found] = {}

    async def of(self, key: ChunkKey) -> tuple[list[Chunk], bool, str]:
        """Chunks from the newest chunk 0 on, in order; whether the message ended there instead; and else why neither
        was found. Once for each key: the chunks are given away."""
        found = self._of(key)
        while found.state == _UNKNOWN:
            block = await self._walk.step()
            if block is None:
                return [], False, self._walk.ended
            self._take(block)
        chunks, found.chunks = found.chunks[::-1], []
        return chunks, found.state == _ENDED, ""

    def _of(self, key: ChunkKey) -> _Found:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _Found()
        return found

    def _take(self, block: EntryBlock) -> None:
        for data in reversed(block.entries):
            try:
                view = skim(data)
            except BadMetadata:
                continue  # Whoever reads the slice that it is in reports it.
            if not is_chunk(view):
                continue
            found = self._of(chunk_key(view))
            if found.state != _UNKNOWN:
                continue
            if view.chunk_id >= view.num_chunks - 1:
                found.state = _ENDED
                found.chunks = []
                continue
            found.chunks.append(Chunk(view, data))
            if view.chunk_id == 0:
                found.state = _BEGUN


class ChunkJoiner:
    """Takes a slice's chunks in order, and gives a message for each last one."""

    def __init__(self, before: EntryWalk, bounds: Bounds) -> None:
        self._earlier = EarlierChunks(before)
        self._bounds = bounds
        self._messages: OrderedDict[ChunkKey, ChunkedMessage] = OrderedDict()
        """Those longest without a chunk come first."""
        self._unfinished_bytes = 0

    async def add(self, entry: WholeEntry) -> WholeEntry | None:
        """Take one chunk; the message if it was the last one, whole or broken. None: there is more to come, or it was
        sent twice."""
        view = entry.view
        if not view.uuid or view.chunk_id < 0:
            return _broken(entry, "a chunk without uuid or number")
        key = chunk_key(view)
        message = self._message(key, view)
        if message.ended:
            return None
        self._unfinished_bytes -= message.size_bytes
        message.add(Chunk(view, entry.data))
        size_bytes = max(message.size_bytes, view.total_chunk_size)
        if size_bytes > self._bounds.message_bytes_max and not message.lost:
            message.lose(f"it has {size_bytes} bytes, more than the {self._bounds.message_bytes_max} that are joined")
        if view.chunk_id < view.num_chunks - 1:
            self._unfinished_bytes += message.size_bytes
            if self._unfinished_bytes > self._bounds.unfinished_bytes_max:
                self._make_room()
            return None
        message.ended = True
        return await self._ended(key, message, entry)

    def _message(self, key: ChunkKey, view: MessageMetadataView) -> ChunkedMessage:
        message = self._messages.get(key)
        if message is None or view.chunk_id == 0:
            if message is not None:
                self._unfinished_bytes -= message.size_bytes
            message = self._messages[key] = ChunkedMessage(headless=view.chunk_id != 0)
            if len(self._messages) > self._bounds.uuids_max:
                _, oldest = self._messages.popitem(last=False)
                self._unfinished_bytes -= oldest.size_bytes
        self._messages.move_to_end(key)
        return message

    async def _ended(self, key: ChunkKey, message: ChunkedMessage, last: WholeEntry) -> WholeEntry | None:
        if message.headless and not message.lost:
            tail = message.chunks
            message.let_go()
            chunks, ended, reason = await self._earlier.of(key)
            if ended:
                return None
            message.headless = False
            if reason:
                message.lose(f"chunk 0 was not found: {reason}")
            for chunk in chunks + tail:
                message.add(chunk)
        broken = message.lost or self._disagreement(message, last.view)
        if broken:
            message.let_go()
            return _broken(last, broken)
        payload = message.joined()
        message.let_go()
        return WholeEntry(last.ledger_id, last.entry_id, last.view, last.data, payload)

    def _disagreement(self, message: ChunkedMessage, view: MessageMetadataView) -> str:
        if len(message.chunks) != view.num_chunks:
            return f"its last chunk has number {view.chunk_id} of {view.num_chunks}"
        if message.size_bytes > self._bounds.message_bytes_max:
            return f"it has {message.size_bytes} bytes, more than the {self._bounds.message_bytes_max} that are joined"
        # Each chunk is encrypted by itself and so longer than it says.
        if not view.encrypted and view.total_chunk_size >= 0 and message.size_bytes != view.total_chunk_size:
            return f"its chunks have {message.size_bytes} bytes together, and they say {view.total_chunk_size}"
        return ""

    def _make_room(self) -> None:
        """Give up those longest without a chunk, whose producers are most likely gone."""
        for message in self._messages.values():
            if self._unfinished_bytes <= self._bounds.unfinished_bytes_max:
                return
            if message.size_bytes:
                self._unfinished_bytes -= message.size_bytes
                message.lose(
                    f"more than {self._bounds.unfinished_bytes_max} bytes of chunks were waiting for their last"
                )


def _broken(entry: WholeEntry, reason: str) -> WholeEntry:
    view = entry.view
    text = f"chunked message {view.uuid} of producer {view.producer_name}: {reason}"
    return WholeEntry(entry.ledger_id, entry.entry_id, view, entry.data, broken=text)
