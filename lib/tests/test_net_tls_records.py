"""How many TLS records one peer has worked off in a turn, and how many of them may say nothing."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from magnetar.core.limits import KIB
from magnetar.net.tls_layer.engine import READ_BYTES_MAX, TlsEngine
from magnetar.net.tls_layer.records import (
    BYTES_PER_SILENT_RECORD,
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_RECORDS_MAX,
    RECORDS_AT_ONCE_MAX,
    SILENT_RECORDS_MAX,
    RecordBounds,
    RecordWalk,
)
from magnetar.net.tls_layer.transport import MANY_RECORDS, SecuredTransport
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.tls_peers import Bare, Hears, client, sealed, secured, server, server_context, shake_hands
from lib.tests.tls_records import HandmadePeer

new_event_loop = VirtualTimeLoop


def record(size_bytes: int) -> bytes:
    return b"\x17\x03\x03" + size_bytes.to_bytes(2, "big") + b"\xff" * size_bytes


SIZES = (0, 1, 5, 300, 2, 0, 0, 17, 1_000)


@pytest.mark.parametrize("step_bytes", [1, 2, 3, 4, 5, 6, 7, 300, 10_000])
def test_records_are_counted_wherever_they_are_cut(step_bytes: int) -> None:
    wire, walk, counted = b"".join(map(record, SIZES)), RecordWalk(), 0
    for at in range(0, len(wire), step_bytes):
        piece = memoryview(wire)[at : at + step_bytes]
        taken, records = walk.step(piece, 100)
        assert taken == len(piece)
        counted += records
    assert counted == len(SIZES)


@pytest.mark.parametrize("records_max", [1, 2, 3, 8])
def test_a_step_ends_where_a_record_too_many_begins(records_max: int) -> None:
    rest, walk = b"".join(map(record, SIZES)), RecordWalk()
    steps: list[int] = []
    while rest:
        taken, records = walk.step(rest, records_max)
        begun = sum(steps)
        assert rest[:taken] == b"".join(map(record, SIZES[begun : begun + records]))
        steps.append(records)
        rest = rest[taken:]
    assert max(steps) == records_max
    assert sum(steps) == len(SIZES)


def test_the_greeting_of_ssl_2_is_refused() -> None:
    with pytest.raises(ssl.SSLError, match="greeting of SSL 2"):
        server().receive(b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10")


def test_what_is_said_either_way_permits_more_silent_records() -> None:
    bounds = RecordBounds()
    bounds.came(SILENT_RECORDS_MAX, 0, 0)
    bounds.came(2, 1, BYTES_PER_SILENT_RECORD)
    bounds.went(BYTES_PER_SILENT_RECORD)
    bounds.came(1, 0, 0)
    with pytest.raises(ssl.SSLError, match="more than 1000 TLS records that say nothing"):
        bounds.came(1, 0, 0)


@pytest.mark.parametrize(("records", "size_bytes"), [(HANDSHAKE_RECORDS_MAX, 0), (0, HANDSHAKE_BYTES_MAX)])
def test_a_handshake_has_bounds(records: int, size_bytes: int) -> None:
    bounds = RecordBounds()
    bounds.in_handshake(records, size_bytes)
    with pytest.raises(ssl.SSLError, match="a TLS handshake of more than"):
        bounds.in_handshake(1, 1)


def all_heard(engine: TlsEngine, wire: bytes) -> bytes:
    """In as many steps as it takes."""
    said = engine.receive(wire)
    while engine.left:
        said += engine.receive(b"")
    return said


def test_a_handshake_in_very_many_records_fails() -> None:
    here, there = server(), client()
    there.receive(b"")
    hello = there.take()[5:]
    fragments = b"".join(b"\x16\x03\x01\x00\x01" + hello[at : at + 1] for at in range(len(hello)))
    assert len(hello) > HANDSHAKE_RECORDS_MAX
    with pytest.raises(ssl.SSLError, match="a TLS handshake of more than 256 records"):
        all_heard(here, fragments)


def test_an_engine_takes_so_many_records_at_a_time_and_loses_none() -> None:
    here, there = server(), client()
    shake_hands(here, there)
    wire = b"".join(sealed(there, bytes([number % 256])) for number in range(1_000))
    said = [here.receive(wire)]
    while here.left:
        said.append(here.receive(b""))
    assert [len(words) for words in said] == [RECORDS_AT_ONCE_MAX] * 7 + [1_000 - 7 * RECORDS_AT_ONCE_MAX]
    assert b"".join(said) == bytes(number % 256 for number in range(1_000))


def test_records_that_say_little_are_not_silent() -> None:
    here, there = server(), client()
    shake_hands(here, there)
    for _ in range(3 * SILENT_RECORDS_MAX):
        wire = sealed(there, b"x")
        assert here.receive(wire[:7]) == b""
        assert here.receive(wire[7:]) == b"x"


async def handmade(hears: Hears) -> tuple[SecuredTransport, Bare, HandmadePeer]:
    bare, peer = Bare(), HandmadePeer()
    transport = SecuredTransport(bare, hears, server())
    handshake = transport.begin_handshake(60)
    peer.engine.receive(b"")
    while not handshake.done():
        bare.comes(peer.engine.take())
        peer.engine.receive(bare.take())
    peer.begin()
    return transport, bare, peer


class Turns:
    """Counts the loop's turns until the transport below reads again."""

    def __init__(self, bare: Bare) -> None:
        self._bare = bare
        self.count = 0

    async def wait(self) -> int:
        while not self._bare.reading:
            self.count += 1
            assert self.count < 1_000
            await asyncio.sleep(0)
        return self.count


