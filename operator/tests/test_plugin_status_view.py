"""What `kubectl pulsar status` draws, as text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from magnetar.operator.plugin.drawing import ASCII
from magnetar.operator.plugin.parse import OtherVersion, cluster_view
from magnetar.operator.plugin.status_view import Drawing, draw_overview, draw_status
from operator_fakes.plugin_fakes import (
    CREATED_SECONDS,
    cluster_manifest,
    condition,
    crashing,
    pod_manifest,
    pool_manifest,
)
from rich.console import Console, RenderableType

NOW = CREATED_SECONDS + 3600


def text(shown: RenderableType, width: int = 120) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=width, highlight=False).print(shown)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def part(ready: int, desired: int, message: str = "", updated: int | None = None) -> dict[str, Any]:
    return {
        "replicas": ready,
        "readyReplicas": ready,
        "updatedReplicas": ready if updated is None else updated,
        "desiredReplicas": desired,
        "message": message,
    }


def status(**changes: Any) -> dict[str, Any]:
    return {
        "observedGeneration": 3,
        "phase": "Ready",
        "version": "1.2.0",
        "serviceUrl": "pulsar://demo-proxy.messaging.svc:6650",
        "webServiceUrl": "http://demo-proxy.messaging.svc:8080",
        "zookeeper": part(1, 1),
        "bookies": part(3, 3),
        "brokers": part(1, 1),
        "proxies": part(1, 1),
        "brokerMembers": [{"name": "demo-broker-x", "state": "Ready", "bundles": 1, "loadPercent": 41}],
        "conditions": [
            condition("Ready", "True", "AllReady", "all is well"),
            condition("Reconciling", "False", "Settled"),
            condition("Stalled", "False", "GetsOn"),
            condition("Paused", "False", "Active", "the operator looks after the cluster"),
        ],
        **changes,
    }


def members(*found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"observedGeneration": 1, "readyReplicas": 3, "writableReplicas": 3, "members": list(found), **changes}


PODS = [
    pod_manifest("demo-zookeeper-0", "zookeeper"),
    pod_manifest("demo-bookie-0", "bookie", pool="demo"),
    pod_manifest("demo-bookie-2", "bookie", pool="demo"),
    pod_manifest("demo-bookie-10", "bookie", pool="demo"),
    pod_manifest("demo-broker-x", "broker"),
    pod_manifest("demo-proxy-y", "proxy"),
]
WRITABLE = [
    {"name": f"demo-bookie-{number}", "state": "Writable", "diskUsagePercent": disk}
    for number, disk in ((0, 34), (10, 7), (2, 91))
]


def test_a_cluster_that_is_well() -> None:
    view = cluster_view(cluster_manifest(status=status()), [pool_manifest(status=members(*WRITABLE))], PODS)
    assert (
        text(draw_status(view, Drawing(now_seconds=NOW)))
        == """\
● demo  Ready · namespace messaging · version 1.2.0 · 60m
  clients pulsar://demo-proxy.messaging.svc:6650
  admin   http://demo-proxy.messaging.svc:8080
