"""For tests: certificates, made by the `openssl` command, and servers of asyncio's own that close well."""

from __future__ import annotations

import asyncio
import subprocess
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

    def issue(self, name: str, *alternative_names: str, file_name: str = "") -> Certificate:
        """A certificate for a name; alternative names such as `DNS:localhost`, `IP:127.0.0.1`."""
        stem = self._folder / (file_name or name)
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        _openssl("req", *_NEW_KEY, "-keyout", made.key_file, "-out", request, "-subj", f"/CN={name}")
        extensions.write_text(f"subjectAltName={','.join(alternative_names or (f'DNS:{name}',))}\n")
        _openssl(
            *("x509", "-req", "-in", request, "-out", made.certificate_file, "-days", 2, "-extfile", extensions),
            *("-CA", self.own.certificate_file, "-CAkey", self.own.key_file, "-CAcreateserial"),
        )
        return made


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)  # noqa: S603, S607  (tests)
