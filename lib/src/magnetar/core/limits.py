"""Bounds that more than one component shares, each with its reason."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

PORT_MAX: Final = 65_535

MESSAGE_SIZE_BYTES_MAX: Final = 5 * MIB
"""Pulsar's default `maxMessageSize`; clients learn it from CONNECTED."""

FRAME_PADDING_BYTES: Final = 10 * KIB
"""What a frame may hold beside the message: command, metadata, checksums (`Commands.MESSAGE_SIZE_FRAME_PADDING`)."""

SINGLE_MESSAGE_BYTES_MIN: Final = 6
"""What the smallest message of a batch takes before compression: the size of its metadata, and there its payload's."""

BATCH_MESSAGES_MAX: Final = 1 << 20
"""Messages of one batch: more than an uncompressed message of `MESSAGE_SIZE_BYTES_MAX` can hold. Clients make batches
of 1 000 unless told otherwise."""

ACK_SET_WORDS_MAX: Final = BATCH_MESSAGES_MAX // 64
"""64-bit words of an ack set, which has a bit for each message of a batch."""

assert BATCH_MESSAGES_MAX * SINGLE_MESSAGE_BYTES_MIN > MESSAGE_SIZE_BYTES_MAX

PULSAR_FRAME_BYTES_MAX: Final = MESSAGE_SIZE_BYTES_MAX + FRAME_PADDING_BYTES

CONNECT_FRAME_BYTES_MAX: Final = 128 * KIB
"""A client's frame before it is let in. Tokens and certificates have some kilobytes, a Kerberos ticket 64 KiB, the
longest there is."""

PROXIED_CONNECT_FRAME_BYTES_MAX: Final = 2 * CONNECT_FRAME_BYTES_MAX
"""A CONNECT to a broker: one that a proxy sends has its own credentials beside the client's."""

CLIENT_VERSION_CHARACTERS_MAX: Final = 1_000
"""Kept of what a client calls itself, as long as it is connected; Pulsar's have some thirty letters."""

BOOKKEEPER_FRAME_BYTES_MAX: Final = 5_253_120
"""Bytes of the largest frame of BookKeeper's wire protocol that a bookie takes (`nettyMaxFrameSizeBytes`)."""

assert BOOKKEEPER_FRAME_BYTES_MAX >= PULSAR_FRAME_BYTES_MAX, "a broker must be able to store what it accepted"
