"""Pulsar's binary protocol as a client speaks it, one connection at a time.

No more is hidden here than framing: whoever asks is told exactly which answer came, or that none did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, cast

from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.command import PING_FRAME, PONG_FRAME
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import decode_command

BROKER_PORT: Final = 6650

CONNECT_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 6.0
"""Longer than a session of the metadata service lasts, so that a takeover ends before its clients lose patience."""
SILENCE_SECONDS: Final = 2.0
"""A broker that says nothing for so long is asked whether it lives, and given up after as long again."""
REDIRECTS_MAX: Final = 8

REFUSED_CONNECTION: Final = (1 << 64) - 1
"""The request id of an ERROR that refuses the whole connection."""


class NoAnswer(Exception):
    """The connection is lost, cannot be had, or its broker is silent: what was asked may have happened, or not."""


class End(Protocol):
    """A producer or consumer on a connection."""

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """A command for it; `rest` is what follows the command in its frame."""
        ...

    def lost(self) -> None:
        """The connection is gone."""
        ...


class Link(asyncio.Protocol):
    """One connection to one broker, or to a proxy."""

    def __init__(self, number: int, host: str, behind: str = "") -> None:
        """`behind`: the broker's host, for a connection through a proxy; empty: none."""
        self.number = number
        """Tells it from all other connections of the run."""
        self.host = host
        self.behind = behind
        self.ended = False
        self.ends: dict[int, End] = {}
        """By the id of the producer or consumer."""
        self._loop = asyncio.get_running_loop()
        self._splitter = command_splitter()
        self._transport: asyncio.Transport | None = None
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._heard = True
        self._silence: asyncio.TimerHandle | None = None

    @property
    def broker(self) -> str:
        """The host of the broker at its other end, also behind a proxy."""
        return self.behind or self.host

    async def open(self) -> None:
        """Connect and shake hands. `NoAnswer`."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._loop.create_connection(lambda: self, self.host, BROKER_PORT)
                behind = f"{self.behind}:{BROKER_PORT}" if self.behind else ""
                self.write(requests.connect(client_version="Simulated", proxy_to_broker_url=behind))
                await self._connected
        except (OSError, TimeoutError) as error:
            self.abort()
            raise NoAnswer(f"{self.host}: {str(error) or type(error).__name__}") from error
        self._silence = self._loop.call_later(SILENCE_SECONDS, self._look)

    def new_id(self) -> int:
        """For a request, a producer or a consumer."""
        self._last_id += 1
        return self._last_id

    def write(self, frame: bytes) -> None:
        """Send a command that has no answer. Nothing happens on a connection that is gone."""
        if self._transport is not None and not self.ended:
            self._transport.write(frame)

    async def ask(self, build: Callable[[int], bytes]) -> Any:
        """Send a request; the body of its answer. `PulsarError` for an error, `NoAnswer`."""
        request_id, answer = self.begin(build)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            raise NoAnswer(f"{self.host} does not answer") from None
        finally:
            self._answers.pop(request_id, None)

    def begin(self, build: Callable[[int], bytes]) -> tuple[int, asyncio.Future[Any]]:
        """Send a request; its id, and its answer, which is an error when the connection ends before. `NoAnswer`."""
        if self.ended:
            raise NoAnswer(f"the connection with {self.host} is lost")
        request_id = self.new_id()
        answer = self._answers[request_id] = self._loop.create_future()
        self.write(build(request_id))
        return request_id, answer

    def abort(self) -> None:
        """Give it up."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        if self.ended:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Some bytes."""
        self._heard = True
        buffer, bounds = self._splitter.feed(data)
        for index in range(0, len(bounds), 2):
            start, end = bounds[index], bounds[index + 1]
            behind = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            self._take(decode_command(buffer, start, end), buffer[behind:end])

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._end()

    # --- what comes

    def _take(self, command: pb.BaseCommand, rest: bytes) -> None:
        answer = requests.answer_of(command)
        if answer is not None:
            self._answered(*answer)
        elif command.type == pb.BaseCommand.PING:
            self.write(PONG_FRAME)
        elif command.type == pb.BaseCommand.CONNECTED:
            if not self._connected.done():
                self._connected.set_result(None)
        elif command.type != pb.BaseCommand.PONG:
            end = self.ends.get(_end_of(command))
            if end is not None:
                end.take(command, rest)

    def _answered(self, request_id: int, body: Any) -> None:
        if request_id == REFUSED_CONNECTION:
            self.abort()
            return
        waiting = self._answers.pop(request_id, None)
        if waiting is None or waiting.done():
            return
        error = requests.error_of(body)
        if error is None:
            waiting.set_result(body)
        else:
            waiting.set_exception(error)

    def _look(self) -> None:
        if not self._heard:
            self.abort()
            return
        self._heard = False
        self.write(PING_FRAME)
        self._silence = self._loop.call_later(SILENCE_SECONDS, self._look)

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        if self._silence is not None:
            self._silence.cancel()
        lost = NoAnswer(f"the connection with {self.host} is lost")
        waiting, self._answers = [self._connected, *self._answers.values()], {}
        for answer in waiting:
            if not answer.done():
                answer.set_exception(lost)
                answer.exception()  # Looked at: nobody may be left to wait for it.
        ends, self.ends = list(self.ends.values()), {}
        for end in ends:
            end.lost()


