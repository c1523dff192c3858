"""What the driver has to know of topics: which there are, their ledgers, their ends.

Brokers or the metadata store tell: `brokers.catalog` and `bookies.catalog` implement `TopicCatalog`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.spark.positions import MessagePosition

CLOSED_AT_UNKNOWN_TIME: Final = 1 << 62
"""`closed_ms` of a ledger that is closed and nobody may say when: later than any time that is looked for, so that no
search leaves it out. Nor does it say when the next ledger was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLedger:
    """One ledger of a topic, as it is now."""

    ledger_id: int
    entries: int
    """Confirmed ones: 0..entries-1 can be read."""
    size_bytes: int
    """Bytes of the confirmed entries' payloads; for the ledger in use a good estimate is enough."""
    closed_ms: int = 0
    """When it was closed, or `CLOSED_AT_UNKNOWN_TIME`; 0: it is in use."""
    metadata: bytes = b""
    """LedgerMetadata as it stands in the metadata store, for those who read from bookies; else empty."""
    offloaded: bool = False
    """Its entries are (also) in tiered storage; what bookies still have of it is read from them."""
    missing: bool = False
    """The topic lists it and the metadata store has it no more: a hole, not retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic (or one partition) as it is now. `ledgers` ascend; retention takes away from the front."""

    topic: str
    """The topic's complete name: persistent://tenant/namespace/local[-partition-N]."""
    ledgers: tuple[TopicLedger, ...]
    end: MessagePosition
    """Right behind the last message that a consumer may get (open transactions hold it back)."""
    properties: Mapping[str, str] | None = None
    end_certain: bool = True
    """False: no broker was there to tell the end. What bookies know of the ledger in use may be less than what readers
    were given of it before."""
    ledgers_known: bool = True
    """False when only brokers were asked, by the binary protocol: they tell the end alone. Then `ledgers` has at most
    the ledger that the end is in, with no size; others may be before it, and every position before the end may be one
    that is there. Such a stretch is read as a whole: `planning.plan.stretch_ranges`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Which topics a user wants: exactly one of these is set."""

    names: tuple[str, ...] = ()
    """Topics; those with partitions stand for all of them. Complete names."""
    pattern: str = ""
    """A regular expression over complete names without `-partition-N`; its namespace is literal."""


class TopicCatalog(Protocol):
    """Everything is asked anew at each call; who calls often keeps the answers. Unreachable: `ClusterUnreachable`."""

    async def topics(self, selection: TopicSelection) -> list[str]:
        """Complete names of all topics and partitions that there are, sorted. A name without any topic is left out:
        the caller decides whether that is `TopicMissing`."""
        ...

    async def states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """Each topic as it is now; those that are no more are left out. Asks for several at a time."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
