"""How AutoRecovery is set up. By BookKeeper's names; times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from magnetar.bookie.autorecovery.election import ElectionKind
from magnetar.bookie.autorecovery.replication.settings import DEFAULT_REPLICATION_SETTINGS, ReplicationSettings
from magnetar.core.setting import check_ranges, setting

YEAR_SECONDS: Final = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorSettings:
    """The auditor's part; it matters on the bookie that is elected. An interval of 0 switches a check off."""

    election: ElectionKind = ElectionKind.VOTES
    """The auditor's election to take part in; Pulsar's distribution is set up for votes (`election_of_uri`)."""
    lost_bookie_recovery_delay_seconds: int = setting(
        "lostBookieRecoveryDelay", 0, unit="seconds", low=0, high=YEAR_SECONDS
    )
    """What the cluster's delay is set to if nobody has set it; afterwards the one in the metadata counts."""
    bookie_check_interval_seconds: float = setting(
        "auditorPeriodicBookieCheckInterval", 86_400.0, unit="seconds", low=0, high=YEAR_SECONDS
    )
    """A look for lost bookies without a sign of a loss. With 0 there is one look by each new auditor."""
    all_ledgers_check_interval_seconds: float = setting(
        "auditorPeriodicCheckInterval", 604_800.0, unit="seconds", low=0, high=YEAR_SECONDS
    )
    """Every fragment of every ledger is asked for its first and its last entry."""
    placement_check_interval_seconds: float = setting(
        "auditorPeriodicPlacementPolicyCheckInterval", 0.0, unit="seconds", low=0, high=YEAR_SECONDS
    )
    replicas_check_interval_seconds: float = setting(
        "auditorReplicasCheckInterval", 0.0, unit="seconds", low=0, high=YEAR_SECONDS
    )
    """Every bookie is asked for the list of its entries of every ledger; what is missing is counted and logged."""
    repair_placement: bool = setting("repairedPlacementPolicyNotAdheringBookieEnabled", False)
    """Ledgers that do not adhere to the placement policy are marked, not only counted."""
    overdue_after_seconds: float = setting(
        "underreplicatedLedgerRecoveryGracePeriod", 0.0, unit="seconds", low=0, high=YEAR_SECONDS
    )
    """Ledgers that are marked for longer than this are counted by the placement check; 0: none."""
    verification_percentage: int = setting("auditorLedgerVerificationPercentage", 0, low=0, high=100)
    """How many of a fragment's entries, beside the first and the last one, the check of all ledgers reads."""
    ledgers_in_flight_max: int = setting("auditorMaxNumberOfConcurrentOpenLedgerOperations", 500, low=1, high=100_000)
    """Ledgers that a check works on at a time."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoverySettings:
    """AutoRecovery of one process."""

    auditor: AuditorSettings = AuditorSettings()
    replication: ReplicationSettings = DEFAULT_REPLICATION_SETTINGS

    def of_worker(self) -> ReplicationSettings:
        """A worker looks as closely as the auditor, or it would find nothing where that one has found damage
        (BookKeeper: ReplicationWorker takes auditorLedgerVerificationPercentage as well)."""
        percentage = max(self.replication.verification_percentage, self.auditor.verification_percentage)
        return replace(self.replication, verification_percentage=percentage)
