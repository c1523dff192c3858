"""Pieces of an upload, given from one task to another, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Handover:
    """The queue of one piece between the producer of an upload's pieces and the uploader, which iterates.

    An upload that is cancelled leaves its parts in the store, one whose pieces end in an error has them removed. So an
    upload is always ended by `fail`."""

    __slots__ = ("_changed", "_ended", "_failure", "_piece", "_taken")

    def __init__(self) -> None:
        self._piece: bytes | None = None
        self._ended = False
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()

    async def give(self, piece: bytes) -> None:
        """Hand over the next piece, once the one before was taken."""
        await self._taken.wait()
        self._taken.clear()
        self._piece = piece
        self._changed.set()

    def end(self) -> None:
        """All pieces were given."""
        self._ended = True
        self._changed.set()

    def fail(self, failure: BaseException) -> None:
        """There will be no further piece: the iteration raises this."""
        self._failure = failure
        self._changed.set()

    def stop_waiting(self) -> None:
        """Nobody takes any more; whoever gives goes on."""
        self._taken.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces, in order."""
        while True:
            await self._changed.wait()
            if self._failure is not None:
                raise UploadAbandoned(str(self._failure)) from self._failure
            piece, self._piece = self._piece, None
            if piece is None and self._ended:
                return
            if not self._ended:
                self._changed.clear()
            if piece is not None:
                self._taken.set()
                yield piece


class UploadAbandoned(Exception):
    """Raised inside an upload so that it cleans up; its caller raises the cause."""
