"""`/api/v1/ledger/…`: ledgers of the whole cluster (BookKeeper: server/http/service, *LedgerService)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from magnetar.bookie.admin.calls import (
    INTERNAL_ERROR,
    Call,
    Failed,
    Handler,
    json_answer,
    refuse,
    stream_object,
)
from magnetar.ledger.api import LedgerNotFound
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, encode_ledger_metadata

LEDGERS_PER_PAGE: Final = 100
ENTRIES_PER_PAGE: Final = 1000
METADATA_FORMAT: Final = 3
"""What we read is told as it would be written."""

ONLY_GET: Final = "Not found method. Should be GET method"


async def delete_ledger(call: Call) -> web.StreamResponse:
    """DELETE with `ledger_id`. A ledger that is not there counts as deleted."""
    call.only("DELETE", "Not found method. Should be DELETE method")
    if "ledger_id" not in call.parameters:
        refuse(404, "Not ledger found. Should provide ledger_id=<id>")
    ledger_id = call.whole_number("ledger_id")
    if ledger_id < 0:
        raise Failed(f"ledger {ledger_id} cannot exist")
    try:
        await call.operations.cluster.delete_ledger(ledger_id)
    except LedgerNotFound:
        # BookKeeper's client answers the same: somebody else may have been faster.
        return json_answer(f"Deleted ledger: {ledger_id}")
    return json_answer(f"Deleted ledger: {ledger_id}")


async def list_ledgers(call: Call) -> web.StreamResponse:
    """GET: every ledger id, with its metadata if `print_metadata=true`, as fields if `decode_meta=true`."""
    call.only("GET", ONLY_GET)
    with_metadata = call.parameters.get("print_metadata") == "true"
    decoded = call.parameters.get("decode_meta", "false") == "true"
    page = call.whole_number("page", -1) if with_metadata else -1
    return await stream_object(call, _ledger_fields(call, page, with_metadata=with_metadata, decoded=decoded))


async def _ledger_fields(
    call: Call, page: int, *, with_metadata: bool, decoded: bool
) -> AsyncIterator[tuple[str, object]]:
    if not with_metadata:
        async for ledger_id in call.operations.cluster.ledger_ids():
            yield str(ledger_id), None
        return
    # Places count from 1 and pages begin at multiples of 100, so that the first page has 99: BookKeeper's do.
    first, last = (page - 1) * LEDGERS_PER_PAGE, page * LEDGERS_PER_PAGE - 1
    place = 0
    async for ledger_id in call.operations.cluster.ledger_ids():
        place += 1
        if page > 0 and place > last:
            return
        if page > 0 and place < first:
            continue
        try:
            metadata = await call.operations.cluster.ledger_metadata(ledger_id)
        except LedgerNotFound:
            continue  # Deleted while we were listing.
        if decoded:
            yield str(ledger_id), metadata_fields(ledger_id, metadata)
        else:
            yield str(ledger_id), encode_ledger_metadata(metadata).decode("utf-8", "replace")


async def ledger_metadata(call: Call) -> web.StreamResponse:
    """GET with `ledger_id`: one ledger's metadata."""
    if call.method != "GET" or "ledger_id" not in call.parameters:
        refuse(404, ONLY_GET)
    ledger_id = call.whole_number("ledger_id")
    if ledger_id < 0:
        raise Failed(f"ledger {ledger_id} cannot exist")
    metadata = await call.operations.cluster.ledger_metadata(ledger_id)
    return json_answer({str(ledger_id): metadata_fields(ledger_id, metadata)})


async def read_ledger(call: Call) -> web.StreamResponse:
    """GET with `ledger_id`, and `start_entry_id`, `end_entry_id`, `page` (1000 entries each) if wanted: the payloads,
    as far as they are ASCII."""
    if call.method != "GET" or "ledger_id" not in call.parameters:
        refuse(404, "Not found method. Should be GET method, with ledger_id provided")
    ledger_id = call.whole_number("ledger_id")
    first, last = call.whole_number("start_entry_id", 0), call.whole_number("end_entry_id", -1)
    page = call.whole_number("page", -1)
    if page > 0:
        page_first = (page - 1) * ENTRIES_PER_PAGE
        first = max(first, page_first)
        page_last = page_first + ENTRIES_PER_PAGE - 1
        last = page_last if last == -1 else min(last, page_last)
    if last != -1 and first > last:
        refuse(
            INTERNAL_ERROR, f"parameter for start_entry_id: {first} and end_entry_id: {last} conflict with page={page}"
        )
    if ledger_id < 0 or first < 0:
        raise Failed(f"ledger {ledger_id}, entry {first}: neither can be negative")
    return await stream_object(call, _entry_fields(call, ledger_id, (first, last), page))


async def _entry_fields(
    call: Call, ledger_id: int, wanted: tuple[int, int], page: int
) -> AsyncIterator[tuple[str, object]]:
    if page > 0:
        yield "Entries for page: ", str(page)
    async for entry_id, payload in call.operations.cluster.read_entries(ledger_id, *wanted):
        yield str(entry_id), payload.decode("ascii", "replace")


def metadata_fields(ledger_id: int, metadata: LedgerMetadata) -> dict[str, object]:
    """One ledger's metadata under the names that BookKeeper's class has."""
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": METADATA_FORMAT,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length_bytes,
        "lastEntryId": metadata.last_entry_id,
        "ctime": -1 if metadata.created_ms is None else metadata.created_ms,
        "digestType": metadata.digest_type,
        "password": base64.b64encode(metadata.password).decode(),
        "customMetadata": {key: base64.b64encode(value).decode() for key, value in metadata.custom_metadata.items()},
        "closed": metadata.state is LedgerState.CLOSED,
        "allEnsembles": {
            str(first_entry_id): [{"id": bookie_id} for bookie_id in bookies]
            for first_entry_id, bookies in metadata.ensembles
        },
        "ctoken": metadata.creator_token,
    }


ROUTES: Final[tuple[tuple[str, Handler], ...]] = (
    ("/api/v1/ledger/delete", delete_ledger),
    ("/api/v1/ledger/list", list_ledgers),
    ("/api/v1/ledger/metadata", ledger_metadata),
    ("/api/v1/ledger/read", read_ledger),
)
