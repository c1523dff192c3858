"""Which of the brokers that clients name are brokers: a proxy tells its own credentials to no other host.

Proven is what is registered, what the settings name, and what a broker has named in a lookup's answer not long ago.
Where brokers do not register themselves, several proxies behind one address do not know each other's answers; then the
settings' lists of host names or addresses are what an operator vouches for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from magnetar.core.clock import Clock
from magnetar.proxy.discovery import BrokerChoice
from magnetar.proxy.settings import TargetSettings
from magnetar.proxy.targets import ANY, TargetDenied

ANSWERS_MAX: Final = 10_000
"""Brokers that are remembered; no cluster has so many."""

ANSWER_SECONDS: Final = 600.0
"""Clients connect right after their lookup, and look up again before they connect again. Addresses of pods that are
gone go to others."""


class TargetUnknown(TargetDenied):
    """A client named what nothing says to be a broker."""


class ProvenTargets:
    """What is known of brokers' addresses."""

    def __init__(
        self, settings: TargetSettings, brokers: BrokerChoice, clock: Clock, *, shows_credentials: bool
    ) -> None:
        """`shows_credentials`: the proxy has some of its own."""
        self._brokers = brokers
        self._clock = clock
        only_active = brokers.discovered if settings.only_active is None else settings.only_active
        listed = ANY not in settings.host_names or ANY not in settings.addresses
        self._wanted = only_active or (shows_credentials and not listed)
        self._answered: OrderedDict[str, float] = OrderedDict()

    def answered(self, host_and_port: str) -> None:
        """A broker has named this one as who serves a topic."""
        if not self._wanted:
            return
        name = host_and_port.lower()
        self._answered[name] = self._clock.monotonic_seconds()
        self._answered.move_to_end(name)
        if len(self._answered) > ANSWERS_MAX:
            self._answered.popitem(last=False)

    async def check(self, host_and_port: str) -> None:
        """`TargetUnknown` for what is not proven and must be; `Unavailable` when that cannot be found out."""
        if not self._wanted:
            return
        answered_seconds = self._answered.get(host_and_port.lower())
        if answered_seconds is not None and self._clock.monotonic_seconds() - answered_seconds < ANSWER_SECONDS:
            return
        if not await self._brokers.confirm(host_and_port):
            raise TargetUnknown(f"no broker is registered at {host_and_port!r}, and none has named it")
