"""Beside an Apache broker that keeps owners of bundles in a system topic ours refuses to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.interchange import parts
from e2e.interchange.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"


def test_ours_refuses_to_stand_beside_the_extensible_load_manager(tmp_path: Path) -> None:
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as cluster:
        cluster.initialize_pulsar()
        cluster.start(cluster.our_bookie("bookie"))
        apache = cluster.apache_broker((1, 1, 1), loadManagerClassName=EXTENSIBLE)
        ours = cluster.our_broker((1, 1, 1), loadManagerClassName=EXTENSIBLE)
        apache.start()
        ours.launch()
        ours.wait_until_ended()
        log = ours.log_text()
        assert f"loadManagerClassName is {EXTENSIBLE}, which is not here" in log
        assert f"{apache.id} of this cluster runs {EXTENSIBLE}" in log
        assert ours.exit_code == 2
        # Once it is gone nobody owns anything in its way.
        apache.stop()
        ours.start()
