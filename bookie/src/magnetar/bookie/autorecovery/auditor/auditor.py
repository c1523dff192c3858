"""The auditor: watches who is there, and has ledgers marked when bookies are lost or a check is due.

Lost bookies are looked for in one task, the checks that read entries run in another, so that a check that takes hours
does not hide a loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.autorecovery import paths
from magnetar.bookie.autorecovery.auditor.checks import (
    SECOND_LOOK_SECONDS,
    AllLedgersCheck,
    AuditorParts,
    BookieCheck,
    PlacementCheck,
    ReplicationDisabled,
)
from magnetar.bookie.autorecovery.auditor.loss_watch import LossWatch
from magnetar.bookie.autorecovery.auditor.replicas_check import EntryLists, ReplicasCheck
from magnetar.bookie.autorecovery.registered_bookies import available_bookies, known_bookies, tells_of_bookies
from magnetar.bookie.autorecovery.underreplication import CHECK_ASKED_FOR_MS, parse_delay
from magnetar.bookie.outcomes import Outcomes
from magnetar.core.errors import PeerError, Unavailable
from magnetar.metadata.store import Notification, SessionEvent
from magnetar.wire.bookkeeper.under_replication import CheckKind

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""Before an audit or a check that failed is tried again."""

NAP_SECONDS_MAX: Final = 60.0
"""How long the auditor sleeps at most before it looks at the clocks again: the marks of the last checks are in
wall-clock time, which may jump."""


@dataclass(slots=True)
class _Periodic:
    """One of the checks that leave a mark."""

    kind: CheckKind
    interval_seconds: float
    outcomes: Outcomes
    run: Callable[[], Awaitable[None]]
    next_due_ms: float | None = None
    """None: not read from the last run's mark yet, or the mark has changed."""

    def due_ms(self, last_ms: int | None) -> float:
        """When it is due, as its mark says. One that is switched off runs when it is asked for."""
        if last_ms == CHECK_ASKED_FOR_MS:
            return 0.0
        if self.interval_seconds <= 0:
            return float("inf")
        return 0.0 if last_ms is None else last_ms + self.interval_seconds * 1000


