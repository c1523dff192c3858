"""Whatever happens to owners, what a broker has confirmed is there for the next one."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

import pytest
from magnetar.broker.bundles.ownership import ownership_path
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.broker.testing.sessions import ConnectionEnded, MemoryBroker, Received, message
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

logger: Final = logging.getLogger(__name__)

TOPIC = "persistent://public/default/t"
SEND, PRODUCER = pb.BaseCommand.SEND, pb.BaseCommand.PRODUCER

SECONDS = 1.5
STEP_SECONDS = 0.02

ATTEMPTS_MAX = 20
READ_SECONDS = 10.0
"""Longer than reading everything takes."""
PUBLISHED_MIN = 50


class Publisher:
    """Publishes at whatever broker lets it, and notes what was confirmed."""

    def __init__(self, cluster: MemoryCluster, number: int) -> None:
        self.confirmed: list[bytes] = []
        self._cluster = cluster
        self._name = b"p%d" % number
        self._chance = random.Random(number)

    async def run(self, ends: asyncio.Event) -> None:
        sequence = 0
        while not ends.is_set():
            # Also where lookups would not lead: an owner that does not know better must not confirm either.
            client = await self._chance.choice(self._cluster.brokers).connect()
            answer = await client.request(PRODUCER, topic=TOPIC, producer_id=1)
            if answer.name != "PRODUCER_SUCCESS":
                await asyncio.sleep(0.005)
                continue
            try:
                while not ends.is_set():
                    payload = self._name + b"-%d" % sequence
                    client.send(SEND, message(payload, sequence_id=sequence), producer_id=1, sequence_id=sequence)
                    sequence += 1
                    async with asyncio.timeout(1):
                        receipt = await client._take(lambda each: each.name in ("SEND_RECEIPT", "CLOSE_PRODUCER"))
                    if receipt.name == "CLOSE_PRODUCER":
                        break
                    self.confirmed.append(payload)
            except (ConnectionEnded, TimeoutError):
                await client.close()


async def disturb(cluster: MemoryCluster, chance: random.Random, ends: asyncio.Event) -> None:
    """Sessions end, nodes vanish unseen, bundles are moved, split and let go of."""
    while not ends.is_set():
        await asyncio.sleep(STEP_SECONDS * chance.random())
        broker = chance.choice(cluster.brokers)
        context = broker.running.context
        owned = context.ownership.serving(TopicName.parse(TOPIC))
        kind = chance.randrange(5)
        try:
            if kind == 0:
                broker.store.expire_session()
            elif owned is None:
                await context.lookup.find(TopicName.parse(TOPIC), authoritative=True)
            elif kind == 1:
                await context.moves.unload(owned.name)
            elif kind == 2:
                await context.moves.unload(owned.name, destination=other_than(cluster, broker, chance))
            elif kind == 3 and owned.name.range.high - owned.name.range.low > 1_000:
                await context.moves.split(owned.name)
            else:
                context.ownership._by_path.pop(ownership_path(owned.name), None)
                await chance.choice(cluster.brokers).store.delete(ownership_path(owned.name))
        except MagnetarError as error:
            # Refusals are part of it; what matters is what was confirmed.
            logger.info("refused: %s", error)


def other_than(cluster: MemoryCluster, broker: MemoryBroker, chance: random.Random) -> str:
    other = chance.choice([each for each in cluster.brokers if each is not broker])
    broker_id: str = other.running.settings.broker_id
    return broker_id


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_no_two_owners_confirm(seed: int) -> None:
    async with MemoryCluster(3) as cluster:
        client = await cluster.client_of(TOPIC)
        await client.consumer(TOPIC)
        await client.close()
        ends = asyncio.Event()
        publishers = [Publisher(cluster, number) for number in range(3)]
        work = [asyncio.create_task(publisher.run(ends)) for publisher in publishers]
        disturbing = asyncio.create_task(disturb(cluster, random.Random(seed), ends))
        await asyncio.sleep(SECONDS)
        # A slow machine takes longer.
        while sum(len(publisher.confirmed) for publisher in publishers) <= PUBLISHED_MIN:
            await asyncio.sleep(STEP_SECONDS)
        ends.set()
        await asyncio.gather(disturbing, *work)
        for broker in cluster.brokers:
            # Who was kept from hearing hears now; a zombie would show its clients what it knows.
            ownership = broker.running.context.ownership
            await asyncio.gather(*(ownership.still_ours(owned) for owned in ownership.owned().values()))
        await cluster.settled()
        confirmed = {payload for publisher in publishers for payload in publisher.confirmed}
        assert confirmed <= await everything(cluster, confirmed)


async def everything(cluster: MemoryCluster, wanted: set[bytes]) -> set[bytes]:
    """The payloads that the topic holds, read at its owner; whoever is sent away looks it up again."""
    found: set[bytes] = set()
    for _ in range(ATTEMPTS_MAX):
        try:
            client = await cluster.client_of(TOPIC)
            await client.consumer(TOPIC, consumer_id=7)
        except AssertionError as refusal:
            logger.info("not yet: %s", refusal)
            await asyncio.sleep(0.1)
            continue
        client.send(pb.BaseCommand.FLOW, consumer_id=7, messagePermits=1_000_000)
        try:
            async with asyncio.timeout(READ_SECONDS):
                sent_away = False
                while not wanted <= found and not sent_away:
                    received = await client.round_trip()
                    found.update(text_of(each) for each in received if each.name == "MESSAGE")
                    sent_away = any(each.name == "CLOSE_CONSUMER" for each in received)
        except (ConnectionEnded, TimeoutError):
            logger.info("%d of %d read", len(found), len(wanted))
        await client.close()
        if wanted <= found:
            break
    return found


def text_of(received: Received) -> bytes:
    """What the publisher called the message."""
    return received.payload[received.payload.rindex(b"p") :]
