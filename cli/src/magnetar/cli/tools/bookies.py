"""The bookies of a cluster: who there is, where, how full, and their cookies."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass

from magnetar.bookie.cookie import COOKIES_PATH, decode_cookie
from magnetar.cli.tools.cluster import ClusterAccess
from magnetar.cli.tools.errors import CookieConflict
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_NAME, READ_ONLY_PATH
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, VersionConflict
from magnetar.metadata.sure_writes import delete_surely, put_surely
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError


class BookieMode(enum.StrEnum):
    """What a bookie does, as the metadata store says."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    DOWN = "down"
    """It has a cookie, and is not registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieRow:
    """One bookie."""

    bookie_id: str
    mode: BookieMode
    address: str
    """host:port; empty when nobody knows."""
    rack: str
    machine: str
    """What it shares with other bookies; empty when it has not named one."""
    total_bytes: int | None = None
    """None when it did not answer, or was not asked."""
    free_bytes: int | None = None
    problem: str = ""
    """The reason why it did not answer; empty when it did, or was not asked."""


async def list_bookies(cluster: ClusterAccess, modes: frozenset[BookieMode], *, ask: bool) -> list[BookieRow]:
    """All bookies of these modes, by id; with `ask` those that are up tell how full they are."""
    found: dict[str, BookieMode] = dict.fromkeys(await cluster.store.children(COOKIES_PATH), BookieMode.DOWN)
    found |= dict.fromkeys(await cluster.store.children(READ_ONLY_PATH), BookieMode.READ_ONLY)
    writable = [name for name in await cluster.store.children(AVAILABLE_PATH) if name != READ_ONLY_NAME]
    found |= dict.fromkeys(writable, BookieMode.WRITABLE)
    rows = [_row(cluster, name, mode, ask=ask) for name, mode in sorted(found.items()) if mode in modes]
    return await asyncio.gather(*rows)


async def _row(cluster: ClusterAccess, bookie_id: str, mode: BookieMode, *, ask: bool) -> BookieRow:
    address, places = cluster.connections.address(bookie_id), cluster.connections.places()
    total: int | None = None
    free: int | None = None
    problem = ""
    if ask and mode is not BookieMode.DOWN:
        try:
            total, free = await cluster.queries.disk_space(bookie_id)
        except BookieError as error:
            problem = _problem(error)
    return BookieRow(
        bookie_id=bookie_id,
        mode=mode,
        address=f"{address[0]}:{address[1]}" if address else "",
        rack=places.rack_of(bookie_id),
        machine=places.machines.get(bookie_id, ""),
        total_bytes=total,
        free_bytes=free,
        problem=problem,
    )


def _problem(error: BookieError) -> str:
    """The reason of a refusal or of a lost question, in words."""
    if error.code is BookieCode.EUA:
        return (
            "it serves nobody without TLS, or nobody of this role (EUA); give --conf with a bookkeeper.conf "
            "that has the files for TLS"
        )
    return str(error)


def cookie_path(bookie_id: str) -> str:
    """Where a bookie's cookie stands. `CookieConflict` for what cannot be an id."""
    if not bookie_id or "/" in bookie_id:
        raise CookieConflict(f"{bookie_id!r} is no bookie id")
    return f"{COOKIES_PATH}/{bookie_id}"


async def read_cookie(store: MetadataStore, bookie_id: str) -> str | None:
    """A bookie's cookie, as text; None when it has none."""
    node = await store.get(cookie_path(bookie_id))
    return None if node is None else node.value.decode("utf-8", "replace")


async def create_cookie(store: MetadataStore, bookie_id: str, content: bytes) -> None:
    """Store a cookie (what a directory's `current/VERSION` holds) for a bookie that has none. `CookieConflict`,
    `InvalidCookie`."""
    cookie = decode_cookie(content)
    if cookie.bookieHost != bookie_id:
        raise CookieConflict(f"this is the cookie of {cookie.bookieHost}, not of {bookie_id}")
    try:
        await put_surely(store, cookie_path(bookie_id), content, MUST_NOT_EXIST)
    except VersionConflict:
        raise CookieConflict(f"{bookie_id} has a cookie already; delete that first") from None


async def delete_cookie(store: MetadataStore, bookie_id: str) -> None:
    """Remove the cookie of a bookie that is not up. `CookieConflict`."""
    for folder in (AVAILABLE_PATH, READ_ONLY_PATH):
        if await store.exists(f"{folder}/{bookie_id}"):
            raise CookieConflict(f"{bookie_id} is up; its cookie can be removed only while it is stopped")
    node = await store.get(cookie_path(bookie_id))
    if node is None:
        raise CookieConflict(f"{bookie_id} has no cookie")
    await delete_surely(store, cookie_path(bookie_id), node)
