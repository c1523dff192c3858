"""A client made of a socket: says what it is told to, and reads only when asked to."""

from __future__ import annotations

import socket
from types import TracebackType
from urllib.parse import urlsplit

from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandAck, CommandSubscribe

PROTOCOL_VERSION = 21


class RawClient:
    """Blocking; one connection."""

    def __init__(self, service_url: str, receive_buffer_bytes: int = 0) -> None:
        address = urlsplit(service_url)
        assert address.hostname is not None
        assert address.port is not None
        self._socket = socket.socket()
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(20)
        self._socket.connect((address.hostname, address.port))
        connect = BaseCommand(type=BaseCommand.CONNECT)
        connect.connect.client_version = "raw"
        connect.connect.protocol_version = PROTOCOL_VERSION
        self.send(connect)
        assert self.receive().type == BaseCommand.CONNECTED

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, command: BaseCommand) -> None:
        encoded = command.SerializeToString()
        self.send_bytes((len(encoded) + 4).to_bytes(4, "big") + len(encoded).to_bytes(4, "big") + encoded)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_some(self, data: bytes) -> int:
        """As much as goes at once within a tenth of a second; 0 when nothing does."""
        self._socket.settimeout(0.1)
        try:
            return self._socket.send(data)
        except TimeoutError:
            return 0
        finally:
            self._socket.settimeout(20)

    def receive(self) -> BaseCommand:
        """The next command; what follows it in its frame is dropped. TimeoutError after 20 s."""
        frame = self._read(int.from_bytes(self._read(4), "big"))
        size = int.from_bytes(frame[:4], "big")
        return BaseCommand.FromString(frame[4 : 4 + size])

    def receive_until(self, kind: int) -> BaseCommand:
        """The next command of a type; others are dropped, PINGs answered."""
        while True:
            command = self.receive()
            if command.type == kind:
                return command
            if command.type == BaseCommand.PING:
                self.send(BaseCommand(type=BaseCommand.PONG, pong={}))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self._socket.recv(size - len(data))
            if not some:
                raise ConnectionError("closed by the server")
            data += some
        return data

    def subscribe(self, topic: str, name: str, kind: CommandSubscribe.SubType, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription, subscribe.subType = topic, name, kind
        subscribe.consumer_id, subscribe.request_id = consumer_id, 1
        subscribe.initialPosition = CommandSubscribe.Earliest
        self.send(command)
        self.receive_until(BaseCommand.SUCCESS)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = consumer_id, permits
        self.send(command)

    def acknowledge(self, ids: list[tuple[int, int]], request_id: int, consumer_id: int = 1) -> None:
        """With a receipt, which `receive_until(ACK_RESPONSE)` brings."""
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.request_id = consumer_id, request_id
        command.ack.ack_type = CommandAck.Individual
        for ledger_id, entry_id in ids:
            command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        self.send(command)

    def create_producer(self, topic: str, producer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, producer_id, 2
        self.send(command)
        self.receive_until(BaseCommand.PRODUCER_SUCCESS)
