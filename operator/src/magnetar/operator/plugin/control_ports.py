"""Brokers' and bookies' control ports, reached through the API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, TypeVar

from magnetar.control.errors import ControlRefused, ControlUnavailable
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.operator.children.context import BOOKIE_CONTROL_PORT, BROKER_CONTROL_PORT
from magnetar.operator.children.control import token_of, token_secret_name
from magnetar.operator.plugin.kubernetes import Kubernetes
from magnetar.operator.plugin.port_forward import LOCALHOST, forwarded_to

if TYPE_CHECKING:
    from magnetar.control.broker_client import BrokerControl
    from magnetar.control.client import BookieControl

T = TypeVar("T")

ASKED_AT_ONCE_MAX: Final = 16
"""Pods asked at a time: each costs a connection to the API server."""
ANSWER_SECONDS_MAX: Final = 8.0
"""The limit of one pod's answer, with the way there."""


class ControlPorts:
    """The control ports of one cluster's pods."""

    def __init__(self, kubernetes: Kubernetes, namespace: str, token: str) -> None:
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._token = token

    @classmethod
    async def of(cls, kubernetes: Kubernetes, namespace: str, cluster: str) -> ControlPorts:
        """With the cluster's token, which the user must be allowed to read. `NotPermitted`, `Unavailable`."""
        secret = await kubernetes.get("Secret", namespace, token_secret_name(cluster))
        if secret is None:
            raise Unavailable(f"there is no Secret {token_secret_name(cluster)}: the operator has not made it yet")
        return cls(kubernetes, namespace, token_of(secret))

    def bookie(self, pod: str) -> AbstractAsyncContextManager[BookieControl]:
        """One bookie's. What it answers comes as `ControlRefused`, `ControlUnavailable`."""
        from magnetar.control.client import BookieControl

        return self._control(pod, BOOKIE_CONTROL_PORT, BookieControl.to)

    def broker(self, pod: str) -> AbstractAsyncContextManager[BrokerControl]:
        """One broker's, likewise."""
        from magnetar.control.broker_client import BrokerControl

        return self._control(pod, BROKER_CONTROL_PORT, BrokerControl.to)

    @contextlib.asynccontextmanager
    async def _control(
        self, pod: str, port: int, opened: Callable[..., AbstractAsyncContextManager[T]]
    ) -> AsyncIterator[T]:
        async with (
            forwarded_to(self._kubernetes, self._namespace, pod, port) as way,
            opened(f"{LOCALHOST}:{way.port}", token=self._token) as control,
        ):
            with _named(pod, way.trouble):
                yield control


@contextlib.contextmanager
def _named(pod: str, trouble: Sequence[str]) -> Iterator[None]:
    """Errors that say which pod, not which port of this machine; and why it cannot be reached, not that it cannot."""
    try:
        yield
    except ControlUnavailable as error:
        raise ControlUnavailable(trouble[-1] if trouble else f"{pod} does not answer: {error}") from None
    except ControlRefused as error:
        raise ControlRefused(error.reason, f"{pod}: {error}") from None


async def ask_all(pods: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> tuple[dict[str, T], dict[str, str]]:
    """What each pod answers, and why others do not."""
    places = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
    answers: dict[str, T] = {}
    failures: dict[str, str] = {}

    async def one(pod: str) -> None:
        try:
            async with places, asyncio.timeout(ANSWER_SECONDS_MAX):
                answers[pod] = await ask(pod)
        except TimeoutError:
            failures[pod] = "no answer in time"
        except MagnetarError as error:
            failures[pod] = str(error)

    await asyncio.gather(*(one(pod) for pod in pods))
    return answers, failures
