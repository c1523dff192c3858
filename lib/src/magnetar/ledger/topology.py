"""Where bookies stand: racks, regions and groups, as administrators write them into `/bookies`, and machines, as
bookies that share one tell in their registrations.

The node's value is JSON, `{group: {bookie id: {"rack": "/region/rack", "hostname": …}}}`; `pulsar-admin bookies
set-bookie-rack` writes it (Pulsar: bookie/rackawareness/BookieRackAffinityMapping, BookiesRackConfiguration). Pure.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from typing import Final

from magnetar.core.errors import PeerError

PLACES_PATH: Final = "/bookies"
UNKNOWN_RACK: Final = "/default-rack"
"""The rack of every bookie that nobody has placed."""
UNKNOWN_REGION: Final = "UnknownRegion"
_NO_MACHINES: Final[Mapping[str, str]] = {}


def decode_places(value: bytes) -> BookieTopology:
    """The value of `/bookies`. `PeerError` when it is no such JSON."""
    # Not with msgspec: every standalone cluster starts with this module, and loading msgspec takes longer than all of
    # its bookie's start.
    try:
        groups = json.loads(value) if value else {}
        racks = {group: {bookie: _rack(info) for bookie, info in members.items()} for group, members in groups.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise PeerError(f"{PLACES_PATH} does not hold racks of bookies: {error}") from None
    return BookieTopology(racks)


def _rack(info: Mapping[str, object]) -> str:
    rack = info.get("rack")
    if rack is not None and not isinstance(rack, str):
        raise ValueError(f"a rack that is {rack!r}")
    return rack or ""


class BookieTopology:
    """Racks, groups and machines of bookies. Not changed after it was made."""

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, str]] | None = None,
        machines: Mapping[str, str] = _NO_MACHINES,
    ) -> None:
        """Group → bookie id or address → rack, as an administrator wrote it; bookie id → machine, as it registered."""
        self.machines = machines
        self._groups = {group: frozenset(members) for group, members in (groups or {}).items()}
        self._racks: dict[str, str] = {}
        by_host: dict[str, str] = {}
        for _, members in sorted((groups or {}).items()):
            for bookie, rack in sorted(members.items()):
                normal = _normalised(rack)
                if normal:
                    self._racks[bookie] = normal
                    by_host.setdefault(_host(bookie), normal)
        # Apache's resolver asks by host: a bookie shares the rack of whoever is placed on the same host.
        self._racks_by_host = by_host

    def rack_of(self, bookie_id: str) -> str:
        """The rack's whole path, `/region/rack` or `/rack`; `UNKNOWN_RACK` when nobody has said."""
        rack = self._racks.get(bookie_id)
        return rack if rack is not None else self._racks_by_host.get(_host(bookie_id), UNKNOWN_RACK)

    def region_of(self, bookie_id: str) -> str:
        """The first part of the rack's path."""
        rack = self.rack_of(bookie_id)
        return UNKNOWN_REGION if rack == UNKNOWN_RACK else rack.split("/")[1]

    def with_machines(self, machines: Mapping[str, str]) -> BookieTopology:
        """The same racks and groups, and these machines."""
        changed = copy.copy(self)
        changed.machines = machines
        return changed

    def share_machine(self, bookie_id: str, others: Collection[str]) -> bool:
        """Whether a bookie stands on one machine with any of these. One that names no machine stands alone."""
        machine = self.machines.get(bookie_id)
        return machine is not None and any(self.machines.get(other) == machine for other in others)

    def distance(self, bookie_id: str, local_rack: str) -> int:
        """From a place: 0 in its rack, 1 in its region, 2 elsewhere, also of bookies that nobody has placed."""
        local, rack = _normalised(local_rack), self.rack_of(bookie_id)
        if rack == local:
            return 0
        region = local.split("/")[1] if local.count("/") > 1 else None
        return 1 if region is not None and region == self.region_of(bookie_id) else 2

    def members(self, groups: Collection[str]) -> set[str]:
        """The bookies of some groups; unknown groups have none."""
        found: set[str] = set()
        for group in groups:
            found.update(self._groups.get(group, ()))
        return found

    def grouped(self) -> set[str]:
        """The bookies that are in any group."""
        return self.members(self._groups)


def _normalised(rack: str) -> str:
    trimmed = rack.strip().rstrip("/")
    if not trimmed:
        return ""
    return trimmed if trimmed.startswith("/") else f"/{trimmed}"


def _host(bookie_id: str) -> str:
    host, colon, port = bookie_id.rpartition(":")
    return host if colon and port.isdigit() else bookie_id
