"""How many TLS handshakes may be under way, and which of them have to go."""

from __future__ import annotations

import pytest
from magnetar.net import descriptors
from magnetar.net.descriptors import HANDSHAKES_MAX, HANDSHAKES_MIN, handshakes_max
from magnetar.net.pending_handshakes import PATIENCE_SECONDS, PATIENCE_SECONDS_MAX, PendingHandshakes
from magnetar.net.refused_connections import LimitKind

from lib.tests.handshake_flood import Flood, beside, networks

MANY = 1 << 20


def full(*hosts: str) -> PendingHandshakes[int]:
    """As many places as hosts; one arrival from each, numbered, a second after the other."""
    arrivals: PendingHandshakes[int] = PendingHandshakes(len(hosts))
    for number, host in enumerate(hosts):
        assert arrivals.wait_seconds(number, MANY) == 0
        assert arrivals.enter(number, host, number, MANY, MANY) is None
    return arrivals


@pytest.mark.parametrize(
    ("hosts", "gone"),
    [("aaaa", [0, 1, 2, 3]), ("bbaaa", [2, 0, 3]), ("abcd", [0, 1, 2, 3]), ("abcbc", [1, 2, 0])],
)
def test_who_has_taken_longest_goes_first_of_the_address_that_has_most(hosts: str, gone: list[int]) -> None:
    arrivals = full(*hosts)
    for number, expected in enumerate(gone):
        assert arrivals.enter(100 + number, f"new {number}", 100, MANY, MANY) == (expected, LimitKind.HANDSHAKES)
        assert len(arrivals) == len(hosts)


def test_an_address_that_floods_takes_no_place_of_others() -> None:
    arrivals: PendingHandshakes[int] = PendingHandshakes(100)
    for number in range(10):
        arrivals.enter(number, f"honest {number}", 0, MANY, MANY)
    for number in range(100, 10_000):
        arrivals.enter(number, "flood", 1, MANY, MANY)
    assert arrivals.all()[:10] == list(range(10))
    assert len(arrivals) == 100


def test_all_addresses_of_a_network_are_one_that_floods() -> None:
    arrivals: PendingHandshakes[int] = PendingHandshakes(100)
    for number in range(25):
        arrivals.enter(number, "2001:db8:0:1::1", 0, MANY, MANY)
    for number in range(100, 1_000):
        arrivals.enter(number, f"2001:db8:0:2::{number:x}", 1, MANY, MANY)
    assert arrivals.all()[:25] == list(range(25))
    assert len(arrivals) == 100


def test_the_limit_of_an_address_is_none_of_its_network() -> None:
    arrivals: PendingHandshakes[int] = PendingHandshakes(100)
    for number in range(8):
        assert arrivals.enter(number, f"2001:db8::{number}", 0, MANY, 1) is None
    assert arrivals.enter(9, "2001:db8::3", 0, MANY, 1) == (3, LimitKind.HANDSHAKES_OF_ADDRESS)


@pytest.mark.parametrize("networks_of_flood", [1, 4, 5, 100_000])
@pytest.mark.parametrize("at_once", [1, 20, 100])
def test_honest_clients_of_one_address_stand_beside_a_flood(networks_of_flood: int, at_once: int) -> None:
    """Of one network, of some that have just their share each, or of as many as there are connections."""
    rtts_seconds = (0.001, 0.02, 0.1, 0.3)
    port = beside(Flood(networks(networks_of_flood)), rtts_seconds, at_once)
    assert port.stood == len(rtts_seconds) * at_once
    assert port.longest_seconds < 0.8


def test_an_honest_client_waits_for_those_that_came_before_it() -> None:
    """In a kernel's queue of four thousand."""
    port = beside(Flood(networks(100_000), connections=5_100), [0.3], 20)
    assert port.stood == 20
    assert 2 < port.longest_seconds < 3


def test_with_few_places_honest_clients_that_are_near_stand() -> None:
    port = beside(Flood(networks(100_000)), [0.001, 0.02, 0.04], 20, places=128)
    assert port.stood == 60


