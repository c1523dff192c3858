"""What the operator may do: the least that its work needs. The chart's roles are held to this by a test."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.resources.common import GROUP
from magnetar.operator.settings import LEASE_NAME

_SEE: Final = ("list", "watch")
_MAKE: Final = ("create", "patch")

_RULES: Final = (
    # Its own resources: people write them, the operator tells their status. It makes the default pool of bookies,
    # and scales pools whose autoscaling is on.
    (GROUP, ("pulsarclusters",), ("get", *_SEE, "patch")),
    (GROUP, ("bookies",), ("get", *_SEE, *_MAKE, "delete")),
    (GROUP, ("pulsarclusters/status", "bookies/status"), ("patch",)),
    # To set owner references that hold the owner's deletion back.
    (GROUP, ("pulsarclusters/finalizers", "bookies/finalizers"), ("update",)),
    # What they are made of is listed by its labels, never got by name.
    ("apps", ("statefulsets", "deployments"), (*_SEE, *_MAKE, "delete")),
    ("batch", ("jobs",), (*_SEE, *_MAKE, "delete")),
    ("", ("configmaps", "services"), (*_SEE, *_MAKE, "delete")),
    # Of Secrets it only makes the control ports' token, once, and reads it; and looks at those that resources name.
    ("", ("secrets",), ("get", "create")),
    # Pods are deleted to restart them, and annotated to say which broker goes first.
    ("", ("pods",), (*_SEE, "patch", "delete")),
    ("", ("persistentvolumeclaims",), (*_SEE, "patch", "delete")),
    # Why pods wait is told by Events alone, which are asked for only of those that give no reason.
    ("", ("events",), ("list", *_MAKE)),
    # These are not watched: each pass looks at them.
    ("policy", ("poddisruptionbudgets",), ("list", *_MAKE, "delete")),
    ("networking.k8s.io", ("networkpolicies",), ("list", *_MAKE, "delete")),
    ("monitoring.coreos.com", ("podmonitors",), ("list", *_MAKE, "delete")),
)

_CLUSTER_RULES: Final = (
    # Whether volumes can grow is a matter of their class.
    ("storage.k8s.io", ("storageclasses",), ("get",)),
    # Watching goes on when a CRD is made anew.
    ("apiextensions.k8s.io", ("customresourcedefinitions",), _SEE),
)


def rules(*, cluster_wide: bool) -> list[dict[str, Any]]:
    """The rules of the role in each namespace; with `cluster_wide` of the ClusterRole, which has more."""
    return [_rule(*each) for each in _RULES + (_CLUSTER_RULES if cluster_wide else ())]


def lease_rules() -> list[dict[str, Any]]:
    """The rules of the role in the operator's own namespace: who may write any Lease anywhere could take over the work
    of Kubernetes' own controllers."""
    leases = ("coordination.k8s.io", ("leases",))
    # What is not there yet has no name to go by.
    return [_rule(*leases, ("create",)), _rule(*leases, ("get", "patch")) | {"resourceNames": [LEASE_NAME]}]


def _rule(group: str, resources: tuple[str, ...], verbs: tuple[str, ...]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
