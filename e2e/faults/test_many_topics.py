"""Many topics that are loaded and idle: each costs little memory, and listing them stays fast."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from e2e import processes
from e2e.faults.support import FaultyServer, client_of, running

WARM_UP_TOPICS = 100
TOPICS = 2_000
"""So many that what the allocator takes ahead matters little."""
TOPIC_BYTES_MAX = 9_500
"""The goal is 8 kB, and 7.7 kB were measured with 2 000 topics; the rest is for the allocator's mood."""


@pytest.mark.slow
def test_an_idle_topic_costs_little(tmp_path: Path) -> None:
    with running(tmp_path) as server, client_of(server) as client:
        keep_inactive_topics(server)
        publish_once_to_each(client, 0, WARM_UP_TOPICS)
        before = pss_bytes(server)
        publish_once_to_each(client, WARM_UP_TOPICS, TOPICS)
        each_bytes = (pss_bytes(server) - before) / TOPICS
        assert each_bytes <= TOPIC_BYTES_MAX, f"{each_bytes / 1000:.1f} kB for each idle topic"
        url = f"{server.admin_url}/admin/v2/persistent/public/default"
        times_s: list[float] = []
        # The best of several says what it takes on a machine that does other things as well.
        while len(times_s) < 10 and min(times_s, default=1.0) >= 0.5:
            started = time.monotonic()
            with urllib.request.urlopen(url, timeout=60) as answer:
                names = json.loads(answer.read())
            times_s.append(time.monotonic() - started)
            assert len(names) == WARM_UP_TOPICS + TOPICS
        assert min(times_s) < 0.5


def keep_inactive_topics(server: FaultyServer) -> None:
    """Topics without subscriptions are deleted after a minute, and a busy machine takes longer than that here."""
    policies = {"deleteWhileInactive": False, "inactiveTopicDeleteMode": "delete_when_no_subscriptions"}
    body = json.dumps({**policies, "maxInactiveDurationSeconds": 3_600}).encode()
    url = f"{server.admin_url}/admin/v2/namespaces/public/default/inactiveTopicPolicies"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204


def publish_once_to_each(client: object, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer = client.create_producer(f"many-{number}")  # type: ignore[attr-defined]  # the client has no types
        producer.send(bytes(100))
        producer.close()


def pss_bytes(server: FaultyServer) -> int:
    time.sleep(0.5)
    return processes.memory(server.pids).pss_bytes
