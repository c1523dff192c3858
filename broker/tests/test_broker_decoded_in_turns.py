"""Documents of other brokers, decoded in turns: the same as at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from magnetar.broker.peers.large_json import LARGE_MEMBER_BYTES, decoded_in_turns

MANY = {f"name {number}": {"count": number, "text": 'ä"{[', "none": None} for number in range(2_000)}


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        5,
        {"small": MANY["name 1"]},
        {"subscriptions": MANY, "publishers": list(MANY.values()), "text": "{" * LARGE_MEMBER_BYTES, "count": 5},
        list(MANY),
        {"not a number": float("nan"), "subscriptions": MANY["name 1"], "many": "x" * LARGE_MEMBER_BYTES},
    ],
)
async def test_a_document_is_the_same_however_it_is_decoded(document: Any) -> None:
    body = json.dumps(document).encode()
    assert json.dumps(await decoded_in_turns(body)) == json.dumps(json.loads(body))


async def test_nothing_is_nothing() -> None:
    assert await decoded_in_turns(b"") is None


@pytest.mark.parametrize("body", [b"{", b"{" * LARGE_MEMBER_BYTES * 2, b'{"a":' + b"5," * LARGE_MEMBER_BYTES + b"}"])
async def test_what_is_no_json_is_told(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        await decoded_in_turns(body)
