"""What goes wrong with brokers that only read."""

from __future__ import annotations

from typing import Protocol

from e2e.broker_simulation.read_only.brokers import SimulatedReadOnlyBroker
from e2e.simulation import faults as storage_faults
from e2e.simulation.metadata import METADATA_HOST
from e2e.simulation.node import SimulatedHost


class HasHost(Protocol):
    """A server."""

    node: SimulatedHost


class ReadOnlyFaults(storage_faults.Faults):
    """Of brokers that only read. Whoever makes them says which those are."""

    reading: list[SimulatedReadOnlyBroker]
    writing_hosts: list[str]

    def kill_reading_broker(self) -> None:
        """SIGKILL."""
        broker = self._some_reading()
        broker.kill()
        self._later(self._chance.choice((0.02, 0.2, 1.0, 3.0)) * (0.5 + self._chance.random()), broker.start)

    def restart_reading_broker(self) -> None:
        """An orderly stop, and a start after it."""
        self._some_reading().stop()

    def pause_reading_broker(self) -> None:
        """It stands still for a while, maybe for longer than its session lasts, and notices nothing of it."""
        self._pause(self._some_reading().node)

    def expire_reading_session(self) -> None:
        """The metadata service ends its session; it hears of that a while later."""
        self._some_reading().lose_session()

    def split_reading_from_metadata(self) -> None:
        """It and the metadata service do not hear each other, but everybody else does."""
        self._split([METADATA_HOST])

    def split_reading_from_owners(self) -> None:
        """It and the brokers that write do not hear each other."""
        self._split(self.writing_hosts)

    def split_reading_from_bookies(self) -> None:
        """It and some bookies do not hear each other."""
        bookies = [bookie.node.name for bookie in self._cluster.bookies]
        self._split(self._chance.sample(bookies, self._chance.randint(1, len(bookies))))

    def cut_off_reading_broker(self) -> None:
        """All its connections with brokers that write break, or those with bookies."""
        name = self._some_reading().node.name
        bookies = [bookie.node.name for bookie in self._cluster.bookies]
        for other in self._chance.choice((self.writing_hosts, bookies)):
            self._world.network.reset(name, other)

    def _split(self, others: list[str]) -> None:
        name = self._some_reading().node.name
        self._later(2 * self._duration(), self._world.network.partition([name], others))

    def _some_reading(self) -> SimulatedReadOnlyBroker:
        return self._chance.choice(self.reading)
