"""Three brokers over sessions on one tree: who is alive, who leads, where bundles go, and what the leader has done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.drain import BrokerDrainStep, DrainRefused
from magnetar.broker.load.operations import NotOwned, UnknownBroker
from magnetar.broker.load.registration import Registration, broker_path
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.resources import Documents, bundles_document
from magnetar.core.bundle import BundleName
from magnetar.core.errors import PeerError, SettingError
from magnetar.metadata.coordination import LockTaken
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore
from magnetar.metadata.sure_writes import ATTEMPTS_MAX

from broker.tests.fake_cluster import FakeCluster, bundles, owned_bundle, until


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    made = FakeCluster()
    yield made
    await made.close()


async def json_at(store: MetadataStore, path: str) -> Any:
    node = await store.get(path)
    assert node is not None
    return json.loads(node.value)


def addressed(host: str) -> BrokerAddresses:
    """A broker that calls itself b1:1."""
    return BrokerAddresses(
        broker_id="b1:1",
        service_url=f"pulsar://{host}:1",
        service_url_tls=None,
        web_service_url=None,
        web_service_url_tls=None,
    )


async def test_brokers_see_each_other_and_elect_one(cluster: FakeCluster) -> None:
    one, two, three = await cluster.start(1, 2, 3)
    assert one.load.leading
    assert not two.load.leading
    for broker in (one, two, three):
        assert sorted(broker.load.brokers()) == ["b1:1", "b2:2", "b3:3"]
        assert broker.load.leader() == one.addresses
        assert broker.load.registered
    assert await json_at(one.store, "/loadbalance/leader") == {"brokerId": "b1:1", "serviceUrl": "http://b1:1"}
    node = await one.store.get("/loadbalance/brokers/b2:2")
    assert node is not None
    assert node.stat.ephemeral
    assert BrokerReport.decode("b2:2", node.value).addresses == two.addresses


async def test_another_leads_when_the_leader_goes(cluster: FakeCluster) -> None:
    one, two, three = await cluster.start(1, 2, 3)
    await one.load.unregister()
    await until(lambda: two.load.leading or three.load.leading)
    await until(lambda: "b1:1" not in two.load.brokers())
    assert two.load.leader() == cluster.leader.addresses
    assert not one.load.registered
    assert (await one.load.load_report())["magnetar"] == {"draining": True}


EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"


async def test_beside_brokers_that_keep_owners_elsewhere_none_starts(cluster: FakeCluster) -> None:
    one = cluster.make_broker(1)
    path = broker_path("apache:8080")
    lookup_data = {"webServiceUrl": "http://apache:8080", "loadManagerClassName": EXTENSIBLE}
    await cluster.first_store.put(path, json.dumps(lookup_data).encode(), expected_version=MUST_NOT_EXIST)
    with pytest.raises(SettingError, match=r"apache:8080 of this cluster runs .*ExtensibleLoadManagerImpl"):
        await one.load.start()
    assert not await cluster.first_store.exists(broker_path(one.id))
    await cluster.first_store.delete(path)
    await cluster.by_id.pop(one.id).close()
    await cluster.start(2)


async def test_of_one_that_comes_later_the_log_warns(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = await cluster.start(1, 2)
    lookup_data = {"webServiceUrl": "http://apache:8080", "loadManagerClassName": EXTENSIBLE}
    for number in range(2):
        value = json.dumps({**lookup_data, "startTimestamp": number}).encode()
        await cluster.first_store.put(broker_path("apache:8080"), value)
    await until(lambda: "apache:8080" in one.load.brokers())
    await until(lambda: sum("both may serve a topic" in line for line in caplog.messages) == 2)
    placed = await one.load.place(bundles(1)[0])
    assert placed is not None
    assert placed.broker_id != "apache:8080"


async def test_a_lost_session_comes_back_registered(cluster: FakeCluster) -> None:
    one, two = await cluster.start(1, 2)
    told: list[bool] = []
    one.load.watch_registration(told.append)
    one.store.expire_session()
    await until(lambda: told == [False, True])
    await until(lambda: set(two.load.brokers()) == {"b1:1", "b2:2"} == set(one.load.brokers()))


async def test_a_leftover_of_this_very_broker_is_taken_over_at_once(cluster: FakeCluster) -> None:
    (one,) = await cluster.start(1)
    report = BrokerReport(one.addresses)
    again = Registration(cluster.first_store, lambda _: None)
    await again.register(report)
    assert again.registered
    await again.unregister()


async def test_another_broker_of_the_same_name_is_an_error(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.load.registration.RETRY_SECONDS", 0.0)
    await cluster.start(1)
    with pytest.raises(LockTaken):
        await Registration(cluster.first_store, lambda _: None).register(BrokerReport(addressed("x")))


async def test_who_lost_its_name_takes_it_again_though_answers_are_lost(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.load.registration.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("magnetar.metadata.sure_writes.PAUSE_SECONDS", 0.0)
    path, refused = broker_path("b1:1"), [False, 0]

    def fate(verb: str, at: str) -> RequestFate:
        if (verb, at) != ("put", path) or not refused[0]:
            return RequestFate.DONE
        refused[1] += 1
        return RequestFate.REFUSED

    ours, theirs = cluster.first_store.another_session(), cluster.first_store.another_session()
    registration = Registration(FaultyStore(ours, fate), lambda _: None)
    await registration.register(BrokerReport(addressed("ours")))
    refused[0] = True
    await theirs.delete(path)
    stranger = Registration(theirs, lambda _: None)
    await stranger.register(BrokerReport(addressed("theirs")))
    await until(lambda: not registration.registered)
    await stranger.unregister()
    asked = refused[1]
    await until(lambda: refused[1] > asked + 2 * ATTEMPTS_MAX)
    refused[0] = False
    await until(lambda: registration.registered)
    await registration.unregister()
    for session in (ours, theirs):
        await session.close()


async def test_reports_follow_what_is_owned(cluster: FakeCluster) -> None:
    one, two = await cluster.start(1, 2)
    one.bundles.update((bundle, owned_bundle()) for bundle in bundles(4))
    await until(lambda: len(two.load.directory.reports["b1:1"].bundles) == 4)
    document = await json_at(two.store, broker_path("b1:1"))
    assert document["numBundles"] == 4
    assert len(document["lastBundleGains"]) == 4


async def test_alone_a_broker_takes_everything(cluster: FakeCluster) -> None:
    (one,) = await cluster.start(1)
    assert await one.load.place(bundles(1)[0]) == one.addresses
    assert not one.load.several
    assert one.operations.decisions()["placements"] == []


async def test_a_burst_of_placements_spreads(cluster: FakeCluster) -> None:
    await cluster.start(1, 2, 3)
    leader = cluster.leader.load
    placed = await asyncio.gather(*(leader.place(bundle) for bundle in bundles(30)))
    counts = [sum(to is not None and to.broker_id == broker for to in placed) for broker in cluster.by_id]
    assert counts == [10, 10, 10]
    again = await asyncio.gather(*(leader.place(bundle) for bundle in bundles(30)))
    assert again == placed, "whoever asks again hears the same"
    log = cluster.leader.operations.decisions()["placements"]
    assert len(log) == 60
    assert all(entry["reason"] and entry["outcome"] == "done" for entry in log)


async def test_isolation_policies_hold(cluster: FakeCluster) -> None:
    await cluster.start(1, 2, 3)
    policy = {
        "namespaces": ["t/alone"],
        "primary": ["b2"],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }
    documents = Documents(cluster.first_store)
    await documents.put("/admin/clusters/c/namespaceIsolationPolicies", {"p": policy})
    leader = cluster.leader.load
    leader.balancing.reports_changed()
    for bundle in bundles(4, "t/alone"):
        placed = await leader.place(bundle)
        assert placed is not None
        assert placed.broker_id == "b2:2"
    for bundle in bundles(4, "t/other"):
        placed = await leader.place(bundle)
        assert placed is not None
        assert placed.broker_id != "b2:2"


async def test_an_expression_that_is_not_matched_is_told_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's brokers take it, and share the policies with ours."""
    await cluster.start(1)
    policy = {"namespaces": ["(?!t/other).*"], "primary": ["b2"]}
    await Documents(cluster.first_store).put("/admin/clusters/c/namespaceIsolationPolicies", {"p": policy})
    policies = cluster.leader.load.policies
    for _ in range(3):
        assert [each.governs("t/alone") for each in await policies.isolation_policies()] == [False]
    told = [record.getMessage() for record in caplog.records if "stands for its own text" in record.getMessage()]
    assert len(told) == 1
    assert "policy p '(?!t/other).*'" in told[0]


