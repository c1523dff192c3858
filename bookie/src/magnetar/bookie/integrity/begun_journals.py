"""Finds an older copy of a bookie's directories: the metadata store knows which journal files its last start has begun,
and the copy has only older ones. Nothing in the copy says so. The bookie would deny what it took since.

Each start begins a file in every journal directory, with a greater id than all before; BookKeeper's bookies do so, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.journal import header as journal_header
from magnetar.bookie.journal.files import JournalDamaged, list_files
from magnetar.bookie.loss import WHAT_TO_DO, Losses
from magnetar.core.disk import Disk
from magnetar.metadata.store import MetadataStore, NodeNotFound

logger: Final = logging.getLogger(__name__)

BEGUN_JOURNALS_PATH: Final = "/magnetar/begun-journals"


def begun_journals_path(bookie_id: str) -> str:
    """The node of one bookie: ids of journal files in hexadecimal, one for each journal directory, with spaces."""
    return f"{BEGUN_JOURNALS_PATH}/{bookie_id}"


async def begun_by_last_start(store: MetadataStore, bookie_id: str, *, holds_data: bool) -> list[int]:
    """The ids that were noted; none for a bookie that is new. To be asked before it gets its cookie. `Unavailable`.

    What was noted of a bookie whose cookie is gone, and which holds no data, was of another life of it: it is removed.
    With data it is kept: the cookie may be about to be put right by hand."""
    path = begun_journals_path(bookie_id)
    node = await store.get(path, watch=False)
    if node is None:
        return []
    if not holds_data and not await store.exists(f"{COOKIES_PATH}/{bookie_id}"):
        try:
            await store.delete(path)
        except NodeNotFound:
            logger.debug("%s is gone already", path)
        return []
    try:
        return [int(file_id, 16) for file_id in node.value.split()]
    except ValueError:
        logger.warning("%s is damaged and left out: %r", path, node.value[:100])
        return []


async def note_begun_journals(store: MetadataStore, bookie_id: str, file_ids: Sequence[int]) -> None:
    """What the next start compares. Before anything that goes to these files is acknowledged. `Unavailable`."""
    await store.put(begun_journals_path(bookie_id), " ".join(f"{file_id:x}" for file_id in file_ids).encode())


def check_journals_are_newest(disk: Disk, directories: Sequence[Path], begun: Sequence[int], losses: Losses) -> None:
    """Tell of each directory whose newest journal file is older than the one that the last start has begun there.
    Reads names of files only. OSError."""
    for directory, begun_id in zip(directories, begun, strict=False):
        newest_id = _newest_id(disk, directory)
        if newest_id >= begun_id:
            continue
        has = f"its newest journal file is {newest_id:x}" if newest_id else "it has no journal file"
        losses.tell(
            JournalDamaged(
                f"{directory} is an older copy: {has}, and {begun_id:x} was begun at the last start, as the metadata "
                f"store says. All that was acknowledged since may be lost. {WHAT_TO_DO}"
            )
        )


def _newest_id(disk: Disk, directory: Path) -> int:
    """The greatest id among the files and in the note beside them; 0 without any."""
    noted = disk.read_whole(directory / journal_header.NEWEST_FILE)
    try:
        noted_id = journal_header.decode_newest(noted) if noted is not None else 0
    except ValueError:
        noted_id = 0  # The replay tells of it.
    return max(chain(list_files(disk, directory), (noted_id,)))
