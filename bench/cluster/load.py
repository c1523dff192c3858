"""`bench/load` on topics of one's choice, with the CPU time of several parts of a cluster around its window."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from bench.generators import GRACE_S, build, warmup_s, watch
from e2e import processes

BACKLOG_S = 300.0
"""At most so long a backlog is made and consumed."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load. `rate` 0: as fast as receipts come; `backlog` not 0: publish so much first, measure consuming it."""

    name: str
    size_bytes: int = 1024
    batched: bool = False
    topics: int = 1
    rate: int = 0
    backlog: int = 0
    subscriptions: int = 1
    """Of each topic; 0: nobody consumes."""
    rest_s: float = 0.0
    """Between the end of publishing a backlog and consuming it: caches forget it meanwhile."""
    warmup_s: float | None = None
    """Before the window; None: a third of it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw in the window, and what each part used of a CPU meanwhile, in seconds."""

    published_per_s: float
    consumed_per_s: float
    messages: int
    bytes_through: int
    """Payload, published and consumed."""
    failed: int
    publish_p50_ms: float
    publish_p99_ms: float
    end_to_end_p50_ms: float
    end_to_end_p99_ms: float
    opening_s: float
    """Of all producers, one after the other, and of all consumers, 32 at a time."""
    cpu_s: Mapping[str, float]


def run(
    load: Load, service_url: str, topic: str, window_s: float, parts: Mapping[str, list[int]], consume_url: str = ""
) -> Seen:
    """`parts` names process ids; `consume_url`: consumers are elsewhere, for example at another cluster. Raises Broken.

    Of a backlog the window is as long as consuming takes."""
    marks: list[dict[str, float]] = []

    def mark() -> float:
        marks.append({name: processes.cpu_seconds(pids) for name, pids in parts.items()})
        return 0.0

    command = [*_command(load, service_url, topic, window_s), f"-consume-url={consume_url}"]
    lines, _ = watch(command, mark, window_s + GRACE_S + (BACKLOG_S if load.backlog or load.subscriptions > 1 else 0))
    found = json.loads(lines[-1])
    # What a backlog is made of was published before the window.
    published = 0 if load.backlog else found["published"]
    before, after = marks
    return Seen(
        published_per_s=published / found["seconds"],
        consumed_per_s=found["consumed"] / found["seconds"],
        messages=max(published, found["consumed"]),
        bytes_through=(published + found["consumed"]) * load.size_bytes,
        failed=found["failed"],
        publish_p50_ms=found["publish"]["p50_ms"],
        publish_p99_ms=found["publish"]["p99_ms"],
        end_to_end_p50_ms=found["end_to_end"]["p50_ms"],
        end_to_end_p99_ms=found["end_to_end"]["p99_ms"],
        opening_s=found["opening_s"],
        cpu_s={name: after[name] - before[name] for name in parts},
    )


def fill(load: Load, service_url: str, topic: str) -> None:
    """Publish the load's backlog, and leave it to a subscription without consumers. Raises Broken."""
    watch([*_command(load, service_url, topic, 0.0), "-drain=1ms"], lambda: 0.0, GRACE_S + BACKLOG_S)


def _command(load: Load, service_url: str, topic: str, window_s: float) -> list[str]:
    return [
        str(build()),
        f"-url={service_url}",
        f"-topic={topic}",
        f"-topics={load.topics}",
        f"-size={load.size_bytes}",
        f"-batched={str(load.batched).lower()}",
        f"-rate={load.rate}",
        f"-backlog={load.backlog}",
        f"-subscriptions={load.subscriptions}",
        f"-rest={load.rest_s}s",
        f"-window={window_s}s",
        f"-warmup={warmup_s(window_s) if load.warmup_s is None else load.warmup_s}s",
    ]
