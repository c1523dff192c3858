"""Kills the standalone again and again under load, with SIGKILL, and checks every client's history afterwards.

`python -m e2e.local.kill_loop [--kills 50] [--seed N] [--client go] [--server magnetar|apache]`

The seed fixes the workload and how long the server lives between kills, so the printed command replays the schedule;
what the machine does in between is its own affair.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from e2e import corpus, processes, run_clients
from e2e.run_clients import ENDLESS, Failure, Run, Tail, finish_endless
from e2e.server import new_server
from e2e.workload import CLIENTS, COMPRESSIONS, SubscriptionType, Workload

logger: Final = logging.getLogger("e2e")
# From killing during start to killing in full flow.
ALIVE_MIN_S, ALIVE_MAX_S = 0.0, 3.0
# Enough to keep the topic busy all the time, little enough that histories stay readable.
MESSAGES_PER_SECOND = 2000
CORPUS_LINES = 10_000


def draw(random_source: random.Random, client: str) -> Workload:
    """A workload that suits long runs: any subscription type, any batching, keys where they are needed."""
    kind = random_source.choice(list(SubscriptionType))
    return Workload(
        client=client,
        subscription_type=kind,
        batched=random_source.random() < 0.5,
        compression=random_source.choice(COMPRESSIONS),
        keyed=kind is SubscriptionType.KEY_SHARED or random_source.random() < 0.5,
        partitions=random_source.choice([0, 3]),
        restart=True,
        count=ENDLESS,
    )


def kill_again_and_again(this: Run, kills: int, random_source: random.Random) -> None:
    """Disturbs a run; afterwards the server is up and the stop file tells the consumer how many messages to expect."""
    acked = Tail(this.history_file("produce"), "acked")
    for kill in range(1, kills + 1):
        time.sleep(random_source.uniform(ALIVE_MIN_S, ALIVE_MAX_S))
        this.kill_and_restart()
        logger.info("kill %d of %d, %d acknowledged so far", kill, kills, acked.poll())
    finish_endless(this)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=["magnetar", "apache"], default=None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--client", choices=CLIENTS, default="go")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    random_source = random.Random(seed)
    workload = draw(random_source, arguments.client)
    replay = f"python -m e2e.local.kill_loop --kills {arguments.kills} --client {arguments.client} --seed {seed}"
    logger.info("%s\nreplay: %s", workload.name, replay)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-kill-loop-"))
    corpus.write(folder / "corpus.txt", CORPUS_LINES)
    processes.leave_nothing_behind()
    server = new_server(arguments.server, folder / "data")
    server.start()
    try:
        this = Run(workload, server, folder, rate=MESSAGES_PER_SECOND, idle_timeout_s=120.0, linger_ms=3000)
        this.topic = f"persistent://public/default/kill-loop-{seed}"
        run_clients.create_topic(server, this.topic, workload.partitions)
        run_clients.drive(this, lambda run: kill_again_and_again(run, arguments.kills, random_source), timeout_s=7200.0)
        problems = run_clients.verdict(this)
    except (Failure, processes.NotReady) as failure:
        problems = [str(failure)]
    finally:
        server.stop()
    for problem in problems:
        logger.info("FAIL %s", problem)
    logger.info("%s\nhistories and logs: %s\nreplay: %s", "FAIL" if problems else "OK", folder, replay)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
