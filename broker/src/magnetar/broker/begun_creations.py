"""Creations that were begun here and of which whoever asked does not know whether they succeeded.

Who asks again meets what the first request has made. To be told that it is there already would be wrong: it is theirs.
"""

from __future__ import annotations

import asyncio
from typing import Final

KEPT_MAX: Final = 1_000
"""Each is a document of some kilobytes at most. One that is forgotten is a conflict again, as it always was."""

KEPT_SECONDS: Final = 300.0
"""Clients give up a request before (Pulsar's admin clients: after five minutes). Who comes later is somebody else."""


class BegunCreations:
    """By path, with the value that was to stand there."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[bytes, float]] = {}

    def note(self, path: str, value: bytes) -> None:
        """Whoever asked for it was not told that it succeeded."""
        self._begun.pop(path, None)
        self._begun[path] = value, asyncio.get_running_loop().time()
        if len(self._begun) > KEPT_MAX:
            del self._begun[next(iter(self._begun))]

    def value(self, path: str) -> bytes | None:
        """What was to stand there; None when no creation there is in doubt."""
        begun = self._begun.get(path)
        if begun is None:
            return None
        value, noted_seconds = begun
        if asyncio.get_running_loop().time() - noted_seconds > KEPT_SECONDS:
            del self._begun[path]
            return None
        return value

    def forget(self, path: str) -> None:
        """It is known now."""
        self._begun.pop(path, None)
