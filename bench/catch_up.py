"""A subscription that is far behind catches up, while its topic is published to at half of what the server carries.

The Go program `bench/load -behind` publishes the backlog as fast as receipts come, beside a subscription of the newest
messages, and takes half of that rate for what follows. So each server has a rate of its own, which the table shows.
"""

from __future__ import annotations

import json
import time
from typing import Final

from bench.generators import BACKLOG_BYTES_PER_S, GRACE_S, Broken, build, warmup_s, watch
from bench.report import Metric
from e2e import processes
from e2e.server import StandaloneProcess

MB: Final = 1_000_000
MESSAGE_BYTES: Final = 1024


def metrics() -> list[Metric]:
    """Rows of the table. `times` is at least 1.5 where the way back is short; 1 is a backlog for ever."""
    return [
        Metric("catch-up.published_per_s", "catching up: published meanwhile (half of its own rate)", "msg/s"),
        Metric("catch-up.times", "… consumed to published", "", more_is_better=True),
        Metric("catch-up.seconds", "… until the newest message", "s"),
        Metric("catch-up.tail_p99_before_ms", "… p99 of a subscription of the newest messages, before", "ms"),
        Metric("catch-up.tail_p99_ms", "… and meanwhile", "ms"),
        Metric("catch-up.cpu_us_each", "… server CPU a message", "µs"),
        Metric("catch-up.rss_mb", "… memory at its end (RSS)", "MB"),
    ]


def catch_up(server: StandaloneProcess, megabytes: int, window_s: float) -> dict[str, float]:
    """So many MB behind. Raises Broken, also when it does not catch up in ten times the backlog's seconds."""
    count = megabytes * MB // MESSAGE_BYTES
    seconds_max = megabytes * MB / BACKLOG_BYTES_PER_S
    command = [
        str(build()),
        f"-url={server.service_url}",
        f"-topic=persistent://public/default/catch-up-{time.time_ns()}",
        f"-size={MESSAGE_BYTES}",
        "-batched",
        f"-behind={count}",
        f"-drain={seconds_max}s",
        f"-window={window_s}s",
        f"-warmup={warmup_s(window_s)}s",
    ]
    rss_bytes = 0

    def looked_at() -> float:
        nonlocal rss_bytes
        rss_bytes = max(rss_bytes, processes.memory(server.pids).rss_bytes)
        return processes.cpu_seconds(server.pids)

    lines, cpu_s = watch(command, looked_at, 2 * window_s + GRACE_S + 2 * seconds_max)
    found = json.loads(lines[-1])
    if not found["caught_up"] or found["failed"]:
        raise Broken(f"{count} messages behind after {found['seconds']:.0f} s: {found}")
    published_per_s = found["published"] / found["seconds"]
    return {
        "published_per_s": published_per_s,
        "times": found["consumed"] / found["seconds"] / published_per_s,
        "seconds": found["seconds"],
        "tail_p99_before_ms": found["before"]["p99_ms"],
        "tail_p99_ms": found["meanwhile"]["p99_ms"],
        "cpu_us_each": cpu_s * MB / (found["published"] + found["consumed"]),
        "rss_mb": rss_bytes / MB,
    }
