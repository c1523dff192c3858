"""Topics for tests of the data source, filled by the official client."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, Final

import pulsar

NAMESPACE: Final = "public/spark-source"
"""Keeps what nobody has subscribed to."""

WAIT_SECONDS_MAX: Final = 50.0
"""Where Spark has a part, and the machine is busy."""


class Topics:
    """Topics of one cluster, and a client to fill them. Closed by the caller."""

    def __init__(self, service_url: str, admin_url: str) -> None:
        self.urls = {"service.url": service_url, "admin.url": admin_url}
        """The options that say where the cluster is."""
        self.client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._admin_url = admin_url
        self._numbers = itertools.count(1)
        self.admin("PUT", f"namespaces/{NAMESPACE}", {})
        self.admin("POST", f"namespaces/{NAMESPACE}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})

    def close(self) -> None:
        """Let go."""
        self.client.close()

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """What the admin API answers to a GET. Raises urllib's HTTPError."""
        request = urllib.request.Request(
            f"{self._admin_url}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            content = answer.read()
        return json.loads(content) if method == "GET" else None

    def new(self, word: str, partitions: int = 0) -> str:
        """The complete name of a topic that is there and that nobody else uses."""
        topic = f"persistent://{NAMESPACE}/{word}-{next(self._numbers)}"
        if partitions:
            self.admin("PUT", f"{path_of(topic)}/partitions", partitions)
        else:
            self.admin("PUT", path_of(topic))
        return topic

    def send(self, topic: str, values: Iterable[Any], schema: Any = None, **more: Any) -> list[Any]:
        """One message after the other, each an entry of its own. Returns their ids. `more` is for each message."""
        producer = self.client.create_producer(
            topic, schema=schema or pulsar.schema.BytesSchema(), batching_enabled=False
        )
        ids = [producer.send(value, **more) for value in values]
        producer.close()
        return ids

    def send_batches(self, topic: str, values: Iterable[Any], size: int, **producer_options: Any) -> None:
        """In batches of `size` messages."""
        producer = self.client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=size,
            batching_max_publish_delay_ms=60_000,
            block_if_queue_full=True,
            **producer_options,
        )
        failures: list[Any] = []
        for value in values:
            producer.send_async(value, lambda result, _id: failures.append(result))
        producer.flush()
        producer.close()
        assert set(failures) == {pulsar.Result.Ok}

    def roll(self, topic: str) -> None:
        """The ledger in use is closed; what is sent next comes into another one."""
        self.admin("PUT", f"{path_of(topic)}/unload")

    def truncate(self, topic: str) -> None:
        """Everything in closed ledgers is gone."""
        self.admin("DELETE", f"{path_of(topic)}/truncate")

    def delete(self, topic: str) -> None:
        """Whoever is using it."""
        self.admin("DELETE", f"{path_of(topic)}?force=true")

    def subscriptions(self, topic: str) -> dict[str, int]:
        """The backlog of each, but of readers."""
        found = self.admin("GET", f"{path_of(topic)}/stats?getPreciseBacklog=true")["subscriptions"]
        return {name: each["msgBacklog"] for name, each in found.items() if not name.startswith("reader-")}


def path_of(topic: str) -> str:
    """In the admin API."""
    return topic.replace("://", "/", 1)


def wait_until(holds: Callable[[], bool]) -> None:
    """Ask until it does."""
    give_up_at = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
