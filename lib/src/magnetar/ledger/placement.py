"""Which bookies an ensemble is made of. Pure: the candidates, their places and the randomness come from outside.

What is wanted, most important first: no bookie that failed lately; the replicas of an entry (every run of Qw bookies
of the ensemble, wrapping round) in different regions, if the policy knows regions; in different racks. Each place of
the ensemble takes the candidate that adds the fewest clashes with the places that share an entry with it. Apache's
policies walk the topology instead; the ensembles of both adhere to the same rule (BookKeeper:
client/RackawareEnsemblePlacementPolicyImpl, RegionAwareEnsemblePlacementPolicy; Pulsar:
bookie/rackawareness/IsolatedBookieEnsemblePlacementPolicy).

Bookies that say they share a machine never hold copies of one entry, whatever the policy is: they end together. Rather
no ledger than one whose copies are fewer than they seem.
"""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.setting import check_ranges, setting
from magnetar.ledger.api import NotEnoughBookies
from magnetar.ledger.topology import UNKNOWN_RACK, BookieTopology

ATTEMPTS_MAX: Final = 20
"""Random orders that are tried before a rule that must hold is called impossible. Choosing place by place may run into
a corner; that twenty random beginnings all do, although there is a way, is one in many thousand."""

POLICY_METADATA_KEY: Final = "EnsemblePlacementPolicyConfig"
"""In a ledger's custom metadata: the groups that its bookies come from, as JSON (Pulsar: common/policies/data)."""


ISOLATING_POLICY: Final = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
"""Who chooses by these groups, as Apache's clients have to be told."""

EVERY_GROUP: Final = "*"
"""The group of a ledger that may use every bookie; Pulsar's own topics do."""


class Adherence(enum.Enum):
    """Whether an ensemble is as the policy wants it."""

    STRICT = enum.auto()
    """Every entry's replicas are spread as wanted."""
    FAILED = enum.auto()
    """Some entry has its replicas in too few racks or regions."""


_GROUP_PROPERTIES: Final = ("isolationBookieGroups", "secondaryIsolationBookieGroups")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSettings:
    """The placement policy: which bookies may form an ensemble."""

    rack_aware: bool = setting("bookkeeperClientRackawarePolicyEnabled", True)
    region_aware: bool = setting("bookkeeperClientRegionawarePolicyEnabled", False)
    """The first part of a rack's path is its region."""
    racks_per_write_quorum_min: int = setting("bookkeeperClientMinNumRacksPerWriteQuorum", 2, low=1, high=1_000)
    enforce_racks: bool = setting("bookkeeperClientEnforceMinNumRacksPerWriteQuorum", False)
    """Rather no ledger than one in too few racks; bookies of unknown racks are
    not used then."""
    regions_per_write_quorum_min: int = 2
    """Regions that each write quorum must lie in, if `region_aware` (BookKeeper: reppMinimumRegionsForDurability)."""
    isolation_groups: tuple[str, ...] = setting("bookkeeperClientIsolationGroups", ())
    """Groups of bookies from which ensembles are chosen, and from no others; none: from all."""
    secondary_isolation_groups: tuple[str, ...] = setting("bookkeeperClientSecondaryIsolationGroups", ())
    """Used as well when the first ones have too few; then those that are in no group."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 1 <= self.regions_per_write_quorum_min <= 1_000:
            raise SettingError(
                f"reppMinimumRegionsForDurability is out of bounds: {self.regions_per_write_quorum_min}; "
                "1 to 1000 are accepted"
            )


def isolation_of(value: bytes | None, settings: PlacementSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(first groups, secondary groups) of a ledger with this value under `POLICY_METADATA_KEY`; the settings' groups
    when it has none, or one that nobody can read (as Apache's clients do)."""
    if value is not None:
        try:
            properties = json.loads(value).get("properties", {})
            groups = [_names(properties.get(name, "")) for name in _GROUP_PROPERTIES]
        except (ValueError, AttributeError, RecursionError):
            return settings.isolation_groups, settings.secondary_isolation_groups
        return groups[0], groups[1]
    return settings.isolation_groups, settings.secondary_isolation_groups


def isolation_metadata(groups: str, secondary_groups: str) -> bytes:
    """What a ledger has under `POLICY_METADATA_KEY` that is to be on bookies of these groups, names joined by commas
    (Pulsar: `EnsemblePlacementPolicyConfig.encode`)."""
    properties = dict(zip(_GROUP_PROPERTIES, (groups, secondary_groups), strict=True))
    return json.dumps({"policyClass": ISOLATING_POLICY, "properties": properties}).encode()


def _names(joined: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in joined.split(",") if name.strip())


def isolated_candidates(
    candidates: Collection[str],
    places: BookieTopology,
    groups: Sequence[str],
    secondary_groups: Sequence[str],
    ensemble_size: int,
) -> list[str]:
    """The candidates that a ledger of these groups may use, sorted: those of the first groups; if they are too few for
    the ensemble, those of the secondary groups too; if that is not enough, those that are in no group as well (Pulsar
    4.0: IsolatedBookieEnsemblePlacementPolicy)."""
    grouped = places.grouped()
    if not groups or EVERY_GROUP in groups or not grouped:
        return sorted(candidates)
    usable = places.members(groups).intersection(candidates)
    if len(usable) < ensemble_size:
        usable |= places.members(secondary_groups).intersection(candidates)
    if len(usable) < ensemble_size:
        usable |= set(candidates) - grouped
    return sorted(usable)


