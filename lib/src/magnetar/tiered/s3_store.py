"""A bucket of a store that speaks S3, by the library obstore (Rust's object_store): what it does runs in threads of its
own, and signs what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore
from magnetar.ledger.api import LedgerError, LedgerUnavailable
from magnetar.tiered.api import OffloadedLedgerNotFound, OffloadRefused
from magnetar.tiered.handover import Handover
from magnetar.tiered.object_store import ListedObject, ObjectHead
from magnetar.tiered.store_errors import RANGE_BEYOND_END, STORE_ERRORS, as_store_error, names_missing_key, status_of
from obstore.store import S3Store

if TYPE_CHECKING:
    from magnetar.tiered.settings import StorePlace
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3CredentialProvider

ABANDON_SECONDS_MAX: Final = 15.0
"""How long an upload that is given up may take to remove its parts."""
PARTS_AT_ONCE: Final = 1
"""Beside the part that fills up: an upload holds two."""

_NO_METADATA: Final = frozenset(
    ("content-disposition", "content-encoding", "content-language", "content-type", "cache-control", "storage-class")
)
"""Attributes that the library gives among the user metadata, and that are not user metadata."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePatience:
    """How long a store may take, and how often it is asked again."""

    connect_seconds: float = 5.0
    silence_seconds: float = 25.0
    """Without a further byte; Apache's offloader waits as long."""
    request_seconds: float = 60.0
    """One attempt of one request, a part of an upload included."""
    retries_max: int = 3
    call_seconds: float = 120.0
    """All attempts of one request, with the pauses between them."""


PATIENCE: Final = StorePatience()


class S3ObjectStore:
    """One bucket."""

    __slots__ = ("_call_seconds", "_place", "_store")

    def __init__(
        self,
        place: StorePlace,
        credentials: S3CredentialProvider | None = None,
        patience: StorePatience = PATIENCE,
    ) -> None:
        """`credentials` are asked again when theirs expire; without them, those of the place, else the ones that the
        environment offers (variables, web identity, container, instance)."""
        self._place = place
        self._call_seconds = patience.call_seconds
        config: S3Config = {"region": place.region or "us-east-1", "virtual_hosted_style_request": False}
        if place.endpoint:
            config["endpoint"] = place.endpoint
        elif "." not in place.bucket:
            # The certificate of such a store is for one label before its name.
            config["virtual_hosted_style_request"] = True
        if place.credentials is not None:
            config["access_key_id"], config["secret_access_key"] = place.credentials
        client: ClientConfig = {
            "allow_http": place.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=patience.connect_seconds),
            "read_timeout": timedelta(seconds=patience.silence_seconds),
            "timeout": timedelta(seconds=patience.request_seconds),
        }
        retries: RetryConfig = {
            "max_retries": patience.retries_max,
            "retry_timeout": timedelta(seconds=patience.call_seconds),
        }
        self._store = S3Store(
            place.bucket,
            config=config,
            client_options=client,
            retry_config=retries,
            credential_provider=credentials,
        )

    @property
    def place(self) -> str:
        """The bucket, and the endpoint if one is set."""
        return str(self._place)

    async def put(self, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        """Write a small object in one request, over what may be there."""
        await self._call(
            obstore.put_async(self._store, key, data, attributes=dict(metadata), use_multipart=False), "write", key
        )

    async def put_parts(
        self, key: str, pieces: AsyncIterator[bytes], metadata: Mapping[str, str], part_bytes: int
    ) -> None:
        """Write an object piece by piece, holding two parts of it at most. Nothing of it is to be seen before the end.

        What the iterator raises, and a cancellation, end the upload; the store is told to forget its parts."""
        handover = Handover()
        upload = asyncio.ensure_future(
            obstore.put_async(
                self._store,
                key,
                handover.pieces(),
                attributes=dict(metadata),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=PARTS_AT_ONCE,
            )
        )
        upload.add_done_callback(lambda _: handover.stop_waiting())
        try:
            async for piece in pieces:
                await handover.give(piece)
                if upload.done():
                    break
            handover.end()
            await asyncio.wait((upload,))
        except BaseException as error:
            await _abandon(upload, handover, error)
            raise
        failure = upload.exception()
        if failure is not None:
            raise await self._told(failure, "write", key) from None

    async def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        """A stretch of an object; fewer bytes only where the object ends before."""
        try:
            read = obstore.get_range_async(self._store, key, start=offset, length=size_bytes)
            return bytes(await _within(read, self._call_seconds))
        except STORE_ERRORS as error:
            if status_of(error) == RANGE_BEYOND_END:
                return b""
            raise await self._told(error, "read", key) from None

    async def head(self, key: str) -> ObjectHead:
        """Size and user metadata."""
        result = await self._call(obstore.get_async(self._store, key, options={"head": True}), "look at", key)
        attributes = {str(name).lower(): value for name, value in result.attributes.items()}
        metadata = {name: value for name, value in attributes.items() if name not in _NO_METADATA}
        return ObjectHead(result.meta["size"], metadata)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, one after the other; missing ones are no error."""
        for key in keys:
            try:
                await self._call(obstore.delete_async(self._store, key), "delete", key)
            except OffloadedLedgerNotFound:
                continue

    async def list(self, after: str, count_max: int) -> list[ListedObject]:
        """So many objects at most whose keys come after this one, in the order of keys."""
        listing = obstore.list(self._store, offset=after or None, chunk_size=count_max)
        try:
            found = await _within(anext(aiter(listing), []), self._call_seconds)
        except FileNotFoundError:
            raise OffloadRefused(f"cannot list {self.place}: there is no such bucket") from None
        except STORE_ERRORS as error:
            raise as_store_error(error, f"cannot list {self.place}") from None
        return [ListedObject(one["path"], one["size"], round(one["last_modified"].timestamp() * 1000)) for one in found]

    async def close(self) -> None:
        """Connections close with the last reference."""

    async def _call(self, request: Awaitable[T], what: str, key: str) -> T:
        try:
            return await _within(request, self._call_seconds)
        except STORE_ERRORS as error:
            raise await self._told(error, what, key) from None

    async def _told(self, error: BaseException, what: str, key: str) -> LedgerError | LedgerUnavailable:
        """The error to raise. Stores answer 404 for a missing bucket, too, which must not pass for lost data."""
        if isinstance(error, FileNotFoundError) and not names_missing_key(error):
            try:
                await self.list("", 1)
            except (LedgerError, LedgerUnavailable) as cause:
                return type(cause)(f"cannot {what} {key} in {self.place}: {cause}")
        return as_store_error(error, f"cannot {what} {key} in {self.place}")


async def _within(request: Awaitable[T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await request
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None


async def _abandon(upload: asyncio.Future[Any], handover: Handover, cause: BaseException) -> None:
    """End an upload by an error of its pieces: then it removes its parts."""
    handover.fail(cause)
    done, _ = await asyncio.wait((upload,), timeout=ABANDON_SECONDS_MAX)
    if not done:
        upload.cancel()
    elif not upload.cancelled():
        # Whoever waits for the upload hears the cause; how it ended is of no further use.
        upload.exception()
