"""Where a command works. It imports nothing else, for every command has it before it does anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The Kubernetes cluster and namespace that are meant; None: the ones that kubectl would take."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
