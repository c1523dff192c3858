"""The client against a broker that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest
from magnetar.client.addresses import BrokerAddress, parse_service_url
from magnetar.client.client import PulsarClient
from magnetar.client.connection import Authentication
from magnetar.client.errors import ClientClosed, ConnectionFailed, TimedOut
from magnetar.client.message import Message, MessageId, OutgoingMessage, messages_of_entry
from magnetar.client.producer import AccessMode, ClientProducer, ProducerOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.backoff import Backoff
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError
from magnetar.core.topic_name import TopicName
from magnetar.net.endpoints import connect
from magnetar.net.testing import close_server
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.batch import build_batch
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = TopicName.parse("persistent://public/default/t")
QUICK = ClientSettings(backoff_seconds_min=0.001, backoff_seconds_max=0.01)


class FakeBroker:
    """Answers as a broker does, unless the test gave another answer for a type of command."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[pb.BaseCommand] = []
        self.answers: dict[int, Callable[[Any], list[bytes]]] = {}
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self._entry_id = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        await close_server(self._server)
        for writer in self.writers:
            writer.close()
        await self._server.wait_closed()

    def count(self, kind: int) -> int:
        return sum(command.type == kind for command in self.seen)

    def bodies(self, kind: int) -> list[Any]:
        name = pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].name
        return [getattr(command, name) for command in self.seen if command.type == kind]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                size = int.from_bytes(frame[:4], "big")
                command = pb.BaseCommand.FromString(frame[4 : 4 + size])
                self.seen.append(command)
                answer = self.answers.get(command.type, self._usual)
                for part in answer(command):
                    writer.write(part)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _usual(self, command: pb.BaseCommand) -> list[bytes]:
        match command.type:
            case pb.BaseCommand.CONNECT:
                return [connected()]
            case pb.BaseCommand.LOOKUP:
                return [messages.lookup_connect(command.lookupTopic.request_id, self.url)]
            case pb.BaseCommand.PRODUCER:
                return [messages.producer_success(command.producer.request_id, command.producer.producer_name or "p")]
            case pb.BaseCommand.SUBSCRIBE:
                return [messages.success(command.subscribe.request_id)]
            case pb.BaseCommand.CLOSE_PRODUCER:
                return [messages.success(command.close_producer.request_id)]
            case pb.BaseCommand.CLOSE_CONSUMER:
                return [messages.success(command.close_consumer.request_id)]
            case pb.BaseCommand.SEND:
                self._entry_id += 1
                return [receipt(command.send.producer_id, command.send.sequence_id, self._entry_id)]
            case _:
                return []


def connected() -> bytes:
    return messages.connected(
        server_version="fake", protocol_version=21, max_message_size=5 << 20, topic_watchers=False
    )


def receipt(producer_id: int, sequence_id: int, entry_id: int) -> bytes:
    return messages.encode_command(
        pb.BaseCommand(
            type=pb.BaseCommand.SEND_RECEIPT,
            send_receipt=pb.CommandSendReceipt(
                producer_id=producer_id,
                sequence_id=sequence_id,
                message_id=pb.MessageIdData(ledgerId=1, entryId=entry_id),
            ),
        )
    )


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def other() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    await broker.start()
    yield broker
    await broker.stop()


class Clients:
    """Closed in the end, before the brokers."""

    def __init__(self) -> None:
        self.opened: list[PulsarClient] = []

    def __call__(
        self, broker: FakeBroker, settings: ClientSettings = QUICK, authentication: Authentication | None = None
    ) -> PulsarClient:
        client = PulsarClient(lambda: broker.url, SystemClock(), settings, authentication=authentication, rng=Random(1))
        self.opened.append(client)
        return client


@pytest.fixture
async def clients(broker: FakeBroker, other: FakeBroker) -> AsyncIterator[Clients]:
    clients = Clients()
    yield clients
    for client in clients.opened:
        await client.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


