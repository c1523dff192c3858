"""The cookie: proof that a bookie id, its directories and the cluster belong together.

A copy stands in the metadata store and in every directory (BookKeeper: bookie/Cookie, LegacyCookieValidation). If a
disk is swapped, a directory is lost or two bookies take the same id, the copies disagree and the bookie refuses to
start: serving without its entries would let recoveries conclude that acknowledged entries never were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage.directories import CURRENT, BookieDirectories
from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Node, VersionConflict
from magnetar.wire.bookkeeper.generated.bookie_cookie_pb2 import CookieFormat
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import parse_text, to_text

logger: Final = logging.getLogger(__name__)

COOKIE_FILE: Final = "VERSION"
COOKIE_VERSION: Final = 5
COOKIES_PATH: Final = "/ledgers/cookies"
INSTANCE_ID_PATH: Final = "/ledgers/INSTANCEID"


class CookieProblem(enum.Enum):
    """What does not fit."""

    EMPTY_VOLUME = "EMPTY_VOLUME"
    """The cluster knows the bookie, and a directory is empty: its data is lost, or another disk is mounted."""
    WRONG_VOLUME = "WRONG_VOLUME"
    """A cookie is another's or damaged, the directories were changed, or there is data without a cookie."""
    RETIRED = "RETIRED"
    """There is data, and the cluster does not know the bookie."""
    ID_TAKEN = "ID_TAKEN"
    """Another bookie took the id in this very moment; who is who shows at the next start."""


class InvalidCookie(MagnetarError):
    """The bookie is not who its directories or the cluster say it is. The text says what to do."""

    def __init__(self, text: str, problem: CookieProblem = CookieProblem.WRONG_VOLUME) -> None:
        super().__init__(text)
        self.problem = problem


def encode_cookie(settings: BookieSettings, bookie_id: str, instance_id: str) -> bytes:
    """The cookie of this bookie with these directories in this cluster."""
    cookie = CookieFormat(
        bookieHost=bookie_id,
        journalDir=",".join(str(directory.absolute()) for directory in settings.journal_directories),
        ledgerDirs=_directory_list(settings.ledger_directories),
        instanceId=instance_id,
    )
    if settings.index_directories:
        cookie.indexDirs = _directory_list(settings.index_directories)
    return f"{COOKIE_VERSION}\n{to_text(cookie)}".encode()


def decode_cookie(content: bytes) -> CookieFormat:
    """The fields. `InvalidCookie` when it is no cookie of a version that we know."""
    version, _, text = content.partition(b"\n")
    try:
        number = int(version)
        cookie = parse_text(CookieFormat, text.decode())
    except (ValueError, BadProtobuf) as error:
        raise InvalidCookie(f"a damaged cookie ({error})") from None
    if number not in (4, COOKIE_VERSION):
        raise InvalidCookie(f"a cookie of version {number}; {COOKIE_VERSION} is known")
    return cookie


async def instance_id(store: MetadataStore) -> str:
    """The cluster's id; made when there is none yet."""
    node = await store.get(INSTANCE_ID_PATH)
    if node is None:
        # In a new cluster another bookie may be first; then its id counts.
        with contextlib.suppress(VersionConflict):
            await store.put(INSTANCE_ID_PATH, str(uuid.uuid4()).encode(), MUST_NOT_EXIST)
        node = await store.get(INSTANCE_ID_PATH)
        assert node is not None
    return node.value.decode()


