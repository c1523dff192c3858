"""Peers that are too slow or too fast: the server's memory stays bounded, and others do not notice them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import google_crc32c
import pulsar
import pytest
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageMetadata

from e2e.faults.raw_client import RawClient
from e2e.faults.support import Subscriber, client_of, new_publisher, running, seen, subscribe
from e2e.processes import wait_for

MIB = 1 << 20
SHARED_CACHES_BYTES = 96 * MIB
"""64 MiB of entries and 32 MiB of the bookie, which fill up while a test runs."""
PER_CONNECTION_BYTES = 24 * MIB
"""What a peer may cost: 8 MiB of one turn on top of a full outbox of 4 MiB and a read of 5 MiB; or 16 MiB of publishes
that wait for the disk and what was read with them."""


@pytest.mark.slow
def test_consumers_that_never_read_cost_little_and_hold_up_nobody(tmp_path: Path) -> None:
    topic, other = "persistent://public/default/unread", "persistent://public/default/others"
    peers = 4
    with running(tmp_path) as server, client_of(server) as client:
        publisher = new_publisher(client, topic, "p", 64 * 1024)
        publisher.send(3000)  # 190 MiB
        publisher.settle()
        before = server.rss_bytes()
        raws = [RawClient(server.service_url, receive_buffer_bytes=4096) for _ in range(peers)]
        for index, raw in enumerate(raws):
            raw.subscribe(topic, f"unread-{index}", CommandSubscribe.Exclusive)
        for raw in raws:
            raw.flow(1_000_000)
        slowest_s = publish_and_receive(client, other)
        grown = server.rss_bytes() - before
        assert grown < SHARED_CACHES_BYTES + peers * PER_CONNECTION_BYTES, f"memory grew by {grown / MIB:.0f} MiB"
        assert slowest_s < 1.0, f"a round trip of others took {slowest_s:.1f} s"
        for raw in raws:
            raw.__exit__(None, None, None)


def publish_and_receive(client: object, topic: str) -> float:
    """The slowest of 200 round trips to a consumer of another topic, but for two: a machine that does other things as
    well is away for a moment now and then."""
    publisher = new_publisher(client, topic, "q")
    subscriber = Subscriber(subscribe(client, topic, "s"))
    times_s = []
    for number in range(200):
        started = time.monotonic()
        publisher.send(1)
        wait_for(lambda number=number: len(seen(subscriber)) > number, 60, "others are held up")
        times_s.append(time.monotonic() - started)
    subscriber.stop()
    return sorted(times_s)[-3]


@pytest.mark.slow
def test_a_producer_that_is_faster_than_the_disk_is_read_no_further(tmp_path: Path) -> None:
    """Without waiting for receipts, one connection writes SENDs of 1 MiB as fast as the socket takes them."""
    topic = "persistent://public/default/fast"
    with running(tmp_path) as server, RawClient(server.service_url) as raw:
        raw.create_producer(topic)
        before = server.rss_bytes()
        highest = before
        data, sent_bytes, number = b"", 0, 0
        deadline = time.monotonic() + 4.0
        while time.monotonic() < deadline:
            if not data:
                data, number = send_frame(number, MIB), number + 1
            taken = raw.send_some(data)
            data = data[taken:]
            sent_bytes += taken
            highest = max(highest, server.rss_bytes())
        grown = highest - before
        assert grown < SHARED_CACHES_BYTES + 4 * PER_CONNECTION_BYTES, f"memory grew by {grown / MIB:.0f} MiB"
        assert sent_bytes > grown, "too little was sent to prove anything"
        raw.send_bytes(data)
        last = -1
        while last < number - 1:
            receipt = raw.receive_until(BaseCommand.SEND_RECEIPT).send_receipt
            assert receipt.sequence_id == last + 1
            last = receipt.sequence_id


def send_frame(number: int, size_bytes: int) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = 1, number
    metadata = MessageMetadata(producer_name="raw", sequence_id=number, publish_time=1).SerializeToString()
    content = len(metadata).to_bytes(4, "big") + metadata + os.urandom(size_bytes)
    checksum: int = google_crc32c.value(content)
    checked = b"\x0e\x01" + checksum.to_bytes(4, "big") + content
    encoded: bytes = command.SerializeToString()
    return (len(encoded) + 4 + len(checked)).to_bytes(4, "big") + len(encoded).to_bytes(4, "big") + encoded + checked


@pytest.mark.slow
def test_an_acknowledgement_with_a_receipt_survives_a_kill_at_once(tmp_path: Path) -> None:
    topic = "persistent://public/default/receipts"
    with running(tmp_path) as server:
        with client_of(server) as client, RawClient(server.service_url) as raw:
            raw.subscribe(topic, "s", CommandSubscribe.Shared)
            publisher = new_publisher(client, topic, "p")
            publisher.send(100)
            publisher.settle()
            raw.flow(1000)
            ids = []
            for _ in range(100):
                message = raw.receive_until(BaseCommand.MESSAGE).message.message_id
                ids.append((message.ledgerId, message.entryId))
            for request_id in range(5):
                raw.acknowledge(ids[request_id * 10 : request_id * 10 + 10 : 2], request_id)
            for _ in range(5):
                assert not raw.receive_until(BaseCommand.ACK_RESPONSE).ackResponse.HasField("error")
            server.kill()
        server.start()
        with client_of(server) as client:
            again = Subscriber(subscribe(client, topic, "s", consumer_type=pulsar.ConsumerType.Shared))
            wait_for(lambda: len(seen(again)) >= 75, 60, "what was left does not come")
            time.sleep(0.5)
            numbers = sorted(event.number for event in again.stop())
            assert numbers == [number for number in range(100) if number >= 50 or number % 2]
