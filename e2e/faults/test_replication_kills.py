"""Two clusters replicate to each other, and either is killed in the middle: each message arrives once, in order, and a
consumer that changes its cluster misses none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest

from e2e.faults.support import client_of, subscribe
from e2e.faults.two_clusters import CLUSTERS, TOPIC, ask, caught_up, two_clusters
from e2e.processes import wait_for
from e2e.server import MagnetarStandalone

MESSAGES = 12_000
KILL_AFTER = (3_000, 8_000)
FIRST, SECOND = 1_000, 1_000
SUBSCRIPTION = "moves"


def read_to_the_end(client: pulsar.Client) -> list[bytes]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found: list[bytes] = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data())
    reader.close()
    return found


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("killed", CLUSTERS)
def test_each_message_arrives_once_and_in_order_over_kills(tmp_path: Path, killed: str) -> None:
    """`east` publishes; `west` only receives."""
    with two_clusters(tmp_path) as servers, client_of(servers["east"]) as east, client_of(servers["west"]) as west:
        for client in (east, west):
            client.subscribe(TOPIC, "keeps everything").close()
        producer = east.create_producer(TOPIC, producer_name="p", block_if_queue_full=True, send_timeout_millis=0)
        failed: list[object] = []
        for number in range(MESSAGES):
            producer.send_async(
                b"%d" % number, lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None
            )
            if number in KILL_AFTER:
                servers[killed].kill()
                servers[killed].start()
        producer.flush()
        assert not failed
        wait_for(lambda: caught_up(servers["east"], "west"), 120, "west does not get everything")
        wanted = [b"%d" % number for number in range(MESSAGES)]
        assert read_to_the_end(east) == wanted
        assert read_to_the_end(west) == wanted


def acknowledge(consumer: Any, count: int) -> list[int]:
    """Receive and acknowledge so many different messages: after a kill some come again."""
    received: dict[int, None] = {}
    while len(received) < count:
        message = consumer.receive(60_000)
        received[int(message.data())] = None
        consumer.acknowledge(message)
    return list(received)


def stands_behind(server: MagnetarStandalone, number: int) -> bool:
    """Whether the subscription has a message behind it that this cluster has."""
    with client_of(server) as client:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        place = None
        while place is None and reader.has_message_available():
            message = reader.read_next(30_000)
            if int(message.data()) == number:
                place = (message.message_id().ledger_id(), message.message_id().entry_id())
        reader.close()
    cursors = ask(server, "GET", TOPIC.replace("://", "/") + "/internalStats")["cursors"]
    if place is None or SUBSCRIPTION not in cursors:
        return False
    ledger_id, entry_id = (int(part) for part in cursors[SUBSCRIPTION]["markDeletePosition"].split(":"))
    return (ledger_id, entry_id) >= place


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("killed", CLUSTERS)
def test_a_consumer_that_changes_its_cluster_misses_nothing_over_kills(tmp_path: Path, killed: str) -> None:
    """What was acknowledged before the last snapshot does not come again; the rest may."""
    with two_clusters(tmp_path) as servers, client_of(servers["east"]) as east, client_of(servers["west"]) as west:
        for client in (east, west):
            client.subscribe(TOPIC, "keeps everything").close()
        consumer = subscribe(east, TOPIC, SUBSCRIPTION, replicate_subscription_state_enabled=True)
        producer = east.create_producer(TOPIC, block_if_queue_full=True, batching_enabled=False, send_timeout_millis=0)
        # Without any receipt the client would begin anew after the kill with sequence ids that it has used.
        producer.send(b"0")
        for number in range(1, FIRST):
            producer.send_async(b"%d" % number, lambda _result, _id: None)
            if number == FIRST // 2:
                servers[killed].kill()
                servers[killed].start()
        producer.flush()
        acknowledged = acknowledge(consumer, FIRST)
        wait_for(lambda: stands_behind(servers["west"], FIRST - 1), 120, "the other cluster does not follow")
        for number in range(FIRST, FIRST + SECOND):
            producer.send_async(b"%d" % number, lambda _result, _id: None)
        producer.flush()
        acknowledged += acknowledge(consumer, SECOND // 2)
        servers[killed].kill()
        servers[killed].start()
        there = subscribe(west, TOPIC, SUBSCRIPTION)
        received: set[int] = set()
        while FIRST + SECOND - 1 not in received:
            received.add(int(there.receive(60_000).data()))
        assert not received & set(range(FIRST))
        assert received | set(acknowledged) == set(range(FIRST + SECOND))
