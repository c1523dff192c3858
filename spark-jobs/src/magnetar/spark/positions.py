"""Places in a topic, as offsets name them: readable, and the same in every version of this package."""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.spark.errors import BadOption


class MessagePosition(NamedTuple):
    """The place of one message. Compared as tuples within one topic (one partition). As an offset of Spark's it names
    the first message that was not read yet.

    A message that is not in a batch, and the first of a batch, have batch index 0."""

    ledger_id: int
    entry_id: int
    batch_index: int = 0

    def __str__(self) -> str:
        """`ledger:entry`, with `:batch index` where that is not 0."""
        short = f"{self.ledger_id}:{self.entry_id}"
        return f"{short}:{self.batch_index}" if self.batch_index else short

    @staticmethod
    def parse(text: str) -> MessagePosition:
        """The inverse of `str`. Raises `BadOption`."""
        parts = text.split(":")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3):
            raise BadOption(f"{text!r} is no place in a topic: ledger:entry or ledger:entry:batch index is wanted")
        return MessagePosition(*numbers)

    def next_entry(self) -> MessagePosition:
        """Right behind this message's entry."""
        return MessagePosition(self.ledger_id, self.entry_id + 1)


BEGINNING: Final = MessagePosition(-1, -1)
"""Before everything that a topic holds, whatever has been trimmed: reading from here on is never a loss."""
