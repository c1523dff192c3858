"""How long a stock client waits for its next receipt: after unloads of its topic or bundle, after its broker's death.

Three brokers and three bookies of a side (three copies of everything). Topics are unloaded at their broker, bundles
go to whoever the side's load management picks, brokers die by SIGKILL and are started again. After unloads the client
comes back as it does by default; after a death it tries every 100 ms, because by default its pauses double and would be
most of what is measured.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from magnetar.core.topic_name import TopicName

from bench.cluster import sides
from bench.cluster.group import Group, Plan, Say
from bench.cluster.receipts import Interruption, Publishing, percentile
from bench.cluster.sides import OURS, REFERENCE, SESSION_MS, Namespace, Shape
from bench.report import Metric, Results
from e2e.cluster import admin

TOPICS = 10
SHAPE = Shape(brokers=3, bookies=3)
UNLOADS_BUNDLES = 4
CALM_S = 1.0
"""Between disturbances."""
SERVED_SECONDS_MAX = 60.0
CRASH_BACKOFF_MS = 100
WARM_UP_UNLOADS = 5
"""Not reported: a JVM is slow the first times."""


def run(folder: Path, plan: Plan, say: Say) -> Results:
    """A column for each side."""
    results: Results = {}
    for name in (OURS, REFERENCE):
        with sides.running(name, folder / name, SHAPE) as side:
            namespace = sides.new_namespace(side, "public/moves", UNLOADS_BUNDLES)
            namespace.spread()
            results[name] = unloads(namespace, plan, say) | crashes(namespace, plan, say)
        shutil.rmtree(folder / name, ignore_errors=True)
    return results


def unloads(namespace: Namespace, plan: Plan, say: Say) -> dict[str, float]:
    """Topics one at a time, then bundles with all topics in them."""
    side, rng = namespace.side, random.Random(1)
    prefix = namespace.spread_prefix(TOPICS)
    found: dict[str, float] = {}

    def unload_topic() -> list[int]:
        index = rng.randrange(TOPICS)
        path = f"/admin/v2/{prefix.replace('://', '/')}-{index}/unload"
        admin.call("PUT", side.brokers[0].admin_url + path)
        return [index]

    def unload_bundle() -> list[int]:
        bundle = rng.choice(namespace.bundles.bundles)
        admin.call("PUT", f"{side.brokers[0].admin_url}/admin/v2/namespaces/{bundle}/unload")
        names = [TopicName.parse(f"{prefix}-{index}") for index in range(TOPICS)]
        return [index for index, name in enumerate(names) if namespace.bundles.bundle_of(name) == bundle]

    with Publishing(sides.service_url(side), prefix, TOPICS) as publishing:
        kinds: list[tuple[str, Callable[[], list[int]], int]] = [
            ("topic_unload", unload_topic, plan.topic_unloads),
            ("bundle_unload", unload_bundle, plan.bundle_unloads),
        ]
        for kind, unload, count in kinds:
            seen: list[Interruption] = []
            requests_s: list[float] = []
            for number in range(WARM_UP_UNLOADS + count):
                interruptions, request_s = _disturb(publishing, unload)
                if number >= WARM_UP_UNLOADS:
                    seen += interruptions
                    requests_s.append(request_s)
            found |= _figures(kind, seen) | {f"{kind}.request_p50_ms": percentile(requests_s, 0.5) * 1e3}
            say(f"{side.name} {kind}: {_shown(found, kind)}; {len(publishing.errors)} sends failed")
        found["unloads.failed"] = float(len(publishing.errors))
    return found


def crashes(namespace: Namespace, plan: Plan, say: Say) -> dict[str, float]:
    """kill -9 of the broker that serves the topic; the topic is in the middle of being written."""
    side = namespace.side
    prefix = f"persistent://{namespace.name}/crash"
    seen: list[Interruption] = []
    with Publishing(sides.service_url(side), prefix, 1, backoff_ms=CRASH_BACKOFF_MS) as publishing:
        for _ in range(plan.crashes):
            time.sleep(CALM_S)
            url = sides.owner(side, f"{prefix}-0")
            victim = next(broker for broker in side.brokers if broker.service_url == url)

            def kill(dying: sides.BrokerLike = victim) -> list[int]:
                dying.kill()
                return [0]

            interruptions, _ = _disturb(publishing, kill)
            seen += interruptions
            victim.start()
        failed = float(len(publishing.errors))
    found = _figures("crash", seen) | {"crash.failed": failed}
    say(f"{side.name} crash: {_shown(found, 'crash')}, {failed:.0f} sends failed")
    return found


def _disturb(publishing: Publishing, disturb: Callable[[], list[int]]) -> tuple[list[Interruption], float]:
    """What the topics that it names went through, and how long the disturbing itself took."""
    began_ns = time.time_ns()
    topics = disturb()
    done_ns = time.time_ns()
    publishing.wait_for_receipts(done_ns, SERVED_SECONDS_MAX)
    time.sleep(CALM_S)
    return publishing.interruptions(began_ns, done_ns, topics), (done_ns - began_ns) / 1e9


def _figures(kind: str, seen: list[Interruption]) -> dict[str, float]:
    if not seen:
        return {}
    served = [each.served_again_s for each in seen]
    return {
        f"{kind}.count": float(len(seen)),
        f"{kind}.p50_ms": percentile(served, 0.5) * 1e3,
        f"{kind}.p99_ms": percentile(served, 0.99) * 1e3,
        f"{kind}.longest_ms": max(served) * 1e3,
        f"{kind}.pause_p50_ms": percentile([each.pause_s for each in seen], 0.5) * 1e3,
    }


def _shown(found: dict[str, float], kind: str) -> str:
    keys = ("count", "p50_ms", "p99_ms", "longest_ms", "pause_p50_ms")
    return ", ".join(f"{key} {found.get(f'{kind}.{key}', 0):,.0f}" for key in keys)


def metrics() -> list[Metric]:
    """Goals are ours alone: times that the issue names."""
    found = []
    for kind, label in (("topic_unload", "topic unload"), ("bundle_unload", "bundle unload")):
        found += [
            Metric(f"{kind}.count", f"{label}: topics unloaded", ""),
            Metric(f"{kind}.p50_ms", f"{label} to next receipt p50", "ms"),
            Metric(f"{kind}.p99_ms", f"{label} to next receipt p99", "ms", goal=300.0, absolute=True),
            Metric(f"{kind}.pause_p50_ms", f"{label}: without receipts p50", "ms"),
            Metric(f"{kind}.request_p50_ms", f"{label}: the request itself p50", "ms"),
        ]
    return [
        *found,
        Metric("crash.p50_ms", "kill -9 to next receipt p50", "ms"),
        Metric("crash.longest_ms", "kill -9 to next receipt, longest", "ms", goal=SESSION_MS + 1_000.0, absolute=True),
        Metric("unloads.failed", "sends that failed during unloads", ""),
        Metric("crash.failed", "sends that failed during crashes", ""),
    ]


GROUP = Group("moves", "Unloads and crashes, to the client's next receipt", run, metrics(), OURS, REFERENCE)
