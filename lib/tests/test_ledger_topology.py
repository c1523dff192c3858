from __future__ import annotations

import pytest
from magnetar.core.errors import PeerError
from magnetar.ledger.topology import UNKNOWN_RACK, UNKNOWN_REGION, decode_places

WRITTEN_BY_PULSAR_ADMIN = (
    b'{"default":{"10.0.0.1:3181":{"rack":"/east/rack-1","hostname":"one"},"10.0.0.2:3181":{"rack":"rack-2",'
    b'"hostname":"two"}},"gold":{"10.0.0.3:3181":{"rack":"/","hostname":""}}}'
)


def test_racks_as_an_administrator_writes_them() -> None:
    places = decode_places(WRITTEN_BY_PULSAR_ADMIN)
    assert places.rack_of("10.0.0.1:3181") == "/east/rack-1"
    assert places.region_of("10.0.0.1:3181") == "east"
    assert places.rack_of("10.0.0.2:3181") == "/rack-2"
    assert places.rack_of("10.0.0.2:3182") == "/rack-2", "another bookie on the same host"
    assert places.rack_of("10.0.0.3:3181") == UNKNOWN_RACK
    assert places.rack_of("named-bookie") == UNKNOWN_RACK
    assert places.region_of("named-bookie") == UNKNOWN_REGION
    assert places.members(["gold", "none"]) == {"10.0.0.3:3181"}
    assert places.grouped() == {"10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181"}


def test_an_empty_node_places_nobody() -> None:
    assert decode_places(b"").rack_of("a:1") == UNKNOWN_RACK
    assert decode_places(b"{}").grouped() == set()


def test_machines_stand_beside_racks() -> None:
    places = decode_places(WRITTEN_BY_PULSAR_ADMIN).with_machines({"a": "here", "b": "here", "c": "there"})
    assert places.rack_of("10.0.0.1:3181") == "/east/rack-1"
    assert places.share_machine("a", ["c", "b"])
    assert not places.share_machine("a", ["c", "unknown"])
    assert not places.share_machine("unknown", ["other", "a"])


@pytest.mark.parametrize("value", [b"[]", b"{", b'{"default": {"a": 3}}'])
def test_what_is_no_such_json_is_told(value: bytes) -> None:
    with pytest.raises(PeerError, match="/bookies"):
        decode_places(value)
