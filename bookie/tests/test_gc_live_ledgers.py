"""What the metadata store says about ledgers."""

from __future__ import annotations

import pytest
from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.gc.live_ledgers import LAST_COLLECTION_ROOT, StoredLiveLedgers
from magnetar.bookie.registration import LAYOUT, LAYOUT_PATH
from magnetar.core.errors import Unavailable
from magnetar.ledger.ledger_paths import SHORT_ID_LIMIT, ledger_path
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, encode_ledger_metadata

ME = "me:3181"


async def put_ledger(store: MemoryMetadataStore, ledger_id: int, state: LedgerState, *bookies: str) -> None:
    metadata = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        ensembles=[(at * 10, [bookie]) for at, bookie in enumerate(bookies)],
        state=state,
        last_entry_id=20 if state is LedgerState.CLOSED else -1,
    )
    await store.put(ledger_path(ledger_id), encode_ledger_metadata(metadata))


@pytest.fixture
async def known(store: MemoryMetadataStore) -> StoredLiveLedgers:
    await store.put(f"{COOKIES_PATH}/{ME}", b"cookie")
    await store.put(LAYOUT_PATH, LAYOUT)
    return StoredLiveLedgers(store, ME)


async def test_ledgers_are_listed_in_order(store: MemoryMetadataStore, known: StoredLiveLedgers) -> None:
    await known.catch_up()
    assert await store.exists(f"{LAST_COLLECTION_ROOT}/{ME}")
    wanted = [0, 9_999, 10_000, 123_456_789, SHORT_ID_LIMIT - 1, SHORT_ID_LIMIT, 2**40, 2**62]
    for ledger_id in reversed(wanted):
        await put_ledger(store, ledger_id, LedgerState.OPEN, ME)
    assert [ledger_id async for ledger_id in known.ledger_ids()] == wanted
    assert await known.exists(2**40)
    assert not await known.exists(1)


async def test_who_has_a_ledger(store: MemoryMetadataStore, known: StoredLiveLedgers) -> None:
    await put_ledger(store, 1, LedgerState.CLOSED, "a", ME)
    await put_ledger(store, 2, LedgerState.CLOSED, ME, "a")
    await put_ledger(store, 3, LedgerState.CLOSED, "a", "b")
    await put_ledger(store, 4, LedgerState.OPEN, "a", "b")
    await put_ledger(store, 5, LedgerState.IN_RECOVERY, "a", "b")
    await put_ledger(store, 6, LedgerState.OPEN, ME)
    answers = [await known.belongs_to(ledger_id, ME) for ledger_id in range(1, 8)]
    assert answers == [True, True, False, None, None, True, None]


@pytest.mark.parametrize(
    ("layout", "trusted"),
    [
        (LAYOUT, True),
        (b"1\norg.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory:0", True),
        (b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1", False),
        (b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1", False),
        (b"2\norg.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory:1", False),
        (b"", False),
    ],
)
async def test_only_known_layouts(
    store: MemoryMetadataStore, known: StoredLiveLedgers, layout: bytes, trusted: bool
) -> None:
    await store.put(LAYOUT_PATH, layout)
    if trusted:
        await known.catch_up()
    else:
        with pytest.raises(Unavailable, match="layout"):
            await known.catch_up()


async def test_a_store_that_does_not_know_us(store: MemoryMetadataStore, known: StoredLiveLedgers) -> None:
    await store.delete(f"{COOKIES_PATH}/{ME}")
    with pytest.raises(Unavailable, match="cookie"):
        await known.catch_up()
