"""A standalone cluster in this process with 200 acknowledged messages, as kill -9 leaves it; and what it is after that.

The messages were published in three lives. The first ended cleanly, so that entry log and RocksDB's tables hold half
of them. The second was killed, and the third's checkpoint has put its messages into RocksDB's logs. The third was
killed as well: its messages are in the journal alone.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Final, Protocol

from magnetar.bookie.journal.note import read_note
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.message import Message, OutgoingMessage
from magnetar.client.reader import ReaderOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.disk import SystemDisk
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.standalone.cluster import RunningCluster, start_cluster
from magnetar.standalone.data_folder import claimed
from magnetar.standalone.settings import StandaloneSettings

from e2e.damage.kinds import Kind, damaged

TOPIC: Final = TopicName.parse("persistent://public/default/damaged")
OTHER_TOPIC: Final = TopicName.parse("persistent://public/default/other")
MESSAGES: Final = 200
MESSAGES_AT_ONCE: Final = 10
SECONDS_MAX: Final = 60.0
"""For one case, on a machine that is busy with others."""
CLOSE_SECONDS_MAX: Final = 20.0
LOOK_SECONDS: Final = 0.1
"""Between two looks at what is logged."""
TEXT_LOGS: Final = ("LOG", "LOG.old", "LOCK")
"""RocksDB's words for people, and what it locks."""
CLIENT_SETTINGS: Final = ClientSettings(operation_timeout_seconds=5.0)


class Outcome(enum.Enum):
    """What became of the messages."""

    RIGHT = "all messages are there"
    HEALED = "the start tells what is damaged, and healing brings all back from the other bookies"
    REPAIRED = "the log names what cannot be read, and AutoRecovery's check brings it back"
    REFUSED = "the start is refused, with the file's name"
    TOLD = "the log names what cannot be read, and it is not delivered"
    SILENT = "messages are missing as if they had never been, and nobody said why"
    WRONG = "a message is not what was sent"
    UNCLEAR = "there is an error that does not say where"
    HANG = "nothing happens"
    DAMAGED = "what cannot be read is told, and does not come back from the other bookies"

    @property
    def good(self) -> bool:
        """Whether this may be."""
        return self in (Outcome.RIGHT, Outcome.HEALED, Outcome.REPAIRED, Outcome.REFUSED, Outcome.TOLD)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one case."""

    outcome: Outcome
    said: str
    """The error, or the first line of the log that tells."""
    received: int


def payload(number: int) -> bytes:
    """A message that no other looks like, without zeros in it."""
    return (b"message %d;" % number) * 30


class Lines(logging.Handler):
    """Keeps what is logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.errors.append(f"{record.levelname} {record.getMessage()}")

    def telling(self, names: tuple[str, ...]) -> str:
        """The first line that tells of an entry or of the file; empty: none."""
        return next((line for line in self.errors if "cannot be read" in line or any(n in line for n in names)), "")

    def unreadable(self) -> str:
        """The first line that tells of an entry which cannot be read; empty: none."""
        return next((line for line in self.errors if "cannot be read" in line), "")

    def denying(self) -> bool:
        """Whether a bookie has said of an entry that it never had it."""
        return any("no bookie has entry" in line for line in self.errors)


class Endable(Protocol):
    """A reader of a topic."""

    async def next_or_end(self) -> Message | None: ...


class World:
    """One folder, put back to what it was before each case."""

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template"
        self._data = folder / "data"
        self._settings = StandaloneSettings(data_directory=self._data, broker_service_port=0, web_service_port=0)
        self.files: dict[str, str] = {}
        """Name that is the same in every run → path below the folder."""

    async def prepare(self, *, killed_first: bool = False) -> None:
        """Publish, and keep what a kill would leave. With `killed_first` in one life."""
        half, three_quarters = MESSAGES // 2, MESSAGES * 3 // 4
        lives = [range(half, three_quarters), range(three_quarters, MESSAGES)]
        if killed_first:
            lives = [range(MESSAGES)]
        else:
            cluster = await start_cluster(self._settings)
            await _publish(cluster, range(half))
            await cluster.close()
        for numbers in lives:
            cluster = await start_cluster(self._settings)
            await _publish(cluster, numbers)
            await _until_noted(self._data / "bookie/journal/current")
            copy_folder(self._data, self._template)
            await cluster.close()
            if numbers.stop < MESSAGES:
                shutil.rmtree(self._data)
                self._template.rename(self._data)
        with claimed(self._data):
            shutil.copy(self._data / "magnetar.lock", self._template)
        self.files = files_below(self._template)

    async def run(self, name: str, kind: Kind, seed: int) -> Verdict:
        """Damage one file, start, read everything."""
        shutil.rmtree(self._data, ignore_errors=True)
        copy_folder(self._template, self._data)
        path = self._data / self.files[name]
        damage(path, kind, Random(f"{name} {kind} {seed}"))
        return await self.look((path.name, str(path.parent)))

    async def run_without(self, *patterns: str) -> Verdict:
        """Lose several files at once, start, read everything. Patterns are of the names in `files`."""
        shutil.rmtree(self._data, ignore_errors=True)
        copy_folder(self._template, self._data)
        lost = [path for name, path in self.files.items() if any(fnmatch(name, pattern) for pattern in patterns)]
        assert len(lost) >= len(patterns)
        for path in lost:
            (self._data / path).unlink()
        return await self.look(tuple(str((self._data / path).parent) for path in lost))

    async def look(self, names: tuple[str, ...]) -> Verdict:
        """Start on the folder as it is, and read everything. `names`: what an error must name one of."""
        with listening() as lines:
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    with claimed(self._data):
                        cluster = await start_cluster(self._settings)
            except TimeoutError:
                return Verdict(Outcome.HANG, "the start does not end", 0)
            except (MagnetarError, OSError) as error:
                return Verdict(clear(str(error), names), f"{type(error).__name__}: {error}", 0)
            except Exception as error:  # noqa: BLE001  (exactly what must not come)
                return Verdict(Outcome.UNCLEAR, f"{type(error).__name__}: {error}", 0)
            try:
                return await _read(cluster, lines, names)
            finally:
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await cluster.close()