├── ● ZooKeeper  1/1 ready
│   └── ● demo-zookeeper-0  Ready
├── ● bookies  3/3 ready, 3 writable
│   ├── ● demo-bookie-0   Writable     disk ███░░░░░░░  34 %
│   ├── ● demo-bookie-2   Writable     disk █████████░  91 %
│   └── ● demo-bookie-10  Writable     disk █░░░░░░░░░   7 %
├── ● brokers  1/1 ready
│   └── ● demo-broker-x  Ready        load ████░░░░░░  41 %  1 bundle
└── ● proxies  1/1 ready
    └── ● demo-proxy-y  Ready"""
    )


def troubled() -> RenderableType:
    found = status(
        phase="Stalled",
        bookies=part(2, 3),
        brokers=part(1, 2, "waits for pool demo", updated=0),
        proxies=part(0, 1, "proxies start once a broker is ready"),
        conditions=[
            condition("Ready", "False", "BookiesNotReady", "2 of 3 bookies are ready"),
            condition("Stalled", "True", "WrongVolume", "demo-bookie-2 has another bookie's volume: give its own back"),
            condition("Reconciling", "True", "RollingOut", "brokers: waits for pool demo"),
            condition("ProxiesReady", "False", "Waiting", "proxies start once a broker is ready"),
        ],
    )
    drain = {"step": "Replicate", "ledgersTotal": 200, "ledgersLeft": 60, "bytesPerSecond": 12 << 20}
    pool = members(
        {"name": "demo-bookie-0", "state": "Draining", "diskUsagePercent": 50, "drain": drain},
        {"name": "demo-bookie-2", "state": "WrongVolume", "message": "the volume is another bookie's"},
        {"name": "demo-bookie-10", "state": "Writable", "diskUsagePercent": 7},
        writableReplicas=1,
    )
    pods = [
        *(pod for pod in PODS if pod["metadata"]["name"] not in ("demo-bookie-2", "demo-proxy-y")),
        pod_manifest("demo-bookie-2", "bookie", pool="demo", ready=False, status=crashing(4)),
        pod_manifest("demo-proxy-y", "proxy", ready=False, status=crashing(1, "first\nno such setting: nonsense\n")),
        pod_manifest("demo-proxy-z", "proxy", ready=False, status=crashing(1, "no such setting: nonsense")),
    ]
    events = [
        event("Warning", "WrongVolume", "PulsarCluster", "demo", "demo-bookie-2 is refused", minutes=50, count=3),
        event("Normal", "Scheduled", "Pod", "demo-proxy-y", "assigned to a node", minutes=59),
        event("Warning", "BackOff", "Pod", "demo-proxy-y", "Back-off  restarting\nfailed container", minutes=58),
        event("Warning", "Failed", "Pod", "other", "not ours", minutes=59),
    ]
    view = cluster_view(cluster_manifest(status=found), [pool_manifest(status=pool)], pods, events)
    return draw_status(view, Drawing(now_seconds=NOW, remaining_seconds={"demo-bookie-0": 200.0}))


def event(type_: str, reason: str, kind: str, name: str, message: str, *, minutes: int, count: int = 1) -> Any:
    return {
        "type": type_,
        "reason": reason,
        "involvedObject": {"kind": kind, "name": name},
        "message": message,
        "count": count,
        "lastTimestamp": f"2026-11-21T10:{minutes}:00Z",
    }


def test_a_cluster_in_trouble() -> None:
    assert (
        text(troubled())
        == """\
✗ demo  Stalled · namespace messaging · version 1.2.0 · 60m
  clients pulsar://demo-proxy.messaging.svc:6650
  admin   http://demo-proxy.messaging.svc:8080
├── ● ZooKeeper  1/1 ready
│   └── ● demo-zookeeper-0  Ready
├── ◐ bookies  2/3 ready, 1 writable
│   ├── ◐ demo-bookie-0   Draining     disk █████░░░░░  50 %
│   │     drain ██████████████░░░░░░  70 %  Replicate  60 of 200 ledgers left  12.0 MiB/s  about 3m20s more
│   ├── ✗ demo-bookie-2   WrongVolume  CrashLoopBackOff  restarted 4 times, 60s ago
│   │     the volume is another bookie's
│   └── ● demo-bookie-10  Writable     disk █░░░░░░░░░   7 %
├── ◐ brokers  1/2 ready  1 not up to date yet; waits for pool demo
│   └── ● demo-broker-x  Ready        load ████░░░░░░  41 %  1 bundle
└── ✗ proxies  0/1 ready  proxies start once a broker is ready
    ├── ✗ demo-proxy-y  CrashLoopBackOff  restarted 4 times, 60s ago
    │     no such setting: nonsense
    └── ✗ demo-proxy-z  CrashLoopBackOff  restarted 4 times, 60s ago
          as demo-proxy-y

