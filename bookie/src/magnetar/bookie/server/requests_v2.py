"""Answers version 2 requests other than adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.storage.directory_storage import NOT_READ
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
"""The authentication plugin that a bookie without authentication names (BookKeeper:
auth/AuthProviderFactoryFactory)."""

BATCH_REPLY_OVERHEAD_BYTES: Final = 64 * 1024
"""Kept free in a batch read's frame for the head and a size word per entry."""

V2Request: TypeAlias = v2.Read | v2.BatchRead | v2.Auth


async def answer_v2(
    bookie: Bookie, requests: Sequence[V2Request], size_bytes_max: int
) -> tuple[list[bytes], list[V2Request]]:
    """Frames of the replies, as parts to be written one after the other, and the requests that are left to be answered,
    in order, since the replies have `size_bytes_max` already. Plain reads share one trip to the disk; version 2 replies
    may come in any order."""
    plain: list[v2.Read] = []
    replies: list[bytes] = []
    left: list[V2Request] = []
    size = 0
    for at, request in enumerate(requests):
        if isinstance(request, v2.Read) and not request.flags & v2.FLAG_FENCE:
            plain.append(request)
            continue
        if isinstance(request, v2.Read):
            replies.append(await _fencing_read(bookie, request))
        elif isinstance(request, v2.BatchRead):
            replies += await _batch_read(bookie, request)
        else:
            replies.append(v2.encode_auth(AUTH_DISABLED_PLUGIN, b""))
        size = sum(map(len, replies))
        if size >= size_bytes_max:
            left = list(requests[at + 1 :])
            break
    if plain and size < size_bytes_max:
        wanted = [(read.ledger_id, read.entry_id) for read in plain]
        results = await bookie.read_entries(wanted, size_bytes_max - size)
        unread = [read for read, result in zip(plain, results, strict=True) if result is NOT_READ]
        left = [*unread, *left]
        replies += [
            _read_reply(read, result) for read, result in zip(plain, results, strict=True) if result is not NOT_READ
        ]
    else:
        left = [*plain, *left]
    return replies, left


def _read_reply(read: v2.Read, result: bytes | BookieError) -> bytes:
    if isinstance(result, BookieError):
        return v2.encode_read_response(result.code, read.ledger_id, read.entry_id)
    return v2.encode_read_response(BookieCode.EOK, read.ledger_id, read.entry_id, result)


async def _fence(bookie: Bookie, ledger_id: int, master_key: bytes) -> None:
    await bookie.counters.timed(bookie.counters.fence, bookie.fence(ledger_id, master_key))


async def _fencing_read(bookie: Bookie, request: v2.Read) -> bytes:
    try:
        await _fence(bookie, request.ledger_id, request.master_key)
        entry = await bookie.read_entry(request.ledger_id, request.entry_id)
    except BookieError as error:
        return v2.encode_read_response(error.code, request.ledger_id, request.entry_id)
    return v2.encode_read_response(BookieCode.EOK, request.ledger_id, request.entry_id, entry)


async def _batch_read(bookie: Bookie, request: v2.BatchRead) -> list[bytes]:
    ids = (request.ledger_id, request.first_entry_id, request.request_id)
    if request.first_entry_id < 0:
        return v2.encode_batch_read_response(BookieCode.EBADREQ, *ids, [])
    frame_room = BOOKKEEPER_FRAME_BYTES_MAX - BATCH_REPLY_OVERHEAD_BYTES
    size_bytes_max = min(request.size_bytes_max, frame_room) if request.size_bytes_max > 0 else frame_room
    count_max = request.count_max if request.count_max > 0 else 1_000
    try:
        if request.flags & v2.FLAG_FENCE:
            await _fence(bookie, request.ledger_id, request.master_key)
        entries = await bookie.read_run(request.ledger_id, request.first_entry_id, count_max, size_bytes_max)
    except BookieError as error:
        return v2.encode_batch_read_response(error.code, *ids, [])
    return v2.encode_batch_read_response(BookieCode.EOK, *ids, entries)
