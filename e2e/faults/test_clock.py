"""The machine's clock goes back, by an hour while the server runs and by a day over a restart: nothing breaks."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from pathlib import Path

import pulsar
import pytest
from magnetar.core.clock import SystemClock
from magnetar.standalone.threaded import ThreadedCluster

from e2e.faults.support import Subscriber, assert_kept, client_of, new_publisher, read_all, seen, subscribe
from e2e.processes import wait_for

TOPIC = "persistent://public/default/clock"
HOUR_MS = 3_600_000


class MovableClock(SystemClock):
    """The system's clock, moved; intervals are measured as ever."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


@pytest.mark.slow
def test_a_clock_that_goes_back_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    monkeypatch.setattr("magnetar.standalone.cluster.SystemClock", lambda: clock)
    with caplog.at_level(logging.WARNING, "magnetar"):
        with ThreadedCluster(tmp_path / "data") as cluster, client_of(cluster) as client:
            publisher = new_publisher(client, TOPIC, "p")
            consumer = Subscriber(subscribe(client, TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared))
            delayed = subscribe(client, f"{TOPIC}-delayed", "s", consumer_type=pulsar.ConsumerType.Shared)
            later = client.create_producer(f"{TOPIC}-delayed")
            for offset_ms in (0, -HOUR_MS, HOUR_MS, -2 * HOUR_MS):
                clock.offset_ms = offset_ms
                publisher.send(100)
                publisher.settle()
                later.send(b"later", deliver_at=clock.now_ms() + 200)
                assert delayed.receive(30_000).data() == b"later"
                wait_for(lambda: len(seen(consumer)) == publisher.sent, 60, "messages do not arrive")
                assert topic_stats(cluster)["msgInCounter"] == publisher.sent
            consumer.stop()
            time.sleep(1.5)
        clock.offset_ms = -24 * HOUR_MS
        with ThreadedCluster(tmp_path / "data") as cluster, client_of(cluster) as client:
            again = new_publisher(client, TOPIC, "q")
            again.send(100)
            again.settle()
            received = read_all(client, TOPIC, publisher.acknowledged + again.acknowledged)
            assert_kept([publisher, again], received)
            rest = Subscriber(subscribe(client, TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared))
            wait_for(lambda: len(seen(rest)) >= 100, 60, "messages do not arrive")
            assert {event.producer for event in rest.stop()} == {"q"}, "acknowledgements are lost"
        clock.offset_ms = -48 * HOUR_MS
        with ThreadedCluster(tmp_path / "data") as cluster, client_of(cluster) as client:
            assert client.create_producer(TOPIC).send(b"the journal has a name for it") is not None
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def topic_stats(cluster: ThreadedCluster) -> dict[str, int]:
    with urllib.request.urlopen(f"{cluster.admin_url}/admin/v2/persistent/public/default/clock/stats") as answer:
        stats: dict[str, int] = json.loads(answer.read())
        return stats
