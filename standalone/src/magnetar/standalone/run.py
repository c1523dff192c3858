"""Runs a standalone cluster until it is told to stop."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path
from typing import Final

import uvloop
from magnetar.bookie.cookie import InvalidCookie
from magnetar.bookie.loss import NOT_FOR_COOKIES, WHAT_TO_DO, without_advice
from magnetar.core.crashes import CRASHES
from magnetar.core.errors import MagnetarError, SettingError
from magnetar.core.exit_codes import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from magnetar.net.descriptors import raise_limit
from magnetar.process.console import show_error
from magnetar.process.serving import STOP_SECONDS_MAX, prepare, serve_until_told
from magnetar.standalone.announcements import show_ready, show_stopped, show_stopping
from magnetar.standalone.cluster import RunningCluster, start_cluster
from magnetar.standalone.data_folder import CRASH_FOLDER, FolderInUse, claimed
from magnetar.standalone.settings import StandaloneSettings

PUT_BACK: Final = (
    "Put a copy back that is not damaged. Or start without what is lost: --accept-loss gives it up for good."
)
"""About damage: there are no other bookies to fetch anything from."""


def run_standalone(settings: StandaloneSettings, *, fresh: bool, log_level: str) -> int:
    """Start, tell the user, serve until SIGINT or SIGTERM, stop cleanly. Returns the exit code.

    A second signal ends the process at once, by that signal."""
    prepare(log_level)
    raise_limit()
    try:
        _refuse_one_port_for_both(settings)
        with claimed(settings.data_directory, fresh=fresh):
            CRASHES.record_in(settings.data_directory / CRASH_FOLDER)
            uvloop.run(_serve(settings))
    except TimeoutError:
        show_error(f"Not stopped within {STOP_SECONDS_MAX:g} s.", "Everything acknowledged is in the journal.")
        return EXIT_FAILED
    except OSError as error:
        show_error(*explain_os_error(error, settings))
        return EXIT_FAILED
    except SettingError as error:
        show_error(str(error), "Correct the setting and start again.")
        return EXIT_USAGE
    except MagnetarError as error:
        show_error(*explain_error(error, settings))
        return EXIT_FAILED
    return EXIT_STOPPED


def _refuse_one_port_for_both(settings: StandaloneSettings) -> None:
    # The system lets one process bind it twice; then no client could connect, and nothing would tell.
    if settings.broker_service_port == settings.web_service_port != 0:
        raise SettingError(f"--port and --http-port are both {settings.web_service_port}: each needs a port of its own")


async def _serve(settings: StandaloneSettings) -> None:
    def started(cluster: RunningCluster) -> None:
        show_ready(cluster.service_url, cluster.admin_url, settings.data_directory, process_age_seconds())

    await serve_until_told(lambda: start_cluster(settings), started, show_stopping)
    show_stopped()


def process_age_seconds() -> float:
    """How long ago the system started this process: with the interpreter's own start and all imports, to 10 ms.
    Where the system does not tell, the time that it has computed."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_ticks = int(fields[19])  # The 22nd of all, the 20th behind the name; see proc(5).
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.process_time()


def explain_error(error: MagnetarError, settings: StandaloneSettings) -> tuple[str, str]:
    """The error in words, and what to do about it."""
    if isinstance(error, FolderInUse):
        return str(error), "Stop that one, or choose another folder with --data."
    if "No space left on device" in str(error):
        return f"The disk is full: {error}", "Free some space, or choose another folder with --data."
    place = f"The data folder is {settings.data_directory}; --data chooses another one."
    if WHAT_TO_DO in str(error):
        return f"{without_advice(str(error))}.", f"{PUT_BACK} {place}"
    if settings.accept_loss and isinstance(error, InvalidCookie):
        return str(error), f"{NOT_FOR_COOKIES} {place}"
    return str(error), place


def explain_os_error(error: OSError, settings: StandaloneSettings) -> tuple[str, str]:
    """The error in words, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        ports = [settings.broker_service_port, settings.web_service_port]
        taken = [port for port in ports if f", {port})" in str(error)] or ports
        return (
            f"Port {' or '.join(map(str, taken))} of {settings.address} is taken.",
            "Stop the other program, or choose others: --port 0 --http-port 0 takes any free ones.",
        )
    if isinstance(error, socket.gaierror):
        return f"{settings.address} is no address, nor a host that is known here.", "Give one with --address."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings.address} is not an address of this machine.", "Give one with --address."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"Not allowed: {error}", "Choose a folder and ports that you may use: --data, --port, --http-port."
    if error.errno == errno.ENOENT and str(error.filename) == str(settings.data_directory):
        return f"The folder {settings.data_directory} cannot be made.", "Choose another one with --data."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{settings.data_directory} is not a folder.", "Choose one with --data."
    if error.errno == errno.EISDIR:
        return f"A directory stands where a file should: {error}", "Put the file back that was there."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left on device" in str(error):
        return f"The disk is full: {error}", "Free some space, or choose another folder with --data."
    return str(error), "Run again with --log-level debug for more."
