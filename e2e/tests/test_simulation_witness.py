"""The simulator's witnesses are not blind: what they should see on disks and in metadata, made by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal import header as journal_header
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import entry_log_format
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.managed.info_codec import encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.paths import cursor_path
from magnetar.managed.paths import ledger_path as topic_path
from magnetar.metadata.memory import MemoryTable
from magnetar.metadata.tree import NO_OWNER, TreeRules
from magnetar.sim.disk import Platter, SimulatedDisk
from magnetar.sim.process import Process
from magnetar.sim.trace import Trace
from magnetar.wire.bookkeeper.entry import EntryCodec
from magnetar.wire.bookkeeper.generated.db_ledger_storage_pb2 import LedgerData
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, encode_ledger_metadata
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import LongListMap, ManagedCursorInfo, PositionInfo

from bookie.tests.simulated_storage import DiskIndex
from e2e.simulation.durable import BookieDisk
from e2e.simulation.topic_witness import CURSOR, TOPIC, StoredAcknowledgements, TopicWitness
from e2e.simulation.witness import Witness

LEDGER: Final = 7
NO_KEY: Final = LedgerData(exists=True, fenced=False, masterKey=b"").SerializeToString()
"""The state of a ledger whose master key is not stored."""
CODEC: Final = EntryCodec(LEDGER, "CRC32C")
NAMES: Final = ("a", "b", "c")
ALIGNMENT_BYTES: Final = 512


class SmallBookie:
    """A bookie's disk, written by hand."""

    def __init__(self, name: str, witness: Witness) -> None:
        platter = Platter(name, random.Random(1), Trace())
        root = Path("/", name)
        self.current = root / "current"
        settings = BookieSettings(journal_directories=(root,), ledger_directories=(root,), bookie_id=name, port=1)
        self.seen = witness.disks[name] = BookieDisk(name, platter, settings, witness)
        self.disk: SimulatedDisk = platter.mount(Process(name, name))
        self.disk.make_directory(self.current)
        self._journal = self.disk.create(self.current / journal_format.file_name(1))
        self._position = self._journal.pwritev([journal_header.encode_header(6)], 0, durable=True)
        self.disk.sync_directory(self.current)
        self.log(journal_format.encode_master_key_record(LEDGER, CODEC.master_key))

    def log(self, *records: bytes, durable: bool = True) -> None:
        """One group of the journal."""
        parts, size = journal_format.encode_group([list(records)], self._position, ALIGNMENT_BYTES)
        self._journal.pwritev(parts, self._position, durable=durable)
        self._position += size

    def forget_journal(self) -> None:
        """A mark behind everything."""
        self.disk.replace_whole(self.current / "lastMark", (2).to_bytes(8, "big") + bytes(8))


class World:
    """A ledger on two of three of three bookies."""

    def __init__(self) -> None:
        self.damaged: set[str] = set()
        self.witness = Witness(lambda: 0.0, self.damaged.__contains__)
        self.table = MemoryTable()
        self.rules = TreeRules(self.table, SystemClock())
        self.bookies = {name: SmallBookie(name, self.witness) for name in (*NAMES, "d")}
        self.topic = TopicWitness(self.witness, self.table)

    def put(self, path: str, value: bytes, host: str = "writer") -> None:
        outcome = self.rules.put(path, value, None, NO_OWNER, ephemeral=False, sequential=False)
        self.table.apply(outcome)
        self.witness.metadata_applied(outcome, host)
        self.topic.metadata_applied(outcome)

    def ledger(
        self, state: LedgerState, *, last: int = -1, bookies: Sequence[str] = NAMES, ledger_id: int = LEDGER
    ) -> None:
        metadata = LedgerMetadata(
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            ensembles=[(0, list(bookies))],
            state=state,
            last_entry_id=last,
        )
        self.put(ledger_path(ledger_id), encode_ledger_metadata(metadata), "recoverer")

    @property
    def accusations(self) -> str:
        return "\n".join(self.witness.violations)


@pytest.fixture
def world() -> World:
    world = World()
    world.ledger(LedgerState.OPEN)
    world.witness.appended(LEDGER, [b"zero", b"one"])
    return world


def entry(entry_id: int, payload: bytes, last_add_confirmed: int = -1) -> bytes:
    return CODEC.encode_many(entry_id, last_add_confirmed, 0, [payload])[0]


def test_an_entry_on_an_ack_quorum_of_disks_may_be_confirmed(world: World) -> None:
    for name in ("a", "c"):
        world.bookies[name].log(entry(0, b"zero"), entry(1, b"one"))
    world.witness.confirmed(LEDGER, 1)
    assert world.accusations == ""
    assert world.witness.confirmed_entries == 2


