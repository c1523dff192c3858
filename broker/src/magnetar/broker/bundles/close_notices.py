"""What clients of topics that move are told, once there is a broker that serves them again.

A client that hears at once that its producer is closed looks the topic up while nobody can serve it, and then waits
before it tries again. Told a moment later, it finds the new owner at its first try.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from magnetar.broker.peers.addresses import BrokerAddresses

CloseNotice: TypeAlias = Callable[[str, str], None]
"""Tells one client that its producer or consumer is closed. It gets the URL of the broker to go to, and that for TLS;
both are empty when the client has to look the topic up."""


class CloseNotices:
    """Collects the close notices of topics that move; `send` sends them, and from then on each is sent at once."""

    __slots__ = ("_notices", "_urls")

    def __init__(self) -> None:
        self._notices: list[CloseNotice] = []
        self._urls: tuple[str, str] | None = None

    def add(self, notice: CloseNotice) -> None:
        """One client more."""
        if self._urls is None:
            self._notices.append(notice)
        else:
            notice(*self._urls)

    def send(self, destination: BrokerAddresses | None = None) -> None:
        """Tell everybody: go there, or look it up. Only the first call counts."""
        if self._urls is not None:
            return
        self._urls = urls = ("", "") if destination is None else urls_of(destination)
        notices, self._notices = self._notices, []
        for notice in notices:
            notice(*urls)


def urls_of(broker: BrokerAddresses) -> tuple[str, str]:
    """What a close notice says of where to go: a URL and one for TLS, empty for who has to look it up.

    A broker with advertised listeners has several addresses, and only a lookup tells which one a client can reach."""
    return ("", "") if broker.listeners else (broker.service_url or "", broker.service_url_tls or "")
