"""A real server of S3 and STS (moto) as a process, and a gateway before it that spoils what a test asks it to."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from magnetar.net.free_ports import free_port

PATIENCE_SECONDS: Final = 60.0
"""How long the server may take to start, on whatever machine."""


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a server without buckets; it takes all credentials."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _listens(port):
            assert process.poll() is None, "the server of S3 ended"
            assert time.monotonic() < deadline, "the server of S3 does not start"
            time.sleep(0.05)
        yield endpoint
    finally:
        process.terminate()
        process.wait()


def make_bucket(endpoint: str, name: str) -> None:
    """A new, empty bucket."""
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=60):
        pass


def unfinished_uploads(endpoint: str, bucket: str) -> int:
    """How many uploads the bucket holds parts of."""
    with urllib.request.urlopen(f"{endpoint}/{bucket}?uploads", timeout=60) as answer:
        return int(answer.read().count(b"<UploadId>"))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


class Gateway:
    """Passes requests on to a server, one a connection. `spoil` is given method, path with query, and how many requests
    came before; it returns the name of a fault, or None:

    a status (`500`) answers with it; `cut` ends the connection in the middle of the body; `half` tells and gives the
    first half of the body; `silent` never answers."""

    def __init__(self, endpoint: str) -> None:
        self._port = int(endpoint.rsplit(":", 1)[1])
        self.spoil: Callable[[str, str, int], str | None] = lambda method, path, number: None
        self.requests: list[tuple[str, str]] = []
        self._server: asyncio.Server | None = None
        self._closing = asyncio.Event()
        self._serving = 0

    async def start(self) -> str:
        """Its own endpoint."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Ends what is under way."""
        assert self._server is not None
        self._server.close()
        self._closing.set()
        while self._serving:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, _ = head.decode().split(" ", 2)
            body = await reader.readexactly(_content_length(head))
            fault = self.spoil(method, path, len(self.requests))
            self.requests.append((method, path))
            if fault == "silent":
                await self._closing.wait()
                return
            if fault is not None and fault.isdigit():
                writer.write(f"HTTP/1.1 {fault} Spoilt\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            else:
                writer.write(_spoilt(await self._answer(head, body), fault))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client gave up: that is its right, and what some tests are about.
        finally:
            self._serving -= 1
            writer.close()

    async def _answer(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
            return await reader.read(-1)
        finally:
            writer.close()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def _spoilt(answer: bytes, fault: str | None) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    kept = body[: len(body) // 2]
    if fault == "cut":
        return head + b"\r\n\r\n" + kept
    if fault == "half":
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
        return b"\r\n".join([*lines, b"Content-Length: %d" % len(kept)]) + b"\r\n\r\n" + kept
    return answer
