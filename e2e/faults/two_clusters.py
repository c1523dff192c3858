"""Two clusters, a standalone each, that replicate to each other."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.server import MagnetarStandalone

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/replicated"
CLUSTERS = ("east", "west")


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
def two_clusters(folder: Path, **settings: str) -> Iterator[dict[str, MagnetarStandalone]]:
    """Each with metadata of its own and these settings; deduplication is on in both."""
    servers = {name: MagnetarStandalone(folder / name, settings={"clusterName": name, **settings}) for name in CLUSTERS}
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
