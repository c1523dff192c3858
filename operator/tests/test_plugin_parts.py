"""The plugin's small parts: drawing, progress, choice of logs, tables, redaction, restarts, views of pods."""

from __future__ import annotations

import io
from typing import Any

import pytest
from magnetar.control.generated import broker_pb2
from magnetar.core.errors import SettingError
from magnetar.core.text import human_bytes
from magnetar.operator.children.naming import READABLE_ANNOTATION, REPLACE_ANNOTATION
from magnetar.operator.plugin.drawing import UNICODE, RemainingTime, age, rate_text, signs_for
from magnetar.operator.plugin.logs.choice import hurting
from magnetar.operator.plugin.parse import cluster_view, pod_view, pool_view
from magnetar.operator.plugin.progress import broker_drain_progress, replacement_progress
from magnetar.operator.plugin.redaction import REDACTED, is_secret, redacted, redacted_settings
from magnetar.operator.plugin.restarts import RESTARTED_ANNOTATION, cluster_patch
from magnetar.operator.plugin.table_view import TableColumn, draw_table, sorted_rows, words
from magnetar.operator.plugin.top_rows import bookie_rows
from operator_fakes.plugin_fakes import (
    CREATED_SECONDS,
    cluster_manifest,
    condition,
    crashing,
    pod_manifest,
    pool_manifest,
)
from rich.console import Console

