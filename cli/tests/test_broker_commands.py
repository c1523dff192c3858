"""The commands for those who run brokers, on three brokers in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from magnetar.auth.testing import token_of
from magnetar.balance.model import Unload
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.testing.auth import ADMIN, broker_settings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.cli.command_line import application
from magnetar.cli.commands.admin_options import complete_broker, complete_bundle
from magnetar.cli.tools.admin_api import AdminAccess, AdminCaller, access_of_file, open_admin_api
from magnetar.cli.tools.brokers import DecisionRow, follow_decisions
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import TopicName
from typer.testing import CliRunner, Result

pytestmark = pytest.mark.slow

TOPICS = [f"persistent://public/default/t{number}" for number in range(80)]
LOAD = LoadSettings(report_interval_ms_min=1, round_seconds=3600, unloads_per_second_max=1000)
SETTINGS = BrokerSettings(cluster_name="memory", load=LOAD)

Run = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(3, SETTINGS) as made:
        for topic in TOPICS:
            broker = await made.lookup(made[0], topic)
            await broker.running.context.service.topic(TopicName.parse(topic), create=True)
        yield made


@pytest.fixture
def run(cluster: MemoryCluster) -> Run:
    """A command, in a thread of its own as the brokers are on this one's loop."""

    async def run(*arguments: object, code: int = 0, **environment: str) -> Result:
        variables = {"MAGNETAR_ADMIN_URL": cluster[0].admin_url, "NO_COLOR": "1", **environment}
        words = ["broker", *map(str, arguments)]
        result = await asyncio.to_thread(CliRunner().invoke, application, words, env=variables)
        assert result.exit_code == code, result.output
        return result

    return run


def own_id(broker: MemoryBroker) -> str:
    found: str = broker.running.context.ownership.own.broker_id
    return found


def owned(broker: MemoryBroker) -> list[BundleName]:
    return [name for name in broker.running.context.ownership.owned() if name.namespace.name == "default"]


def reports_are_true(cluster: MemoryCluster) -> bool:
    """Whether the broker that is asked knows who owns what."""
    for broker in cluster.brokers:
        broker.running.context.load.renew_report()
    reports = cluster[0].running.context.load.directory.reports
    return all(set(map(str, owned(broker))) <= set(reports[own_id(broker)].bundles) for broker in cluster.brokers)


def rows(result: Result) -> Any:
    return json.loads(result.stdout)


async def test_brokers_are_listed(cluster: MemoryCluster, run: Run) -> None:
    await until(lambda: reports_are_true(cluster))
    found = rows(await run("list", "--json"))
    assert [row["broker"] for row in found] == sorted(map(own_id, cluster.brokers))
    assert {row["state"] for row in found} == {"serving"}
    assert [row["leader"] for row in found].count(True) == 1
    by_id = {row["broker"]: row for row in found}
    assert {own_id(one): len(owned(one)) for one in cluster.brokers} == {
        name: row["bundles"] for name, row in by_id.items()
    }
    assert all(row["magnetar"] and row["version"] == "4.0.8" and row["started_ms"] for row in found)
    lines = (await run("list")).stdout.splitlines()
    assert lines[0].split("\t")[:4] == ["broker", "state", "leader", "bundles"]
    assert len(lines) == 4


async def test_a_drain_is_begun_watched_and_cancelled(cluster: MemoryCluster, run: Run) -> None:
    leaving = cluster[1]
    name, had = own_id(leaving), len(owned(leaving))
    assert had > 0
    assert "no drain runs" in (await run("drain", name, "--status")).stdout
    state = rows(await run("drain", name, "--json"))
    assert (state["broker"], state["step"], state["bundles_total"], state["bundles_left"]) == (name, "done", had, 0)
    assert owned(leaving) == []
    # The broker that is asked knows it no more as one that is alive, and still sends on what is about its drain.
    await until(lambda: name not in cluster[0].running.context.load.brokers())
    assert rows(await run("drain", name, "--status", "--json"))["step"] == "done"
    assert f"{name}: done, {had} of {had} bundles moved" in (await run("drain", name)).stdout
    listed = {row["broker"]: row for row in rows(await run("list", "--json"))}
    assert {one: row["state"] for one, row in listed.items()} == {
        own_id(one): "draining" if one is leaving else "serving" for one in cluster.brokers
    }
    assert "no drain runs" in (await run("drain", name, "--cancel")).stdout
    await cluster.settled()
    assert {row["state"] for row in rows(await run("list", "--json"))} == {"serving"}
    assert "not found" in (await run("drain", "nobody:1", code=1)).stderr


async def test_a_drain_that_is_held_up_goes_on_without_its_command(cluster: MemoryCluster, run: Run) -> None:
    leaving = cluster[1]
    context = leaving.running.context
    place, held = context.load.place, owned(leaving)[0]

    async def nowhere(bundle: BundleName) -> Any:
        return None if bundle == held else await place(bundle)

    context.operations._drains._broker = HeldUp(context.load, nowhere)
    state = rows(await run("drain", own_id(leaving), "--no-follow", "--json"))
    assert state["step"] == "running"
    await until(lambda: context.operations.drain_state().bundles_left == 1)
    shown = await run("drain", own_id(leaving), "--status")
    assert f"{held}: no broker may take it" in shown.stderr
    assert "running" in shown.stdout
    cancelled = await run("drain", own_id(leaving), "--cancel")
    assert "it takes bundles" in cancelled.stdout
    assert owned(leaving) == [held]


