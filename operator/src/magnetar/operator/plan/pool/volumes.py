"""Volumes of a pool that are to be larger."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from magnetar.core.errors import Misuse
from magnetar.operator.children.bookies import JOURNAL, LEDGERS
from magnetar.operator.children.volumes import volume_names
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import VOLUME_GROWN, GrowVolume
from magnetar.operator.plan.pool.builder import PlanBuilder, named
from magnetar.operator.plan.pool.members import PoolView
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.quantities import format_bytes, size_bytes


def wanted_sizes(spec: BookieSpec) -> dict[str, int]:
    """Bytes by the names of claim templates. Raises `Misuse` for what is no size."""
    volumes = {JOURNAL: spec.storage.journal, LEDGERS: spec.storage.ledgers}
    return {name: size_bytes(volume.size) for kind, volume in volumes.items() for name in volume_names(kind, volume)}


def plan_growth(view: PoolView, builder: PlanBuilder) -> None:
    """Ask for larger volumes where they are smaller than wanted. Larger ones are left as they are."""
    sizes = wanted_sizes(view.seen.spec)
    fixed: list[str] = []
    growing: list[str] = []
    asked: list[str] = []
    for claim in (claim for member in view.staying for claim in member.claims_kept):
        wanted = sizes.get(claim.volume, 0)
        if wanted <= claim.requested_bytes:
            if 0 < claim.capacity_bytes < claim.requested_bytes:
                growing.append(claim.name)
                if claim.warning:
                    builder.stalled("VolumeNotExpandable", f"{claim.name} does not grow: {claim.warning}")
        elif claim.expandable:
            builder.do(GrowVolume(claim.name, claim.uid, wanted))
            asked.append(f"{claim.name} from {format_bytes(claim.requested_bytes)} to {format_bytes(wanted)}")
            growing.append(claim.name)
        else:
            fixed.append(f"{claim.name} ({claim.storage_class or 'no storage class'})")
    if asked:
        builder.tell(VOLUME_GROWN, named(asked))
    if fixed:
        builder.stalled(
            "VolumeNotExpandable",
            f"the storage class does not let volumes grow: {named(fixed)}. Set allowVolumeExpansion in the "
            "class if its storage can do it; or make another pool with larger volumes and delete this one, which is "
            "drained then",
        )
    if growing:
        builder.waiting("GrowingVolumes", f"{len(growing)} volumes grow, such as {growing[0]}")


def templates_differ(view: PoolView) -> bool:
    """Whether the StatefulSet would make volumes of another size."""
    sizes = wanted_sizes(view.seen.spec)
    found = view.stateful.claim_sizes if view.stateful is not None else {}
    return any(name in sizes and _bytes(size) not in (None, sizes[name]) for name, size in found.items())


def _bytes(size: str) -> int | None:
    try:
        return size_bytes(size)
    except Misuse:
        # Written by others in a form that nobody writes: left as it is.
        return None


def may_be_made_anew(view: PoolView, replicas: int) -> bool:
    """The StatefulSet may be deleted without its pods, which the next one takes over: nothing of it is under way, and
    all pods are there that it counts."""
    stateful = view.stateful
    if stateful is None or stateful.deleting or not stateful.settled or view.hibernated:
        return False
    numbers = [pod.ordinal for pod in view.pods if not pod.deleting]
    steady = numbers == list(range(view.desired)) and stateful.replicas == view.desired == view.wanted == replicas
    sizes = wanted_sizes(view.seen.spec)
    grown = all(
        claim.requested_bytes >= sizes.get(claim.volume, 0) for member in view.members for claim in member.claims
    )
    return steady and grown and view.desired > 0


def with_sizes(manifest: Manifest, sizes: Mapping[str, str]) -> Manifest:
    """A StatefulSet's manifest with the sizes of claims that it has: they cannot be changed in place."""
    found: dict[str, Any] = copy.deepcopy(manifest)
    for template in found["spec"]["volumeClaimTemplates"]:
        if (size := sizes.get(template["metadata"]["name"])) is not None:
            template["spec"]["resources"]["requests"]["storage"] = size
    return found
