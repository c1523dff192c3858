"""Large JSON documents, such as other brokers' answers about topics with very many subscriptions."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from magnetar.broker.slices import TimeSlice
from magnetar.core.limits import KIB

LARGE_MEMBER_BYTES: Final = 64 * KIB
"""Of a JSON object: a larger one holds many others, as a topic's subscriptions do. Less takes half a millisecond."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
"""They pass over what is in an object or list, some times as fast as it could be decoded."""


async def decoded_in_turns(body: bytes) -> Any:
    """A JSON document. Of an object the large members are decoded in turns with what clients send. ValueError when it
    is no JSON; None when it is empty."""
    if len(body) <= LARGE_MEMBER_BYTES:
        return json.loads(body) if body else None
    try:
        turn = TimeSlice()
        return {name: await _member(raw, turn) for name, raw in _members.decode(body).items()}
    except msgspec.MsgspecError:
        # It is no object, or no JSON, or a dialect of it: Java's NaN.
        return json.loads(body)


async def _member(raw: msgspec.Raw, turn: TimeSlice) -> Any:
    if turn.over:
        await turn.pause()
    begins = bytes(memoryview(raw)[:1])
    if memoryview(raw).nbytes <= LARGE_MEMBER_BYTES or begins not in (b"{", b"["):
        return msgspec.json.decode(raw)
    if begins == b"[":
        return [await _decoded(each, turn) for each in _elements.decode(raw)]
    return {name: await _decoded(each, turn) for name, each in _members.decode(raw).items()}


async def _decoded(raw: msgspec.Raw, turn: TimeSlice) -> Any:
    if turn.over:
        await turn.pause()
    return msgspec.json.decode(raw)
