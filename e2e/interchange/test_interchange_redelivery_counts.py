"""Apache's broker takes over a subscription whose cursor has our counts of redeliveries: it reads past them."""

from __future__ import annotations

import time
from typing import Any

import pulsar
import pytest

from e2e.faults.support import client_of, subscribe
from e2e.interchange import brokers
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart

TOPIC = "persistent://public/default/poisoned"
QUORUMS = (1, 1, 1)
WAIT_MS = 60_000
STORED_SECONDS = 2.5
"""A cursor's state is written at most a second after it changed."""


def consumer_of(client: Any) -> Any:
    return subscribe(client, TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)


def deliveries(consumer: Any, count: int) -> dict[str, tuple[Any, int]]:
    """So many messages, each with its count; then no more come."""
    found = {}
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        found[message.data().decode()] = message, message.redelivery_count()
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1_000)
    return found


def counts(found: dict[str, tuple[Any, int]]) -> dict[str, int]:
    return {payload: count for payload, (_, count) in found.items()}


def refuse(consumer: Any, found: dict[str, tuple[Any, int]], payload: str) -> int:
    """The count of the message when it comes again."""
    consumer.negative_acknowledge(found[payload][0])
    again = consumer.receive(WAIT_MS)
    assert again.data().decode() == payload
    found[payload] = again, again.redelivery_count()
    return found[payload][1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", [False, True], ids=["in-the-node", "in-the-cursors-ledger"])
def test_apaches_broker_goes_on_with_such_a_cursor(cluster: Cluster, killed: bool) -> None:
    """From the node after a clean stop, and from the cursor's ledger after a kill: what was acknowledged stays so,
    counts begin at 0 there, as always, and what it writes our broker reads."""
    cluster.initialize_pulsar()
    cluster.start(cluster.our_bookie("bookie"))
    ours, apache = cluster.our_broker(QUORUMS), cluster.apache_broker(QUORUMS)
    brokers.start_with_namespace(cluster, ours)
    with client_of(ours) as client:
        consumer = consumer_of(client)
        producer = client.create_producer(TOPIC)
        for payload in ("poison", "good", "slow"):
            producer.send(payload.encode())
        found = deliveries(consumer, 3)
        assert [refuse(consumer, found, "poison") for _ in range(2)] == [1, 2]
        consumer.acknowledge(found["good"][0])
        time.sleep(STORED_SECONDS)
        end(ours, killed=killed)
    brokers.start_with_namespace(cluster, apache)
    with client_of(apache) as client:
        consumer = consumer_of(client)
        found = deliveries(consumer, 2)
        assert counts(found) == {"poison": 0, "slow": 0}
        assert refuse(consumer, found, "poison") == 1
        consumer.acknowledge(found["slow"][0])
        client.create_producer(TOPIC).send(b"later")
        assert consumer.receive(WAIT_MS).data() == b"later"
        time.sleep(STORED_SECONDS)
        end(apache, killed=killed)
    brokers.start_with_namespace(cluster, ours)
    with client_of(ours) as client:
        consumer = consumer_of(client)
        found = deliveries(consumer, 2)
        assert counts(found) == {"poison": 0, "later": 0}, "what Apache's broker writes has no counts"
        assert refuse(consumer, found, "poison") == 1


def end(broker: BrokerPart, *, killed: bool) -> None:
    if killed:
        broker.kill()
    else:
        broker.stop()
