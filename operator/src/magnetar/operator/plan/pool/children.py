"""A pool's objects: which are to be written, and which nobody uses any more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.operator.children.bookies import bookie_children
from magnetar.operator.children.configuration import DIGEST_LENGTH
from magnetar.operator.children.naming import TEMPLATE_ANNOTATION
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Apply, Delete
from magnetar.operator.plan.pool.members import PoolView


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChildren:
    """What is wanted."""

    stateful: Manifest
    others: tuple[Manifest, ...]
    template_hash: str


def pool_children(view: PoolView, replicas: int) -> PoolChildren:
    """Everything of the pool. Raises `Misuse` for values that cannot be read."""
    found = bookie_children(view.cluster, view.seen.owner, view.seen.spec, replicas)
    (stateful,) = (manifest for manifest in found if manifest["kind"] == "StatefulSet")
    return PoolChildren(
        stateful=stateful,
        others=tuple(manifest for manifest in found if manifest is not stateful),
        template_hash=stateful["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION],
    )


def to_apply(view: PoolView, children: PoolChildren) -> list[Apply]:
    """The objects that are not as they should be, the StatefulSet aside."""
    found = view.seen.children.objects
    return [
        Apply(manifest)
        for manifest in children.others
        if not covers(found.get((manifest["kind"], manifest["metadata"]["name"])), manifest)
    ]


def covers(found: Any, wanted: Any) -> bool:
    """Whether an object has all that is wanted; what else it has is others'."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            name in found and covers(found[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(covers(one, other) for one, other in zip(found, wanted, strict=True))
        )
    return bool(found == wanted)


def leftovers(view: PoolView, children: PoolChildren) -> list[Delete]:
    """Configurations that neither a pod nor the StatefulSet has. To be asked when all pods are of the newest template;
    the operator makes older ones again should the resource go back to them."""
    names = {manifest["metadata"]["name"] for manifest in children.others}
    names |= {name for pod in view.pods for name in pod.config_maps}
    pattern = re.compile(re.escape(view.name) + rf"-[0-9a-f]{{{DIGEST_LENGTH}}}")
    owner = view.seen.owner.uid
    return [
        Delete(kind, name, manifest["metadata"]["uid"], reason="nothing uses it")
        for (kind, name), manifest in sorted(view.seen.children.objects.items())
        if kind == "ConfigMap"
        and name not in names
        and pattern.fullmatch(name)
        and any(reference.get("uid") == owner for reference in manifest["metadata"].get("ownerReferences") or ())
        and not manifest["metadata"].get("deletionTimestamp")
    ]
