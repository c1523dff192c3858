"""Files that a crash or a disk has damaged: what is acknowledged is there, or the start says plainly why it is not."""

from __future__ import annotations

import time
from pathlib import Path

import pulsar
import pytest

from e2e import processes
from e2e.faults.support import (
    FaultyServer,
    assert_kept,
    client_of,
    flip_bit,
    new_publisher,
    newest,
    parse,
    read_all,
    running,
    subscribe,
)
from e2e.processes import wait_for

TOPIC = "persistent://public/default/damaged"


@pytest.mark.slow
def test_a_journal_cut_short_by_a_kill_keeps_everything_acknowledged(tmp_path: Path) -> None:
    with running(tmp_path) as server, client_of(server) as client:
        publisher = new_publisher(client, TOPIC, "p", max_pending_messages=500)
        for _ in range(2):
            before = len(publisher.acknowledged)
            for _ in range(20):
                publisher.send(100)
            wait_for(lambda before=before: len(publisher.acknowledged) > before + 500, 60, "nothing is acknowledged")
            server.kill()
            half_a_group_behind_the_end(server.data)
            server.start()
        publisher.settle()
        assert not publisher.failed
        assert_kept([publisher], read_all(client, TOPIC, publisher.acknowledged))
        assert "ends at" in server.log_text()


def half_a_group_behind_the_end(data: Path) -> None:
    """What a power failure leaves of a write that nobody was told of: the start of a copy of the journal's own last
    group, then nothing. The whole groups before it stay as they are, for they are acknowledged."""
    journal = newest(data / "bookie" / "journal", "**/*.txn")
    content = journal.read_bytes()
    end = len(content.rstrip(b"\0"))
    with journal.open("r+b") as file:
        file.seek((end + 4095) // 4096 * 4096)
        file.write(b"\0\0\x01\0" + content[4096 : 4096 + 100])


@pytest.mark.slow
def test_a_flipped_bit_before_whole_groups_of_the_journal_stops_the_start(tmp_path: Path) -> None:
    with running(tmp_path) as server, client_of(server) as client:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(10):
            producer.send(b"message %d" % number)
        server.kill()
        journal = newest(server.data / "bookie" / "journal", "**/*.txn")
        at = journal.read_bytes().index(b"message 5")
        flip_bit(journal, at)
        with pytest.raises(processes.NotReady) as refused:
            server.start()
        said = str(refused.value)
        assert "ended with 1" in said
        assert "the disk lost or changed entries that were acknowledged" in said
        assert str(journal) in said
        assert "Traceback" not in said
        flip_bit(journal, at)
        server.start()
        producer.send(b"after all")


@pytest.mark.slow
def test_a_damaged_entry_is_never_delivered_and_holds_up_nobody_else(tmp_path: Path) -> None:
    """A damaged entry of a topic without other copies cannot be had any more. The broker goes on trying, with pauses
    that grow to 15 s and one log line for each, because the copy may come back (a disk remounted, a bookie restored).
    Shared and Key_Shared consumers get what comes after it; Exclusive and Failover ones, who are promised order, wait
    before it until somebody skips it (seek, skip or expire messages)."""
    with running(tmp_path) as server:
        damage_one_of_twenty(server)
        server.start()
        with client_of(server) as client:
            shared = subscribe(client, TOPIC, "shared", consumer_type=pulsar.ConsumerType.Shared)
            numbers = receive_until_quiet(shared)
            assert numbers == [number for number in range(20) if number != 10]
            assert 2 <= server.log_text().count("cannot be read from") <= 40
            exclusive = subscribe(client, TOPIC, "exclusive")
            assert receive_until_quiet(exclusive) == list(range(10))
            other = new_publisher(client, f"{TOPIC}-other", "other")
            other.send(100)
            other.settle()
            assert_kept([other], read_all(client, f"{TOPIC}-other", other.acknowledged))
            skip_one_message(server, "exclusive")
            assert receive_until_quiet(exclusive) == list(range(11, 20))


def damage_one_of_twenty(server: FaultyServer) -> None:
    """Twenty messages in the entry log, one bit of number 10 flipped; the server is down afterwards."""
    with client_of(server) as client:
        publisher = new_publisher(client, TOPIC, "p")
        for name, kind in (("shared", pulsar.ConsumerType.Shared), ("exclusive", pulsar.ConsumerType.Exclusive)):
            subscribe(client, TOPIC, name, consumer_type=kind).close()
        publisher.send(20)
        publisher.settle()
    server.stop()
    log = newest(server.data / "bookie" / "ledgers", "current/*.log")
    flip_bit(log, log.read_bytes().index(b"p:10:200:") + 100)


def receive_until_quiet(consumer: object, quiet_s: float = 1.5) -> list[int]:
    numbers = []
    deadline = time.monotonic() + quiet_s
    while time.monotonic() < deadline:
        try:
            message = consumer.receive(100)  # type: ignore[attr-defined]  # the client has no types
        except pulsar.Timeout:
            continue
        numbers.append(parse(message.data())[1])
        consumer.acknowledge(message)  # type: ignore[attr-defined]
        deadline = time.monotonic() + quiet_s
    return numbers


def skip_one_message(server: FaultyServer, subscription: str) -> None:
    import urllib.request

    url = f"{server.admin_url}/admin/v2/persistent/public/default/damaged/subscription/{subscription}/skip/1"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10) as answer:
        assert answer.status == 204