@pytest.mark.parametrize("case", ["one disk", "not durable", "another payload", "damaged", "gap", "not named"])
def test_another_may_not(world: World, case: str) -> None:
    world.bookies["a"].log(entry(0, b"zero"), entry(1, b"one"))
    second = world.bookies["d" if case == "not named" else "b"]
    match case:
        case "not durable":
            second.log(entry(0, b"zero"), entry(1, b"one"), durable=False)
        case "another payload":
            second.log(entry(0, b"zero"), entry(1, b"two"))
        case "damaged":
            second.log(entry(0, b"zero"), entry(1, b"one")[:-1] + b"E")
        case "gap":
            second.log(entry(1, b"one"))
        case "not named":
            second.log(entry(0, b"zero"), entry(1, b"one"))
        case _:
            pass  # The second one has nothing.
    world.witness.confirmed(LEDGER, 1)
    assert "durable on ['a'] only" in world.accusations


def test_what_was_confirmed_must_stay(world: World) -> None:
    for name in NAMES:
        world.bookies[name].log(entry(0, b"zero"))
    world.witness.confirmed(LEDGER, 0)
    index = DiskIndex(world.bookies["a"].disk, world.bookies["a"].current)
    index.put_ledgers([(LEDGER, NO_KEY)])
    world.damaged.add("b")
    for name in ("a", "b"):
        world.bookies[name].forget_journal()
    assert "a has lost entry 7:0" in world.accusations
    assert "a has lost the master key of ledger 7" in world.accusations
    assert "b has lost" not in world.accusations


def test_an_entry_may_move_to_the_log(world: World) -> None:
    for name in NAMES:
        world.bookies[name].log(entry(0, b"zero"))
    world.witness.confirmed(LEDGER, 0)
    bookie = world.bookies["a"]
    log = bookie.disk.create(bookie.current / entry_log_format.file_name(3))
    parts, places = entry_log_format.encode_entries([entry(0, b"zero")], 1024)
    log.pwritev(parts, 1024)
    log.sync()
    bookie.disk.sync_directory(bookie.current)
    index = DiskIndex(bookie.disk, bookie.current)
    index.put_locations(LEDGER, [0], [3 << 32 | places[0]])
    index.sync()
    bookie.seen.let_go(LEDGER)
    bookie.seen.keep((LEDGER, 0))
    bookie.forget_journal()
    assert world.accusations == ""
    bookie.disk.delete(bookie.current / entry_log_format.file_name(3))
    assert "a has lost entry 7:0" in world.accusations


def test_behind_a_fence_only_recoveries_write(world: World) -> None:
    bookie = world.bookies["a"]
    world.witness.fence_answered("a", LEDGER)
    assert "has no fence" in world.accusations
    bookie.log(journal_format.encode_fence_record(LEDGER))
    world.witness.violations.clear()
    world.witness.fence_answered("a", LEDGER)
    world.witness.recovery_adds_sent("a", LEDGER, [0])
    bookie.log(entry(0, b"zero"))
    bookie.seen.read_on()
    assert world.accusations == ""
    bookie.log(entry(1, b"one"))
    bookie.seen.read_on()
    assert "a took entry 7:1 from its writer behind the fence" in world.accusations


def test_nobody_says_more_than_is_confirmed(world: World) -> None:
    world.bookies["a"].log(entry(1, b"one", last_add_confirmed=0))
    world.bookies["a"].seen.read_on()
    assert "says that 0 is confirmed; -1 is" in world.accusations
    world.witness.told_last_confirmed("reader", LEDGER, 0)
    assert "reader is told that ledger 7 is confirmed up to 0" in world.accusations


def test_a_recovery_closes_only_what_nobody_can_go_on_with(world: World) -> None:
    world.ledger(LedgerState.IN_RECOVERY)
    world.bookies["a"].log(entry(0, b"zero"))
    world.bookies["b"].log(journal_format.encode_fence_record(LEDGER))
    world.ledger(LedgerState.CLOSED, last=-1)
    assert "its writer could still hear that 0 is confirmed, from ['a', 'c']" in world.accusations


def test_an_end_that_was_denied_without_a_fence_is_seen(world: World) -> None:
    world.ledger(LedgerState.IN_RECOVERY)
    world.witness.denied_to_recovery("c", LEDGER, 0)
    for name in NAMES:
        world.bookies[name].log(journal_format.encode_fence_record(LEDGER))
    world.ledger(LedgerState.CLOSED, last=-1)
    assert "because c denied entry 0" in world.accusations
    assert "could still hear" not in world.accusations


def test_who_is_named_instead_of_another_has_everything(world: World) -> None:
    for name in NAMES:
        world.bookies[name].log(entry(0, b"zero"))
    world.ledger(LedgerState.CLOSED, last=0)
    world.ledger(LedgerState.CLOSED, last=0, bookies=("a", "d", "c"))
    assert "d is named for entry 7:0 instead of b" in world.accusations


