"""Free ports for processes whose settings say 0: fixed from then on, so that one that comes back keeps its name."""

from __future__ import annotations

import socket


class AnyPorts:
    """Gives ports of this machine that are free now, none of them twice."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self) -> int:
        """One more; whoever is faster may have it before the process does. OSError when there is none."""
        while True:
            with socket.socket() as probe:
                probe.bind(("", 0))
                port: int = probe.getsockname()[1]
            if port not in self._given:
                self._given.add(port)
                return port
