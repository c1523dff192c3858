"""`magnetar bookie run` under trial, with two journals and two ledger directories, metadata in RocksDB, over TCP."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from magnetar.core.clock import SystemClock
from magnetar.ledger.bookie_client.bookie_connection import LAST_ADD_CONFIRMED, READ_FLAG_FENCE
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookie, TcpBookieSettings
from magnetar.net.free_ports import free_port
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec, master_key

from e2e import processes
from e2e.power.history import NEVER, LedgerHistory, LedgersHistory, Span, judge_entries, number_of, payload
from e2e.power.recording import Recording

DIRECTORIES: Final = 2
WRITERS: Final = 4
ENTRIES_MAX: Final = 150
BURST_MAX: Final = 20
MORE_ENTRIES: Final = 3
SIZES_BYTES: Final = (30, 300, 3_000, 12_000)
PAUSE_SECONDS_MAX: Final = 0.03
FENCED_SHARE: Final = 0.6
PASSWORD: Final = b"power"
ANOTHER_PASSWORD: Final = b"another"
START_SECONDS_MAX: Final = 60.0
ANSWER_SECONDS_MAX: Final = 30.0
MEGABYTE: Final = 1
SETTINGS: Final = {
    "journalMaxSizeMB": MEGABYTE,
    "journalPreAllocSizeMB": MEGABYTE,
    "journalMaxBackups": 0,
    "flushInterval": 300,
    "logSizeLimit": 1 << 20,
    "dbStorage_readAheadCacheMaxSizeMb": 0,
    "gcWaitTime": 3_600_000,
    "minorCompactionInterval": 0,
    "majorCompactionInterval": 0,
    "autoRecoveryDaemonEnabled": "false",
    "prometheusStatsHttpEnable": "false",
    "diskUsageThreshold": 0.99,
}
"""Collections of garbage would take all: no ledger of these is in the metadata. A standalone's are under trial, too."""

_Result = TypeVar("_Result")


