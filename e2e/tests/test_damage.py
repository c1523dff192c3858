"""A damaged file of a standalone cluster is told, or every message is there; `python -m e2e.damage` does all of it."""

from __future__ import annotations

import asyncio
import logging
from fnmatch import fnmatch
from pathlib import Path
from random import Random

import pytest
from magnetar.bookie.storage import index_database
from magnetar.client.message import Message, MessageId
from magnetar.metadata import rocksdb
from magnetar.standalone import cluster
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata
from rocksdict import DBRecoveryMode, Options, Rdict

from e2e.damage.kinds import Kind, damaged
from e2e.damage.world import LOOK_SECONDS, Outcome, World, listening, next_message

ALWAYS_REFUSED = (
    ("bookie/journal/current/1.txn", Kind.EMPTY),
    ("bookie/journal/current/1.txn", Kind.MISSING),
    ("bookie/journal/current/1.txn", Kind.TAIL),
    ("bookie/journal/current/VERSION", Kind.MISSING),
    ("bookie/ledgers/current/locations/*.log", Kind.CUT),
    ("bookie/ledgers/current/locations/MANIFEST*", Kind.FLIP),
    ("bookie/ledgers/current/locations/CURRENT", Kind.MISSING),
    ("bookie/ledgers/current/ledgers/*.sst", Kind.MISSING),
    ("bookie/ledgers/current/0.log", Kind.MISSING),
    ("metadata/rocksdb/*.log", Kind.FLIP),
    ("metadata/rocksdb/*.log", Kind.MISSING),
)
RIGHT_OR_TOLD = (
    ("bookie/journal/current/1.txn", Kind.FLIP),
    ("bookie/journal/current/1.txn", Kind.ZERO),
    ("bookie/journal/current/1.txn", Kind.DOUBLE),
    ("bookie/journal/current/newestJournal", Kind.FLIP),
    ("bookie/ledgers/current/lastMark", Kind.FLIP),
    ("bookie/ledgers/current/lastId", Kind.FLIP),
    ("bookie/ledgers/current/entryLogs", Kind.FLIP),
    ("bookie/ledgers/current/0.log", Kind.ZERO),
)
"""Where the place decides, and how the journal's groups came about."""
LOST_TOGETHER = (
    ("metadata/rocksdb/*.log", "metadata/rocksdb/magnetar.synced"),
    ("metadata/rocksdb/*",),
    ("bookie/journal/current/*.txn", "bookie/journal/current/newestJournal", "bookie/ledgers/current/lastMark"),
)
"""What is lost, and all that would name it but one."""
SEED = 7
SEEDS_TRIED = 10


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    await made.prepare()
    return made


def one(world: World, pattern: str) -> str:
    (name,) = [name for name in world.files if fnmatch(name, pattern)]
    return name


@pytest.mark.slow
async def test_chosen_damage_is_told(world: World) -> None:
    for pattern, kind in (*ALWAYS_REFUSED, *RIGHT_OR_TOLD):
        name = one(world, pattern)
        verdict = await world.run(name, kind, SEED)
        assert verdict.outcome.good, f"{verdict}; again: python -m e2e.damage --case {name} {kind} {SEED}"
        if (pattern, kind) in ALWAYS_REFUSED:
            assert verdict.outcome is Outcome.REFUSED, (name, verdict)


@pytest.mark.slow
async def test_files_that_are_lost_together_are_told(world: World) -> None:
    for patterns in LOST_TOGETHER:
        verdict = await world.run_without(*patterns)
        assert verdict.outcome is Outcome.REFUSED, (patterns, verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "killed_first"),
    [("metadata/rocksdb/*.log", True), ("bookie/ledgers/current/locations/*.log", False)],
)
async def test_what_rocksdb_does_by_itself_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, killed_first: bool
) -> None:
    """Its default, recovery to a point in time, drops all that stands behind the first wrong byte."""

    def open_as_before(directory: Path, options: Options) -> Rdict:
        options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
        return Rdict(str(directory), options)

    world = World(tmp_path)
    await world.prepare(killed_first=killed_first)
    name = one(world, pattern)
    assert (await world.run(name, Kind.FLIP, SEED)).outcome is Outcome.REFUSED
    monkeypatch.setattr(rocksdb, "open_database", open_as_before)
    monkeypatch.setattr(index_database, "open_database", open_as_before)
    # Ledger ids tell of lost metadata as well.
    monkeypatch.setattr(cluster, "check_metadata_is_newest", lambda *_: None)
    outcomes = set()
    for seed in range(SEEDS_TRIED):
        outcomes.add((await world.run(name, Kind.FLIP, seed)).outcome)
        if Outcome.SILENT in outcomes:
            return
    pytest.fail(f"nobody noticed: {outcomes}")


@pytest.mark.parametrize("kind", Kind)
def test_damage_changes_what_was_there(kind: Kind) -> None:
    content = Random(1).randbytes(20_000) + bytes(50_000)
    changed = [damaged(content, kind, Random(seed)) for seed in range(50)]
    assert content not in changed
    assert (changed == [None] * 50) is (kind is Kind.MISSING)
    assert [damaged(content, kind, Random(seed)) for seed in range(50)] == changed


class LateReader:
    """Its message comes when the reader of the log has looked several times."""

    async def next_or_end(self) -> Message | None:
        await asyncio.sleep(3 * LOOK_SECONDS)
        return Message(MessageId(1, 0), MessageMetadata(), None, b"late", 0)


async def test_a_message_that_is_late_is_waited_for_though_a_file_is_damaged() -> None:
    with listening() as lines:
        logging.getLogger("test").warning("/data/lastId is damaged and left out: the logs that are there count")
        assert await next_message(LateReader(), lines) == b"late"


async def test_a_message_that_the_log_calls_unreadable_is_not_waited_for() -> None:
    with listening() as lines:
        logging.getLogger("test").warning("entry 3:1 cannot be read")
        assert await next_message(LateReader(), lines) is None
