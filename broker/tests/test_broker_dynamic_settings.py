"""Settings of the whole cluster change while brokers run."""

from __future__ import annotations

import asyncio
import json
import re
import typing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.dynamic import PATH, DynamicPart, DynamicSettings, NotDynamic
from magnetar.broker.settings.load import SWITCHES
from magnetar.broker.settings.names import SETTINGS
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.core.errors import PeerError, SettingError
from magnetar.core.setting import Row
from magnetar.core.settings_file import kind_of, range_of
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import Node
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

ROOT = Path(__file__).parents[2]
CONFIGURATION = "/admin/v2/brokers/configuration"


async def started(
    store: MemoryMetadataStore, applied: list[BrokerSettings]
) -> tuple[DynamicSettings, DynamicPart[BrokerSettings]]:
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    part = DynamicPart(BrokerSettings, applied.append)
    dynamic = DynamicSettings(store, spawn, part)
    await dynamic.start()
    return dynamic, part


async def test_every_name_is_a_setting() -> None:
    async with MemoryBroker() as broker:
        names = broker.running.context.dynamic.names()
    known = {name for row in SETTINGS.rows if row.dynamic for name in row.names}
    assert set(names) == known
    assert set(SWITCHES) < known
    assert len(names) == 120, "of the 154 that Pulsar has, those that do something here, and our own"


def test_the_page_names_every_dynamic_setting_that_is_refused() -> None:
    """As Apache's broker 4.0.8 listed them when it was recorded."""
    recorded = json.loads((ROOT / "e2e/local/expected/pulsar_admin.json").read_text(encoding="utf-8"))
    (apaches,) = [set(one["output"]) for one in recorded if one["command"] == "brokers list-dynamic-config"]
    ours = {name for row in SETTINGS.rows if row.dynamic for name in row.names}
    page = (ROOT / "docs/COMPATIBILITY.md").read_text(encoding="utf-8")
    section = page.partition("### Dynamic settings that are refused\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", section, re.MULTILINE)
    named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(named) == sorted(apaches - ours)
    assert all(len(reason) > 10 for _, reason in rows)
    counts = re.search(r"(\d+) of\n  the (\d+) that Apache's broker has hold at once .*; (\d+) are\n", page)
    assert counts is not None
    assert [int(count) for count in counts.groups()] == [len(apaches & ours), len(apaches), len(named)]


async def test_what_was_set_before_and_what_others_set() -> None:
    tree = MemoryTree()
    here, there = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    await there.put(PATH, b'{"maxTenants":"3","ofApachesAlone":"x"}')
    applied: list[BrokerSettings] = []
    dynamic, part = await started(here, applied)
    assert [settings.admin.tenants_max for settings in applied] == [3]
    await there.put(PATH, b'{"maxTenants":"4"}')
    await until(lambda: part.current.admin.tenants_max == 4)
    await there.delete(PATH)
    await until(lambda: part.current == BrokerSettings())
    dynamic.close()
    await there.put(PATH, b'{"maxTenants":"5"}')
    await asyncio.sleep(0)
    assert part.current == BrokerSettings()


async def test_set_and_remove() -> None:
    store = MemoryMetadataStore()
    await store.put(PATH, b'{"ofApachesAlone":"x"}')
    applied: list[BrokerSettings] = []
    dynamic, part = await started(store, applied)
    await dynamic.set("maxTenants", "3")
    assert part.current.admin.tenants_max == 3
    assert await dynamic.values() == {"ofApachesAlone": "x", "maxTenants": "3"}
    await dynamic.remove("maxTenants")
    await dynamic.remove("maxTenants")
    assert await dynamic.values() == {"ofApachesAlone": "x"}
    assert [settings.admin.tenants_max for settings in applied] == [3, 0]
    await dynamic.set("loadBalancerSheddingEnabled", "false")
    for name in ("clusterName", "nonsense"):
        with pytest.raises(NotDynamic):
            await dynamic.set(name, "1")
        with pytest.raises(NotDynamic):
            await dynamic.remove(name)
    for name, value in (("maxTenants", "many"), ("loadBalancerSheddingEnabled", "perhaps")):
        with pytest.raises(SettingError):
            await dynamic.set(name, value)
    dynamic.close()


