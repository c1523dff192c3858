"""Topics that have another owner, or may have: that nobody here has them any more."""

from __future__ import annotations

import pytest
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.topic_name import TopicName
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import cursor_path
from magnetar.managed.states import ManagedLedgerState
from magnetar.tiered.api import OffloadUnavailable
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/topic"
NAME = TopicName.parse(TOPIC)


async def test_a_topic_whose_cursor_somebody_else_has_written_is_loaded_again(memory_broker: MemoryBroker) -> None:
    """Its consumers would wait for receipts for ever: nobody publishes, and hears of it by that."""
    client = await memory_broker.connect()
    await client.consumer(TOPIC, "s")
    await client.producer(TOPIC)
    await client.publish(3)
    await client.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1)
    received = await client.messages(3)
    before = memory_broker.service.topics[TOPIC]
    path = cursor_path(NAME.persistence_name, "s")
    node = await memory_broker.store.get(path)
    assert node is not None
    await memory_broker.store.put(path, node.value)
    acknowledgement = {
        "consumer_id": 1,
        "ack_type": pb.CommandAck.Individual,
        "message_id": [received[0].body.message_id],
    }
    assert (await client.request(pb.BaseCommand.ACK, **acknowledgement)).body.HasField("error")
    await until(lambda: memory_broker.service.topics.get(TOPIC) is not before)
    await client.expect(pb.BaseCommand.CLOSE_CONSUMER)
    await client.consumer(TOPIC, "s")
    received = await client.messages(3)
    acknowledgement["message_id"] = [received[0].body.message_id]
    assert not (await client.request(pb.BaseCommand.ACK, **acknowledgement)).body.HasField("error")


async def test_a_topic_whose_objects_could_not_be_deleted_is_not_open_any_more(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cursors could be written when its bundle is another broker's, and what is in memory be outdated later."""
    client = await memory_broker.connect()
    await client.consumer(TOPIC, "s")
    before = await memory_broker.service.topic(NAME, create=False)
    assert isinstance(before, PersistentTopic)

    async def refused(self: ManagedLedger) -> None:
        raise OffloadUnavailable("the store of objects is out of reach")

    with monkeypatch.context() as patched:
        patched.setattr(ManagedLedger, "delete", refused)
        with pytest.raises(OffloadUnavailable):
            await memory_broker.service.delete(NAME, force=True)
    assert before.ledger not in memory_broker.service.ledgers.opened()
    assert before.ledger.state is ManagedLedgerState.CLOSED
    await client.expect(pb.BaseCommand.CLOSE_CONSUMER)
    await client.consumer(TOPIC, "s")
