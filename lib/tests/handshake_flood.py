"""A flood of half handshakes at one port, beside honest clients, in virtual time: for tests."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from magnetar.net.pending_handshakes import PendingHandshakes

PLENTY = 1 << 20
HONEST = "192.0.2.1"
ROUND_TRIPS = 2
"""After the connection stands: as TLS 1.2 takes."""
ACCEPTED_PER_SECOND = 8_000
"""As a broker does, as long as nobody finishes."""
AGAIN_SECONDS = 0.02
"""Until a connection of the flood that was cut comes again."""
FLOOD_ALONE_SECONDS = 3.0
BATCH_EACH_SECONDS = 0.5
REST_SECONDS = 5.0
"""Until the last of the honest ones has been accepted, and stands or is cut."""


@dataclass
class Flood:
    """Some connections that come again each time that they are cut."""

    hosts: Iterator[str]
    connections: int = 1_300


def one_network() -> Iterator[str]:
    """Each time another address of one machine."""
    return networks(1)


def networks(count: int) -> Iterator[str]:
    """So many networks in turn, each time another address of theirs."""
    return (f"2001:db8:0:{number % count:x}::{number >> 16:x}:{number & 0xFFFF:x}" for number in itertools.count())


class Port:
    """Accepts so many in a second at most, in the order in which they came."""

    def __init__(self, places: int, flood: Flood, accepts_per_second: int) -> None:
        self.arrivals: PendingHandshakes[int] = PendingHandshakes(places)
        self.now_seconds = 0.0
        self.stood = 0
        self.longest_seconds = 0.0
        """That an honest client waited to be accepted."""
        self._flood = flood
        self._turn_seconds = 1 / accepts_per_second
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._queue: deque[tuple[str, float, float | None]] = deque()
        self._bad: set[int] = set()

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (seconds, next(self._numbers), call))

    def run(self, until_seconds: float) -> None:
        while self._due and self._due[0][0] <= until_seconds:
            self.now_seconds, _, call = heapq.heappop(self._due)
            call()

    def begin(self) -> None:
        for _ in range(self._flood.connections):
            self._again()
        self._accept()

    def honest(self, rtt_seconds: float) -> None:
        """One connects; it stands after its round trips."""
        self._queue.append((HONEST, self.now_seconds, ROUND_TRIPS * rtt_seconds))

    def _again(self) -> None:
        self._queue.append((next(self._flood.hosts), self.now_seconds, None))

    def _accept(self) -> None:
        wait_seconds = max(self._turn_seconds, self.arrivals.wait_seconds(self.now_seconds, PLENTY))
        if wait_seconds == self._turn_seconds and self._queue:
            self._enter(*self._queue.popleft())
        self.at(self.now_seconds + wait_seconds, self._accept)

    def _enter(self, host: str, came_seconds: float, takes_seconds: float | None) -> None:
        number = next(self._numbers)
        made_room = self.arrivals.enter(number, host, self.now_seconds, PLENTY, PLENTY)
        if made_room is not None and made_room[0] in self._bad:
            self._bad.remove(made_room[0])
            self.at(self.now_seconds + AGAIN_SECONDS, self._again)
        if takes_seconds is None:
            self._bad.add(number)
            return
        self.longest_seconds = max(self.longest_seconds, self.now_seconds - came_seconds)
        self.at(self.now_seconds + takes_seconds, lambda: self._stands(number))

    def _stands(self, number: int) -> None:
        if number in self.arrivals.all():
            self.arrivals.stands(number)
            self.stood += 1


def beside(flood: Flood, rtts_seconds: Sequence[float], at_once: int, *, places: int = 1_024) -> Port:
    """Honest clients of one address come beside a flood, some at once for each round trip time."""
    port = Port(places, flood, ACCEPTED_PER_SECOND)
    port.begin()
    port.run(FLOOD_ALONE_SECONDS)
    for rtt_seconds in rtts_seconds:
        for _ in range(at_once):
            port.honest(rtt_seconds)
        port.run(port.now_seconds + BATCH_EACH_SECONDS)
    port.run(port.now_seconds + REST_SECONDS)
    return port
