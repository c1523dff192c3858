"""Each Spark job by its own manifest, on a cluster that is called as `common.yaml` has it; what they make is counted.

They share a cluster and its data: the archive is the CronJob's, replayed afterwards; windows are of the same orders."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from e2e.kube.clusters import DeployedCluster
from e2e.kube.clusters import small as small_cluster
from e2e.kube.kubectl import Namespace, is_ready, name_of, wait_for
from e2e.kube.release import OperatorRelease
from e2e.kube.spark_jobs import (
    archived,
    changed,
    job_of,
    log_of_job,
    manifests,
    pods_of_job,
    prepare,
    run_job,
    run_on_volume,
    small,
)

ORDERS: Final = "persistent://public/default/orders"
REPLAYED: Final = "persistent://public/default/orders-again"
WINDOWS: Final = "persistent://public/default/orders-per-5min"
PRICES: Final = "persistent://public/default/prices"
PAYMENTS: Final = "persistent://public/default/payments"
HISTORY: Final = "persistent://pulsar/system/load-history"
"""Topics as manifests name them, and those that they are about."""

COUNT: Final = 3_000
CUSTOMERS: Final = 5
MINUTE_MS: Final = 60_000
BEGIN_MS: Final = 1_700_000_100_000
"""A whole five minutes, when the first order was made; the others within an hour."""
HOUR_MS: Final = 60 * MINUTE_MS
SETTINGS: Final = small(1)
WINDOWS_SECONDS_MAX: Final = 240.0
"""A driver and an executor to start, some micro-batches."""
PLAN: Final = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
assert all(file.read_bytes().startswith(b"\\x89PNG") for file in folder.glob("*.png"))
print((folder / "plan.json").read_text())
"""


class Order(Record):  # type: ignore[misc]  # The client has no types.
    """What is archived and counted."""

    id = Integer()
    text = String()


Message = tuple[int, str, str, int, dict[str, str]]
"""An order's id and text, its key, event time and properties."""


def order(number: int) -> Message:
    """The order of a number, as it has to come back."""
    event_ms = BEGIN_MS + number * HOUR_MS // COUNT
    return number, f"order {number}", f"customer-{number % CUSTOMERS}", event_ms, {"source": "shop"}


@contextlib.contextmanager
def client_of(cluster: DeployedCluster) -> Iterator[pulsar.Client]:
    """A stock client outside of Kubernetes."""
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def publish_orders(cluster: DeployedCluster, orders: list[Message]) -> None:
    with client_of(cluster) as client:
        producer = client.create_producer(
            ORDERS, schema=JsonSchema(Order), batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased,
            batching_max_messages=100, block_if_queue_full=True,
        )  # fmt: skip
        problems: list[object] = []

        def told(result: object, _: object) -> None:
            if result != pulsar.Result.Ok:
                problems.append(result)

        for number, text, key, event_ms, properties in orders:
            value = Order(id=number, text=text)
            producer.send_async(value, told, partition_key=key, event_timestamp=event_ms, properties=properties)
        producer.flush()
        assert not problems, problems[:3]


def read(cluster: DeployedCluster, topic: str, schema: Any = None) -> list[Any]:
    """All messages of a topic."""
    with client_of(cluster) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema or pulsar.schema.BytesSchema())
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000))
        return found


@pytest.fixture(scope="module")
def cluster(operator: OperatorRelease, shared_namespace: Namespace) -> Iterator[DeployedCluster]:
    """A cluster of the name that manifests know, which keeps messages and tells repetitions."""
    del operator
    settings = {"loadBalancerHistoryIntervalSeconds": 5}
    found = DeployedCluster(shared_namespace, "pulsar", small_cluster(broker={"settings": settings}))
    found.apply()
    found.wait_ready()
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    found.admin("POST", "/admin/v2/namespaces/public/default/retention", retention)
    found.admin("POST", "/admin/v2/namespaces/public/default/deduplication", True)
    prepare(shared_namespace)
    yield found
    shared_namespace("delete", "jobs,cronjobs", "--all", "--cascade=foreground")
    shared_namespace("delete", "pods", "-l", "spark-role", "--wait=false")
    found.delete()


