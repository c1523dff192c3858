"""What load management decided, and how it went: for people, in order, bounded."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Final

from magnetar.balance.model import Decision, Placement, Split, Unload

logger: Final = logging.getLogger(__name__)

DECISIONS_KEPT_MAX: Final = 1_000
PLACEMENTS_KEPT_MAX: Final = 1_000
"""Each about 1 kB; placements are kept apart, as there may be thousands in a moment."""


class LoggedDecision:
    """One decision. `outcome` is "running", "done" or "failed"; a placement is done when it is made."""

    __slots__ = ("bundle", "decided_ms", "destination", "error", "kind", "outcome", "reason", "source", "took_ms")

    def __init__(self, kind: str, bundle: str, reason: str, decided_ms: int) -> None:
        self.kind = kind
        self.bundle = bundle
        self.reason = reason
        self.decided_ms = decided_ms
        self.source: str | None = None
        self.destination: str | None = None
        self.outcome = "running"
        self.error: str | None = None
        self.took_ms = 0

    def document(self) -> dict[str, Any]:
        """For the admin API."""
        return {
            "kind": self.kind,
            "bundle": self.bundle,
            "broker": self.source,
            "destination": self.destination,
            "reason": self.reason,
            "decidedMillis": self.decided_ms,
            "outcome": self.outcome,
            "error": self.error,
            "tookMillis": self.took_ms,
        }


class DecisionLog:
    """The latest decisions and placements, oldest first, and how many there were of each kind."""

    def __init__(self) -> None:
        self.decisions: deque[LoggedDecision] = deque(maxlen=DECISIONS_KEPT_MAX)
        self.placements: deque[LoggedDecision] = deque(maxlen=PLACEMENTS_KEPT_MAX)
        self.splits = 0
        self.unloads = 0
        self.unloading_brokers = 0
        """How often a round moved something off a broker: Pulsar's `unload_broker`."""
        self.failures = 0
        self.placed = 0

    def begin(self, decision: Decision, now_ms: int) -> LoggedDecision:
        """A decision that is about to be carried out; one line in the log."""
        match decision:
            case Split():
                entry = LoggedDecision("split", str(decision.bundle), decision.reason, now_ms)
                entry.source = decision.broker_id
                logger.info(
                    "load management splits %s on %s by %s: %s",
                    decision.bundle, decision.broker_id, decision.algorithm, decision.reason,
                )  # fmt: skip
            case Unload():
                entry = LoggedDecision("unload", str(decision.bundle), decision.reason, now_ms)
                entry.source, entry.destination = decision.source, decision.destination
                logger.info(
                    "load management moves %s from %s to %s: %s",
                    decision.bundle, decision.source, decision.destination or "where it is placed", decision.reason,
                )  # fmt: skip
        self.decisions.append(entry)
        return entry

    def end(self, entry: LoggedDecision, error: Exception | None, took_ms: int) -> None:
        """How it went; a failure is a line in the log."""
        entry.took_ms = took_ms
        if error is not None:
            entry.outcome, entry.error = "failed", str(error) or type(error).__name__
            self.failures += 1
            logger.warning("to %s %s failed: %s", entry.kind, entry.bundle, entry.error)
            return
        entry.outcome = "done"
        if entry.kind == "split":
            self.splits += 1
        else:
            self.unloads += 1

    def placed_bundle(self, placement: Placement, now_ms: int) -> None:
        """A bundle that nobody owned was given to somebody; one line in the log."""
        entry = LoggedDecision("place", str(placement.bundle), placement.reason, now_ms)
        entry.destination = placement.broker_id
        if placement.broker_id is None:
            entry.outcome = "failed"
            logger.warning("no broker for %s: %s", placement.bundle, placement.reason)
        else:
            entry.outcome = "done"
            self.placed += 1
            logger.info("placed %s on %s: %s", placement.bundle, placement.broker_id, placement.reason)
        self.placements.append(entry)
