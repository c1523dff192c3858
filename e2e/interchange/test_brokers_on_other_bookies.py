"""Each side's broker stores on three bookies of the other side; one dies and is replaced while clients publish."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from e2e.interchange import brokers
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BookiePart, BrokerPart


@pytest.mark.timeout(300)
def test_apaches_broker_on_our_bookies(cluster: Cluster) -> None:
    """A stock Pulsar broker, 3/3/2: all receipts are read back, also after the broker was killed and started again."""
    bookies = [cluster.our_bookie(f"bookie{number}") for number in range(4)]
    judge(cluster, cluster.apache_broker(), bookies)


@pytest.mark.timeout(300)
def test_our_broker_on_apaches_bookies(cluster: Cluster) -> None:
    """The same the other way round."""
    bookies = [cluster.apache_bookie(f"bookie{number}") for number in range(4)]
    judge(cluster, cluster.our_broker(), bookies)


def judge(cluster: Cluster, broker: BrokerPart, bookies: Sequence[BookiePart]) -> None:
    cluster.initialize_pulsar()
    *first, replacement = bookies
    cluster.start(*first)
    brokers.start_with_namespace(cluster, broker)
    publishers = brokers.publish_while_a_bookie_is_replaced(cluster, broker, first, replacement)
    broker.kill()
    brokers.start_with_namespace(cluster, broker)
    brokers.assert_all_receipts_are_read(broker, publishers)
