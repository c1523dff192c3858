"""The bookie's HTTP API beside the recorded answers of a real BookKeeper 4.17 bookie, and what only ours has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from magnetar.bookie.admin import json_text
from magnetar.bookie.admin.server import BookieHttpServer
from magnetar.bookie.admin.testing import DAMAGED, FakeOperations
from magnetar.bookie.operations import BookieDrainStep, UnderreplicatedEntry
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

RECORDED: Final = Path(__file__).parent / "recorded" / "bookkeeper_http_answers.json"
"""[method, path, body, status, answer] in the order of the calls, which change that bookie's state; EVENT says what
was done to it otherwise."""

BOOKIE: Final = "127.0.0.1:24281"
"""The recorded bookie's id."""

OF_THAT_MOMENT: Final = ("list_bookie_info", "last_log_mark", "list_disk_file", "gc_details", "/info")
"""Routes whose answers depend on files and clocks: their shapes are compared, all others word by word."""


@pytest.fixture
def operations() -> FakeOperations:
    return FakeOperations()


@pytest.fixture
async def server(operations: FakeOperations) -> AsyncIterator[BookieHttpServer]:
    server = BookieHttpServer(operations.all())
    await server.start("127.0.0.1", 0)
    yield server
    await server.close()


async def ask(server: BookieHttpServer, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """Status and text."""
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
        session.request(method, path, data=body) as answer,
    ):
        return answer.status, await answer.text()


def recorded_cluster() -> FakeOperations:
    """The fake in the state that the recorded bookie was in at the first call."""
    fake = FakeOperations()
    fake.bookie_id = fake.address = BOOKIE
    fake.writable, fake.everyone = [BOOKIE], [BOOKIE]
    fake.recovery = replace(fake.recovery, auditor_bookie_id=BOOKIE)
    fake.known_settings = {
        "bookiePort": "24281",
        "journalSyncData": "true",
        "gcWaitTime": "60000",
        "ledgerDirectories": "/data/ledgers",
    }

    def ledger(created_ms: int, **fields: Any) -> LedgerMetadata:
        return LedgerMetadata(
            ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=[(0, [BOOKIE])], created_ms=created_ms, **fields
        )

    closed = LedgerState.CLOSED
    fake.ledgers = {
        2: ledger(
            1795237329233,
            state=closed,
            last_entry_id=4,
            length_bytes=50,
            custom_metadata={"component": b"managed-ledger", "application": b"pulsar"},
        ),
        3: ledger(1795237329256, digest_type="CRC32"),
        4: ledger(1795237329268, state=closed, last_entry_id=2999, length_bytes=3072000, password=b"secret"),
        5: ledger(1795237329347, state=closed),
    }
    fake.entries = {2: [b"entry %d xx" % at for at in range(5)], 4: [b"entry %d x" % at for at in range(3000)]}
    return fake


def shape(document: Any) -> Any:
    """Types and names, without values."""
    if isinstance(document, dict):
        return {key.rstrip("0123456789abcdef).tx(-"): shape(value) for key, value in document.items()}
    if isinstance(document, list):
        return [shape(item) for item in document]
    return type(document).__name__


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.slow
async def test_every_route_answers_as_bookkeeper_did() -> None:
    fake = recorded_cluster()
    server = BookieHttpServer(fake.all())
    await server.start("127.0.0.1", 0)
    differences: list[str] = []
    for method, path, body, status, text in json.loads(RECORDED.read_text()):
        if method == "EVENT":
            EVENTS[path](fake)
            continue
        got_status, got_text = await ask(server, method, path, body)
        want, got = as_json(text), as_json(got_text)
        if any(word in path for word in OF_THAT_MOMENT) and isinstance(want, dict | list):
            want, got = shape(want), shape(got)
        if "print_metadata=true" in path and "decode_meta" not in path and isinstance(want, dict):
            want, got = {key: value[:25] for key, value in want.items()}, {k: v[:25] for k, v in got.items()}
        if (status, want) != (got_status, got):
            differences.append(f"{method} {path} {body}: {status} {want!r} but {got_status} {got!r}")
    await server.close()
    assert not differences, "\n".join(differences)


def mark_ledgers(fake: FakeOperations) -> None:
    down = ("127.0.0.1:3999", "127.0.0.1:3998")
    fake.marked = [
        UnderreplicatedEntry(ledger_id=4, missing_replicas=down),
        UnderreplicatedEntry(ledger_id=2, missing_replicas=down[:1]),
    ]


EVENTS: Final[dict[str, Callable[[FakeOperations], None]]] = {
    "ledgers 4 and 2 are marked": mark_ledgers,
    "no ledger is marked": lambda fake: fake.marked.clear(),
    "bookie 127.0.0.1:3997 is known and down": lambda fake: fake.everyone.append("127.0.0.1:3997"),
}


async def test_json_is_spaced_as_bookkeeper_spaces_it(server: BookieHttpServer) -> None:
    _, text = await ask(server, "GET", "/api/v1/bookie/state/readonly")
    assert text == '{\n  "readOnly" : false\n}'
    _, text = await ask(server, "GET", "/api/v1/bookie/gc_details")
    assert text.startswith('[ {\n  "forceCompacting" : false,\n')
    assert text.endswith('"entryLocationCompactionCounter" : 0\n} ]')
    assert json_text.write({"a": {"b": [], "c": {}, "d": ["x", 1]}}) == (
        '{\n  "a" : {\n    "b" : [ ],\n    "c" : { },\n    "d" : [ "x", 1 ]\n  }\n}'
    )
    assert json_text.write('"\\\n\x0fé') == '"\\"\\\\\\n\\u000Fé"'


