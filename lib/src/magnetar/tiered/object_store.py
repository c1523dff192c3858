"""The interface of an object store, as offloads need it: whole objects in, ranges out, user metadata beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class ObjectHead(NamedTuple):
    """The size and the metadata of an object, without its bytes."""

    size_bytes: int
    metadata: Mapping[str, str]
    """User metadata, names in lower case."""


class ListedObject(NamedTuple):
    """An object in a list; a list has no user metadata."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """One bucket. An object is there as a whole or not at all. Every call raises `OffloadRefused` and
    `OffloadUnavailable`, with the object's name and the cause; what must exist and does not is
    `OffloadedLedgerNotFound`."""

    @property
    def place(self) -> str:
        """Where this is, for messages: the bucket, and the endpoint if one is set."""
        ...

    async def put(self, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        """Write a small object in one request, over what may be there."""
        ...

    async def put_parts(
        self, key: str, pieces: AsyncIterator[bytes], metadata: Mapping[str, str], part_bytes: int
    ) -> None:
        """Write an object piece by piece, holding two parts of it at most. Nothing of it is to be seen before the end.

        What the iterator raises, and a cancellation, end the upload; the store is told to forget its parts."""
        ...

    async def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        """A stretch of an object; fewer bytes only where the object ends before."""
        ...

    async def head(self, key: str) -> ObjectHead:
        """Size and user metadata."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, one after the other; missing ones are no error."""
        ...

    async def list(self, after: str, count_max: int) -> list[ListedObject]:
        """So many objects at most whose keys come after this one, in the order of keys."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