async def check_cookies(
    store: MetadataStore,
    settings: BookieSettings,
    directories: BookieDirectories,
    bookie_id: str,
    found: Callable[[Node | None], Awaitable[None]],
) -> None:
    """Compare all copies; stamp a new bookie. Raises `InvalidCookie`, saying what to do. `found` is told which cookie
    the metadata store has, before anything is judged or written. A bookie that is refused leaves nothing in a store
    that is no cluster's yet."""
    path = f"{COOKIES_PATH}/{bookie_id}"
    node = await store.get(path)
    await found(node)
    copies = {directory: directories.disk.read_whole(directory / COOKIE_FILE) for directory in directories.all()}
    stamped = [str(directory) for directory, content in copies.items() if content is not None]
    if (stamped or node is not None or directories.holds_data()) and not await store.exists(INSTANCE_ID_PATH):
        raise _no_cluster(stamped or ([path] if node is not None else list(map(str, copies))), settings)
    cluster_id = await instance_id(store)
    expected = encode_cookie(settings, bookie_id, cluster_id)
    moved: list[str] = []
    for where, content in [*((str(one), copy) for one, copy in copies.items()), (path, node.value if node else None)]:
        if content is None:
            continue
        if content != expected and _was_moved(settings, content, cluster_id):
            moved.append(where)
        else:
            in_store = f"put the right one back there (`magnetar bookie cookie delete`, then `create`, {bookie_id})"
            _compare(where, content, expected, in_store if where == path else f"{_write_cookie(settings)} in it")
    missing = [directory for directory, content in copies.items() if content is None]
    if node is not None and missing:
        raise _lost_directories(directories, missing, settings)
    if node is None and directories.holds_data():
        raise InvalidCookie(
            f"the data in {_names(list(copies))} is of a bookie that the cluster does not know at {path}. Is this the "
            "right metadata store? If the bookie was taken out of the cluster on purpose, empty the directories",
            CookieProblem.RETIRED,
        )
    if moved:
        logger.info(
            "the bookie's folder was moved or copied to %s: its cookies say so from now on", settings.movable_folder
        )
    # Each copy is right by itself, the old one and the new one, so that a stop in between is none.
    missing += [directory for directory in copies if str(directory) in moved]
    if node is not None and path in moved:
        await store.put(path, expected, node.stat.version)
    # Directories first: if we stop in between, what is there is a cookie without data, which the next start takes.
    for directory in missing:
        directories.disk.replace_whole(directory / COOKIE_FILE, expected)
    if node is None:
        try:
            await store.put(path, expected, MUST_NOT_EXIST)
        except VersionConflict:
            raise InvalidCookie(
                f"another bookie has just taken the id {bookie_id}; give each its own", CookieProblem.ID_TAKEN
            ) from None


async def check_not_retired(store: MetadataStore, bookie_id: str) -> None:
    """Raise `InvalidCookie` if the cookie is gone: somebody has taken the bookie out while it started. To be asked
    once it is registered, as whoever removes a cookie looks whether it is registered after that."""
    path = f"{COOKIES_PATH}/{bookie_id}"
    if not await store.exists(path):
        raise InvalidCookie(
            f"bookie {bookie_id} was taken out of the cluster while it started: {path} is gone. If it is to come "
            "back, empty its directories",
            CookieProblem.RETIRED,
        )


def _was_moved(settings: BookieSettings, content: bytes, instance_id: str) -> bool:
    """Whether it is this bookie's cookie as it was written when the folder stood elsewhere."""
    folder = settings.movable_folder
    if folder is None:
        return False
    try:
        found = decode_cookie(content)
    except InvalidCookie:
        return False
    above = len(settings.journal_directories[0].relative_to(folder).parts)
    before = Path(found.journalDir.partition(",")[0])
    if len(before.parts) <= above:
        return False
    was_at = before.parents[above - 1]

    def moved(directories: Sequence[Path]) -> tuple[Path, ...]:
        return tuple(was_at / directory.relative_to(folder) for directory in directories)

    then = dataclasses.replace(
        settings,
        journal_directories=moved(settings.journal_directories),
        ledger_directories=moved(settings.ledger_directories),
        index_directories=moved(settings.index_directories),
    )
    return found == decode_cookie(encode_cookie(then, settings.registered_id, instance_id))