NOW = CREATED_SECONDS + 3600


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0s"), (45, "45s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (601, "10m"), (3 * 3600, "3h0m")]
    + [(9 * 3600, "9h"), (50 * 3600, "2d")],
)
def test_ages(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


def test_numbers() -> None:
    assert [human_bytes(one) for one in (0, 1023, 1024, 200 << 20, 3 << 40)] == [
        *("0 B", "1023 B", "1.0 KiB", "200 MiB", "3.0 TiB"),
    ]
    assert [rate_text(one) for one in (0, 0.4, 12.3, 12_300, 1_200_000)] == ["0", "0.4", "12", "12.3k", "1.2M"]
    assert signs_for("utf-8") is signs_for("UTF8") is UNICODE
    assert signs_for("ascii").full == "#"


def test_a_pace_knows_when_it_ends() -> None:
    pace = RemainingTime()
    assert pace.remaining_seconds("a", 100, 0.0) is None
    assert pace.remaining_seconds("a", 100, 1.0) is None
    assert pace.remaining_seconds("a", 90, 2.0) == pytest.approx(18.0)
    assert pace.remaining_seconds("b", 50, 2.0) is None
    # What is more again began anew.
    assert pace.remaining_seconds("a", 95, 3.0) is None
    for second in range(4, 400):
        left = pace.remaining_seconds("a", 95 if second < 200 else 95 - (second - 200) // 4, float(second))
    assert left == pytest.approx(4 * (95 - 199 // 4), rel=0.1)


# --- replacements and drains


def member(state: str, **rest: Any) -> dict[str, Any]:
    return {"name": "demo-bookie-1", "state": state, **rest}


def replacement(uid: str | None, member_status: dict[str, Any], *, wanted: bool = True, **status: Any) -> Any:
    pod = pod_manifest("demo-bookie-1", "bookie", pool="demo")
    if uid is not None:
        pod["metadata"]["uid"] = uid
    pod["metadata"]["annotations"] = {REPLACE_ANNOTATION: "true"} if wanted else {}
    pool = pool_view(pool_manifest(status={"members": [member_status], **status}))
    return replacement_progress("demo-bookie-1", "before", pod_view(pod) if uid is not None else None, pool)


def test_a_replacement_from_its_begin_to_its_end() -> None:
    waits = [condition("Reconciling", "True", "Replacing", "demo-bookie-1 is replaced when no other is drained")]
    first = replacement("before", member("Writable"), conditions=waits)
    assert (first.text, first.finished) == ("demo-bookie-1 is replaced when no other is drained", False)
    drain = {"step": "Replicate", "ledgersTotal": 20, "ledgersLeft": 5, "bytesPerSecond": 2048, "message": "slow"}
    second = replacement("before", member("Draining", drain=drain))
    assert (second.text, second.done, second.total) == ("Replicate, 5 of 20 ledgers left, 2.0 KiB/s, slow", 15, 20)
    third = replacement(None, member("Drained"))
    assert (third.text, third.finished) == ("it starts with empty volumes", False)
    assert not replacement("after", member("Starting"), wanted=False).finished
    last = replacement("after", member("Writable"), wanted=False)
    assert last.finished
    assert not last.failed


def test_a_replacement_that_is_taken_back_has_failed() -> None:
    found = replacement("before", member("Writable"), wanted=False)
    assert (found.finished, found.failed) == (True, True)
    assert replacement_progress("demo-bookie-1", "before", None, None).failed


def test_a_replacement_goes_on_with_another_pod() -> None:
    remembered = {"replacement": {"podUid": "before", "claimUids": ["a"]}}
    draining = member("Draining", drain={"step": "Replicate", "ledgersTotal": 4, "ledgersLeft": 1}, **remembered)
    assert not replacement(None, member("Starting", **remembered)).finished
    assert replacement("after", draining, wanted=False).text == "Replicate, 1 of 4 ledgers left"
    # Removed from the pod that had it last, which is not yet written down.
    assert replacement("before", draining, wanted=False).failed


def test_a_brokers_drain() -> None:
    running = broker_pb2.BrokerDrain(step=broker_pb2.BROKER_DRAIN_STEP_RUNNING, bundles_total=9, bundles_left=4)
    running.blockers.add(bundle="a/b/0x0_0x1", reason="no other broker takes it")
    running.blockers.add(bundle="a/b/0x1_0x2", reason="nor this")
    found = broker_drain_progress(running)
    assert found.text == "4 of 9 bundles left, a/b/0x0_0x1: no other broker takes it, 1 more are held up"
    assert (found.done, found.total, found.finished) == (5, 9, False)
    done = broker_drain_progress(broker_pb2.BrokerDrain(step=broker_pb2.BROKER_DRAIN_STEP_DONE))
    assert (done.finished, done.failed) == (True, False)
    assert broker_drain_progress(broker_pb2.BrokerDrain(step=broker_pb2.BROKER_DRAIN_STEP_NONE)).failed


# --- whose logs


def test_whose_log_to_read() -> None:
    status = {
        "conditions": [condition("Ready", "False", "NotReady", "waits for demo-bookie-10: it does not answer")],
        "brokerMembers": [{"name": "demo-broker-x", "state": "Draining"}],
    }
    long_ago = {"terminated": {"finishedAt": "2026-11-20T00:00:00Z"}}
    old = {"containerStatuses": [{"restartCount": 9, "lastState": long_ago}]}
    pods = [
        pod_manifest("demo-bookie-0", "bookie", pool="demo", ready=False, status=crashing()),
        pod_manifest("demo-bookie-1", "bookie", pool="demo", status=old),
        pod_manifest("demo-bookie-10", "bookie", pool="demo"),
        pod_manifest("demo-broker-x", "broker"),
        pod_manifest("demo-proxy-a", "proxy", ready=False, status={"phase": "Pending"}),
        pod_manifest("demo-proxy-b", "proxy", status={"containerStatuses": crashing()["containerStatuses"]}),
        pod_manifest("demo-init-x", "init", ready=False, status={"phase": "Succeeded"}),
    ]
    view = cluster_view(cluster_manifest(status=status), [pool_manifest()], pods)
    assert [(pod.name, why) for pod, why in hurting(view, NOW)] == [
        ("demo-bookie-0", "CrashLoopBackOff"),
        ("demo-broker-x", "Draining"),
        ("demo-proxy-a", "Pending"),
        ("demo-proxy-b", "restarted 60s ago"),
        ("demo-bookie-10", "named in a condition"),
    ]


def test_what_pods_say_of_themselves() -> None:
    pending = pod_manifest("demo-broker-x", "broker", ready=False)
    pending["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}],
    }
    found = pod_view(pending)
    assert (found.reason, found.message, found.ready) == ("Unschedulable", "no cpu", False)
    creating = {"containerStatuses": [{"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]}
    assert pod_view(pod_manifest("demo-broker-x", "broker", ready=False, status=creating)).reason == ""
    killed = {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}
    found = pod_view(pod_manifest("demo-broker-x", "broker", ready=False, status=killed))
    assert (found.reason, found.message) == ("OOMKilled", "OOMKilled, exit code 137")
    sidecar = pod_manifest("demo-broker-x", "broker")
    sidecar["spec"]["containers"].insert(0, {"name": "agent", "image": "agent"})
    assert pod_view(sidecar).containers == ("broker", "agent")
    assert pod_view(sidecar).image == "magnetar/broker:1"


# --- tables


COLUMNS = (
    words("name", lambda row: row[0]),
    TableColumn("load", lambda row: row[1], lambda value: f"{value:.0f}", bar=True),
    words("more", lambda row: row[2], wide=True),
)
ROWS = [("b", 10.0, "x"), ("a", 90.0, "y"), ("c", None, "z")]


def test_tables_are_sorted_and_keep_the_unknown_for_the_end() -> None:
    assert [row[0] for row in sorted_rows(ROWS, COLUMNS, "load")] == ["a", "b", "c"]
    assert [row[0] for row in sorted_rows(ROWS, COLUMNS, "Name")] == ["a", "b", "c"]
    with pytest.raises(SettingError, match="there are: name, load, more"):
        sorted_rows(ROWS, COLUMNS, "size")
    buffer = io.StringIO()
    Console(file=buffer, width=80).print(draw_table(ROWS[1:], COLUMNS, UNICODE, wide=False))
    assert [line.rstrip() for line in buffer.getvalue().splitlines()] == [
        "name            load",
        "a     █████████░  90",
        "c                  -",
    ]


# --- what reports leave out


def test_reports_leave_secrets_out() -> None:
    cluster = cluster_manifest(
        spec={
            "settings": {"brokerClientAuthenticationParameters": "token:abc", "tlsKeyFilePath": "/tls/key", "n": 1},
            "metadata": {"url": "zk:zk:2181", "configurationUrl": "etcd://user:hunter2@etcd:2379"},
            "broker": {
                "pod": {
                    "env": [
                        {"name": "AWS_SECRET_ACCESS_KEY", "value": "abc"},
                        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
                        {"name": "GREETING", "value": "hello"},
                    ]
                }
            },
            "authentication": {"token": {"secretName": "tokens"}},
        }
    )
    cluster["metadata"] |= {
        "managedFields": [{}],
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "abc",
            READABLE_ANNOTATION: '{"settings": {"brokerClientAuthenticationParameters": "token:abc"}}',
            "mine": "yes",
        },
    }
    found = redacted(cluster)
    assert found["spec"]["settings"] == {
        "brokerClientAuthenticationParameters": REDACTED,
        "tlsKeyFilePath": "/tls/key",
        "n": 1,
    }
    assert found["spec"]["metadata"]["configurationUrl"] == f"etcd://user:{REDACTED}@etcd:2379"
    assert [one.get("value") for one in found["spec"]["broker"]["pod"]["env"]] == [REDACTED, None, "hello"]
    assert found["spec"]["authentication"] == {"token": {"secretName": "tokens"}}
    assert found["metadata"]["annotations"] == {"mine": "yes"}
    assert "managedFields" not in found["metadata"]
    settings = {"kind": "ConfigMap", "metadata": {}, "data": {"broker.conf": "controlToken=abc\nclusterName=demo\n"}}
    assert redacted(settings)["data"]["broker.conf"] == f"controlToken={REDACTED}\nclusterName=demo\n"
    assert cluster["spec"]["settings"]["brokerClientAuthenticationParameters"] == "token:abc"


@pytest.mark.parametrize(
    "name",
    [
        "basicAuthConf",
        "brokerClientTlsKeyStorePassword",
        "brokerClientSslFactoryPluginParams",
        "PULSAR_PREFIX_managedLedgerPassword",
        "SASL_JAAS_CONFIG",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    text = f"a=1\n{name}=abc\n  {name} : abc\n# {name}=abc\n{name}=ab\\\n  c\nb=2\n"
    written = f"a=1\n{name}=X\n  {name} : X\n# {name}=X\n{name}=X\nb=2\n"
    assert redacted_settings(text) == written.replace("=X", f"={REDACTED}").replace(": X", f": {REDACTED}")


@pytest.mark.parametrize("name", ["tlsKeyFilePath", "tokenAuthClaim", "authenticationEnabled", "superUserRoles"])
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret(name)


def test_reports_leave_arguments_out_that_are_secrets() -> None:
    arguments = ["--set", "tokenSecretKey=YWJj==", "--set=controlToken=abc", "--password", "abc", "--name", "n"]
    command = ["sh", "-c", "export TOKEN=abc; run --password=abc -v"]
    found = redacted({"kind": "Pod", "spec": {"containers": [{"args": arguments, "command": command}]}})
    (container,) = found["spec"]["containers"]
    assert container["args"] == [
        *("--set", f"tokenSecretKey={REDACTED}", f"--set=controlToken={REDACTED}"),
        *("--password", REDACTED, "--name", "n"),
    ]
    assert container["command"] == ["sh", "-c", f"export TOKEN={REDACTED} run --password={REDACTED} -v"]


# --- restarts


@pytest.mark.parametrize(
    ("component", "path"),
    [
        ("bookie", ["bookkeeper"]),
        ("broker", ["broker"]),
        ("proxy", ["proxy"]),
        ("read-only-broker", ["readOnlyBrokers"]),
        ("zookeeper", ["metadata", "zookeeper"]),
    ],
)
def test_a_restart_is_an_annotation_of_the_template(component: str, path: list[str]) -> None:
    found = cluster_patch(cluster_manifest(spec={"readOnlyBrokers": {}}), component, "2026-11-21T10:00:00+00:00")
    for name in path:
        found = found[name]
    assert found == {"pod": {"annotations": {RESTARTED_ANNOTATION: "2026-11-21T10:00:00+00:00"}}}


def test_a_store_of_others_is_not_ours_to_restart() -> None:
    cluster = cluster_manifest(spec={"metadata": {"url": "zk:zk:2181"}})
    with pytest.raises(SettingError, match="does not run"):
        cluster_patch(cluster, "zookeeper", "now")


def test_only_what_there_is_can_be_restarted() -> None:
    """The annotation would make read-only brokers where nobody wants any."""
    with pytest.raises(SettingError, match="no read-only brokers"):
        cluster_patch(cluster_manifest(), "read-only-broker", "now")
    attached = cluster_manifest(spec={"attach": {}, "metadata": {"url": "zk:zk:2181"}, "readOnlyBrokers": {}})
    for component in ("broker", "bookie", "proxy"):
        with pytest.raises(SettingError, match="others run that cluster"):
            cluster_patch(attached, component, "now")
    assert "readOnlyBrokers" in cluster_patch(attached, "read-only-broker", "now")


def test_bookies_that_are_alike_come_by_their_numbers() -> None:
    members = [{"name": f"demo-bookie-{number}", "state": "Writable"} for number in (10, 9, 1)]
    view = cluster_view(cluster_manifest(), [pool_manifest(status={"members": members})])
    assert [row.pod for row in bookie_rows(view, {})] == ["demo-bookie-1", "demo-bookie-9", "demo-bookie-10"]