async def test_lookups_follow_redirects(broker: FakeBroker, other: FakeBroker, clients: Clients) -> None:
    broker.answers[pb.BaseCommand.LOOKUP] = lambda command: [
        messages.lookup_redirect(command.lookupTopic.request_id, other.url, authoritative=True)
    ]
    producer = await clients(broker).producer(TOPIC)
    await producer.send(OutgoingMessage(b"x"))
    assert other.bodies(pb.BaseCommand.LOOKUP)[0].authoritative
    assert not broker.bodies(pb.BaseCommand.LOOKUP)[0].authoritative
    assert other.count(pb.BaseCommand.SEND) == 1


async def test_endless_redirects_end(broker: FakeBroker, clients: Clients) -> None:
    broker.answers[pb.BaseCommand.LOOKUP] = lambda command: [
        messages.lookup_redirect(command.lookupTopic.request_id, broker.url, authoritative=False)
    ]
    client = clients(broker, ClientSettings(redirects_max=3, operation_timeout_seconds=0.2))
    with pytest.raises(ConnectionFailed, match="redirected 3 times"):
        await client.lookup.broker_of(TOPIC)


async def test_brokers_behind_a_proxy(broker: FakeBroker, clients: Clients) -> None:
    def through_us(command: Any) -> list[bytes]:
        response = pb.CommandLookupTopicResponse(
            request_id=command.lookupTopic.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            brokerServiceUrl="pulsar://hidden:6650",
            proxy_through_service_url=True,
        )
        return [
            messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=response))
        ]

    broker.answers[pb.BaseCommand.LOOKUP] = through_us
    await clients(broker).producer(TOPIC)
    assert [one.proxy_to_broker_url for one in broker.bodies(pb.BaseCommand.CONNECT)] == ["", "hidden:6650"]


async def test_credentials_are_asked_for_each_time(broker: FakeBroker, clients: Clients) -> None:
    tokens = iter([b"first", b"second"])

    def challenge(_: Any) -> list[bytes]:
        data = pb.AuthData(auth_method_name="token", auth_data=b"again")
        command = pb.CommandAuthChallenge(server_version="fake", challenge=data, protocol_version=21)
        return [messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE, authChallenge=command))]

    broker.answers[pb.BaseCommand.CONNECT] = challenge
    broker.answers[pb.BaseCommand.AUTH_RESPONSE] = lambda _: [connected()]
    await clients(broker, authentication=lambda: ("token", next(tokens))).producer(TOPIC)
    assert broker.bodies(pb.BaseCommand.CONNECT)[0].auth_data == b"first"
    assert broker.bodies(pb.BaseCommand.AUTH_RESPONSE)[0].response.auth_data == b"second"


async def test_a_refused_client_does_not_try_again(broker: FakeBroker, clients: Clients) -> None:
    refused = messages.error(0xFFFF_FFFF_FFFF_FFFF, ServerError.AUTHENTICATION_ERROR, "who are you")
    broker.answers[pb.BaseCommand.CONNECT] = lambda _: [refused]
    with pytest.raises(PulsarError, match="who are you"):
        await clients(broker).producer(TOPIC)
    assert broker.count(pb.BaseCommand.CONNECT) == 1


async def test_credentials_that_cannot_be_had(broker: FakeBroker, clients: Clients) -> None:
    def fail() -> tuple[str, bytes]:
        raise OSError("no such file")

    client = clients(broker, ClientSettings(operation_timeout_seconds=0.2), authentication=fail)
    with pytest.raises(TimedOut, match="no such file"):
        await client.producer(TOPIC)


async def test_what_is_over_soon_is_tried_again(broker: FakeBroker, clients: Clients) -> None:
    refusals = [ServerError.SERVICE_NOT_READY, ServerError.METADATA_ERROR]

    def refuse_at_first(command: Any) -> list[bytes]:
        if refusals:
            return [messages.error(command.producer.request_id, refusals.pop(), "later")]
        return [messages.producer_success(command.producer.request_id, "p")]

    broker.answers[pb.BaseCommand.PRODUCER] = refuse_at_first
    await clients(broker).producer(TOPIC)
    assert broker.count(pb.BaseCommand.PRODUCER) == 3


