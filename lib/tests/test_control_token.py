"""Tokens that are exchanged while a control port is open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from magnetar.control.settings import ControlSettings
from magnetar.control.token import ControlToken
from magnetar.core.errors import SettingError


def mounted(directory: Path, version: str, token: str | None) -> Path:
    """As Kubernetes mounts Secrets: `token` is a link into a folder that is exchanged as a whole."""
    folder = directory / version
    folder.mkdir()
    if token is not None:
        (folder / "token").write_text(token)
    link = directory / "..new"
    link.symlink_to(version)
    os.replace(link, directory / "..data")
    found = directory / "token"
    if not found.is_symlink():
        found.symlink_to(Path("..data") / "token")
    return found


def test_without_a_file_the_token_stays() -> None:
    assert ControlToken("a").wanted == b"a"
    assert ControlToken("").wanted == b""


def test_a_file_is_read_again_when_it_is_exchanged(tmp_path: Path) -> None:
    token = ControlToken("", mounted(tmp_path, "1", "first\n"))
    assert token.wanted == b"first"
    mounted(tmp_path, "2", "second")
    assert token.wanted == b"second"


def test_what_is_no_token_leaves_the_last_one_in_force(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = ControlToken("", mounted(tmp_path, "1", "first"))
    mounted(tmp_path, "2", None)
    assert token.wanted == b"first"
    mounted(tmp_path, "3", " \n")
    assert [token.wanted, token.wanted] == [b"first", b"first"]
    assert len(caplog.records) == 1
    mounted(tmp_path, "4", "fourth")
    assert token.wanted == b"fourth"


@pytest.mark.parametrize("content", [None, "", "\n", "naïve"])
def test_a_port_does_not_open_without_the_token_it_wants(tmp_path: Path, content: str | None) -> None:
    with pytest.raises(SettingError):
        ControlToken("", mounted(tmp_path, "1", content))


def test_a_token_is_said_once() -> None:
    with pytest.raises(SettingError, match="set one of them"):
        ControlSettings(token="a", token_file=Path("/b"))
