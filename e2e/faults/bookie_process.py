"""A bookie of its own process, so that it can be stopped and killed: `python -m e2e.faults.bookie_process FOLDER PORT`.

Its metadata is its own; whoever starts it registers it where brokers look.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import uvloop
from magnetar.bookie.app import start_bookie
from magnetar.bookie.settings import BookieSettings, DiskSettings
from magnetar.core.clock import SystemClock
from magnetar.metadata.rocksdb import RocksdbMetadataStore


async def serve(folder: Path, port: int) -> None:
    store = RocksdbMetadataStore(folder / "metadata")
    settings = BookieSettings(
        journal_directories=(folder / "journal",),
        ledger_directories=(folder / "ledgers",),
        port=port,
        listen_host="127.0.0.1",
        disk=DiskSettings(usage_threshold=0.99, usage_low_water=0.98),
    )
    await start_bookie(settings, store, SystemClock())
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
