"""Which bookies there are, read from the metadata store."""

from __future__ import annotations

from typing import Final

from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_NAME, READ_ONLY_PATH
from magnetar.metadata.store import MetadataStore

COOKIES_PATH: Final = "/ledgers/cookies"


async def available_bookies(store: MetadataStore) -> frozenset[str]:
    """Those that are up, writable or read-only. The lists are watched from then on.

    A bookie that changes between writable and read-only makes one node before it removes the other, so the writable
    ones are read before and after the others: it is never missed."""
    writable = await store.children(AVAILABLE_PATH)
    read_only = await store.children(READ_ONLY_PATH)
    writable_again = await store.children(AVAILABLE_PATH)
    return frozenset(name for name in (*writable, *read_only, *writable_again) if name != READ_ONLY_NAME)


async def known_bookies(store: MetadataStore) -> frozenset[str]:
    """Those that have a cookie, up or not: they hold ledgers."""
    return frozenset(await store.children(COOKIES_PATH))


def tells_of_bookies(path: str) -> bool:
    """Whether a notification about this path may mean that bookies came or went."""
    return path in (AVAILABLE_PATH, READ_ONLY_PATH)
