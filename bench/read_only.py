"""One topic with very many subscriptions, at the broker that writes and at read-only brokers beside it.

`python -m bench.read_only [--subscriptions N] [--readers N] [--rate N] [--seconds N] [--cores SHARE] [--apache]`

Three times after each other, on fresh topics of one cluster, under the Go generator: nobody consumes, all subscriptions
are at the broker that writes, all are at the read-only brokers. Each read-only broker has a share of a core, by a
control group (`--cores`, needs root), so that four of them are no more than a small machine has; `--cores 0`: no limit.
`--apache`: the broker that writes is Apache's. A message is delivered once to each subscription, so that the deliveries
a second are the rate times their number: what that may be, the generator's own cores bound.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.cluster import load
from bench.cluster.load import Load
from bench.cpu_share import CpuShares
from e2e import processes
from e2e.interchange import brokers
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import OurBroker
from e2e.interchange.parts import BrokerPart

QUORUMS: Final = (1, 1, 1)
BODY_BYTES: Final = 1024
SETTLED_S: Final = 45.0
"""After the first message each subscription has a position to store at once; later they do so in turn."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    subscriptions: int
    rate: int
    """Messages a second."""
    window_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of it."""

    seen: load.Seen
    subscriptions: int
    window_s: float

    @property
    def delivered_share(self) -> float:
        """Of what was published; 1 where nobody consumes."""
        wanted = self.seen.published_per_s * self.subscriptions
        return self.seen.consumed_per_s / wanted if wanted else 1.0

    @property
    def writer_cpu_percent(self) -> float:
        """Of a core."""
        return 100 * self.seen.cpu_s["writer"] / self.window_s

    @property
    def readers_cpu_us(self) -> float:
        """For each message that was delivered."""
        return 1e6 * self.seen.cpu_s["readers"] / max(1.0, self.seen.consumed_per_s * self.window_s)


def measure(topic: str, plan: Plan, subscriptions: int, writer: BrokerPart, readers: list[BrokerPart]) -> Figures:
    """Publish at the writer, consume at the read-only brokers, or at the writer where there are none."""
    urls = [part.service_url.removeprefix("pulsar://") for part in readers or [writer]]
    seen = load.run(
        Load("read-only", BODY_BYTES, rate=plan.rate, subscriptions=subscriptions, warmup_s=SETTLED_S),
        writer.service_url,
        topic,
        plan.window_s,
        {"writer": writer.pids, "readers": [pid for part in readers for pid in part.pids]},
        consume_url="pulsar://" + ",".join(urls),
    )
    return Figures(seen, subscriptions, plan.window_s)


def table_of(plan: Plan, found: dict[str, Figures]) -> Table:
    """One row for each way."""
    title = f"{plan.subscriptions} subscriptions, {plan.rate} messages of {BODY_BYTES} bytes a second"
    table = Table(title=title)
    for name in ("consumers at", "opened, s", "delivered, of published", "p50, ms", "p99, ms",
                 "writer's CPU, % of a core", "readers' CPU, µs a delivery"):  # fmt: skip
        table.add_column(name, justify="left" if name == "consumers at" else "right")
    for name, figures in found.items():
        consumes = figures.subscriptions > 0
        table.add_row(
            name,
            f"{figures.seen.opening_s:.1f}" if consumes else "-",
            f"{figures.delivered_share:.3f}" if consumes else "-",
            f"{figures.seen.end_to_end_p50_ms:.1f}" if consumes else "-",
            f"{figures.seen.end_to_end_p99_ms:.1f}" if consumes else "-",
            f"{figures.writer_cpu_percent:.2f}",
            f"{figures.readers_cpu_us:.1f}" if figures.seen.cpu_s["readers"] else "-",
        )
    return table


@contextmanager
def limited(parts: list[BrokerPart], cores: float) -> Iterator[None]:
    """Each process of these has a share of a core; 0: as much as there is."""
    if not cores:
        yield
        return
    with CpuShares(cores) as shares:
        for part in parts:
            for pid in part.pids:
                shares.limit(pid)
        yield


def main() -> None:
    """Measures nobody, the writer, and the read-only brokers, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscriptions", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=4, help="read-only brokers")
    parser.add_argument("--rate", type=int, default=1, help="messages a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--cores", type=float, default=0.2, help="share of a core of each read-only broker; 0: no limit"
    )
    parser.add_argument("--apache", action="store_true", help="Apache's broker writes")
    arguments = parser.parse_args()
    processes.leave_nothing_behind()
    console = Console(width=160)
    plan = Plan(arguments.subscriptions, arguments.rate, arguments.seconds)
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-read-only-") as folder, Cluster(Path(folder)) as cluster:
        cluster.initialize_pulsar(transaction_coordinators=1)
        cluster.start(cluster.our_bookie("bookie"))
        writer = cluster.apache_broker(QUORUMS) if arguments.apache else cluster.our_broker(QUORUMS)
        brokers.start_with_namespace(cluster, writer)
        settings = {"readOnlyBrokerEnabled": "true"}
        readers: list[BrokerPart] = [
            cluster.keep(OurBroker(cluster.folder / f"reader{number}", cluster.zookeeper.address, QUORUMS, settings))
            for number in range(arguments.readers)
        ]
        cluster.start(*readers)
        ways = {
            "nobody": (0, []),
            "the broker that writes": (plan.subscriptions, []),
            f"{len(readers)} read-only brokers": (plan.subscriptions, readers),
        }
        for name, (subscriptions, at) in ways.items():
            console.print(f"{name} … load {os.getloadavg()[0]:.1f}")
            topic = f"persistent://public/default/bench-{len(found)}"
            with limited(at, arguments.cores):
                found[name] = measure(topic, plan, subscriptions, writer, at)
    console.print(table_of(plan, found))


if __name__ == "__main__":
    main()