async def test_silent_records_are_worked_off_in_turns_and_too_many_end_the_connection() -> None:
    hears = Hears()
    transport, bare, peer = await handmade(hears)
    bare.comes(b"".join(peer.new_keys() for _ in range(SILENT_RECORDS_MAX - 10)))
    assert not bare.reading
    assert await Turns(bare).wait() == 1 + (SILENT_RECORDS_MAX - 10) // RECORDS_AT_ONCE_MAX
    bare.comes(peer.words(b"still here"))
    assert hears.heard == b"still here"
    answers_bytes = transport.get_write_buffer_size()
    assert 0 < answers_bytes <= 32 * SILENT_RECORDS_MAX  # Though the peer takes none.
    bare.comes(b"".join(peer.new_keys() for _ in range(20)))
    assert bare.aborted
    await asyncio.sleep(0)
    [error] = hears.lost
    assert str(error) == "more than 1000 TLS records that say nothing"


async def test_a_read_of_full_records_is_no_reason_to_pause() -> None:
    hears = Hears()
    _, bare, there = secured(hears)
    wire = sealed(there, bytes(1024 * KIB))
    for at in range(0, len(wire), READ_BYTES_MAX):
        bare.comes(wire[at : at + READ_BYTES_MAX])
        assert bare.reading
    assert hears.heard == bytes(1024 * KIB)


async def test_a_read_of_many_records_is_the_last_one_in_its_turn() -> None:
    hears = Hears()
    _, bare, there = secured(hears)
    bare.comes(b"".join(sealed(there, b"x") for _ in range(MANY_RECORDS + 1)))
    assert hears.heard == b"x" * (MANY_RECORDS + 1)
    assert not bare.reading
    assert await Turns(bare).wait() == 1


async def test_whoever_stops_to_read_is_told_nothing_of_what_is_left() -> None:
    hears = Hears()
    transport, bare, there = secured(hears)
    bare.comes(b"".join(sealed(there, b"x") for _ in range(500)))
    transport.pause_reading()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(hears.heard) == RECORDS_AT_ONCE_MAX
    for _ in range(10):  # In one turn: it is one step all the same.
        transport.resume_reading()
        transport.pause_reading()
    transport.resume_reading()
    assert not bare.reading
    await asyncio.sleep(0)
    assert len(hears.heard) == 2 * RECORDS_AT_ONCE_MAX
    await Turns(bare).wait()
    assert len(hears.heard) == 500