async def test_a_broker_names_the_next_one(broker: FakeBroker, other: FakeBroker, clients: Clients) -> None:
    producer = await clients(broker).producer(TOPIC)
    lookups = broker.count(pb.BaseCommand.LOOKUP)
    closing = pb.CommandCloseProducer(producer_id=producer._id, request_id=0, assignedBrokerServiceUrl=other.url)
    frame = messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=closing))
    broker.writers[0].write(frame)
    await until(lambda: other.count(pb.BaseCommand.PRODUCER) == 1)
    assert broker.count(pb.BaseCommand.LOOKUP) == lookups
    assert other.bodies(pb.BaseCommand.PRODUCER)[0].producer_name == "p"
    assert not other.bodies(pb.BaseCommand.PRODUCER)[0].user_provided_producer_name
    assert other.bodies(pb.BaseCommand.PRODUCER)[0].epoch == 1
    await producer.send(OutgoingMessage(b"x"))
    assert other.count(pb.BaseCommand.SEND) == 1


async def test_who_waits_for_its_turn_goes_where_the_topic_goes(broker: FakeBroker, clients: Clients) -> None:
    def put_off_then_let_go(command: pb.BaseCommand) -> list[bytes]:
        opening = command.producer
        closing = pb.CommandCloseProducer(producer_id=opening.producer_id, request_id=0)
        if broker.count(pb.BaseCommand.PRODUCER) > 1:
            return [messages.producer_success(opening.request_id, "p")]
        return [
            messages.producer_success(opening.request_id, "p", ready=False),
            messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=closing)),
        ]

    broker.answers[pb.BaseCommand.PRODUCER] = put_off_then_let_go
    options = ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    async with asyncio.timeout(30):
        producer = await clients(broker).producer(TOPIC, options)
        await producer.send(OutgoingMessage(b"x"))
    assert broker.count(pb.BaseCommand.PRODUCER) == 2


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\u00e4" * 70, "[::1"])
async def test_a_next_one_that_no_name_can_be(broker: FakeBroker, clients: Clients, host: str) -> None:
    """What the resolver refuses is a broker that cannot be reached, and no end of the producer."""
    producer = await clients(broker).producer(TOPIC)
    closing = pb.CommandCloseProducer(
        producer_id=producer._id, request_id=0, assignedBrokerServiceUrl=f"pulsar://{host}:1"
    )
    frame = messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=closing))
    broker.writers[0].write(frame)
    await until(lambda: broker.count(pb.BaseCommand.PRODUCER) == 2)
    async with asyncio.timeout(30):
        await producer.send(OutgoingMessage(b"x"))


async def test_closed_as_soon_as_open(broker: FakeBroker, clients: Clients) -> None:
    """Answer and CLOSE_PRODUCER come in one piece, before anybody has looked at the answer."""
    rounds = iter(range(2))

    def close_once(command: Any) -> list[bytes]:
        answer = messages.producer_success(command.producer.request_id, "p")
        if next(rounds) == 0:
            return [answer + messages.close_producer(command.producer.producer_id)]
        return [answer]

    broker.answers[pb.BaseCommand.PRODUCER] = close_once
    producer = await clients(broker).producer(TOPIC)
    await producer.send(OutgoingMessage(b"x"))
    assert broker.count(pb.BaseCommand.PRODUCER) == 2


async def test_one_message_is_refused_the_others_are_stored(broker: FakeBroker, clients: Clients) -> None:
    def refuse_second(command: Any) -> list[bytes]:
        send = command.send
        if send.sequence_id == 1:
            return [messages.send_error(send.producer_id, 1, ServerError.NOT_ALLOWED_ERROR, "not this one")]
        return [receipt(send.producer_id, send.sequence_id, send.sequence_id)]

    broker.answers[pb.BaseCommand.SEND] = refuse_second
    producer = await clients(broker).producer(TOPIC)
    sends = [asyncio.create_task(producer.send(OutgoingMessage(b"x"))) for _ in range(3)]
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert results[0] == MessageId(1, 0)
    assert isinstance(results[1], PulsarError)
    assert results[2] == MessageId(1, 2)


