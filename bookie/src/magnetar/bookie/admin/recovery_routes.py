"""`/api/v1/autorecovery/…` (BookKeeper: server/http/service)."""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web
from magnetar.bookie.admin import json_text
from magnetar.bookie.admin.calls import (
    BAD_REQUEST,
    NOT_FOUND,
    Call,
    Failed,
    Handler,
    json_answer,
    refuse,
    text_answer,
)
from magnetar.core.errors import MagnetarError

ONLY_GET: Final = "Not found method. Should be GET method"
ONLY_PUT: Final = "Not found method. Should be PUT method"
BOOKIE_ID: Final = re.compile(r"[a-zA-Z0-9:-_.\-]+")
"""BookKeeper's own rule (net/BookieId); the range from colon to underscore may be a slip, but it is the rule."""


async def status(call: Call) -> web.StreamResponse:
    """GET whether AutoRecovery is on in the cluster; PUT with `enabled` as a parameter switches it."""
    if call.method == "PUT":
        enabled = call.parameters.get("enabled")
        if enabled is None:
            refuse(BAD_REQUEST, f"Param 'enabled' not found in {_java_map(call.parameters)}")
        await call.operations.recovery.enable_auto_recovery(enabled=json_text.is_true(enabled))
    elif call.method != "GET":
        refuse(NOT_FOUND, "Not found method. Should be GET or PUT method")
    return json_answer({"enabled": await call.operations.recovery.auto_recovery_enabled()})


async def recover_bookie(call: Call) -> web.StreamResponse:
    """PUT `{"bookie_src": ["host:port"], "delete_cookie": false}`: copy what a dead bookie had to others."""
    if call.body is None:
        refuse(NOT_FOUND, "No request body provide.")
    try:
        bookies, delete_cookie = _recovery_wanted(call.body)
    except json_text.BadJson as problem:
        refuse(NOT_FOUND, f"ERROR parameters: {problem}")
    if bookies is None:
        raise Failed("there is no bookie_src in the body")
    if call.method != "PUT" or not bookies:
        refuse(NOT_FOUND, ONLY_PUT)
    bookie_id = str(bookies[0])
    if not _is_bookie_id(bookie_id):
        raise Failed(f"{bookie_id!r} is no bookie id")
    call.operations.recovery.recover_bookie(bookie_id, delete_cookie=delete_cookie)
    return text_answer("Success send recovery request command.")


def _recovery_wanted(body: str) -> tuple[list[object] | None, bool]:
    wanted = json_text.read_object(body)
    bookies = wanted.get("bookie_src")
    if set(wanted) - {"bookie_src", "delete_cookie"} or not isinstance(bookies, list | None):
        raise json_text.BadJson
    return bookies, json_text.truth(wanted.get("delete_cookie"))


async def list_underreplicated(call: Call) -> web.StreamResponse:
    """GET the ledgers that are marked; `missingreplica` and `excludingmissingreplica` choose among them,
    `printmissingreplica` adds the bookies that are missing."""
    call.only("GET", ONLY_GET)
    including = call.parameters.get("missingreplica", "").strip()
    excluding = call.parameters.get("excludingmissingreplica", "").strip()
    found: dict[int, list[str]] = {}
    try:
        async for ledger in call.operations.recovery.underreplicated_ledgers():
            missing = ledger.missing_replicas
            if (not including or including in missing) and (not excluding or excluding not in missing):
                found[ledger.ledger_id] = list(missing)
    except MagnetarError as problem:
        refuse(NOT_FOUND, f"Exception when get.{problem}")
    if not found:
        refuse(NOT_FOUND, "No under replicated ledgers found")
    return json_answer(found if "printmissingreplica" in call.parameters else list(found))


async def who_is_auditor(call: Call) -> web.StreamResponse:
    """GET the bookie whose process holds the auditor's lock."""
    call.only("GET", ONLY_GET)
    try:
        auditor = await call.operations.recovery.auditor_bookie_id()
    except MagnetarError as problem:
        refuse(NOT_FOUND, f"Exception when get.{problem}")
    if not auditor:
        refuse(NOT_FOUND, "No auditor elected")
    return text_answer(f"Auditor: {auditor}")


async def trigger_audit(call: Call) -> web.StreamResponse:
    """PUT: have the auditor look for lost bookies now."""
    call.only("PUT", ONLY_PUT)
    try:
        await call.operations.recovery.trigger_audit()
    except MagnetarError as problem:
        refuse(NOT_FOUND, f"Exception when do operation.{problem}")
    return text_answer("Success trigger audit.")


async def lost_bookie_recovery_delay(call: Call) -> web.StreamResponse:
    """GET how long the auditor waits for a lost bookie; PUT `{"delay_seconds": 5}` sets it."""
    if call.method == "PUT":
        if call.body is None:
            refuse(NOT_FOUND, "Null request body for lostBookieRecoveryDelay.")
        body = call.body_object()
        if "delay_seconds" not in body:
            refuse(NOT_FOUND, "Request body not contains lostBookieRecoveryDelay.")
        seconds = body["delay_seconds"]
        if not isinstance(seconds, int) or isinstance(seconds, bool):
            raise Failed(f"delay_seconds {seconds!r} is not a whole number")
        await call.operations.recovery.set_lost_bookie_recovery_delay_seconds(seconds)
        return text_answer(f"Success set lostBookieRecoveryDelay to {seconds}")
    call.only("GET", ONLY_PUT)
    try:
        delay = await call.operations.recovery.lost_bookie_recovery_delay_seconds()
    except MagnetarError as problem:
        refuse(NOT_FOUND, f"Exception when get lostBookieRecoveryDelay.{problem}")
    if delay is None:
        refuse(NOT_FOUND, "Exception when get lostBookieRecoveryDelay.Nobody has set it.")
    return text_answer(f"lostBookieRecoveryDelay value: {delay}")


async def decommission(call: Call) -> web.StreamResponse:
    """PUT `{"bookie_src": "host:port"}`: copy what a stopped bookie had to others, then remove its cookie."""
    call.only("PUT", ONLY_PUT)
    if call.body is None:
        refuse(NOT_FOUND, "Null request body for DecommissionService.")
    body = call.body_object()
    if "bookie_src" not in body:
        refuse(NOT_FOUND, "Request body not contains bookie_src.")
    bookie_id = body["bookie_src"]
    if not isinstance(bookie_id, str) or not _is_bookie_id(bookie_id):
        refuse(NOT_FOUND, f"Exception when send decommission command.BookieId {bookie_id} is not valid")
    try:
        call.operations.recovery.decommission_bookie(bookie_id)
    except MagnetarError as problem:
        refuse(NOT_FOUND, f"Exception when send decommission command.{problem}")
    return text_answer(f"Success send decommission Bookie command {bookie_id}")


def _is_bookie_id(bookie_id: str) -> bool:
    return BOOKIE_ID.fullmatch(bookie_id) is not None and bookie_id.lower() != "readonly"


def _java_map(parameters: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}={value}" for name, value in parameters.items()) + "}"


ROUTES: Final[tuple[tuple[str, Handler], ...]] = (
    ("/api/v1/autorecovery/status", status),
    ("/api/v1/autorecovery/bookie", recover_bookie),
    ("/api/v1/autorecovery/list_under_replicated_ledger", list_underreplicated),
    ("/api/v1/autorecovery/who_is_auditor", who_is_auditor),
    ("/api/v1/autorecovery/trigger_audit", trigger_audit),
    ("/api/v1/autorecovery/lost_bookie_recovery_delay", lost_bookie_recovery_delay),
    ("/api/v1/autorecovery/decommission", decommission),
)