class BookieSubject:
    """See `trial.Subject`."""

    def __init__(self, disk: Path, options: list[str], mistake: str = "") -> None:
        """`mistake` is one of `mistakes.CODE`, or empty."""
        self._disk = disk
        self._options = options
        self._mistake = mistake
        self._port = free_port()
        self._control_port = free_port()
        self._log = disk.parent / "bookie.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, recording: Recording) -> None:
        self._log.write_text("")
        settings = {**SETTINGS, "controlPort": self._control_port}
        command = [sys.executable, "-m", "e2e.power.small", "bookie", "run", "--port", str(self._port)]
        command += ["-m", f"rocksdb://{self._disk}/metadata", "--advertised-address", "127.0.0.1", "-l", "warning"]
        for number in range(DIRECTORIES):
            command += ["--journal", f"{self._disk}/journal-{number}", "--ledgers", f"{self._disk}/ledgers-{number}"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        command += self._options
        environment = {**recording.environment, "POWER_MISTAKE": self._mistake}
        process = self._process = processes.spawn(command, self._log, environment)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not processes.accepts(self._port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise processes.NotReady(self.log_text()[-1_000:])
            time.sleep(0.05)

    def load(self, recording: Recording, seed: int, seconds: float) -> LedgersHistory:
        async def run(bookie: TcpBookie) -> LedgersHistory:
            load = _LedgerLoad(bookie, recording, seed, time.monotonic() + seconds)
            await asyncio.gather(*(load.write(number) for number in range(WRITERS)))
            return load.history

        return self._with_client(run)

    def check(self, recording: Recording, history: LedgersHistory, cut: int) -> list[str]:
        async def run(bookie: TcpBookie) -> list[str]:
            found: list[str] = []
            for ledger in history.ledgers.values():
                found += await _check(bookie, recording, ledger, cut)
            return found

        try:
            problems = self._with_client(run)
        except (BookieError, TimeoutError) as error:
            problems = [f"the bookie does not serve: {error!r}"]
        if "Traceback" in self.log_text():
            problems.append("the log holds the stack of an error")
        return problems

    def settled(self, history: LedgersHistory, cut: int) -> LedgersHistory:
        return history.settled(cut)

    def kill(self) -> None:
        if self._process is not None:
            processes.kill_tree(self._process)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def _with_client(self, use: Callable[[TcpBookie], Coroutine[Any, Any, _Result]]) -> _Result:
        async def run() -> _Result:
            address = ("127.0.0.1", self._port)
            times = TcpBookieSettings(add_timeout_seconds=ANSWER_SECONDS_MAX, read_timeout_seconds=ANSWER_SECONDS_MAX)
            bookie = TcpBookie("bookie", lambda _: address, SystemClock(), times)
            try:
                return await use(bookie)
            finally:
                await bookie.close()

        return asyncio.run(run())


class _LedgerLoad:
    """Writers that fill one ledger after the other, and fence most of them."""

    def __init__(self, bookie: TcpBookie, recording: Recording, seed: int, until: float) -> None:
        self.history = LedgersHistory()
        self._bookie = bookie
        self._recording = recording
        self._seed = seed
        self._until = until

    async def write(self, number: int) -> None:
        """Until the time is over."""
        rng = random.Random(f"{self._seed}:{number}")
        ledger_id = number
        while time.monotonic() < self._until:
            ledger = self.history.ledgers[ledger_id] = LedgerHistory(ledger_id)
            for _ in range(rng.randint(1, ENTRIES_MAX // BURST_MAX)):
                await add(self._bookie, self._recording, ledger, rng.randint(1, BURST_MAX), rng)
                await asyncio.sleep(rng.uniform(0.0, PAUSE_SECONDS_MAX))
            if rng.random() < FENCED_SHARE:
                await self._fence(ledger)
            ledger_id += WRITERS

    async def _fence(self, ledger: LedgerHistory) -> None:
        span = ledger.fenced = Span(self._recording.now())
        await self._bookie.read_entry(ledger.ledger_id, LAST_ADD_CONFIRMED, READ_FLAG_FENCE, master_key(PASSWORD))
        span.confirmed = self._recording.now()


async def add(bookie: TcpBookie, recording: Recording, ledger: LedgerHistory, count: int, rng: random.Random) -> None:
    """Some more entries; returns when all are answered. `BookieError`."""
    codec = EntryCodec(ledger.ledger_id, "CRC32C", PASSWORD)
    first = max(ledger.entries, default=-1) + 1
    payloads = [payload(ledger.name, first + at, rng.choice(SIZES_BYTES)) for at in range(count)]
    spans = [Span(recording.now()) for _ in payloads]
    ledger.entries.update(enumerate(spans, first))
    codes = await _add(bookie, codec, first, payloads, codec.master_key)
    for at, code in codes.items():
        if code != BookieCode.EOK:
            raise BookieError(BookieCode(code), f"entry {at} of ledger {ledger.ledger_id}")
    confirmed = recording.now()
    for span in spans:
        span.confirmed = confirmed


async def _add(
    bookie: TcpBookie, codec: EntryCodec, first: int, payloads: Sequence[bytes], key: bytes
) -> dict[int, int]:
    """The code of each entry."""
    codes: dict[int, int] = {}
    answered = asyncio.get_running_loop().create_future()

    def done(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        codes.update(dict.fromkeys(entry_ids, code))
        if len(codes) == len(payloads):
            answered.set_result(None)

    entries = codec.encode_many(first, first - 1, 0, payloads)
    bookie.add_entries(codec.ledger_id, key, range(first, first + len(payloads)), entries, 0, done)
    await answered
    return codes


async def _check(bookie: TcpBookie, recording: Recording, ledger: LedgerHistory, cut: int) -> list[str]:
    codec = EntryCodec(ledger.ledger_id, "CRC32C", PASSWORD)
    found: dict[int, int | None] = {}
    wanted = range(max(ledger.entries, default=-1) + 1 + MORE_ENTRIES)
    for entry_id, entry in zip(wanted, await bookie.read_each(ledger.ledger_id, wanted), strict=True):
        if isinstance(entry, BookieError):
            if entry.code in (BookieCode.ENOENTRY, BookieCode.ENOLEDGER):
                continue
            return [f"entry {entry_id} of ledger {ledger.ledger_id} cannot be read: {entry}"]
        try:
            found[entry_id] = number_of(ledger.name, codec.decode(entry, entry_id))
        except DigestMismatch:
            found[entry_id] = None
    problems = judge_entries(ledger, cut, found)
    # What was read has to stay.
    ledger.entries = {entry_id: Span(-1, -1) for entry_id in found}
    if problems:
        return problems
    return await _check_fence(bookie, recording, ledger, cut)


async def _check_fence(bookie: TcpBookie, recording: Recording, ledger: LedgerHistory, cut: int) -> list[str]:
    """A fenced ledger takes nothing, another takes more, and none takes anything with a wrong key."""
    codec = EntryCodec(ledger.ledger_id, "CRC32C", PASSWORD)
    name = f"ledger {ledger.ledger_id}"
    behind = max(ledger.entries, default=-1) + 1
    if ledger.entries:
        code = (await _add(bookie, codec, behind, [b"wrong"], master_key(ANOTHER_PASSWORD)))[behind]
        refusals = [BookieCode.EUA, BookieCode.EFENCED] if ledger.fenced.may(cut) else [BookieCode.EUA]
        if code not in refusals:
            return [f"{name} answers {code} to a wrong master key"]
    if ledger.fenced.must(cut):
        code = (await _add(bookie, codec, behind, [b"late"], codec.master_key))[behind]
        return [] if code == BookieCode.EFENCED else [f"{name} was fenced, and answers {code} to an add"]
    try:
        await add(bookie, recording, ledger, MORE_ENTRIES, random.Random(ledger.ledger_id))
    except BookieError as error:
        for entry_id in range(behind, behind + MORE_ENTRIES):
            ledger.entries.pop(entry_id)
        if error.code != BookieCode.EFENCED or not ledger.fenced.may(cut):
            return [f"{name} takes nothing any more: {error}"]
        ledger.fenced = Span(-1, -1)
    else:
        ledger.fenced = Span(NEVER)
    return []
