"""The programs that clients run: writers, readers, recoverers, and the readers who look at the end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.ledger.api import EntryNotFound, LedgerClosed, LedgerFenced, LedgerNotFound, LedgerOptions
from magnetar.ledger.reader import OpenLedgerReader
from magnetar.ledger.recovery_driver import codec_for
from magnetar.ledger.striping import write_set
from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

from e2e.simulation.cluster import PATIENCE_SECONDS, Client
from e2e.simulation.history import (
    Appended,
    Confirmed,
    History,
    LedgerHistory,
    Opened,
    Read,
    Replicas,
    Unreadable,
    WriterClosed,
)
from e2e.simulation.parameters import Parameters
from e2e.simulation.watched import WatchedWriter

RETRY_SECONDS: Final = 0.2
REPLICATION_SECONDS: Final = 120.0
"""How long AutoRecovery may take when nothing is wrong any more."""


def now() -> float:
    return asyncio.get_running_loop().time()


class Recorder:
    """A ledger's listener, for its history."""

    def __init__(self) -> None:
        self.error: MagnetarError | None = None
        self.history: LedgerHistory | None = None

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """Kept."""
        assert self.history is not None
        self.history.events.append(Confirmed(last_add_confirmed, now()))

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """Kept."""
        self.error = error


