"""Files that a process may have open: as many as it is allowed, and some are kept from clients."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest
from magnetar.net import descriptors, endpoints
from magnetar.net.connection import Connection
from magnetar.net.descriptors import clients_max
from magnetar.net.endpoints import REFUSED_WITH_A_WORD, listen
from magnetar.net.testing import until


@pytest.mark.parametrize(
    ("files", "each", "clients"),
    [(600, 1, 88), (1_024, 1, 512), (4_096, 1, 3_072), (1 << 20, 1, (1 << 20) - 8_192), (4_096, 2, 1_536), (100, 1, 1)],
)
def test_some_are_kept_from_clients(monkeypatch: pytest.MonkeyPatch, files: int, each: int, clients: int) -> None:
    monkeypatch.setattr(descriptors, "open_files_max", lambda: files)
    assert clients_max(each) == clients


RAISE = """
import logging, resource
from magnetar.net.descriptors import raise_limit
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (200, {hard}))
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_takes_all_that_it_may_have() -> None:
    run = subprocess.run([sys.executable, "-c", RAISE.format(hard=1_000)], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1000"] * 3
    assert "1000 open files and takes at most 488 connections" in run.stderr


class Silent:
    """Says nothing."""

    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


async def test_a_listener_refuses_what_there_are_no_files_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoints, "clients_max", lambda: 1)
    made: list[Connection] = []

    def make(connection: Connection) -> Any:
        made.append(connection)
        return Silent()

    listener = await listen("127.0.0.1", 0, make)
    count = 2 * REFUSED_WITH_A_WORD
    with caplog.at_level(logging.WARNING):
        opened = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(count)]
        await until(lambda: listener.refused_connections.total + len(listener.connections) == count)
        await until(lambda: bool(caplog.records))
    assert len(listener.connections) == len(made) == 1 + REFUSED_WITH_A_WORD
    refused = REFUSED_WITH_A_WORD - 1
    (line,) = caplog.messages
    assert line.startswith(f"refused {refused} connections: ")
    assert line.endswith("a higher limit of open files (ulimit -Hn, LimitNOFILE=) allows more")
    for _, writer in opened:
        writer.close()
    await until(lambda: not listener.connections)
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    await until(lambda: listener.connections)
    writer.close()
    await listener.close()
