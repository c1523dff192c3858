"""What a store of offloaded ledgers holds, object by object, beside what the topics' records say of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from aiohttp import web
from magnetar.broker.slices import TimeSlice, in_slices
from magnetar.core.errors import MagnetarError, Misuse, PeerError
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.context import copy_of
from magnetar.managed.offload.owed import owed_objects
from magnetar.managed.paths import ledger_path
from magnetar.metadata.paths import check_path
from magnetar.metadata.store import MetadataStore, NodeTooLarge
from magnetar.tiered.api import OffloadedLedgerNotFound, OffloadedObject, Offloader
from magnetar.wire.offload.object_names import MANAGED_LEDGER_KEY

logger: Final = logging.getLogger(__name__)

PAGE_OBJECTS: Final = 200
"""Objects whose metadata is asked for in one step, and whose answers are kept until they are sent."""

ASKED_AT_ONCE: Final = 16
"""Requests to the store at a time: one scan must not hold up those who read."""

CLUSTER_KEY: Final = "pulsarclustername"
"""User metadata that Apache's brokers write (`LedgerOffloader.METADATA_PULSAR_CLUSTER_NAME`)."""


async def scan_answer(
    request: web.Request, offloader: Offloader, store: MetadataStore, cluster: str
) -> web.StreamResponse:
    """All objects as they are found, then how many there are. What the store raises for the first ones is raised; later
    it ends the list, and is told behind it."""
    pages = _Scan(offloader, store, cluster)
    first = await pages.next_page()
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"objects":[')
    sent = 0
    error = ""
    page = first
    while True:
        parts = [msgspec.json.encode(document) for document in page]
        await response.write((b"," if sent and parts else b"") + b",\n".join(parts))
        sent += len(parts)
        if pages.over:
            break
        try:
            page = await pages.next_page()
        except MagnetarError as failure:
            error = str(failure) or repr(failure)
            break
    end = {"total": sent, "errors": pages.errors, "unknown": pages.unknown, **({"lastError": error} if error else {})}
    await response.write(b"]," + msgspec.json.encode(end)[1:])
    await response.write_eof()
    return response


class _Known(NamedTuple):
    """What one topic says of its objects."""

    records: Mapping[int, LedgerRecord]
    """By the id of the ledger."""
    owed: frozenset[UUID]


class _Scan:
    def __init__(self, offloader: Offloader, store: MetadataStore, cluster: str) -> None:
        self._offloader = offloader
        self._store = store
        self._cluster = cluster
        self._after = ""
        self.over = False
        self.errors = 0
        self.unknown = 0

    async def next_page(self) -> list[dict[str, Any]]:
        """Some objects, with their statuses. Those that are deleted meanwhile are left out."""
        page = await self._offloader.page(self._after, count_max=PAGE_OBJECTS)
        self._after, self.over = page.next_after or "", page.next_after is None
        metadata = await in_slices(self._metadata_of, page.objects, ASKED_AT_ONCE)
        known: dict[str, _Known | None] = {}
        documents = []
        turn = TimeSlice()
        for one, found in zip(page.objects, metadata, strict=True):
            if found is None:
                continue
            name = found.get(MANAGED_LEDGER_KEY)
            if name is not None and name not in known:
                known[name] = await self._known_of(name)
            status, seen = self._status(one, found, known.get(name) if name is not None else None)
            self.unknown += status == "UNKNOWN"
            self.errors += status not in ("OK", "UNKNOWN", "OWED")
            documents.append({**_described(one, found), **seen, "status": status})
            if turn.over:
                await turn.pause()
        return documents

    async def _metadata_of(self, one: OffloadedObject) -> Mapping[str, str] | None:
        try:
            return await self._offloader.metadata_of(one.key)
        except OffloadedLedgerNotFound:
            return None

    async def _known_of(self, name: str) -> _Known | None:
        """None: nobody can tell. Whoever writes objects may write any name; what stands in a damaged record may be
        anything, and must not pass for an orphan."""
        try:
            check_path(ledger_path(name))
        except (Misuse, NodeTooLarge):
            return None
        node = await self._store.get(ledger_path(name), watch=False)
        if node is None:
            return _Known({}, frozenset())
        try:
            info = decode_ledger_info(node.value)
        except PeerError as error:
            logger.warning("the scan of offloaded ledgers cannot tell of %s: %s", name, error)
            return None
        return _Known(
            {record.ledger_id: record for record in info.records},
            frozenset(owed.uid for owed in owed_objects(info.properties).values()),
        )

    def _status(
        self, one: OffloadedObject, metadata: Mapping[str, str], known: _Known | None
    ) -> tuple[str, dict[str, Any]]:
        """Pulsar's words (`OffloaderObjectsScannerUtils`), and ours for what is still to be deleted."""
        name = metadata.get(MANAGED_LEDGER_KEY)
        if name is None or known is None or metadata.get(CLUSTER_KEY, self._cluster) != self._cluster:
            return "UNKNOWN", {}
        seen: dict[str, Any] = {"managedLedgerName": name}
        if one.uid in known.owed:
            return "OWED", seen
        record = None if one.ledger_id is None else known.records.get(one.ledger_id)
        if record is None:
            return "NOT-FOUND", seen
        copy = copy_of(record)
        complete = copy is not None and copy.complete
        seen |= {"numEntries": record.entries, "offloaded": complete}
        if copy is None or not complete:
            return "NOT-OFFLOADED", seen
        return ("OK" if copy.uid == one.uid else "BAD-UUID"), seen


def _described(one: OffloadedObject, metadata: Mapping[str, str]) -> dict[str, Any]:
    return {
        "ledger": one.ledger_id,
        "name": one.key,
        "uuid": str(one.uid),
        "size": one.size_bytes,
        "lastModified": one.modified_ms,
        "userMetadata": dict(metadata),
    }