async def test_what_was_not_stored_is_sent_again_in_order(broker: FakeBroker, clients: Clients) -> None:
    attempts: list[int] = []

    def fail_once(command: Any) -> list[bytes]:
        send = command.send
        attempts.append(send.sequence_id)
        if len(attempts) <= 3:
            return [messages.send_error(send.producer_id, send.sequence_id, ServerError.PERSISTENCE_ERROR, "later")]
        return [receipt(send.producer_id, send.sequence_id, send.sequence_id)]

    broker.answers[pb.BaseCommand.SEND] = fail_once
    producer = await clients(broker).producer(TOPIC)
    ids = await producer.send_all([OutgoingMessage(b"x") for _ in range(3)])
    assert [message_id.entry_id for message_id in ids] == [0, 1, 2]
    assert attempts[-3:] == [0, 1, 2]


async def test_receipts_out_of_order_start_anew(broker: FakeBroker, clients: Clients) -> None:
    confused = iter([True])

    def answer(command: Any) -> list[bytes]:
        send = command.send
        number = send.sequence_id + 5 if next(confused, False) else send.sequence_id
        return [receipt(send.producer_id, number, 7)]

    broker.answers[pb.BaseCommand.SEND] = answer
    producer = await clients(broker).producer(TOPIC)
    assert (await producer.send(OutgoingMessage(b"x"))).entry_id == 7
    assert broker.count(pb.BaseCommand.CONNECT) == 2


async def test_a_fenced_producer_is_over(broker: FakeBroker, clients: Clients) -> None:
    broker.answers[pb.BaseCommand.SEND] = lambda command: [
        messages.send_error(command.send.producer_id, command.send.sequence_id, ServerError.PRODUCER_FENCED, "out")
    ]
    producer = await clients(broker).producer(TOPIC)
    with pytest.raises(PulsarError, match="out"):
        await producer.send(OutgoingMessage(b"x"))
    with pytest.raises(PulsarError, match="out"):
        await producer.send(OutgoingMessage(b"x"))
    assert isinstance(producer, ClientProducer)


async def test_a_silent_broker_is_given_up(broker: FakeBroker, clients: Clients) -> None:
    producer = await clients(broker, ClientSettings(keep_alive_seconds=0.03, backoff_seconds_min=0.001)).producer(TOPIC)
    await until(lambda: broker.count(pb.BaseCommand.CONNECT) >= 2)
    assert broker.count(pb.BaseCommand.PING) >= 1
    await until(lambda: producer._connection is not None)


async def test_without_a_keep_alive_no_broker_is_asked(broker: FakeBroker, clients: Clients) -> None:
    producer = await clients(broker, ClientSettings(keep_alive_seconds=0)).producer(TOPIC)
    for _ in range(10):
        await producer.send(OutgoingMessage(b"x"))
    assert (broker.count(pb.BaseCommand.CONNECT), broker.count(pb.BaseCommand.PING)) == (1, 0)


async def test_pings_are_answered(broker: FakeBroker, clients: Clients) -> None:
    await clients(broker).producer(TOPIC)
    broker.writers[0].write(messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())))
    await until(lambda: broker.count(pb.BaseCommand.PONG))


@pytest.mark.parametrize("rubbish", [b"\xff" * 20, b"\0\0\0\5\0\0\0\1\x08", b"\0\0\0\1x"])
async def test_rubbish_costs_the_connection(broker: FakeBroker, clients: Clients, rubbish: bytes) -> None:
    producer = await clients(broker).producer(TOPIC)
    broker.writers[0].write(rubbish)
    await until(lambda: broker.count(pb.BaseCommand.CONNECT) == 2)
    await until(lambda: producer._connection is not None)
    await producer.send(OutgoingMessage(b"x"))


async def test_no_answer_in_time(broker: FakeBroker, clients: Clients) -> None:
    broker.answers[pb.BaseCommand.CONNECT] = lambda _: []
    settings = ClientSettings(connect_timeout_seconds=0.03, operation_timeout_seconds=0.1, backoff_seconds_min=0.001)
    with pytest.raises(TimedOut):
        await clients(broker, settings).producer(TOPIC)
    broker.answers = {pb.BaseCommand.LOOKUP: lambda _: []}
    with pytest.raises(TimedOut):
        await clients(broker, ClientSettings(operation_timeout_seconds=0.03)).lookup.broker_of(TOPIC)


