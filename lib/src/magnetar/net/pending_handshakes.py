"""Connections that were accepted and do not stand yet, as their TLS handshake is under way: how many there may be.

When there are too many, some have to go: those that have taken longest. A half handshake gets old, an honest one takes
a few round trips. A network that has many goes before all others, so that it takes no place of theirs; by age it would,
of honest clients that are far away. Who has several is no worse than others: a proxy has, and whoever floods may have
any number of addresses.

How long each may take goes by what became of others. When all clients come back at once, each handshake waits for many
others, and nearly all are finished; then more are accepted only as these are. Half handshakes never are: who means no
good has little time soon, and honest clients find room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from magnetar.net.descriptors import HANDSHAKES_MIN
from magnetar.net.refused_connections import LimitKind, network_of_host

PATIENCE_SECONDS: Final = 1.0
"""To begin with, how long a handshake may take before it makes room for another."""

PATIENCE_SECONDS_MAX: Final = 5.0
"""A thousand handshakes take so long on a processor that does two hundred in a second."""

CUT_PER_SECOND_MAX: Final = 20_000
"""Patience with a network that has more than its share does not get shorter than this makes it: with a thousand places,
50 ms."""

CUT_BY_AGE_PER_SECOND_MAX: Final = 1_500
"""Patience with all others does not get shorter than this makes it. With a thousand places it is 0.7 s, two round trips
of 0.3 s: as far as a client can be, with the TLS that takes two. A kernel's queue of 4 096 others, in which an honest
client waits then, is over in 3 s."""

SHARE_OF_NETWORK: Final = 4
"""A network has more than its share when it has more than one place of so many. Whoever floods from fewer networks
takes nothing of others; a proxy through which a herd comes, beside a flood from many, has so much in any case."""

PATIENCE_OF_FINISHED: Final = 1.002
"""Each handshake that is finished makes patience so much longer."""

PATIENCE_OF_FAILED: Final = 0.98
"""Each one that fails or has to go makes it so much shorter, while half of the room is taken or more: as much as ten
that are finished make it longer."""


Arrival = TypeVar("Arrival")


@dataclass(frozen=True, slots=True)
class _Came:
    host: str
    network: str
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
        # The oldest first, each.
        self._of_host: dict[str, dict[Arrival, None]] = {}
        self._of_network: dict[str, dict[Arrival, None]] = {}

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
        candidate, patience_seconds = self._crowd(), self.patience_seconds
        if candidate is None:
            candidate = next(iter(self._came))
            patience_seconds = max(patience_seconds, self._room / CUT_BY_AGE_PER_SECOND_MAX)
        return self._came[candidate].at_seconds + patience_seconds - now_seconds

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
        else:
            self._room = self.room(left)
            if len(self._came) >= self._room:
                crowd = self._crowd()
                gone = next(iter(self._came)) if crowd is None else crowd, LimitKind.HANDSHAKES
        if gone is not None:
            self.leave(gone[0])
        network = network_of_host(host)
        self._came[arrival] = _Came(host, network, now_seconds)
        self._of_host.setdefault(host, {})[arrival] = None
        self._of_network.setdefault(network, {})[arrival] = None
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
        for among, key in ((self._of_host, came.host), (self._of_network, came.network)):
            del among[key][arrival]
            if not among[key]:
                del among[key]

    def all(self) -> list[Arrival]:
        """All connections that wait, the oldest first."""
        return list(self._came)

    def _crowd(self) -> Arrival | None:
        """The oldest of the network that has most, if that is more than its share."""
        most = max(self._of_network.values(), key=len)
        return next(iter(most)) if len(most) > max(1, self._room // SHARE_OF_NETWORK) else None
