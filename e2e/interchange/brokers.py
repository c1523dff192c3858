"""Publishing through a broker while one of its bookies dies and another takes its place."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from e2e import processes
from e2e.faults.support import Publisher, assert_kept, client_of, new_publisher, read_all
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BookiePart, BrokerPart
from e2e.part import START_SECONDS_MAX
from e2e.processes import wait_for

TOPIC = "persistent://public/default/interchange"
CHUNK = 20
PAUSE_SECONDS = 0.01
CONFIRMED_MIN = 500
CLIENT_SECONDS_MAX = 120


class Stream:
    """Publishes on a thread of its own until it is told to stop."""

    def __init__(self, publishers: list[Publisher]) -> None:
        self._publishers = publishers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            for publisher in self._publishers:
                publisher.send(CHUNK)  # Waits for room while nothing is confirmed.

    def wait_for_confirmed(self) -> None:
        """Until every publisher has that many receipts more than now."""
        wanted = [len(publisher.acknowledged) + CONFIRMED_MIN for publisher in self._publishers]

        def confirmed() -> bool:
            return all(len(one.acknowledged) >= count for one, count in zip(self._publishers, wanted, strict=True))

        wait_for(confirmed, CLIENT_SECONDS_MAX, "nothing more is confirmed")

    def stop(self) -> None:
        """Returns when all is answered."""
        self._stop.set()
        self._thread.join(CLIENT_SECONDS_MAX)
        for publisher in self._publishers:
            publisher.settle(CLIENT_SECONDS_MAX)


def publish_while_a_bookie_is_replaced(
    cluster: Cluster, broker: BrokerPart, bookies: Sequence[BookiePart], replacement: BookiePart
) -> list[Publisher]:
    """Publishes before, while and after the first bookie is killed with SIGKILL and the replacement joins.

    Ensembles are of three, so between the two nothing new can be confirmed: clients wait, and nothing may be lost.
    """
    with client_of(broker) as client:
        times = {"send_timeout_millis": CLIENT_SECONDS_MAX * 1_000}
        publishers = [
            new_publisher(client, TOPIC, "unbatched", **times),
            new_publisher(client, TOPIC, "batched", batching_enabled=True, **times),
        ]
        stream = Stream(publishers)
        stream.wait_for_confirmed()
        bookies[0].kill()
        cluster.start(replacement)
        stream.wait_for_confirmed()
        stream.stop()
    return publishers


def assert_all_receipts_are_read(broker: BrokerPart, publishers: list[Publisher]) -> None:
    """Everything that was confirmed is read, in order; nothing was refused."""
    for publisher in publishers:
        assert not publisher.failed, publisher.failed[:3]
    acknowledged = [event for publisher in publishers for event in publisher.acknowledged]
    with client_of(broker) as client:
        assert_kept(publishers, read_all(client, TOPIC, acknowledged, 60))


def start_with_namespace(cluster: Cluster, broker: BrokerPart) -> None:
    """Start the broker; Apache's initialisation has made public/default."""
    broker.start()
    path = f"{broker.admin_url}/admin/v2/namespaces/public/default"
    wait_for(lambda: processes.answers(path), START_SECONDS_MAX, "the broker does not know public/default")
