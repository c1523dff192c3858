"""Reading entry logs for collection: ledgers maps, whole logs, what crashes and damage leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.bookie.gc.entry_log_usage import EntryLogUsages, LogReading
from magnetar.bookie.gc.log_scan import STEP_BYTES, LogScan, Record
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log_format import HEADER_BYTES, EntryDamaged
from magnetar.bookie.storage.entry_log_writer import EntryLogWriter
from magnetar.core.disk import SystemDisk
from magnetar.wire.bookkeeper.entry import EntryCodec

DISK = SystemDisk()


def entries(ledger_id: int, first: int, count: int, size: int = 100, digest: str = "CRC32C") -> list[bytes]:
    payloads = [bytes([i % 256]) * size for i in range(count)]
    return EntryCodec(ledger_id, digest).encode_many(first, first - 1, 0, payloads)


def write_log(directory: Path, log_id: int, batches: list[tuple[int, list[bytes]]], *, close: bool = True) -> Path:
    writer = EntryLogWriter(DISK, directory, 1 << 40, lambda: log_id)
    for ledger_id, batch in batches:
        writer.append(ledger_id, batch)
    writer.sync()
    path = directory / entry_log_format.file_name(log_id)
    if close:
        writer.close()
    else:
        writer.abandon()
    return path


def scan_all(path: Path) -> tuple[LogScan, list[Record]]:
    scan = LogScan(DISK, path)
    records: list[Record] = []
    while not scan.ended:
        records += scan.next_records()
    scan.close()
    scan.close()
    return scan, records


def read_all(path: Path) -> LogReading:
    reading = LogReading(DISK, path, 0)
    while reading.step():
        pass
    reading.close()
    return reading


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300), st.sampled_from([0, 10, 5_000])), max_size=8),
    st.booleans(),
)
def test_a_scan_finds_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int, int]], close: bool
) -> None:
    directory = tmp_path_factory.mktemp("log")
    written: list[tuple[int, list[bytes]]] = []
    for number, (ledger_id, count, size) in enumerate(batches):
        written.append((ledger_id, entries(ledger_id, number * 1_000, count, size)))
    path = write_log(directory, 0, [*written, (9, entries(9, 0, 1))], close=close)
    scan, records = scan_all(path)
    assert [record[3] for record in records[:-1]] == [entry for _, some in written for entry in some]
    data = path.read_bytes()
    assert all(data[position : position + len(entry)] == entry for _, _, position, entry in records)
    assert scan.whole
    assert bool(scan.ledgers_map_offset) == close


def test_an_entry_larger_than_a_window(tmp_path: Path) -> None:
    path = write_log(tmp_path, 0, [(1, entries(1, 0, 2, 2 * STEP_BYTES)), (2, entries(2, 0, 1))])
    scan, records = scan_all(path)
    assert [record[:2] for record in records] == [(1, 0), (1, 1), (2, 0)]
    assert scan.whole


def test_logs_that_a_crash_left(tmp_path: Path) -> None:
    whole = write_log(tmp_path, 0, [(1, entries(1, 0, 3))], close=False).read_bytes()
    path = tmp_path / "1.log"
    for length in (0, 100, HEADER_BYTES):
        path.write_bytes(whole[:length])
        scan, records = scan_all(path)
        assert (records, scan.whole, scan.damage) == ([], True, "")
    for cut in range(1, 40):
        path.write_bytes(whole[:-cut])
        reading = read_all(path)
        assert (reading.doubtful, reading.usage().total_bytes) == (True, 2 * 140)
        assert reading.position == HEADER_BYTES + 2 * 140
    path.write_bytes(whole + bytes(3 * STEP_BYTES))
    reading = read_all(path)
    assert (reading.doubtful, reading.usage().total_bytes) == (True, 3 * 140)


def test_padding_of_the_direct_entry_logger(tmp_path: Path) -> None:
    plain = write_log(tmp_path, 0, [(1, entries(1, 0, 1)), (2, entries(2, 0, 1))], close=False).read_bytes()
    cut = HEADER_BYTES + 140
    path = tmp_path / "1.log"
    path.write_bytes(plain[:cut] + b"\xf0" * 3_000 + plain[cut:] + b"\xf0" * 11)
    scan, records = scan_all(path)
    assert [record[:2] for record in records] == [(1, 0), (2, 0)]
    assert scan.whole


@pytest.mark.parametrize("at", range(20))
def test_damage_is_noticed(tmp_path: Path, at: int) -> None:
    path = write_log(tmp_path, 0, [(1, entries(1, 0, 5))], close=False)
    data = bytearray(path.read_bytes())
    begin = HEADER_BYTES + 140 + at
    data[begin] ^= 0x80
    path.write_bytes(data)
    # Changed ids look like another ledger's entry or a negative one; a changed size loses the step.
    _, records = scan_all(path)
    assert (1, 1) not in [record[:2] for record in records]


def test_zeros_in_the_middle_are_damage(tmp_path: Path) -> None:
    path = write_log(tmp_path, 0, [(1, entries(1, 0, 100))], close=False)
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    reading = read_all(path)
    assert reading.doubtful
    assert reading.position <= 4096 + 140
    path.write_bytes(b"nonsense" * 1000)
    assert "header" in read_all(path).usage().damage


def test_usage_comes_from_the_map_or_from_the_log(tmp_path: Path) -> None:
    usages = EntryLogUsages(DISK, tmp_path, 100)
    write_log(tmp_path, 0, [(1, entries(1, 0, 3)), (2, entries(2, 0, 1))])
    path = write_log(tmp_path, 1, [(1, entries(1, 3, 3)), (2, entries(2, 1, 1))], close=False)
    assert usages.read_map(0)
    assert not usages.read_map(1)
    reading = LogReading(DISK, path, 1)
    while reading.step():
        pass
    usages.keep(reading.usage())
    reading.close()
    for log_id in (0, 1):
        usage = usages.evaluate(log_id, frozenset([1, 2, 3]))
        assert (usage.total_bytes, usage.remaining_bytes, usage.share()) == (560, 560, 1.0)
        usage = usages.evaluate(log_id, frozenset([2, 3]))
        assert (usage.remaining_bytes, usage.share(), usage.share(1_400)) == (140, 0.25, 0.1)
        assert not usage.empty
        assert usages.evaluate(log_id, frozenset([3])).empty
    assert usages.buckets() == (2, *[0] * 9)


def test_a_map_of_many_ledgers(tmp_path: Path) -> None:
    batches = [(ledger_id, entries(ledger_id, 0, 1, 0)) for ledger_id in range(10_001)]
    write_log(tmp_path, 0, batches)
    usages = EntryLogUsages(DISK, tmp_path, 1_000_000)
    assert usages.read_map(0)
    assert usages.evaluate(0, frozenset(range(5_000))).remaining_bytes == 5_000 * 40


def test_memory_is_bounded(tmp_path: Path) -> None:
    for log_id in range(4):
        write_log(tmp_path, log_id, [(ledger_id, entries(ledger_id, log_id, 1)) for ledger_id in range(10)])
    usages = EntryLogUsages(DISK, tmp_path, 20)
    everything = frozenset(range(10))
    for log_id in range(4):
        usages.read_map(log_id)
        usages.evaluate(log_id, everything)
    assert sum(len(usage.ledger_ids or ()) for usage in usages) == 20
    assert [usage.remaining_bytes for usage in usages] == [1_400] * 4
    for log_id in range(4):
        usages.evaluate(log_id, frozenset([3]))
    assert [usage.remaining_bytes for usage in usages] == [140] * 4
    kept = usages.evaluate(3, frozenset([3]), keep=True)
    assert list(kept.ledger_ids or ()) == [3]


@pytest.mark.parametrize("part", ["offset", "count", "pairs"])
def test_a_damaged_map_is_not_used(tmp_path: Path, part: str) -> None:
    path = write_log(tmp_path, 0, [(1, entries(1, 0, 3)), (2, entries(2, 0, 1))])
    data = bytearray(path.read_bytes())
    offset, count = entry_log_format.decode_header(bytes(data))
    if part == "offset":
        data[:HEADER_BYTES] = entry_log_format.encode_header(offset - 10, count)
    elif part == "count":
        data[:HEADER_BYTES] = entry_log_format.encode_header(offset, count + 1)
    else:
        data[offset + 5] ^= 1
    path.write_bytes(data)
    usages = EntryLogUsages(DISK, tmp_path, 100)
    assert not usages.read_map(0)
    scan = LogScan(DISK, path)
    with pytest.raises(EntryDamaged):
        scan.read_map()
    scan.close()
    reading = read_all(path)
    assert reading.usage().total_bytes == 560
