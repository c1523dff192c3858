"""What a read-only broker's `/metrics` says of how much it has to do."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import aiohttp
from magnetar.control.errors import ControlUnavailable
from magnetar.core.clock import Clock
from magnetar.operator.plan.facts import ReadOnlyBrokerFacts

CONNECTIONS: Final = "pulsar_active_connections"
LAG: Final = "pulsar_read_only_broker_lag_seconds"

PAGE_SECONDS_MAX: Final = 5.0
"""How long the page may take: of many topics it is not made in a moment."""
PAGE_BYTES_MAX: Final = 1_048_576
"""How much of the page is read, in bytes: what is of the broker itself comes before its topics, which may be 100 MB."""
FRESH_SECONDS: Final = 10.0
"""So long an answer is taken for the present: passes may follow each other within two seconds, and a page is dear."""
ANSWERS_MAX: Final = 500
"""Answers that are kept, as many as a cluster may have read-only brokers."""

_OK: Final = 200


class MetricsPages:
    """Reads pages, and keeps what they said for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: OrderedDict[str, tuple[float, ReadOnlyBrokerFacts]] = OrderedDict()
        """By address, the oldest first; with the time by the monotonic clock."""

    async def read_only_broker(self, address: str) -> ReadOnlyBrokerFacts:
        """What the page at `host:port` says. `ControlUnavailable` if there is none in time, or it is no broker's."""
        now_seconds = self._clock.monotonic_seconds()
        kept = self._answers.get(address)
        if kept is not None and now_seconds - kept[0] < FRESH_SECONDS:
            return kept[1]
        found = read_only_facts(await _page(address))
        if found is None:
            raise ControlUnavailable(f"{address}: its metrics have no {CONNECTIONS}")
        self._answers[address] = (now_seconds, found)
        self._answers.move_to_end(address)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return found


def read_only_facts(page: str) -> ReadOnlyBrokerFacts | None:
    """What the page's whole lines say; None if they do not say how many connections there are. A broker without topics
    has no lag."""
    connections, lags = _values(page, CONNECTIONS), _values(page, LAG)
    if not connections:
        return None
    return ReadOnlyBrokerFacts(connections=round(sum(connections)), lag_seconds=max(lags, default=0.0))


def _values(page: str, name: str) -> list[float]:
    found = []
    for line in page.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")):
            # After the labels, in which there may be spaces; a time may follow.
            rest = line.rpartition("}")[2] if line.startswith(f"{name}{{") else line.removeprefix(name)
            try:
                value = float(rest.split()[0])
            except (IndexError, ValueError):
                continue
            if 0 <= value < float("inf"):
                found.append(value)
    return found


async def _page(address: str) -> str:
    """As much of the page as has both, in whole lines."""
    content = bytearray()
    try:
        async with (
            asyncio.timeout(PAGE_SECONDS_MAX),
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}/metrics", allow_redirects=False) as response,
        ):
            if response.status != _OK:
                raise ControlUnavailable(f"{address}: its metrics answer {response.status}")
            async for piece in response.content.iter_any():
                content += piece
                if len(content) >= PAGE_BYTES_MAX or _has_both(content):
                    break
            else:
                content += b"\n"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ControlUnavailable(f"{address}: {str(error) or 'no metrics in time'}") from None
    return content[: content.rfind(b"\n") + 1].decode(errors="replace")


def _has_both(content: bytearray) -> bool:
    """Each in a line that is whole."""
    return all(
        (at := content.find(f"\n{name}".encode())) >= 0 and content.find(b"\n", at + 1) >= 0
        for name in (CONNECTIONS, LAG)
    )
