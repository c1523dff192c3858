"""Ledgers that Apache's offloaders wrote are read by ours, and the other way round: the same bytes in S3, MapFiles in
directories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from magnetar.tiered.api import Offloader
from magnetar.tiered.factory import make_offloader, open_s3_store
from magnetar.tiered.settings import StorePlace
from magnetar.tiered.testing import ClosedMemoryLedger

from e2e.interchange.offload_driver import BUCKET, run_offloader
from lib.tests.recorded_offloads import UID, payload
from lib.tests.s3_server import make_bucket, s3_server

TOPIC = "public/default/persistent/offloads"
SIZES = [7, 0, 3_000_000, *[20_000] * 100, *[1_000_000] * 3, *[999] * 50, 1]
"""More than one block of 5 MiB, entries larger than a read, more than one entry of a MapFile's index."""
THEIRS, OURS = 77, 78


@pytest.fixture
def endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        make_bucket(endpoint, BUCKET)
        yield endpoint


@pytest.fixture(params=["S3", "filesystem"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "S3":
        return "S3", request.getfixturevalue("endpoint")
    return "filesystem", f"file://{tmp_path}"


def our_offloader(driver: str, where: str) -> Offloader:
    properties = {
        "managedLedgerOffloadDriver": driver,
        "fileSystemURI": where,
        "managedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadServiceEndpoint": where,
        "managedLedgerOffloadRegion": "us-east-1",
        "managedLedgerOffloadMaxBlockSizeInBytes": str(5 << 20),
    }
    return make_offloader(properties, {"ACCESS_KEY_ID": "id", "ACCESS_KEY_SECRET": "secret"})


async def test_each_reads_what_the_other_wrote(where: tuple[str, str]) -> None:
    offloader = our_offloader(*where)
    stored = {**offloader.stored_metadata(), "ManagedLedgerName": TOPIC}
    theirs = run_offloader(*where, "write", str(THEIRS), UID, TOPIC, ",".join(map(str, SIZES)))
    assert theirs["stored"] == "{" + ", ".join(f"{k}={v}" for k, v in sorted(offloader.stored_metadata().items())) + "}"

    ledger = ClosedMemoryLedger(OURS, [payload(entry_id, size_bytes) for entry_id, size_bytes in enumerate(SIZES)])
    expected = f"{len(SIZES)} {sum(SIZES)} {hashlib.sha256(b''.join(ledger.payloads)).hexdigest()}"
    assert theirs["digest"] == expected
    reader = await offloader.open(THEIRS, UUID(UID), stored)
    found: list[bytes] = []
    while len(found) < len(SIZES):
        found += await reader.read(len(found), len(SIZES) - 1)
    assert found == ledger.payloads
    await reader.close()

    await offloader.offload(ledger, ledger.described(), UUID(UID), TOPIC)
    assert run_offloader(*where, "read", str(OURS), UID, TOPIC)["digest"] == expected
    run_offloader(*where, "delete", str(OURS), UID, TOPIC)
    await offloader.delete(THEIRS, UUID(UID), stored)
    assert (await offloader.page()).objects == []
    await offloader.close()


async def test_in_s3_both_write_the_same_bytes(endpoint: str) -> None:
    offloader = our_offloader("S3", endpoint)
    run_offloader("S3", endpoint, "write", str(THEIRS), UID, TOPIC, ",".join(map(str, SIZES)))
    ledger = ClosedMemoryLedger(OURS, [payload(entry_id, size_bytes) for entry_id, size_bytes in enumerate(SIZES)])
    await offloader.offload(ledger, ledger.described(), UUID(UID), TOPIC)
    store = open_s3_store(StorePlace(bucket=BUCKET, endpoint=endpoint, credentials=("id", "secret")))
    for kind in ("", "-index"):
        one, other = (f"{UID}-ledger-{ledger_id}{kind}" for ledger_id in (THEIRS, OURS))
        size_bytes = (await store.head(one)).size_bytes
        assert await store.read_range(one, 0, size_bytes) == await store.read_range(other, 0, size_bytes + 1)
    await offloader.close()
