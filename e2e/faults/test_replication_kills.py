"""Two clusters replicate to each other, and either is killed in the middle: each message arrives once, in order."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from e2e.faults.support import client_of
from e2e.processes import wait_for
from e2e.server import MagnetarStandalone

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/replicated"
CLUSTERS = ("east", "west")
MESSAGES = 12_000
KILL_AFTER = (3_000, 8_000)


def ask(server: MagnetarStandalone, method: str, path: str, body: object = None) -> Any:
    request = urllib.request.Request(
        f"{server.admin_url}/admin/v2/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        content = answer.read()
    return json.loads(content) if content else None


@contextmanager
def two_clusters(folder: Path) -> Iterator[dict[str, MagnetarStandalone]]:
    """Each with metadata of its own; deduplication is on in both."""
    servers = {name: MagnetarStandalone(folder / name, settings={"clusterName": name}) for name in CLUSTERS}
    try:
        for server in servers.values():
            server.start()
        for name, server in servers.items():
            (other,) = [each for each in CLUSTERS if each != name]
            there = servers[other]
            ask(
                server,
                "PUT",
                f"clusters/{other}",
                {"brokerServiceUrl": there.service_url, "serviceUrl": there.admin_url},
            )
            ask(server, "POST", "tenants/public", {"adminRoles": [], "allowedClusters": list(CLUSTERS)})
            ask(server, "POST", f"namespaces/{NAMESPACE}/deduplication", True)
            ask(server, "POST", f"namespaces/{NAMESPACE}/replication", list(CLUSTERS))
        yield servers
    finally:
        for server in servers.values():
            server.stop()


def caught_up(server: MagnetarStandalone, other: str) -> bool:
    replication = ask(server, "GET", TOPIC.replace("://", "/") + "/stats")["replication"]
    return bool(replication[other]["connected"] and not replication[other]["replicationBacklog"])


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
