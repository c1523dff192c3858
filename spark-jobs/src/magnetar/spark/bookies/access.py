"""Reaching a cluster past its brokers: the metadata store and the bookies, which is tried before it is relied on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

from magnetar.core.errors import MagnetarError, Misuse, PeerError, SettingError, Unavailable
from magnetar.ledger.bookie_client.addressed_bookies import AddressedBookies
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.last_confirmed import ask_last_confirmed
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, ledger_path
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.paths import cursor_path
from magnetar.metadata.factory import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.spark.assembly.compaction import CompactedLedger, read_compaction
from magnetar.spark.bookies.entries import GIVE_UP_SECONDS, BookieEntries
from magnetar.spark.bookies.metadata_urls import MetadataUrls, servers_of, urls_by_brokers, urls_by_option
from magnetar.spark.bookies.topic_nodes import persistent_topic
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.topics import TopicLedger
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState, decode_ledger_metadata

PROBE_SECONDS: Final = 2.0
"""For a TCP connection. A network that lets nothing through says nothing, and a query that falls back to brokers should
not begin much later for it."""

PROBED_BOOKIES_MAX: Final = 3
"""One may be down while the network is open; the first that answers decides."""

NO_LEDGER: Final = 2**62
"""Nobody has a ledger of this id; a bookie that serves us says so."""
STORE_SECONDS: Final = 10.0
"""For a session with a store whose port answers, and for a connection once it has gone away. A ZooKeeper ensemble that
elects another leader is away for a second or two, with the sessions' move to it for five."""

SESSION_SECONDS: Final = 15.0
"""A server that says nothing is noticed after two thirds of it. Nothing here hangs on the session: its watches are set
anew."""

ANSWER_SECONDS: Final = 5.0

BOOKIE_SETTINGS: Final = TcpBookieSettings(connect_timeout_seconds=5.0)

Addresses = dict[str, tuple[str, int]]
Told: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
"""What brokers say of where the metadata is, such as `AdminApi.internal_configuration`. Raises `MagnetarError`."""
CompactedInto: TypeAlias = "tuple[CompactedLedger, TopicLedger]"


