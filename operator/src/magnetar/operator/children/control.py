"""The token by which the operator speaks to the control ports of its own pods."""

from __future__ import annotations

import base64
from typing import Any

from magnetar.operator.children.context import Cluster
from magnetar.operator.children.naming import CONTROL, Manifest, child, labels

TOKEN_KEY = "token"  # noqa: S105  (a key's name)


def token_secret_name(cluster: str) -> str:
    """The Secret that holds it."""
    return f"{cluster}-{CONTROL}"


def token_secret(cluster: Cluster, token: str) -> Manifest:
    """Made once, with what chance gave; never rendered again."""
    data = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    name = token_secret_name(cluster.name)
    return child(cluster.owner, "Secret", name, labels(cluster.name, CONTROL), type="Opaque", data=data)


def control_environment(cluster: str) -> list[dict[str, Any]]:
    """How a pod gets it."""
    reference = {"name": token_secret_name(cluster), "key": TOKEN_KEY}
    return [{"name": "PULSAR_PREFIX_controlToken", "valueFrom": {"secretKeyRef": reference}}]
