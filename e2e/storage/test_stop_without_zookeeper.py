"""A bookie that is told to stop while ZooKeeper is away stops in good order, with its last checkpoint written."""

from __future__ import annotations

import time

import pytest

from e2e.interchange.cluster import Cluster

STOP_SECONDS_MAX = 10.0


@pytest.mark.slow
def test_a_bookie_stops_though_zookeeper_is_away(cluster: Cluster) -> None:
    bookie = cluster.our_bookie("bookie", autoRecoveryDaemonEnabled="true")
    cluster.start(bookie)
    cluster.zookeeper.pause()
    try:
        began = time.monotonic()
        bookie.stop()
        assert time.monotonic() - began < STOP_SECONDS_MAX, bookie.log_tail()
        assert bookie.exit_code == 0, bookie.log_tail()
    finally:
        cluster.zookeeper.resume()