class Auditor:
    """One term as the auditor. Made anew after each election."""

    def __init__(
        self, parts: AuditorParts, lists: EntryLists | None, second_look_seconds: float = SECOND_LOOK_SECONDS
    ) -> None:
        """Without `lists` the replicas check is left out."""
        self.audits = 0
        """Looks for lost bookies that were finished."""
        self._parts = parts
        self._settings = parts.settings
        self._bookie_check = BookieCheck(parts)
        self._losses = LossWatch(())
        self._wake_up = asyncio.Event()
        self._checks_wake_up = asyncio.Event()
        self._changed_marks: set[CheckKind] = set()
        """The checks whose mark somebody wrote since it was looked at."""
        self._triggered = False
        self._delay_seconds = 0
        self._delay_version = -1
        self._all_ledgers = AllLedgersCheck(parts, second_look_seconds)
        self._placement = PlacementCheck(parts)
        self._replicas = ReplicasCheck(parts, lists) if lists is not None else None

    def trigger_audit(self) -> None:
        """Look for lost bookies now."""
        self._triggered = True
        self._wake_up.set()

    async def run(self) -> None:
        """Audit until cancelled. Troubles of store and bookies are waited out; anything else is raised."""
        stops = [
            self._parts.store.watch(self._take_notification),
            self._parts.store.watch_session(self._take_session_event),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch_bookies(), name="auditor-bookies")
                group.create_task(self._run_checks(), name="auditor-checks")
        finally:
            for stop in stops:
                stop()

    async def _watch_bookies(self) -> None:
        await self._patiently("begin to audit", self._begin)
        clock = self._parts.clock
        interval = self._settings.bookie_check_interval_seconds
        check_due: float = clock.monotonic_seconds()
        while True:
            self._wake_up.clear()
            try:
                await self._wait_until_enabled()
                await self._look_at_bookies()
                now = clock.monotonic_seconds()
                periodic = now >= check_due and not self._losses.waiting
                if self._triggered or periodic or self._losses.due(now):
                    await self._audit()
                    check_due = clock.monotonic_seconds() + interval if interval > 0 else float("inf")
            except (Unavailable, PeerError) as error:
                logger.warning("lost bookies cannot be looked for now: %s", error)
                await self._nap(RETRY_SECONDS)
                continue
            # While a loss is given time, the periodic look waits as well: it may be due already.
            due = self._losses.due_at_seconds
            await self._sleep_until(check_due if due is None else due)

    async def _begin(self) -> None:
        parts = self._parts
        wanted = self._settings.lost_bookie_recovery_delay_seconds
        await parts.underreplicated.initialize_lost_bookie_recovery_delay(wanted)
        await self._read_delay()
        # Bookies that died before this term are lost as well, and may have their delay.
        self._losses = LossWatch(await known_bookies(parts.store))

    async def _look_at_bookies(self) -> None:
        losses = self._losses
        before = (losses.delayed, losses.cancelled)
        changed = await self._read_delay()
        if changed is not None:
            now = self._parts.clock.monotonic_seconds()
            self._triggered |= losses.delay_written(self._delay_seconds, changed=changed, now_seconds=now)
        available = await available_bookies(self._parts.store)
        losses.observe(available, self._delay_seconds, self._parts.clock.monotonic_seconds())
        self._parts.counters.audits_delayed += losses.delayed - before[0]
        self._parts.counters.delayed_audits_cancelled += losses.cancelled - before[1]
        if losses.delayed > before[0]:
            lost = ", ".join(sorted(losses.lost))
            logger.info("%s is lost; it has %d s to come back", lost, self._delay_seconds)

    async def _read_delay(self) -> bool | None:
        """None if nobody wrote the delay since the last call, else whether it became another one."""
        node = await self._parts.store.get(paths.LOST_BOOKIE_RECOVERY_DELAY)
        version = -1 if node is None else node.stat.version
        if version == self._delay_version:
            return None
        seconds = 0 if node is None else parse_delay(node.value)
        changed = seconds != self._delay_seconds
        first_time = self._delay_version == -1
        self._delay_seconds, self._delay_version = seconds, version
        return None if first_time else changed

    async def _audit(self) -> None:
        clock, counters = self._parts.clock, self._parts.counters
        started = clock.monotonic_seconds()
        if self._losses.lost:
            logger.info("lost bookies: %s", ", ".join(sorted(self._losses.lost)))
        # What is lost from here on is news, and so is what anybody asks for.
        self._triggered = False
        succeeded = False
        try:
            marked = await self._bookie_check.run()
            succeeded = True
        finally:
            counters.audit.record(clock.monotonic_seconds() - started, 1, success=succeeded)
            self._triggered |= not succeeded
        self._losses.audited()
        self.audits += 1
        counters.underreplicated_marked.record(marked)
        logger.info("audited all ledgers: %d name a bookie that is not there", marked)

    async def _wait_until_enabled(self) -> None:
        underreplicated = self._parts.underreplicated
        with underreplicated.watch_changes() as changes:
            while not await underreplicated.enabled():
                await changes.wait()

    async def _run_checks(self) -> None:
        checks = self._periodic_checks()
        while True:
            self._checks_wake_up.clear()
            await self._patiently("read when the last checks were", lambda: self._schedule(checks))
            check = min(checks, key=_due_ms)
            wait_seconds = (_due_ms(check) - self._parts.clock.now_ms()) / 1000
            if wait_seconds > 0:
                await _wait_for(self._checks_wake_up, min(wait_seconds, NAP_SECONDS_MAX))
            elif self._losses.waiting:
                # It would tell of the loss that is given time.
                await _wait_for(self._checks_wake_up, NAP_SECONDS_MAX)
            else:
                await self._run_check(check)

    def _periodic_checks(self) -> list[_Periodic]:
        settings, counters = self._settings, self._parts.counters
        checks = [
            _Periodic(
                CheckKind.ALL_LEDGERS,
                settings.all_ledgers_check_interval_seconds,
                counters.check_all_ledgers,
                self._all_ledgers.run,
            ),
            _Periodic(
                CheckKind.PLACEMENT,
                settings.placement_check_interval_seconds,
                counters.placement_check,
                self._placement.run,
            ),
        ]
        if self._replicas is not None:
            interval = settings.replicas_check_interval_seconds
            checks.append(_Periodic(CheckKind.REPLICAS, interval, counters.replicas_check, self._replicas.run))
        return checks

    async def _schedule(self, checks: list[_Periodic]) -> None:
        for check in checks:
            if check.next_due_ms is None or check.kind in self._changed_marks:
                self._changed_marks.discard(check.kind)
                check.next_due_ms = None
                check.next_due_ms = check.due_ms(await self._parts.underreplicated.last_check(check.kind))
            if check.interval_seconds > 0:
                # What is due later than that comes from a clock that was ahead, here or at another machine.
                latest_ms = self._parts.clock.now_ms() + check.interval_seconds * 1000
                check.next_due_ms = min(check.next_due_ms, latest_ms)

    async def _run_check(self, check: _Periodic) -> None:
        clock = self._parts.clock
        started = clock.monotonic_seconds()
        succeeded = False
        try:
            await self._wait_until_enabled()
            started = clock.monotonic_seconds()
            self._changed_marks.discard(check.kind)
            await check.run()
            succeeded = True
            if check.kind in self._changed_marks:
                last_ms = await self._parts.underreplicated.last_check(check.kind)
                if last_ms == CHECK_ASKED_FOR_MS:
                    return  # While it ran: whoever asks wants to know of what is there from then on.
            await self._parts.underreplicated.set_last_check(check.kind, clock.now_ms())
        except ReplicationDisabled:
            return
        except (Unavailable, PeerError) as error:
            logger.warning("the %s was not finished: %s", check.kind.value, error)
            await asyncio.sleep(RETRY_SECONDS)
            return
        finally:
            check.outcomes.record(clock.monotonic_seconds() - started, 1, success=succeeded)
        check.next_due_ms = check.due_ms(clock.now_ms())

    async def _patiently(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await attempt()
            except (Unavailable, PeerError) as error:
                logger.warning("the auditor cannot %s now: %s", what, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _sleep_until(self, due_seconds: float) -> None:
        await self._nap(due_seconds - self._parts.clock.monotonic_seconds())

    async def _nap(self, seconds: float) -> None:
        """Sleep until something may have changed, at most so long."""
        await _wait_for(self._wake_up, max(0.0, min(seconds, NAP_SECONDS_MAX)))

    def _take_notification(self, notification: Notification) -> None:
        if tells_of_bookies(notification.path) or notification.path == paths.LOST_BOOKIE_RECOVERY_DELAY:
            self._wake_up.set()
        for kind, path in paths.LAST_CHECKS.items():
            if notification.path == path:
                self._changed_marks.add(kind)
                self._checks_wake_up.set()

    def _take_session_event(self, event: SessionEvent) -> None:
        # News may have been missed.
        if event is SessionEvent.RECONNECTED:
            self._wake_up.set()
            self._changed_marks.update(paths.LAST_CHECKS)
            self._checks_wake_up.set()


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _due_ms(check: _Periodic) -> float:
    return check.next_due_ms or 0.0