class DirectAccess:
    """Store and bookies of one cluster. Made by `open_direct`, on the process's event loop. Nothing of it writes."""

    def __init__(
        self, urls: MetadataUrls, store: MetadataStore, ledgers_store: MetadataStore, bookies: TcpBookieConnections
    ) -> None:
        self.urls = urls
        self.store = store
        self.ledgers_store = ledgers_store
        """Where bookies keep their ledgers' metadata; mostly the same."""
        self.bookies = bookies

    def addresses(self) -> Addresses:
        """Bookie id → (host, port) of all that are there: to be sent with tasks."""
        known = ((bookie_id, self.bookies.address(bookie_id)) for bookie_id in self.bookies.readable_bookies())
        return {bookie_id: address for bookie_id, address in known if address is not None}

    async def ledger_metadata(self, ledger_id: int) -> bytes | None:
        """LedgerMetadata as it is stored now; None: there is none. Raises `Unavailable`."""
        node = await self.ledgers_store.get(ledger_path(ledger_id), watch=False)
        return None if node is None else node.value

    async def compaction(
        self, topic: str, told: Callable[[], Awaitable[CompactedLedger | None]]
    ) -> CompactedInto | None:
        """The topic's newest compaction and its ledger, which may be `missing`; None when it was never compacted.

        `told` is what a broker says, asked when the ledger is missing: the newest position of a cursor may be in its
        memory alone for a minute (Pulsar: `managedLedgerCursorPositionFlushSeconds`), while the ledger that the stored
        one names is deleted already. Raises `ClusterUnreachable`."""
        try:
            found = await self._compaction(topic)
            if found is not None and found[1].missing:
                found = await self._compaction(topic)  # Another one has just taken its place, and it was deleted.
            if found is not None and found[1].missing and (newer := await told()) is not None:
                ledger = await self.compacted_ledger(newer.ledger_id)
                found = found if ledger.missing else (newer, ledger)
        except (Unavailable, PeerError) as error:
            raise ClusterUnreachable(f"{topic}: its compaction cannot be looked up: {error}") from error
        return found

    async def _compaction(self, topic: str) -> CompactedInto | None:
        path = cursor_path(persistent_topic(topic).persistence_name, COMPACTION_CURSOR)
        node = await self.store.get(path, watch=False)
        if node is None:
            return None
        compaction = await read_compaction(node.value, self._last_payload)
        if compaction is None:
            return None
        return compaction, await self.compacted_ledger(compaction.ledger_id)

    async def compacted_ledger(self, ledger_id: int) -> TopicLedger:
        """A ledger that a topic was compacted into, perhaps `missing`. Raises `Unavailable`."""
        stored = await self.ledger_metadata(ledger_id)
        if stored is None:
            return TopicLedger(ledger_id=ledger_id, entries=0, size_bytes=0, missing=True)
        metadata = decode_ledger_metadata(stored)
        return TopicLedger(
            ledger_id=ledger_id,
            entries=metadata.last_entry_id + 1,
            size_bytes=metadata.length_bytes,
            metadata=stored,
        )

    def entries(self, topic: str, *, give_up_seconds: float = GIVE_UP_SECONDS) -> BookieEntries:
        """A source of one topic's entries, from here."""
        return BookieEntries(topic, self.bookies, self.ledger_metadata, give_up_seconds=give_up_seconds)

    async def close(self) -> None:
        """End the session and close all connections."""
        await self.bookies.close()
        if self.ledgers_store is not self.store:
            await self.ledgers_store.close()
        await self.store.close()

    async def _last_payload(self, ledger_id: int) -> bytes | None:
        """The payload of the last entry that any bookie has: a cursor's newest position. That it may not be confirmed
        yet does no harm, as what it names is stored before it; the one before it may name a ledger that is deleted
        already."""
        stored = await self.ledger_metadata(ledger_id)
        if stored is None:
            return None
        metadata = decode_ledger_metadata(stored)
        if metadata.state is LedgerState.CLOSED and metadata.last_entry_id < 0:
            return None
        found = await ask_last_confirmed(ledger_id, metadata, self.bookies, ANSWER_SECONDS, all_bookies=True)
        if not found.covered:
            raise Unavailable(f"too few bookies of ledger {ledger_id} answer")
        return found.last_payload if found.last_entry_id >= 0 else None


class TaskAccess:
    """What an executor needs: bookies by addresses that came with the task. The metadata store is opened only when
    entries are not where the task says."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]], direct: Callable[[], Awaitable[DirectAccess]]) -> None:
        """`direct` opens the store or gives what is open already; the caller closes it."""
        self._bookies = AddressedBookies(addresses, settings=BOOKIE_SETTINGS)
        self._direct = direct

    def add_addresses(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """A later task knows more."""
        self._bookies.add_addresses(addresses)

    def entries(self, topic: str) -> BookieEntries:
        """A source of one topic's entries."""
        return BookieEntries(topic, self._bookies, self._ledger_metadata)

    async def close(self) -> None:
        """Close the connections to bookies."""
        await self._bookies.close()

    async def _ledger_metadata(self, ledger_id: int) -> bytes | None:
        try:
            access = await self._direct()
        except ClusterUnreachable as error:
            raise Unavailable(str(error)) from error
        # Entries that were moved may be on bookies that joined later.
        self._bookies.add_addresses(access.addresses())
        return await access.ledger_metadata(ledger_id)


async def choose(direct: Callable[[], Awaitable[DirectAccess]], read_mode: str) -> tuple[str, str]:
    """("bookies" or "brokers", why). `direct` opens the metadata store and the bookies, or gives what is open already.
    `read_mode` auto: bookies if they and the store can be reached from here. Raises `ClusterUnreachable` for `bookies`
    when they cannot."""
    if read_mode == "brokers":
        return "brokers", "readMode=brokers"
    try:
        await direct()
    except ClusterUnreachable as error:
        if read_mode == "bookies":
            raise
        return "brokers", str(error)
    return "bookies", "readMode=bookies" if read_mode == "bookies" else "metadata store and bookies can be reached"