@pytest.fixture(scope="module")
def archive(cluster: DeployedCluster) -> str:
    """The orders in the archive, by the CronJob's manifest, run once by hand; gives the driver's log."""
    publish_orders(cluster, [order(number) for number in range(COUNT)])
    namespace = cluster.namespace
    [cronjob] = manifests("archive-cronjob.yaml")
    # Not by the clock as well, while this runs.
    cronjob["spec"]["suspend"] = True
    namespace.apply(changed(cronjob, SETTINGS), "--server-side")
    namespace("create", "job", "archive-now", "--from=cronjob/magnetar-archive")
    return log_of_job(namespace, "archive-now")


def sent_by_brokers(cluster: DeployedCluster, topic: str) -> int:
    """Messages that brokers have given to anybody."""
    return int(cluster.admin("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")["msgOutCounter"])


def test_the_cronjob_archives_what_is_there(cluster: DeployedCluster, archive: str) -> None:
    assert archived(archive) == COUNT
    # What a job tells can be found in its log.
    assert archive.count(" INFO ") < 20
    # Nobody said where the metadata store is, or that bookies are to be read from.
    assert sent_by_brokers(cluster, ORDERS) == 0
    # An owner that is the CronJob: its history limits count what was started by hand too.
    owners = cluster.namespace.get("job", "archive-now")["metadata"]["ownerReferences"]
    assert [(one["kind"], one["name"]) for one in owners] == [("CronJob", "magnetar-archive")]


def test_an_archive_is_replayed_as_it_was(cluster: DeployedCluster, archive: str) -> None:
    assert archived(archive) == COUNT
    log = run_job(cluster.namespace, job_of("replay.yaml", SETTINGS))
    assert f"replayed {COUNT:,} messages of /archive/orders" in log
    found: dict[str, list[Message]] = {}
    for message in read(cluster, REPLAYED, JsonSchema(Order)):
        value, key = message.value(), message.partition_key()
        one = (value.id, value.text, key, message.event_timestamp(), message.properties())
        found.setdefault(key, []).append(one)
    expected: dict[str, list[Message]] = {}
    for one in map(order, range(COUNT)):
        expected.setdefault(one[2], []).append(one)
    assert found == expected


