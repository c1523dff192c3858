"""What a user is told when brokers refuse or are not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from magnetar.client.errors import is_final
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError, PeerError, Unavailable
from magnetar.spark.errors import AccessRefused, ClusterUnreachable, SparkSourceError, TopicMissing
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.wire.pulsar.errors import PulsarError, ServerError

T = TypeVar("T")

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 2.0
"""Between attempts: a broker that takes over topics needs some seconds."""

HOW_TO_SHOW: Final = "option token, or authPluginClassName and authParams"


def is_missing(error: MagnetarError) -> bool:
    """Whether a broker says that there is no such topic."""
    return isinstance(error, PulsarError) and error.code == ServerError.TOPIC_NOT_FOUND


def user_error(error: MagnetarError, what: str, service_url: str = "") -> SparkSourceError:
    """The error to raise instead. `what` was tried, such as `reading persistent://…`.

    What is no answer of the cluster's, above all a `Misuse`, is a bug and is raised as it is."""
    if isinstance(error, SparkSourceError):
        return error
    if not isinstance(error, (PeerError, Unavailable)):
        raise error
    if isinstance(error, PulsarError):
        if error.code == ServerError.TOPIC_NOT_FOUND:
            return TopicMissing(f"{what}: the topic is not there: {error.message}")
        if error.code == ServerError.AUTHENTICATION_ERROR:
            return AccessRefused(f"{what}: the brokers do not take the credentials ({HOW_TO_SHOW}): {error.message}")
        if error.code == ServerError.AUTHORIZATION_ERROR:
            return AccessRefused(f"{what}: the role lacks a right for this: {error.message}")
    where = f" at service.url {service_url}" if service_url else ""
    return ClusterUnreachable(f"{what}: no broker answers well{where}: {error}")


async def patiently(call: Callable[[], Awaitable[T]], what: str, options: ConnectionOptions) -> T:
    """What `call` gives; tried again for `operation_timeout_seconds` where that may help. Raises as `user_error`."""
    try:
        return await retried(call, options.operation_timeout_seconds)
    except (PulsarError, Unavailable) as error:
        raise user_error(error, what, options.service_url) from error


async def retried(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """What `call` gives; tried again for so long where that may help. Raises the last error."""
    loop = asyncio.get_running_loop()
    deadline_seconds = loop.time() + seconds
    backoff = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, Random())  # noqa: S311 - Pauses, no secrets.
    while True:
        try:
            return await call()
        except (PulsarError, Unavailable, ClusterUnreachable) as error:
            if is_final(error, was_open=False) or loop.time() >= deadline_seconds:
                raise
        await asyncio.sleep(backoff.next_seconds())
