"""The PROXY protocol's headers, in any chunking."""

from __future__ import annotations

import ipaddress
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.haproxy import BadProxyHeader, ProxiedConnection, ProxyHeaderDecoder, encode_v1, encode_v2

PORTS = st.integers(0, 0xFFFF)


def connections(version: int) -> st.SearchStrategy[ProxiedConnection]:
    addresses = st.ip_addresses(v=4) if version == 4 else st.ip_addresses(v=6)
    return st.builds(ProxiedConnection, addresses.map(str), PORTS, addresses.map(str), PORTS)


PROXIED = connections(4) | connections(6)


def fed(stream: bytes, cuts: list[int]) -> tuple[ProxyHeaderDecoder, bytes]:
    """What a decoder makes of a stream that is cut at these places."""
    decoder = ProxyHeaderDecoder()
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    rest = b"".join(decoder.feed(stream[start:end]) for start, end in itertools.pairwise(places))
    return decoder, rest


@given(PROXIED, st.binary(max_size=40), st.lists(st.integers(0, 500), max_size=6), st.booleans())
def test_a_header_is_taken_off_however_it_comes(
    proxied: ProxiedConnection, payload: bytes, cuts: list[int], second: bool
) -> None:
    header = encode_v2(proxied) if second else encode_v1(proxied)
    decoder, rest = fed(header + payload, cuts)
    assert decoder.done
    assert decoder.proxied == proxied
    assert rest == payload


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 500), max_size=6))
def test_a_stream_without_a_header_is_left_as_it_is(payload: bytes, cuts: list[int]) -> None:
    # A Pulsar frame's size begins with a zero byte.
    decoder, rest = fed(b"\x00" + payload, cuts)
    assert decoder.done
    assert decoder.proxied is None
    assert rest == b"\x00" + payload


@given(
    st.binary(max_size=300),
    st.lists(st.integers(0, 500), max_size=6),
    st.sampled_from([b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"]),
)
def test_rubbish_after_a_headers_beginning_is_refused_or_taken_never_more(
    rubbish: bytes, cuts: list[int], start: bytes
) -> None:
    try:
        decoder, rest = fed(start + rubbish, cuts)
    except BadProxyHeader:
        return
    assert decoder.done or not rest


def test_local_and_unknown_connections_have_no_addresses() -> None:
    for header in (
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ::1 1 2\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x00\x00\x03abc",
    ):
        decoder, rest = fed(header + b"x", [])
        assert (decoder.done, decoder.proxied, rest) == (True, None, b"x")


def test_tlvs_are_passed_over() -> None:
    proxied = ProxiedConnection("10.0.0.1", 1, "10.0.0.2", 2)
    header = bytearray(encode_v2(proxied))
    header[14:16] = (12 + 5).to_bytes(2, "big")
    decoder, rest = fed(bytes(header) + b"\x04\x00\x02ab" + b"x", [20])
    assert (decoder.proxied, rest) == (proxied, b"x")


@given(st.lists(st.integers(0, 70_000), max_size=6), st.booleans())
def test_the_longest_header_is_passed_over_and_not_kept(cuts: list[int], local: bool) -> None:
    proxied = ProxiedConnection("10.0.0.1", 1, "10.0.0.2", 2)
    header = bytearray(encode_v2(proxied))
    header[12] = 0x20 if local else 0x21
    header[14:16] = b"\xff\xff"
    stream = bytes(header) + bytes(0xFFFF - 12)
    decoder, rest = fed(stream[:-1], cuts)
    assert (decoder.done, rest) == (False, b"")
    assert not decoder._buffer
    assert decoder.feed(b"\0x") == b"x"
    assert (decoder.done, decoder.proxied) == (True, None if local else proxied)


def test_no_more_than_a_line_is_copied_of_what_comes_byte_by_byte() -> None:
    decoder = ProxyHeaderDecoder()
    lengths = set()
    for byte in encode_v2(ProxiedConnection("::1", 1, "::2", 2))[:-1]:
        assert decoder.feed(bytes((byte,))) == b""
        lengths.add(len(decoder._buffer))
    assert max(lengths) == 16 + 36 - 1


def test_families_that_differ() -> None:
    mixed = ProxiedConnection("10.0.0.1", 1, "::1", 2)
    assert encode_v1(mixed) == b"PROXY UNKNOWN\r\n"
    decoder, _ = fed(encode_v2(mixed), [])
    assert decoder.proxied is not None
    assert ipaddress.ip_address(decoder.proxied.source_host) == ipaddress.ip_address("::ffff:10.0.0.1")


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1\r\n",
        b"PROXY TCP4 ::1 ::2 1 2\r\n",
        b"PROXY TCP6 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 65536\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 +1 2\r\n",
        b"PROXY TCP4 host 10.0.0.2 1 2\r\n",
        b"PROXY UDP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY TCP6 fe80::1%\x1b[2J ::2 1 2\r\n",
        b"PROXY TCP4 \xff 10.0.0.2 1 2\r\n",
        b"PROXY " + b"x" * 120,
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\x00\x0c" + bytes(12),
        b"\r\n\r\n\0\r\nQUIT\n\x22\x11\x00\x0c" + bytes(12),
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0b" + bytes(11),
    ],
)
def test_bad_headers(header: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        fed(header, [])
