"""Writes that know what became of them: an answer that is lost is asked for again, and a writer is no conflict with
itself.

A write by compare-and-set that is asked for once more settles the first one. Either it succeeds, then the first did not
happen and never will, for both want the same version. Or it meets a node of the next version with this very value.
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.metadata.store import (
    MetadataStore,
    Node,
    NodeNotFound,
    NodeTooLarge,
    Stat,
    StoreClosed,
    StoreUnavailable,
    VersionConflict,
)

ATTEMPTS_MAX: Final = 3
"""Attempts at one write. A second one waits for the connection that the first one lost, so that a third is hardly
wanted."""

ATTEMPTS_SECONDS_MAX: Final = 30.0
"""After so long no attempt begins: as long as sessions last by default, and as callers wait for one operation."""

PAUSE_SECONDS: Final = 0.2
"""Seconds between two attempts, for stores that fail at once."""


class Attempts:
    """Counts the attempts at one write."""

    def __init__(self) -> None:
        self._left = ATTEMPTS_MAX
        self._end_seconds = asyncio.get_running_loop().time() + ATTEMPTS_SECONDS_MAX

    async def again(self, error: StoreUnavailable) -> None:
        """Return when it is time for another attempt; raises the error when there is none."""
        self._left -= 1
        over = asyncio.get_running_loop().time() >= self._end_seconds
        if over or not self._left or isinstance(error, (StoreClosed, NodeTooLarge)):
            raise error
        await asyncio.sleep(PAUSE_SECONDS)


async def put_surely(
    store: MetadataStore, path: str, value: bytes, expected_version: int, *, asked_before: bool = False
) -> Stat:
    """Compare and set (`MUST_NOT_EXIST`: create). `VersionConflict` only for what somebody else wrote.

    `asked_before`: this process has asked for the very same write before, and nobody knows what came of it.
    `StoreUnavailable` when nobody knows after some attempts either."""
    attempts = Attempts()
    unsure = asked_before
    while True:
        try:
            return await store.put(path, value, expected_version)
        except StoreUnavailable as error:
            unsure = True
            await attempts.again(error)
        except VersionConflict:
            if not unsure:
                raise
            try:
                node = await store.get(path, watch=False)
            except StoreUnavailable as error:
                await attempts.again(error)
                continue
            if node is None or (node.stat.version, node.value) != (expected_version + 1, value):
                raise
            return node.stat


async def delete_surely(store: MetadataStore, path: str, node: Node) -> None:
    """Remove the node as it was read, and nothing that was made there since. `NodeNotFound`, `VersionConflict` when
    somebody else removed or changed it before; `StoreUnavailable` as for `put_surely`."""
    attempts = Attempts()
    unsure = False
    while True:
        try:
            if unsure and await _is_gone(store, path, node):
                return
            await store.delete(path, node.stat.version)
        except NodeNotFound:
            if unsure:
                return
            raise
        except StoreUnavailable as error:
            unsure = True
            await attempts.again(error)
        else:
            return


async def _is_gone(store: MetadataStore, path: str, node: Node) -> bool:
    now = await store.get(path, watch=False)
    if now is None or now.stat.made != node.stat.made:
        return True
    # A node that is made anew begins with version 0. Some stores keep no times.
    anew = now.stat.version < node.stat.version
    return anew or (now.stat.version == node.stat.version and now.value != node.value)
