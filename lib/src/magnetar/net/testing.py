"""For tests: certificates, made by the `openssl` command, servers of asyncio's own that close well, clients that do not
read or do not finish their handshake, and what is left of those that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ACCEPT_TURNS: Final = 8
"""Turns of asyncio's loop between accepting a connection and its handler's first step, and some more."""


async def close_server(server: asyncio.Server) -> None:
    """Close a server of `asyncio.start_server`, once who was accepted has arrived: closed at once, it would forget the
    socket of whoever comes just then, and a later test would hear of that."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
    server.close()


PATIENCE_SECONDS: Final = 120.0
"""How long `until` waits; never reached when all is well."""


async def until(reached: Callable[[], object], *, pause_seconds: float = 0.001) -> None:
    """Wait for something. TimeoutError. `pause_seconds`: between looks, longer where a look is much work: meanwhile
    nothing else happens on the loop."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached():  # noqa: ASYNC110  (nobody tells tests)
            await asyncio.sleep(pause_seconds)


LIVING_PAUSE_SECONDS: Final = 0.1
"""Between looks at what is alive: among all objects of a process that has run thousands of tests."""


def living(*kinds: type) -> Counter[str]:
    """How many objects of these types there are; of those that the collector would free some day, too. Weak references
    would tell the same, but compiled types have none."""
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in kinds)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """The collector of cycles frees nothing meanwhile. No log either: a test's own keeps errors."""
    gc.collect()
    gc.disable()
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


async def freed(kinds: tuple[type, ...], work: Callable[[], Awaitable[None]]) -> None:
    """Wait until nothing of these types is left of the work, which is done some times: the first time may leave what is
    kept for the next ones. TimeoutError."""
    await work()
    await asyncio.sleep(0)
    before = living(*kinds)
    for _ in range(3):
        await work()
    await until(lambda: not living(*kinds) - before, pause_seconds=LIVING_PAUSE_SECONDS)


class SilentClient:
    """Sends and reads what it is told to; until then the kernel keeps little for it."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._loop = asyncio.get_running_loop()

    @staticmethod
    async def open(port: int) -> SilentClient:
        """A connection with a server here. OSError."""
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        return SilentClient(raw)

    async def send(self, data: bytes) -> bool:
        """Send everything; False when the connection is gone."""
        try:
            await self._loop.sock_sendall(self._raw, data)
        except OSError:
            return False
        return True

    async def read(self, size_bytes: int) -> bytes:
        """So much at least, unless the connection ends before."""
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        read = bytearray()
        while len(read) < size_bytes:
            try:
                data = await self._loop.sock_recv(self._raw, 1 << 20)
            except OSError:
                break
            if not data:
                break
            read += data
        return bytes(read)

    def close(self) -> None:
        """Close the connection."""
        self._raw.close()


HALF_HANDSHAKE: Final = b"\x16\x03\x01\x02\x00\x01"
"""The first bytes of a TLS handshake, which then does not go on."""

FLOOD_PAUSE_SECONDS: Final = 0.0005
"""Between two of them: what counts is how many are open, and a flood without a pause leaves no time to the attacked."""


@contextlib.contextmanager
def half_handshakes(ports: Sequence[int], held: int) -> Iterator[Callable[[], int]]:
    """Clients of a thread that begin TLS handshakes and no more, again and again, so many at a time. Gives what tells
    how many there were."""
    stop = threading.Event()
    open_now: deque[socket.socket] = deque()
    count = 0

    def attack() -> None:
        nonlocal count
        for port in itertools.cycle(ports):
            if stop.is_set():
                return
            client = socket.socket()
            client.settimeout(0.2)
            open_now.append(client)
            with contextlib.suppress(OSError):  # Refused, or the kernel has no place for it: both are well.
                client.connect(("127.0.0.1", port))
                client.sendall(HALF_HANDSHAKE)
                count += 1
            if len(open_now) > held:
                open_now.popleft().close()
            stop.wait(FLOOD_PAUSE_SECONDS)

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        yield lambda: count
    finally:
        stop.set()
        thread.join()
        for client in open_now:
            client.close()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, PEM."""

    certificate_file: Path
    key_file: Path


class TestAuthority:
    """An authority that lives in a folder."""

    __test__ = False

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.own = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
        files = ("-keyout", self.own.key_file, "-out", self.own.certificate_file)
        _openssl("req", "-x509", *_NEW_KEY, *files, "-days", 2, "-subj", f"/CN={name}")

    @property
    def certificate_file(self) -> Path:
        """What those who trust it need."""
        return self.own.certificate_file

    def issue(
        self, name: str, *alternative_names: str, file_name: str = "", unit: str = "", expired: bool = False
    ) -> Certificate:
        """A certificate for a name; alternative names such as `DNS:localhost`, `IP:127.0.0.1`. `unit`: the subject's
        organizational unit (OU). The key is in PKCS #8. An expired one has ended a day ago."""
        stem = self._folder / (file_name or name)
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        _openssl(
            "req",
            *_NEW_KEY,
            "-keyout",
            made.key_file,
            "-out",
            request,
            "-subj",
            f"/CN={name}" + f"/OU={unit}" * bool(unit),
        )
        extensions.write_text(f"subjectAltName={','.join(alternative_names or (f'DNS:{name}',))}\n")
        _openssl(
            *("x509", "-req", "-in", request, "-out", made.certificate_file, "-extfile", extensions),
            *("-days", -1 if expired else 2),
            *("-CA", self.own.certificate_file, "-CAkey", self.own.key_file, "-CAcreateserial"),
        )
        return made


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)  # noqa: S603, S607  (tests)
