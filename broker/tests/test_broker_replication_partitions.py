"""Partitioned topics that are replicated are made, and enlarged, in the other cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any, ClassVar

import aiohttp
import pytest
from magnetar.admin_client.client import AdminAnswer, AdminClient
from magnetar.admin_client.errors import AdminUnreachable
from magnetar.broker.replication import remote_partitions
from magnetar.broker.replication.remote_admin import RemoteAdmin
from magnetar.broker.replication.remote_clusters import admin_url_of
from magnetar.broker.replication.remote_partitions import KNOWN_SECONDS, RemotePartitions
from magnetar.broker.replication.states import NoRemote
from magnetar.broker.resources import Resources
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from broker.tests.subscription_stage import Timers
from broker.tests.two_clusters import name_cluster, replicate, two_clusters

NAME = TopicName.parse("persistent://public/default/parts")
PATH = "/admin/v2/persistent/public/default/parts"
WEST = RemoteAdmin("west", "http://west:8080", None, None)


async def rest(at: MemoryBroker, method: str, path: str, body: Any = None) -> int:
    async with aiohttp.request(method, at.admin_url + path, json=body) as answer:
        return answer.status


async def partitions(at: MemoryBroker) -> int | None:
    count: int | None = await Resources(at.store).partitions(NAME)
    return count


@asynccontextmanager
async def east_to_west() -> AsyncIterator[tuple[MemoryCluster, MemoryCluster]]:
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        resources = Resources(east[0].store)
        url = west[0].admin_url
        await resources.documents.update(resources.cluster_path("west"), lambda record: {**record, "serviceUrl": url})
        yield east, west


async def arrived(at: MemoryBroker, count: int) -> None:
    async def there() -> bool:
        return await partitions(at) == count

    while not await there():
        await until(lambda: True)


async def test_a_topic_is_made_and_enlarged_there_as_it_is_here() -> None:
    async with east_to_west() as (east, west):
        await replicate(east[0], "east", "west")
        assert await rest(east[0], "PUT", f"{PATH}/partitions", 3) == 204
        await arrived(west[0], 3)
        assert await rest(east[0], "POST", f"{PATH}/partitions", 5) == 204
        await arrived(west[0], 5)


async def test_who_says_local_only_makes_it_here_only() -> None:
    async with east_to_west() as (east, west):
        await replicate(east[0], "east", "west")
        assert await rest(east[0], "PUT", f"{PATH}/partitions?createLocalTopicOnly=true", 3) == 204
        # What is made afterwards, and arrives, shows that nothing was under way.
        other = PATH + "2"
        assert await rest(east[0], "PUT", f"{other}/partitions", 1) == 204
        await until(lambda: "west" in str(east[0].service.upkeep.replication._world.partitions._known))
        assert await partitions(west[0]) is None


async def test_a_topic_that_was_there_before_its_replication_is_made_by_its_replicators() -> None:
    async with east_to_west() as (east, west):
        assert await rest(east[0], "PUT", f"{PATH}/partitions", 2) == 204
        await replicate(east[0], "east", "west")
        assert await partitions(west[0]) is None
        topic: Any = await east[0].service.topic(NAME.partition(1), create=True)
        await until(lambda: topic.replicators.stats()["west"]["state"] == "Started")
        assert await partitions(west[0]) == 2


async def test_a_topic_without_partitions_in_its_place_is_the_reason_of_a_standstill() -> None:
    async with east_to_west() as (east, west):
        await west[0].service.topic(NAME, create=True)
        assert await rest(east[0], "PUT", f"{PATH}/partitions", 2) == 204
        await replicate(east[0], "east", "west")
        topic: Any = await east[0].service.topic(NAME.partition(0), create=True)
        await until(lambda: topic.replicators.stats()["west"]["reason"] == "no remote")
        assert await partitions(west[0]) is None
        # It is deleted there, and replication begins.
        assert await rest(west[0], "DELETE", PATH) == 204
        await until(lambda: topic.replicators.stats()["west"]["state"] == "Started")
        assert await partitions(west[0]) == 2


class Remotes:
    """A cluster of which is told how many partitions it has."""

    def __init__(self, found: int | PulsarError) -> None:
        self.found = found
        self.looked = 0

    async def client(self, cluster: str) -> Remotes:
        assert cluster == "west"
        return self

    async def admin(self, cluster: str) -> RemoteAdmin:
        assert cluster == "west"
        return WEST

    async def partitions(self, topic: TopicName) -> int:
        assert topic == NAME
        self.looked += 1
        if isinstance(self.found, PulsarError):
            raise self.found
        return self.found


class Admin(AdminClient):
    """Keeps what it is asked, and answers as told."""

    asked: ClassVar[list[tuple[str, str, Mapping[str, str] | None, str | None]]]
    answers: ClassVar[list[AdminAnswer | AdminUnreachable]]

    async def send(
        self, method: str, address: str, query: Mapping[str, str] | None = None, data: str | None = None
    ) -> AdminAnswer | str:
        self.asked.append((method, address, query, data))
        answer = self.answers.pop(0)
        if isinstance(answer, AdminUnreachable):
            raise answer
        return answer


class Staged:
    """What is looked at, over a remote cluster that is told what it has."""

    def __init__(self, found: int | PulsarError, *given: AdminAnswer | AdminUnreachable, enabled: bool = True) -> None:
        self.remotes = Remotes(found)
        self.resources = Resources(MemoryMetadataStore())

        class StagedAdmin(Admin):
            asked: ClassVar = []
            answers: ClassVar = list(given)

        self.admin: type[Admin] = StagedAdmin
        settings = BrokerSettings(policies=PolicySettings(remote_topics_created=enabled))
        remotes: Any = self.remotes
        self.timers = Timers()
        self.partitions = RemotePartitions(
            self.resources, lambda: settings, remotes, Random(0), self.timers, self.admin
        )

    async def record(self, count: int) -> None:
        path = self.resources.partitioned_topic_path(NAME)
        await self.resources.documents.create(path, {"partitions": count, "deleted": False})


DONE = AdminAnswer(204, b"", "No Content")


@pytest.mark.parametrize("found", [0, PulsarError(ServerError.TOPIC_NOT_FOUND, "no such topic")])
async def test_a_topic_that_is_not_there_is_made(found: int | PulsarError) -> None:
    staged = Staged(found, DONE)
    await staged.partitions.bring(NAME, 4, "west")
    assert staged.admin.asked == [("PUT", WEST.url + PATH + "/partitions", {"createLocalTopicOnly": "true"}, "4")]


async def test_one_with_fewer_partitions_is_enlarged_and_one_with_more_stays() -> None:
    staged = Staged(3, DONE)
    await staged.partitions.bring(NAME, 4, "west")
    assert staged.admin.asked == [("POST", WEST.url + PATH + "/partitions", {"updateLocalTopicOnly": "true"}, "4")]
    larger = Staged(5)
    await larger.partitions.bring(NAME, 4, "west")
    assert larger.admin.asked == []


async def test_what_was_seen_to_be_there_is_not_asked_for_again() -> None:
    staged = Staged(4)
    await staged.record(4)
    for index in range(4):
        await staged.partitions.ensure(NAME.partition(index), "west")
    assert staged.remotes.looked == 1
    await staged.partitions.ensure(NAME, "west")
    assert staged.remotes.looked == 1


async def test_what_was_seen_to_be_there_is_asked_for_again_after_a_while() -> None:
    staged = Staged(4, DONE)
    await staged.record(4)
    await staged.partitions.ensure(NAME.partition(0), "west")
    staged.timers.advance(1_000 * KNOWN_SECONDS + 1)
    staged.remotes.found = 0  # Somebody has deleted it there.
    await staged.partitions.ensure(NAME.partition(1), "west")
    assert len(staged.admin.asked) == 1


async def test_a_cluster_that_tells_of_billions_of_partitions_takes_no_memory() -> None:
    staged = Staged((1 << 32) - 1)
    await staged.partitions.bring(NAME, 4, "west")
    assert staged.admin.asked == []


async def test_nobody_waits_for_another_cluster_when_the_broker_stops() -> None:
    staged = Staged(0, AdminUnreachable("no connection"))
    trying = asyncio.create_task(staged.partitions.bring_to(NAME, 4, ["west"]))
    await until(lambda: staged.admin.asked)
    staged.partitions.stop()
    await asyncio.wait([trying])
    assert trying.cancelled()
    await staged.partitions.bring_to(NAME, 4, ["west"])
    assert len(staged.admin.asked) == 1


async def test_a_broker_that_stops_ends_what_it_tries_at_other_clusters() -> None:
    async with east_to_west() as (east, _):
        await replicate(east[0], "east", "west")
        resources, replication = Resources(east[0].store), east[0].service.upkeep.replication
        nowhere = {"serviceUrl": "http://127.0.0.1:1"}
        await resources.documents.update(resources.cluster_path("west"), lambda record: {**record, **nowhere})
        assert await rest(east[0], "PUT", f"{PATH}/partitions", 3) == 204
        await until(lambda: replication._world.partitions._under_way)
        (trying,) = replication._world.partitions._under_way
        replication.stop()
        await asyncio.wait([trying])
        assert trying.cancelled()


async def test_a_setting_leaves_other_clusters_alone() -> None:
    staged = Staged(0, enabled=False)
    await staged.record(4)
    await staged.partitions.ensure(NAME.partition(0), "west")
    await staged.partitions.bring_to(NAME, 4, ["west"])
    assert staged.remotes.looked == 0


async def test_an_answer_that_was_lost_is_looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    staged = Staged(0, AdminUnreachable("the connection was lost"))
    made = staged.admin.send

    async def lost(self: Any, *arguments: Any) -> AdminAnswer | str:
        staged.remotes.found = 4  # It was done before the connection ended.
        answer: AdminAnswer | str = await made(self, *arguments)
        return answer

    monkeypatch.setattr(staged.admin, "send", lost)
    await staged.partitions.bring_to(NAME, 4, ["west"])
    assert len(staged.admin.asked) == 1
    assert staged.remotes.looked == 2
    assert [0.5 <= seconds <= 1.0 for seconds in paused] == [True]


async def test_a_refusal_is_told_with_what_to_do() -> None:
    conflict = AdminAnswer(409, json.dumps({"reason": "This topic already exists"}).encode(), "Conflict")
    with pytest.raises(NoRemote, match=r"refuses .* \(This topic already exists\): .* delete it there"):
        await Staged(0, conflict).partitions.bring(NAME, 4, "west")


async def test_refused_ones_are_not_tried_again_in_the_background(caplog: pytest.LogCaptureFixture) -> None:
    conflict = AdminAnswer(409, b"{}", "Conflict")
    staged = Staged(0, conflict)
    await staged.partitions.bring_to(NAME, 4, ["west"])
    assert len(staged.admin.asked) == 1
    assert "refuses to have" in caplog.text


def test_the_address_is_that_of_the_admin_api() -> None:
    record = {"serviceUrl": "http://west:8080/", "serviceUrlTls": "https://west:8443"}
    assert admin_url_of("west", record) == "http://west:8080"
    assert admin_url_of("west", {**record, "brokerClientTlsEnabled": True}) == "https://west:8443"
    with pytest.raises(NoRemote, match="has no serviceUrl:"):
        admin_url_of("west", {"brokerServiceUrl": "pulsar://west:6650"})


async def test_no_more_topics_wait_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_partitions, "WAITING_MAX", 0)
    staged = Staged(0)
    await staged.partitions.bring_to(NAME, 4, ["west"])
    assert staged.remotes.looked == 0
