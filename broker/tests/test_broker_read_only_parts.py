"""Brokers that only read: which of them gets a client, and which of them serves a subscription."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from magnetar.broker.bundles.served_elsewhere import ServedElsewhere
from magnetar.broker.bundles.statistics import BundleStats
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.read_only.bindings import Bindings
from magnetar.broker.read_only.paths import SUBSCRIPTIONS_PATH, binding_path
from magnetar.broker.read_only.spread import Spread
from magnetar.core.topic_name import TopicName
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree

TOPIC = TopicName.parse("persistent://public/default/t")


def addresses(name: str) -> BrokerAddresses:
    return BrokerAddresses(
        broker_id=name,
        service_url=f"pulsar://{name}:6650",
        service_url_tls=None,
        web_service_url=f"http://{name}",
        web_service_url_tls=None,
    )


def report(name: str, consumers: int = 0, *, made_ms: int = 1, lag_seconds: float = 0.0) -> BrokerReport:
    made = BrokerReport(addresses(name))
    made.updated_ms = made_ms
    made.lag_seconds = lag_seconds
    stats = BundleStats()
    stats.consumers = consumers
    made.stats = {"b": stats}
    return made


def test_clients_go_where_the_fewest_consumers_are() -> None:
    readers = {"a": report("a", 5), "b": report("b", 2), "c": report("c", 2)}
    spread = Spread(10.0)
    chosen = Counter(spread.choose(readers) for _ in range(9))
    assert chosen == {"a": 1, "b": 4, "c": 4}


def test_who_asks_again_comes_to_each_broker() -> None:
    readers = {name: report(name) for name in "abcd"}
    spread = Spread(10.0)
    assert {spread.choose(readers) for _ in range(4)} == set("abcd")


def test_a_newer_report_counts_those_that_were_sent() -> None:
    spread = Spread(10.0)
    readers = {"a": report("a"), "b": report("b")}
    for _ in range(20):
        spread.choose(readers)
    readers = {"a": report("a", 10, made_ms=2), "b": report("b", 0, made_ms=2)}
    assert [spread.choose(readers) for _ in range(5)] == ["b"] * 5


def test_a_single_client_that_was_sent_is_in_the_next_report() -> None:
    spread = Spread(10.0)
    assert spread.choose({"a": report("a"), "b": report("b")}) == "a"
    assert spread.choose({"a": report("a", 1, made_ms=2), "b": report("b", 1, made_ms=2)}) == "a"


def test_who_is_far_behind_gets_no_clients_while_there_are_others() -> None:
    spread = Spread(10.0)
    assert spread.choose({"a": report("a", lag_seconds=11), "b": report("b", 1_000)}) == "b"
    assert spread.choose({"a": report("a", lag_seconds=11)}) == "a"


def test_who_leaves_gets_no_clients_while_there_are_others() -> None:
    spread = Spread(10.0)
    leaving = report("a")
    leaving.draining = True
    assert spread.choose({"a": leaving, "b": report("b", 1_000)}) == "b"
    assert spread.choose({}) is None


def test_reports_tell_the_lag() -> None:
    assert BrokerReport.decode("a", report("a", lag_seconds=2.5).encode()).lag_seconds == 2.5
    assert BrokerReport.decode("a", report("a").encode()).lag_seconds == 0


async def test_a_subscription_is_bound_to_one_broker() -> None:
    tree = MemoryTree()
    first, second = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    ones, others = Bindings(first, addresses("a")), Bindings(second, addresses("b"))
    await ones.take(TOPIC, "s/1")
    await ones.take(TOPIC, "s/1")  # Asked for twice, it is one.
    with pytest.raises(ServedElsewhere) as refused:
        await others.take(TOPIC, "s/1")
    assert refused.value.broker.service_url == "pulsar://a:6650"
    await others.take(TOPIC, "s/2")

    await others.release(TOPIC, "s/1")  # Not its own.
    assert await first.exists(binding_path(TOPIC, "s/1"))
    await ones.release(TOPIC, "s/1")
    await others.take(TOPIC, "s/1")
    for subscription in ("s/1", "s/2"):
        await others.release(TOPIC, subscription)
    assert await first.children(SUBSCRIPTIONS_PATH + "/public/default/persistent") == []
    for store in (first, second):
        await store.close()


async def test_the_last_subscriptions_of_a_topic_are_released_at_the_same_time() -> None:
    tree = MemoryTree()
    store = MemoryMetadataStore(tree)
    bindings = Bindings(store, addresses("a"))
    names = [f"s{number}" for number in range(5)]
    for name in names:
        await bindings.take(TOPIC, name)
    await asyncio.gather(*(bindings.release(TOPIC, name) for name in names))
    assert await store.children(SUBSCRIPTIONS_PATH + "/public/default/persistent") == []
    await store.close()


async def test_a_broker_that_dies_frees_its_subscriptions() -> None:
    tree = MemoryTree()
    first, second = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    await Bindings(first, addresses("a")).take(TOPIC, "s")
    await first.close()
    await Bindings(second, addresses("b")).take(TOPIC, "s")
    await second.close()
