"""What clients were told and what they got: the JSON lines a client program writes, read back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec


class Position(NamedTuple):
    """A message id. Compared by ledger, entry and batch index it gives the order inside one partition."""

    ledger: int
    entry: int
    partition: int
    batch_index: int

    @classmethod
    def parse(cls, text: str) -> Position:
        return cls(*(int(part) for part in text.split(":")))

    @property
    def order(self) -> tuple[int, int, int]:
        return (self.ledger, self.entry, self.batch_index)


class Acknowledged(msgspec.Struct, frozen=True, tag_field="event", tag="acked"):
    """The producer got the receipt for its message `number`."""

    producer: str
    number: int
    id: str
    time_ms: int


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The producer was told that message `number` was not stored."""

    producer: str
    number: int
    error: str
    time_ms: int


class Received(msgspec.Struct, frozen=True, tag_field="event", tag="received"):
    """A consumer was given a message."""

    consumer: int
    producer: str
    number: int
    id: str
    key: str
    digest: str
    redelivery: int
    time_ms: int

    @property
    def position(self) -> Position:
        return Position.parse(self.id)


class Receipt(msgspec.Struct, frozen=True, tag_field="event", tag="receipt"):
    """The consumer's acknowledgement of this id was confirmed by the broker."""

    id: str
    time_ms: int


class Note(msgspec.Struct, frozen=True, tag_field="event", tag="note"):
    """Progress of the program itself: ready, ended, timed out."""

    text: str
    time_ms: int


Event = Acknowledged | Failed | Received | Receipt | Note


def read(path: Path) -> list[Event]:
    """All whole lines, in the order they were written; a line cut short by a kill is dropped."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    return msgspec.json.Decoder(Event).decode_lines(whole)