async def test_namespaces_that_must_not_meet_are_kept_apart(cluster: FakeCluster) -> None:
    await cluster.start(1, 2, 3)
    documents = Documents(cluster.first_store)
    for name in ("x", "y", "z"):
        local = {"bundles": bundles_document(1), "namespaceAntiAffinityGroup": "g"}
        await documents.put(f"/admin/local-policies/t/{name}", local)
    leader = cluster.leader.load
    owners = []
    for name in ("x", "y", "z"):
        placed = await leader.place(bundles(1, f"t/{name}")[0])
        assert placed is not None
        owners.append(placed.broker_id)
    assert sorted(owners) == ["b1:1", "b2:2", "b3:3"]


async def test_a_moved_bundle_is_placed_where_it_was_meant_to_go(cluster: FakeCluster) -> None:
    await cluster.start(1, 2, 3)
    leader = cluster.leader.load
    for bundle in bundles(6):
        leader.set_affinity(bundle, "b3:3")
        placed = await leader.place(bundle)
        assert placed is not None
        assert placed.broker_id == "b3:3"
    leader.set_affinity(bundles(1)[0], "gone:1")
    placed = await leader.place(bundles(1)[0])
    assert placed is not None


async def test_the_leader_balances_by_calls_to_the_owners(cluster: FakeCluster) -> None:
    _, two, three = await cluster.start(1, 2, 3)
    two.bundles.update((bundle, owned_bundle()) for bundle in bundles(12))
    leader = cluster.leader.load
    await until(lambda: len(leader.directory.reports["b2:2"].bundles) == 12)
    for _ in range(8):
        await leader.balancing.round()
        for broker in cluster.by_id.values():
            broker.load.renew_report()
        await until(cluster.reports_are_true)
    assert cluster.calls, leader.balancing.outlook
    assert {(method, url) for method, _, url, _ in cluster.calls} == {("PUT", "http://b2:2")}
    assert len(two.bundles) <= 6
    assert len(three.bundles) >= 3
    log = cluster.leader.operations.decisions()["decisions"]
    assert all(entry["reason"] and entry["outcome"] == "done" and entry["broker"] == "b2:2" for entry in log)
    metrics = {name: value for group in leader.load_balancing_metrics() for name, value in group["metrics"].items()}
    assert metrics["brk_lb_unload_bundle_total"] == len(cluster.calls)


