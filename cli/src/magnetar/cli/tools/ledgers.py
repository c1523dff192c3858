"""The ledgers of a cluster: which there are, their metadata, their entries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from magnetar.cli.tools.cluster import ClusterAccess
from magnetar.core.errors import PeerError
from magnetar.ledger.api import EntryNotFound, EntryUnreadable, LedgerNotFound, LedgerUnavailable
from magnetar.ledger.bookie_client.bookie_connection import BookieConnection
from magnetar.ledger.entry_reader import DENIALS
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.striping import keeps
from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

LEDGERS_AT_ONCE: Final = 64
"""Metadata reads outstanding: enough to hide the way to the store."""
ENTRIES_AT_ONCE: Final = 100
"""Entries read by one call."""
END_UNKNOWN: Final = "The ledger is open, and this bookie does not tell where it ends: give --to to read on"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One ledger; everything but the id is None when it was not asked for, or nobody can read it."""

    ledger_id: int
    state: str | None = None
    length_bytes: int | None = None
    last_entry_id: int | None = None
    ensemble_size: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    created_ms: int | None = None
    bookies: tuple[str, ...] | None = None
    """All that any segment names, sorted."""
    custom: dict[str, str] | None = None
    problem: str = ""


async def list_ledgers(
    ledgers: LedgerMetadataOps, bookie_id: str | None, *, metadata: bool, on_read: Callable[[int], None] | None = None
) -> AsyncIterator[LedgerRow]:
    """All ledgers, ascending; only those that name a bookie when one is given. Deleted meanwhile: left out.

    `on_read` hears how many were looked at."""
    batch: list[int] = []
    seen = 0
    async for ledger_id in ledgers.ledger_ids():
        if not metadata and bookie_id is None:
            yield LedgerRow(ledger_id=ledger_id)
            continue
        batch.append(ledger_id)
        if len(batch) == LEDGERS_AT_ONCE:
            for row in await _rows(ledgers, batch, bookie_id):
                yield row
            seen += len(batch)
            batch.clear()
            if on_read is not None:
                on_read(seen)
    for row in await _rows(ledgers, batch, bookie_id):
        yield row


async def _rows(ledgers: LedgerMetadataOps, ledger_ids: list[int], bookie_id: str | None) -> list[LedgerRow]:
    rows = await asyncio.gather(*(_row(ledgers, ledger_id) for ledger_id in ledger_ids))
    return [
        row
        for row in rows
        if row is not None and (bookie_id is None or row.problem or bookie_id in (row.bookies or ()))
    ]


async def _row(ledgers: LedgerMetadataOps, ledger_id: int) -> LedgerRow | None:
    try:
        metadata, _ = await ledgers.read(ledger_id)
    except LedgerNotFound:
        return None
    except PeerError as error:
        return LedgerRow(ledger_id=ledger_id, problem=str(error))
    return row_of(ledger_id, metadata)


def row_of(ledger_id: int, metadata: LedgerMetadata) -> LedgerRow:
    """A ledger's metadata as a row."""
    return LedgerRow(
        ledger_id=ledger_id,
        state=metadata.state.name,
        length_bytes=metadata.length_bytes,
        last_entry_id=metadata.last_entry_id,
        ensemble_size=metadata.ensemble_size,
        write_quorum=metadata.write_quorum,
        ack_quorum=metadata.ack_quorum,
        created_ms=metadata.created_ms,
        bookies=tuple(sorted({bookie for _, bookies in metadata.ensembles for bookie in bookies})),
        custom={key: value.decode("utf-8", "replace") for key, value in metadata.custom_metadata.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEntry:
    """One entry of a ledger."""

    entry_id: int
    payload: bytes
    bookie_id: str = ""
    """Who gave it, when one bookie was asked."""
    problem: str = ""
    """Why it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRange:
    """Which entries are wanted."""

    first_entry_id: int = 0
    last_entry_id: int | None = None
    """None: the last one there is."""


async def read_ledger(
    cluster: ClusterAccess, ledger_id: int, wanted: EntryRange, *, password: bytes, recover: bool
) -> AsyncIterator[ReadEntry]:
    """The entries, ascending; one that cannot be read has a problem and no payload.

    With `recover` the ledger is fenced and closed first. `LedgerNotFound`, `LedgerUnauthorized`, `Unavailable`."""
    reader = await cluster.client.open(ledger_id, password=password, recover=recover)
    last = reader.last_add_confirmed
    if wanted.last_entry_id is not None:
        if wanted.last_entry_id > last:
            raise EntryNotFound(f"ledger {ledger_id} is confirmed up to entry {last}, not {wanted.last_entry_id}")
        last = wanted.last_entry_id
    at = wanted.first_entry_id
    while at <= last:
        try:
            payloads = await reader.read(at, min(at + ENTRIES_AT_ONCE - 1, last))
        except (EntryUnreadable, LedgerUnavailable) as error:
            yield ReadEntry(entry_id=at, payload=b"", problem=str(error))
            at += 1
            continue
        for payload in payloads:
            yield ReadEntry(entry_id=at, payload=payload)
            at += 1


async def read_from_bookie(
    ledgers: LedgerMetadataOps, connection: BookieConnection, ledger_id: int, wanted: EntryRange, *, password: bytes
) -> AsyncIterator[ReadEntry]:
    """The entries that one bookie is to have, as it has them, digests checked. Without a last entry: up to the
    metadata's last one, or, of an open ledger, to the first one that it denies; one that it cannot give ends that with
    a problem. `LedgerNotFound`."""
    metadata, _ = await ledgers.read(ledger_id)
    codec = EntryCodec(ledger_id, metadata.digest_type or "CRC32", password)
    bookie_id = connection.bookie_id
    last = wanted.last_entry_id
    if last is None and metadata.state is LedgerState.CLOSED:
        last = metadata.last_entry_id
    if not any(bookie_id in bookies for _, bookies in metadata.ensembles):
        raise EntryNotFound(f"ledger {ledger_id} does not name bookie {bookie_id}")
    for at in itertools.count(wanted.first_entry_id):
        if last is not None and at > last:
            return
        ensemble = metadata.ensemble_of(at)
        kept = bookie_id in ensemble and keeps(
            ensemble.index(bookie_id), at, metadata.ensemble_size, metadata.write_quorum
        )
        if not kept:
            if last is None and bookie_id not in metadata.ensembles[-1][1] and at >= metadata.ensembles[-1][0]:
                return
            continue
        try:
            payload = codec.decode(await connection.read_entry(ledger_id, at), at)
        except (BookieError, PeerError) as error:
            if last is None and isinstance(error, BookieError) and error.code in DENIALS:
                return
            told = str(error) if last is not None else f"{error}. {END_UNKNOWN}"
            yield ReadEntry(entry_id=at, payload=b"", bookie_id=bookie_id, problem=told)
            if last is None:
                return
        else:
            yield ReadEntry(entry_id=at, payload=payload, bookie_id=bookie_id)
