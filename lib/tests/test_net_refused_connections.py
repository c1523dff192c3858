"""Connections that a limit refuses, in numbers and words."""

from __future__ import annotations

import pytest
from magnetar.net.refused_connections import (
    FILES_SETTING,
    ConnectionLimit,
    LimitKind,
    RefusedConnections,
    host_of,
    limit_of_all,
    network_of,
)


@pytest.mark.parametrize(
    ("connections_max", "files_max", "limit"),
    [
        (9, 10, ConnectionLimit(9, LimitKind.ALL, "s")),
        (10, 10, ConnectionLimit(10, LimitKind.ALL, "s")),
        (11, 10, ConnectionLimit(10, LimitKind.FILES, FILES_SETTING)),
        (0, 10, ConnectionLimit(10, LimitKind.FILES, FILES_SETTING)),
    ],
)
def test_the_limit_of_all_is_the_settings_while_there_are_files_for_it(
    connections_max: int, files_max: int, limit: ConnectionLimit
) -> None:
    assert limit_of_all(connections_max, "s", files_max) == limit


@pytest.mark.parametrize(
    ("address", "host"),
    [("/10.0.0.1:6650", "/10.0.0.1"), ("/2001:db8::1:6650", "/2001:db8::1"), ("/::1:1", "/::1"), ("", "")],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    """Of IPv6, too: all of its clients were one host else."""
    assert host_of(address) == host


def test_the_network_of_an_address() -> None:
    assert network_of("/10.0.0.1:6650") == network_of("/::ffff:10.0.0.1:6650") == "/10.0.0.1"
    assert network_of("/10.0.0.1:6650") != network_of("/10.0.0.2:6650")
    assert network_of("/2001:db8::1:6650") == network_of("/2001:db8::ffff:2:6650")
    assert network_of("/2001:db8::1:6650") != network_of("/2001:db8:0:1::1:6650")
    assert network_of("/fe80::1%eth0:6650") == network_of("/fe80::2%eth0:6650")
    assert network_of("/run/socket") == network_of("") == ""


@pytest.mark.parametrize(
    ("kind", "setting", "text"),
    [
        (LimitKind.ALL, "s", "3 connections may be open, a higher s allows more"),
        (LimitKind.ADDRESS, "s", "3 connections of its address may be open, a higher s allows more"),
        (LimitKind.HTTP, "", "3 connections of HTTP may be open, which no setting changes"),
        (LimitKind.HANDSHAKES, "", "too many TLS handshakes are not finished"),
        (
            LimitKind.HANDSHAKES_OF_ADDRESS,
            "",
            "with its TLS handshakes, its address has as many connections as it may have",
        ),
    ],
)
def test_what_the_log_says_of_a_limit(kind: LimitKind, setting: str, text: str) -> None:
    assert str(ConnectionLimit(3, kind, setting)) == text


@pytest.mark.parametrize(("peer", "last"), [("", ": "), ("/10.0.0.1:1", ", the last one of /10.0.0.1:1: ")])
def test_a_peer_that_nobody_knows_is_not_named(peer: str, last: str, caplog: pytest.LogCaptureFixture) -> None:
    timers = []
    refused = RefusedConnections((LimitKind.ALL,), lambda _, call: timers.append(call))
    limit = ConnectionLimit(3, LimitKind.ALL, "s")
    refused.refused(peer, limit)
    refused.refused(peer, limit)
    timers[0]()
    assert caplog.messages == [f"refused 2 connections{last}{limit}"]
    assert (refused.total, refused.counts) == (2, {LimitKind.ALL: 2})