HOUR_MS = 3_600_000


@pytest.mark.parametrize("wrong_ms", [-HOUR_MS, HOUR_MS])
async def test_a_clock_that_jumps_neither_freezes_nor_hurries_anything(cluster: FakeCluster, wrong_ms: int) -> None:
    _, two, _ = await cluster.start(1, 2, 3)
    leader = cluster.leader.load
    before = await leader.balancing.snapshot()
    cluster.clock.wrong_ms = wrong_ms
    two.bundles.update((bundle, owned_bundle()) for bundle in bundles(12))
    two.load.renew_report()
    # Without waiting for an hour that comes again.
    await until(lambda: len(leader.directory.reports["b2:2"].bundles) == 12)
    after = await leader.balancing.snapshot()
    assert 0 <= after.now_ms - before.now_ms < 60_000, "windows go by a clock that does not jump"
    for load in after.brokers.values():
        assert load.reported_ms is not None
        assert before.now_ms - 60_000 < load.reported_ms <= after.now_ms
    for _ in range(8):
        await leader.balancing.round()
        for broker in cluster.by_id.values():
            broker.load.renew_report()
        await until(cluster.reports_are_true)
    assert len(two.bundles) <= 6
    entries = cluster.leader.operations.decisions()["decisions"]
    assert all(0 <= entry["tookMillis"] < 60_000 for entry in entries)
    moved = [entry["bundle"] for entry in entries]
    assert len(set(moved)) == len(moved), "none twice within its window"


async def test_a_report_that_is_read_again_is_no_newer(cluster: FakeCluster) -> None:
    one, _ = await cluster.start(1, 2)
    seen = one.load.directory.reports["b2:2"].seen_seconds
    one.load.directory._stale.add("b2:2")
    await one.load.directory.refresh()
    assert one.load.directory.reports["b2:2"].seen_seconds == seen