async def test_who_waits_for_a_connection_when_the_client_closes_is_told_and_not_cancelled(
    broker: FakeBroker, clients: Clients
) -> None:
    """A task that ends as if it were cancelled tells nobody, and nothing is tried again."""
    broker.answers[pb.BaseCommand.CONNECT] = lambda _: []
    client = clients(broker)
    waiting = asyncio.ensure_future(client.partitions(TOPIC))
    await until(lambda: broker.count(pb.BaseCommand.CONNECT))
    await client.close()
    with pytest.raises(ClientClosed):
        await waiting


async def test_tls_without_settings_is_an_error_and_no_plain_connection(broker: FakeBroker, clients: Clients) -> None:
    broker.url = broker.url.replace("pulsar://", "pulsar+ssl://")
    with pytest.raises(TimedOut, match="wants TLS"):
        await clients(broker, ClientSettings(operation_timeout_seconds=0.2)).producer(TOPIC)
    assert not broker.seen


async def test_no_broker_leads_credentials_from_tls_to_plain_text(broker: FakeBroker, other: FakeBroker) -> None:
    def misled(command: pb.BaseCommand) -> list[bytes]:
        response = pb.CommandLookupTopicResponse(
            request_id=command.lookupTopic.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            brokerServiceUrl=other.url,
            brokerServiceUrlTls=other.url,  # The field for TLS, and no TLS.
        )
        answer = pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=response)
        return [messages.encode_command(answer)]

    broker.answers[pb.BaseCommand.LOOKUP] = misled
    client = PulsarClient(
        lambda: broker.url.replace("pulsar://", "pulsar+ssl://"),
        SystemClock(),
        QUICK,
        authentication=lambda: ("token", b"secret"),
        connect_tls=connect,  # As if it were TLS.
    )
    try:
        with pytest.raises(ConnectionFailed, match="with our credentials"):
            await client.lookup.broker_of(TOPIC)
    finally:
        await client.close()
    assert broker.bodies(pb.BaseCommand.CONNECT)[0].auth_data == b"secret"
    assert not other.seen


def test_service_urls() -> None:
    assert parse_service_url("pulsar://a:1,b") == [BrokerAddress("a", 1), BrokerAddress("b", 6650)]
    assert parse_service_url("pulsar+ssl://[::1]:7") == [BrokerAddress("::1", 7, tls=True)]
    assert parse_service_url("pulsar+ssl://[::1]")[0].port == 6651
    assert BrokerAddress("::1", 7).host_and_port == "[::1]:7"
    for wrong in ("http://a:1", "a:1", "pulsar://", "pulsar://a:x", "pulsar://a:70000", "pulsar://:1"):
        with pytest.raises(SettingError):
            parse_service_url(wrong)


def test_pauses_grow_to_a_maximum() -> None:
    backoff = Backoff(0.1, 1.0, Random(1))
    pauses = [backoff.next_seconds() for _ in range(20)]
    assert all(0.05 * 2**index <= pause <= 0.1 * 2**index for index, pause in enumerate(pauses[:3]))
    assert all(0.5 <= pause <= 1.0 for pause in pauses[5:])
    backoff.reset()
    assert backoff.next_seconds() <= 0.1


def test_parts_of_batches_that_are_done_are_left_out() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    singles = [(pb.SingleMessageMetadata(compacted_out=number == 3), b"%d" % number) for number in range(5)]
    entry = build_batch(metadata, singles)

    def payloads(ack_set: list[int]) -> list[bytes]:
        found: list[Message] = messages_of_entry(entry, MessageId(1, 2), 0, ack_set)
        return [message.payload for message in found]

    assert payloads([]) == [b"0", b"1", b"2", b"4"]
    assert payloads([0b10011]) == [b"0", b"1", b"4"]
    assert payloads([-1]) == [b"0", b"1", b"2", b"4"]
