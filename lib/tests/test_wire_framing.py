from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.wire.errors import FrameTooLarge
from magnetar.wire.framing import (
    FRAMES_AT_ONCE,
    LENGTH_BYTES,
    MEMORY_BYTES,
    MEMORY_KEPT_BYTES_MAX,
    FrameBuffer,
    FrameSplitter,
    frame,
)
from magnetar.wire.pulsar.frame import client_splitter


def frames_of(splitter: FrameSplitter, chunks: list[bytes]) -> list[bytes]:
    frames: list[bytes] = []
    for chunk in chunks:
        buffer, bounds = splitter.feed(chunk)
        frames += [buffer[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    return frames


def frames_received(frames: FrameBuffer, chunks: list[bytes]) -> list[bytes]:
    """As the kernel would put them: each chunk into as many rooms as it takes."""
    found: list[bytes] = []
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            room = frames.room()
            part = chunk[at : at + len(room)]
            room[: len(part)] = part
            buffer, bounds = frames.received(len(part))
            found += [buffer[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
            at += len(part)
    return found


@given(bodies=st.lists(st.binary(max_size=40), max_size=8), cuts=st.lists(st.integers(0, 400), max_size=10))
def test_any_chunking_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(body) for body in bodies)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert frames_of(FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX), chunks) == bodies
    assert frames_of(FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX), [stream]) == bodies
    assert frames_of(FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX), [bytes([byte]) for byte in stream]) == bodies


@given(
    bodies=st.lists(st.binary(max_size=40), max_size=12),
    cuts=st.lists(st.integers(0, 600), max_size=10),
    served=st.lists(st.integers(0, 4), max_size=40),
    frames_max=st.integers(1, 4),
)
def test_frames_that_are_told_a_few_at_a_time_or_put_back_are_the_same_in_the_same_order(
    bodies: list[bytes], cuts: list[int], served: list[int], frames_max: int
) -> None:
    stream = b"".join(frame(body) for body in bodies)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX, frames_max=frames_max)
    takes = iter(served)
    found: list[bytes] = []

    def serve(chunk: bytes) -> None:
        buffer, bounds = splitter.feed(chunk)
        assert len(bounds) <= 2 * frames_max
        count = min(next(takes, frames_max), len(bounds) // 2)
        taken = bounds[: 2 * count]
        found.extend(buffer[start:end] for start, end in zip(taken[::2], taken[1::2], strict=True))
        if 2 * count < len(bounds):
            splitter.put_back(buffer, bounds[2 * count] - LENGTH_BYTES)

    for start, end in itertools.pairwise(edges):
        if splitter.has_more:
            splitter.keep(stream[start:end])
        else:
            serve(stream[start:end])
        unserved = len(stream[:end]) - sum(map(len, found)) - LENGTH_BYTES * len(found)
        assert splitter.pending_bytes <= 2 * unserved, "what was served is let go of"
    while splitter.has_more:
        serve(b"")
    assert found == bodies
    assert splitter.pending_bytes == 0


def test_of_a_read_of_small_frames_few_bounds_are_in_memory() -> None:
    """Bounds of 15 000 frames took six times the read's bytes."""
    stream = frame(bytes(9)) * 20_000
    splitter = client_splitter(100)
    buffer, bounds = splitter.feed(stream)
    assert len(bounds) == 2 * FRAMES_AT_ONCE
    assert buffer is stream, "nor is what waits copied, while it is most of the read"
    assert splitter.pending_bytes == len(stream)


def test_a_whole_read_is_not_copied() -> None:
    chunk = frame(b"one") + frame(b"two")
    buffer, bounds = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX).feed(chunk)
    assert buffer is chunk
    assert bounds == [4, 7, 11, 14]


def test_a_large_frame_in_many_parts_is_joined_once() -> None:
    splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)
    stream = frame(bytes(5_000_000))
    copied = 0
    for at in range(0, len(stream), 16_384):
        buffer, bounds = splitter.feed(stream[at : at + 16_384])
        copied += len(buffer) if bounds else 0
    assert copied == len(stream)


def test_too_large_is_refused_before_its_body_comes() -> None:
    with pytest.raises(FrameTooLarge):
        FrameSplitter(frame_bytes_max=10).feed(b"\x00\x00\x00\x0b")
    assert FrameSplitter(frame_bytes_max=10).feed(frame(bytes(10)))[1] == [4, 14]


@given(
    bodies=st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 200_000).map(bytes)), max_size=8),
    cuts=st.lists(st.integers(0, 1_000_000), max_size=10),
)
def test_a_buffer_gives_the_frames_that_a_splitter_gives(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(body) for body in bodies)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert frames_received(FrameBuffer(BOOKKEEPER_FRAME_BYTES_MAX), chunks) == bodies


def test_a_buffer_grows_for_a_large_frame_and_gives_back_what_is_not_needed_often() -> None:
    frames = FrameBuffer(BOOKKEEPER_FRAME_BYTES_MAX)
    assert len(frames.room()) == MEMORY_BYTES
    large = bytes(range(256)) * 4_096
    assert frames_received(frames, [frame(large)]) == [large]
    assert MEMORY_BYTES < len(frames.room()) <= MEMORY_KEPT_BYTES_MAX
    largest = large * 4
    assert frames_received(frames, [frame(largest) + frame(b"x")]) == [largest, b"x"]
    assert len(frames.room()) == MEMORY_BYTES


def test_a_buffer_keeps_its_memory_between_large_frames_that_come_without_a_pause() -> None:
    frames = FrameBuffer(BOOKKEEPER_FRAME_BYTES_MAX)
    large = frame(bytes(MEMORY_KEPT_BYTES_MAX))
    frames_received(frames, [large[:100]])
    memory = frames.room().obj
    assert len(frames_received(frames, [large[100:] + large[:2], large[2:] + large[:100]])) == 2
    assert frames.room().obj is memory


def test_a_buffer_refuses_what_is_too_large_before_its_body_comes() -> None:
    with pytest.raises(FrameTooLarge):
        frames_received(FrameBuffer(frame_bytes_max=10), [b"\x00\x00\x00\x0b"])
    assert frames_received(FrameBuffer(frame_bytes_max=10), [frame(bytes(10))]) == [bytes(10)]


@pytest.mark.parametrize("begin", [b"HTTP/1.1 400 Bad Request", b"GET / HTTP/1.1"])
@pytest.mark.parametrize("of_many", [False, True], ids=["splitter", "buffer"])
def test_of_http_it_is_said_what_is_true_of_brokers_and_bookies(begin: bytes, *, of_many: bool) -> None:
    """Bookies have no admin API."""
    buffer = FrameBuffer(5_000_000)
    buffer.room()[: len(begin)] = begin
    with pytest.raises(FrameTooLarge, match=r"speaks HTTP: is it a port for HTTP\?$"):
        _ = buffer.received(len(begin)) if of_many else FrameSplitter(5_000_000).feed(begin)
