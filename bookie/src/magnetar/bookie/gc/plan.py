"""What to collect: pure decisions, from what is stored here and what the metadata store says.

Why a ledger that is deleted here is not needed by anybody: a ledger's metadata is made before its first entry is sent
to a bookie (also with ids that the writer chose), and its id is never given out again. So of the ledgers that this
bookie had *before* the listing of the metadata store began, each was in the store at that time or has been deleted
since. The caller makes sure that the listing is no older than that (`LiveLedgers.catch_up`) and is complete: an error
or a disordered listing ends the comparison without any result. A ledger that is made while the listing goes on is not
among the local ones and cannot be chosen.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.core.errors import Misuse


class ListingDisordered(Misuse):
    """Live ledger ids did not come in ascending order, so nothing can be said about the ones that were not seen."""


class MissingLedgers:
    """Compares two ascending streams: which local ledgers are not among the live ones."""

    def __init__(self, local: Sequence[int]) -> None:
        """`local`: ids of the ledgers that are here, ascending."""
        self._local = local
        self._at = 0
        self._last_live = -1
        self._missing: list[int] = []
        self.live_count = 0

    def take(self, live_ids: Iterable[int]) -> None:
        """The next live ledgers, ascending. `ListingDisordered`."""
        local, at, last = self._local, self._at, self._last_live
        count = len(local)
        for live_id in live_ids:
            if live_id <= last:
                raise ListingDisordered(f"ledger {live_id} was listed behind {last}")
            last = live_id
            self.live_count += 1
            while at < count and local[at] < live_id:
                self._missing.append(local[at])
                at += 1
            if at < count and local[at] == live_id:
                at += 1
        self._at, self._last_live = at, last

    def finish(self) -> list[int]:
        """The listing is complete: the local ledgers that it did not name, ascending."""
        self._missing.extend(self._local[self._at :])
        self._at = len(self._local)
        return self._missing


class CompactionKind(enum.Enum):
    """Which logs are rewritten."""

    MINOR = "minor"
    MAJOR = "major"


class DiskLevel(enum.IntEnum):
    """How full the disk is."""

    ROOM = 0
    ALMOST_FULL = 1
    FULL = 2


def disk_level(total_bytes: int, free_bytes: int, settings: GarbageCollectionSettings) -> DiskLevel:
    """Where the disk stands against the thresholds."""
    used_share = 1 - free_bytes / max(1, total_bytes)
    if used_share >= settings.disk_full_share or free_bytes < settings.free_bytes_min:
        return DiskLevel.FULL
    return DiskLevel.ALMOST_FULL if used_share >= settings.disk_almost_full_share else DiskLevel.ROOM


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """Somebody asks for a collection now."""

    major: bool | None = None
    """Compact by the major threshold: True yes, whatever the clocks and the suspension say; False no; None: unless
    suspended."""
    minor: bool | None = None


BURST_SECONDS: Final = 1.0


class CompactionClock:
    """When compactions were made, and which one is due. Monotonic seconds."""

    def __init__(self, now: float, settings: GarbageCollectionSettings) -> None:
        """Both intervals begin now (as BookKeeper's do at its start)."""
        self._settings = settings
        self.last_major = now
        self.last_minor = now
        self.major_suspended = False
        self.minor_suspended = False

    def choose(self, now: float, request: CollectionRequest | None, level: DiskLevel) -> CompactionKind | None:
        """Which compaction to make now. A major one includes what a minor one would do, so it comes first."""
        settings = self._settings
        forced = request is not None
        if settings.force_when_full:
            forced = forced or level > DiskLevel.ROOM
            level = DiskLevel.ROOM
        # What is asked for by name goes on in spite of suspension and disk, as with BookKeeper.
        asked_major = request.major if request is not None else None
        asked_minor = request.minor if request is not None else None
        major_paused = (
            not asked_major if asked_major is not None else self.major_suspended or level >= DiskLevel.ALMOST_FULL
        )
        minor_paused = not asked_minor if asked_minor is not None else self.minor_suspended or level >= DiskLevel.FULL
        major_due = settings.major_enabled and (forced or now - self.last_major > settings.major_interval_seconds)
        major_due = major_due or (forced and settings.force_allowed and 0 < settings.major_threshold < 1)
        minor_due = settings.minor_enabled and (forced or now - self.last_minor > settings.minor_interval_seconds)
        minor_due = minor_due or (forced and settings.force_allowed and 0 < settings.minor_threshold < 1)
        if major_due and not major_paused:
            return CompactionKind.MAJOR
        if minor_due and not minor_paused:
            return CompactionKind.MINOR
        return None

    def done(self, kind: CompactionKind, now: float) -> None:
        """A compaction has ended, well or not. A major one resets the minor clock too."""
        if kind is CompactionKind.MAJOR:
            self.last_major = now
        self.last_minor = now


def compaction_order(usages: Iterable[tuple[int, float]], threshold: float) -> list[int]:
    """(log id, usage) → the logs to compact, those first that give most back for the least copying."""
    return [log_id for _, log_id in sorted((usage, log_id) for log_id, usage in usages if usage < threshold)]


def time_is_up(begun: float, now: float, time_max_seconds: float) -> bool:
    """Whether no further log is to be begun; a limit of 0 or less is none."""
    return 0 < time_max_seconds <= now - begun


class CompactionThrottle:
    """A rate of copying, with up to `BURST_SECONDS` of it at once after a pause."""

    def __init__(self, settings: GarbageCollectionSettings) -> None:
        self._by_bytes = settings.throttle_by_bytes
        self._per_second = settings.bytes_per_second if settings.throttle_by_bytes else settings.entries_per_second
        self._free_at = 0.0

    def delay_seconds(self, now: float, entries: int, size_bytes: int) -> float:
        """This much was copied: how long to wait before more is. Monotonic seconds."""
        cost = (size_bytes if self._by_bytes else entries) / self._per_second
        self._free_at = max(self._free_at, now - BURST_SECONDS) + cost
        return max(0.0, self._free_at - now)
