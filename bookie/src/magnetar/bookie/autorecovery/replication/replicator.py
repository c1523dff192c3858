"""Makes one ledger whole again: finds its bad fragments, copies them to other bookies, then changes the metadata.

The order is the point: metadata that names a bookie is written only after that bookie has confirmed every entry of the
place it takes, and only if the segment is still what was copied. Whoever calls holds the ledger's lock, so that the
garbage collection of the new bookies leaves the copies alone until they are named.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Collection, Sequence
from typing import Final

from magnetar.bookie.autorecovery.fragment_check import FragmentChecker
from magnetar.bookie.autorecovery.fragments import (
    BadFragments,
    EnsembleRepair,
    FragmentState,
    Segment,
    bad_fragments,
    lost_fragments,
    names,
    segments_of,
    source_order,
    with_move,
)
from magnetar.bookie.autorecovery.replication.entry_copy import EntryCopier, OnProgress, TargetFailed
from magnetar.bookie.autorecovery.replication.result import OpenDamage, Problem, ProblemKind, ReplicationScope
from magnetar.bookie.autorecovery.replication.result import ReplicationResult as ReplicationResult
from magnetar.bookie.autorecovery.replication.segment_reader import EntriesUnreadable, SegmentReader
from magnetar.bookie.autorecovery.replication.settings import DEFAULT_REPLICATION_SETTINGS, ReplicationSettings
from magnetar.bookie.autorecovery.replication.target_choice import TargetChoice
from magnetar.bookie.autorecovery.replication.throttle import ReplicationThrottle
from magnetar.bookie.counters import RecoveryCounters
from magnetar.core.clock import Clock, SystemClock
from magnetar.ledger.api import LedgerNotFound, LedgerUnauthorized, NotEnoughBookies
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.store import NodeNotFound, VersionConflict
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

logger: Final = logging.getLogger(__name__)

ROUNDS_MAX: Final = 10
"""How often a ledger is looked at again because something was moved or its metadata changed meanwhile."""

TARGETS_MAX: Final = 3
"""Bookies that are tried for one place, one after the other, within one round."""

CONFLICTS_MAX: Final = 20
"""Times that one metadata update is tried again because somebody else was faster."""

SEGMENTS_CHECKED_AT_A_TIME: Final = 16
"""A ledger may have thousands of segments after many ensemble changes; the checker's bound counts reads only."""

SECOND_LOOK_SECONDS: Final = 5.0
"""After this long an entry that an open segment seems to lack is looked for again, as the auditor does."""

_SYSTEM_CLOCK: Final = SystemClock()


