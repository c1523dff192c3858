"""A transport over TLS, on virtual time and without sockets: what waits, who hears of the end, and when that comes."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from typing import Any

import pytest
from magnetar.core.limits import KIB, MIB
from magnetar.net.tls_layer.engine import TlsEngine
from magnetar.net.tls_layer.transport import CLOSE_SECONDS_MAX, SecuredTransport
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.tls_peers import Bare, Hears, client, sealed, secured, server, server_context

new_event_loop = VirtualTimeLoop

WORDS = bytes(range(256)) * 1024


class HearsByRoom(asyncio.BufferedProtocol):
    """Has memory of its own, and stops to read each time that it is full."""

    def __init__(self, size_bytes: int) -> None:
        self._room = bytearray(size_bytes)
        self.transport: SecuredTransport | None = None
        self.heard = b""
        self.turns = 0
        self.ended = 0
        self.lost = 0

    def get_buffer(self, sizehint: int) -> Any:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.heard += self._room[:nbytes]
        self.turns += 1
        if self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool | None:
        self.ended += 1
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_words_both_ways_and_what_is_known_of_the_other_side() -> None:
    hears = Hears()
    transport, bare, there = secured(hears)
    bare.comes(sealed(there, WORDS))
    assert hears.heard == WORDS
    transport.write(b"answer")
    transport.writelines([b" in", bytearray(b" some"), memoryview(b" parts")])
    assert there.receive(bare.take()) == b"answer in some parts"
    assert transport.get_extra_info("sslcontext") is server_context()
    assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert transport.get_extra_info("cipher")[1] == "TLSv1.3"
    assert transport.get_extra_info("peercert") is None
    assert transport.get_extra_info("compression") is None
    assert transport.get_extra_info("nothing", 7) == 7
    assert not transport.can_write_eof()
    with pytest.raises(NotImplementedError):
        transport.write_eof()


async def test_what_waits_below_is_counted() -> None:
    transport, _, _ = secured(Hears())
    assert transport.get_write_buffer_size() == 0
    transport.write(bytes(MIB))
    assert MIB < transport.get_write_buffer_size() < 1.01 * MIB


async def test_a_handshake_that_takes_too_long_fails_at_its_time() -> None:
    bare, hears = Bare(), Hears()
    transport = SecuredTransport(bare, hears, server())
    began = asyncio.get_running_loop().time()
    with pytest.raises(ConnectionAbortedError, match=r"handshake is taking longer than 7\.0 seconds"):
        await transport.begin_handshake(7.0)
    assert asyncio.get_running_loop().time() == began + 7.0
    assert bare.aborted
    await turn()
    assert len(hears.lost) == 1


async def test_no_timer_of_a_handshake_that_is_finished_is_left() -> None:
    transport, bare, _ = secured(Hears())
    await asyncio.sleep(1_000)
    assert not transport.is_closing()
    assert not bare.closing


@pytest.mark.parametrize("how", ["end", "lost", "garbage"])
async def test_who_goes_during_the_handshake(how: str) -> None:
    bare = Bare()
    handshake = SecuredTransport(bare, Hears(), server()).begin_handshake(60)
    if how == "end":
        protocol = bare.protocol
        assert isinstance(protocol, asyncio.BufferedProtocol)
        assert not protocol.eof_received()
    elif how == "lost":
        bare.close()
    else:
        bare.comes(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ssl.SSLError if how == "garbage" else ConnectionResetError):
        await handshake
    assert bare.closing


async def test_nobody_who_has_stopped_to_read_is_told_anything() -> None:
    hears = HearsByRoom(1_000)
    transport, bare, there = secured(Hears())
    hears.transport = transport
    transport.set_protocol(hears)
    words = WORDS[:10_500]
    bare.comes(sealed(there, words))
    for turns in range(1, 12):
        assert (hears.turns, hears.heard) == (turns, words[: turns * 1_000])
        assert not transport.is_reading()
        assert not bare.reading
        await turn()
        assert hears.turns == turns
        transport.resume_reading()
        assert hears.turns == turns  # Not while somebody calls.
        await turn()
    assert hears.heard == words
    assert bare.reading


async def test_the_peers_end_is_told_after_its_last_words() -> None:
    hears = HearsByRoom(1_000)
    transport, bare, there = secured(Hears())
    hears.transport = transport
    transport.set_protocol(hears)
    last = sealed(there, b"x" * 1_500)
    there.end()
    bare.comes(last + there.take())
    await turn()
    assert (len(hears.heard), hears.ended, hears.lost) == (1_000, 0, 0)
    transport.resume_reading()
    await turn()
    assert (len(hears.heard), hears.ended, hears.lost) == (1_500, 1, 1)


async def test_another_protocol_hears_the_rest() -> None:
    rest = Hears()
    transport, bare, there = secured(Hears())

    class First(HearsByRoom):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            transport.set_protocol(rest)

    first = First(10)
    transport.set_protocol(first)
    bare.comes(sealed(there, b"0123456789abcdef"))
    assert (first.heard, rest.heard) == (b"0123456789", b"abcdef")


async def test_whoever_closes_says_so_and_waits_for_the_peer_to_say_the_same() -> None:
    hears = Hears()
    transport, bare, there = secured(hears)
    transport.pause_reading()
    transport.write(b"last words")
    transport.close()
    transport.write(b"too late")
    assert transport.is_closing()
    assert bare.reading  # Else the peer's end would not come.
    assert there.receive(bare.take()) == b"last words"
    assert there.peer_has_ended
    bare.comes(sealed(there, b"on its way"))
    await asyncio.sleep(CLOSE_SECONDS_MAX - 1)
    assert not bare.is_closing()
    there.end()
    bare.comes(there.take())
    assert bare.is_closing()
    assert not bare.aborted
    await turn()
    assert (hears.heard, hears.lost, hears.ended) == (b"", [None], 0)


@pytest.mark.parametrize("who", ["this side", "peer", "peer without a word"])
async def test_the_end_takes_no_longer_than_its_bound(who: str) -> None:
    """Also where the peer takes nothing: a transport that closes waits for that."""
    hears = Hears()
    transport, bare, there = secured(hears)
    bare._lose = lambda: hears.lost.append(None) if bare.aborted else None  # type: ignore[method-assign]
    transport.write(WORDS)
    if who == "this side":
        transport.close()
    elif who == "peer":
        there.end()
        bare.comes(there.take())
    else:
        protocol = bare.protocol
        assert isinstance(protocol, asyncio.BufferedProtocol)
        assert not protocol.eof_received()
        bare.close()
    await asyncio.sleep(CLOSE_SECONDS_MAX - 1)
    assert not bare.aborted
    assert hears.ended == (who == "peer")
    await asyncio.sleep(1)
    assert bare.aborted


async def test_what_is_no_tls_ends_the_connection_and_its_protocol_hears_why() -> None:
    hears = Hears()
    transport, bare, there = secured(hears)
    damaged = bytearray(sealed(there, b"words"))
    damaged[-1] ^= 1
    bare.comes(bytes(damaged))
    assert bare.aborted
    assert transport.is_closing()
    await turn()
    [error] = hears.lost
    assert isinstance(error, ssl.SSLError)
    assert error.reason == "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    assert hears.heard == b""


class Watched(Hears):
    """Can be referred to weakly."""


async def test_nothing_waits_for_the_collector_of_cycles_after_an_end() -> None:
    gc.collect()
    gc.disable()
    try:
        for how in ("abort", "garbage", "end"):
            transport, bare, there = secured(Watched())
            seen = weakref.ref(transport.get_protocol())
            engine = weakref.ref(transport.get_extra_info("ssl_object"))
            if how == "abort":
                transport.abort()
            elif how == "garbage":
                bare.comes(b"\x17\x03\x03\x00\x20" + bytes(32))
            else:
                there.end()
                bare.comes(there.take())
            await turn()
            assert seen() is None
            del transport, bare
            assert engine() is None
    finally:
        gc.enable()


async def test_whoever_aborts_hears_nothing_more_but_the_end() -> None:
    transport, bare, there = secured(Hears())

    class Leaves(HearsByRoom):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            transport.abort()

    leaves = Leaves(4)
    transport.set_protocol(leaves)
    bare.comes(sealed(there, b"enough of it"))
    await turn()
    assert (leaves.heard, leaves.lost) == (b"enou", 1)


class Reluctant(TlsEngine):
    """Has to receive something before it encrypts, as while a peer wants other keys."""

    waits = False

    def seal(self, data: bytes | bytearray | memoryview) -> int:
        return 0 if self.waits else super().seal(data)


async def test_what_is_written_while_tls_has_to_receive_first_waits_in_its_order() -> None:
    engine = Reluctant(server_context(), server_side=True, server_name=None)
    transport, bare, there = secured(Hears(), engine)
    engine.waits = True
    transport.write(b"one ")
    transport.writelines([b"two ", memoryview(b"three")])
    transport.close()
    assert bare.written == b""
    assert transport.get_write_buffer_size() == len(b"one two three")
    engine.waits = False
    bare.comes(sealed(there, b"?"))
    assert there.receive(bare.take()) == b"one two three"
    assert there.peer_has_ended
    assert transport.get_write_buffer_size() == 0


async def test_what_is_written_when_the_peer_falls_behind_comes_after_what_was_written() -> None:
    transport, bare, there = secured(Hears())

    class Chatters(Hears):
        def pause_writing(self) -> None:
            transport.write(b"end")

    class Full(Bare):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            Bare.write(bare, data)
            if len(bare.written) > MIB:
                bare.write = lambda data: Bare.write(bare, data)  # type: ignore[method-assign]
                protocol = bare.protocol
                assert isinstance(protocol, asyncio.BufferedProtocol)
                protocol.pause_writing()

        def writelines(self, list_of_data: Any) -> None:
            self.write(b"".join(list_of_data))

    full = Full()
    bare.write, bare.writelines = full.write, full.writelines  # type: ignore[method-assign]
    transport.set_protocol(Chatters())
    transport.write(bytes(2 * MIB))
    heard = there.receive(bare.take())
    while there.left:
        heard += there.receive(b"")
    assert heard == bytes(2 * MIB) + b"end"


async def test_pieces_of_one_record_keep_nothing_here() -> None:
    hears = Hears()
    transport, bare, there = secured(hears)
    record = sealed(there, bytes(16 * KIB))
    bare.comes(record[:-1])
    assert (hears.heard, transport._unheard, transport._engine.to_send) == (b"", b"", b"")
    bare.comes(record[-1:])
    assert hears.heard == bytes(16 * KIB)


async def test_a_client_begins_the_handshake() -> None:
    bare = Bare()
    SecuredTransport(bare, Hears(), client()).begin_handshake(60)
    assert bare.written[:1] == b"\x16"
    bare.abort()
    await turn()
