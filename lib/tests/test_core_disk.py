"""Small files are replaced whole, whatever a single write takes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from magnetar.core.disk import SystemDisk, write_all


class ShortWrites:
    """`os.pwritev` that takes a few bytes at a time, and then no more."""

    def __init__(self, size: int, writes_max: int) -> None:
        self._size = size
        self._left = writes_max
        self._pwritev = os.pwritev

    def __call__(self, descriptor: int, parts: Sequence[bytes], position: int, flags: int = 0) -> int:
        if not self._left:
            return 0
        self._left -= 1
        return self._pwritev(descriptor, [b"".join(parts)[: self._size]], position, flags)


def test_a_write_that_stops_short_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", ShortWrites(7, 1_000))
    content = bytes(range(256)) * 2
    SystemDisk().replace_whole(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == content


def test_one_that_takes_nothing_is_an_error_and_the_old_content_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk()
    disk.replace_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "pwritev", ShortWrites(7, 2))
    with pytest.raises(OSError, match="only 14 of 20 bytes") as told:
        disk.replace_whole(tmp_path / "file", b"x" * 20)
    assert told.value.errno == errno.ENOSPC
    assert (tmp_path / "file").read_bytes() == b"old"


def test_write_all_begins_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SystemDisk().create(tmp_path / "file")
    monkeypatch.setattr(os, "pwritev", ShortWrites(3, 100))
    write_all(file, b"0123456789", 5)
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"0123456789"


@pytest.mark.parametrize("writable", [False, True])
def test_a_directory_in_place_of_a_file_is_named(tmp_path: Path, writable: bool) -> None:
    (tmp_path / "1.txn").mkdir()
    with pytest.raises(IsADirectoryError, match=r"1\.txn"):
        SystemDisk().open(tmp_path / "1.txn", writable=writable)