async def test_the_first_setting_makes_the_node() -> None:
    store = MemoryMetadataStore()
    dynamic, _part = await started(store, [])
    await dynamic.set("maxTenants", "3")
    node = await store.get(PATH)
    assert node is not None
    assert json.loads(node.value) == {"maxTenants": "3"}
    dynamic.close()


async def test_nonsense_that_somebody_wrote_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryMetadataStore()
    await store.put(PATH, b'{"maxTenants":"many","maxTopicsPerNamespace":"9"}')
    dynamic, part = await started(store, [])
    assert part.current.admin.tenants_max == 0
    assert part.current.policies.topics_per_namespace_max == 9
    assert "maxTenants" in caplog.text
    dynamic.close()


async def test_over_http_and_in_effect(admin: Any, client: ProtocolClient) -> None:
    await admin.check(
        ("GET", CONFIGURATION, None, 200, admin.broker.running.context.dynamic.names()),
        ("GET", CONFIGURATION + "/values", None, 200, {}),
        ("POST", CONFIGURATION + "/clusterName/x", None, 412, "non-dynamic"),
        ("POST", CONFIGURATION + "/maxTenants/many", None, 412, "Invalid dynamic-config value"),
        ("DELETE", CONFIGURATION + "/clusterName", None, 412, "non-dynamic"),
        ("POST", CONFIGURATION + "/allowAutoTopicCreation/false", None, 200, None),
        ("GET", CONFIGURATION + "/values", None, 200, {"allowAutoTopicCreation": "false"}),
    )
    status, runtime = await admin("GET", CONFIGURATION + "/runtime")
    assert status == 200
    assert runtime["allowAutoTopicCreation"] == "false"
    refused = await client.request(pb.BaseCommand.PRODUCER, topic="t", producer_id=1)
    assert refused.body.error == pb.TopicNotFound
    await admin.check(("DELETE", CONFIGURATION + "/allowAutoTopicCreation", None, 200, None))
    await client.producer("t")
    await admin.check(
        ("POST", CONFIGURATION + "/maxTenants/2", None, 200, None),
        ("PUT", "/admin/v2/tenants/t", {"allowedClusters": ["standalone"]}, 412, "maximum number of tenants"),
        ("POST", CONFIGURATION + "/maxNamespacesPerTenant/1", None, 200, None),
        ("PUT", "/admin/v2/namespaces/public/a", None, 204, None),
        ("PUT", "/admin/v2/namespaces/public/b", None, 412, "maximum number of namespace"),
        ("POST", CONFIGURATION + "/defaultNumberOfNamespaceBundles/1", None, 200, None),
        ("PUT", "/admin/v2/namespaces/pulsar/one", None, 204, None),
    )
    _, bundles = await admin("GET", "/admin/v2/namespaces/pulsar/one/bundles")
    assert bundles["numBundles"] == 1


async def test_where_the_metadata_is(admin: Any, memory_broker: MemoryBroker) -> None:
    await memory_broker.store.put("/ledgers/available/b1:3181", b"")
    await memory_broker.store.put("/ledgers/available/readonly/b2:3181", b"")
    await admin.check(
        ("GET", "/admin/v2/bookies/all", None, 200, {"bookies": [{"bookieId": "b1:3181"}, {"bookieId": "b2:3181"}]}),
        (
            "GET",
            "/admin/v2/brokers/internal-configuration",
            None,
            200,
            {
                "zookeeperServers": "",
                "configurationStoreServers": "",
                "metadataStoreUrl": "",
                "configurationMetadataStoreUrl": "",
                "ledgersRootPath": "/ledgers",
            },
        ),
    )


