"""Which replicators a topic has, when their cursors go, and what is told of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.replication.outgoing import ShadowOutgoing, Skipped
from magnetar.broker.replication.shadow_replicators import ShadowReplicators
from magnetar.broker.replication.states import ReplicatorState
from magnetar.broker.replication.topic_replicators import is_replicated
from magnetar.broker.settings.broker import BrokerSettings, DispatchSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.client.unanswered import RelayedEntry
from magnetar.core.errors import Unavailable
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.settings import ManagedLedgerSettings

from broker.tests.replicator_stage import TOPIC, StagedRemote, TopicStage
from broker.tests.subscription_stage import LEDGER, MemoryCursor, stored_message


def policies(*clusters: str, **others: Any) -> EffectivePolicies:
    return EffectivePolicies(
        ledger=ManagedLedgerSettings(), dispatch=DispatchSettings(), remote_clusters=clusters, **others
    )


class SlowCursor(MemoryCursor):
    """Its reads end when they are let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.cached_from = 1 << 30

    async def read(self, count_max: int, size_bytes_max: int) -> Any:
        await self.may_go_on.wait()
        return await super().read(count_max, size_bytes_max)


@pytest.mark.parametrize("start_at", ["earliest", "latest"])
def test_each_cluster_has_a_replicator_and_a_cursor_that_begins_where_the_setting_says(start_at: str) -> None:
    limits = PolicySettings(replication_start_at=start_at)
    stage = TopicStage("pulsar.repl.gone", "s", settings=BrokerSettings(cluster_name="east", policies=limits))
    stage.follow(policies("north", "west"))
    begin = EARLIEST if start_at == "earliest" else LATEST
    assert stage.ledger.opened == {"pulsar.repl.north": begin, "pulsar.repl.west": begin}
    assert list(stage.replicators.running) == ["north", "west"]
    assert stage.ledger.deleted == ["pulsar.repl.gone"]
    for cluster, count in (("north", 2), ("west", 3)):
        stage.publish(cluster, count)
        stage.settle()
        assert stage.remotes[cluster].entry_ids == list(range(count))
    stage.follow(policies("west"))
    assert stage.ledger.deleted == ["pulsar.repl.gone", "pulsar.repl.north"]
    assert list(stage.ledger.cursors) == ["s", "pulsar.repl.west"]


@pytest.mark.parametrize("goes", [True, False], ids=["topic goes", "topic stays"])
async def test_a_cursor_is_deleted_once_nobody_reads_by_it_and_never_of_a_topic_that_goes(goes: bool) -> None:
    stage = TopicStage()
    tasks: list[asyncio.Task[None]] = []
    stage.runtime.spawn = lambda work: tasks.append(asyncio.ensure_future(work))
    cursor = SlowCursor()
    stage.ledger.cursors["pulsar.repl.west"] = cursor

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    stage.replicators.follow(policies("west"), ())
    await turns()
    cursor.append(stored_message())
    stage.replicators.running["west"].wake()
    stage.replicators.follow(policies(), ())
    await turns()
    assert stage.ledger.deleted == []
    if goes:
        stage.replicators.close()
    cursor.may_go_on.set()
    await asyncio.gather(*tasks)
    assert stage.ledger.deleted == ([] if goes else ["pulsar.repl.west"])


def test_those_that_have_brought_everything_end_and_the_others_go_on() -> None:
    stage = TopicStage()
    stage.remotes["north"] = behind = StagedRemote()
    behind.answers = False
    stage.follow(policies("north", "west"))
    for cluster in ("north", "west"):
        stage.publish(cluster, 2)
    stage.settle()
    assert stage.replicators.behind
    stage.replicators.end_drained()
    stage.settle()
    states = {cluster: one.state for cluster, one in stage.replicators.running.items()}
    assert states == {"north": ReplicatorState.STARTED, "west": ReplicatorState.TERMINATED}
    behind.producers[-1].answer(2)
    stage.settle()
    assert not stage.replicators.behind


async def test_all_rest_while_nobody_uses_the_topic_and_connect_again_when_somebody_does() -> None:
    stage = TopicStage()
    stage.follow(policies("north", "west"))
    await stage.replicators.rest()
    assert [one.connected for one in stage.replicators.running.values()] == [False, False]
    stage.replicators.rouse()
    stage.settle()
    assert [one.connected for one in stage.replicators.running.values()] == [True, True]