async def test_long_bodies_are_refused(server: BookieHttpServer) -> None:
    status, _ = await ask(server, "PUT", "/api/v1/config/server_config", json.dumps({"a": "x" * 2**18}))
    assert status == 413


async def test_what_the_bookie_refuses_is_a_bad_request_with_its_reason(
    server: BookieHttpServer, operations: FakeOperations
) -> None:
    operations.now = replace(operations.now, read_only=True)
    operations.drain_state = replace(operations.drain_state, step=BookieDrainStep.REPLICATE)
    status, text = await ask(server, "PUT", "/api/v1/bookie/state/readonly", '{"readOnly": false}')
    assert (status, text) == (400, "the bookie is being drained: cancel the drain first")


async def test_a_forced_read_only_bookie_stays_so_and_is_not_tested(
    server: BookieHttpServer, operations: FakeOperations
) -> None:
    operations.now = replace(operations.now, read_only=True, read_only_forced=True)
    status, text = await ask(server, "PUT", "/api/v1/bookie/state/readonly", '{"readOnly": false}')
    assert (status, text) == (400, "Bookie is in forceReadOnly mode, cannot transit to writable mode")
    status, text = await ask(server, "GET", "/api/v1/bookie/sanity")
    assert (status, json.loads(text)) == (200, {"passed": False, "readOnly": True})


async def test_limbo_has_a_route_of_its_own(server: BookieHttpServer, operations: FakeOperations) -> None:
    operations.lacks = DAMAGED
    status, text = await ask(server, "GET", "/api/v1/bookie/state/limbo")
    assert status == 200
    found = json.loads(text)
    assert (found["inLimbo"], found["sinceMs"], found["ledgers"]) == (True, DAMAGED.since_ms, 3)
    assert (found["ledgersTotal"], found["ledgersUnhealed"]) == (12, 1)
    assert (found["entriesLost"], found["entriesFetched"]) == (40, 700)
    assert found["problems"] == [{"ledgerId": 7, "reason": DAMAGED.problems[0][1]}]
    assert found["damage"] == list(DAMAGED.damage)


@pytest.mark.parametrize(("running", "shutting_down"), [(False, False), (True, True)])
async def test_ready_only_while_it_runs(
    server: BookieHttpServer, operations: FakeOperations, running: bool, shutting_down: bool
) -> None:
    operations.now = replace(operations.now, running=running, shutting_down=shutting_down)
    assert await ask(server, "GET", "/api/v1/bookie/is_ready") == (503, "Bookie is not fully started yet")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/v1/autorecovery/who_is_auditor", 404, "Exception when get.gone"),
        ("/api/v1/autorecovery/list_under_replicated_ledger", 404, "Exception when get.gone"),
        ("/api/v1/ledger/list", 500, "Internal Server Error"),
        ("/api/v1/bookie/list_bookies", 500, "Internal Server Error"),
    ],
)
async def test_an_unreachable_store(
    server: BookieHttpServer, operations: FakeOperations, path: str, status: int, text: str
) -> None:
    operations.failure = StoreUnavailable("gone")
    assert await ask(server, "GET", path) == (status, text)


async def test_no_auditor_and_no_delay(server: BookieHttpServer, operations: FakeOperations) -> None:
    operations.recovery = replace(operations.recovery, auditor_bookie_id="")
    operations.delay_seconds = None
    assert await ask(server, "GET", "/api/v1/autorecovery/who_is_auditor") == (404, "No auditor elected")
    status, _ = await ask(server, "GET", "/api/v1/autorecovery/lost_bookie_recovery_delay")
    assert status == 404


async def test_pages_of_ledgers_are_bookkeepers(server: BookieHttpServer, operations: FakeOperations) -> None:
    metadata = LedgerMetadata(ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=[(0, ["b:1"])])
    operations.ledgers = dict.fromkeys(range(250), metadata)

    async def page(number: int) -> list[int]:
        path = f"/api/v1/ledger/list?print_metadata=true&decode_meta=true&page={number}"
        return [int(ledger_id) for ledger_id in json.loads((await ask(server, "GET", path))[1])]

    assert await page(1) == list(range(99))
    assert await page(2) == list(range(99, 199))
    assert await page(3) == list(range(199, 250))


async def test_collections_are_asked_for_as_wanted(server: BookieHttpServer, operations: FakeOperations) -> None:
    for body in (None, " ", '{"forceMajor": true}', '{"forceMinor": "false"}'):
        await ask(server, "PUT", "/api/v1/bookie/gc", body)
    assert operations.collected == [(None, None), (None, None), (True, None), (None, False)]


async def test_metrics_alone(operations: FakeOperations) -> None:
    server = BookieHttpServer(operations.all(), metrics_only=True)
    await server.start("127.0.0.1", 0)
    status, text = await ask(server, "GET", "/metrics")
    assert status == 200
    assert "bookie_SERVER_STATUS 1\n" in text
    assert (await ask(server, "POST", "/metrics"))[0] == 403
    assert (await ask(server, "PUT", "/api/v1/bookie/state/readonly", '{"readOnly": true}'))[0] == 404
    await server.close()
    await server.close()


def test_nothing_heavy_is_loaded_before_it_is_started() -> None:
    code = (
        "import sys, magnetar.bookie.app, magnetar.bookie.operations, magnetar.bookie.counters\n"
        "import magnetar.bookie.admin.server\n"
        "print([name for name in ('aiohttp', 'prometheus_client', 'grpc') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
