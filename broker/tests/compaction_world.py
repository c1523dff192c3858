"""What the tests of compaction share: a client of one broker in memory, and a compaction that is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from magnetar.broker.compaction.compacted_topic import Compaction, compaction_of
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.client import PulsarClient
from magnetar.client.message import MessageId, OutgoingMessage
from magnetar.client.producer import ProducerOptions
from magnetar.client.reader import Reader, ReaderOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerNotFound
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.pulsar.compression_type import Compression

TOPIC = TopicName.parse("persistent://public/default/t")
COMPACTED = ReaderOptions(read_compacted=True)
PATIENCE_SECONDS = 60.0

KeyValue = tuple[str | None, str | None]
"""What is sent: no key, or a key without a value, which deletes it."""


def outgoing(pairs: Sequence[KeyValue]) -> list[OutgoingMessage]:
    return [OutgoingMessage(None if value is None else value.encode(), key=key) for key, value in pairs]


class CompactionWorld:
    """A broker over stores in memory that outlive it, and a client."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        settings = ClientSettings(receiver_queue_size=4, backoff_seconds_min=0.005)
        self.client = PulsarClient(lambda: broker.running.settings.service_url, SystemClock(), settings)

    # --- messages

    async def publish(self, *pairs: KeyValue) -> list[MessageId]:
        producer = await self.client.producer(TOPIC)
        ids = await producer.send_all(outgoing(pairs))
        await producer.close()
        return ids

    async def publish_batch(self, *pairs: KeyValue, compression: Compression = Compression.NONE) -> list[MessageId]:
        producer = await self.client.producer(TOPIC, ProducerOptions(compression=compression))
        ids = await producer.send_batch(outgoing(pairs))
        await producer.close()
        return ids

    async def read(self, options: ReaderOptions = COMPACTED) -> list[KeyValue]:
        """What a reader gets."""
        reader = await self.client.reader(TOPIC, options)
        try:
            return await rest(reader)
        finally:
            await reader.close()

    # --- the topic

    async def topic(self) -> Any:
        return await self.broker.service.topic(TOPIC, create=False)

    async def ledger(self) -> ManagedLedger:
        found: ManagedLedger = (await self.topic()).ledger
        return found

    async def compaction(self) -> TopicCompaction:
        made: TopicCompaction = self.broker.service.compaction(await self.topic())
        return made

    async def compact(self) -> dict[str, str]:
        """Compact the topic to the end; how it went."""
        compaction = await self.compaction()
        compaction.start()
        await until(lambda: compaction.status["status"] != "RUNNING")
        return compaction.status

    async def compacted(self) -> Compaction:
        """What the newest compaction has left."""
        found = compaction_of(await self.ledger())
        assert found is not None
        return found

    async def trim(self) -> None:
        """Have the topic lose what no cursor holds."""
        ledger = await self.ledger()
        await ledger.roll()
        await ledger.trim()

    # --- ledgers

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        assert self.broker.ledgers is not None
        try:
            return (await self.broker.ledgers.metadata.read(ledger_id))[0]
        except LedgerNotFound:
            return None

    async def compacted_ledgers(self) -> set[int]:
        """All that there are, whoever knows of them."""
        assert self.broker.ledgers is not None
        found = set()
        async for ledger_id in self.broker.ledgers.metadata.ledger_ids():
            metadata = await self.metadata(ledger_id)
            if metadata is not None and metadata.custom_metadata.get("component") == b"compacted-ledger":
                found.add(ledger_id)
        return found

    async def close(self) -> None:
        await self.client.close()


async def rest(reader: Reader) -> list[KeyValue]:
    """What a reader still gets."""
    found: list[KeyValue] = []
    while (message := await reader.next_or_end()) is not None:
        found.append((message.key, message.payload.decode()))
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)
