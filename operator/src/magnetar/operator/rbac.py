"""What the operator may do: the least that its work needs. The chart's roles are held to this by a test."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.resources.common import GROUP

_READ: Final = ("get", "list", "watch")
_MAKE: Final = ("create", "patch")

_RULES: Final = (
    # Its own resources: people write them, the operator tells their status. It makes the default pool of bookies,
    # and scales pools whose autoscaling is on.
    (GROUP, ("pulsarclusters",), (*_READ, "patch")),
    (GROUP, ("bookies",), (*_READ, *_MAKE, "delete")),
    (GROUP, ("pulsarclusters/status", "bookies/status"), ("patch",)),
    # To set owner references that hold the owner's deletion back.
    (GROUP, ("pulsarclusters/finalizers", "bookies/finalizers"), ("update",)),
    ("apps", ("statefulsets", "deployments"), (*_READ, *_MAKE, "delete")),
    ("batch", ("jobs",), (*_READ, *_MAKE, "delete")),
    ("", ("configmaps", "services"), (*_READ, *_MAKE, "delete")),
    # Of Secrets it only makes the control ports' token, once, and reads it.
    ("", ("secrets",), ("get", "create")),
    # Pods are deleted to restart them, and annotated to say which broker goes first.
    ("", ("pods",), (*_READ, "patch", "delete")),
    ("", ("persistentvolumeclaims",), (*_READ, "patch", "delete")),
    ("", ("events",), _MAKE),
    ("policy", ("poddisruptionbudgets",), (*_READ, *_MAKE, "delete")),
    ("networking.k8s.io", ("networkpolicies",), (*_READ, *_MAKE, "delete")),
    ("monitoring.coreos.com", ("podmonitors",), (*_READ, *_MAKE, "delete")),
    ("coordination.k8s.io", ("leases",), ("get", "create", "update", "patch")),
)

_CLUSTER_RULES: Final = (
    # Whether volumes can grow is a matter of their class.
    ("storage.k8s.io", ("storageclasses",), ("get", "list")),
    # Watching goes on when a CRD is made anew, and namespaces that end are left alone.
    ("apiextensions.k8s.io", ("customresourcedefinitions",), _READ),
    ("", ("namespaces",), _READ),
)


def rules(*, cluster_wide: bool) -> list[dict[str, Any]]:
    """Of the role in each namespace; with `cluster_wide` of the ClusterRole, which has more."""
    wanted = _RULES + (_CLUSTER_RULES if cluster_wide else ())
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)} for group, resources, verbs in wanted
    ]