def test_who_wants_the_markers_of_remote_clusters_hears_of_those_of_any_replicator() -> None:
    """Also of one that runs already."""
    stage = TopicStage()
    stage.follow(policies("west"))
    heard: list[Position] = []
    stage.replicators.tell_markers(lambda position, data: heard.append(position))
    stage.follow(policies("north", "west"))
    for cluster in ("west", "north"):
        stage.ledger.cursors[f"pulsar.repl.{cluster}"].append(
            stored_message(marker_type=13, replicated_from=cluster, sequence_id=0)
        )
        stage.replicators.running[cluster].wake()
        stage.settle()
    assert heard == [(LEDGER, 0), (LEDGER, 0)]
    assert all(not remote.sent for remote in stage.remotes.values())


def connected(stage: TopicStage) -> frozenset[str] | None:
    return stage.replicators.connected_clusters


def test_the_clusters_are_connected_once_all_of_them_are() -> None:
    stage = TopicStage()
    stage.remotes["north"] = away = StagedRemote()
    away.refuses = Unavailable("away")
    assert connected(stage) is None
    stage.follow(policies("north", "west"))
    assert connected(stage) is None
    away.refuses = None
    stage.pass_time(1)
    assert connected(stage) == frozenset({"north", "west"})
    away.producers[-1].lose(Unavailable("away"))
    assert connected(stage) is None


@pytest.mark.parametrize(
    ("name", "replicated"),
    [
        ("t", True),
        ("t-partition-3", True),
        ("__change_events", True),
        ("__change_events-partition-1", True),
        ("__transaction_buffer_snapshot", False),
        ("__transaction_pending_ack", False),
    ],
)
def test_of_the_topics_of_brokers_the_policies_alone_are_replicated(name: str, *, replicated: bool) -> None:
    assert is_replicated(TopicName.parse(f"persistent://public/default/{name}")) is replicated


def test_a_shadow_is_told_of_all_but_what_is_expired() -> None:
    outgoing = ShadowOutgoing("east")
    for fields in ({}, {"replicated_from": "west"}, {"replicate_to": ["north"]}, {"marker_type": 21}):
        data = stored_message(publish_time=10_000, **fields)
        found = outgoing.decide(data, (1, 2), 20_000, 10, (), {})
        assert isinstance(found, RelayedEntry)
        assert found.shadowed
        assert outgoing.decide(data, (1, 2), 20_001, 10, (), {}) is Skipped.EXPIRED
        assert isinstance(outgoing.decide(data, (1, 2), 20_001, 0, (), {}), RelayedEntry)
    assert outgoing.decide(b"nothing", (1, 2), 0, 0, (), {}) is Skipped.UNREADABLE


def test_names_that_no_shadow_can_have_are_passed_over() -> None:
    stage = TopicStage()
    ledger: Any = stage.ledger
    shadows = ShadowReplicators(stage.world, TOPIC, ledger, lambda: None)
    good = "persistent://public/default/shadow"
    named = (str(TOPIC), good, "a/b/c/d/e", "non-persistent://public/default/shadow")
    shadows.follow(policies(shadow_topics=named), ())
    stage.settle()
    assert list(shadows.running) == [good]
    assert list(stage.ledger.opened.values()) == [LATEST]


async def test_the_cursor_of_a_shadow_is_closed_once_nobody_reads_by_it() -> None:
    stage = TopicStage()
    tasks: list[asyncio.Task[None]] = []
    stage.runtime.spawn = lambda work: tasks.append(asyncio.ensure_future(work))
    closed: list[bool] = []

    class ShadowCursor(SlowCursor):
        async def close(self) -> None:
            closed.append(self.may_go_on.is_set())

    cursor = ShadowCursor()
    ledger: Any = stage.ledger
    ledger.new_non_durable_cursor = lambda name, start: cursor
    shadows = ShadowReplicators(stage.world, TOPIC, ledger, lambda: None)

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    shadows.follow(policies(shadow_topics=("persistent://public/default/shadow",)), ())
    await turns()
    cursor.append(stored_message())
    shadows.running["persistent://public/default/shadow"].wake()
    shadows.follow(policies(), ())
    await turns()
    assert closed == []
    cursor.may_go_on.set()
    await asyncio.gather(*tasks)
    assert closed == [True]
