"""How the operator is run."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

LogFormat: TypeAlias = Literal["auto", "json", "text"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

LEASE_NAME: Final = "magnetar-operator"
"""The name of the Lease that one of several operators holds, in the operator's own namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """All of it; flags and environment variables have the same names."""

    operator_namespace: str
    """Where the operator's own pods and its Lease are."""
    watch_namespaces: Sequence[str] = ()
    """Where it works; none: everywhere."""
    image_repository: str
    version: str
    domain: str
    host: str
    port: int
    """The port of metrics and probes."""
    identity: str
    """The name by which this operator holds the Lease."""

    @property
    def cluster_wide(self) -> bool:
        """Whether it works everywhere."""
        return not self.watch_namespaces


def split_names(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def default_identity(pod: str) -> str:
    """A pod's name is its own; outside of Kubernetes a host may run several."""
    return pod or f"{socket.gethostname()}-{os.getpid()}"
