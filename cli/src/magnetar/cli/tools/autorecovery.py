"""AutoRecovery as the metadata store shows it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from magnetar.bookie.autorecovery.election import ElectionKind, current_auditor
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.under_replication import CheckKind

TOOL_NAME = "magnetar-command-line"
"""The name under which a tool would take locks; it takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedAuditor:
    """Who looks after the cluster's ledgers."""

    election: str
    """votes: BookKeeper's own; leader: that of Pulsar's metadata-store driver."""
    bookie_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatus:
    """The state of AutoRecovery in the whole cluster."""

    enabled: bool
    auditors: tuple[ElectedAuditor, ...]
    """None, one, or one of each election where bookies of both kinds run."""
    ledgers_left: int
    """Ledgers that are marked as under-replicated."""
    lost_bookie_recovery_delay_seconds: int | None
    """None: nobody has set it."""
    last_ledgers_check_ms: int | None
    """When the check of all ledgers ended last, in ms since 1970. None: it never did. 0: it was asked for and has not
    ended since. The other two checks likewise."""
    last_placement_check_ms: int | None
    last_replicas_check_ms: int | None


@contextlib.asynccontextmanager
async def _marks_in(store: MetadataStore) -> AsyncIterator[UnderreplicatedLedgers]:
    marks = UnderreplicatedLedgers(store, TOOL_NAME)
    try:
        yield marks
    finally:
        await marks.close()


async def auditors(store: MetadataStore) -> tuple[ElectedAuditor, ...]:
    """The elected auditors."""
    found = [(kind, await current_auditor(store, kind)) for kind in (ElectionKind.VOTES, ElectionKind.LEADER)]
    return tuple(ElectedAuditor(election=kind.value, bookie_id=bookie_id) for kind, bookie_id in found if bookie_id)


async def status(store: MetadataStore) -> RecoveryStatus:
    """Everything at once; walks the marks to count them."""
    async with _marks_in(store) as marks:
        return RecoveryStatus(
            enabled=await marks.enabled(),
            auditors=await auditors(store),
            ledgers_left=await marks.count(),
            lost_bookie_recovery_delay_seconds=await marks.lost_bookie_recovery_delay_seconds(),
            last_ledgers_check_ms=await marks.last_check(CheckKind.ALL_LEDGERS),
            last_placement_check_ms=await marks.last_check(CheckKind.PLACEMENT),
            last_replicas_check_ms=await marks.last_check(CheckKind.REPLICAS),
        )


async def switch(store: MetadataStore, *, enabled: bool) -> bool:
    """Switch it for the whole cluster; False when it was so already."""
    async with _marks_in(store) as marks:
        return await (marks.enable() if enabled else marks.disable())


async def request_audit(store: MetadataStore, *, entries: bool) -> None:
    """Have the auditor look for lost bookies, and with `entries` check what bookies hold."""
    async with _marks_in(store) as marks:
        await marks.request_audit()
        if entries:
            await marks.request_check(CheckKind.ALL_LEDGERS)
            await marks.request_check(CheckKind.REPLICAS)


async def recovery_delay(store: MetadataStore, *, seconds: int | None) -> int | None:
    """How long a lost bookie may take to come back, after it was set where seconds are given; None: nobody has."""
    async with _marks_in(store) as marks:
        if seconds is not None:
            await marks.set_lost_bookie_recovery_delay_seconds(seconds)
        return await marks.lost_bookie_recovery_delay_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedLedger:
    """A ledger that waits for its replicas."""

    ledger_id: int
    missing_replicas: tuple[str, ...]
    marked_ms: int | None
    worker: str
    """Who repairs it now; empty when nobody does."""
    problem: str = ""
    """At whom the last attempt has failed, and why; empty when none has."""


async def marked_ledgers(
    store: MetadataStore, *, missing: str | None = None, not_missing: str | None = None
) -> list[MarkedLedger]:
    """All marked ledgers; those that lack a bookie, or do not lack another one, when one is given."""
    async with _marks_in(store) as marks:
        return [
            MarkedLedger(
                ledger_id=mark.ledger_id,
                missing_replicas=tuple(mark.missing_replicas),
                marked_ms=mark.created_ms,
                worker=await marks.lock_holder(mark.ledger_id) or "",
                problem=await marks.problem(mark.ledger_id),
            )
            async for mark in marks.all()
            if (not missing or missing in mark.missing_replicas) and not_missing not in mark.missing_replicas
        ]
