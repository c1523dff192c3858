"""A bookie goes as fast as the disk and the configured rate let it, not as slowly as somebody looks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from magnetar.operator.children.naming import REPLACE_ANNOTATION

from e2e.kube.clusters import DeployedCluster, small
from e2e.kube.kubectl import Namespace, name_of, wait_for
from e2e.kube.load import StoredBytes
from e2e.kube.release import OperatorRelease
from e2e.kube.test_bookies import replaced, settled

GIGABYTES = float(os.environ.get("MAGNETAR_E2E_DRAIN_GB", "2"))
"""On the bookie that goes, as fast as it can; the run with a limit has a tenth of it."""
LIMIT_BYTES_PER_SECOND = 10_000_000
AROUND_SECONDS = 60
"""What a drain takes beside copying: until nobody writes to the bookie any more and its last ledgers are closed, the
proof that no ledger names it, the end of its pod."""
SLOWEST_BYTES_PER_SECOND = 30_000_000
"""Of a disk that is read and written at once, on a machine that does the rest of the tests as well."""


def drained(cluster: DeployedCluster, gigabytes: float) -> float:
    """All that was published is on the only bookie there is; a second one takes it over. How long that took."""
    cluster.apply()
    cluster.wait_ready()
    stored = StoredBytes(cluster, topics=8, megabytes=int(gigabytes * 1000), message_bytes=1_000_000)
    stored.publish()
    cluster.apply(bookkeeper={"replicas": 2})
    wait_for("two bookies are ready", lambda: settled(cluster, 2), 120)
    victim = cluster.pods("bookie")[0]
    cluster.namespace("annotate", "pod", name_of(victim), f"{REPLACE_ANNOTATION}=true")
    began = time.monotonic()
    uid = victim["metadata"]["uid"]
    wait_for("the bookie is replaced", lambda: replaced(cluster, name_of(victim), uid), 3600, poll_seconds=1.0)
    seconds = time.monotonic() - began
    assert stored.read_back() >= gigabytes * 0.95e9
    return seconds


def spec(**bookkeeper: object) -> dict[str, object]:
    """One copy of everything, so that there is room for much of it."""
    one_copy = {"ensembleSize": 1, "writeQuorum": 1, "ackQuorum": 1, "replicas": 1}
    return {"bookkeeper": {**one_copy, **bookkeeper}}


def test_a_drain_is_as_fast_as_the_disk(
    operator: OperatorRelease, scratch: Namespace, note: Callable[[str], None]
) -> None:
    cluster = DeployedCluster(scratch, "fast", small(**spec()))  # type: ignore[arg-type]
    try:
        seconds = drained(cluster, GIGABYTES)
        note(f"{GIGABYTES:g} GB in {seconds:.0f} s")
        assert seconds <= GIGABYTES * 1e9 / SLOWEST_BYTES_PER_SECOND + AROUND_SECONDS
    finally:
        cluster.delete()


def test_a_drain_keeps_to_its_rate(operator: OperatorRelease, scratch: Namespace, note: Callable[[str], None]) -> None:
    limit = {"drainBytesPerSecondMax": LIMIT_BYTES_PER_SECOND}
    cluster = DeployedCluster(scratch, "slow", small(**spec(**limit)))  # type: ignore[arg-type]
    try:
        gigabytes = GIGABYTES / 10
        seconds = drained(cluster, gigabytes)
        note(f"{gigabytes:g} GB in {seconds:.0f} s at {LIMIT_BYTES_PER_SECOND / 1e6:g} MB/s")
        copying = gigabytes * 1e9 / LIMIT_BYTES_PER_SECOND
        assert 0.7 * copying <= seconds <= 1.3 * copying + AROUND_SECONDS
    finally:
        cluster.delete()
