"""Mistakes in proxies: which broker a client is sent to, and links that have ended."""

from __future__ import annotations

from typing import Final

from magnetar.proxy import lookups
from magnetar.proxy.lookup_links import BrokerLink

from e2e.broker_simulation.protocol import BROKER_PORT
from e2e.simulation.planting import Mistake, Patch, original


def one_broker_for_all() -> list[Patch]:
    """Whoever owns a topic, the first broker is named."""
    right = original(lookups, "_by_way_of_the_proxy")
    return [
        (lookups, "_by_way_of_the_proxy", lambda request_id, url: right(request_id, f"pulsar://broker0:{BROKER_PORT}"))
    ]


def ended_links_are_asked() -> list[Patch]:
    """A lookup connection that has ended is taken for one that stands."""
    return [
        (BrokerLink, "connection_lost", lambda self, error: None),
        (BrokerLink, "tick", lambda self: None),
    ]


PROXY_MISTAKES: Final[dict[str, Mistake]] = {
    "ended-links-are-asked": ended_links_are_asked,
    "one-broker-for-all": one_broker_for_all,
}
