"""What is measured on bookies, and the rows of the table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.core.limits import MIB

from bench.generators import Broken
from bench.report import Metric

if TYPE_CHECKING:
    from bench.bookies.fleet import Fleet, Load

KIB = 1024
LEDGERS = 10
FIXED_RATE = 1_000
COLD_BYTES = 1536 * MIB
"""More than any cache of either side holds."""
JOURNAL_BYTES = 1024 * MIB
RECOVERY_BYTES = 512 * MIB
RECOVERY_SECONDS_MAX = 120.0

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A name and what to do: (fleet, load, window in seconds, share of the data) → figures."""

    name: str
    run: Callable[[Fleet, Load, float, float], Figures]
    alone: bool = False
    """On bookies of its own, which hold nothing else."""


def _quorums(bookies: int) -> dict[str, int | str]:
    return {"ensemble": bookies, "write": bookies, "ack": bookies // 2 + 1}


def _add(bookies: int, size_bytes: int) -> Callable[[Fleet, Load, float, float], Figures]:
    def run(fleet: Fleet, load: Load, window_s: float, _: float) -> Figures:
        fleet.start(bookies)
        outstanding = 2_000 if size_bytes <= KIB else 200
        options: dict[str, int | str] = {
            "mode": "add",
            "ledgers": LEDGERS,
            "size": size_bytes,
            "outstanding": outstanding,
        }
        found = load.measure({**options, **_quorums(bookies)}, window_s)
        added = found["added"]
        return {
            "entries_per_s": added / found["seconds"],
            "mb_per_s": added * size_bytes / found["seconds"] / 1e6,
            "cpu_s_per_gb": found["cpu_s"] / (added * size_bytes * bookies / 1e9),
            "p50_ms": found["p50_ms"],
            "p99_ms": found["p99_ms"],
        }

    return run


def _fixed_rate(_: Fleet, load: Load, window_s: float, __: float) -> Figures:
    found = load.measure({"mode": "add", "ledgers": LEDGERS, "size": KIB, "rate": FIXED_RATE}, window_s)
    return {
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
        "cpu_percent": found["cpu_s"] / found["seconds"] * 100,
    }


def _catch_up(fleet: Fleet, load: Load, window_s: float, size_factor: float) -> Figures:
    entries = int(COLD_BYTES * size_factor / KIB)
    ledger = load.fill({"size": KIB, "entries": entries})
    _drop_page_cache()
    alone = load.measure({"mode": "read", "ledger": ledger, "size": KIB, "rate": 0}, window_s)
    _drop_page_cache()
    both = load.measure(
        {"mode": "read", "ledger": ledger, "ledgers": LEDGERS, "size": KIB, "rate": FIXED_RATE}, window_s
    )
    return {
        "read_per_s": alone["read"] / alone["seconds"],
        "read_cpu_s_per_million": alone["cpu_s"] / max(1.0, alone["read"]) * 1e6,
        "read_while_adding_per_s": both["read"] / both["seconds"],
        "add_p50_ms": both["p50_ms"],
        "add_p99_ms": both["p99_ms"],
    }


def _drop_page_cache() -> None:
    """So that a cold read is one. Needs root; without, both sides read from memory alike."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return


def _replay(fleet: Fleet, load: Load, _: float, size_factor: float) -> Figures:
    """The time from a start to serving, with a journal that no checkpoint has seen: its marks are taken away."""
    fleet.start(1)
    bookie = fleet.bookies[0]
    load.fill({"size": KIB, "entries": int(JOURNAL_BYTES * size_factor / KIB)})
    bookie.kill()
    journal_bytes = sum(_used_bytes(path) for path in bookie.journal.glob("*.txn"))
    for mark in bookie.ledgers.glob("lastMark*"):
        mark.unlink()
    begin = time.monotonic()
    bookie.start()
    seconds = time.monotonic() - begin
    return {"s_per_gb": seconds / (journal_bytes / 1e9), "journal_gb": journal_bytes / 1e9}


def _used_bytes(path: Path) -> int:
    # Preallocated space that was never written is not part of what must be replayed.
    return min(path.stat().st_size, path.stat().st_blocks * 512)


def _recovery(fleet: Fleet, load: Load, _: float, size_factor: float) -> Figures:
    """Bytes a second that return to full replication after one of four bookies has died."""
    fleet.start(3)
    entries = int(RECOVERY_BYTES * size_factor / KIB)
    ledger = load.fill({"size": KIB, "entries": entries, "ensemble": 3, "write": 3, "ack": 2})
    lost = fleet.bookies[0]
    fleet.start(4)
    lost.kill()
    begin = time.monotonic()
    cpu = fleet.cpu_seconds()
    with fleet.autorecovery() as pids:
        while lost.id in fleet.metadata_text(ledger):
            if time.monotonic() - begin > RECOVERY_SECONDS_MAX:
                raise Broken("the ledger is still under-replicated")
            time.sleep(0.1)
        seconds = time.monotonic() - begin
        cpu = fleet.cpu_seconds(pids) - cpu
    gigabytes = entries * KIB / 1e9
    return {"mb_per_s": gigabytes * 1e3 / seconds, "seconds": seconds, "cpu_s_per_gb": cpu / gigabytes}


SCENARIOS = [
    Scenario("add-1KiB-Qw1", _add(1, KIB)),
    Scenario("rate-1000", _fixed_rate),
    Scenario("catch-up", _catch_up),
    # All that these write at once would fill the disk, and bookies on a full disk take nothing.
    Scenario("add-64KiB-Qw1", _add(1, 64 * KIB), alone=True),
    Scenario("add-1KiB-Qw3", _add(3, KIB), alone=True),
    Scenario("add-64KiB-Qw3", _add(3, 64 * KIB), alone=True),
    Scenario("replay", _replay, alone=True),
    Scenario("recovery", _recovery, alone=True),
]


def metrics() -> list[Metric]:
    """Every row of the table; goals are ratios to Apache's bookie."""
    found = [
        Metric("busy_before", "cores of the machine busy before", "cores"),
        Metric("start_s", "start of a bookie", "s", goal=1.0),
        Metric("idle_pss_mb", "memory idle (PSS)", "MB", goal=0.35),
        Metric("loaded_pss_mb", "memory after 1 KiB adds (PSS)", "MB", goal=0.35),
    ]
    for name in [each.name for each in SCENARIOS if each.name.startswith("add-")]:
        goal = 1.2 if name.startswith("add-1KiB") else 1.0
        found.append(Metric(f"{name}.entries_per_s", f"{name}: added", "entries/s", goal=goal, more_is_better=True))
        found.append(Metric(f"{name}.mb_per_s", f"{name}: added", "MB/s", more_is_better=True))
        found.append(Metric(f"{name}.cpu_s_per_gb", f"{name}: CPU per GB stored", "s", goal=0.7))
        found.append(Metric(f"{name}.p99_ms", f"{name}: add p99", "ms"))
    return [
        *found,
        Metric("rate-1000.p50_ms", "1000 entries/s: add p50", "ms"),
        Metric("rate-1000.p99_ms", "1000 entries/s: add p99", "ms", goal=1.0),
        Metric("rate-1000.cpu_percent", "1000 entries/s: CPU", "% of a core", goal=0.7),
        Metric("catch-up.read_per_s", "catch-up read", "entries/s", goal=1.0, more_is_better=True),
        Metric("catch-up.read_cpu_s_per_million", "catch-up read: CPU per million", "s", goal=0.7),
        Metric(
            "catch-up.read_while_adding_per_s", "catch-up read while adding", "entries/s", goal=1.0, more_is_better=True
        ),
        Metric("catch-up.add_p99_ms", "1000 entries/s while catching up: add p99", "ms", goal=1.0),
        Metric("replay.s_per_gb", "replay per GB of journal", "s", goal=1.0),
        Metric("recovery.mb_per_s", "re-replication", "MB/s", goal=1.0, more_is_better=True),
        Metric("recovery.cpu_s_per_gb", "re-replication: CPU per GB", "s", goal=0.7),
    ]
