"""Many topics in one namespace: what making, listing, looking up, publishing first and keeping loaded costs."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from magnetar.client.client import PulsarClient
from magnetar.client.message import OutgoingMessage
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName

from bench.cluster.receipts import percentile
from bench.page import Figures
from bench.report import Metric, Results
from e2e import processes
from e2e.cluster import admin
from e2e.cluster.local import LocalCluster, Size

NAMESPACE = "public/scale"
BUNDLES = 48
PARTITIONS = 1_000
"""Topics that one request makes."""
SIZES = (1_000, 10_000, 100_000)
SAMPLES = 200
AT_ONCE = 100
"""Topics that are loaded side by side."""
SETTLE_S = 15.0
"""Until brokers are idle again: reports are sent, garbage is collected."""
WARM_UP_TOPICS = 300
"""In another namespace: what brokers need for the first topics is not what the others cost."""
DATA = "zk_approximate_data_size"
"""ZooKeeper's count of bytes in the names and values of its nodes."""
MEMORY_BYTES_GOAL = 8_000.0
SETTINGS = {
    # Idle topics are what is counted.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """What a step works with."""

    cluster: LocalCluster
    client: PulsarClient
    rng: random.Random
    publish: bool
    say: Callable[[str], None]

    @property
    def broker_bytes(self) -> int:
        return processes.memory([pid for broker in self.cluster.brokers for pid in broker.pids]).pss_bytes

    @property
    def zookeeper(self) -> dict[str, int]:
        """What ZooKeeper counts: `zk_znode_count`, `zk_approximate_data_size` …"""
        address = self.cluster.settings.metadata_url.removeprefix("zk:").partition("/")[0]
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 10.0) as connection:
            connection.sendall(b"mntr")
            answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        pairs = [line.split("\t") for line in answer.splitlines()]
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def topic(number: int) -> TopicName:
    """The topics in the order in which they are made."""
    return TopicName.parse(f"persistent://{NAMESPACE}/many{number // PARTITIONS}-partition-{number % PARTITIONS}")


