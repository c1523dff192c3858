"""Whether a bookie or a cluster works: write a ledger over the network as any client would, read it back, delete it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.bookie_connection import BookieConnection, BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.topology import BookieTopology
from magnetar.metadata.store import MetadataStore

logger: Final = logging.getLogger(__name__)

ENTRIES: Final = 10
"""Entries written by the check; `bookkeeper shell bookiesanity` writes as many by default."""
SECONDS_MAX: Final = 10.0
"""Seconds that a bookie's test of itself may take."""
ENTRIES_AT_ONCE: Final = 100
"""Entries of the check that are on their way at a time."""
METADATA: Final = {"application": b"magnetar-test"}

Progress = Callable[[int, int], None]
"""Is told how far a check is: entries done and entries wanted."""


def _untold(_done: int, _wanted: int) -> None:
    """The progress of a check that nobody watches."""


class CheckFailed(MagnetarError):
    """What was read is not what was written, or not all of it could be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a test found."""

    ledger_id: int
    entries: int
    bookies: tuple[str, ...]
    write_seconds: float
    read_seconds: float


class OneBookie:
    """`BookieConnections` of a cluster that has one bookie only, so that a ledger must be on it."""

    def __init__(self, connections: BookieConnections, bookie_id: str) -> None:
        self._connections = connections
        self._bookie_id = bookie_id

    def connection(self, bookie_id: str) -> BookieConnection:
        """The connection to a bookie: the one bookie's own, or one to another."""
        return self._connections.connection(bookie_id)

    def writable_bookies(self) -> list[str]:
        """The one bookie, whether it takes writes or not: that is what is tried."""
        return [self._bookie_id]

    def readable_bookies(self) -> list[str]:
        """The one bookie."""
        return [self._bookie_id]

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        """None: it may be read-only."""
        return []

    async def look_again(self) -> None:
        """Nothing would change."""


async def write_and_read_back(store: MetadataStore, connections: BookieConnections, bookie_id: str) -> bool:
    """Whether the bookie takes entries and gives them back, soon."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await check_bookie(store, connections, bookie_id, ENTRIES)
    except (MagnetarError, TimeoutError) as error:
        logger.warning("bookie %s fails its sanity test: %s", bookie_id, error)
        return False
    return True


async def check_bookie(
    store: MetadataStore, connections: BookieConnections, bookie_id: str, entries: int, progress: Progress = _untold
) -> CheckResult:
    """Write a ledger to this bookie alone, read it back, delete it. `CheckFailed`, `NotEnoughBookies` when it takes no
    entries, `Unavailable`."""
    return await check(store, OneBookie(connections, bookie_id), LedgerOptions(), entries, progress)


async def check(
    store: MetadataStore,
    connections: BookieConnections,
    options: LedgerOptions,
    entries: int,
    progress: Progress,
    places: Callable[[], BookieTopology] | None = None,
) -> CheckResult:
    """Write a ledger with these options, read it back, delete it; `places` as a `BookKeeperClient` takes them.
    `CheckFailed`, `NotEnoughBookies`, `Unavailable`."""
    client = BookKeeperClient(store, connections, places=places)
    listener = _Confirmations()
    written = LedgerOptions(
        ensemble_size=options.ensemble_size,
        write_quorum=options.write_quorum,
        ack_quorum=options.ack_quorum,
        custom_metadata=METADATA,
    )
    try:
        writer = await client.create(written, listener)
        try:
            payloads = [_payload(number) for number in range(entries)]
            began = time.monotonic()
            for at in range(0, entries, ENTRIES_AT_ONCE):
                writer.append(payloads[at : at + ENTRIES_AT_ONCE])
                await listener.wait_for(min(at + ENTRIES_AT_ONCE, entries) - 1)
                progress(min(at + ENTRIES_AT_ONCE, entries), 2 * entries)
            await writer.close()
            written_at = time.monotonic()
            bookies = await _read_back(client, writer.ledger_id, payloads, progress)
            ended = time.monotonic()
        finally:
            await client.delete(writer.ledger_id)
    finally:
        await client.close()
    return CheckResult(
        ledger_id=writer.ledger_id,
        entries=entries,
        bookies=tuple(sorted(bookies)),
        write_seconds=round(written_at - began, 6),
        read_seconds=round(ended - written_at, 6),
    )


async def _read_back(
    client: BookKeeperClient, ledger_id: int, payloads: list[bytes], progress: Progress
) -> Collection[str]:
    reader = await client.open(ledger_id, recover=False)
    if reader.last_add_confirmed != len(payloads) - 1:
        raise CheckFailed(f"ledger {ledger_id} ends at {reader.last_add_confirmed}, not {len(payloads) - 1}")
    at = 0
    while at < len(payloads):
        last = min(at + ENTRIES_AT_ONCE, len(payloads)) - 1
        for payload in await reader.read(at, last):
            if payload != payloads[at]:
                raise CheckFailed(f"entry {at} of ledger {ledger_id} is not what was written")
            at += 1
        progress(len(payloads) + at, 2 * len(payloads))
    return {bookie for _, ensemble in reader.metadata.ensembles for bookie in ensemble}


class _Confirmations:
    def __init__(self) -> None:
        self._last = -1
        self._error: MagnetarError | None = None
        self._changed = asyncio.Event()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """All entries up to this one are on an ack quorum of disks. One call for a whole group."""
        del ledger_id
        self._last = last_add_confirmed
        self._changed.set()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """No append after the last confirmed one will succeed. Called once; the ledger takes no more."""
        del ledger_id
        self._error = error
        self._changed.set()

    async def wait_for(self, entry_id: int) -> None:
        """Until the entry is confirmed; raises why it will not be."""
        while self._last < entry_id:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
            self._changed.clear()


def _payload(number: int) -> bytes:
    # The same for everybody, so that another tool can tell the entries.
    return random.Random(number).randbytes(100)  # noqa: S311