def test_a_ledger_that_there_is_must_not_be_deleted(world: World) -> None:
    index = DiskIndex(world.bookies["a"].disk, world.bookies["a"].current)
    index.put_ledgers([(LEDGER, NO_KEY), (LEDGER + 1, NO_KEY)])
    index.delete_ledgers([LEDGER, LEDGER + 1])
    assert world.witness.violations == ["at 0.000000: a has deleted ledger 7, and its metadata is there"]


# --- the topic


def acknowledged(*ids: int) -> bytes:
    """An entry of a cursor ledger: the mark is (7, 0), these are acknowledged beyond."""
    words = [sum(1 << entry_id for entry_id in ids)]
    info = PositionInfo(ledgerId=LEDGER, entryId=0)
    info.individualDeletedMessageRanges.append(LongListMap(key=LEDGER, values=words))
    return info.SerializeToString()


def test_stored_acknowledgements_are_read_in_both_forms() -> None:
    stored = StoredAcknowledgements(PositionInfo.FromString(acknowledged(3, 5)))
    assert [entry_id for entry_id in range(8) if stored.cover((LEDGER, entry_id))] == [0, 3, 5]
    node = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=LEDGER, markDeleteEntryId=1)
    stretch = node.individualDeletedMessages.add()
    stretch.lowerEndpoint.ledgerId = stretch.upperEndpoint.ledgerId = LEDGER
    stretch.lowerEndpoint.entryId, stretch.upperEndpoint.entryId = 3, 5
    stored = StoredAcknowledgements(node)
    assert [entry_id for entry_id in range(8) if stored.cover((LEDGER, entry_id))] == [0, 1, 4, 5]


def cursor_node(ledger_id: int) -> bytes:
    info = ManagedCursorInfo(cursorsLedgerId=ledger_id, markDeleteLedgerId=LEDGER, markDeleteEntryId=0)
    return info.SerializeToString()


CURSOR_LEDGER: Final = 9


@pytest.fixture
def topic(world: World) -> World:
    """A topic of one ledger, and a cursor whose ledger says that entries 0 and 2 are acknowledged."""
    world.put(topic_path(TOPIC), encode_ledger_info([LedgerRecord(LEDGER)], None, {}))
    world.ledger(LedgerState.OPEN, ledger_id=CURSOR_LEDGER)
    watched = world.witness.ledgers[CURSOR_LEDGER]
    watched.payloads, watched.confirmed = [acknowledged(2)], 0
    world.witness.ledgers[LEDGER].confirmed = 4
    world.put(cursor_path(TOPIC, CURSOR), cursor_node(CURSOR_LEDGER))
    world.topic.appended("owner", (LEDGER, 0), [b"0", b"1", b"2", b"3", b"4"])
    return world


def test_a_receipt_is_looked_for_where_the_next_owner_looks(topic: World) -> None:
    topic.topic.receipt("owner", [(LEDGER, 0), (LEDGER, 2)], (LEDGER, 0))
    assert topic.accusations == ""
    topic.topic.receipt("owner", [(LEDGER, 3)], (LEDGER, 0))
    assert "owner has a receipt, and the next owner does not find the acknowledgements of [(7, 3)]" in topic.accusations


def test_a_mark_does_not_go_back(topic: World) -> None:
    topic.topic.receipt("owner", [], (LEDGER, 1))
    assert topic.accusations == ""
    topic.topic.receipt("owner", [(LEDGER, 0)], (LEDGER, 1))
    assert "the next owner finds the mark at (7, 0); it was at (7, 1)" in topic.accusations


@pytest.mark.parametrize(("value", "words"), [(cursor_node(-1), "does not find"), (cursor_node(99), "is not there")])
def test_a_node_that_names_less_is_seen(topic: World, value: bytes, words: str) -> None:
    topic.topic.receipt("owner", [(LEDGER, 2)], (LEDGER, 0))
    topic.put(cursor_path(TOPIC, CURSOR), value)
    assert words in topic.accusations


def test_an_entry_in_a_ledger_that_is_not_listed_is_seen(topic: World) -> None:
    topic.topic.acknowledged([(LEDGER, entry_id) for entry_id in range(4)])
    topic.put(topic_path(TOPIC), encode_ledger_info([], None, {}))
    assert "the next owner does not find (7, 4)" in topic.accusations


@pytest.mark.parametrize(
    ("first", "words"),
    [((LEDGER, 3), "another entry's place"), ((LEDGER, 0), "after (7, 4)"), ((LEDGER, 5), "confirmed up to 4")],
)
def test_places_of_entries_are_right(topic: World, first: Position, words: str) -> None:
    topic.topic.appended("owner" if words == "after (7, 4)" else "other", first, [b"x"])
    assert words in topic.accusations


def test_a_consumer_is_given_what_was_appended(topic: World) -> None:
    topic.topic.delivered("owner", (LEDGER, 1), b"1")
    assert topic.accusations == ""
    topic.topic.delivered("owner", (LEDGER, 1), b"2")
    assert "another entry (7, 1)" in topic.accusations
