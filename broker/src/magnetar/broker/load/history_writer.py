"""Writes the load history while this broker leads. Nothing waits for it: what cannot be written now is written with a
later round, and after an hour it is given up."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.history import SCHEMA_NAME, batches, history_of, schema_definition
from magnetar.broker.policies.system_topics import LOAD_HISTORY
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName

if TYPE_CHECKING:
    from magnetar.client.client import PulsarClient
    from magnetar.client.producer import ClientProducer

logger: Final = logging.getLogger(__name__)

ROUNDS_WAITING_MAX: Final = 12
"""An hour of the usual interval, so that a topic that moves or a store that is away leaves no hole; at most some
megabytes each in a cluster of a hundred brokers."""

WRITE_SECONDS_MAX: Final = 60.0
"""A round takes so long at most, whatever the client still tries."""


END_SECONDS_MAX: Final = 2.0
"""For a round that is cut short to close its producer; what takes longer ends by itself, and nobody waits for it."""


class LoadHistoryWriter:
    """Rounds from `begin` to `end`, at full multiples of the interval, so that a new leader keeps the rhythm.

    A producer is open only while a round is written: one that stayed would keep trying while its topic is away."""

    def __init__(
        self,
        cluster: str,
        interval_seconds: int,
        clock: Clock,
        client: Callable[[], PulsarClient],
        reports: Callable[[], Mapping[str, BrokerReport]],
    ) -> None:
        self.failures = 0
        """How often in a row nothing could be written."""
        self._cluster = cluster
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._client = client
        self._reports = reports
        self._waiting: deque[tuple[int, list[tuple[str, bytes]]]] = deque(maxlen=ROUNDS_WAITING_MAX)
        """When a round was taken, and its messages under their keys."""
        self._rounds: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Write from now on; again is no error."""
        if self._rounds is None:
            self._rounds = asyncio.get_running_loop().create_task(self._run(), name="load-history")

    async def end(self) -> None:
        """Write no more. What waits is forgotten: the next leader goes on."""
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.cancel()
            await asyncio.wait([rounds], timeout=END_SECONDS_MAX)
        self._waiting.clear()

    async def _run(self) -> None:
        # What a cluster does while it starts, or takes a dead leader's bundles over, is no load to plan by.
        await asyncio.sleep(self._interval_seconds)
        while True:
            await asyncio.sleep(self._pause_seconds())
            try:
                await self.round()
            except Exception:
                logger.exception("a round of the load history is lost")

    def _pause_seconds(self) -> float:
        interval_seconds = self._interval_seconds
        pause_seconds = interval_seconds - self._clock.now_ms() / 1000 % interval_seconds
        # A sleep may end a little early, and a round is not to be written twice for that.
        return pause_seconds if pause_seconds > interval_seconds / 10 else pause_seconds + interval_seconds

    async def round(self) -> None:
        """Take what all brokers report, and write it with what waits. A failure is logged, less and less often."""
        taken_ms = self._clock.now_ms()
        # A tenth of a second for each broker of thousands of bundles, which clients of this one shall not wait for.
        messages = await asyncio.to_thread(self._messages, sorted(self._reports().items()), taken_ms)
        self._waiting.append((taken_ms, messages))
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await self._write()
        except (MagnetarError, TimeoutError) as error:
            self.failures += 1
            if self.failures & (self.failures - 1) == 0:
                logger.warning(
                    "%s cannot be written, attempt %d, %d rounds wait: %s",
                    LOAD_HISTORY, self.failures, len(self._waiting), str(error) or "it takes too long",
                )  # fmt: skip
            return
        if self.failures:
            logger.info("%s is written again, after %d failures", LOAD_HISTORY, self.failures)
        self.failures = 0

    def _messages(self, reports: list[tuple[str, BrokerReport]], taken_ms: int) -> list[tuple[str, bytes]]:
        cluster, interval_seconds = self._cluster, self._interval_seconds
        return [
            (broker_id, history_of(report, cluster=cluster, taken_ms=taken_ms, interval_seconds=interval_seconds))
            for broker_id, report in reports
        ]

    async def _write(self) -> None:
        from magnetar.client.message import OutgoingMessage

        producer = await self._producer()
        try:
            while self._waiting:
                taken_ms, messages = self._waiting[0]
                for group in batches(messages):
                    outgoing = [OutgoingMessage(value, key=key, event_time_ms=taken_ms) for key, value in group]
                    await producer.send_batch(outgoing)
                # Not before: a round of which a part is missing is written again.
                self._waiting.popleft()
        finally:
            await producer.close()

    async def _producer(self) -> ClientProducer:
        # Here, not above: only the leader pays for it, and only once it writes.
        from magnetar.client.producer import ProducerOptions
        from magnetar.wire.pulsar.compression_type import Compression
        from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

        schema = Schema(name=SCHEMA_NAME, type=Schema.Json, schema_data=schema_definition())
        options = ProducerOptions(schema=schema, compression=Compression.ZSTD)
        return await self._client().producer(TopicName.parse(LOAD_HISTORY), options)