def _end_of(command: pb.BaseCommand) -> int:
    """Which producer or consumer a command is about; 0: none."""
    match command.type:
        case pb.BaseCommand.MESSAGE:
            return command.message.consumer_id
        case pb.BaseCommand.SEND_RECEIPT:
            return command.send_receipt.producer_id
        case pb.BaseCommand.SEND_ERROR:
            return command.send_error.producer_id
        case pb.BaseCommand.CLOSE_PRODUCER:
            return command.close_producer.producer_id
        case pb.BaseCommand.CLOSE_CONSUMER:
            return command.close_consumer.consumer_id
        case pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
            return command.active_consumer_change.consumer_id
        case _:
            return 0


class Entrances(NamedTuple):
    """The hosts that a client's lookups begin at."""

    hosts: list[str]
    proxies: bool
    """They are proxies: brokers are reached through them alone."""


class Links:
    """The connections of one client program: one to each broker, opened when it is needed."""

    def __init__(self, entrances: Entrances, number: Callable[[], int], choose: Callable[[list[str]], str]) -> None:
        """`choose` says with which entrance a lookup begins."""
        self._entrances = entrances
        self._number = number
        self._choose = choose
        self._links: dict[tuple[str, str], Link] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}

    def begin_at(self, entrances: Entrances) -> None:
        """Lookups begin there from now on."""
        self._entrances = entrances

    async def to(self, host: str, behind: str = "") -> Link:
        """A connection; `behind` a proxy, the broker's host. `NoAnswer`."""
        ways = (host, behind)
        async with self._opening.setdefault(ways, asyncio.Lock()):
            link = self._links.get(ways)
            if link is None or link.ended:
                link = self._links[ways] = Link(self._number(), host, behind)
                await link.open()
            return link

    async def to_broker(self, host: str) -> Link:
        """A connection to a broker, directly or through some proxy. `NoAnswer`."""
        entrances = self._entrances
        return await (self.to(self._choose(entrances.hosts), host) if entrances.proxies else self.to(host))

    async def to_owner(self, topic: str) -> Link:
        """A connection to whoever serves a topic. `NoAnswer`, `PulsarError`."""
        entrances = self._entrances
        link = await self.to(self._choose(entrances.hosts))
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            flag = authoritative
            answer = await link.ask(lambda request: requests.lookup(request, topic, authoritative=flag))  # noqa: B023
            if answer.proxy_through_service_url != entrances.proxies:
                raise NoAnswer(f"{link.host} says the wrong way to {topic}: {answer}")
            host = host_of(answer.brokerServiceUrl)
            link = await (self.to(link.host, host) if entrances.proxies else self.to(host))
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return link
            authoritative = answer.authoritative
        raise NoAnswer(f"{topic} is sent from broker to broker")

    def __iter__(self) -> Any:
        return iter(list(self._links.values()))


def host_of(service_url: str) -> str:
    """The host in `pulsar://host:port`."""
    return service_url.partition("//")[2].partition(":")[0]


__all__ = ["BROKER_PORT", "End", "Entrances", "Link", "Links", "NoAnswer", "PulsarError", "host_of"]
