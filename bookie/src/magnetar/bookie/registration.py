"""How the cluster learns of this bookie: an ephemeral node with its addresses (BookKeeper: ZKRegistrationManager)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import Unavailable
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, NodeNotFound, SessionEvent, VersionConflict
from magnetar.wire.bookkeeper.generated.bookie_service_info_pb2 import BookieServiceInfoFormat

logger: Final = logging.getLogger(__name__)

AVAILABLE_PATH: Final = "/ledgers/available"
READ_ONLY_PATH: Final = "/ledgers/available/readonly"
LAYOUT_PATH: Final = "/ledgers/LAYOUT"
LAYOUT: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
"""What BookKeeper's own tools want to find: layout format 2, the ledger manager and its version."""

UNREGISTER_SECONDS_MAX: Final = 2.0
"""A bookie that stops while the store is away must still get to its last checkpoint; its session ends by itself."""

RETRY_SECONDS: Final = 1.0
"""Between attempts while the store cannot be reached; a bookie that nobody can see has nothing better to do."""


def encode_service_info(host: str, port: int, properties: dict[str, str] | None = None) -> bytes:
    """Where the bookie's protocol is served."""
    info = BookieServiceInfoFormat()
    endpoint = info.endpoints.add()
    endpoint.id = "bookie"
    endpoint.host = host
    endpoint.port = port
    endpoint.protocol = "bookie-rpc"
    for key, value in (properties or {}).items():
        info.properties[key] = value
    return info.SerializeToString()


class BookieRegistration:
    """Keeps one of the two nodes (writable, read-only) in place, through lost sessions, until closed."""

    def __init__(self, store: MetadataStore, bookie_id: str, service_info: bytes) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._service_info = service_info
        self._read_only = False
        self._wanted = asyncio.Event()
        self._stop_watching: Callable[[], None] = lambda: None

    async def start(self, *, read_only: bool) -> None:
        """Prepare the tree and register. `Unavailable` when the store cannot be reached."""
        self._read_only = read_only
        for path, value in ((LAYOUT_PATH, LAYOUT), (READ_ONLY_PATH, b"")):
            if not await self._store.exists(path):
                try:
                    await self._store.put(path, value, MUST_NOT_EXIST)
                except VersionConflict:
                    continue  # Another bookie was faster; it writes the same.
        await self._register()
        self._stop_watching = self._store.watch_session(self._session_changed)

    async def run(self) -> None:
        """Register again whenever it is needed, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._register()
            except (Unavailable, VersionConflict) as error:
                logger.warning("bookie %s cannot register now: %s", self._bookie_id, error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wanted.set()

    def set_read_only(self, *, read_only: bool) -> None:
        """Move to the other node, soon."""
        if read_only != self._read_only:
            self._read_only = read_only
            self._wanted.set()

    async def close(self) -> None:
        """Take both nodes away; a store that cannot be reached does that by itself when the session ends."""
        self._stop_watching()
        try:
            async with asyncio.timeout(UNREGISTER_SECONDS_MAX):
                await self._remove(AVAILABLE_PATH)
                await self._remove(READ_ONLY_PATH)
        except (Unavailable, TimeoutError) as error:
            logger.info("bookie %s could not be unregistered: %s", self._bookie_id, str(error) or "no answer in time")

    async def _register(self) -> None:
        here, there = (READ_ONLY_PATH, AVAILABLE_PATH) if self._read_only else (AVAILABLE_PATH, READ_ONLY_PATH)
        path = f"{here}/{self._bookie_id}"
        node = await self._store.get(path)
        if node is not None and not node.stat.owned_by_this_session:
            # Left by an earlier run of this bookie: its node would vanish with its session. That no other process
            # has our data is what the index's lock and the cookie see to.
            await self._remove(here)
            node = None
        if node is None:
            await self._store.put(path, self._service_info, MUST_NOT_EXIST, ephemeral=True)
            logger.info("bookie %s registered as %s", self._bookie_id, "read-only" if self._read_only else "writable")
        await self._remove(there)

    async def _remove(self, parent: str) -> None:
        try:
            await self._store.delete(f"{parent}/{self._bookie_id}")
        except NodeNotFound:
            return

    def _session_changed(self, event: SessionEvent) -> None:
        if event in (SessionEvent.SESSION_RESTARTED, SessionEvent.RECONNECTED):
            self._wanted.set()
