"""Three bookies with acknowledged entries, each entry on three or two of them, as kill -9 leaves them. One of them is
then damaged: it starts with all that it had, or it is refused and healing brings that back from the other two. What
it notices only when it is read, a check of all ledgers brings back.

The entries were written in three lives, as those of `world`: the first ended cleanly, the second was killed and its
journal replayed by the third, which was killed as well. Of the last life there are a ledger that is open, and one of
which only two bookies have anything: the damaged one is needed to know how far it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from magnetar.bookie.autorecovery.settings import AuditorSettings, AutoRecoverySettings
from magnetar.bookie.integrity.limbo import LimboStage
from magnetar.bookie.node import NodeSettings, RunningNode, start_node
from magnetar.bookie.settings import BookieSettings, DiskSettings, standalone_settings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_NONE
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.entry_reader import DENIALS
from magnetar.ledger.testing import RecordingListener
from magnetar.metadata.rocksdb import RocksdbMetadataStore
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec

from e2e.damage.kinds import Kind
from e2e.damage.world import SECONDS_MAX, Lines, Outcome, Verdict, clear, copy_folder, damage, files_below, listening

BOOKIES: Final = ("one", "two", "three")
DAMAGED: Final = BOOKIES[0]
ENTRIES: Final = 60
"""Of each ledger."""
EVERYWHERE: Final = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
STRIPED: Final = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
CHECKS: Final = AutoRecoverySettings(auditor=AuditorSettings(verification_percentage=100))
"""By default the check of all ledgers reads the ends of each fragment."""
METADATA: Final = "metadata"


@dataclass(frozen=True, slots=True)
class Held:
    """What the damaged bookie had of a ledger."""

    ledger_id: int
    entry_ids: Sequence[int]


class Running:
    """The bookies that run, and a client of theirs."""

    def __init__(self, folder: Path, store: RocksdbMetadataStore, connections: TcpBookieConnections) -> None:
        self.nodes: dict[str, RunningNode] = {}
        self.connections = connections
        self.client = BookKeeperClient(store, connections)
        self._folder = folder
        self._store = store
        self._stack = AsyncExitStack()

    async def start(self, name: str, *, heal: bool = False, accept: bool = False) -> RunningNode:
        settings = replace(_settings(self._folder, name), heal_from_peers=heal, accept_loss=accept)
        store = self._store.another_session()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            whole = NodeSettings(bookie=settings, recovery=CHECKS, recovery_enabled=False, http=None, control=None)
            node = self.nodes[name] = await start_node(whole, store, SystemClock())
            stack.push_async_callback(node.close)
            self._stack.push_async_callback(stack.pop_all().aclose)
        return node

    async def close(self) -> None:
        await self.client.close()
        await self.connections.close()
        await self._stack.aclose()


class Pool:
    """One folder, put back to what it was before each case."""

    def __init__(self, folder: Path, *, heals: bool = False, gives_up: bool = False) -> None:
        """`heals`: the damaged bookie may heal from its first start on, which then looks more closely. `gives_up` is a
        planted mistake: what is damaged is passed over, and nothing put into limbo."""
        self._template = folder / "template"
        self._data = folder / "data"
        self._heals = heals
        self._gives_up = gives_up
        self._held: list[Held] = []
        self._expected: dict[int, int] = {}
        """Ledger → how many entries were acknowledged."""
        self.files: dict[str, str] = {}
        """Of the damaged bookie: name that is the same in every run → path below the folder."""

    async def prepare(self) -> None:
        """Write, and keep what a kill would leave."""
        async with self._running(BOOKIES) as pool:
            for options in (EVERYWHERE, STRIPED):
                await self._write(pool, options, close=True)
        async with self._running(BOOKIES) as pool:
            await self._write(pool, EVERYWHERE, close=True)
            copy_folder(self._data, self._template)
        shutil.rmtree(self._data)
        self._template.rename(self._data)
        async with self._running(BOOKIES) as pool:
            await self._write(pool, EVERYWHERE, close=False)
            await self._write_to(pool, BOOKIES[:2])
            # The very last group of a journal is the one of which damage may look like a torn write.
            await self._write_to(pool, BOOKIES, counted=False)
            copy_folder(self._data, self._template)
        of_one = f"{DAMAGED}/"
        found = files_below(self._template)
        self.files = {name: path for name, path in found.items() if name.startswith(of_one)}

    async def _write(self, pool: Running, options: LedgerOptions, *, close: bool) -> None:
        writer = await pool.client.create(options, RecordingListener())
        writer.append([_payload(writer.ledger_id, entry_id) for entry_id in range(ENTRIES)])
        # A writer goes on with two answers of three.
        while await _stored(pool, writer.ledger_id) < ENTRIES * options.write_quorum:  # noqa: ASYNC110  (a count)
            await asyncio.sleep(0.01)
        await (writer.close() if close else writer.abandon())
        held = await pool.nodes[DAMAGED].bookie.bookie.entry_ids(writer.ledger_id)
        self._keep(writer.ledger_id, held)

    async def _write_to(self, pool: Running, names: Iterable[str], *, counted: bool = True) -> None:
        """As a writer that is killed when these have stored its entries, and no other has."""
        writer = await pool.client.create(EVERYWHERE, RecordingListener())
        codec = EntryCodec(writer.ledger_id, EVERYWHERE.digest_type)
        entries = codec.encode_many(0, -1, 0, [_payload(writer.ledger_id, entry_id) for entry_id in range(ENTRIES)])
        for name in names:
            await _add(pool, name, codec, entries)
        await writer.abandon()
        if counted:
            self._keep(writer.ledger_id, range(ENTRIES))

    async def run(self, name: str, kind: Kind, seed: int) -> Verdict:
        """Damage one file of the first bookie, start all, look at what it says, read everything."""
        shutil.rmtree(self._data, ignore_errors=True)
        copy_folder(self._template, self._data)
        path = self._data / self.files[name]
        damage(path, kind, Random(f"{name} {kind} {seed}"))
        names = (path.name, str(path.parent))
        with listening() as lines:
            try:
                async with asyncio.timeout(SECONDS_MAX), self._running(BOOKIES[1:]) as pool:
                    return await self._look(pool, lines, names)
            except TimeoutError:
                return Verdict(Outcome.HANG, "; ".join(lines.errors[:3]), 0)

    async def _look(self, pool: Running, lines: Lines, names: tuple[str, ...]) -> Verdict:
        refused = ""
        try:
            node = await pool.start(DAMAGED, heal=self._heals)
        except (MagnetarError, OSError) as error:
            refused = f"{type(error).__name__}: {error}"
            if not clear(refused, names).good:
                return Verdict(Outcome.UNCLEAR, refused, 0)
            try:
                node = await pool.start(DAMAGED, heal=not self._gives_up, accept=self._gives_up)
            except (MagnetarError, OSError) as still:
                return Verdict(clear(str(still), names), f"{type(still).__name__}: {still}", 0)
        refused = refused or "; ".join(node.bookie.parts.limbo.damage)
        denied, _ = await self._ask(pool)
        if denied:
            return Verdict(Outcome.SILENT, denied, 0)
        while node.bookie.parts.limbo.stage is not LimboStage.NONE:  # noqa: ASYNC110  (a state)
            await asyncio.sleep(0.01)
        for ledger_id, count in self._expected.items():
            found = await _read(pool, ledger_id)
            if found != [_payload(ledger_id, entry_id) for entry_id in range(count)]:
                return Verdict(Outcome.WRONG, f"ledger {ledger_id} has {len(found)} entries, or other ones", len(found))
        denied, missing = await self._ask(pool)
        received = sum(self._expected.values())
        if denied:
            return Verdict(Outcome.SILENT, denied, received)
        if missing:
            told = lines.telling(names)
            # A start that was refused names all that is wrong; one that heals does not look into entries.
            if not told or (refused and not self._heals):
                return Verdict(Outcome.SILENT, missing, received)
            return Verdict(await self._repair(pool), told, received)
        return Verdict(Outcome.HEALED if refused else Outcome.RIGHT, refused, received)

    async def _repair(self, pool: Running) -> Outcome:
        """As AutoRecovery does after a check of all ledgers, on a bookie that is well."""
        recovery = pool.nodes[BOOKIES[1]].recovery
        assert recovery is not None
        for ledger_id in self._expected:
            await recovery.daemon.replicator.replicate(ledger_id)
        return Outcome.DAMAGED if any(await self._ask(pool)) else Outcome.REPAIRED

    async def _ask(self, pool: Running) -> tuple[str, str]:
        """What the damaged bookie denies of all that it had; what it does not give for another reason."""
        connection, missing = pool.connections.connection(DAMAGED), ""
        for held in self._held:
            codec = EntryCodec(held.ledger_id, EVERYWHERE.digest_type)
            for entry_id in held.entry_ids:
                try:
                    entry = await connection.read_entry(held.ledger_id, entry_id)
                    codec.decode(entry, entry_id)
                except DigestMismatch as error:
                    return f"a wrong entry is served: {error}", missing
                except BookieError as error:
                    if error.code in DENIALS:
                        return f"entry {held.ledger_id}:{entry_id} is denied", missing
                    missing = missing or f"entry {held.ledger_id}:{entry_id}: {error}"
        return "", missing

    def _keep(self, ledger_id: int, held: Sequence[int]) -> None:
        self._held.append(Held(ledger_id, held))
        self._expected[ledger_id] = ENTRIES

    @asynccontextmanager
    async def _running(self, names: Iterable[str]) -> AsyncIterator[Running]:
        store = RocksdbMetadataStore(self._data / METADATA)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            connections = TcpBookieConnections(store, SystemClock())
            await connections.start()
            pool = Running(self._data, store, connections)
            stack.push_async_callback(pool.close)
            for name in names:
                await pool.start(name)
            yield pool


def _settings(folder: Path, name: str) -> BookieSettings:
    disk = DiskSettings(usage_threshold=1.0, usage_low_water=1.0, free_bytes_min=0)
    plain = standalone_settings(folder / name)
    return replace(plain, bookie_id=name, port=0, serve_tcp=True, disk=disk)


def _payload(ledger_id: int, entry_id: int) -> bytes:
    """An entry that no other looks like, without zeros in it."""
    return (b"entry %d of ledger %d;" % (entry_id, ledger_id)) * 30


async def _stored(pool: Running, ledger_id: int) -> int:
    """Copies of entries, on all bookies together."""
    count = 0
    for node in pool.nodes.values():
        with contextlib.suppress(BookieError):
            count += len(await node.bookie.bookie.entry_ids(ledger_id))
    return count


async def _add(pool: Running, name: str, codec: EntryCodec, entries: Sequence[bytes]) -> None:
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        del ledger_id, entry_ids
        if not told.done():
            told.set_result(code)

    ids = range(len(entries))
    pool.nodes[name].bookie.bookie.add_entries(codec.ledger_id, codec.master_key, ids, entries, ADD_FLAG_NONE, done)
    assert await told == BookieCode.EOK


async def _read(pool: Running, ledger_id: int) -> list[bytes]:
    reader = await pool.client.open(ledger_id, recover=True)
    try:
        last = reader.last_add_confirmed
        return [bytes(entry) for entry in await reader.read(0, last)] if last >= 0 else []
    finally:
        await reader.close()