async def open_direct(options: ConnectionOptions, told: Told | None = None) -> DirectAccess:
    """Find the metadata store, try whether it and a bookie can be reached, and open it. Raises `ClusterUnreachable`,
    whose text says what was tried and why it failed, after some 15 s at most."""
    urls = await _find_urls(options, told)
    async with AsyncExitStack() as opened:
        store = await _open_store(urls.brokers)
        opened.push_async_callback(store.close)
        ledgers_store = store
        if urls.bookies != urls.brokers:
            ledgers_store = await _open_store(urls.bookies)
            opened.push_async_callback(ledgers_store.close)
        bookies = TcpBookieConnections(ledgers_store, settings=BOOKIE_SETTINGS)
        opened.push_async_callback(bookies.close)
        access = DirectAccess(urls, store, ledgers_store, bookies)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                if not await ledgers_store.exists(AVAILABLE_PATH, watch=False):
                    raise ClusterUnreachable(
                        f"no cluster keeps its bookies at {urls.bookies} (see option metadata.url)"
                    )
                await bookies.start()
        except (Unavailable, TimeoutError) as error:
            raise ClusterUnreachable(f"the metadata store {urls.bookies} does not answer: {error}") from error
        await _probe_bookies(access.addresses())
        await _check_served(bookies)
        opened.pop_all()
        return access


async def _find_urls(options: ConnectionOptions, told: Told | None) -> MetadataUrls:
    if options.metadata_url:
        return urls_by_option(options.metadata_url)
    if told is None:
        raise ClusterUnreachable(
            "nobody says where the cluster's metadata store is: neither option metadata.url nor admin.url is given"
        )
    try:
        return urls_by_brokers(await told())
    except (ClusterUnreachable, Misuse):
        raise
    except MagnetarError as error:
        raise ClusterUnreachable(f"the brokers do not say where their metadata store is: {error}") from error


async def _open_store(url: str) -> MetadataStore:
    servers = servers_of(url)
    if not await _any_answers(servers):
        raise ClusterUnreachable(f"the metadata store {url} cannot be reached from here ({_shown(servers)})")
    try:
        # The store's own patience ends first: it cleans up better than who cancels it.
        async with asyncio.timeout(STORE_SECONDS + PROBE_SECONDS):
            return await open_store(
                url,
                session_timeout_ms=int(SESSION_SECONDS * 1000),
                operation_timeout_ms=int(STORE_SECONDS * 1000),
                make_root=False,
            )
    except (Unavailable, SettingError, TimeoutError) as error:
        raise ClusterUnreachable(f"the metadata store {url} cannot be opened: {error}") from error


async def _probe_bookies(addresses: Addresses) -> None:
    if not addresses:
        raise ClusterUnreachable("no bookie is registered in the metadata store")
    some = random.sample(sorted(addresses.values()), min(PROBED_BOOKIES_MAX, len(addresses)))
    if not await _any_answers(some):
        raise ClusterUnreachable(f"bookies cannot be reached from here ({_shown(some)})")


async def _check_served(bookies: TcpBookieConnections) -> None:
    """Bookies that want TLS answer everybody else; reads would fail later, one by one."""
    ids = bookies.readable_bookies()
    for bookie_id in random.sample(ids, min(PROBED_BOOKIES_MAX, len(ids))):
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await bookies.connection(bookie_id).read_entry(NO_LEDGER, 0)
        except TimeoutError:
            continue
        except BookieError as error:
            if error.code is BookieCode.EUA:
                raise ClusterUnreachable(
                    f"bookie {bookie_id} serves nobody without TLS and a certificate (EUA), which direct reads have "
                    "not: readMode=brokers reads through brokers"
                ) from None
            if error.code is not BookieCode.UNREACHABLE:
                return


async def _any_answers(servers: Sequence[tuple[str, int]]) -> bool:
    """Whether a TCP connection to any of them comes about in time."""
    tasks = [asyncio.create_task(_answers(host, port)) for host, port in servers]
    try:
        for finished in asyncio.as_completed(tasks):
            if await finished:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def _shown(servers: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in servers)
