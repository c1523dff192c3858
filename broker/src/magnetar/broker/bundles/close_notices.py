"""What clients of topics that move are told, once there is a broker that serves them again.

A client that hears at once that its producer is closed looks the topic up while nobody can serve it, and then waits
before it tries again. Told a moment later, it finds the new owner at its first try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from magnetar.broker.peers.addresses import BrokerAddresses

CloseNotice: TypeAlias = Callable[[str, str], None]
"""Tells one client that its producer or consumer is closed. It gets the URL of the broker to go to, and that for TLS;
both are empty when the client has to look the topic up."""


SENT_AT_ONCE: Final = 500
"""In one turn of the event loop: some ten milliseconds. A topic may have ten thousand consumers."""


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
        self._send_some(urls)

    def _send_some(self, urls: tuple[str, str]) -> None:
        some, self._notices = self._notices[:SENT_AT_ONCE], self._notices[SENT_AT_ONCE:]
        for notice in some:
            notice(*urls)
        if self._notices:
            asyncio.get_running_loop().call_soon(self._send_some, urls)


def urls_of(broker: BrokerAddresses) -> tuple[str, str]:
    """What a close notice says of where to go: a URL and one for TLS, empty for who has to look it up.

    A broker with advertised listeners has several addresses, and only a lookup tells which one a client can reach."""
    return ("", "") if broker.listeners else (broker.service_url or "", broker.service_url_tls or "")
