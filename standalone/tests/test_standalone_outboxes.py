"""What the journal of a standalone cluster makes durable is told to clients at once."""

from __future__ import annotations

from pathlib import Path

from magnetar.broker.testing.sessions import ProtocolClient
from magnetar.standalone import cluster as standalone_cluster
from magnetar.standalone.settings import StandaloneSettings

TOPIC = "persistent://public/default/t"


async def test_a_receipt_and_its_message_leave_without_another_turn(tmp_path: Path) -> None:
    settings = StandaloneSettings(data_directory=tmp_path / "data", broker_service_port=0, web_service_port=0)
    cluster = await standalone_cluster.start_cluster(settings)
    try:
        client = await ProtocolClient.connected(int(cluster.service_url.rpartition(":")[2]))
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        waiting: list[int] = []
        cluster.bookie.parts.journals.when_told(lambda: waiting.append(len(cluster.broker.outboxes)))
        await client.publish(3)
        await client.messages(3)
        await client.close()
    finally:
        await cluster.close()
    assert waiting
    assert not any(waiting), "the journal has told of the messages, and what clients are told was sent"