def run(folder: Path, topics: int, publish: bool, say: Callable[[str], None]) -> Figures:
    """A column for each number of topics. With `publish` each topic gets a message, else it is only loaded."""
    size = Size(bookies=4, brokers=3, proxies=1)
    sizes = [*(size for size in SIZES if size < topics), topics]
    results: Results = {}
    with LocalCluster(folder, size, broker_settings=SETTINGS) as cluster:
        cluster.start()
        admin.call("PUT", f"{cluster.admin_url}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
        uvloop.run(_grow(cluster, sizes, publish, results, say))
    return Figures("topics", "Many topics", results, metrics(), column(sizes[-1]), column(sizes[0]))


def column(count: int) -> str:
    """Its name in the table."""
    return f"{count:,} topics".replace(",", "\u202f")


async def _grow(
    cluster: LocalCluster, sizes: list[int], publish: bool, results: Results, say: Callable[[str], None]
) -> None:
    # Through the brokers: a proxy on the same cores would only blur what they do.
    settings = ClientSettings(operation_timeout_seconds=120.0)
    client = PulsarClient(lambda: cluster.broker_service_url, SystemClock(), settings)
    scene = Scene(cluster, client, random.Random(1), publish, say)
    try:
        await _own_all_bundles(scene)
        await _warm_up(scene)
        await asyncio.sleep(SETTLE_S)
        base_loaded, base_bytes, base_store = _loaded(scene), scene.broker_bytes, scene.zookeeper
        say(f"without topics: brokers {base_bytes / 1e6:.0f} MB, ZooKeeper {base_store[DATA]:,} B")
        made = 0
        for count in sizes:
            found = await _create(scene, made, count)
            created = scene.zookeeper
            found |= await _read(scene, made, count)
            found |= await _load(scene, made, count)
            await asyncio.sleep(SETTLE_S)
            store = scene.zookeeper
            found["memory_bytes_per_topic"] = (scene.broker_bytes - base_bytes) / count
            found["brokers_mb"] = scene.broker_bytes / 1e6
            found["loaded_share"] = (_loaded(scene) - base_loaded) / count
            found["zookeeper_bytes_per_topic"] = (store[DATA] - base_store[DATA]) / count
            found["zookeeper_bytes_made"] = (store[DATA] - created[DATA]) / max(1, count - made)
            found["zookeeper_nodes_per_topic"] = (store["zk_znode_count"] - base_store["zk_znode_count"]) / count
            results[column(count)] = found
            made = count
            say(f"{column(count)}: " + ", ".join(f"{key} {value:,.2f}" for key, value in found.items()))
    finally:
        await client.close()


async def _own_all_bundles(scene: Scene) -> None:
    """So that no lookup that is measured has to choose a broker first."""
    for number in range(BUNDLES * 20):
        await scene.client.lookup.broker_of(TopicName.parse(f"persistent://{NAMESPACE}/probe-{number}"))


async def _warm_up(scene: Scene) -> None:
    for number in range(WARM_UP_TOPICS):
        producer = await scene.client.producer(TopicName.parse(f"persistent://public/default/warm-{number}"))
        await producer.send(OutgoingMessage(b"warm"))
        await producer.close()


async def _create(scene: Scene, made: int, count: int) -> dict[str, float]:
    began = time.perf_counter()
    for first in range(made, count, PARTITIONS):
        url = f"{scene.cluster.admin_url}/admin/v2/persistent/{NAMESPACE}/many{first // PARTITIONS}/partitions"
        await asyncio.to_thread(admin.call, "PUT", url, min(PARTITIONS, count - first))
    return {"created_per_s": (count - made) / (time.perf_counter() - began)}


async def _read(scene: Scene, made: int, count: int) -> dict[str, float]:
    """The list, lookups, and first publishes, one at a time."""
    url = f"{scene.cluster.admin_url}/admin/v2/persistent/{NAMESPACE}"
    began = time.perf_counter()
    listed = await asyncio.to_thread(admin.get_json, url)
    list_s = time.perf_counter() - began
    assert len(listed) == count, f"{len(listed)} topics are listed, not {count}"
    some = scene.rng.sample(range(made, count), min(SAMPLES, count - made))

    async def look_up(name: TopicName) -> None:
        await scene.client.lookup.broker_of(name)

    async def publish(name: TopicName) -> None:
        producer = await scene.client.producer(name)
        await producer.send(OutgoingMessage(b"first"))
        await producer.close()

    lookups_s = [await _timed(look_up, topic(number)) for number in some]
    publishes_s = [await _timed(publish, topic(number)) for number in some]
    return {
        "list_ms": list_s * 1e3,
        "list_us_per_topic": list_s / count * 1e6,
        "lookup_p50_ms": percentile(lookups_s, 0.5) * 1e3,
        "lookup_p99_ms": percentile(lookups_s, 0.99) * 1e3,
        "first_publish_p50_ms": percentile(publishes_s, 0.5) * 1e3,
        "first_publish_p99_ms": percentile(publishes_s, 0.99) * 1e3,
    }


async def _timed(work: Callable[[TopicName], Awaitable[None]], name: TopicName) -> float:
    began = time.perf_counter()
    await work(name)
    return time.perf_counter() - began


async def _load(scene: Scene, made: int, count: int) -> dict[str, float]:
    """Every topic that is new: a producer, a message if it is to have one, and nobody again."""
    numbers = iter(range(made, count))

    async def work() -> None:
        for number in numbers:
            producer = await scene.client.producer(topic(number))
            if scene.publish:
                await producer.send(OutgoingMessage(b"one"))
            await producer.close()

    pids = [pid for broker in scene.cluster.brokers for pid in broker.pids]
    before, began = processes.cpu_seconds(pids), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    took_s = time.perf_counter() - began
    return {
        "loaded_per_s": (count - made) / took_s,
        "load_cpu_ms": (processes.cpu_seconds(pids) - before) / (count - made) * 1e3,
    }


def _loaded(scene: Scene) -> int:
    """Topics that brokers keep loaded, by their metrics."""
    total = 0
    for broker in scene.cluster.brokers:
        text = admin.call("GET", f"{broker.admin_url}/metrics/").decode()
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("pulsar_topics_count")]
        total += int(sum(map(float, values)))
    return total


def metrics() -> list[Metric]:
    """The ratio compares the most topics with the fewest: what is flat is near 1."""
    return [
        Metric("created_per_s", "topics made by the admin API", "/s", more_is_better=True),
        Metric("list_ms", "list of all topics", "ms"),
        Metric("list_us_per_topic", "list of all topics, per topic", "µs", goal=1.5),
        Metric("lookup_p50_ms", "lookup p50", "ms", goal=1.5),
        Metric("lookup_p99_ms", "lookup p99", "ms"),
        Metric("first_publish_p50_ms", "lookup, producer and first publish p50", "ms", goal=1.5),
        Metric("first_publish_p99_ms", "lookup, producer and first publish p99", "ms"),
        Metric("loaded_per_s", "topics loaded", "/s", more_is_better=True),
        Metric("load_cpu_ms", "brokers' CPU per topic loaded", "ms", goal=1.5),
        Metric("loaded_share", "share of the topics that is loaded", ""),
        Metric("brokers_mb", "memory of the three brokers (PSS)", "MB"),
        Metric(
            "memory_bytes_per_topic", "brokers' memory per loaded idle topic", "B", MEMORY_BYTES_GOAL, absolute=True
        ),
        Metric("zookeeper_bytes_per_topic", "ZooKeeper: names and values per topic", "B"),
        Metric("zookeeper_bytes_made", "of that, by loading it", "B"),
        Metric("zookeeper_nodes_per_topic", "ZooKeeper: nodes per topic", ""),
    ]
