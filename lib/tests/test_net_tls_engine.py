"""TLS in memory: what a connection's engine leaves in the buffers that all of a thread share, which is nothing."""

from __future__ import annotations

import ssl
import threading

import pytest
from magnetar.core.limits import KIB, MIB
from magnetar.net.tls_layer.engine import BUFFERS, SEALED_AT_ONCE_BYTES, TlsEngine

from lib.tests.tls_peers import client, sealed, server, shake_hands

WORDS = bytes(range(256)) * 1024


def nothing_is_left() -> bool:
    return BUFFERS.incoming.pending == 0 and BUFFERS.outgoing.pending == 0


def pair() -> tuple[TlsEngine, TlsEngine]:
    here, there = server(), client()
    shake_hands(here, there)
    assert nothing_is_left()
    return here, there


def test_all_connections_of_a_thread_share_two_buffers() -> None:
    one, other = server(), client()
    assert one._incoming is other._incoming is BUFFERS.incoming
    assert one._outgoing is other._outgoing is BUFFERS.outgoing
    of_another: list[object] = []
    thread = threading.Thread(target=lambda: of_another.append(server()._incoming))
    thread.start()
    thread.join()
    assert of_another[0] is not BUFFERS.incoming


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_that_come_in_pieces_of_several_connections_by_turns(
    version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version
    monkeypatch.setattr("lib.tests.tls_peers.client_context", lambda: context)
    pairs = [pair() for _ in range(3)]
    assert {there.tls.version() for _, there in pairs} == {
        "TLSv1.2" if version is ssl.TLSVersion.TLSv1_2 else "TLSv1.3"
    }
    wires = [sealed(there, WORDS[number:]) for number, (_, there) in enumerate(pairs)]
    said = [b"", b"", b""]
    step = 5_003  # Ends nearly always in the middle of a record.
    for at in range(0, max(map(len, wires)), step):
        for number, (here, _) in enumerate(pairs):
            said[number] += here.receive(wires[number][at : at + step])
            assert nothing_is_left()
            assert sealed(here, b"answer") != b""
            assert nothing_is_left()
    assert said == [WORDS, WORDS[1:], WORDS[2:]]


def test_handshakes_by_turns_whose_messages_come_byte_by_byte() -> None:
    pairs = [(server(), client()) for _ in range(2)]
    for _, there in pairs:
        there.receive(b"")
    while not all(here.stands and there.stands for here, there in pairs):
        flights = [(there.take(), here.take()) for here, there in pairs]
        for at in range(max(len(flight) for both in flights for flight in both)):
            for (here, there), (to_here, to_there) in zip(pairs, flights, strict=True):
                for engine, flight in ((here, to_here), (there, to_there)):
                    kept = engine.take()
                    assert engine.receive(flight[at : at + 1]) == b""
                    engine.to_send = kept + engine.to_send
                    assert nothing_is_left()
    for here, there in pairs:
        assert here.receive(sealed(there, b"words")) == b"words"


def test_what_follows_a_damaged_record_is_thrown_away() -> None:
    here, there = pair()
    other, beyond = pair()
    damaged = bytearray(sealed(there, WORDS))
    damaged[100] ^= 1
    with pytest.raises(ssl.SSLError):
        here.receive(bytes(damaged))
    assert nothing_is_left()
    assert other.receive(sealed(beyond, b"unharmed")) == b"unharmed"


def test_what_follows_the_peers_end_is_thrown_away() -> None:
    here, there = pair()
    words = sealed(there, b"last")
    there.end()
    assert nothing_is_left()
    assert here.receive(words + there.take() + b"garbage" * 100) == b"last"
    assert here.peer_has_ended
    assert nothing_is_left()


def test_the_ends_of_both_sides_are_told_though_something_was_on_its_way() -> None:
    here, there = pair()
    here.end()
    assert nothing_is_left()
    on_its_way = sealed(there, WORDS)
    there.receive(here.take())
    assert there.peer_has_ended
    there.end()
    assert here.receive(on_its_way) == WORDS
    assert not here.peer_has_ended
    assert here.receive(there.take()) == b""
    assert here.peer_has_ended


def test_who_ends_in_the_middle_of_the_handshake_has_no_connection() -> None:
    here, there = server(), client()
    there.receive(b"")
    there.take()
    with pytest.raises(ssl.SSLError):
        here.receive(b"\x15\x03\x01\x00\x02\x01\x00")  # An alert: the end.
    assert not here.stands
    assert nothing_is_left()


def test_the_shared_buffer_is_as_large_as_one_piece_whatever_is_written() -> None:
    here, there = pair()
    said, rest = b"", memoryview(bytes(MIB))
    while rest:
        taken = here.seal(rest)
        assert taken == min(SEALED_AT_ONCE_BYTES, len(rest))
        assert taken < len(here.to_send) < taken + 16 * KIB
        said += there.receive(here.take())
        assert here.to_send == b""
        rest = rest[taken:]
    assert said == bytes(MIB)


def test_a_call_within_another_ones_is_refused_and_leaves_that_ones_bytes() -> None:
    """The collector of cycles may end a coroutine that closes its connection, whatever is under way."""
    here, there = pair()
    other, _ = pair()
    wire = sealed(there, b"words")
    BUFFERS.incoming.write(wire)
    for call in (lambda: other.receive(b""), lambda: other.seal(b"x"), other.end):
        with pytest.raises(ssl.SSLError, match="another connection of this thread is at work"):
            call()
    assert BUFFERS.incoming.read() == wire
    assert here.receive(wire) == b"words"
