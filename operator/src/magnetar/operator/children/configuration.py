"""Settings as files: ConfigMaps that are never changed, but replaced by others under another name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from magnetar.operator.children.naming import OwnerResource, child
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.resources.common import Scalar

DIGEST_LENGTH: Final = 10
"""The number of hexadecimal digits: enough that two configurations of one component never meet."""

_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


def setting_text(value: Scalar) -> str:
    """A setting's value as it is written in a .conf file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def settings_file(*layers: Mapping[str, Scalar] | None) -> str:
    """A .conf file, sorted by name; what stands further right wins."""
    merged: dict[str, str] = {}
    for layer in layers:
        merged |= {name: setting_text(value) for name, value in (layer or {}).items()}
    return "".join(f"{name}={value.translate(_ESCAPED)}\n" for name, value in sorted(merged.items()))


def digest(content: Any) -> str:
    """A digest of anything that JSON can hold; the same for the same content, in whatever order."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def settings_map(owner: OwnerResource, name: str, its_labels: dict[str, str], files: Mapping[str, str]) -> Manifest:
    """A ConfigMap whose name ends with the digest of its content: pods of the old template keep the old one, and a
    roll back finds it."""
    return child(owner, "ConfigMap", f"{name}-{digest(files)}", its_labels, immutable=True, data=dict(files))
