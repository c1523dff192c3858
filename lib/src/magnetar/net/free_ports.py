"""Ports for servers that are started as processes of their own and do not tell where they listen."""

from __future__ import annotations

import random
import socket
from typing import Final

PORTS: Final = range(10_240, 32_768)
"""Below those that Linux gives to outgoing connections (32768 to 60999): one of these could take a port between the
moment when it was found free and the moment when the server listens."""

ATTEMPTS_MAX: Final = 1_000

_random: Final = random.SystemRandom()
_given: Final[set[int]] = set()
"""So that two servers of one test never get the same; at most as many as there are `PORTS`."""


def free_port() -> int:
    """A port that nobody listens at, at any address, and that this process was not given before. Raises OSError."""
    for _ in range(ATTEMPTS_MAX):
        port = _random.choice(PORTS)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise OSError(f"no free port was found among {ATTEMPTS_MAX}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
