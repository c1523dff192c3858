"""`/api/v1/bookie/…` that tell and switch the state of bookies (BookKeeper: server/http/service)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import ROUND_DOWN, Decimal
from typing import Final

from aiohttp import web
from magnetar.bookie.admin import json_text
from magnetar.bookie.admin.calls import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_FOUND,
    OK,
    UNAVAILABLE,
    Call,
    Failed,
    Handler,
    json_answer,
    refuse,
    text_answer,
)
from magnetar.bookie.operations import DirectoryUsage
from magnetar.core.errors import MagnetarError

ONLY_GET: Final = "Not found method. Should be GET method"
ONLY_PUT: Final = "Not found method. Should be PUT method"
SANITY_WAIT_SECONDS: Final = 5.0
"""One sanity test at a time; a second caller waits this long."""
UNITS: Final = ("", "KB", "MB", "GB", "TB")

FILE_KINDS: Final = (("index", "index files"), ("journal", "journal files"), ("entrylog", "entrylog files"))


async def list_bookies(call: Call) -> web.StreamResponse:
    """GET the writable bookies, with `type=ro` the read-only ones; `print_hostnames=true` adds where they serve."""
    call.only("GET", ONLY_GET)
    writable, read_only = await call.operations.cluster.bookie_ids()
    with_hosts = call.parameters.get("print_hostnames") == "true"
    chosen = read_only if call.parameters.get("type") == "ro" else writable
    return json_answer(
        {
            bookie_id: await call.operations.cluster.bookie_host(bookie_id) if with_hosts else None
            for bookie_id in chosen
        }
    )


async def list_bookie_info(call: Call) -> web.StreamResponse:
    """GET free and total space of every bookie that answers."""
    call.only("GET", ONLY_GET)
    spaces = await call.operations.cluster.bookie_spaces()
    if not spaces:
        refuse(NOT_FOUND, "Not found any Bookie info.")
    answer = {space.bookie_id: f": {_space(space.free_bytes, space.total_bytes)}," for space in spaces}
    free, total = sum(space.free_bytes for space in spaces), sum(space.total_bytes for space in spaces)
    answer["ClusterInfo: "] = _space(free, total)
    return json_answer(answer)


async def last_log_mark(call: Call) -> web.StreamResponse:
    """GET up to where each journal is in the entry logs."""
    call.only("GET", ONLY_GET)
    marks = call.operations.storage.last_marks()
    return json_answer(
        {f"LastLogMark: Journal Id - {mark.file_id}({mark.file_id:x}.txn)": f"Pos - {mark.offset}" for mark in marks}
    )


async def list_disk_file(call: Call) -> web.StreamResponse:
    """GET the names of journal, entry log and index files; `file_type` chooses one kind."""
    call.only("GET", ONLY_GET)
    files = await call.operations.storage.disk_files()
    names = {"index": files.index, "journal": files.journal, "entrylog": files.entry_logs}
    kind = call.parameters.get("file_type")
    return json_answer(
        {
            title: "".join(f"{name}\t" for name in names[known])
            for known, title in FILE_KINDS
            if kind not in names or kind == known
        }
    )


async def expand_storage(call: Call) -> web.StreamResponse:
    """PUT: take new, empty ledger directories into the cookie."""
    call.only("PUT", ONLY_PUT)
    try:
        await call.operations.storage.expand_storage()
    except MagnetarError as problem:
        # BookKeeper's text, and what is wrong: it has to be put right by hand.
        refuse(INTERNAL_ERROR, f"Exception while updating cookie for storage expansion: {problem}")
    return text_answer("Success expand storage")


async def state(call: Call) -> web.StreamResponse:
    """GET whether this bookie runs and takes writes."""
    call.only("GET", "Only support GET method to retrieve bookie state.")
    now = call.operations.bookie.state()
    return json_answer(
        {
            "running": now.running,
            "readOnly": now.read_only,
            "shuttingDown": now.shutting_down,
            "availableForHighPriorityWrites": now.high_priority_writes,
        }
    )


async def limbo(call: Call) -> web.StreamResponse:
    """GET what this bookie has lost and gets back from its peers. Ours alone."""
    call.only("GET", ONLY_GET)
    now = call.operations.bookie.limbo()
    return json_answer(
        {
            "inLimbo": now.in_limbo,
            "sinceMs": now.since_ms,
            "ledgers": now.ledgers,
            "ledgersTotal": now.ledgers_total,
            "ledgersUnhealed": now.ledgers_unhealed,
            "entriesLost": now.entries_lost,
            "entriesFetched": now.entries_fetched,
            "problems": [{"ledgerId": ledger_id, "reason": reason} for ledger_id, reason in now.problems],
            "damage": list(now.damage),
        }
    )


async def read_only(call: Call) -> web.StreamResponse:
    """GET or PUT `{"readOnly": true}`."""
    if call.method == "PUT":
        wanted = _wanted_read_only(call)
        now = call.operations.bookie.state()
        if now.read_only and not wanted and now.read_only_forced:
            refuse(BAD_REQUEST, "Bookie is in forceReadOnly mode, cannot transit to writable mode")
        if now.read_only != wanted:
            await call.operations.bookie.set_read_only(read_only=wanted)
    elif call.method != "GET":
        refuse(NOT_FOUND, "Unsupported method. Should be GET or PUT method")
    return json_answer({"readOnly": call.operations.bookie.state().read_only})


def _wanted_read_only(call: Call) -> bool:
    if call.body is None:
        raise Failed('a body such as {"readOnly": true} is missing')
    body = call.body_object()
    if set(body) - {"readOnly"}:
        raise Failed(f"only readOnly can be set, not {', '.join(sorted(set(body) - {'readOnly'}))}")
    try:
        return json_text.truth(body.get("readOnly"))
    except json_text.BadJson:
        raise Failed(f"readOnly {body['readOnly']!r} is neither true nor false") from None


class SanityTest:
    """GET: write, read and delete a ledger on this bookie; one test at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __call__(self, call: Call) -> web.StreamResponse:
        """`{"passed": …, "readOnly": …}`; readOnly only tells that the settings force it, and no test was made."""
        call.only("GET", "Only support GET method to retrieve bookie sanity state.")
        if call.operations.bookie.state().read_only_forced:
            return json_answer({"passed": False, "readOnly": True})
        try:
            async with asyncio.timeout(SANITY_WAIT_SECONDS):
                await self._lock.acquire()
        except TimeoutError:
            refuse(INTERNAL_ERROR, "Timing out due to max number of sanity request are running concurrently")
        try:
            passed = await call.operations.bookie.sanity_test()
        finally:
            self._lock.release()
        return json_answer({"passed": passed, "readOnly": False})