async def test_idle_bundles_of_apaches_brokers_count_though_they_do_not_report_them(cluster: FakeCluster) -> None:
    one, two = await cluster.start(1, 2)
    apache = BrokerReport(cluster.make_broker(9).addresses)
    apache.bundles = [str(bundles(4)[0])]
    document = apache.document()
    del document["magnetar"]
    await Documents(cluster.first_store).put(broker_path("b9:9"), document)
    await Documents(cluster.first_store).put("/admin/local-policies/t/n", {"bundles": bundles_document(4)})
    cluster.by_id["b9:9"].bundles.update((bundle, owned_bundle()) for bundle in bundles(4)[:3])
    await until(lambda: "b9:9" in one.load.brokers())
    snapshot = await one.load.balancing.snapshot()
    assert set(snapshot.brokers["b9:9"].bundles) == set(bundles(4)[:3])
    assert not one.load.transfers("b9:9")
    assert one.load.transfers("b2:2")
    del two


async def test_what_fails_is_logged_and_tried_again(cluster: FakeCluster) -> None:
    _, two, _ = await cluster.start(1, 2, 3)
    two.bundles.update((bundle, owned_bundle()) for bundle in bundles(12))
    leader = cluster.leader.load
    await until(lambda: len(leader.directory.reports["b2:2"].bundles) == 12)
    cluster.refusing = True
    while not cluster.calls:
        await leader.balancing.round()
    entry = cluster.leader.operations.decisions()["decisions"][0]
    assert (entry["outcome"], entry["error"]) == ("failed", "try later")
    assert len(two.bundles) == 12


@pytest.mark.parametrize(
    "dynamic", [{"loadBalancerEnabled": "false"}, {"magnetarLoadBalanceDriver": "control"},
                {"loadBalancerSheddingEnabled": "false"}]
)  # fmt: skip
async def test_dynamic_settings_stop_the_leader(cluster: FakeCluster, dynamic: dict[str, str]) -> None:
    _, two, _ = await cluster.start(1, 2, 3)
    two.bundles.update((bundle, owned_bundle()) for bundle in bundles(12))
    leader = cluster.leader.load
    await until(lambda: len(leader.directory.reports["b2:2"].bundles) == 12)
    await Documents(cluster.first_store).put("/admin/configuration", dynamic)
    for _ in range(6):
        await leader.balancing.round()
    assert cluster.calls == []


async def test_the_leader_stores_averages(cluster: FakeCluster) -> None:
    one, two = await cluster.start(1, 2)
    two.bundles.update((bundle, owned_bundle()) for bundle in bundles(2))
    await until(lambda: len(one.load.directory.reports["b2:2"].bundles) == 2)
    await one.load.balancing.round()
    await one.load.balancing.store_averages()
    name = str(bundles(2)[0])
    assert await json_at(one.store, f"/loadbalance/bundle-data/{name}") == {
        "shortTermData": average(10),
        "longTermData": average(1000),
        "topics": 0,
    }
    broker = await json_at(one.store, "/loadbalance/broker-time-average/b2:2")
    assert list(broker) == [
        "shortTermMsgThroughputIn", "shortTermMsgThroughputOut", "shortTermMsgRateIn", "shortTermMsgRateOut",
        "longTermMsgThroughputIn", "longTermMsgThroughputOut", "longTermMsgRateIn", "longTermMsgRateOut",
    ]  # fmt: skip
    two.bundles.clear()
    await two.load.unregister()
    await until(lambda: "b2:2" not in one.load.directory.reports)
    await one.load.balancing.round()
    await one.load.balancing.store_averages()
    assert not await one.store.exists(f"/loadbalance/bundle-data/{name}")
    assert not await one.store.exists("/loadbalance/broker-time-average/b2:2")


def average(samples_max: int) -> dict[str, float]:
    return {
        "maxSamples": samples_max, "numSamples": 1, "msgThroughputIn": 0.0, "msgThroughputOut": 0.0, "msgRateIn": 0.0,
        "msgRateOut": 0.0,
    }  # fmt: skip


async def test_brokers_are_seen_again_after_the_store_refused_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.load.broker_directory.RETRY_SECONDS", 0.001)
    (one,) = await cluster.start(1)
    children = one.store.children
    refusals = iter([PeerError("ZooKeeper refused a request")])

    async def refuse_once(path: str) -> list[str]:
        for refusal in refusals:
            raise refusal
        return await children(path)

    monkeypatch.setattr(one.store, "children", refuse_once)
    await cluster.start(2)
    assert set(one.load.brokers()) == {"b1:1", "b2:2"}


# --- drains


