from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.ledger.ledger_paths import is_ledger_folder, ledger_id_of, ledger_path


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (1234567, "/ledgers/00/0123/L4567"),
        (2**31 - 2, "/ledgers/21/4748/L3646"),
        (2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (1 << 32, "/ledgers/000/0000/0042/9496/L7296"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_paths(ledger_id: int, path: str) -> None:
    assert ledger_path(ledger_id) == path
    assert ledger_id_of(path) == ledger_id


@given(ledger_id=st.integers(0, 2**63 - 1))
def test_round_trip(ledger_id: int) -> None:
    assert ledger_id_of(ledger_path(ledger_id)) == ledger_id


@pytest.mark.parametrize(
    "path",
    ["/ledgers", "/ledgers/LAYOUT", "/ledgers/00/0123", "/ledgers/00/0123/4567", "/ledgers/00/123/L4567", "/x/L1"],
)
def test_other_paths_are_no_ledgers(path: str) -> None:
    assert ledger_id_of(path) is None


def test_folders() -> None:
    assert is_ledger_folder("00")
    assert is_ledger_folder("922")
    for name in ("available", "idgen", "cookies", "0", "0000", "LAYOUT"):
        assert not is_ledger_folder(name)
