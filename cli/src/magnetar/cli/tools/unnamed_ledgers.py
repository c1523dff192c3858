"""Ledgers of topics and cursors that nothing names: their space is lost until somebody deletes them.

A broker makes a ledger, then writes its id into the node of the topic or the cursor. One that dies in between leaves a
ledger which no node names, and so does one that dies between the end of an old ledger's use and its deletion. Pulsar's
brokers leave such ledgers, too. Each says in its metadata whose it is (bookkeeper section 7): that is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from magnetar.cli.tools.ledgers import LedgerRow, list_ledgers
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.managed.info_codec import BrokenMetadata, decode_cursor_info, decode_ledger_info
from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.metadata.store import MetadataStore

NODES_AT_ONCE: Final = 64
"""Ledgers whose nodes are read side by side: enough to hide the way to the store."""

COMPONENT: Final = "managed-ledger"
"""Whose ledgers are looked at; schemas, compacted topics and others keep theirs elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnnamedLedger:
    """One ledger that the node of its topic or cursor does not name."""

    ledger_id: int
    topic: str
    """The topic as in the paths of the metadata store: tenant/namespace/persistent/encoded topic."""
    cursor: str
    """Empty: the ledger was to hold messages."""
    created_ms: int
    state: str
    last_entry_id: int
    length_bytes: int
    node_exists: bool
    """Whether the topic or the cursor is there. Without it, it was deleted, or stands in another store."""


async def unnamed_ledgers(
    store: MetadataStore, created_before_ms: int, on_read: Callable[[int], None] | None = None
) -> AsyncIterator[UnnamedLedger]:
    """Those that are older than a time (ms since 1970), ascending. A ledger whose metadata or whose node cannot be
    read is left out, and so is one that does not say whose it is. `on_read` hears how many ledgers were looked at."""
    some: list[LedgerRow] = []
    async for row in list_ledgers(LedgerMetadataOps(store), None, metadata=True, on_read=on_read):
        if not _is_candidate(row, created_before_ms):
            continue
        some.append(row)
        if len(some) == NODES_AT_ONCE:
            for found in await asyncio.gather(*(_judge(store, each) for each in some)):
                if found is not None:
                    yield found
            some.clear()
    for found in await asyncio.gather(*(_judge(store, each) for each in some)):
        if found is not None:
            yield found


def _is_candidate(row: LedgerRow, created_before_ms: int) -> bool:
    # Without a time of creation nobody can tell how old it is: BookKeeper did not always write one.
    old = row.created_ms is not None and 0 < row.created_ms < created_before_ms
    custom = row.custom or {}
    return old and custom.get("component") == COMPONENT and bool(custom.get("pulsar/managed-ledger"))


async def _judge(store: MetadataStore, row: LedgerRow) -> UnnamedLedger | None:
    custom = row.custom or {}
    topic, cursor = custom["pulsar/managed-ledger"], custom.get("pulsar/cursor", "")
    node = await store.get(cursor_path(topic, cursor) if cursor else ledger_path(topic), watch=False)
    if node is not None:
        try:
            named = (
                {decode_cursor_info(node.value).cursorsLedgerId}
                if cursor
                else {record.ledger_id for record in decode_ledger_info(node.value).records}
            )
        except BrokenMetadata:
            return None
        if row.ledger_id in named:
            return None
    return UnnamedLedger(
        ledger_id=row.ledger_id,
        topic=topic,
        cursor=cursor,
        created_ms=row.created_ms or 0,
        state=row.state or "",
        last_entry_id=-1 if row.last_entry_id is None else row.last_entry_id,
        length_bytes=row.length_bytes or 0,
        node_exists=node is not None,
    )
