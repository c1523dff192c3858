"""What clients of topics that move are told, once there is a broker that serves them again.

A client that hears at once that its producer is closed looks the topic up while nobody can serve it, and then waits
before it tries again. Told a moment later, it finds the new owner at its first try.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from magnetar.broker.peers.addresses import BrokerAddresses

Goodbye: TypeAlias = Callable[[str, str], None]
"""Tells one client; gets the URL of the broker to go to, and that for TLS, both empty: look it up."""


class Farewell:
    """Collects who is to be told; `say` tells them, and from then on whoever comes is told at once."""

    __slots__ = ("_goodbyes", "_urls")

    def __init__(self) -> None:
        self._goodbyes: list[Goodbye] = []
        self._urls: tuple[str, str] | None = None

    def add(self, goodbye: Goodbye) -> None:
        """One client more."""
        if self._urls is None:
            self._goodbyes.append(goodbye)
        else:
            goodbye(*self._urls)

    def say(self, destination: BrokerAddresses | None = None) -> None:
        """Tell everybody: go there, or look it up. Only the first call counts.

        A broker with advertised listeners has several addresses, and only a lookup tells which one a client can reach.
        """
        if self._urls is not None:
            return
        urls = "", ""
        if destination is not None and not destination.listeners:
            urls = destination.service_url or "", destination.service_url_tls or ""
        self._urls = urls
        goodbyes, self._goodbyes = self._goodbyes, []
        for goodbye in goodbyes:
            goodbye(*urls)
