from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from magnetar.standalone.data_folder import LOCK_FILE, FolderInUse, ForeignFolder, claimed


def fill(directory: Path) -> None:
    with claimed(directory):
        for name in ("metadata", "bookie"):
            (directory / name).mkdir()
            (directory / name / "something").write_text("stored")


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "folder"
    with claimed(directory):
        assert (directory / LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_what_is_stored_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    with claimed(tmp_path):
        assert (tmp_path / "metadata" / "something").read_text() == "stored"


def test_fresh_empties_our_folder(tmp_path: Path) -> None:
    fill(tmp_path)
    with claimed(tmp_path, fresh=True):
        assert [entry.name for entry in tmp_path.iterdir()] == [LOCK_FILE]


@pytest.mark.parametrize("exists", [False, True])
def test_fresh_takes_an_empty_folder(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / "data"
    if exists:
        directory.mkdir()
    with claimed(directory, fresh=True):
        assert directory.is_dir()


def test_fresh_refuses_a_folder_with_other_things(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ForeignFolder, match=r"thesis\.tex"), claimed(tmp_path, fresh=True):
        pass
    assert (tmp_path / "thesis.tex").exists()
    assert (tmp_path / "metadata" / "something").exists()


def test_fresh_refuses_a_folder_that_only_looks_like_ours(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    with pytest.raises(ForeignFolder, match="did not make it"), claimed(tmp_path, fresh=True):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["metadata"]


def test_fresh_does_not_touch_a_folder_in_use(tmp_path: Path) -> None:
    fill(tmp_path)
    with claimed(tmp_path):
        with pytest.raises(FolderInUse, match=f"process {os.getpid()}"), claimed(tmp_path, fresh=True):
            pass
        assert (tmp_path / "metadata" / "something").exists()


def test_a_dead_owner_leaves_no_lock(tmp_path: Path) -> None:
    def die_with_the_lock() -> None:
        with claimed(tmp_path):
            os._exit(9)

    child = multiprocessing.get_context("fork").Process(target=die_with_the_lock)
    child.start()
    child.join()
    assert child.exitcode == 9
    with claimed(tmp_path):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(FileExistsError), claimed(path):
        pass
    with pytest.raises(NotADirectoryError), claimed(path, fresh=True):
        pass
