from collections.abc import Mapping

import pytest
from magnetar.balance.balancer import Balancer
from magnetar.balance.isolation import IsolationPolicy, host_of
from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.balance.settings import BalanceSettings
from magnetar.core.bundle import BundleName

BUNDLE = BundleName.parse("public/default/0x00000000_0x40000000")


def broker(
    broker_id: str,
    *,
    bundles: Mapping[str, BundleLoad] | None = None,
    cpu: float = 0.0,
    draining: bool = False,
    persistent: bool = True,
    version: str = "4.0.8",
) -> BrokerLoad:
    return BrokerLoad(
        broker_id=f"{broker_id}:8080",
        usages=ResourceUsages(cpu=cpu),
        bundles={BundleName.parse(name): load for name, load in (bundles or {}).items()},
        draining=draining,
        persistent_topics=persistent,
        version=version,
    )


def snapshot(
    *brokers: BrokerLoad,
    policies: tuple[IsolationPolicy, ...] = (),
    groups: Mapping[str, str] | None = None,
    domains: Mapping[str, str] | None = None,
) -> LoadSnapshot:
    return LoadSnapshot(
        now_ms=0,
        brokers={one.broker_id: one for one in brokers},
        isolation_policies=policies,
        anti_affinity_groups=groups or {},
        failure_domains={f"{name}:8080": domain for name, domain in (domains or {}).items()},
    )


def chosen(view: LoadSnapshot, settings: BalanceSettings | None = None, bundle: BundleName = BUNDLE) -> str | None:
    placement = Balancer(settings or BalanceSettings()).place(bundle, view)
    assert placement.reason
    return None if placement.broker_id is None else host_of(placement.broker_id)


def full(namespace: str = "public/other", count: int = 1) -> dict[str, BundleLoad]:
    return {f"{namespace}/0x{index:08x}_0x{index + 1:08x}": BundleLoad(msg_rate_in=500) for index in range(count)}


POLICY = IsolationPolicy(
    name="tenants", namespaces=("public/.*",), primary=("p[0-9]",), secondary=("s[0-9]",), primaries_min=1
)


def test_a_policys_primaries_serve_its_namespaces_and_no_others() -> None:
    cluster = snapshot(broker("p1", bundles=full(count=3)), broker("s1"), broker("x"), policies=(POLICY,))
    assert chosen(cluster) == "p1"
    other = BundleName.parse("elsewhere/ns/0x00000000_0xffffffff")
    idle_primary = snapshot(broker("p1"), broker("s1", bundles=full()), policies=(POLICY,))
    assert chosen(idle_primary, bundle=other) == "s1"


def test_secondaries_help_when_too_few_primaries_are_left() -> None:
    assert chosen(snapshot(broker("s1"), broker("x"), policies=(POLICY,))) == "s1"
    assert chosen(snapshot(broker("x"), policies=(POLICY,))) is None


def test_a_primary_that_is_too_full_does_not_count_as_available() -> None:
    policy = IsolationPolicy(
        name="t",
        namespaces=("public/default",),
        primary=("p1",),
        secondary=("s1",),
        primaries_min=1,
        usage_threshold=80,
    )
    assert chosen(snapshot(broker("p1", cpu=81), broker("s1"), policies=(policy,))) == "s1"
    assert chosen(snapshot(broker("p1", cpu=79), broker("s1"), policies=(policy,))) == "p1"
    assert chosen(snapshot(broker("p1", cpu=81), broker("x"), policies=(policy,))) == "p1"


def test_an_expression_that_cannot_be_read_stands_for_itself() -> None:
    policy = IsolationPolicy(name="t", namespaces=("public/(",), primary=("p1",))
    assert policy.governs("public/(")
    assert not policy.governs("public/default")


def test_draining_brokers_and_those_without_the_kind_of_topic_are_out() -> None:
    cluster = snapshot(broker("a", draining=True), broker("b", persistent=False), broker("c", bundles=full(count=9)))
    assert chosen(cluster) == "c"
    nothing = Balancer(BalanceSettings()).place(BUNDLE, snapshot(broker("a", draining=True)))
    assert nothing.broker_id is None
    assert nothing.reason == "none of 1 brokers may take it"


def test_kinds_of_topics_are_told_apart() -> None:
    cluster = snapshot(broker("a", persistent=False), broker("b", bundles=full(count=3)))
    placement = Balancer(BalanceSettings()).place(BUNDLE, cluster, non_persistent=True)
    assert placement.broker_id == "a:8080"


def test_brokers_with_too_many_topics_are_taken_only_if_all_have() -> None:
    crowd = {str(BUNDLE).replace("default", "crowd"): BundleLoad(topics=50_001)}
    settings = BalanceSettings()
    assert chosen(snapshot(broker("a", bundles=crowd), broker("b", bundles=full(count=2_000))), settings) == "b"
    assert chosen(snapshot(broker("a", bundles=crowd)), settings) == "a"


def test_anti_affinity_takes_the_broker_with_the_fewest_namespaces_of_the_group() -> None:
    groups = {"public/default": "g", "public/other": "G"}
    cluster = snapshot(broker("a", bundles=full()), broker("b", bundles=full("x/y", 5)), groups=groups)
    assert chosen(cluster) == "b"


@pytest.mark.parametrize(("enabled", "expected"), [(False, "b"), (True, "c")])
def test_failure_domains_come_before_brokers_if_they_count(enabled: bool, expected: str) -> None:
    groups = {"public/default": "g", "public/other": "g"}
    cluster = snapshot(
        broker("a", bundles=full()),
        broker("b"),
        broker("c", bundles=full("x/y", 5)),
        groups=groups,
        domains={"a": "d1", "b": "d1", "c": "d2"},
    )
    assert chosen(cluster, BalanceSettings(failure_domains_enabled=enabled)) == expected


@pytest.mark.parametrize(
    ("versions", "expected"),
    [(("4.0.8", "4.1.0"), "b"), (("4.1.0-SNAPSHOT", "4.1.0"), "b"), (("4.0.8", "strange"), "a")],
)
def test_later_versions_are_preferred_if_all_can_be_read(versions: tuple[str, str], expected: str) -> None:
    cluster = snapshot(broker("a", version=versions[0]), broker("b", bundles=full(), version=versions[1]))
    assert chosen(cluster, BalanceSettings(prefer_later_versions=True)) == expected


def test_heartbeats_stay_with_the_broker_that_they_are_named_after() -> None:
    heartbeat = BundleName.parse("pulsar/b:8080/0x00000000_0xffffffff")
    cluster = snapshot(broker("a"), broker("b", bundles=full(), draining=True))
    assert chosen(cluster, bundle=heartbeat) == "b"
    assert chosen(snapshot(broker("a")), bundle=heartbeat) is None