class Writer:
    """Writes entries into one ledger after the other, until all were appended."""

    def __init__(self, client: Client, history: History, parameters: Parameters, until_seconds: float) -> None:
        self._client = client
        self._history = history
        self._parameters = parameters
        self._chance = client.chance
        self._left = parameters.entries
        self._until_seconds = until_seconds

    async def run(self) -> None:
        """Until nothing is left, or the time is over."""
        while self._left > 0 and now() < self._until_seconds:
            recorder = Recorder()
            try:
                writer = await self._client.client.create(self._options(), recorder)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            recorder.history = self._history.ledger(writer.ledger_id)
            count = min(self._left, self._chance.randint(5, self._parameters.ledger_entries_max))
            await self._fill(writer, recorder, recorder.history, count)

    def _options(self) -> LedgerOptions:
        parameters = self._parameters
        return LedgerOptions(
            ensemble_size=parameters.ensemble_size,
            write_quorum=parameters.write_quorum,
            ack_quorum=parameters.ack_quorum,
            digest_type=parameters.digest_type,
            password=password_of(parameters),
        )

    async def _fill(self, writer: WatchedWriter, recorder: Recorder, history: LedgerHistory, count: int) -> None:
        while count > 0 and recorder.error is None and now() < self._until_seconds:
            batch = min(count, self._chance.randint(1, self._parameters.batch_entries_max))
            payloads = [self._payload(writer.ledger_id, len(history.payloads) + at) for at in range(batch)]
            carried = writer.last_add_confirmed
            try:
                first = writer.append(payloads)
            except (LedgerClosed, LedgerFenced):
                break
            assert first == len(history.payloads)
            history.payloads += payloads
            history.events.append(Appended(first, batch, carried, now()))
            self._left -= batch
            count -= batch
            await self._pause()
        if self._chance.random() < 0.7:
            await self._close(writer, history)
        else:
            await writer.abandon()

    async def _close(self, writer: WatchedWriter, history: LedgerHistory) -> None:
        try:
            await writer.close()
        except MagnetarError:
            return
        # A ledger that another client has taken over is left to it: then the writer was told of no end.
        metadata = writer.inner.metadata
        if metadata.state is LedgerState.CLOSED:
            history.events.append(WriterClosed(metadata.last_entry_id, metadata.length_bytes, now()))
            if self._chance.random() < self._parameters.deleted_share:
                history.deleted_at_seconds = now()
                with contextlib.suppress(Unavailable):
                    await self._client.client.delete(history.ledger_id)

    async def _pause(self) -> None:
        if self._chance.random() < self._parameters.idle_share:
            await asyncio.sleep(self._parameters.idle_seconds)
        elif self._parameters.batch_entries_max > 1 or self._chance.random() < 0.8:
            await asyncio.sleep(self._chance.expovariate(1 / self._parameters.pause_seconds))

    def _payload(self, ledger_id: int, entry_id: int) -> bytes:
        head = b"%d:%d:" % (ledger_id, entry_id)
        size = self._chance.randint(0, self._parameters.payload_bytes_max)
        return head + self._chance.randbytes(min(size, 64)) * (size // 64 + 1)


async def open_and_record(
    client: Client, history: LedgerHistory, *, recover: bool, password: bytes
) -> OpenLedgerReader:
    began = now()
    reader = await client.client.open(history.ledger_id, password=password, recover=recover)
    history.events.append(
        Opened(client.name, recover, reader.closed, reader.last_add_confirmed, reader.length_bytes, began, now())
    )
    return reader


async def read_and_record(
    client: Client, history: LedgerHistory, reader: OpenLedgerReader, first: int, last: int
) -> None:
    while first <= last:
        payloads = await reader.read(first, last)
        assert payloads, "a read gives at least one entry or an error"
        history.events.append(Read(client.name, first, payloads, now()))
        first += len(payloads)


def password_of(parameters: Parameters) -> bytes:
    return b"secret" if parameters.seed % 3 == 0 else b""


def some_ledger(client: Client, history: History) -> LedgerHistory | None:
    """The newest one most of the time: older ones are at rest."""
    ledgers = [ledger for ledger in history.ledgers.values() if not ledger.deleted]
    if not ledgers:
        return None
    return ledgers[-1] if client.chance.random() < 0.6 else client.chance.choice(ledgers)


async def tail(client: Client, history: History, parameters: Parameters, until_seconds: float) -> None:
    """Opens ledgers without recovery and reads what it may."""
    while now() < until_seconds:
        await asyncio.sleep(client.chance.uniform(0.02, 0.5))
        ledger = some_ledger(client, history)
        if ledger is None:
            continue
        try:
            reader = await open_and_record(client, ledger, recover=False, password=password_of(parameters))
            if reader.last_add_confirmed >= 0:
                first = client.chance.randint(0, reader.last_add_confirmed)
                await read_and_record(client, ledger, reader, first, reader.last_add_confirmed)
        except (Unavailable, EntryNotFound, LedgerNotFound):
            # Not now; or its metadata is older than a change of the ensemble. At the end everything must be there.
            continue


async def take_over(client: Client, history: History, parameters: Parameters, until_seconds: float) -> None:
    """Recovers ledgers under their writers' hands."""
    while now() < until_seconds:
        await asyncio.sleep(client.chance.uniform(0.1, parameters.active_seconds / 2))
        ledger = some_ledger(client, history)
        if ledger is None:
            continue
        for _ in range(client.chance.randint(1, 10)):
            history.watch_takeover("begins")
            try:
                reader = await open_and_record(client, ledger, recover=True, password=password_of(parameters))
            except LedgerNotFound:
                break
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            history.watch_takeover("ended")
            try:
                await read_and_record(client, ledger, reader, 0, reader.last_add_confirmed)
            except (Unavailable, EntryNotFound):
                # Not now, or it was deleted meanwhile. At the end everything must be there.
                await asyncio.sleep(RETRY_SECONDS)
            break


async def look_at_the_end(client: Client, history: History, parameters: Parameters, *, recover: bool) -> None:
    """Opens every ledger when nothing is wrong any more, and reads all of it."""
    for ledger in [ledger for ledger in history.ledgers.values() if not ledger.deleted]:
        deadline = now() + PATIENCE_SECONDS
        error: MagnetarError | None = None
        while now() < deadline:
            try:
                reader = await open_and_record(client, ledger, recover=recover, password=password_of(parameters))
            except MagnetarError as failure:
                error = failure
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await _read_everything(client, ledger, reader, deadline)
            ledger.finished = True
            break
        else:
            history.stuck.append(f"ledger {ledger.ledger_id} cannot be opened by {client.name} at the end: {error!r}")


async def _read_everything(client: Client, ledger: LedgerHistory, reader: OpenLedgerReader, deadline: float) -> None:
    first = 0
    while first <= reader.last_add_confirmed:
        try:
            payloads = await reader.read(first, reader.last_add_confirmed)
        except MagnetarError as error:
            # That no bookie has it will not change; that one does not answer may.
            if isinstance(error, EntryNotFound) or now() > deadline:
                ledger.events.append(Unreadable(client.name, first, repr(error)))
                return
            await asyncio.sleep(RETRY_SECONDS)
            continue
        ledger.events.append(Read(client.name, first, payloads, now()))
        first += len(payloads)


async def count_replicas(client: Client, history: History) -> None:
    """Waits until every entry is on a write quorum of bookies again, each of which gives it undamaged."""
    deadline = now() + REPLICATION_SECONDS
    for ledger in [ledger for ledger in history.ledgers.values() if not ledger.deleted]:
        while True:
            lacking = await _lacking_replicas(client, ledger)
            if not lacking or now() > deadline:
                break
            await asyncio.sleep(1.0)
        ledger.events += lacking[:5]


async def _lacking_replicas(client: Client, ledger: LedgerHistory) -> list[Replicas]:
    metadata, _ = await client.client.metadata.read(ledger.ledger_id)
    codec = codec_for(ledger.ledger_id, metadata)
    lacking: list[Replicas] = []
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.ensemble_of(entry_id)
        holders = []
        for index in write_set(entry_id, len(ensemble), metadata.write_quorum):
            try:
                entry = await client.connections.connection(ensemble[index]).read_entry(ledger.ledger_id, entry_id)
                codec.decode(entry, entry_id)
            except (BookieError, DigestMismatch):
                continue
            holders.append(ensemble[index])
        if len(holders) < metadata.write_quorum:
            lacking.append(Replicas(entry_id, metadata.write_quorum, holders))
    return lacking
