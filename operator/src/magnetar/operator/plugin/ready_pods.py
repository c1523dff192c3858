"""Which pods may take a connection now: looked up at most once a second, however many ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.operator.children.naming import COMPONENT_LABEL
from magnetar.operator.plugin.collect import cluster_selector
from magnetar.operator.plugin.kubernetes import Kubernetes
from magnetar.operator.plugin.parse import pod_view
from magnetar.operator.plugin.views import PodView

FRESH_SECONDS: Final = 1.0


class ReadyPods:
    """A component's pods."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        namespace: str,
        cluster: str,
        component: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._selector = f"{cluster_selector(cluster)},{COMPONENT_LABEL}={component}"
        self._clock = clock
        self._lock = asyncio.Lock()
        self._seen_at = float("-inf")
        self._pods: list[PodView] = []

    async def names(self) -> Sequence[str]:
        """The names of the pods that are ready and stay."""
        return [pod.name for pod in await self.all() if pod.ready and not pod.deleting]

    async def all(self) -> Sequence[PodView]:
        """All pods of the component, by name."""
        async with self._lock:
            if self._clock() - self._seen_at >= FRESH_SECONDS:
                found = await self._kubernetes.list("Pod", self._namespace, self._selector)
                self._pods = sorted((pod_view(one) for one in found), key=lambda pod: pod.ordinal)
                self._seen_at = self._clock()
            return self._pods