def test_windows_go_on_from_their_checkpoint_when_the_pod_is_made_anew(cluster: DeployedCluster, archive: str) -> None:
    assert archived(archive) == COUNT
    namespace = cluster.namespace
    # Fewer tasks, and less to wait for; backoffLimit stays, by which the pod is made anew.
    [job] = manifests("window-aggregation.yaml")
    further = ["--state-partitions", "1"]
    quick = changed(job, SETTINGS, further)
    [container] = quick["spec"]["template"]["spec"]["containers"]
    container["args"] = ["5s" if word == "30s" else word for word in container["args"]]
    namespace.apply(quick)

    # The watermark is 10 minutes behind the last order: of windows within the hour, three are not final.
    first = windows_within(cluster, 9 * CUSTOMERS)
    assert len(first) == 9 * CUSTOMERS
    [before] = pods_of_job(namespace, name_of(job))
    namespace("delete", "pod", name_of(before), "--wait=false")
    late = (COUNT, "the last", "customer-0", BEGIN_MS + 2 * HOUR_MS, {"source": "shop"})
    publish_orders(cluster, [late])
    second = windows_within(cluster, 12 * CUSTOMERS)
    assert second[: len(first)] == first
    assert Counter(second) == {
        (f"customer-{number}", BEGIN_MS + window * 5 * MINUTE_MS, COUNT // 12 // CUSTOMERS): 1
        for number in range(CUSTOMERS)
        for window in range(1, 13)
    }
    running = [pod for pod in pods_of_job(namespace, name_of(job)) if is_ready(pod)]
    assert [name_of(pod) for pod in running] != [name_of(before)]
    assert len(running) == 1
    assert sent_by_brokers(cluster, ORDERS) == 0
    namespace("delete", "job", name_of(job), "--cascade=foreground")


def windows_within(cluster: DeployedCluster, count: int) -> list[tuple[str, int, int]]:
    """Windows of the output topic, once there are so many: key, end, and how many messages."""

    def found() -> list[tuple[str, int, int]] | None:
        messages = read(cluster, WINDOWS)
        if len(messages) < count:
            return None
        return [(one.partition_key(), one.event_timestamp(), json.loads(one.data())["count"]) for one in messages]

    return wait_for(f"{count} windows", found, WINDOWS_SECONDS_MAX, 1.0)


def test_an_audit_tells_what_a_compaction_leaves(cluster: DeployedCluster) -> None:
    with client_of(cluster) as client:
        producer = client.create_producer(PRICES, batching_enabled=False)
        for key, value in (("a", "1"), ("b", "22"), ("a", "333"), ("c", "4"), ("c", ""), ("b", "22"), ("b", "22")):
            producer.send(value.encode(), partition_key=key)
        producer.send(b"55555")
    log = run_job(cluster.namespace, job_of("audit.yaml", SETTINGS))
    assert "public/default/prices: 8 messages, 23 B as sent" in log
    assert re.search(r"a compaction +leaves 2 messages, 7 B; saves 16 B \(70 %\)", log), log[-4_000:]
    assert re.search(r"keys +3, of which 1 are deleted by their newest message", log)
    assert re.search(r"without a key +1, 5 B; they go with a compaction", log)
    assert re.search(r"alike +2 messages, 6 B, are like one before, in 1 groups; 1 of these within 60 s", log)


def test_dead_letters_are_told_by_reason(cluster: DeployedCluster) -> None:
    die(cluster, {"no such account": 2, "card {} refused": 4})
    log = run_job(cluster.namespace, job_of("dead-letters.yaml", SETTINGS))
    assert "6 dead letters of 1 topics and subscriptions, in 1 dead-letter topics" in log
    assert "public/default/payments, billing: public/default/payments-billing-DLQ" in log
    assert re.search(r"card # refused +│ 4 +│", log), log[-4_000:]
    assert re.search(r"no such account +│ 2 +│", log), log[-4_000:]


def die(cluster: DeployedCluster, reasons: dict[str, int]) -> None:
    """Messages that a subscription gives up, for so many times each reason."""
    wanted = sum(reasons.values())
    with client_of(cluster) as client:
        consumer = client.subscribe(
            PAYMENTS,
            "billing",
            consumer_type=pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, initial_subscription_name="keep"),
        )
        producer = client.create_producer(PAYMENTS, batching_enabled=False)
        for reason, count in reasons.items():
            for number in range(count):
                producer.send(b"%d" % number, properties={"exception": reason.format(number)})
        dead = client.subscribe(f"{PAYMENTS}-billing-DLQ", "watch", initial_position=pulsar.InitialPosition.Earliest)
        arrived = 0
        while arrived < wanted:
            with contextlib.suppress(pulsar.Timeout):
                consumer.negative_acknowledge(consumer.receive(300))
            with contextlib.suppress(pulsar.Timeout):
                dead.acknowledge(dead.receive(50))
                arrived += 1


def test_load_is_planned_by_what_brokers_wrote(cluster: DeployedCluster, note: Callable[[str], None]) -> None:
    def rounds() -> list[dict[str, Any]]:
        return [json.loads(one.data()) for one in read(cluster, HISTORY)]

    wait_for("loaded bundles are written of", lambda: [one for one in rounds() if one["bundles"]], 60.0, 1.0)
    log = run_job(cluster.namespace, job_of("load-planning.yaml", SETTINGS))
    assert "written: /archive/load-plan/plan.json" in log
    plan = json.loads(run_on_volume(cluster.namespace, PLAN, "/archive/load-plan"))
    written = rounds()
    hours = {one["takenMillis"] // HOUR_MS for one in written}
    assert 0 < plan["history"]["hours"] <= len(hours)
    assert plan["brokers"]["now"] == len({one["brokerId"] for one in written}) == 1
    assert len(plan["brokers"]["neededByHour"]) == plan["week"]["hours"] == 7 * 24
    named = {bundle["namespace"] for one in written for bundle in one["bundles"]}
    planned = {one["namespace"]: one for one in plan["bookies"]["namespaces"]}
    assert {"public/default"} <= set(planned) <= named
    assert planned["public/default"]["endless"]
    note(f"a plan by {len(written)} rounds")