def test_who_leaves_gives_the_place_back() -> None:
    arrivals = full("a", "a", "b")
    arrivals.leave(0)
    arrivals.leave(0)
    arrivals.stands(2)
    arrivals.stands(2)
    assert arrivals.all() == [1]
    assert arrivals.wait_seconds(0, MANY) == 0
    assert arrivals.enter(3, "b", 3, MANY, MANY) is None
    assert arrivals.enter(4, "b", 3, MANY, MANY) is None
    assert arrivals.enter(5, "c", 3, MANY, MANY) == (3, LimitKind.HANDSHAKES)


def test_the_limit_of_an_address_counts_handshakes() -> None:
    arrivals: PendingHandshakes[int] = PendingHandshakes(100)
    assert arrivals.enter(0, "b", 0, MANY, 2) is None
    assert arrivals.enter(1, "a", 0, MANY, 2) is None
    assert arrivals.enter(2, "a", 0, MANY, 2) is None
    assert arrivals.enter(3, "a", 0, MANY, 2) == (1, LimitKind.HANDSHAKES_OF_ADDRESS)
    # Nobody else of it may come to stand: one may arrive, to be told so.
    assert arrivals.enter(4, "c", 0, MANY, 0) is None
    assert arrivals.enter(5, "c", 0, MANY, -3) == (4, LimitKind.HANDSHAKES_OF_ADDRESS)
    assert len(arrivals) == 4


def test_they_fit_beside_the_connections_that_stand() -> None:
    arrivals: PendingHandshakes[int] = PendingHandshakes(1_000)
    assert [arrivals.room(left) for left in (MANY, 1_000, 400, 10, 0)] == [1_000, 1_000, 400, HANDSHAKES_MIN, 32]


def test_clients_that_all_come_back_at_once_wait_for_each_other() -> None:
    """Two hundred handshakes a second, a thousand places, ten thousand clients: nobody has to go."""
    arrivals: PendingHandshakes[int] = PendingHandshakes(1_000)
    standing = 0
    number = 0
    for step in range(50 * 200):
        now_seconds = step / 200
        while number < 10_000 and arrivals.wait_seconds(now_seconds, MANY) <= 0:
            assert arrivals.enter(number, "proxy", now_seconds, MANY, MANY) is None
            number += 1
        arrivals.stands(arrivals.all()[0])
        standing += 1
    assert standing == 10_000
    assert arrivals.patience_seconds == PATIENCE_SECONDS_MAX


def test_half_handshakes_wear_patience_out() -> None:
    """A flood has the port wait for a second once; then its handshakes go as they come."""
    arrivals = full(*["flood"] * 200)
    now_seconds = 199.0
    assert arrivals.wait_seconds(0, MANY) == PATIENCE_SECONDS
    number, waits = 1_000, []
    while now_seconds < 200.5:
        wait_seconds = arrivals.wait_seconds(now_seconds, MANY)
        if wait_seconds > 0:
            waits.append(wait_seconds)
            now_seconds += wait_seconds
        arrivals.enter(number, "flood", now_seconds, MANY, MANY)
        number += 1
    assert max(waits) <= PATIENCE_SECONDS
    assert number > 5_000
    assert arrivals.patience_seconds <= 0.02


@pytest.mark.parametrize("at_once", [1, 50])
def test_who_gives_up_in_time_wears_patience_out_too(at_once: int) -> None:
    arrivals = full(*["flood"] * 100)
    for first in range(100, 2_000, at_once):
        assert arrivals.wait_seconds(0, MANY) > 0, "there is no room"
        for number in range(first, first + at_once):
            arrivals.leave(number - 100)
        for number in range(first, first + at_once):
            assert arrivals.enter(number, "flood", 0, MANY, MANY) is None
    assert arrivals.patience_seconds < 0.01


def test_looks_of_load_balancers_change_nothing() -> None:
    arrivals: PendingHandshakes[int] = PendingHandshakes(100)
    for number in range(1_000):
        arrivals.enter(number, "balancer", number, MANY, MANY)
        arrivals.leave(number)
    assert arrivals.patience_seconds == PATIENCE_SECONDS


@pytest.mark.parametrize(("files", "handshakes"), [(100, HANDSHAKES_MIN), (1_024, 128), (1 << 20, HANDSHAKES_MAX)])
def test_few_files_are_few_handshakes(monkeypatch: pytest.MonkeyPatch, files: int, handshakes: int) -> None:
    monkeypatch.setattr(descriptors, "open_files_max", lambda: files)
    assert handshakes_max() == handshakes
