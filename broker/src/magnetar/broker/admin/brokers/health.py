"""Whether a broker works: a message of its own is published and read back (Pulsar `internalRunHealthCheck`)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from magnetar.broker.admin.web.responses import UNAVAILABLE, AdminError
from magnetar.broker.bundles.namespace_bundles import HEARTBEAT_TENANT
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata

HEALTH_CHECK_SECONDS: Final = 58
"""Seconds that a health check may take: Apache's own limit."""


async def require_health(context: BrokerContext) -> None:
    """Raises 503 when the broker cannot publish and read a message in time, and whatever keeps it from that."""
    try:
        async with asyncio.timeout(HEALTH_CHECK_SECONDS):
            await check_health(context)
    except TimeoutError:
        raise AdminError(UNAVAILABLE, "The broker could not publish and read a message in time") from None


async def check_health(context: BrokerContext) -> None:
    """Publish a message on the broker's own topic and read it back, as its clients would find it."""
    service = context.service
    if context.settings.read_only.enabled:
        # It publishes nothing. It works while others can find it, and it knows where topics are.
        if not context.load.registered:
            raise AdminError(UNAVAILABLE, "This read-only broker is not registered in the metadata store")
        return
    # Its namespace belongs to this broker by its name.
    name = TopicName.parse(f"persistent://{HEARTBEAT_TENANT}/{context.settings.broker_id}/healthcheck")
    topic = await service.topic(name, create=True)
    assert isinstance(topic, PersistentTopic)
    cursor = topic.ledger.new_non_durable_cursor(f"healthCheck-{uuid.uuid4()}", LATEST)
    try:
        metadata = MessageMetadata(producer_name="healthcheck", sequence_id=0, publish_time=context.clock.now_ms())
        message = build_message(metadata, uuid.uuid4().bytes)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def appended(error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
            del ledger_id, first_entry_id, context
            if stored.done():
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        topic.ledger.appends.append([message], appended, None)
        await stored
        while True:
            entries = await cursor.read(100, 1024 * 1024)
            if any(entry.data == message for entry in entries):
                return
            if not entries:
                raise AdminError(UNAVAILABLE, "The message of the health check was stored but cannot be read")
    finally:
        await cursor.close()
