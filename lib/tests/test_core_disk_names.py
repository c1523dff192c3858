"""The machine's own disk: what is durable when."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.core.disk import SystemDisk


def test_a_new_directory_is_durable_with_all_its_parents(tmp_path: Path, synced_names: set[Path]) -> None:
    path = tmp_path / "one" / "two" / "three"
    SystemDisk().make_directory(path)
    assert {path, path.parent, path.parent.parent, tmp_path} <= synced_names


def test_a_directory_that_is_there_is_made_durable_again(tmp_path: Path, synced_names: set[Path]) -> None:
    """Whoever made it may have been killed before its name was synced."""
    (tmp_path / "one").mkdir()
    SystemDisk().make_directory(tmp_path / "one")
    assert tmp_path / "one" in synced_names
    SystemDisk().make_directory(tmp_path / "one" / "two")
    assert tmp_path / "one" / "two" in synced_names


def test_each_directory_is_durable_before_the_next_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(disk: SystemDisk, directory: Path) -> None:
        if (tmp_path / "one").exists():
            raise InterruptedError("killed")

    monkeypatch.setattr(SystemDisk, "sync_directory", dies)
    with pytest.raises(InterruptedError):
        SystemDisk().make_directory(tmp_path / "one" / "two")
    assert not (tmp_path / "one" / "two").exists()


def test_a_parent_that_we_may_not_look_into_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours").mkdir()
    sync = SystemDisk.sync_directory

    def refuses(disk: SystemDisk, directory: Path) -> None:
        if directory == tmp_path:
            raise PermissionError("not yours")
        sync(disk, directory)

    monkeypatch.setattr(SystemDisk, "sync_directory", refuses)
    SystemDisk().make_directory(tmp_path / "ours" / "new")
    with pytest.raises(PermissionError):
        SystemDisk().make_directory(tmp_path / "another")