class LedgerReplicator:
    """Replicates ledgers, several at once if need be; the rate and the reads of checks are bounded together."""

    def __init__(
        self,
        client: BookKeeperClient,
        connections: BookieConnections,
        clock: Clock = _SYSTEM_CLOCK,
        rng: random.Random | None = None,
        settings: ReplicationSettings = DEFAULT_REPLICATION_SETTINGS,
        counters: RecoveryCounters | None = None,
    ) -> None:
        """`connections` are those that the client uses."""
        self.settings = settings
        self.counters = counters or RecoveryCounters()
        self.throttle = ReplicationThrottle(clock, settings.bytes_per_second)
        self.targets = TargetChoice(client.chooser, connections)
        self._client = client
        self._connections = connections
        self._copier = EntryCopier(connections, self.throttle, settings, self.counters, clock)
        self._checker = FragmentChecker(connections, rng or random.SystemRandom(), settings.check_reads_in_flight_max)

    async def replicate(
        self,
        ledger_id: int,
        *,
        avoid: Collection[str] = (),
        on_progress: OnProgress | None = None,
        scope: ReplicationScope = ReplicationScope.WHOLE,
        replace_silent: bool = False,
    ) -> ReplicationResult:
        """Copy what is bad and name the new bookies. Bookies in `avoid` lose their places; while they live they are
        read from when nobody else has an entry.

        `on_progress(entries, bytes)` hears of what was confirmed. Raises `Unavailable` when the metadata store fails
        and `PeerError` for metadata that nobody can read; all other trouble is in the result. It may be cancelled and
        called again at any time."""
        job = _Job(self, ReplicationResult(ledger_id=ledger_id), on_progress, scope, replace_silent=replace_silent)
        try:
            await job.run(frozenset(avoid))
        except LedgerNotFound:
            job.result.deleted = True
            job.result.problems.clear()
        return job.result

    async def close_open_ledger(
        self, ledger_id: int, *, avoid: Collection[str] = (), damage: OpenDamage | None = None
    ) -> None:
        """Fence and close a ledger whose open segment still has a lost or avoided bookie, or one that still cannot give
        its entries; its writer, if there is one, goes on with another ledger. Nothing is done when it is closed, whole
        or deleted. Raises `Unavailable`."""
        try:
            metadata, _ = await self._client.metadata.read(ledger_id)
            lost = self.lost(metadata, avoid)
            if damage is not None:
                lost |= frozenset(await self._unable(ledger_id, metadata, damage.last_entry_id))
            if not open_segment_is_bad(metadata, lost):
                return
            why = "a bookie of its open segment is lost, leaves or has lost entries"
            logger.warning("ledger %d is fenced and closed, as %s", ledger_id, why)
            reader = await self._client.open(ledger_id, password=metadata.password, recover=True)
            await reader.close()
        except LedgerNotFound:
            return

    def lost(self, metadata: LedgerMetadata, avoid: Collection[str]) -> frozenset[str]:
        """The bookies of a ledger that are not registered, or are to be avoided."""
        readable = set(self._connections.readable_bookies())
        named = {bookie for _, ensemble in metadata.ensembles for bookie in ensemble}
        return frozenset(bookie for bookie in named if bookie not in readable or bookie in avoid)

    async def check(
        self, ledger_id: int, metadata: LedgerMetadata, lost: Collection[str]
    ) -> list[tuple[Segment, dict[int, FragmentState]]]:
        """Every closed segment and what is known of its fragments."""
        # A guessed digest type or password must not make good entries look damaged.
        codec = self.codec(ledger_id, metadata) if metadata.digest_type is not None else None
        percentage = self.settings.verification_percentage
        segments = [segment for segment in segments_of(metadata) if segment.closed]
        results: list[tuple[Segment, dict[int, FragmentState]]] = []
        for start in range(0, len(segments), SEGMENTS_CHECKED_AT_A_TIME):
            some = segments[start : start + SEGMENTS_CHECKED_AT_A_TIME]
            checks = [
                self._checker.check(ledger_id, segment, codec, lost=lost, percentage=percentage) for segment in some
            ]
            results += zip(some, await asyncio.gather(*checks), strict=True)
        return results

    async def check_open(self, ledger_id: int, metadata: LedgerMetadata) -> OpenDamage | None:
        """What is wrong with the confirmed entries of an open segment. None for a closed ledger, and for bookies that
        only do not answer, or are late. Raises `LedgerNotFound`, `Unavailable`."""
        if metadata.state is LedgerState.CLOSED:
            return None
        try:
            reader = await self._client.open(ledger_id, password=metadata.password, recover=False)
        except LedgerUnauthorized as error:
            logger.warning("the open end of ledger %d cannot be checked: %s", ledger_id, error)
            return None
        last_entry_id = reader.last_add_confirmed
        await reader.close()
        if not await self._unable(ledger_id, metadata, last_entry_id):
            return None
        # What was under way has arrived by then.
        await asyncio.sleep(SECOND_LOOK_SECONDS)
        bookies = await self._unable(ledger_id, metadata, last_entry_id)
        return OpenDamage(bookies, last_entry_id) if bookies else None

    async def _unable(self, ledger_id: int, metadata: LedgerMetadata, last_entry_id: int) -> tuple[str, ...]:
        """Bookies of the open segment that say themselves that they cannot give its entries up to this one."""
        segment = segments_of(metadata)[-1]
        if segment.closed or last_entry_id < segment.first_entry_id:
            return ()
        stretch = dataclasses.replace(segment, last_entry_id=last_entry_id, closed=True)
        codec = self.codec(ledger_id, metadata) if metadata.digest_type is not None else None
        lost, percentage = self.lost(metadata, ()), self.settings.verification_percentage
        verdicts = await self._checker.check(ledger_id, stretch, codec, lost=lost, percentage=percentage)
        return tuple(
            segment.bookies[index]
            for index, verdict in verdicts.items()
            if verdict in (FragmentState.MISSING, FragmentState.DAMAGED)
        )

    async def check_bookie(
        self, ledger_id: int, metadata: LedgerMetadata, first_entry_id: int, bookie_id: str
    ) -> FragmentState:
        """What a bookie has of the segment that begins at an entry; PRESENT when it has no place there."""
        codec = self.codec(ledger_id, metadata) if metadata.digest_type is not None else None
        for segment in segments_of(metadata):
            if segment.first_entry_id == first_entry_id and segment.closed and bookie_id in segment.bookies:
                index = segment.bookies.index(bookie_id)
                lost = self.lost(metadata, ())
                return await self._checker.check_place(ledger_id, segment, index, codec, lost=lost)
        return FragmentState.PRESENT

    def codec(self, ledger_id: int, metadata: LedgerMetadata) -> EntryCodec:
        """Digest and password of a ledger: the metadata's; of metadata that has none, the settings'."""
        if metadata.digest_type is None:
            return EntryCodec(ledger_id, self.settings.recovery_digest_type, self.settings.recovery_password)
        return EntryCodec(ledger_id, metadata.digest_type, metadata.password)

    async def copy(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        move: EnsembleRepair,
        source_order: Sequence[int],
        on_progress: OnProgress,
    ) -> None:
        """Raises `EntriesUnreadable`, `TargetFailed`; also for a bookie that takes no writes any more: it may be on its
        way out, and whoever drains it may have seen already that this ledger does not name it."""
        codec = self.codec(ledger_id, metadata)
        source = SegmentReader(move.segment, source_order, codec, self._connections, self.settings.batch_bytes_max)
        await self._copier.copy(move, source, codec, known_last_add_confirmed(metadata), on_progress)
        writable = self._connections.writable_bookies()
        for bookie_id in move.replacements.values():
            if bookie_id not in writable:
                raise TargetFailed(bookie_id, BookieCode.EREADONLY)

    def target_failed(self, error: TargetFailed) -> None:
        """Avoid a bookie as a target for a while."""
        logger.warning("%s", error)
        self._client.chooser.report_failure(error.bookie_id)

    async def record(self, ledger_id: int, move: EnsembleRepair) -> bool:
        """Name the new bookies; False if the segment is not what was copied any more, or one of them leaves. Raises
        `LedgerNotFound`, `Unavailable`."""
        new = [bookie for index, bookie in move.replacements.items() if move.segment.bookies[index] != bookie]
        if not new:
            return True
        registrations = self._connections.registrations(new)
        for _ in range(CONFLICTS_MAX):
            metadata, version = await self._client.metadata.read(ledger_id)
            changed = with_move(metadata, move)
            if changed is None:
                return False
            try:
                await self._client.metadata.write(ledger_id, changed, version, registrations)
            except VersionConflict:
                continue
            except NodeNotFound as missing:
                logger.info("ledger %d gets no place on a bookie that takes no writes any more: %s", ledger_id, missing)
                await self._connections.look_again()
                return False
            logger.info(
                "ledger %d has new bookies from entry %d on: %s",
                ledger_id,
                move.segment.first_entry_id,
                dict(move.replacements),
            )
            return True
        return False

    async def read_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's metadata as it is stored. `LedgerNotFound`."""
        return (await self._client.metadata.read(ledger_id))[0]


