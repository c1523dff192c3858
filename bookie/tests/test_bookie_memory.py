"""What clients that never read cost a whole process: several real connections, and the system's own count of memory."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, MIB
from magnetar.net.testing import SilentClient, until
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.entry import EntryCodec
from magnetar.wire.framing import FrameSplitter

BOOKIE = """
import asyncio, dataclasses, sys
from pathlib import Path
from magnetar.bookie.app import start_bookie
from magnetar.bookie.settings import DiskSettings, standalone_settings
from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryMetadataStore

async def main():
    disk = DiskSettings(usage_threshold=1.0, usage_low_water=1.0, free_bytes_min=0)
    settings = dataclasses.replace(standalone_settings(Path(sys.argv[1])), port=0, disk=disk, serve_tcp=True)
    store = MemoryMetadataStore()
    running = await start_bookie(settings, store, SystemClock())
    print(running.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await running.close()
    await store.close()

asyncio.run(main())
"""

CODEC = EntryCodec(1, "CRC32C")
ENTRY_BYTES = 1 * MIB
ENTRIES = 5
SILENT = 6
READS = v2.encode_batch_read_request(1, 0, 42, 1_000, ENTRIES * MIB) * 64
"""320 MiB of replies for 2.5 kB."""

UNSENT_BYTES_MAX = 16 * MIB
"""Of one connection: 4 MiB after which nothing more is made, and what was being made then."""
SLACK_BYTES = 64 * MIB
"""What the allocator keeps, and what the honest client costs."""


@asynccontextmanager
async def bookie(folder: Path) -> AsyncIterator[tuple[int, int]]:
    """A process; its port and its id."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BOOKIE, str(folder), stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            yield int(await process.stdout.readline()), process.pid
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def memory_bytes(pid: int, name: str) -> int:
    """VmRSS: what a process has in memory, VmHWM: the most that it had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


class Honest:
    """Adds and reads entries, one after the other."""

    def __init__(self, client: SilentClient, ledger_id: int) -> None:
        self._client = client
        self._codec = EntryCodec(ledger_id, "CRC32C")
        self._ledger_id = ledger_id
        self._splitter = FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX)

    async def add(self, entry_id: int, payload: bytes) -> None:
        (entry,) = self._codec.encode_many(entry_id, entry_id - 1, 0, [payload])
        await self._client.send(struct.pack(">II", 24 + len(entry), 2 << 24 | 1 << 16) + self._codec.master_key + entry)
        await self._reply()

    async def read(self, entry_id: int) -> None:
        await self._client.send(struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, self._ledger_id, entry_id))
        await self._reply()

    async def _reply(self) -> None:
        while not self._splitter.feed(data := await self._client.read(1))[1]:
            assert data, "the bookie has closed the connection"


@pytest.mark.slow
async def test_six_clients_that_never_read_cost_little_and_the_seventh_is_served(tmp_path: Path) -> None:
    async with bookie(tmp_path) as (port, pid):
        first = await SilentClient.open(port)
        writer = Honest(first, 1)
        for entry_id in range(ENTRIES):
            await writer.add(entry_id, bytes(ENTRY_BYTES))
        first.close()
        before_bytes = memory_bytes(pid, "VmRSS")
        silent = [await SilentClient.open(port) for _ in range(SILENT)]
        for client in silent:
            await client.send(READS)
        # Each has begun to get replies.
        await until(lambda: memory_bytes(pid, "VmRSS") > before_bytes + SILENT * MIB)
        last = await SilentClient.open(port)
        honest = Honest(last, 2)
        for entry_id in range(100):
            await honest.add(entry_id, b"x" * 1_000)
            await honest.read(entry_id)
        grown_bytes = memory_bytes(pid, "VmHWM") - before_bytes
        assert grown_bytes < SILENT * UNSENT_BYTES_MAX + SLACK_BYTES, f"memory grew by {grown_bytes / MIB:.0f} MiB"
        for client in [*silent, last]:
            client.close()