async def is_ready(call: Call) -> web.StreamResponse:
    """GET: 200 once this bookie has started, 503 before and while it stops."""
    call.only("GET", "Only support GET method check if bookie is ready.")
    now = call.operations.bookie.state()
    if now.running and not now.shutting_down:
        return text_answer("OK", OK)
    return text_answer("Bookie is not fully started yet", UNAVAILABLE)


async def info(call: Call) -> web.StreamResponse:
    """GET free and total space of this bookie's ledger directories."""
    call.only("GET", "Only GET is supported.")
    usages = ledger_file_systems(call.operations.storage.directories())
    return json_answer(
        {
            "freeSpace": sum(usage.free_bytes for usage in usages),
            "totalSpace": sum(usage.total_bytes for usage in usages),
        }
    )


async def cluster_info(call: Call) -> web.StreamResponse:
    """GET the cluster's bookies by state, its auditor, and whether ledgers wait for replicas."""
    call.only("GET", "Only GET is supported.")
    operations = call.operations
    writable, unwritable = await operations.cluster.bookie_ids()
    everyone = await operations.cluster.all_bookie_ids()
    auditor = await operations.recovery.auditor_bookie_id()
    underreplicated = False
    async for _ in operations.recovery.underreplicated_ledgers():
        underreplicated = True
        break
    return json_answer(
        {
            "auditorElected": bool(auditor),
            "auditorId": auditor,
            "clusterUnderReplicated": underreplicated,
            "ledgerReplicationEnabled": await operations.recovery.auto_recovery_enabled(),
            "totalBookiesCount": len(everyone),
            "writableBookiesCount": len(writable),
            "readonlyBookiesCount": len(unwritable),
            "unavailableBookiesCount": len(everyone) - len(writable) - len(unwritable),
        }
    )


def ledger_file_systems(usages: Sequence[DirectoryUsage]) -> list[DirectoryUsage]:
    """The usages of ledger directories, each file system once: two directories on one disk do not have twice its
    space. (Two disks of the same size that are filled alike to the byte are taken for one.)"""
    seen = {(usage.total_bytes, usage.free_bytes): usage for usage in usages if usage.kind == "ledgers"}
    return list(seen.values())


def _space(free_bytes: int, total_bytes: int) -> str:
    return f"{{Free: {free_bytes}{_readable(free_bytes)}, Total: {total_bytes}{_readable(total_bytes)}}}"


def _readable(size_bytes: int) -> str:
    amount = Decimal(size_bytes)
    unit = 0
    while amount >= 1000 and unit < len(UNITS) - 1:
        amount /= 1000
        unit += 1
    if unit == 0:
        return ""
    digits = f"{amount.quantize(Decimal('0.001'), ROUND_DOWN):f}".rstrip("0").rstrip(".")
    return f"({digits}{UNITS[unit]})"


def routes() -> tuple[tuple[str, Handler], ...]:
    """What this file serves."""
    return (
        ("/api/v1/bookie/list_bookies", list_bookies),
        ("/api/v1/bookie/list_bookie_info", list_bookie_info),
        ("/api/v1/bookie/last_log_mark", last_log_mark),
        ("/api/v1/bookie/list_disk_file", list_disk_file),
        ("/api/v1/bookie/expand_storage", expand_storage),
        ("/api/v1/bookie/state", state),
        ("/api/v1/bookie/state/limbo", limbo),
        ("/api/v1/bookie/sanity", SanityTest()),
        ("/api/v1/bookie/state/readonly", read_only),
        ("/api/v1/bookie/is_ready", is_ready),
        ("/api/v1/bookie/info", info),
        ("/api/v1/bookie/cluster_info", cluster_info),
    )
