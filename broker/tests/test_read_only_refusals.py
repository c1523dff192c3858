"""What brokers that only read refuse, whatever it is called, and what they serve all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_read_only import TOPIC, Stage, readers_known_to

NAMES_THAT_MISLEAD = ("drain", "compatibility", "examinemessage", "messageid")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as cluster:
        yield cluster


@pytest.mark.parametrize("name", NAMES_THAT_MISLEAD)
async def test_a_name_does_not_make_a_change_a_question(stage: Stage, name: str) -> None:
    await stage.producer()
    reader = await stage.reader()
    topic = f"/admin/v2/persistent/public/default/{name}"
    async with ClientSession(stage.writer.admin_url) as http, http.put(topic) as answer:
        assert answer.status == 204
    async with ClientSession(reader.admin_url) as http:
        for method, path in [
            ("PUT", f"/admin/v2/tenants/{name}"),
            ("GET", "/admin/v2/brokers/backlog-quota-check"),
            ("PUT", f"/admin/v2/namespaces/public/{name}"),
            ("POST", f"/admin/v2/brokers/configuration/loadBalancerEnabled/{name}"),
            ("DELETE", topic),
            ("PUT", f"/admin/v2/persistent/public/default/t/subscription/{name}"),
            ("DELETE", f"/admin/v2/persistent/public/default/t/subscription/{name}"),
            ("POST", f"/admin/v2/persistent/public/default/t/subscription/a%2F{name}"),
        ]:
            async with http.request(method, path, json={}) as answer:
                assert answer.status == 405, (method, path)
                assert "read-only" in await answer.text()
    assert await stage.writer.store.exists(f"/managed-ledgers/public/default/persistent/{name}")


async def test_questions_by_post_and_what_concerns_only_this_broker_are_served(stage: Stage) -> None:
    await stage.producer()
    reader = await stage.reader()
    broker_id = reader.running.settings.broker_id
    async with ClientSession(reader.admin_url) as http:
        schema = {"type": "STRING", "schema": "", "properties": {}}
        async with http.post("/admin/v2/schemas/public/default/t/compatibility", json=schema) as answer:
            assert answer.status == 202, await answer.text()
        async with http.post(f"/admin/v2/brokers/{broker_id}/drain") as answer:
            assert answer.status == 412, await answer.text()  # There is no other one.
        async with http.delete(f"/admin/v2/brokers/{broker_id}/drain") as answer:
            assert answer.status == 200, await answer.text()


async def test_brokers_that_only_read_are_listed_and_drained_from_each_other(stage: Stage) -> None:
    await stage.producer()
    first, second = await stage.reader(), await stage.reader()
    ids = [one.running.settings.broker_id for one in (stage.writer, first, second)]
    drain = f"{second.admin_url}/admin/v2/brokers/{ids[1]}/drain"

    async def states(broker: MemoryBroker) -> dict[str, str]:
        async with http.get(broker.admin_url + "/admin/v2/brokers/load-reports") as answer:
            return {one["broker"]: one["state"] for one in await answer.json()}

    async with ClientSession() as http:
        async with http.get(second.admin_url + "/admin/v2/brokers/leaderBroker") as answer:
            assert (await answer.json())["brokerId"] == ids[0]
        async with http.get(second.admin_url + "/admin/v2/brokers/load-reports") as answer:
            assert [one["broker"] for one in await answer.json() if one["leader"]] == ids[:1]
        assert await states(second) == {ids[0]: "serving", ids[1]: "read-only", ids[2]: "read-only"}
        assert await states(stage.writer) == {ids[0]: "serving"}
        async with http.post(drain) as answer:
            assert answer.status == 200, await answer.text()
        await until(lambda: ids[1] not in readers_known_to(second))
        assert (await states(second))[ids[1]] == "draining"
        async with http.delete(drain) as answer:
            assert (answer.status, (await answer.json())["step"]) == (200, "none")


async def test_a_subscription_that_is_there_is_served_where_none_may_be_made(stage: Stage) -> None:
    await stage.producer()
    async with ClientSession(stage.writer.admin_url) as http:
        async with http.put("/admin/v2/persistent/public/default/t/subscription/s") as made:
            assert made.status == 204
        path = "/admin/v2/namespaces/public/default/autoSubscriptionCreation"
        async with http.post(path, json={"allowAutoSubscriptionCreation": False}) as told:
            assert told.status == 204
    client = await (await stage.reader()).connect()
    await client.consumer(TOPIC, "s")
    # One that is not there is the owner's to refuse.
    answer = await client.request(
        pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="new", consumer_id=2, subType=pb.CommandSubscribe.Exclusive
    )
    assert (answer.name, answer.body.error) == ("ERROR", pb.SubscriptionNotFound), answer


async def test_a_subscription_that_another_consumes_is_refused_and_not_called_lost(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.producer()
    await (await stage.writer.connect()).consumer(TOPIC, "s")
    client = await (await stage.reader()).connect()
    answer = await client.request(
        pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=pb.CommandSubscribe.Exclusive
    )
    assert answer.body.error == pb.ConsumerBusy
    assert [one.getMessage() for one in caplog.records if "not held" in one.getMessage()] == []