@pytest.mark.parametrize("value", [b"[]", b"{", b"5", b'"x"', b"\xff", b"[" * 100_000])
async def test_a_node_that_makes_no_sense_sets_nothing(value: bytes) -> None:
    store = MemoryMetadataStore()
    await store.put(PATH, value)
    applied: list[BrokerSettings] = []
    dynamic, part = await started(store, applied)
    assert applied == []
    with pytest.raises(PeerError, match=PATH):
        await dynamic.set("maxTenants", "5")
    await store.put(PATH, b'{"maxTenants":"3"}')
    await until(lambda: part.current.admin.tenants_max == 3)
    await store.put(PATH, value)
    await asyncio.sleep(0.01)
    assert part.current.admin.tenants_max == 3
    dynamic.close()
    await store.close()


class SlowStore(MemoryMetadataStore):
    """Answers the second read of all last of all."""

    reads = 0

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        self.reads += 1
        node = await super().get(path, watch=watch)
        if self.reads == 2:
            await asyncio.sleep(0.02)
        return node


async def test_an_answer_that_comes_late_is_not_the_last_word() -> None:
    """Answers of a remote store may overtake each other."""
    store = SlowStore()
    dynamic, part = await started(store, [])
    await store.put(PATH, b'{"maxTenants":"3"}')
    await asyncio.sleep(0)
    await store.put(PATH, b'{"maxTenants":"4"}')
    await until(lambda: part.current.admin.tenants_max == 4)
    await asyncio.sleep(0.05)
    assert part.current.admin.tenants_max == 4
    dynamic.close()
    await store.close()


def unfit(row: Row) -> list[str]:
    """Values that a setting cannot have: of another type, of no member, out of its range."""
    kind = kind_of(row)
    if kind is str and row.words is None and row.read is None:
        return []
    if typing.get_origin(kind) is tuple:
        return []
    found = ["nonsense"]
    bounds = range_of(row, row.name)
    if bounds is not None:
        found += [str(int(bounds[1]) + 1), "1" + "0" * 30, "1,5", "nan"]
        if row.below_zero is None:
            found.append(str(int(bounds[0]) - 1))
    return found


async def test_what_a_setting_cannot_be_is_refused_and_changes_nothing(admin: Any) -> None:
    dynamic = admin.broker.running.context.dynamic
    tried = 0
    for row in SETTINGS.rows:
        if not row.dynamic:
            continue
        for value in unfit(row):
            status, told = await admin("POST", f"{CONFIGURATION}/{row.name}/{quote(value, safe='')}")
            assert (status, "Invalid dynamic-config value" in str(told)) == (412, True), (row.name, value, told)
            tried += 1
    assert tried > 250
    assert await dynamic.values() == {}
    await admin.check(
        ("POST", CONFIGURATION + "/defaultNumPartitions/3", None, 200, None),
        ("POST", CONFIGURATION + "/defaultNumPartitions/0", None, 412, "from 1 to"),
        ("GET", CONFIGURATION + "/values", None, 200, {"defaultNumPartitions": "3"}),
    )
    assert admin.broker.service.settings.auto_creation.default_partitions == 3


async def test_a_setting_that_is_deleted_goes_back_to_the_brokers_file() -> None:
    settings = BrokerSettings(admin=AdminSettings(tenants_max=7))
    async with MemoryBroker(settings) as broker, aiohttp.ClientSession() as session:
        url = f"{broker.admin_url}{CONFIGURATION}"
        for verb, path, found in (("POST", "/maxTenants/9", "9"), ("DELETE", "/maxTenants", "7")):
            async with session.request(verb, url + path) as answer:
                assert answer.status == 200
            async with session.get(url + "/runtime") as answer:
                assert (await answer.json())["maxTenants"] == found
            assert broker.service.settings.admin.tenants_max == int(found)
        async with session.get(url + "/values") as answer:
            assert await answer.json() == {}