class HeldUp:
    """Load management that finds no place for a bundle."""

    def __init__(self, load: Any, place: Any) -> None:
        self.brokers, self.register, self.leave, self.place = load.brokers, load.register, load.leave, place
        self.renew_report = load.renew_report


async def test_the_last_broker_is_not_drained(cluster: MemoryCluster, run: Run) -> None:
    for broker in cluster.brokers[1:]:
        await cluster.stop(broker)
    await cluster.settled()
    refused = await run("drain", own_id(cluster[0]), code=1)
    assert "no other broker is alive" in refused.stderr


async def test_a_bundle_is_handed_to_a_broker(cluster: MemoryCluster, run: Run) -> None:
    source, destination = cluster[1], cluster[2]
    bundle = owned(source)[0]
    moved = await run("transfer", bundle, own_id(destination))
    assert f"{bundle} is served by {own_id(destination)}" in moved.stderr
    assert cluster.owners(bundle) == [destination]
    unknown = await run("transfer", bundle, "nobody:1", code=1)
    assert own_id(source) in unknown.stderr
    assert "is no bundle" in (await run("transfer", "orders", own_id(source), code=2)).stderr
    # A namespace without topics: its bundles are nobody's.
    idle = "public/idle/0x00000000_0x40000000"
    async with open_admin_api(AdminAccess(url=cluster[0].admin_url)) as api:
        await api.call("PUT", "/admin/v2/namespaces/public/idle", body={"bundles": {"numBundles": 4}})
    assert "nobody served it" in (await run("transfer", idle, own_id(source), code=1)).stderr


async def test_a_bundle_is_split(cluster: MemoryCluster, run: Run) -> None:
    bundle = owned(cluster[1])[0]
    low, high = bundle.range.low, bundle.range.high
    middle = low + (high - low) // 2
    parts = (await run("split", bundle)).stdout.split()
    assert parts == [f"public/default/0x{low:08x}_0x{middle:08x}", f"public/default/0x{middle:08x}_0x{high:08x}"]
    assert "may have been split" in (await run("split", bundle, code=1)).stderr
    quarter = low + (high - low) // 4
    cut = rows(await run("split", parts[0], "--at", hex(quarter), "--json"))
    assert cut == [f"public/default/0x{low:08x}_0x{quarter:08x}", f"public/default/0x{quarter:08x}_0x{middle:08x}"]
    assert "--at goes with" in (await run("split", parts[1], "-a", "specified_positions_divide", code=2)).stderr
    assert "it must be a hash" in (await run("split", parts[1], "--at", "here", code=2)).stderr


async def test_what_has_too_few_topics_is_not_cut(cluster: MemoryCluster, run: Run) -> None:
    async with open_admin_api(AdminAccess(url=cluster[0].admin_url)) as api:
        await api.call("PUT", "/admin/v2/namespaces/public/idle", body={"bundles": {"numBundles": 4}})
    idle = "public/idle/0x00000000_0x40000000"
    left = await run("split", idle, "--algorithm", "topic_count_equally_divide")
    assert left.stdout == f"{idle}\n"
    assert "nothing to cut" in left.stderr


async def test_bundles_and_topics_are_unloaded(cluster: MemoryCluster, run: Run) -> None:
    owner = cluster[1]
    bundle = owned(owner)[0]
    topic = next(topic for topic in owner.service.topics.values() if topic.name in bundle)
    shown = await run("unload", topic.name.local_name)
    assert f"{topic.name} is unloaded" in shown.stderr
    assert owner.service.topics.get(str(topic.name)) is not topic
    assert cluster.owners(bundle) == [owner]
    assert f"{bundle} is unloaded" in (await run("unload", bundle)).stderr
    assert cluster.owners(bundle) == []
    assert "neither a topic nor a bundle" in (await run("unload", "persistent://nonsense", code=2)).stderr
    for unknown in ("nosuch", "public/nosuch/0x00000000_0xffffffff"):
        told = (await run("unload", unknown, code=1)).stderr
        assert "Check the name: TENANT/NAMESPACE" in told
        assert "broker list" not in told


