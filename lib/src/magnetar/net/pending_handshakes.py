"""Connections that were accepted and do not stand yet, as their TLS handshake is under way: how many there may be.

When there are too many, some have to go: of the address that has most of them, the one that has taken longest. How long
each may take goes by what became of others. When all clients come back at once, each handshake waits for many others,
and nearly all are finished; then more are accepted only as these are. Half handshakes never are: who means no good has
little time soon, and honest clients, who need milliseconds, find room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from magnetar.net.descriptors import HANDSHAKES_MIN
from magnetar.net.refused_connections import LimitKind

PATIENCE_SECONDS: Final = 1.0
"""To begin with, how long a handshake may take before it makes room for another."""

PATIENCE_SECONDS_MAX: Final = 5.0
"""A thousand handshakes take so long on a processor that does two hundred in a second."""

CUT_PER_SECOND_MAX: Final = 20_000
"""Patience does not get shorter than this makes it: with a thousand places, some round trips."""

PATIENCE_OF_FINISHED: Final = 1.002
"""Each handshake that is finished makes patience so much longer."""

PATIENCE_OF_FAILED: Final = 0.98
"""Each one that fails or has to go makes it so much shorter, while half of the room is taken or more: as much as ten
that are finished make it longer."""


Arrival = TypeVar("Arrival")


@dataclass(frozen=True, slots=True)
class _Came:
    host: str
    at_seconds: float


class PendingHandshakes(Generic[Arrival]):
    """The connections that arrive at one port, each with the address that it comes from. Times are a loop's."""

    def __init__(self, places: int) -> None:
        """At most so many handshakes at a time."""
        self.places = places
        self.patience_seconds = PATIENCE_SECONDS
        self._patience_seconds_min = places / CUT_PER_SECOND_MAX
        self._room = places
        self._came: dict[Arrival, _Came] = {}
        self._of_host: dict[str, dict[Arrival, None]] = {}  # The oldest first.

    def __len__(self) -> int:
        return len(self._came)

    def room(self, left: int) -> int:
        """How many may arrive at a time while so many more connections may stand."""
        return min(self.places, max(HANDSHAKES_MIN, left))

    def wait_seconds(self, now_seconds: float, left: int) -> float:
        """How long to wait before another one is accepted, unless one stands before; 0 or less: not at all. `left` as
        for `enter`."""
        self._room = self.room(left)
        if len(self._came) < self._room:
            return 0.0
        return self._came[self._candidate()].at_seconds + self.patience_seconds - now_seconds

    def enter(
        self, arrival: Arrival, host: str, now_seconds: float, left: int, left_of_host: int
    ) -> tuple[Arrival, LimitKind] | None:
        """One arrives. Returns who has to go for it, and is not counted any more.

        `left` and `left_of_host` are how many connections may still come to stand, altogether and from this address.
        One of each address may arrive in any case: only when it stands, it can be told why it has to go."""
        gone: tuple[Arrival, LimitKind] | None = None
        of_host = self._of_host.get(host)
        if of_host and len(of_host) >= max(1, left_of_host):
            gone = next(iter(of_host)), LimitKind.HANDSHAKES_OF_ADDRESS
        elif len(self._came) >= self.room(left):
            gone = self._candidate(), LimitKind.HANDSHAKES
        if gone is not None:
            self.leave(gone[0])
        self._came[arrival] = _Came(host, now_seconds)
        self._of_host.setdefault(host, {})[arrival] = None
        return gone

    def stands(self, arrival: Arrival) -> None:
        """Its handshake is finished."""
        if arrival in self._came:
            self.patience_seconds = min(PATIENCE_SECONDS_MAX, self.patience_seconds * PATIENCE_OF_FINISHED)
            self._forget(arrival)

    def leave(self, arrival: Arrival) -> None:
        """Take a connection out: it is gone, or has to go. Twice is no error."""
        if arrival not in self._came:
            return
        # A load balancer's looks fail as well, but take nobody's room. Where there is none, several may leave at once.
        if 2 * len(self._came) >= self._room:
            self.patience_seconds = max(self._patience_seconds_min, self.patience_seconds * PATIENCE_OF_FAILED)
        self._forget(arrival)

    def _forget(self, arrival: Arrival) -> None:
        came = self._came.pop(arrival)
        of_host = self._of_host[came.host]
        del of_host[arrival]
        if not of_host:
            del self._of_host[came.host]

    def all(self) -> list[Arrival]:
        """All connections that wait, the oldest first."""
        return list(self._came)

    def _candidate(self) -> Arrival:
        """Who has to go first."""
        most = max(self._of_host, key=lambda host: len(self._of_host[host]))
        return next(iter(self._of_host[most]))