def open_segment_is_bad(metadata: LedgerMetadata, lost: Collection[str]) -> bool:
    """Whether the ledger is not closed and its last segment has a lost bookie.

    Only availability counts: what a writer's bookies have not stored yet is no loss (BookKeeper:
    ReplicationWorker.isLastSegmentOpenAndMissingBookies)."""
    if metadata.state is LedgerState.CLOSED:
        return False
    return any(bookie in lost for bookie in metadata.ensembles[-1][1])


def known_last_add_confirmed(metadata: LedgerMetadata) -> int:
    """A LAC that the metadata alone proves: a closed ledger's end, else what came before the last segment."""
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id
    return metadata.ensembles[-1][0] - 1


class _Job:
    """The replication of one ledger."""

    def __init__(
        self,
        replicator: LedgerReplicator,
        result: ReplicationResult,
        on_progress: OnProgress | None,
        scope: ReplicationScope,
        *,
        replace_silent: bool,
    ) -> None:
        self.result = result
        self._replicator = replicator
        self._on_progress = on_progress
        self._scope = scope
        self._replace_silent = replace_silent
        self._failed: dict[int, Problem] = {}
        self._unusable: set[str] = set()
        self._refilled: set[tuple[int, str]] = set()

    async def run(self, avoid: frozenset[str]) -> None:
        """Rounds until nothing is bad but what failed."""
        for _ in range(ROUNDS_MAX):
            metadata = await self._replicator.read_metadata(self.result.ledger_id)
            lost = self._replicator.lost(metadata, avoid)
            if self._scope is ReplicationScope.AVOIDED:
                if not names(metadata, avoid):
                    return
                lost = lost & avoid
            todo, silent = await self._find_bad(metadata, lost)
            fresh = [(bad, verdicts) for bad, verdicts in todo if bad.segment.first_entry_id not in self._failed]
            if not fresh:
                await self._finish(metadata, lost, [*self._failed.values(), *silent])
                return
            for bad, verdicts in fresh:
                await self._repair(metadata, bad, verdicts, avoid, lost)
        changed = Problem(ProblemKind.CHANGED, f"its metadata changed during {ROUNDS_MAX} rounds of repair")
        self.result.problems = [*self._failed.values(), changed]

    async def _finish(self, metadata: LedgerMetadata, lost: Collection[str], problems: list[Problem]) -> None:
        if open_segment_is_bad(metadata, lost):
            gone = [bookie for bookie in metadata.ensembles[-1][1] if bookie in lost]
            text = f"it is open, and its writer has not replaced {', '.join(gone)}"
            problems.append(Problem(ProblemKind.OPEN, text))
        elif self._scope is not ReplicationScope.AVOIDED:
            damage = self.result.open_damage = await self._replicator.check_open(self.result.ledger_id, metadata)
            if damage is not None:
                text = f"it is open and left to its writer; {', '.join(damage.bookies)} cannot give its entries"
                problems.append(Problem(ProblemKind.OPEN, text))
        self.result.problems = problems

    async def _find_bad(
        self, metadata: LedgerMetadata, lost: Collection[str]
    ) -> tuple[list[tuple[BadFragments, dict[int, FragmentState]]], list[Problem]]:
        """The segments to be repaired with all that is known of them, and what cannot be judged."""
        if self._scope is ReplicationScope.AVOIDED:
            closed = [segment for segment in segments_of(metadata) if segment.closed]
            checked = [(segment, lost_fragments(segment, lost)) for segment in closed]
        else:
            checked = await self._replicator.check(self.result.ledger_id, metadata, lost)
        bad: list[tuple[BadFragments, dict[int, FragmentState]]] = []
        silent: dict[str, Problem] = {}
        for segment, verdicts in checked:
            for index, verdict in verdicts.items():
                if verdict is FragmentState.SILENT and self._replace_silent:
                    verdicts[index] = FragmentState.LOST
                elif verdict is FragmentState.SILENT:
                    bookie = segment.bookies[index]
                    silent[bookie] = Problem(ProblemKind.SILENT, f"{bookie} is registered but does not answer")
            if self._scope is ReplicationScope.PLACEMENT and all(
                verdict is FragmentState.PRESENT for verdict in verdicts.values()
            ):
                misplaced = self._replicator.targets.misplaced(metadata, segment, {*lost, *self._unusable})
                verdicts.update(dict.fromkeys(misplaced, FragmentState.MISPLACED))
            found = bad_fragments(segment, verdicts)
            if found is not None:
                bad.append((found, verdicts))
        return bad, list(silent.values())

    async def _repair(
        self,
        metadata: LedgerMetadata,
        bad: BadFragments,
        verdicts: dict[int, FragmentState],
        avoid: Collection[str],
        lost: Collection[str],
    ) -> None:
        segment = bad.segment
        first = segment.first_entry_id
        unregistered = self._replicator.lost(metadata, ())
        order = source_order(segment, verdicts, spared=avoid, unregistered=unregistered, turn=self.result.ledger_id)
        problem = Problem(ProblemKind.CHANGED, "its metadata kept changing")
        for _ in range(TARGETS_MAX):
            # A bookie that was filled up and is bad still has a worse problem than lacking entries.
            refilled = [bookie for bookie in segment.bookies if (first, bookie) in self._refilled]
            try:
                move = self._replicator.targets.choose(metadata, bad, {*lost, *avoid, *self._unusable, *refilled})
                await self._replicator.copy(self.result.ledger_id, metadata, move, order, self._progress)
            except NotEnoughBookies as error:
                problem = Problem(ProblemKind.NOT_ENOUGH_BOOKIES, f"not enough bookies: {error}")
                break
            except TargetFailed as error:
                self._replicator.target_failed(error)
                self._unusable.add(error.bookie_id)
                problem = Problem(ProblemKind.TARGET_FAILED, str(error))
                continue
            except EntriesUnreadable as error:
                # Entries vanish with their ledger: that is no loss.
                await self._replicator.read_metadata(self.result.ledger_id)
                problem = Problem(ProblemKind.UNREADABLE, str(error))
                self._replicator.counters.entries_unreadable += len(error.entry_ids)
                break
            if await self._replicator.record(self.result.ledger_id, move):
                self.result.misplaced_moved |= FragmentState.MISPLACED in bad.verdicts.values()
                self.result.moves += [(first, bookie) for bookie in move.replacements.values()]
                self._refilled.update(
                    (first, bookie) for index, bookie in move.replacements.items() if segment.bookies[index] == bookie
                )
            if len(move.replacements) < len(bad.verdicts):
                problem = Problem(ProblemKind.NOT_ENOUGH_BOOKIES, f"only {len(move.replacements)} bookies were free")
                break
            return
        self._failed[first] = problem

    def _progress(self, entries: int, size_bytes: int) -> None:
        self.result.entries_copied += entries
        self.result.bytes_copied += size_bytes
        if self._on_progress is not None:
            self._on_progress(entries, size_bytes)
