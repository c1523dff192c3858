"""Metadata and messages of a standalone cluster must belong together: a start looks before anything is served.

Messages are found by the metadata alone. Garbage collection deletes what they do not name, and with older metadata
the ids of newer ledgers would be given again, whose entries then stand in ledgers of other topics. With older messages
an open ledger would be closed behind what there is, as if nothing had followed.
"""

from __future__ import annotations

import logging
from typing import Final

from magnetar.bookie import journal_files, journal_header
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.cookie import COOKIE_FILE
from magnetar.bookie.directories import CURRENT
from magnetar.bookie.settings import BookieSettings
from magnetar.core.disk import SystemDisk
from magnetar.core.errors import MagnetarError
from magnetar.ledger.ledger_paths import ID_PREFIX
from magnetar.metadata.local import LocalStore
from magnetar.metadata.paths import parent_of
from magnetar.metadata.rocksdb_files import DATABASE, holds_database
from magnetar.metadata.store import MetadataStore
from magnetar.standalone.settings import StandaloneSettings

log: Final = logging.getLogger(__name__)

_JOURNALS: Final = "*/current/*.txn"
_ENTRY_LOGS: Final = "*/current/*.log"

NEWEST_JOURNAL_PATH: Final = "/magnetar/newest-journal"
"""The id of the bookie's journal file that the last start has begun, in hexadecimal: a later copy has no older one."""


class MetadataMissing(MagnetarError):
    """There are messages, and nothing that says whose they are. Nothing was made or changed."""


class MetadataBehind(MagnetarError):
    """The metadata is older than the messages."""


class MessagesBehind(MagnetarError):
    """The messages are older than the metadata. Nothing was changed."""


def check_metadata_there(settings: StandaloneSettings) -> None:
    """Raise `MetadataMissing` when the folder holds messages and no metadata. Before anything is made there."""
    if not settings.persistent_metadata or holds_database(settings.metadata_directory / DATABASE):
        return
    bookie = settings.bookie_directory
    if any(True for pattern in (_JOURNALS, _ENTRY_LOGS) for _ in bookie.glob(pattern)):
        raise MetadataMissing(
            f"{settings.metadata_directory / DATABASE} is missing or empty, and {bookie} holds messages: whose they "
            "are is said there alone. Put a copy of the whole directory `metadata` back. Where no message is needed "
            "any more, begin anew with --fresh; --accept-loss does not apply to metadata."
        )


def check_metadata_is_newest(settings: StandaloneSettings, store: LocalStore, bookie: RunningBookie) -> None:
    """Raise `MetadataBehind` when the bookie knows ledgers whose ids the metadata would give again. With losses
    accepted it gives greater ones from then on. OSError, `StoreUnavailable`."""
    parent = parent_of(ID_PREFIX)
    next_id = store.next_number(parent)
    greatest_id = bookie.parts.storage.greatest_ledger_id()
    if greatest_id < next_id:
        return
    found = (
        f"the metadata in {settings.metadata_directory / DATABASE} is older than the messages: the next ledger would "
        f"be {next_id}, and {settings.bookie_directory} has had ledgers up to {greatest_id}"
    )
    newer = f"ledgers {next_id} to {greatest_id}" if next_id < greatest_id else f"ledger {next_id}"
    if not settings.accept_loss:
        raise MetadataBehind(
            f"{found}. Put the newest copy of the whole directory `metadata` back. Or start without what was stored "
            f"since: --accept-loss gives no id twice, and deletes what there is of {newer}: the messages that topics "
            "got after this copy was made."
        )
    store.leave_out_numbers(parent, greatest_id + 1)
    log.error(
        "going on without what is lost: %s. What there is of %s is deleted soon, as no topic names it: messages that "
        "topics got after this copy was made. New ledgers begin with %d",
        found,
        newer,
        greatest_id + 1,
    )


async def check_messages_are_newest(settings: StandaloneSettings, bookie: BookieSettings, store: MetadataStore) -> bool:
    """Whether the bookie's folder has the journal file that the last start has begun; `MessagesBehind` if not, unless
    losses are accepted. To be asked before the bookie starts, as that begins a newer one. OSError,
    `StoreUnavailable`.

    A directory without a journal and without a cookie is left to the bookie, which says what it lacks."""
    node = await store.get(NEWEST_JOURNAL_PATH)
    found_id = _newest_journal(bookie)
    if node is None or found_id >= (noted_id := int(node.value, 16)):
        return True
    if not found_id and not (bookie.journal_directories[0] / CURRENT / COOKIE_FILE).exists():
        return True
    newest = f"their newest journal file is {found_id:x}" if found_id else "they have no journal file"
    found = (
        f"the messages in {settings.bookie_directory} are older than the metadata: {newest}, and {noted_id:x} was "
        "begun at the last start"
    )
    if not settings.accept_loss:
        raise MessagesBehind(
            f"{found}. Put the newest copy of the whole directory `{settings.bookie_directory.name}` back. Or start "
            "without what was stored since: --accept-loss gives it up for good."
        )
    log.error("going on without what is lost: %s", found)
    return False


async def note_newest_journal(bookie: BookieSettings, store: MetadataStore) -> None:
    """Store what the next start's `check_messages_are_newest` compares. The bookie must have started. OSError,
    `StoreUnavailable`."""
    await store.put(NEWEST_JOURNAL_PATH, b"%x" % _newest_journal(bookie))


def _newest_journal(bookie: BookieSettings) -> int:
    """The greatest id among the files and in the note beside them; 0 without any."""
    disk = SystemDisk()
    directory = bookie.journal_directories[0] / CURRENT
    if not directory.is_dir():
        return 0
    noted = disk.read_whole(directory / journal_header.NEWEST_FILE)
    try:
        noted_id = journal_header.decode_newest(noted) if noted is not None else 0
    except ValueError:
        # The journal's replay tells of it.
        noted_id = 0
    return max(noted_id, *journal_files.list_files(disk, directory), 0)
