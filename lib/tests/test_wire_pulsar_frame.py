import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import PeerError
from magnetar.wire.errors import BadFrame, FrameTooLarge
from magnetar.wire.framing import FrameSplitter
from magnetar.wire.pulsar.frame import command_splitter


def framed(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)


def cut(splitter: FrameSplitter, chunk: bytes) -> list[bytes]:
    buffer, bounds = splitter.feed(chunk)
    return [buffer[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]


FRAMES = st.lists(st.binary(min_size=4, max_size=40), max_size=6)


@given(FRAMES, st.lists(st.integers(0, 200), max_size=5), st.binary(max_size=3))
def test_any_chunking_gives_the_same_frames(frames: list[bytes], cuts: list[int], rest: bytes) -> None:
    stream = framed(frames) + rest
    assert cut(command_splitter(), stream) == frames

    single = command_splitter()
    assert [frame for at in range(len(stream)) for frame in cut(single, stream[at : at + 1])] == frames

    places = sorted({0, len(stream), *(place for place in cuts if place < len(stream))})
    parts = [stream[a:b] for a, b in itertools.pairwise(places)]
    chunked = command_splitter()
    assert [frame for part in parts for frame in cut(chunked, part)] == frames


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_garbage_is_frames_or_a_peer_error(chunks: list[bytes]) -> None:
    splitter = command_splitter(1000)
    try:
        for chunk in chunks:
            cut(splitter, chunk)
    except PeerError:
        pass


def test_whole_frames_are_not_copied() -> None:
    stream = framed([b"first", b"second"])
    buffer, bounds = command_splitter().feed(stream)
    assert buffer is stream
    assert bounds == [4, 9, 13, 19]


def test_limits() -> None:
    assert cut(command_splitter(10), framed([bytes(10)])) == [bytes(10)]
    with pytest.raises(FrameTooLarge):
        command_splitter(10).feed(struct.pack(">I", 11))
    with pytest.raises(BadFrame):
        command_splitter(10).feed(struct.pack(">I", 3))


@pytest.mark.parametrize(
    ("begins", "told"), [(b"HTTP/1.1 400", "HTTP"), (b"GET / HT", "HTTP"), (b"\x15\x03\x03\x00\x02", "TLS")]
)
def test_other_protocols_are_told(begins: bytes, told: str) -> None:
    with pytest.raises(FrameTooLarge, match=f"speaks {told}"):
        command_splitter().feed(begins)


def test_a_large_frame_in_small_chunks_is_joined_once() -> None:
    body = bytes(5 * 1024 * 1024)
    stream = framed([body, b"next"])
    splitter = command_splitter()
    seen: list[bytes] = []
    for at in range(0, len(stream), 65536):
        seen += cut(splitter, stream[at : at + 65536])
    assert seen == [body, b"next"]
