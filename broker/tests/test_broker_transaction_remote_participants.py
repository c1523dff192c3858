"""Telling others of the end of a transaction, on virtual time with a client that answers what a test says."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.api import EndedTransaction
from magnetar.broker.transactions.coordinator_participants import RemoteParticipants
from magnetar.broker.transactions.names import TransactionId
from magnetar.core.topic_name import NamespaceName
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.errors import PulsarError, ServerError

TOPIC = "persistent://public/default/topic"
ENDED = EndedTransaction(TransactionId(7, 300), commit=True, low_water_mark=-1)

new_event_loop = VirtualTimeLoop


class Client:
    """Answers after a while, or refuses."""

    def __init__(self, seconds: float = 0.0, error: PulsarError | None = None) -> None:
        self._seconds = seconds
        self._error = error

    async def ask(self, _: object, __: object) -> None:
        await asyncio.sleep(self._seconds)
        if self._error is not None:
            raise self._error


def participants(client: Client, *, stands: bool = True) -> RemoteParticipants:
    async def namespace_stands(_: NamespaceName) -> bool:
        return stands

    settings = TransactionSettings(enabled=True, requests_at_once_max=1, request_timeout_ms=30_000)
    return RemoteParticipants(lambda: cast(Any, client), settings, namespace_stands)


async def test_who_waits_for_a_place_has_its_time_afterwards() -> None:
    told = participants(Client(seconds=20.0))
    await asyncio.gather(*(told.end_on_partition(ENDED, TOPIC) for _ in range(150)))  # 100 have places.


@pytest.mark.parametrize("code", [ServerError.METADATA_ERROR, ServerError.TOPIC_NOT_FOUND])
async def test_a_namespace_that_is_gone_need_not_hear(code: ServerError) -> None:
    client = Client(error=PulsarError(code, "no"))
    await participants(client, stands=False).end_on_partition(ENDED, TOPIC)
    with pytest.raises(PulsarError):
        await participants(client).end_on_partition(ENDED, TOPIC)


async def test_other_refusals_are_none_of_the_namespace() -> None:
    client = Client(error=PulsarError(ServerError.SERVICE_NOT_READY, "no"))
    with pytest.raises(PulsarError):
        await participants(client, stands=False).end_on_partition(ENDED, TOPIC)