def _no_cluster(known_at: list[str], settings: BookieSettings) -> InvalidCookie:
    """For a bookie that is no new one."""
    where = f" at {settings.metadata_url}" if settings.metadata_url else ""
    return InvalidCookie(
        f"the metadata store{where} has no {INSTANCE_ID_PATH}, so it is no cluster's, and {' and '.join(known_at)} is "
        "of a bookie that belongs to one. Check the metadata store's address; to begin a new cluster with this bookie, "
        "empty its directories"
    )


def _lost_directories(directories: BookieDirectories, missing: list[Path], settings: BookieSettings) -> InvalidCookie:
    bookie_id = settings.registered_id
    path = f"{COOKIES_PATH}/{bookie_id}"
    filled = [directory for directory in missing if directories.holds_data_in(directory)]
    if filled:
        return InvalidCookie(
            f"bookie {bookie_id} is known to the cluster, and {_hold(filled)} data but no cookie: whose it is "
            f"cannot be told. Is the right disk mounted? If it is, {_write_cookie(settings)} in it"
        )
    if settings.movable_folder is not None:
        return InvalidCookie(
            f"bookie {bookie_id} is known to the cluster, but {_hold(missing)} no cookie. Is the right disk mounted? "
            f"If the data is lost, put the newest copy of all of {settings.movable_folder} and of the metadata back: "
            f"no other bookie has it. Or go on with what the other directories hold: {_write_cookie(settings)} in each "
            "of these, and start with --accept-loss. Where no message is needed any more, begin anew with --fresh",
            CookieProblem.EMPTY_VOLUME,
        )
    return InvalidCookie(
        f"bookie {bookie_id} is known to the cluster, but {_hold(missing)} no cookie. Is the right disk "
        f"mounted? If the data is lost for good, have the other bookies take its entries over with `magnetar bookie "
        f"decommission {bookie_id}`, which removes {path} in the end, and start with empty directories",
        CookieProblem.EMPTY_VOLUME,
    )


def _write_cookie(settings: BookieSettings) -> str:
    with_metadata = f" -m {settings.metadata_url}" if settings.metadata_url else ""
    command = f"magnetar bookie cookie get {settings.registered_id}{with_metadata}"
    return f"write what `{command}` shows to {COOKIE_FILE}"


def _compare(where: str, content: bytes, expected: bytes, repair: str) -> None:
    try:
        found = decode_cookie(content)
    except InvalidCookie as error:
        raise InvalidCookie(f"{where} holds {error}. Look after the disk. If it is the right one, {repair}") from None
    wanted = decode_cookie(expected)
    for name in ("instanceId", "bookieHost"):
        if getattr(found, name) != getattr(wanted, name):
            raise InvalidCookie(
                f"the cookie at {where} has {name} {getattr(found, name)!r}, this bookie {getattr(wanted, name)!r}. "
                "Check the metadata store's address and the bookie id in the settings; the data may belong to another "
                "bookie or cluster"
            )
    for setting, was, now in (
        ("journalDirectories", found.journalDir, wanted.journalDir),
        ("ledgerDirectories", found.ledgerDirs, wanted.ledgerDirs),
        # Without index directories the indexes stand in the ledger directories.
        ("indexDirectories", found.indexDirs or found.ledgerDirs, wanted.indexDirs or wanted.ledgerDirs),
    ):
        if was != now:
            raise InvalidCookie(
                f"the cookie at {where} was written with {setting} {was!r}, now they are {now!r}. Which directory a "
                "ledger is in follows from their number and order, so none can be added, removed or moved: put the "
                "old setting back, or drain the bookie and let it start anew with empty directories"
            )


def _directory_list(directories: Sequence[Path]) -> str:
    return "\t".join([str(len(directories)), *(str(directory.absolute()) for directory in directories)])


def _names(directories: list[Path]) -> str:
    assert all(directory.name == CURRENT for directory in directories)
    return " and ".join(map(str, directories))


def _hold(directories: list[Path]) -> str:
    return f"{_names(directories)} {'holds' if len(directories) == 1 else 'hold'}"
