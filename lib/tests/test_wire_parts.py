"""Frames that come a few bytes at a time cost hardly more memory than their bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from magnetar.core.limits import KIB
from magnetar.wire.bookkeeper import frame as bookkeeper
from magnetar.wire.parts import JOINED_BYTES_MIN, PARTS_MAX, join_newest
from magnetar.wire.pulsar import frame as pulsar

SIZE = 100 * KIB


@pytest.mark.parametrize("splitter", [pulsar.FrameSplitter(), bookkeeper.FrameSplitter()])
@pytest.mark.parametrize("piece", [1, 7])
def test_small_pieces_of_a_frame_take_little_memory(
    splitter: pulsar.FrameSplitter | bookkeeper.FrameSplitter, piece: int
) -> None:
    body = bytes(range(256)) * (SIZE // 256)
    stream = len(body).to_bytes(4, "big") + body
    tracemalloc.start()
    for at in range(0, len(stream) - piece, piece):
        # As it comes from a socket: a piece of its own, which Python does not share.
        assert splitter.feed(bytes(bytearray(stream[at : at + piece])))[1] == []
        end = at + piece
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < SIZE + 60 * KIB
    assert splitter.pending_bytes == end
    buffer, (start, stop) = splitter.feed(stream[end:])
    assert buffer[start:stop] == body
    assert splitter.pending_bytes == 0


def test_what_is_large_is_not_copied_again() -> None:
    large = bytes(JOINED_BYTES_MIN)
    parts = [large, b"a", large, *[b"b"] * PARTS_MAX]
    joined = join_newest(parts)
    assert joined == [large, b"a", large, b"b" * PARTS_MAX]
    assert joined[0] is large
