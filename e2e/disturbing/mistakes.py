"""Mistakes that storms must notice, planted in servers that run as processes of their own (`mistaken.py`).

Each is a patch of the real code. Nothing of that is imported before it is wanted: one mistake is in a clock that other
modules take over when they are imported.
"""

from __future__ import annotations

import time
from typing import Any, Final

from e2e.simulation.planting import Mistake, Patch, original


def intervals_by_the_wall_clock() -> list[Patch]:
    """Sessions, timeouts and pauses are measured by the clock that people set."""
    return [(time, "monotonic", time.time)]


def answered_before_durable() -> list[Patch]:
    """A bookie answers adds that its journal has not written yet."""
    from magnetar.bookie.journal.journal import Journal

    right = Journal.append

    def append(self: Journal, records: list[bytes], size_bytes: int, done: Any, context: Any) -> None:
        self._loop.call_soon(done, 0, context)
        right(self, records, size_bytes, lambda _code, _context: None, context)

    return [(Journal, "append", append)]


def unanswered_counts_as_done() -> list[Patch]:
    """A write to ZooKeeper that had no answer is taken for done."""
    from magnetar.metadata.store import Stat, StoreUnavailable
    from magnetar.metadata.zookeeper import ZookeeperMetadataStore

    right = original(ZookeeperMetadataStore, "_replace")

    async def replace(self: ZookeeperMetadataStore, path: str, value: bytes, version: int, **options: Any) -> Any:
        try:
            return await right(self, path, value, version, **options)
        except StoreUnavailable:
            return Stat(path, version + 1, 0, 0, ephemeral=False, owned_by_this_session=False)

    return [(ZookeeperMetadataStore, "_replace", replace)]


FORGETFUL_DISK: Final = "forgetful-disk"
"""What is written during a stall is not there; `disturb.c` plants it, and no patch."""

MISTAKES: Final[dict[str, Mistake]] = {
    "answered-before-durable": answered_before_durable,
    "intervals-by-the-wall-clock": intervals_by_the_wall_clock,
    "unanswered-counts-as-done": unanswered_counts_as_done,
}
