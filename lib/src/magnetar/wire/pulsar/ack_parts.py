"""An ACK of very many ids, cut into smaller ones: the time that each takes is bounded, whatever a client sends."""

from __future__ import annotations

from typing import Final

from magnetar.core.limits import KIB
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.command import (
    ABSENT,
    TAG_ACK,
    TAG_ACK_MESSAGE_ID,
    Ack,
    command_end,
    read_ack_message_id,
    set_ack_number,
)
from magnetar.wire.pulsar.errors import BadCommand
from magnetar.wire.pulsar.varint import read_length, read_tag, read_varint, skip_value

ACK_BYTES_AT_ONCE: Final = 16 * KIB
"""A thousand ids, as clients group them, with what is left of their batches; some thousand ids more without."""

FIELDS_AT_ONCE: Final = 4_000


class AckParts:
    """The ACK in `buffer[start:end]`. Its numbers may stand behind its ids, so that it is walked through twice: first
    for them, then for the ids. Both are done by `next`, a bounded piece at each call."""

    def __init__(self, buffer: bytes, start: int, end: int) -> None:
        self._buffer = buffer
        try:
            self._stop = command_end(buffer, start, end)
        except BadProtobuf as error:
            raise BadCommand(f"ACK: {error}") from None
        self._first = self._at = start + 4
        self._inner_end = 0
        """Where the ACK within the command ends; 0 outside of it."""
        self._head = Ack()
        self._seen = False
        self._head_complete = False

    @property
    def over(self) -> bool:
        """Whether all of it was given."""
        return self._head_complete and self._at >= self._stop

    def next(self) -> Ack | None:
        """The next ids, None while the numbers are sought. Only the last part has the request id, as what is answered
        is answered when all are taken. Raises `BadCommand`."""
        try:
            if not self._head_complete:
                self._read_head()
                return None
            return self._read_ids()
        except BadProtobuf as error:
            raise BadCommand(f"ACK: {error}") from None

    def _read_head(self) -> None:
        for _ in range(FIELDS_AT_ONCE):
            if self._at >= self._stop:
                if self._head.consumer_id < 0 or not self._seen:
                    raise BadCommand("ACK without consumer id or type")
                self._head_complete = True
                self._at, self._inner_end = self._first, 0
                return
            tag = self._field()
            if tag == TAG_ACK_MESSAGE_ID:
                _, self._at = read_length(self._buffer, self._at, self._inner_end)
            elif tag and not tag & 7:
                value, self._at = read_varint(self._buffer, self._at, self._inner_end)
                self._seen = set_ack_number(self._head, tag, value) or self._seen
            elif tag:
                self._at = skip_value(self._buffer, self._at, self._inner_end, tag)

    def _read_ids(self) -> Ack:
        ack = Ack()
        head = self._head
        ack.consumer_id, ack.cumulative = head.consumer_id, head.cumulative
        ack.txnid_least_bits, ack.txnid_most_bits = head.txnid_least_bits, head.txnid_most_bits
        ack.validation_error = head.validation_error
        bytes_end = self._at + ACK_BYTES_AT_ONCE
        for _ in range(FIELDS_AT_ONCE):
            if self._at >= self._stop or self._at >= bytes_end:
                break
            tag = self._field()
            if tag == TAG_ACK_MESSAGE_ID:
                start, self._at = read_length(self._buffer, self._at, self._inner_end)
                read_ack_message_id(ack, self._buffer, start, self._at)
            elif tag:
                self._at = skip_value(self._buffer, self._at, self._inner_end, tag)
        ack.request_id = head.request_id if self.over else ABSENT
        return ack

    def _field(self) -> int:
        """The tag of the next field of the ACK, `_at` being behind it; 0 where the ACK begins, or another field of the
        command was stepped over."""
        if self._at < self._inner_end:
            tag, self._at = read_tag(self._buffer, self._at, self._inner_end)
            return tag
        self._inner_end = 0
        tag, self._at = read_tag(self._buffer, self._at, self._stop)
        if tag == TAG_ACK:
            self._at, self._inner_end = read_length(self._buffer, self._at, self._stop)
        else:
            self._at = skip_value(self._buffer, self._at, self._stop, tag)
        return 0
