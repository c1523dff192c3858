"""Finds what a test leaves behind: threads, child processes, sockets. The next test would suffer from them."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

WAIT_SECONDS: Final = 15.0
"""What is ending already may take its time on a busy machine."""

LOOK_SECONDS: Final = 0.02

KEEPERS: Final = ("(_poll_wrapper)", "magnetar event loop")
"""In the names of threads that stay on purpose, with the connections that they keep for the next user: gRPC's poller,
whose connections outlive their channels, and the event loop of each process of Spark."""


@dataclass(frozen=True)
class Possessions:
    """What this process has."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    sockets: frozenset[str]

    @classmethod
    def now(cls) -> Possessions:
        """Of this moment."""
        return cls(frozenset(threading.enumerate()), _children(), _sockets())

    def joined(self, other: Possessions) -> Possessions:
        """Of both."""
        return Possessions(self.threads | other.threads, self.children | other.children, self.sockets | other.sockets)

    def with_all_sockets(self) -> Possessions:
        """As if the sockets that there are now had always been there."""
        return replace(self, sockets=self.sockets | _sockets())

    def without(self, other: Possessions) -> Possessions:
        """What the other has not."""
        return Possessions(self.threads - other.threads, self.children - other.children, self.sockets - other.sockets)

    def lasting(self, since: Possessions) -> list[str]:
        """What there is beyond `since`, in words."""
        left = self.without(since)
        threads = [f"thread {thread.name}" for thread in left.threads if thread.is_alive() and not _keeps(thread)]
        children = [f"process {child} ({_command(child)})" for child in left.children]
        sockets = [] if any(map(_keeps, self.threads)) else [f"socket {name}" for name in left.sockets]
        return sorted(threads + children + sockets)


def left_behind(since: Possessions, wait_seconds: float = WAIT_SECONDS, *, sockets_count: bool = True) -> list[str]:
    """What there is beyond `since`, once it has had time to end by itself."""
    give_up_seconds = time.monotonic() + wait_seconds
    while left := Possessions.now().lasting(since if sockets_count else since.with_all_sockets()):
        if time.monotonic() >= give_up_seconds:
            return left
        time.sleep(LOOK_SECONDS)
    return []


def _keeps(thread: threading.Thread) -> bool:
    return any(name in thread.name for name in KEEPERS)


def _children() -> frozenset[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue  # The thread has ended while we looked.
    return frozenset(found)


def _sockets() -> frozenset[str]:
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # The folder's own descriptor is closed by now.
        if target.startswith("socket:"):
            found.add(target)
    return frozenset(found)


def _command(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "gone"
