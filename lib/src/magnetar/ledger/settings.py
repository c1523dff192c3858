"""What can be set about the ledger client."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.core.limits import MIB
from magnetar.core.setting import setting
from magnetar.ledger.placement import PlacementSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClientSettings:
    """Bounds and times of the ledger client."""

    add_timeout_seconds: float = setting("bookkeeperClientTimeoutInSeconds", 30.0, low=1)
    """An entry that is not confirmed after this long costs the silent bookies their place in the ensemble."""
    change_pause_seconds: float = 0.05
    """The first pause between changes of a ledger's ensemble that bring nothing; doubled up to sixteen times this."""
    pending_bytes_max: int = 256 * MIB
    """Unconfirmed bytes of one ledger that are kept to be sent again. Whoever appends is expected to hold back long
    before; beyond, appends are refused so that a dead quorum cannot eat the memory."""
    quarantine_seconds: float = 30.0
    """How long a bookie that failed an add is avoided for new places, as long as there are others."""
    speculative_read_seconds: float = 2.0
    """A read that takes longer is asked of the next bookie as well [speculativeReadTimeout]."""
    striped_reads_max: int = 64
    """Reads of single entries that one call keeps outstanding on a striped ledger."""
    read_batch_bytes_max: int = 4 * MIB
    """What one batch read asks for; below BookKeeper's frame size, which bounds the answer."""
    local_rack: str = setting("bookkeeperClientLocalRack", "", ours=True)
    """Where this client is, as bookies' racks are written: `/region/rack`. Reads prefer bookies of the same rack, then
    of the same region. Empty: any bookie is as near as another."""
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    """How ensembles are spread over racks, regions and groups."""
