"""What limits a whole broker: rates, the bytes that wait to be stored, connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.client_memory import ClientMemory
from magnetar.broker.policies.limiter import RateLimiter, limiter_for
from magnetar.broker.policies.model import Rate
from magnetar.broker.policies.publish_buffer import PublishBuffer
from magnetar.broker.policies.send_turns import SendTurns
from magnetar.broker.settings.policies import PolicySettings
from magnetar.net.descriptors import clients_max
from magnetar.net.refused_connections import ConnectionLimit, LimitKind, RefusedConnections, host_of, limit_of_all
from magnetar.net.requests import ServerRequests
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.core.clock import CallLater, Clock

TOTAL_SETTING: Final = "brokerMaxConnections"
PER_ADDRESS_SETTING: Final = "brokerMaxConnectionsPerIp"


class ConnectionLimits:
    """How many clients are connected, altogether and from each address; 0 is no limit but the files that the process
    may have open. One address gets four fifths of what there is at most: one client must not keep out all others."""

    __slots__ = ("_limit", "_per_address", "_per_address_limit", "opened_total", "refused", "total")

    def __init__(
        self, total_max: int, per_address_max: int, call_later: CallLater, files_max: int | None = None
    ) -> None:
        """`files_max`: how many connections the process has files for; None: as the system says."""
        files_max = files_max if files_max is not None else clients_max()
        self._limit = limit_of_all(total_max, TOTAL_SETTING, files_max)
        self._per_address_limit = limit_of_address(per_address_max, self._limit)
        self._per_address: dict[str, int] = {}
        self.refused = RefusedConnections(call_later=call_later)
        """By these limits, and by others of the same broker."""
        self.total = 0
        """Those that are open."""
        self.opened_total = 0
        """Those that were ever opened."""

    def opened(self, peer_address: str) -> None:
        """Count a connection. Raises PulsarError(NOT_ALLOWED_ERROR) for one too many, which is not counted; the log
        has a few lines a minute about these."""
        address = host_of(peer_address)
        here = self._per_address.get(address, 0)
        of_address = self._per_address_limit
        if self._limit.connections_max <= self.total:
            self.refused.refused(peer_address, self._limit)
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "Reached the maximum number of connections")
        if of_address is not None and of_address.connections_max <= here:
            self.refused.refused(peer_address, of_address)
            text = f"Reached the maximum number of connections on address{peer_address}"
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, text)
        self.total += 1
        self.opened_total += 1
        if of_address is not None:
            self._per_address[address] = here + 1

    def left(self) -> int:
        """How many more connections may be opened."""
        return self._limit.connections_max - self.total

    def left_of(self, host: str) -> int:
        """How many more connections may be opened from a host."""
        left = self.left()
        of_address = self._per_address_limit
        if of_address is not None:
            left = min(left, of_address.connections_max - self._per_address.get(f"/{host}", 0))
        return left

    def closed(self, peer_address: str) -> None:
        """A connection that was counted is gone."""
        self.total -= 1
        address = host_of(peer_address)
        left = self._per_address.get(address, 0) - 1
        if left > 0:
            self._per_address[address] = left
        else:
            self._per_address.pop(address, None)


class BrokerLimits:
    """The limits that all connections of a broker share; a limiter that is None limits nothing."""

    __slots__ = (
        "_call_later",
        "_clock",
        "client_memory",
        "connections",
        "dispatch",
        "publish",
        "publish_buffer",
        "requests",
        "send_turns",
        "settings",
    )

    def __init__(self, settings: PolicySettings, clock: Clock, call_later: CallLater) -> None:
        self._clock = clock
        self._call_later = call_later
        self.publish: RateLimiter | None = None
        self.dispatch: RateLimiter | None = None
        self.publish_buffer = PublishBuffer(settings.publish_buffer_bytes_max)
        self.connections = ConnectionLimits(settings.connections_max, settings.connections_per_address_max, call_later)
        self.requests = ServerRequests(clock.monotonic_seconds)
        self.send_turns = SendTurns()
        self.client_memory = ClientMemory()
        self.use_settings(settings)

    def use_settings(self, settings: PolicySettings) -> None:
        """Hold to other rates from now on; topics have to follow their policies again, for the rate of dispatch.

        The limits of connections stay as they are."""
        self.settings = settings
        self.publish_buffer.limit(settings.publish_buffer_bytes_max)
        clock, call_later = self._clock, self._call_later
        publish = Rate(settings.publish_messages, settings.publish_bytes)
        dispatch = Rate(settings.dispatch_messages, settings.dispatch_bytes)
        self.publish = limiter_for(publish, self.publish, clock, call_later, "broker's publish rate")
        self.dispatch = limiter_for(dispatch, self.dispatch, clock, call_later, "broker's dispatch rate")


def limit_of_address(per_address_max: int, of_all: ConnectionLimit) -> ConnectionLimit | None:
    """For each address; None: no limit. Where the bound of all makes it smaller, that one is to be raised."""
    if per_address_max <= 0:
        return None
    share = -(-of_all.connections_max * 4 // 5)
    if per_address_max <= share:
        return ConnectionLimit(per_address_max, LimitKind.ADDRESS, PER_ADDRESS_SETTING)
    return ConnectionLimit(share, LimitKind.ADDRESS, of_all.setting)
