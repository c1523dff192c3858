"""What a store of offloaded ledgers holds, object by object, beside what the topics' records say of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web
from magnetar.core.errors import MagnetarError
from magnetar.managed.info_codec import LedgerInfo, decode_ledger_info
from magnetar.managed.offload.context import copy_of
from magnetar.managed.offload.owed import owed_objects
from magnetar.managed.paths import ledger_path
from magnetar.metadata.store import MetadataStore
from magnetar.tiered.api import OffloadedObject, Offloader
from magnetar.wire.offload.object_names import MANAGED_LEDGER_KEY

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


class _Scan:
    def __init__(self, offloader: Offloader, store: MetadataStore, cluster: str) -> None:
        self._offloader = offloader
        self._store = store
        self._cluster = cluster
        self._after = ""
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self.over = False
        self.errors = 0
        self.unknown = 0

    async def next_page(self) -> list[dict[str, Any]]:
        """Some objects, with their statuses."""
        page = await self._offloader.page(self._after, count_max=PAGE_OBJECTS)
        self._after, self.over = page.next_after or "", page.next_after is None
        metadata = await asyncio.gather(*(self._metadata_of(one) for one in page.objects))
        records: dict[str, LedgerInfo | None] = {}
        documents = []
        for one, found in zip(page.objects, metadata, strict=True):
            name = found.get(MANAGED_LEDGER_KEY)
            if name is not None and name not in records:
                records[name] = await self._records_of(name)
            status, seen = self._status(one, found, records.get(name) if name is not None else None)
            self.unknown += status == "UNKNOWN"
            self.errors += status not in ("OK", "UNKNOWN", "OWED")
            documents.append({**_described(one, found), **seen, "status": status})
        return documents

    async def _metadata_of(self, one: OffloadedObject) -> Mapping[str, str]:
        async with self._turns:
            return await self._offloader.metadata_of(one.key)

    async def _records_of(self, name: str) -> LedgerInfo | None:
        node = await self._store.get(ledger_path(name), watch=False)
        return None if node is None else decode_ledger_info(node.value)

    def _status(
        self, one: OffloadedObject, metadata: Mapping[str, str], info: LedgerInfo | None
    ) -> tuple[str, dict[str, Any]]:
        """Pulsar's words (`OffloaderObjectsScannerUtils`), and ours for what is still to be deleted."""
        name = metadata.get(MANAGED_LEDGER_KEY)
        if name is None or metadata.get(CLUSTER_KEY, self._cluster) != self._cluster:
            return "UNKNOWN", {}
        seen: dict[str, Any] = {"managedLedgerName": name}
        if info is not None and any(owed.uid == one.uid for owed in owed_objects(info.properties).values()):
            return "OWED", seen
        record = None
        if info is not None:
            record = next((each for each in info.records if each.ledger_id == one.ledger_id), None)
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
