"""What every connection to a bookie must do, as tests that any of them can be put through.

A test module makes a subclass of `BookieConnectionContract` whose name begins with `Test` and gives one fixture,
`bookie`: a `BookieConnection` to a writable bookie without ledgers, closed by the fixture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest
from magnetar.ledger.bookie_client.bookie_connection import (
    ADD_FLAG_HIGH_PRIORITY,
    ADD_FLAG_NONE,
    ADD_FLAG_RECOVERY,
    LAST_ADD_CONFIRMED,
    READ_FLAG_FENCE,
    BookieConnection,
)
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec, master_key

PATIENCE_SECONDS: Final = 120.0
"""How long a test waits for what must happen; only a broken bookie waits this long."""

LEDGER: Final = 4711
KEY: Final = master_key(b"")
OTHER_KEY: Final = master_key(b"other")
NOT_THERE: Final = (BookieCode.ENOENTRY, BookieCode.ENOLEDGER)


class Answers:
    """An `AddCallback` that keeps what it is told."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.calls = 0
        self._news = asyncio.Event()

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self.calls += 1
        for entry_id in entry_ids:
            assert entry_id not in self.codes, "answered twice"
            self.codes[entry_id] = code
        self._news.set()

    async def until(self, count: int) -> None:
        """Wait until so many entries are answered."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.codes) < count:
                self._news.clear()
                await self._news.wait()


def entries_of(ledger_id: int, first_entry_id: int, payloads: Sequence[bytes]) -> list[bytes]:
    """Whole entries with consecutive ids."""
    return EntryCodec(ledger_id, "CRC32C").encode_many(first_entry_id, first_entry_id - 1, 0, payloads)


async def add(
    bookie: BookieConnection,
    first_entry_id: int,
    entries: Sequence[bytes],
    *,
    flags: int = ADD_FLAG_NONE,
    key: bytes = KEY,
    ledger_id: int = LEDGER,
) -> set[int]:
    """Add entries with consecutive ids; returns the codes that came back."""
    answers = Answers()
    bookie.add_entries(ledger_id, key, range(first_entry_id, first_entry_id + len(entries)), entries, flags, answers)
    assert answers.calls == 0, "answered from inside the call"
    await answers.until(len(entries))
    return set(answers.codes.values())


async def code_of_read(bookie: BookieConnection, entry_id: int, ledger_id: int = LEDGER) -> BookieCode:
    """The error that a read ends with."""
    with pytest.raises(BookieError) as raised:
        await bookie.read_entry(ledger_id, entry_id)
    return raised.value.code


class BookieConnectionContract:
    """Run by the bookies in memory, the local ones and those over TCP."""

    async def test_what_was_added_is_read(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"one", b"", b"three" * 1000])
        assert await add(bookie, 0, entries) == {BookieCode.EOK}
        assert [await bookie.read_entry(LEDGER, entry_id) for entry_id in range(3)] == entries

    async def test_adds_of_many_calls_are_all_answered_once(self, bookie: BookieConnection) -> None:
        answers = Answers()
        entries = entries_of(LEDGER, 0, [b"x%d" % number for number in range(300)])
        for first in range(0, 300, 10):
            bookie.add_entries(LEDGER, KEY, range(first, first + 10), entries[first : first + 10], 0, answers)
        await answers.until(300)
        assert set(answers.codes.values()) == {BookieCode.EOK}
        assert await bookie.read_entry(LEDGER, 299) == entries[299]

    async def test_ledgers_do_not_mix(self, bookie: BookieConnection) -> None:
        answers = {ledger_id: Answers() for ledger_id in range(1, 6)}
        for entry_id in range(10):
            for ledger_id, heard in answers.items():
                entries = entries_of(ledger_id, entry_id, [b"%d" % ledger_id])
                bookie.add_entries(ledger_id, KEY, [entry_id], entries, 0, heard)
        for ledger_id, heard in answers.items():
            await heard.until(10)
            assert [await bookie.read_entry(ledger_id, 9)] == entries_of(ledger_id, 9, [b"%d" % ledger_id])

    async def test_a_large_entry(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [bytes(5 * 1024 * 1024)])
        assert await add(bookie, 0, entries) == {BookieCode.EOK}
        assert await bookie.read_entry(LEDGER, 0) == entries[0]
        assert await bookie.read_entries(LEDGER, 0, 10, 1000) == entries

    async def test_the_same_entry_twice_is_no_error(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"x"])
        results = await asyncio.gather(*(add(bookie, 0, entries) for _ in range(3)))
        assert results == [{BookieCode.EOK}] * 3

    async def test_an_empty_add_is_no_error(self, bookie: BookieConnection) -> None:
        bookie.add_entries(LEDGER, KEY, [], [], 0, Answers())

    async def test_what_is_not_there(self, bookie: BookieConnection) -> None:
        assert await code_of_read(bookie, 0, ledger_id=999) in NOT_THERE
        assert await code_of_read(bookie, LAST_ADD_CONFIRMED, ledger_id=999) in NOT_THERE
        await add(bookie, 0, entries_of(LEDGER, 0, [b"x"]))
        assert await code_of_read(bookie, 1) in NOT_THERE
        with pytest.raises(BookieError) as raised:
            await bookie.read_entries(LEDGER, 1, 10, 1000)
        assert raised.value.code in NOT_THERE

    async def test_the_last_entry(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"one", b"two", b"three"])
        await add(bookie, 0, entries)
        assert await bookie.read_entry(LEDGER, LAST_ADD_CONFIRMED) == entries[2]

    async def test_many_reads_at_once(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"%d" % number for number in range(50)])
        await add(bookie, 0, entries)
        wanted = [number % 50 for number in range(200)]
        got = await asyncio.gather(*(bookie.read_entry(LEDGER, entry_id) for entry_id in wanted))
        assert got == [entries[entry_id] for entry_id in wanted]

    async def test_reads_of_many_entries(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"%04d" % number for number in range(20)])
        await add(bookie, 0, entries)
        got: list[bytes] = []
        while len(got) < 20:
            got += await bookie.read_entries(LEDGER, len(got), 20 - len(got), 1 << 20)
        assert got == entries
        some = await bookie.read_entries(LEDGER, 5, 3, 1 << 20)
        assert some == entries[5 : 5 + len(some)]
        assert 1 <= len(some) <= 3

    async def test_a_read_of_many_ends_at_the_size_but_gives_one(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [bytes(1000) for _ in range(10)])
        await add(bookie, 0, entries)
        assert await bookie.read_entries(LEDGER, 0, 10, 1) == entries[:1]
        some = await bookie.read_entries(LEDGER, 0, 10, 3500)
        assert some == entries[: len(some)]
        assert 1 <= len(some) <= 3

    async def test_a_read_of_many_ends_at_a_gap(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"%d" % number for number in range(6)])
        await add(bookie, 0, entries[:2])
        await add(bookie, 3, entries[3:])
        assert await bookie.read_entries(LEDGER, 0, 10, 1 << 20) == entries[:2]

    async def test_fencing_refuses_the_writer_but_not_recovery(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"one", b"two", b"three"])
        await add(bookie, 0, entries[:1])
        assert await bookie.read_entry(LEDGER, LAST_ADD_CONFIRMED, READ_FLAG_FENCE, KEY) == entries[0]
        assert await add(bookie, 1, entries[1:]) == {BookieCode.EFENCED}
        assert await code_of_read(bookie, 1) in NOT_THERE
        flags = ADD_FLAG_RECOVERY | ADD_FLAG_HIGH_PRIORITY
        assert await add(bookie, 1, entries[1:2], flags=flags) == {BookieCode.EOK}
        assert await bookie.read_entry(LEDGER, 1) == entries[1]

    async def test_a_ledger_that_is_not_there_is_fenced_as_well(self, bookie: BookieConnection) -> None:
        with pytest.raises(BookieError) as raised:
            await bookie.read_entry(LEDGER, LAST_ADD_CONFIRMED, READ_FLAG_FENCE, KEY)
        assert raised.value.code in NOT_THERE
        assert await add(bookie, 0, entries_of(LEDGER, 0, [b"x"])) == {BookieCode.EFENCED}

    async def test_another_key_is_refused(self, bookie: BookieConnection) -> None:
        entries = entries_of(LEDGER, 0, [b"one", b"two"])
        await add(bookie, 0, entries[:1])
        assert await add(bookie, 1, entries[1:], key=OTHER_KEY) == {BookieCode.EUA}
        with pytest.raises(BookieError) as raised:
            await bookie.read_entry(LEDGER, LAST_ADD_CONFIRMED, READ_FLAG_FENCE, OTHER_KEY)
        assert raised.value.code is BookieCode.EUA
        assert await add(bookie, 1, entries[1:]) == {BookieCode.EOK}

    async def test_a_closed_connection_answers_unreachable(self, bookie: BookieConnection) -> None:
        await add(bookie, 0, entries_of(LEDGER, 0, [b"x"]))
        await bookie.close()
        assert await add(bookie, 1, entries_of(LEDGER, 1, [b"x"])) == {BookieCode.UNREACHABLE}
        assert await code_of_read(bookie, 0) is BookieCode.UNREACHABLE
