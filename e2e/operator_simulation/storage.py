"""Fake bookies: cookies, volumes, ledgers, drains and AutoRecovery, all by what is in the metadata and on the disks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME, EXIT_RETIRED, EXIT_WRONG_VOLUME
from magnetar.operator.plan.facts import BookieFacts, DrainStep, LostBookieFacts

from e2e.operator_simulation.metadata import Cookie, Disk, Disks, Drain, Metadata

LEDGERS_MAX: Final = 24
"""That exist at a time; more say nothing more."""

GIBIBYTE: Final = 1 << 30
DISK_BYTES: Final = 50 * GIBIBYTE

REMEMBERED_SECONDS: Final = 3.0
"""For how long a bookie that is gone still counts as registered: its session has to end."""


@dataclass(slots=True)
class Exit:
    """A process has ended."""

    code: int
    message: str


@dataclass(slots=True)
class Bookie:
    """One that runs."""

    bookie_id: str
    disks: list[Disk] = field(default_factory=list)
    """The first is the journal's."""


class Storage:
    """All bookies, and the clients that write ledgers."""

    def __init__(self, rng: random.Random, disks: Disks, now: Callable[[], float]) -> None:
        self.disks = disks
        self.metadata: Metadata | None = None
        """None while ZooKeeper has no quorum."""
        self.running: dict[str, Bookie] = {}
        self.ensemble_size = 2
        self.copies_per_second = 3
        self.lost_after_seconds = 20.0
        self.clients_write: Callable[[], bool] = lambda: False
        self.lost_ledgers: set[int] = set()
        """Without any copy. It was nobody's fault if nobody was blamed."""
        self._rng = rng
        self._now = now
        self._gone: dict[str, float] = {}
        self._stamps = 0
        self._ledger_ids = 0
        self._resting: dict[str, int] = {}

    # --- processes

    def start(self, bookie_id: str, disks: list[Disk]) -> Exit | None:
        """What `magnetar bookie run` does first: None when it goes on. Only while there is metadata."""
        metadata = self.metadata
        assert metadata is not None
        if not metadata.initialised:
            return Exit(1, "the metadata store is not initialised")
        known = metadata.cookies.get(bookie_id)
        for disk in disks:
            if disk.cookie is not None and disk.cookie[:2] != (bookie_id, metadata.instance):
                return Exit(EXIT_WRONG_VOLUME, f"{disk.claim} belongs to bookie {disk.cookie[0]}")
        if known is None and any(disk.cookie is not None for disk in disks):
            return Exit(EXIT_RETIRED, f"the cluster does not know {bookie_id} any more")
        if known is not None and any(disk.cookie is None for disk in disks):
            return Exit(EXIT_EMPTY_VOLUME, f"a directory of {bookie_id} has no cookie")
        if known is not None and any(disk.cookie != known for disk in disks):
            return Exit(EXIT_WRONG_VOLUME, f"the directories of {bookie_id} have another cookie")
        if known is None:
            self._stamps += 1
            cookie: Cookie = (bookie_id, metadata.instance, self._stamps)
            metadata.cookies[bookie_id] = cookie
            metadata.cookies_made[bookie_id] = self._now()
            drain = metadata.drains.get(bookie_id)
            if drain is not None and (drain.step == "Done" or self._rng.random() < 0.5):
                # Otherwise what was begun before the disk was lost goes on.
                del metadata.drains[bookie_id]
            for disk in disks:
                disk.cookie = cookie
        self.running[bookie_id] = Bookie(bookie_id, disks)
        self._gone.pop(bookie_id, None)
        metadata.suspects.discard(bookie_id)
        return None

    def stop(self, bookie_id: str) -> None:
        """The process has ended, however."""
        if self.running.pop(bookie_id, None) is not None:
            self._gone[bookie_id] = self._now()

    # --- what it is asked by the control port

    def facts(self, bookie: Bookie) -> BookieFacts:
        """Of one that runs."""
        metadata = self.metadata
        drain = metadata.drains.get(bookie.bookie_id) if metadata is not None else None
        ledgers = len(metadata.naming(bookie.bookie_id)) if metadata is not None else 0
        used = min(DISK_BYTES, len(bookie.disks[-1].ledgers) * GIBIBYTE)
        return BookieFacts(
            bookie_id=bookie.bookie_id,
            writable=self._writable(bookie.bookie_id),
            read_only_reasons=["it is being drained"] if drain is not None else [],
            used_bytes=used,
            total_bytes=DISK_BYTES,
            disk_usage_percent=used * 100 // DISK_BYTES,
            ledgers=len(bookie.disks[-1].ledgers),
            drain=drain.step if drain is not None else "None",
            ledgers_total=drain.ledgers_total if drain is not None else 0,
            ledgers_left=ledgers if drain is not None else 0,
            blockers=list(drain.blockers) if drain is not None else [],
        )

    def start_drain(self, bookie_id: str) -> None:
        """`ControlRefused`."""
        metadata = self._needed()
        if bookie_id in metadata.drains:
            return
        others = {other for other in self.writable() if other != bookie_id}
        named = metadata.naming(bookie_id)
        if any(others <= set(metadata.ledgers[ledger]) for ledger in named):
            raise ControlRefused(RefusalReason.FAILED_PRECONDITION, "nobody could take its place; add bookies first")
        metadata.drains[bookie_id] = Drain("ReadOnly", len(named))

    def cancel_drain(self, bookie_id: str) -> None:
        """`ControlRefused`."""
        metadata = self._needed()
        drain = metadata.drains.get(bookie_id)
        if drain is None:
            return
        if drain.step in ("RemoveCookie", "Done"):
            raise ControlRefused(RefusalReason.FAILED_PRECONDITION, "the cookie is removed")
        del metadata.drains[bookie_id]

    def lost(self, bookie_id: str) -> LostBookieFacts:
        """What any bookie that runs says of another."""
        metadata = self._needed()
        return LostBookieFacts(
            bookie_id=bookie_id,
            registered=self._registered(bookie_id),
            has_cookie=bookie_id in metadata.cookies,
            ledgers_left=len(metadata.naming(bookie_id)),
        )

    def retire(self, bookie_id: str) -> LostBookieFacts:
        """`ControlRefused`."""
        metadata = self._needed()
        if self._registered(bookie_id):
            raise ControlRefused(RefusalReason.FAILED_PRECONDITION, f"bookie {bookie_id} is up")
        metadata.suspects.add(bookie_id)
        if not metadata.naming(bookie_id):
            metadata.cookies.pop(bookie_id, None)
            metadata.suspects.discard(bookie_id)
        return self.lost(bookie_id)

    def under_replicated(self) -> int:
        """Ledgers that name somebody who is lost."""
        metadata = self._needed()
        lost = self._lost(metadata)
        return sum(any(bookie in lost for bookie in bookies) for bookies in metadata.ledgers.values())

    # --- what happens by itself

    def tick(self) -> None:
        """A second has passed."""
        metadata = self.metadata
        if metadata is None or not metadata.initialised:
            return
        if self.clients_write():
            self._write(metadata)
        self._recover(metadata)
        for bookie_id in list(metadata.drains):
            if bookie_id in self.running:
                self._drain(metadata, bookie_id, metadata.drains[bookie_id])

    def writable(self) -> list[str]:
        """Bookies that take new ledgers."""
        return [bookie_id for bookie_id in self.running if self._writable(bookie_id)]

    def fully_replicated(self, metadata: Metadata) -> list[str]:
        """What is wrong: ledgers that lack a copy, or that name bookies which do not run."""
        found = []
        for ledger, bookies in metadata.ledgers.items():
            for bookie_id in bookies:
                bookie = self.running.get(bookie_id)
                if bookie is None or ledger not in bookie.disks[-1].ledgers:
                    found.append(f"ledger {ledger} names {bookie_id}, which does not have it")
        return found

    def _write(self, metadata: Metadata) -> None:
        if self._rng.random() < 0.3:
            writable = self.writable()
            if len(writable) >= self.ensemble_size and len(metadata.ledgers) < LEDGERS_MAX:
                self._ledger_ids += 1
                chosen = self._rng.sample(writable, self.ensemble_size)
                metadata.ledgers[self._ledger_ids] = chosen
                for bookie_id in chosen:
                    self.running[bookie_id].disks[-1].ledgers.add(self._ledger_ids)
        elif len(metadata.ledgers) > LEDGERS_MAX // 2 and self._rng.random() < 0.3:
            ledger = self._rng.choice(list(metadata.ledgers))
            del metadata.ledgers[ledger]
            for disk in self.disks.all():
                disk.ledgers.discard(ledger)

    def _recover(self, metadata: Metadata) -> None:
        lost = self._lost(metadata)
        if not lost or not self.running:
            return
        budget = self.copies_per_second
        for ledger, bookies in metadata.ledgers.items():
            for place, bookie_id in enumerate(bookies):
                if bookie_id in lost and budget and self._move(ledger, bookies, place):
                    budget -= 1

    def _drain(self, metadata: Metadata, bookie_id: str, drain: Drain) -> None:
        drain.blockers = []
        left = metadata.naming(bookie_id)
        if drain.step in ("ReadOnly", "Verify") and self._rests(bookie_id):
            return
        if drain.step == "ReadOnly":
            drain.step = "Replicate"
        elif drain.step == "Replicate":
            for ledger in left[: self.copies_per_second]:
                bookies = metadata.ledgers[ledger]
                if not self._move(ledger, bookies, bookies.index(bookie_id)):
                    drain.blockers.append(f"ledger {ledger}: no bookie can take it")
            if not left:
                drain.step = "Verify"
        elif drain.step == "Verify":
            steps: tuple[DrainStep, DrainStep] = ("Replicate", "RemoveCookie")
            drain.step = steps[not left]
        elif drain.step == "RemoveCookie":
            metadata.cookies.pop(bookie_id, None)
            drain.step = "Done"

    def _rests(self, bookie_id: str) -> bool:
        """A step that waits does so for three seconds."""
        waited = self._resting.get(bookie_id, 0) + 1
        self._resting[bookie_id] = waited % 3
        return waited < 3

    def _move(self, ledger: int, bookies: list[str], place: int) -> bool:
        """Copy a ledger to somebody who is not named yet, in the place of one who is."""
        sources = [other for other in bookies if other in self.running]
        if not any(ledger in self.running[source].disks[-1].ledgers for source in sources):
            return False
        targets = [other for other in self.writable() if other not in bookies]
        if not targets:
            return False
        target = self._rng.choice(targets)
        self.running[target].disks[-1].ledgers.add(ledger)
        bookies[place] = target
        return True

    def _writable(self, bookie_id: str) -> bool:
        metadata = self.metadata
        if metadata is None or bookie_id not in metadata.cookies:
            return False
        return bookie_id in self.running and bookie_id not in metadata.drains

    def _registered(self, bookie_id: str) -> bool:
        gone = self._gone.get(bookie_id)
        return bookie_id in self.running or (gone is not None and self._now() - gone < REMEMBERED_SECONDS)

    def _lost(self, metadata: Metadata) -> set[str]:
        found = set()
        for bookies in metadata.ledgers.values():
            for bookie_id in bookies:
                if bookie_id not in self.running:
                    gone = self._gone.setdefault(bookie_id, self._now())
                    if bookie_id in metadata.suspects or self._now() - gone >= self.lost_after_seconds:
                        found.add(bookie_id)
        return found

    def _needed(self) -> Metadata:
        if self.metadata is None:
            raise ControlUnavailable("the metadata store is not there")
        return self.metadata