async def test_a_drained_broker_owns_nothing_and_gets_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.load.drain.RETRY_SECONDS", 0.001)
    one, two, three = await cluster.start(1, 2, 3)
    one.bundles.update((bundle, owned_bundle()) for bundle in bundles(10))
    named = BundleName.parse("pulsar/b1:1/0x00000000_0xffffffff")
    one.bundles[named] = owned_bundle()
    stuck = bundles(10)[3]
    one.stuck.add(stuck)
    state = await one.operations.drain()
    assert (state.step, state.bundles_total, state.bundles_left) == (BrokerDrainStep.RUNNING, 10, 10)
    assert await one.operations.drain() == state, "asking again is no error"
    await until(lambda: one.operations.drain_state().bundles_left == 1)
    await until(lambda: one.operations.drain_state().blockers == ((str(stuck), "it is stuck"),))
    one.stuck.clear()
    await until(lambda: one.operations.drain_state().step is BrokerDrainStep.DONE)
    assert set(one.bundles) == {named}
    assert (len(two.bundles), len(three.bundles)) == (5, 5)
    await until(lambda: set(two.load.brokers()) == {"b2:2", "b3:3"})
    assert cluster.leader is not one


async def test_what_comes_late_is_drained_too(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader may have sent a client here with the flag before it knew."""
    monkeypatch.setattr("magnetar.broker.load.drain.RETRY_SECONDS", 0.001)
    one, two = await cluster.start(1, 2)
    first, late = bundles(2)
    one.bundles[first] = owned_bundle()
    await asyncio.gather(one.operations.drain(), one.operations.drain())
    await until(lambda: one.operations.drain_state().step is BrokerDrainStep.DONE)
    one.bundles[late] = owned_bundle()
    assert one.operations.drain_state().step is BrokerDrainStep.RUNNING
    await until(lambda: one.operations.drain_state().step is BrokerDrainStep.DONE)
    assert set(two.bundles) == {first, late}
    await one.operations.cancel_drain()
    one.bundles[late] = owned_bundle()
    await asyncio.sleep(0.01)
    assert late in one.bundles


async def test_a_drain_keeps_what_nobody_else_can_take(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.load.drain.RETRY_SECONDS", 0.001)
    one, two = await cluster.start(1, 2)
    (bundle,) = bundles(1)
    one.bundles[bundle] = owned_bundle()
    one.stuck.add(bundle)
    await one.operations.drain()
    await two.load.unregister()
    await until(lambda: not one.load.brokers())
    one.stuck.clear()
    await until(lambda: one.operations.drain_state().blockers == ((str(bundle), "no broker may take it"),))
    assert bundle in one.bundles
    await two.load.register()
    await until(lambda: bundle in two.bundles)


async def test_a_cancelled_drain_keeps_what_is_left(cluster: FakeCluster) -> None:
    one, two = await cluster.start(1, 2)
    one.bundles.update((bundle, owned_bundle()) for bundle in bundles(3))
    one.stuck.update(one.bundles)
    await one.operations.drain()
    assert not one.load.registered
    assert (await one.operations.cancel_drain()).step is BrokerDrainStep.NONE
    assert len(one.bundles) == 3
    await until(lambda: set(two.load.brokers()) == {"b1:1", "b2:2"})


async def test_the_last_broker_is_not_drained(cluster: FakeCluster) -> None:
    (one,) = await cluster.start(1)
    with pytest.raises(DrainRefused, match="no other broker"):
        await one.operations.drain()
    assert one.load.registered


# --- operations


async def test_bundles_are_handed_over_by_their_owner_only(cluster: FakeCluster) -> None:
    one, two = await cluster.start(1, 2)
    bundle, other = bundles(2)
    one.bundles[bundle] = owned_bundle()
    with pytest.raises(NotOwned):
        await one.operations.unload(other)
    with pytest.raises(UnknownBroker):
        await one.operations.transfer(bundle, "b9:9")
    await one.operations.split(bundle, "", [], unload=True)
    assert one.splits == [(bundle, "range_equally_divide", None, True)]
    assert [(row.name, row.state) for row in await one.operations.bundles()] == [(str(bundle), "ACTIVE")]
    await one.operations.transfer(bundle, "b1:1")
    assert bundle in one.bundles
    await one.operations.transfer(bundle, "b2:2")
    assert bundle in two.bundles


async def test_the_driver_is_the_clusters(cluster: FakeCluster) -> None:
    one, two = await cluster.start(1, 2)
    assert await one.operations.driver() == "leader"
    await one.operations.set_driver("control")
    assert await two.operations.driver() == "control"
    await two.operations.set_driver("leader")
    assert await json_at(one.store, "/admin/configuration") == {"magnetarLoadBalanceDriver": "leader"}
