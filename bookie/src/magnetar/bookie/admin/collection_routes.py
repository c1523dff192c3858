"""`/api/v1/bookie/gc…` and `entry_location_compact` (BookKeeper: server/http/service)."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.bookie.admin import json_text
from magnetar.bookie.admin.calls import (
    BAD_REQUEST,
    METHOD_NOT_ALLOWED,
    Call,
    Failed,
    Handler,
    json_answer,
    refuse,
    text_answer,
)
from magnetar.bookie.operations import BookieOperations

EMPTY_BODY: Final = "Empty request body"
NO_COMPACTION: Final = "Not trigger Entry Location RocksDB compact."


async def collect(call: Call) -> web.StreamResponse:
    """PUT, with or without `{"forceMajor": true, "forceMinor": false}`: collect garbage now. GET whether that runs."""
    operations = call.operations
    if call.method == "GET":
        forced = any(collection.force_compacting for collection in operations.collection.collections())
        return json_answer({"is_in_force_gc": _word(forced)})
    if call.method != "PUT":
        refuse(METHOD_NOT_ALLOWED, "Not allowed method. Should be PUT to trigger GC, Or GET to get Force GC state.")
    if call.body is None or not call.body.strip():
        operations.collection.trigger_collection()
    else:
        try:
            body = json_text.read_object(call.body)
        except json_text.BadJson as problem:
            refuse(BAD_REQUEST, f"Failed to handle the request, exception: {problem}")
        operations.collection.trigger_collection(
            force_major=_forced(body, "forceMajor"), force_minor=_forced(body, "forceMinor")
        )
    return json_answer(f"Triggered GC on BookieServer: {operations.bookie.bookie_id}")


def _forced(body: dict[str, object], name: str) -> bool | None:
    if name not in body:
        return None
    value = body[name]
    if value is None:
        refuse(BAD_REQUEST, f"Failed to handle the request, exception: {name} is null")
    return value if isinstance(value, bool) else json_text.is_true(str(value))


async def details(call: Call) -> web.StreamResponse:
    """GET what garbage collection does and has done, of each ledger directory."""
    call.only(
        "GET",
        "Only support GET method to retrieve GC details. If you want to trigger gc, send a POST to gc endpoint.",
    )
    return json_answer(
        [
            {
                "forceCompacting": collection.force_compacting,
                "majorCompacting": collection.major_compacting,
                "minorCompacting": collection.minor_compacting,
                "lastMajorCompactionTime": collection.last_major_compaction_ms,
                "lastMinorCompactionTime": collection.last_minor_compaction_ms,
                "lastEntryLocationCompactionTime": collection.last_location_compaction_ms,
                "majorCompactionCounter": collection.counters.major_compactions,
                "minorCompactionCounter": collection.counters.minor_compactions,
                "entryLocationCompactionCounter": collection.counters.location_compactions,
            }
            for collection in call.operations.collection.collections()
        ]
    )


async def suspend_compaction(call: Call) -> web.StreamResponse:
    """PUT `{"suspendMajor": true, "suspendMinor": true}`; GET what is suspended."""
    if call.method == "GET":
        collections = call.operations.collection.collections()
        return json_answer(
            {
                "isMinorGcSuspended": _word(any(collection.minor_suspended for collection in collections)),
                "isMajorGcSuspended": _word(any(collection.major_suspended for collection in collections)),
            }
        )
    call.only(
        "PUT", "Not found method. Should be PUT to suspend major or minor compaction, Or GET to get compaction state."
    )
    major, minor = _kinds(call, "suspendMajor", "suspendMinor")
    call.operations.collection.suspend_compaction(major=major, minor=minor)
    return json_answer(_told("Suspend", call.operations, major=major, minor=minor))


async def resume_compaction(call: Call) -> web.StreamResponse:
    """PUT `{"resumeMajor": true, "resumeMinor": true}`."""
    call.only(
        "PUT", "Not found method. Should be PUT to resume major or minor compaction, Or GET to get compaction state."
    )
    major, minor = _kinds(call, "resumeMajor", "resumeMinor")
    call.operations.collection.resume_compaction(major=major, minor=minor)
    return json_answer(_told("Resume", call.operations, major=major, minor=minor))


def _kinds(call: Call, major_name: str, minor_name: str) -> tuple[bool, bool]:
    if call.body is None:
        refuse(BAD_REQUEST, EMPTY_BODY)
    body = call.body_object()
    major, minor = body.get(major_name), body.get(minor_name)
    if major is None and minor is None:
        refuse(BAD_REQUEST, f"No {major_name} or {minor_name} params found")
    for value in (major, minor):
        if value is not None and not isinstance(value, bool):
            raise Failed(f"{value!r} is neither true nor false")
    return major is True, minor is True


def _told(verb: str, operations: BookieOperations, *, major: bool, minor: bool) -> str:
    server = f"Bookie Server listening on {operations.bookie.address} with id {operations.bookie.bookie_id}"
    text = f"{verb} majorGC on BookieServer: {server}" if major else ""
    return f"{text}, {verb} minorGC on BookieServer: {server}" if minor else text


async def compact_locations(call: Call) -> web.StreamResponse:
    """PUT `{"entryLocationRocksDBCompact": true, "entryLocations": "path,path"}`; GET which ones are compacted now."""
    operations = call.operations
    known = operations.storage.location_databases()
    if call.method == "GET":
        return json_answer(known)
    if call.method != "PUT":
        refuse(
            METHOD_NOT_ALLOWED,
            "Not found method. Should be PUT to trigger entry location compact,"
            " Or GET to get entry location compact state.",
        )
    if call.body is None or not call.body.strip():
        refuse(BAD_REQUEST, EMPTY_BODY)
    try:
        body = json_text.read_object(call.body)
    except json_text.BadJson as problem:
        refuse(BAD_REQUEST, json_text.write(str(problem)))
    wanted, paths = body.get("entryLocationRocksDBCompact", False), body.get("entryLocations", "")
    if not isinstance(wanted, bool) or not isinstance(paths, str):
        raise Failed("entryLocationRocksDBCompact is true or false, entryLocations paths with commas between them")
    if not wanted:
        return text_answer(NO_COMPACTION)
    if not paths.strip():
        await operations.storage.compact_locations(list(known))
        return json_answer(f"Triggered entry Location RocksDB compact on bookie:{operations.bookie.bookie_id}")
    chosen = sorted(set(paths.strip().split(",")))
    if not set(chosen) <= set(known):
        text = (
            f"Specified trigger compact entryLocations: {paths} is invalid. "
            f"Bookie entry location RocksDB path: [{', '.join(known)}]."
        )
        refuse(BAD_REQUEST, json_text.write(text))
    await operations.storage.compact_locations(chosen)
    return json_answer(f"Triggered entry Location RocksDB: {paths} compact on bookie:{operations.bookie.bookie_id}.")


def _word(value: bool) -> str:
    return "true" if value else "false"


ROUTES: Final[tuple[tuple[str, Handler], ...]] = (
    ("/api/v1/bookie/gc", collect),
    ("/api/v1/bookie/gc_details", details),
    ("/api/v1/bookie/gc/suspend_compaction", suspend_compaction),
    ("/api/v1/bookie/gc/resume_compaction", resume_compaction),
    ("/api/v1/bookie/entry_location_compact", compact_locations),
)