async def test_decisions_are_shown_with_their_reasons(cluster: MemoryCluster, run: Run) -> None:
    assert "nothing was decided yet" in (await run("decisions")).stderr
    placed = rows(await run("decisions", "--placements", "--json"))
    assert len(placed) == 16
    assert {row["kind"] for row in placed} == {"place"}
    assert all(row["reason"] and row["destination"] for row in placed)
    assert len(rows(await run("decisions", "--placements", "--count", 3, "--json"))) == 3
    leader = next(one for one in cluster.brokers if one.running.context.load.leading)
    log = leader.running.context.load.balancing.log
    decision = Unload(
        bundle=owned(cluster[1])[0],
        source=own_id(cluster[1]),
        destination=own_id(cluster[2]),
        reason="it is too much",
    )
    entry = log.begin(decision, 1_000)
    shown = await run("decisions")
    assert [line.strip() for line in shown.stdout.splitlines()] == [
        f"1970-01-01 00:00:01Z  unload {decision.bundle}  running",
        f"from {decision.source} to {decision.destination}",
        "it is too much",
    ]
    assert f"leader: {own_id(leader)}, driver: leader" in shown.stderr
    seen: list[DecisionRow] = []
    async with open_admin_api(AdminAccess(url=cluster[0].admin_url)) as api:
        async for row in follow_decisions(api, latest=5, placements=False, lost=lambda error: None):
            seen.append(row)
            if row.outcome == "done":
                break
            log.end(entry, None, 250)
    assert [(row.outcome, row.took_ms) for row in seen] == [("running", 0), ("done", 250)]


async def test_what_the_shell_is_offered(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine may be busy; nobody waits here.
    monkeypatch.setattr("magnetar.cli.commands.admin_options.COMPLETION_SECONDS_MAX", 60.0)

    class Context:
        def __init__(self) -> None:
            self.params = {"admin_url": cluster[0].admin_url}

    await until(lambda: reports_are_true(cluster))
    context: Any = Context()
    names = await asyncio.to_thread(complete_broker, context, "")
    assert names == sorted(map(own_id, cluster.brokers))
    assert await asyncio.to_thread(complete_broker, context, names[0]) == names[:1]
    assert len(await asyncio.to_thread(complete_bundle, context, "public/default/0x")) == 16
    context.params["admin_url"] = "http://127.0.0.1:1"
    assert await asyncio.to_thread(complete_broker, context, "") == []


async def test_where_the_brokers_are(cluster: MemoryCluster, run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "client.conf"
    conf.write_text(f"webServiceUrl={cluster[0].admin_url}/\nauthPlugin=\ntlsAllowInsecureConnection=true\n")
    found = access_of_file(conf)
    assert found == replace(AdminAccess(), url=cluster[0].admin_url + "/", allow_insecure=True)
    assert len(rows(await run("list", "--json", MAGNETAR_ADMIN_URL="", PULSAR_CLIENT_CONF=str(conf)))) == 3
    dead = await run("list", "--admin-url", "http://127.0.0.1:1", code=1)
    assert "--admin-url" in dead.stderr
    assert "no connection: " in dead.stderr
    assert "ssl" not in dead.stderr  # The library's words for any address.
    assert "is no http://HOST:PORT" in (await run("list", "--admin-url", "localhost:8080", code=2)).stderr
    told = (await run("list", "--admin-url", "http://admin:hunter2@localhost:1", code=2)).stderr
    assert "has credentials in it" in told
    assert "hunter2" not in told
    several = "http://127.0.0.1:1," + cluster[1].admin_url.removeprefix("http://")
    assert len(rows(await run("list", "--json", "--admin-url", several))) == 3
    assert "cannot be read" in (await run("list", "--client-conf", tmp_path / "none", code=2)).stderr


async def test_a_broker_that_is_not_ours_is_told_from_ours(cluster: MemoryCluster, run: Run) -> None:
    class Apache(AdminCaller):
        async def call(self, *_: object, **__: object) -> Any:
            return ["a:1"]

    from magnetar.admin_client.errors import AdminRefused
    from magnetar.cli.tools.brokers import list_brokers

    async with open_admin_api(AdminAccess(url=cluster[0].admin_url)) as api:
        with pytest.raises(AdminRefused, match="no Magnetar broker"):
            await list_brokers(Apache(api.url, api._client))


async def test_brokers_that_want_to_know_who_asks(tmp_path: Path) -> None:
    async with MemoryBroker(broker_settings()) as broker:

        async def listed(*options: str, code: int = 0, **environment: str) -> Result:
            variables = {"MAGNETAR_ADMIN_URL": broker.admin_url, "NO_COLOR": "1", **environment}
            result = await asyncio.to_thread(
                CliRunner().invoke, application, ["broker", "list", *options], env=variables
            )
            assert result.exit_code == code, result.output
            return result

        assert "--auth-plugin" in (await listed(code=1)).stderr
        nobody = await listed("--auth-plugin", "token", "--auth-params", token_of("somebody"), code=1)
        assert "superUserRoles" in nobody.stderr
        assert own_id(broker) in (await listed("--auth-plugin", "token", MAGNETAR_AUTH_PARAMS=token_of(ADMIN))).stdout
        file, conf = tmp_path / "token", tmp_path / "client.conf"
        file.write_text(token_of(ADMIN))
        conf.write_text(
            f"authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\nauthParams=file://{file}\n"
        )
        assert own_id(broker) in (await listed("--client-conf", str(conf))).stdout
        assert "--auth-plugin kerberos is not known" in (await listed("--auth-plugin", "kerberos", code=2)).stderr
