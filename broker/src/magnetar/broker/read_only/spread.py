"""Which of the brokers that only read a client is sent to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.broker.load.broker_report import BrokerReport

CLIENT_SHARE: Final = 1.0
"""What a client that was just sent somewhere weighs, in consumers: its broker's next report will count it."""


class Spread:
    """Sends each client where the fewest consumers are, as far as reports and this broker's own answers tell.

    A client that asks again at once, as its subscription is served elsewhere, is sent to another broker each time."""

    def __init__(self, lag_seconds_max: float) -> None:
        self._lag_seconds_max = lag_seconds_max
        self._sent: dict[str, tuple[int, float]] = {}
        """By broker, when its report was made and how many clients it was sent since; as many as there are brokers."""

    def choose(self, readers: Mapping[str, BrokerReport]) -> str | None:
        """The id of the broker that gets the next client; None: there is none."""
        open_ones = {name: one for name, one in readers.items() if not one.draining}
        near = {name: one for name, one in open_ones.items() if one.lag_seconds <= self._lag_seconds_max}
        candidates = near or open_ones or readers
        self._sent = {name: sent for name, sent in self._sent.items() if name in readers}
        if not candidates:
            return None
        chosen = min(sorted(candidates), key=lambda name: self._weight(name, candidates[name]))
        made, sent = self._since(chosen, candidates[chosen])
        self._sent[chosen] = (made, sent + CLIENT_SHARE)
        return chosen

    def _weight(self, name: str, report: BrokerReport) -> float:
        return report.total("consumers") + self._since(name, report)[1]

    def _since(self, name: str, report: BrokerReport) -> tuple[int, float]:
        made, sent = self._sent.get(name, (report.updated_ms, 0.0))
        # Half of those that were sent before may have come after the report was made.
        return (made, sent) if made == report.updated_ms else (report.updated_ms, sent / 2 if sent > 1 else 0.0)
