"""Metadata and messages of a standalone cluster must belong together: a start looks before anything is served.

Messages are found by the metadata alone. Garbage collection deletes what they do not name, and with older metadata
the ids of newer ledgers would be given again, whose entries then stand in ledgers of other topics. Older messages
are refused by the bookie itself (`magnetar.bookie.integrity.begun_journals`).
"""

from __future__ import annotations

import logging
from typing import Final

from magnetar.bookie.app import RunningBookie
from magnetar.core.errors import MagnetarError
from magnetar.ledger.ledger_paths import ID_PREFIX
from magnetar.metadata.local import LocalStore
from magnetar.metadata.paths import parent_of
from magnetar.metadata.rocksdb_files import DATABASE, holds_database
from magnetar.standalone.settings import StandaloneSettings

logger: Final = logging.getLogger(__name__)

_JOURNALS: Final = "*/current/*.txn"
_ENTRY_LOGS: Final = "*/current/*.log"


class MetadataMissing(MagnetarError):
    """There are messages, and nothing that says whose they are. Nothing was made or changed."""


class MetadataBehind(MagnetarError):
    """The metadata is older than the messages."""


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
    logger.error(
        "going on without what is lost: %s. What there is of %s is deleted soon, as no topic names it: messages that "
        "topics got after this copy was made. New ledgers begin with %d",
        found,
        newer,
        greatest_id + 1,
    )
