"""What runs in pods: ZooKeeper servers, bookies, brokers, proxies and the Job that prepares the metadata.

A program begins, is ready after a while or ends with a code, and stops. What it shares with others is in `Software`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.operator.children.context import BOOKIE_PORT, WEB_PORT

from e2e.operator_simulation.brokers import Broker, Brokers
from e2e.operator_simulation.metadata import Disk, Disks, Metadata
from e2e.operator_simulation.storage import Exit, Storage

ENDED_WELL: Final = Exit(0, "")


class Software:
    """Everything that processes of one cluster have in common."""

    def __init__(self, rng: random.Random, now: Callable[[], float]) -> None:
        self.disks = Disks()
        self.storage = Storage(rng, self.disks, now)
        self.brokers = Brokers(rng)
        self.now = now
        self.rng = rng
        self.zookeepers: dict[str, Zookeeper] = {}
        """That run, by pod."""
        self.leader: str | None = None
        self.last_metadata: Metadata | None = None
        """As it was stored last, whether or not there is a quorum."""
        self.unready_since: dict[str, float] = {}
        """Of pods of StatefulSets that do not serve now."""
        self._instances = 0

    def tick(self) -> None:
        """A second has passed."""
        self.elect()
        self.storage.tick()
        self.brokers.tick(self.now(), metadata=self.storage.metadata is not None)

    def elect(self) -> None:
        """The ensemble has a quorum or not; its servers agree on what is stored."""
        running = self.zookeepers
        servers = max((zookeeper.ensemble for zookeeper in running.values()), default=0)
        if not running or 2 * len(running) <= servers:
            self.storage.metadata = None
            self.leader = None
            return
        stored = next((server.disk.metadata for server in running.values() if server.disk.metadata is not None), None)
        if stored is None:
            self._instances += 1
            stored = Metadata(self._instances)
        for server in running.values():
            server.disk.metadata = stored
        self.storage.metadata = self.last_metadata = stored
        if self.leader not in running:
            self.leader = self.rng.choice(sorted(running))


class Program(Protocol):
    """One run of one container's process."""

    def begin(self) -> Exit | None:
        """It goes on, or has ended already."""
        ...

    def ready(self) -> bool:
        """As its readiness probe finds it."""
        ...

    def poll(self) -> Exit | None:
        """It has ended by itself."""
        ...

    def stop(self, *, graceful: bool) -> None:
        """It ends now, told so or killed."""
        ...


class Zookeeper:
    """One server."""

    def __init__(self, software: Software, pod: str, disk: Disk, ensemble: int) -> None:
        self._software = software
        self._pod = pod
        self.disk = disk
        self.ensemble = ensemble

    def begin(self) -> Exit | None:
        """See `Program`."""
        self._software.zookeepers[self._pod] = self
        self._software.elect()
        return None

    def ready(self) -> bool:
        """See `Program`."""
        return self._software.leader is not None

    def poll(self) -> Exit | None:
        """See `Program`."""
        return None

    def stop(self, *, graceful: bool) -> None:
        """See `Program`."""
        self._software.zookeepers.pop(self._pod, None)
        self._software.elect()


class BookieProgram:
    """One bookie; it waits for the metadata store."""

    def __init__(self, software: Software, pod: str, domain: str, disks: list[Disk]) -> None:
        self._software = software
        self._disks = disks
        self._began = False
        self.bookie_id = f"{pod}.{domain}:{BOOKIE_PORT}"

    def begin(self) -> Exit | None:
        """See `Program`."""
        return self.poll()

    def ready(self) -> bool:
        """See `Program`."""
        return self._began

    def poll(self) -> Exit | None:
        """See `Program`."""
        if self._began or self._software.storage.metadata is None:
            return None
        ended = self._software.storage.start(self.bookie_id, self._disks)
        self._began = ended is None
        return ended

    def stop(self, *, graceful: bool) -> None:
        """See `Program`."""
        if self._began:
            self._software.storage.stop(self.bookie_id)


class BrokerProgram:
    """One broker."""

    def __init__(self, software: Software, pod: str, address: str) -> None:
        self._software = software
        self._pod = pod
        self._broker_id = f"{address}:{WEB_PORT}"
        self.broker: Broker | None = None

    def begin(self) -> Exit | None:
        """See `Program`."""
        return self.poll()

    def ready(self) -> bool:
        """See `Program`. A broker that is being drained is to get no new clients."""
        return self.broker is not None and self.broker.drain == "None"

    def poll(self) -> Exit | None:
        """See `Program`."""
        metadata = self._software.storage.metadata
        if self.broker is not None or metadata is None:
            return None
        if not metadata.initialised:
            return Exit(1, "the metadata store is not initialised")
        self.broker = self._software.brokers.start(self._broker_id, self._pod, self._software.now())
        return None

    def stop(self, *, graceful: bool) -> None:
        """See `Program`."""
        if self.broker is not None:
            self._software.brokers.stop(self.broker, graceful=graceful)


class ProxyProgram:
    """One proxy: it needs brokers."""

    def __init__(self, software: Software) -> None:
        self._software = software

    def begin(self) -> Exit | None:
        """See `Program`."""
        return None

    def ready(self) -> bool:
        """See `Program`."""
        return True

    def poll(self) -> Exit | None:
        """See `Program`."""
        return None

    def stop(self, *, graceful: bool) -> None:
        """See `Program`."""


class InitProgram:
    """What prepares the metadata store; again and again does no harm."""

    def __init__(self, software: Software) -> None:
        self._software = software

    def begin(self) -> Exit | None:
        """See `Program`."""
        metadata = self._software.storage.metadata
        if metadata is None:
            return Exit(1, "the metadata store does not answer")
        metadata.initialised = True
        return ENDED_WELL

    def ready(self) -> bool:
        """See `Program`."""
        return True

    def poll(self) -> Exit | None:
        """See `Program`."""
        return None

    def stop(self, *, graceful: bool) -> None:
        """See `Program`."""
