"""The token by which the operator speaks to the control ports of its own pods."""

from __future__ import annotations

import base64
from typing import Any, Final

from magnetar.core.errors import SettingError
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.children.naming import CONTROL, child, labels
from magnetar.operator.kubernetes.kinds import Manifest

DIRECTORY: Final = "/control"
TOKEN_KEY: Final = "token"  # noqa: S105  (a key's name)


def token_secret_name(cluster: str) -> str:
    """The Secret that holds it."""
    return f"{cluster}-{CONTROL}"


def token_secret(cluster: ClusterContext, token: str) -> Manifest:
    """Made with what chance gave, where there is none; never rendered again."""
    data = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    name = token_secret_name(cluster.name)
    return child(cluster.owner, "Secret", name, labels(cluster.name, CONTROL), type="Opaque", data=data)


def token_of(secret: Manifest) -> str:
    """What such a Secret holds, empty if nothing; as pods read it, without the line's end that people's editors add.
    `SettingError` for what cannot be sent."""
    content = base64.b64decode((secret.get("data") or {}).get(TOKEN_KEY, ""))
    token = content.decode("ascii", errors="replace").strip()
    if not (token.isascii() and token.isprintable()):
        raise SettingError(
            f"Secret {secret['metadata']['name']}: {TOKEN_KEY} has characters other than printable ASCII"
        )
    return token


def control_environment() -> list[dict[str, Any]]:
    """Where a pod finds it: in a file, for another token is written there while it runs."""
    return [{"name": "PULSAR_PREFIX_controlTokenFile", "value": f"{DIRECTORY}/{TOKEN_KEY}"}]


def control_mount() -> dict[str, Any]:
    """Where the container mounts the control port's files."""
    return {"name": CONTROL, "mountPath": DIRECTORY, "readOnly": True}


def control_volume(cluster: str) -> dict[str, Any]:
    """The pod's volume with the control port's files. The processes' group may read it."""
    return {"name": CONTROL, "secret": {"secretName": token_secret_name(cluster), "defaultMode": 0o440}}
