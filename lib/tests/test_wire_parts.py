"""Frames that come a few bytes at a time cost hardly more memory than their bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, KIB
from magnetar.wire.framing import FrameSplitter
from magnetar.wire.parts import JOINED_BYTES_MIN, PARTS_MAX, join_newest
from magnetar.wire.pulsar.frame import command_splitter

SIZE = 100 * KIB


@pytest.mark.parametrize("splitter", [command_splitter(), FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)])
@pytest.mark.parametrize("piece", [1, 7])
def test_small_pieces_of_a_frame_take_little_memory(splitter: FrameSplitter, piece: int) -> None:
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
