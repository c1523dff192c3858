"""Entry logs that Apache's BookKeeper wrote are measured, compacted and deleted as ours are."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from magnetar.bookie.gc.compaction import LogCopy, SwitchOver, compacted_name, finish_compactions
from magnetar.bookie.gc.entry_log_usage import EntryLogUsages, LogReading
from magnetar.bookie.storage.entry_log_format import DIGEST_CRC32C, digest_kind
from magnetar.bookie.storage.entry_log_reader import EntryLogReader
from magnetar.core.disk import SystemDisk

from bookie.tests.simulated_storage import DiskIndex

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded" / "entry_logs.json").read_text())["logs"]
DISK = SystemDisk()
SIZES = {7: 450, 8: 450, 9: 150}
"""Bytes of each ledger, as its own ledgers map says."""


@pytest.fixture(params=["closed", "open", "direct"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Which of the recorded logs stands in the directory as log 0."""
    name: str = request.param
    (tmp_path / "0.log").write_bytes(zlib.decompress(base64.b64decode(RECORDED[name]["zlib_base64"])))
    return name


def read_all(path: Path) -> LogReading:
    reading = LogReading(DISK, path, 0)
    while reading.step():
        pass
    reading.close()
    return reading


def open_index(tmp_path: Path) -> DiskIndex:
    (tmp_path / "index").mkdir()
    return DiskIndex(DISK, tmp_path / "index")


def put_places(index: DiskIndex, kind: str) -> list[tuple[int, int, int]]:
    places = [(ledger_id, entry_id, place) for ledger_id, entry_id, place in RECORDED[kind]["places"]]
    for ledger_id, entry_id, place in places:
        index.put_locations(ledger_id, [entry_id], [place])
    return places


def test_both_ways_to_measure_agree(written: str, tmp_path: Path) -> None:
    usages = EntryLogUsages(DISK, tmp_path, 100)
    assert usages.read_map(0) == (written != "open")
    by_reading = read_all(tmp_path / "0.log").usage()
    usages_found = [by_reading]
    by_map = usages.get(0)
    if by_map is not None:
        usages_found.append(by_map)
    for usage in usages_found:
        assert dict(zip(usage.ledger_ids or (), usage.sizes_bytes, strict=True)) == SIZES
    assert sum(SIZES.values()) == by_reading.total_bytes


def test_a_log_of_apache_is_compacted(written: str, tmp_path: Path) -> None:
    index = open_index(tmp_path)
    places = put_places(index, written)
    old_reader = EntryLogReader(DISK, tmp_path)
    wanted = {(ids[0], ids[1]): old_reader.read(ids[2], ids[0], ids[1]) for ids in places if ids[0] != 8}
    old_reader.close()
    assert {digest_kind(entry) for entry in wanted.values()} == {DIGEST_CRC32C}
    copy = LogCopy(DISK, tmp_path, index, 0, {7: SIZES[7], 9: SIZES[9]}, 0x1F)
    while copy.step():
        pass
    assert copy.finish()
    assert (copy.copied_entries, len(wanted)) == (7, 7)
    switch = SwitchOver(DISK, tmp_path, index, (0x1F, 0))
    while switch.step():
        pass
    switch.finish()
    assert sorted(path.name for path in tmp_path.glob("*.log*")) == ["1f.log"]
    reader = EntryLogReader(DISK, tmp_path)
    for (ledger_id, entry_id), entry in wanted.items():
        place = index.location(ledger_id, entry_id)
        assert place is not None
        assert place >> 32 == 0x1F
        assert reader.read(place, ledger_id, entry_id) == entry
    reader.close()
    index.close()


@pytest.mark.parametrize("kind", ["closed", "direct"])
def test_a_compaction_that_apache_began_is_finished(kind: str, tmp_path: Path) -> None:
    """As BookKeeper leaves it between its second and third phase: the copy under its long name only."""
    content = zlib.decompress(base64.b64decode(RECORDED[kind]["zlib_base64"]))
    (tmp_path / compacted_name(2, 1)).write_bytes(content)
    (tmp_path / "3.log.compacting").write_bytes(content[:1500])
    (tmp_path / "1.log").write_bytes(content)
    index = open_index(tmp_path)
    for ledger_id, entry_id, place in RECORDED[kind]["places"]:
        index.put_locations(ledger_id, [entry_id], [1 << 32 | place if ledger_id == 7 else 5 << 32 | place])
    assert finish_compactions(DISK, tmp_path, index) == 1
    assert sorted(path.name for path in tmp_path.glob("*.log*")) == ["2.log"]
    for ledger_id, entry_id, place in RECORDED[kind]["places"]:
        assert index.location(ledger_id, entry_id) == ((2 if ledger_id == 7 else 5) << 32 | place)
    assert finish_compactions(DISK, tmp_path, index) == 0
    index.close()