async def test_whoever_stops_to_read_in_the_last_turn_is_not_read_for() -> None:
    hears = Hears()
    transport, bare, there = secured(hears)
    bare.comes(b"".join(sealed(there, b"x") for _ in range(RECORDS_AT_ONCE_MAX)))
    transport.pause_reading()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not bare.reading
    transport.resume_reading()
    assert bare.reading


@pytest.mark.parametrize("how", ["close", "abort", "lost"])
async def test_nothing_of_what_is_left_is_told_after_an_end(how: str) -> None:
    hears = Hears()
    transport, bare, there = secured(hears)
    last = b"".join(sealed(there, b"x") for _ in range(500))
    there.end()
    bare.comes(last + there.take())
    if how == "close":
        transport.pause_reading()
        transport.close()
        for _ in range(4):
            await asyncio.sleep(0)
        assert bare.closing  # The peer's end stood behind all that.
    elif how == "abort":
        transport.abort()
    else:
        bare.close()
    for _ in range(10):
        await asyncio.sleep(0)
    # The transport below is lost in the turn after the next one.
    assert len(hears.heard) == RECORDS_AT_ONCE_MAX * (2 if how == "lost" else 1)
    assert hears.lost == [None]
    assert transport._engine.left == b""
    assert transport._turn is None


async def test_the_peers_end_is_told_after_what_is_left() -> None:
    hears = Hears()
    _, bare, there = secured(hears)
    last = b"".join(sealed(there, b"x") for _ in range(500))
    there.end()
    bare.comes(last + there.take() + b"garbage")
    for _ in range(10):
        await asyncio.sleep(0)
    assert (len(hears.heard), hears.ended, hears.lost) == (500, 1, [None])


async def test_why_a_handshake_fails_is_sent_before_the_end() -> None:
    bare = Bare()
    handshake = SecuredTransport(bare, Hears(), server()).begin_handshake(60)
    bare.comes(b"\x16\x03\x01\x00\x05\x05\x00\x00\x01\x00")  # No message that begins one.
    assert bare.closing
    assert not bare.aborted  # It would be lost. Whoever waits for the handshake aborts.
    assert bare.written[:1] == b"\x15"
    with pytest.raises(ssl.SSLError):
        await handshake


def test_tickets_say_nothing_either() -> None:
    """What servers send to clients."""
    there = TlsEngine(many_tickets(SILENT_RECORDS_MAX + 1), server_side=True, server_name=None)
    here = client()
    shake_hands(here, there)
    wire = there.take()
    with pytest.raises(ssl.SSLError, match="more than 1000 TLS records that say nothing"):
        all_heard(here, wire)


def test_what_is_said_to_the_peer_permits_it_more_silent_records() -> None:
    there = TlsEngine(many_tickets(SILENT_RECORDS_MAX + 1), server_side=True, server_name=None)
    here = client()
    shake_hands(here, there)
    wire = there.take()
    sealed(here, bytes(10 * BYTES_PER_SILENT_RECORD))  # The last records of the handshake count, too.
    assert all_heard(here, wire + sealed(there, b"words")) == b"words"


def test_nothing_behind_the_peers_end_is_kept() -> None:
    here, there = server(), client()
    shake_hands(here, there)
    there.end()
    assert here.receive(there.take() + bytes(READ_BYTES_MAX)) == b""
    assert here.peer_has_ended
    assert here.left == b""


async def test_whoever_resumes_several_times_in_a_turn_has_one_turn() -> None:
    class Stops(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.heard_bytes = 0
            self.room = bytearray(1)

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.room

        def buffer_updated(self, nbytes: int) -> None:
            self.heard_bytes += nbytes
            transport.pause_reading()

    transport, bare, there = secured(Hears())
    stops = Stops()
    transport.set_protocol(stops)
    bare.comes(sealed(there, b"abc"))
    for _ in range(2):
        transport.resume_reading()
        transport.pause_reading()
    transport.resume_reading()
    first = transport._turn
    transport.pause_reading()
    transport.resume_reading()
    assert transport._turn is first
    await asyncio.sleep(0)
    assert stops.heard_bytes == 2


def many_tickets(count: int) -> ssl.SSLContext:
    context = server_context.__wrapped__()
    context.num_tickets = count
    return context
