"""One small check for each feature of the stock Python client: `features.py SERVICE_URL ADMIN_URL [CHECK…]`.

Prints `OK name` or `FAIL name: why` a check; the exit code is the number of failures. Imports nothing of the project.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pulsar
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

WAIT_MS = 15_000
CHECKS: list[Callable[[Stage], None]] = []


class Stage:
    """What a check gets: a client, addresses, and a topic nobody else uses."""

    def __init__(self, client: pulsar.Client, admin_url: str, topic: str) -> None:
        self.client = client
        self.admin_url = admin_url
        self.topic = topic

    def producer(self, **options: Any) -> Any:
        return self.client.create_producer(self.topic, **options)

    def subscribe(self, kind: Any = pulsar.ConsumerType.Exclusive, name: str = "s", **options: Any) -> Any:
        options.setdefault("initial_position", pulsar.InitialPosition.Earliest)
        return self.client.subscribe(self.topic, name, consumer_type=kind, **options)

    def admin(self, method: str, path: str, body: str = "") -> bytes:
        headers = {"Content-Type": "application/json"}
        url = f"{self.admin_url}/admin/v2/{path}"
        request = urllib.request.Request(url, data=body.encode(), method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            content: bytes = response.read()
            return content


class Skipped(Exception):
    """The client, as installed, cannot do this."""


def check(function: Callable[[Stage], None]) -> Callable[[Stage], None]:
    CHECKS.append(function)
    return function


def send(producer: Any, count: int) -> list[Any]:
    return [producer.send(f"message-{number}".encode()) for number in range(count)]


def texts(consumer: Any, count: int) -> list[str]:
    """Receives and acknowledges."""
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    return found


def expect(expected: object, actual: object) -> None:
    if expected != actual:
        raise AssertionError(f"expected {expected!r} but got {actual!r}")


def nothing(consumer: Any, wait_ms: int = 300) -> None:
    try:
        message = consumer.receive(wait_ms)
    except pulsar.Timeout:
        return
    raise AssertionError(f"unexpected message {message.message_id()}")


def refused(kind: type[Exception], action: Callable[[], object]) -> None:
    try:
        action()
    except kind:
        return
    raise AssertionError(f"was not refused with {kind.__name__}")


@check
def reader_from_earliest(stage: Stage) -> None:
    send(stage.producer(), 5)
    reader = stage.client.create_reader(stage.topic, pulsar.MessageId.earliest)
    expect([f"message-{n}" for n in range(5)], [reader.read_next(WAIT_MS).data().decode() for _ in range(5)])
    expect(False, reader.has_message_available())


@check
def reader_from_message_id(stage: Stage) -> None:
    ids = send(stage.producer(), 5)
    after = stage.client.create_reader(stage.topic, ids[2])
    expect(b"message-3", after.read_next(WAIT_MS).data())
    inclusive = stage.client.create_reader(stage.topic, ids[2], start_message_id_inclusive=True)
    expect(b"message-2", inclusive.read_next(WAIT_MS).data())


@check
def reader_seek(stage: Stage) -> None:
    ids = send(stage.producer(), 5)
    reader = stage.client.create_reader(stage.topic, pulsar.MessageId.earliest)
    reader.read_next(WAIT_MS)
    reader.seek(ids[3])
    expect(b"message-4", reader.read_next(WAIT_MS).data())


@check
def seek_by_id_and_time(stage: Stage) -> None:
    producer, consumer = stage.producer(), stage.subscribe()
    ids = send(producer, 3)
    time.sleep(0.05)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.05)
    producer.send(b"after")
    expect(4, len(texts(consumer, 4)))
    consumer.seek(ids[0])
    expect(["message-1"], texts(consumer, 1))
    consumer.seek(middle_ms)
    expect(["after"], texts(consumer, 1))


@check
def last_message_id(stage: Stage) -> None:
    producer, consumer = stage.producer(), stage.subscribe()
    last = send(producer, 3)[-1]
    found = consumer.get_last_message_id()
    expect((last.ledger_id(), last.entry_id()), (found.ledger_id(), found.entry_id()))


@check
def message_fields(stage: Stage) -> None:
    consumer = stage.subscribe()
    producer = stage.producer(producer_name="named")
    producer.send(
        b"one",
        properties={"a": "1", "b": "ü"},
        partition_key="k",
        ordering_key="order",
        event_timestamp=42,
        sequence_id=7,
    )
    message = consumer.receive(WAIT_MS)
    expect({"a": "1", "b": "ü"}, message.properties())
    expect(("k", "order", 42), (message.partition_key(), message.ordering_key(), message.event_timestamp()))
    expect("named", message.producer_name())
    expect(7, producer.last_sequence_id())
    expect(True, abs(message.publish_timestamp() / 1000 - time.time()) < 60)


@check
def negative_ack(stage: Stage) -> None:
    producer = stage.producer()
    consumer = stage.subscribe(pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=200)
    producer.send(b"one")
    consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    expect(1, consumer.receive(WAIT_MS).redelivery_count())


@check
def ack_timeout(stage: Stage) -> None:
    producer = stage.producer()
    consumer = stage.subscribe(pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    producer.send(b"one")
    consumer.receive(WAIT_MS)
    expect(1, consumer.receive(2 * WAIT_MS).redelivery_count())


@check
def cumulative_ack(stage: Stage) -> None:
    send(stage.producer(), 5)
    consumer = stage.subscribe()
    consumer.receive(WAIT_MS)
    consumer.acknowledge_cumulative(consumer.receive(WAIT_MS))
    consumer.close()
    expect(["message-2"], texts(stage.subscribe(), 1))


@check
def batch_index_ack(stage: Stage) -> None:
    producer = stage.producer(batching_enabled=True, batching_max_publish_delay_ms=1000)
    for number in range(6):
        producer.send_async(f"message-{number}".encode(), None)
    producer.flush()
    consumer = stage.subscribe(pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    for number in range(6):
        message = consumer.receive(WAIT_MS)
        if number % 2 == 0:
            consumer.acknowledge(message)
    consumer.close()
    consumer = stage.subscribe(pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    expect(["message-1", "message-3", "message-5"], texts(consumer, 3))
    nothing(consumer)


@check
def dead_letter_topic(stage: Stage) -> None:
    dead = stage.client.subscribe(stage.topic + "-s-DLQ", "d")
    consumer = stage.subscribe(
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2),
    )
    stage.producer().send(b"poison")
    for attempt in range(3):
        message = consumer.receive(WAIT_MS)
        expect(attempt, message.redelivery_count())
        consumer.negative_acknowledge(message)
    expect(["poison"], texts(dead, 1))


@check
def dead_letter_over_unloads(stage: Stage) -> None:
    dead = stage.client.subscribe(stage.topic + "-s-DLQ", "d")
    consumer = stage.subscribe(
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(3),
    )
    stage.producer().send(b"poison")
    for attempt in range(4):
        message = consumer.receive(WAIT_MS)
        expect(attempt, message.redelivery_count())
        stage.admin("PUT", stage.topic.replace("://", "/") + "/unload")
        message = consumer.receive(WAIT_MS)
        expect(attempt, message.redelivery_count())
        consumer.negative_acknowledge(message)
    expect(["poison"], texts(dead, 1))


@check
def exclusive_busy(stage: Stage) -> None:
    consumer = stage.subscribe()
    refused(pulsar.ConsumerBusy, stage.subscribe)
    consumer.close()


@check
def failover_takeover(stage: Stage) -> None:
    # In a partition the first name is active; a topic without partitions chooses by a hash of its name.
    stage.admin("PUT", stage.topic.replace("://", "/") + "/partitions", "1")
    producer = stage.producer()
    first = stage.subscribe(pulsar.ConsumerType.Failover, consumer_name="a")
    second = stage.subscribe(pulsar.ConsumerType.Failover, consumer_name="b")
    send(producer, 3)
    expect(["message-0"], texts(first, 1))
    nothing(second)
    first.close()
    expect(["message-1", "message-2"], texts(second, 2))


@check
def key_shared_sticky(stage: Stage) -> None:
    def sticky(low: int, high: int) -> Any:
        policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(low, high)])
        return stage.subscribe(pulsar.ConsumerType.KeyShared, key_shared_policy=policy)

    low, high = sticky(0, 32767), sticky(32768, 65535)
    refused(pulsar.PulsarException, lambda: sticky(100, 200))
    producer = stage.producer()
    for number in range(40):
        producer.send(b"x", partition_key=f"key-{number}")
    keys = [received_keys(consumer) for consumer in (low, high)]
    expect((40, True), (len(keys[0] | keys[1]), keys[0].isdisjoint(keys[1])))
    expect(True, bool(keys[0]) and bool(keys[1]))


def received_keys(consumer: Any) -> set[str]:
    found = set()
    while True:
        try:
            found.add(consumer.receive(500).partition_key())
        except pulsar.Timeout:
            return found


@check
def exclusive_producer(stage: Stage) -> None:
    stage.producer(access_mode=pulsar.ProducerAccessMode.Exclusive)
    refused(pulsar.ProducerFenced, lambda: stage.producer(access_mode=pulsar.ProducerAccessMode.Exclusive))
    refused(pulsar.ProducerBusy, stage.producer)


@check
def producer_name_taken(stage: Stage) -> None:
    stage.producer(producer_name="same")
    refused(pulsar.ProducerBusy, lambda: stage.producer(producer_name="same"))


@check
def chunked_message(stage: Stage) -> None:
    large = os.urandom(12 << 20)
    consumer = stage.subscribe()
    stage.producer(chunking_enabled=True).send(large)
    expect(True, consumer.receive(WAIT_MS).data() == large)


@check
def too_large_message(stage: Stage) -> None:
    producer = stage.producer()
    refused(pulsar.MessageTooBig, lambda: producer.send(bytes(6 << 20)))
    producer.send(b"fits")


@check
def delayed_message(stage: Stage) -> None:
    consumer, producer = stage.subscribe(pulsar.ConsumerType.Shared), stage.producer()
    started = time.monotonic()
    producer.send(b"late", deliver_at=int(time.time() * 1000) + 2000)
    producer.send(b"soon")
    expect(["soon", "late"], texts(consumer, 2))
    expect(True, 1.9 <= time.monotonic() - started < 5)


@check
def non_persistent_topic(stage: Stage) -> None:
    stage.topic = stage.topic.replace("persistent:", "non-persistent:")
    consumer = stage.subscribe()
    stage.producer().send(b"one")
    expect(["one"], texts(consumer, 1))


@check
def pattern_subscription(stage: Stage) -> None:
    producers = [stage.client.create_producer(stage.topic + suffix) for suffix in ("-a", "-b")]
    consumer = stage.client.subscribe(
        re.compile(stage.topic + "-.*"),
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    for number, producer in enumerate(producers):
        producer.send(str(number).encode())
    expect(["0", "1"], sorted(texts(consumer, 2)))


@check
def several_topics(stage: Stage) -> None:
    topics = [stage.topic + suffix for suffix in ("-a", "-b")]
    consumer = stage.client.subscribe(topics, "s")
    for topic in topics:
        stage.client.create_producer(topic).send(topic.encode())
    expect(topics, sorted(texts(consumer, 2)))


@check
def partitioned_topic(stage: Stage) -> None:
    stage.admin("PUT", stage.topic.replace("://", "/") + "/partitions", "3")
    expect(3, len(stage.client.get_topic_partitions(stage.topic)))
    consumer, producer = stage.subscribe(pulsar.ConsumerType.Shared), stage.producer()
    expect({0, 1, 2}, {message_id.partition() for message_id in send(producer, 6)})
    expect(1, len({producer.send(b"x", partition_key="same").partition() for _ in range(4)}))
    expect(10, len(texts(consumer, 10)))


@check
def table_view(stage: Stage) -> None:
    producer = stage.producer()
    for value in (b"one", b"two"):
        producer.send(value, partition_key="a")
    view = stage.client.create_table_view(stage.topic)
    expect(b"two", view.get("a"))
    view.close()


@check
def unloaded_topic(stage: Stage) -> None:
    producer, consumer = stage.producer(), stage.subscribe()
    producer.send(b"before")
    expect(["before"], texts(consumer, 1))
    time.sleep(0.3)  # This client groups acknowledgements for 100 ms, and loses them with the connection.
    stage.admin("PUT", stage.topic.replace("://", "/") + "/unload")
    producer.send(b"after")
    expect(["after"], texts(consumer, 1))


@check
def lookup_over_http(stage: Stage) -> None:
    client = pulsar.Client(stage.admin_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer(stage.topic).send(b"one")
    client.close()


class Reading(Record):  # type: ignore[misc]  # the package has no types
    """A record both schemas describe."""

    sensor = String()
    value = Integer()


def schema_round_trip(stage: Stage, schema: Any) -> None:
    consumer = stage.subscribe(schema=schema)
    stage.producer(schema=schema).send(Reading(sensor="kitchen", value=21))
    value = consumer.receive(WAIT_MS).value()
    expect(("kitchen", 21), (value.sensor, value.value))


@check
def schema_avro(stage: Stage) -> None:
    if importlib.util.find_spec("fastavro") is None:
        raise Skipped("the client was installed without its avro extra")
    schema_round_trip(stage, AvroSchema(Reading))


@check
def schema_json(stage: Stage) -> None:
    schema_round_trip(stage, JsonSchema(Reading))


@check
def schema_incompatible(stage: Stage) -> None:
    schema_round_trip(stage, JsonSchema(Reading))
    refused(pulsar.IncompatibleSchema, lambda: stage.producer(schema=StringSchema()))


def main(service_url: str, admin_url: str, wanted: list[str]) -> int:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    run = int(time.time() * 1000)
    failures = 0
    for function in CHECKS:
        name = function.__name__
        if wanted and name not in wanted:
            continue
        started = time.monotonic()
        try:
            function(Stage(client, admin_url, f"persistent://public/default/python-{name}-{run}"))
            outcome = f"OK {name} ({(time.monotonic() - started) * 1000:.0f} ms)"
        except Skipped as reason:
            outcome = f"SKIP {name}: {reason}"
        except Exception as failure:  # noqa: BLE001  # a failing check must not hide the others
            failures += 1
            outcome = f"FAIL {name}: {type(failure).__name__} {failure}".replace("\n", " ")
        sys.stdout.write(outcome + "\n")
        sys.stdout.flush()
    client.close()
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