def files_below(folder: Path) -> dict[str, str]:
    """Name that is the same in every run → path below the folder; without what is written for people."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    kept = sorted(path for path in paths if not Path(path).name.startswith(TEXT_LOGS))
    journals = [path for path in kept if path.endswith(".txn")]
    names = {path: f"{Path(path).parent}/{len(journals) - at}.txn" for at, path in enumerate(journals)}
    return {names.get(path, path): path for path in kept}


def damage(path: Path, kind: Kind, rng: Random) -> None:
    """Do to a file what a disk does."""
    content = damaged(path.read_bytes(), kind, rng)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def clear(text: str, names: tuple[str, ...]) -> Outcome:
    """What a start that is refused is worth."""
    return Outcome.REFUSED if any(name in text for name in names) else Outcome.UNCLEAR


async def _publish(cluster: RunningCluster, numbers: range) -> None:
    client = PulsarClient(lambda: cluster.service_url, SystemClock())
    try:
        for topic in (TOPIC, OTHER_TOPIC):
            # A topic keeps what a subscription has not acknowledged.
            await (await client.consumer(topic, ConsumerOptions(subscription="keep", from_earliest=True))).close()
        producer = await client.producer(TOPIC)
        for first in numbers[::MESSAGES_AT_ONCE]:
            some = range(first, min(first + MESSAGES_AT_ONCE, numbers.stop))
            await producer.send_all([OutgoingMessage(payload(number)) for number in some])
        # The very last group of a journal is the one of which damage may look like a torn write.
        await (await client.producer(OTHER_TOPIC)).send(OutgoingMessage(payload(0)))
    finally:
        await client.close()


async def _until_noted(journal: Path) -> None:
    """Wait until the note of the durable end says all, which it does soon after the last write."""
    async with asyncio.timeout(SECONDS_MAX):
        while not _is_noted(journal):  # noqa: ASYNC110  (a file has no event)
            await asyncio.sleep(0.01)


def _is_noted(journal: Path) -> bool:
    file_id, offset = read_note(SystemDisk(), journal)
    newest = max(journal.glob("*.txn"), key=lambda path: int(path.stem, 16))
    return int(newest.stem, 16) == file_id and not newest.read_bytes()[offset:].strip(b"\0")


async def _read(cluster: RunningCluster, lines: Lines, names: tuple[str, ...]) -> Verdict:
    client = PulsarClient(lambda: cluster.service_url, SystemClock(), CLIENT_SETTINGS)
    received = 0
    try:
        async with asyncio.timeout(SECONDS_MAX):
            reader = await client.reader(TOPIC, ReaderOptions())
            while (message := await next_message(reader, lines)) is not None:
                if message != payload(received):
                    return Verdict(Outcome.WRONG, f"message {received} is {message[:60]!r}", received)
                received += 1
    except TimeoutError:
        return Verdict(Outcome.HANG, "; ".join(lines.errors[:3]), received)
    except MagnetarError as error:
        told = lines.telling(names)
        return Verdict(Outcome.TOLD if told else Outcome.SILENT, told or f"{type(error).__name__}: {error}", received)
    finally:
        await client.close()
    if received == MESSAGES:
        return Verdict(Outcome.RIGHT, "", received)
    told = lines.unreadable()
    return Verdict(Outcome.TOLD if told else Outcome.SILENT, told or "; ".join(lines.errors[:3]), received)


async def next_message(reader: Endable, lines: Lines) -> bytes | None:
    """The next message; None at the end, or once the log has said that it does not come.

    That a file is damaged says nothing of the message: on a busy machine it may just be late."""
    coming = asyncio.ensure_future(reader.next_or_end())
    try:
        while not coming.done():
            await asyncio.wait([coming], timeout=LOOK_SECONDS)
            if not coming.done() and (lines.unreadable() or lines.denying()):
                return None
        message = coming.result()
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    return None if message is None else message.payload


@contextmanager
def listening() -> Iterator[Lines]:
    """To what is logged meanwhile."""
    lines = Lines()
    root = logging.getLogger()
    root.addHandler(lines)
    try:
        yield lines
    finally:
        root.removeHandler(lines)


def copy_folder(source: Path, target: Path) -> None:
    """Journals are preallocated: a copy must not write their zeros."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
