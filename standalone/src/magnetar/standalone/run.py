"""Runs a standalone cluster until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import shutil
import signal
import sys
import time
from pathlib import Path

import uvloop
from magnetar.core.errors import MagnetarError
from magnetar.standalone.cluster import start_cluster
from magnetar.standalone.console import console, show_error, show_ready, show_stopped
from magnetar.standalone.settings import StandaloneSettings

DATA_FOLDER_ENTRIES = {"metadata", "bookie"}
"""What a data folder of ours may hold; `--fresh` removes nothing else."""

THREAD_SWITCH_SECONDS = 0.0005
"""How long the event loop may keep the interpreter from the journal thread, which needs it for microseconds only.
The default of 5 ms would stand in every acknowledgement under load."""


def run_standalone(settings: StandaloneSettings, *, fresh: bool, log_level: str, started_seconds: float) -> int:
    """Start, tell the user, serve until SIGINT or SIGTERM, stop cleanly. Returns the exit code."""
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s %(message)s"
    )
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    try:
        if fresh:
            remove_data(settings.data_directory)
        uvloop.run(_serve(settings, started_seconds))
    except OSError as error:
        show_error(*explain_os_error(error, settings))
        return 1
    except MagnetarError as error:
        show_error(str(error), f"The data folder is {settings.data_directory}; --data chooses another one.")
        return 1
    return 0


async def _serve(settings: StandaloneSettings, started_seconds: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    cluster = await start_cluster(settings)
    # What stands now stays: the collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    show_ready(cluster.service_url, cluster.admin_url, settings.data_directory, time.perf_counter() - started_seconds)
    await stop.wait()
    console.print("[yellow]●[/] Stopping…")
    await cluster.close()
    show_stopped()


def remove_data(directory: Path) -> None:
    """Remove what a standalone cluster stored; refuses a folder that holds anything else."""
    if not directory.exists():
        return
    strangers = sorted({entry.name for entry in directory.iterdir()} - DATA_FOLDER_ENTRIES)
    if strangers:
        raise MagnetarError(f"--fresh refuses to empty {directory}: it holds {', '.join(strangers[:3])}, not our data")
    for name in DATA_FOLDER_ENTRIES:
        shutil.rmtree(directory / name, ignore_errors=True)


def explain_os_error(error: OSError, settings: StandaloneSettings) -> tuple[str, str]:
    """The error in words, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {settings.broker_service_port} or {settings.web_service_port} of {settings.address} is taken.",
            "Stop the other program, or choose others: --port 0 --http-port 0 takes any free ones.",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings.address} is not an address of this machine.", "Give one with --address."
    if error.errno in (errno.EACCES, errno.EROFS):
        return f"No permission: {error}.", "Choose a folder that you may write with --data."
    if error.errno == errno.ENOSPC:
        return f"The disk is full: {error}.", "Free some space, or choose another folder with --data."
    return str(error), "Run again with --log-level debug for more."
