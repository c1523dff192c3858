"""The server is killed in the middle of everything: messages, keys, acknowledgements, topics being made."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pulsar
import pytest

from e2e import checkers
from e2e.faults.support import (
    FaultyServer,
    Publisher,
    Subscriber,
    assert_kept,
    client_of,
    new_publisher,
    read_all,
    running,
    seen,
    subscribe,
)
from e2e.processes import wait_for

KEYS = 7
TOPICS = 200
SETTLING_SECONDS = 2.5
"""A client sends acknowledgements up to 0.1 s late, and the broker writes a cursor's state once a second."""


@pytest.mark.slow
def test_orders_hold_over_kills_under_load(tmp_path: Path) -> None:
    """Several producers, batched by key and compressed in all ways; Shared and Key_Shared consumers beside a check."""
    topic = "persistent://public/default/restarts"
    with running(tmp_path) as server, client_of(server) as client, client_of(server) as consuming:
        subscribe(consuming, topic, "shared", consumer_type=pulsar.ConsumerType.Shared).close()
        publishers = [keyed_publisher(client, topic, index) for index in range(4)]
        subscribers = [
            Subscriber(subscribe(consuming, topic, name, consumer_type=kind), index)
            for name, kind in (("shared", pulsar.ConsumerType.Shared), ("keys", pulsar.ConsumerType.KeyShared))
            for index in range(3)
        ]
        for _ in range(3):
            for _ in range(10):
                for publisher in publishers:
                    publisher.send(50)
                time.sleep(0.03)
            server.kill()
            server.start()
        for publisher in publishers:
            publisher.settle()
            assert not publisher.failed
        everything = {(event.producer, event.number) for each in publishers for event in each.acknowledged}
        for group in (subscribers[:3], subscribers[3:]):
            wait_for(lambda group=group: everything <= seen(*group), 60, "consumers do not get everything")
        received = [subscriber.stop() for subscriber in subscribers]
        for per_consumer in received[3:]:
            assert not checkers.out_of_order(per_consumer, lambda event: (event.producer, event.key))
        assert_kept(publishers, read_all(client, topic, [event for each in publishers for event in each.acknowledged]))


def keyed_publisher(client: pulsar.Client, topic: str, index: int) -> Publisher:
    compressions = (
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    )
    return new_publisher(
        client,
        topic,
        f"p{index}",
        keys=KEYS,
        compression_type=compressions[index],
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=2,
    )


@pytest.mark.slow
def test_a_kill_while_topics_are_made_leaves_none_that_cannot_be_used(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        done: list[str] = []
        with client_of(server) as client:
            storms = [threading.Thread(target=make_topics, args=(client, done, part), daemon=True) for part in range(4)]
            for storm in storms:
                storm.start()
            wait_for(lambda: len(done) > TOPICS // 4, 60, "no topics are made")
            server.kill()
            confirmed = list(done)
            server.start()
            for storm in storms:
                storm.join(60)
                assert not storm.is_alive(), "a client is stuck"
        assert len(confirmed) < TOPICS, "the kill came too late to prove anything"
        server.restart()
        with client_of(server) as client:
            for number in range(TOPICS):
                name = f"storm-{number}"
                consumer = subscribe(client, name, "s")
                expected = [b"first", b"again"] if name in confirmed else [b"again"]
                client.create_producer(name).send(b"again")
                got = [consumer.receive(30_000).data() for _ in expected]
                assert got[-1:] == [b"again"] or b"first" in got, name
                assert name not in confirmed or got[0] == b"first", name
                consumer.close()


def make_topics(client: pulsar.Client, done: list[str], part: int) -> None:
    """Every fourth topic: subscribe, publish once; those whose message was acknowledged are told."""
    for number in range(part, TOPICS, 4):
        name = f"storm-{number}"
        try:
            subscribe(client, name, "s").close()
            producer = client.create_producer(name, send_timeout_millis=20_000)
            producer.send(b"first")
            producer.close()
        except pulsar.PulsarException:
            continue
        done.append(name)


@pytest.mark.slow
def test_acknowledgements_survive_a_kill(tmp_path: Path) -> None:
    """The broker writes a cursor's state within a second of an acknowledgement: what is older stays away for good."""
    topic = "persistent://public/default/acks"
    with running(tmp_path) as server:
        with client_of(server) as client:
            consumer = subscribe(
                client, topic, "single", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
            )
            cumulative = subscribe(client, topic, "cumulative")
            publisher = new_publisher(
                client, topic, "p", batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=50
            )
            publisher.send(300)
            publisher.settle()
            acknowledge_two_of_three(consumer)
            acknowledge_up_to(cumulative, 200)
            time.sleep(SETTLING_SECONDS)
            server.kill()
        server.start()
        with client_of(server) as client:
            single = Subscriber(subscribe(client, topic, "single", consumer_type=pulsar.ConsumerType.Shared))
            rest = Subscriber(subscribe(client, topic, "cumulative"))
            wait_for(lambda: len(seen(single)) >= 100 and len(seen(rest)) >= 100, 60, "what was left does not come")
            time.sleep(1.0)
            assert sorted(event.number for event in single.stop()) == [n for n in range(300) if n % 3 == 2]
            assert [event.number for event in rest.stop()] == list(range(200, 300))


def acknowledge_two_of_three(consumer: pulsar.Consumer) -> None:
    for _ in range(300):
        message = consumer.receive(30_000)
        if int(message.data().split(b":")[1]) % 3 != 2:
            consumer.acknowledge(message)


def acknowledge_up_to(consumer: pulsar.Consumer, count: int) -> None:
    for _ in range(count):
        message = consumer.receive(30_000)
    consumer.acknowledge_cumulative(message)


@pytest.mark.slow
def test_without_a_receipt_only_acknowledgements_of_the_last_moments_may_be_lost(tmp_path: Path) -> None:
    topic = "persistent://public/default/late-acks"
    with running(tmp_path) as server:
        times: dict[int, float] = {}
        with client_of(server) as client:
            consumer = subscribe(client, topic, "s", consumer_type=pulsar.ConsumerType.Shared)
            publisher = new_publisher(client, topic, "p")
            publisher.send(400)
            publisher.settle()
            for _ in range(400):
                message = consumer.receive(30_000)
                consumer.acknowledge(message)
                times[int(message.data().split(b":")[1])] = time.monotonic()
                time.sleep(0.01)
            server.kill()
            killed = time.monotonic()
        server.start()
        with client_of(server) as client:
            again = Subscriber(subscribe(client, topic, "s", consumer_type=pulsar.ConsumerType.Shared))
            time.sleep(2.0)
            late_s = max((killed - times[event.number] for event in again.stop()), default=0.0)
        assert late_s < 2.0, f"an acknowledgement made {late_s:.1f} s before the kill is lost"


def test_the_log_of_a_clean_run_is_empty(tmp_path: Path) -> None:
    """What the other tests look for is worth something only if nothing is logged without reason."""
    with running(tmp_path) as server:
        with client_of(server) as client:
            publisher = new_publisher(client, "quiet", "p")
            publisher.send(10)
            publisher.settle()
            assert_kept([publisher], read_all(client, "quiet", publisher.acknowledged))
        warnings = [line for line in FaultyServer.log_text(server).splitlines() if "WARNING" in line]
        # That a turn of the loop took long is the machine's reason, when it does a lot else.
        assert [line for line in warnings if " magnetar.process.turn_watch " not in line] == []