Conditions
◐ not Ready (BookiesNotReady) 2 of 3 bookies are ready
✗ Stalled (WrongVolume)       demo-bookie-2 has another bookie's volume: give its own back

Events
10m  WrongVolume  demo-bookie-2 is refused (3 times)
 2m  BackOff      demo-proxy-y: Back-off restarting failed container"""
    )


def test_several_pools_and_what_the_cluster_does_not_run_itself() -> None:
    spec = {"metadata": {"url": "zk:zk.example:2181/pulsar"}, "proxy": {"replicas": 0}, "paused": True}
    found = status(zookeeper=part(0, 0), proxies=part(0, 0))
    pools = [
        pool_manifest(status=members(WRITABLE[0], phase="Ready")),
        pool_manifest("demo-cold", status=members({"name": "demo-cold-bookie-0", "state": "Down"}, readyReplicas=0)),
    ]
    view = cluster_view(cluster_manifest(spec=spec, status=found), pools, PODS[1:2] + PODS[4:5])
    shown = text(draw_status(view, Drawing(now_seconds=NOW)))
    assert "paused (`kubectl pulsar resume demo` ends that)" in shown
    assert "○ metadata  zk:zk.example:2181/pulsar" in shown
    assert "◐ pool demo  3/3 ready, 3 writable  Ready" in shown.replace("●", "◐")
    assert "✗ pool demo-cold  0/3 ready" in shown
    assert "proxies" not in shown


def test_what_sleeps_is_not_broken() -> None:
    down = {"name": "demo-bookie-0", "state": "Down", "message": "hibernated"}
    found = status(phase="Hibernated", bookies=part(0, 0), conditions=[condition("Ready", "False", "Hibernated")])
    pools = [pool_manifest(status=members(down, readyReplicas=0, writableReplicas=0))]
    view = cluster_view(cluster_manifest(spec={"hibernated": True}, status=found), pools)
    shown = text(draw_status(view, Drawing(now_seconds=NOW)))
    assert "hibernated (`kubectl pulsar wake demo` ends that)" in shown
    assert "○ demo-bookie-0  Down" in shown


@pytest.mark.parametrize(
    ("found", "age_seconds", "words"),
    [
        ({}, 100, "no operator has looked at it"),
        ({}, 10, ""),
        (status(observedGeneration=2), 10, "the latest change is not seen yet"),
        (status(), 10, ""),
    ],
)
def test_an_operator_that_does_not_look_is_missed(found: dict[str, Any], age_seconds: float, words: str) -> None:
    view = cluster_view(cluster_manifest(status=found))
    shown = text(draw_status(view, Drawing(now_seconds=CREATED_SECONDS + age_seconds)))
    assert (words in shown) if words else ("Operator" not in shown)


def test_terminals_without_unicode() -> None:
    view = cluster_view(cluster_manifest(status=status()), [pool_manifest(status=members(*WRITABLE))], PODS)
    shown = text(draw_status(view, Drawing(now_seconds=NOW, signs=ASCII)))
    assert "+ demo-bookie-2   Writable     disk #########." in shown


def test_pods_without_any_status_of_the_operator() -> None:
    pods = [pod_manifest("demo-bookie-1", "bookie", pool="demo", ready=False, status=crashing(3))]
    view = cluster_view(cluster_manifest(), [pool_manifest()], pods)
    shown = text(draw_status(view, Drawing(now_seconds=NOW)))
    assert "✗ demo-bookie-1  CrashLoopBackOff  restarted 4 times, 60s ago" in shown
    assert "Error, exit code 3" in shown


def test_an_overview_has_a_line_for_each() -> None:
    stalled = [condition("Ready", "False", "Stalled", "x" * 300), condition("Stalled", "True", "Stalled", "x" * 300)]
    views = [
        cluster_view(cluster_manifest("alpha", status=status())),
        cluster_view(cluster_manifest("beta", status=status(phase="Stalled", conditions=stalled))),
    ]
    lines = text(draw_overview(views, Drawing(now_seconds=NOW), namespaces=True), width=240).splitlines()
    assert lines[0].split() == [
        *("namespace", "cluster", "phase", "bookies", "brokers", "proxies", "version", "age", "message"),
    ]
    assert lines[1].split() == ["●", "messaging", "alpha", "Ready", "3/3", "1/1", "1/1", "1.2.0", "60m"]
    assert lines[2].startswith("✗  messaging")
    assert lines[2].endswith("x…")
    assert len(lines) == 3


def test_a_resource_of_another_version_is_named() -> None:
    with pytest.raises(OtherVersion, match="PulsarCluster demo is of another version than this plugin: status"):
        cluster_view(cluster_manifest(status={"bookies": "three"}))


READ_ONLY = {
    "desiredReplicas": 3,
    "replicas": 2,
    "readyReplicas": 1,
    "updatedReplicas": 2,
    "serviceUrl": "pulsar://demo-read-only-broker.messaging.svc:6650",
    "lastScale": {
        "time": "2026-11-21T10:58:00Z",
        "before": 2,
        "after": 3,
        "reason": "2 read-only brokers have 2100 connections",
    },
    "members": [
        {"name": "demo-read-only-broker-a", "state": "Ready", "connections": 1, "lagSeconds": 12},
        {"name": "demo-read-only-broker-b", "state": "Starting"},
    ],
}
READ_ONLY_PODS = [
    pod_manifest("demo-read-only-broker-a", "read-only-broker"),
    pod_manifest("demo-read-only-broker-b", "read-only-broker", ready=False),
]
READ_ONLY_DRAWN = """\
    ├── 2 to 3, 2m ago: 2 read-only brokers have 2100 connections
    ├── ● demo-read-only-broker-a  Ready        1 connection  12 s behind
    └── ◐ demo-read-only-broker-b  Starting"""


def test_read_only_brokers_are_drawn_after_the_proxies() -> None:
    manifest = cluster_manifest(spec={"readOnlyBrokers": {}}, status=status(readOnlyBrokers=READ_ONLY))
    view = cluster_view(manifest, [pool_manifest(status=members(*WRITABLE))], [*PODS, *READ_ONLY_PODS])
    drawn = text(draw_status(view, Drawing(now_seconds=NOW)))
    head = "└── ◐ read-only brokers  1/3 ready  pulsar://demo-read-only-broker.messaging.svc:6650\n"
    assert drawn.endswith(head + READ_ONLY_DRAWN)
    overview = text(draw_overview([view], Drawing(now_seconds=NOW), namespaces=False))
    assert "read-only" in overview.splitlines()[0]
    assert "1/3" in overview
    without = cluster_view(cluster_manifest("other", status=status()))
    assert "read-only" not in text(draw_overview([without], Drawing(now_seconds=NOW), namespaces=False))


def test_a_cluster_of_others_is_drawn_without_what_others_run() -> None:
    spec = {"attach": {"clusterName": "pulsar-1"}, "metadata": {"url": "zk:there:2181"}, "readOnlyBrokers": {}}
    found = status(serviceUrl=READ_ONLY["serviceUrl"], readOnlyBrokers=READ_ONLY)
    view = cluster_view(cluster_manifest(spec=spec, status=found), [], READ_ONLY_PODS)
    drawn = text(draw_status(view, Drawing(now_seconds=NOW)))
    assert "metadata  zk:there:2181" in drawn
    assert "attached to  pulsar-1, which others run" in drawn
    assert drawn.endswith("└── ◐ read-only brokers  1/3 ready\n" + READ_ONLY_DRAWN)
    for others in ("bookies", "proxies", " brokers  1/1"):
        assert others not in drawn
    assert view.entrance == "read-only-broker"