class EnsemblePlacer:
    """Fills places of one ensemble."""

    def __init__(
        self,
        settings: PlacementSettings,
        places: BookieTopology,
        write_quorum: int,
        rng: random.Random,
        avoided: Collection[str] = (),
    ) -> None:
        """`avoided` bookies are taken only when the others do not suffice: one that failed lately is better than
        none."""
        self._settings = settings
        self._places = places
        self._write_quorum = write_quorum
        self._rng = rng
        self._avoided = avoided

    def fill(self, ensemble: Sequence[str | None], candidates: Collection[str]) -> list[str]:
        """The ensemble with a different candidate in every empty place. Raises `NotEnoughBookies`."""
        empty = [index for index, bookie in enumerate(ensemble) if bookie is None]
        allowed = sorted(set(candidates).difference(bookie for bookie in ensemble if bookie is not None))
        enforced = self._settings.enforce_racks and self._settings.rack_aware
        if enforced:
            allowed = [bookie for bookie in allowed if self._places.rack_of(bookie) != UNKNOWN_RACK]
        if len(allowed) < len(empty):
            placed = " that an administrator has given a rack" if enforced else ""
            raise NotEnoughBookies(
                f"{len(empty)} bookies{placed} are needed, {len(allowed)} of {len(set(candidates))} may be used; "
                "those that are read-only, gone or have just failed are not counted"
            )
        # A bookie that failed lately may be the only one of its rack: the rule is kept rather with it than not at all.
        for avoided in (self._avoided, ()):
            for _ in range(ATTEMPTS_MAX):
                filled = self._fill_once(ensemble, empty, allowed, avoided)
                if filled is not None and (not enforced or self.adherence(filled) is Adherence.STRICT):
                    return filled
        rules = [f"keep the copies of each entry on {self._write_quorum} machines"] if self._places.machines else []
        if enforced:
            rules.append(
                f"put every entry into {self._racks_wanted()} racks, which "
                "bookkeeperClientEnforceMinNumRacksPerWriteQuorum demands"
            )
        raise NotEnoughBookies(
            f"no {len(ensemble)} of the {len(allowed)} bookies that may be used {' and '.join(rules)}"
        )

    def adherence(self, ensemble: Sequence[str]) -> Adherence:
        """Whether every run of Qw bookies is in enough racks and regions, and none shares its machine with another."""
        if self._places.machines and any(
            self._places.share_machine(bookie, self._sharing_entries(ensemble, index))
            for index, bookie in enumerate(ensemble)
        ):
            return Adherence.FAILED
        if not self._settings.rack_aware and not self._settings.region_aware:
            return Adherence.STRICT
        size = len(ensemble)
        width = min(self._write_quorum, size)
        for begin in range(size):
            replicas = [ensemble[(begin + offset) % size] for offset in range(width)]
            if len({self._places.rack_of(bookie) for bookie in replicas}) < self._racks_wanted():
                return Adherence.FAILED
            regions = {self._places.region_of(bookie) for bookie in replicas}
            wanted = min(width, self._settings.regions_per_write_quorum_min)
            if self._settings.region_aware and len(regions) < wanted:
                return Adherence.FAILED
        return Adherence.STRICT

    def _racks_wanted(self) -> int:
        return min(self._write_quorum, self._settings.racks_per_write_quorum_min)

    def _fill_once(
        self, ensemble: Sequence[str | None], empty: Sequence[int], allowed: Sequence[str], avoided: Collection[str]
    ) -> list[str] | None:
        """None when this order leaves nobody for a place whose machine is none of its neighbours'."""
        filled = list(ensemble)
        left = list(allowed)
        self._rng.shuffle(left)
        for index in empty:
            neighbours = self._sharing_entries(filled, index)
            free = left
            if self._places.machines:
                free = [bookie for bookie in left if not self._places.share_machine(bookie, neighbours)]
                if not free:
                    return None
            best = min(free, key=lambda bookie: (bookie in avoided, self._clashes(bookie, neighbours)))
            left.remove(best)
            filled[index] = best
        return [bookie for bookie in filled if bookie is not None]

    def _sharing_entries(self, ensemble: Sequence[str | None], index: int) -> list[str]:
        size = len(ensemble)
        reach = range(1, min(self._write_quorum, size))
        indexes = {(index + step) % size for step in reach} | {(index - step) % size for step in reach}
        found = [ensemble[other] for other in sorted(indexes)]
        return [bookie for bookie in found if bookie is not None]

    def _clashes(self, bookie: str, neighbours: Sequence[str]) -> tuple[int, int]:
        regions = racks = 0
        if self._settings.region_aware:
            region = self._places.region_of(bookie)
            regions = sum(self._places.region_of(other) == region for other in neighbours)
        if self._settings.rack_aware or self._settings.region_aware:
            rack = self._places.rack_of(bookie)
            racks = sum(self._places.rack_of(other) == rack for other in neighbours)
        return regions, racks
