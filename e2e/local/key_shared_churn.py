"""Key_Shared while consumers come and go: is any message seen first after a later one of its key?

`python -m e2e.local.key_shared_churn [--seconds 30] [--seed N] [--server magnetar|apache] [--ranges]`

Stock Python consumers live for up to two seconds each. Some leave with messages that they have not acknowledged, or
not even looked at. What a consumer takes in hand is noted before it is acknowledged. So a message of a key that another
consumer is given later is noted later, too, and any other order is the server's mistake.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pulsar

from e2e import processes
from e2e.server import ApacheStandalone, MagnetarStandalone, StandaloneProcess

logger: Final = logging.getLogger("e2e")

TOPIC: Final = "persistent://public/default/key-shared-churn"
SUBSCRIPTION: Final = "churn"
KEYS: Final = 100
MESSAGES_PER_SECOND: Final = 2_000
CONSUMERS: Final = 8
"""At a time; one of them stays, so that somebody always does."""
LIFE_SECONDS: Final = (0.2, 2.0)
RECEIVE_MS: Final = 200
REST_EVERY: Final = 50
REST_SECONDS: Final = 0.1
"""How often, in messages, and how long a consumer stands still: others join while its queue is full."""
LEFT_IN_HAND_MAX: Final = 50
"""Messages that a consumer leaves unacknowledged, when it does."""
DRAIN_SECONDS: Final = 120.0
EXAMPLES_MAX: Final = 5


@dataclass(slots=True)
class Seen:
    """What consumers took in hand, in the order in which they did. `take` is called before the acknowledgement."""

    deliveries: int = 0
    late: list[str] = field(default_factory=list)
    """First deliveries behind a later one of their key."""
    _numbers: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _highest: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, consumer: str, key: str, number: int) -> None:
        """A consumer has this message of the key in hand."""
        with self._lock:
            self.deliveries += 1
            highest = self._highest.get(key, -1)
            if number < highest and number not in self._numbers[key]:
                self.late.append(f"{consumer} got {number} of {key} first after {highest}")
            self._numbers[key].add(number)
            self._highest[key] = max(highest, number)

    @property
    def messages(self) -> int:
        """Different messages that were seen."""
        with self._lock:
            return sum(len(numbers) for numbers in self._numbers.values())


def produce(producer: Any, seconds: float, random_source: random.Random) -> int:
    """Send numbered messages of random keys at a steady rate; returns how many."""
    numbers: dict[str, int] = defaultdict(int)
    failures: list[Any] = []

    def done(result: Any, _id: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)

    began = time.monotonic()
    sent = 0
    while time.monotonic() - began < seconds:
        while sent < min(seconds, time.monotonic() - began) * MESSAGES_PER_SECOND:
            key = f"key-{random_source.randrange(KEYS)}"
            producer.send_async(str(numbers[key]).encode(), done, partition_key=key)
            numbers[key] += 1
            sent += 1
        time.sleep(0.005)
    producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} sends failed, the first: {failures[0]}")
    return sent


def consume(client: Any, name: str, seen: Seen, until_seconds: float, over: threading.Event, left_in_hand: int) -> None:
    """One consumer's life. At its end it takes some more messages and leaves without acknowledging them."""
    consumer = client.subscribe(
        TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.KeyShared, consumer_name=name, receiver_queue_size=500
    )
    taken = kept = 0
    while not over.is_set() and kept <= left_in_hand:
        leaving = time.monotonic() > until_seconds
        if leaving and not left_in_hand:
            break
        try:
            message = consumer.receive(RECEIVE_MS)
        except pulsar.Timeout:
            if leaving:
                break
            continue
        seen.take(name, message.partition_key(), int(message.data()))
        taken += 1
        if taken % REST_EVERY == 0:
            time.sleep(REST_SECONDS)
        if leaving:
            kept += 1
        else:
            consumer.acknowledge(message)
    consumer.close()


def consume_in_turns(client: Any, place: int, seen: Seen, over: threading.Event, random_source: random.Random) -> None:
    """Consumers of one place, one after the other. In place 0 is one that stays."""
    number = 0
    while not over.is_set():
        life = float("inf") if place == 0 else random_source.uniform(*LIFE_SECONDS)
        left_in_hand = random_source.choice([0, 0, random_source.randrange(1, LEFT_IN_HAND_MAX)])
        consume(client, f"consumer-{place}-{number}", seen, time.monotonic() + life, over, left_in_hand)
        number += 1


def churn(service_url: str, seconds: float, seed: int) -> tuple[Seen, int]:
    """Run producer and consumers; returns what was seen, and how many messages were sent."""
    client = pulsar.Client(service_url, logger=logging.getLogger("pulsar"))
    logging.getLogger("pulsar").setLevel(logging.ERROR)
    seen, over = Seen(), threading.Event()
    places = [
        threading.Thread(target=consume_in_turns, args=(client, place, seen, over, random.Random(f"{seed}-{place}")))
        for place in range(CONSUMERS)
    ]
    try:
        client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.KeyShared).close()
        producer = client.create_producer(
            TOPIC, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, block_if_queue_full=True
        )
        for thread in places:
            thread.start()
        sent = produce(producer, seconds, random.Random(seed))
        deadline = time.monotonic() + DRAIN_SECONDS
        while seen.messages < sent and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        over.set()
        for thread in places:
            if thread.ident is not None:
                thread.join()
        client.close()
    return seen, sent


def verdict(seen: Seen, sent: int) -> list[str]:
    """Every violation as a sentence."""
    problems = []
    if seen.messages < sent:
        problems.append(f"{sent - seen.messages} of {sent} messages never came")
    if seen.late:
        problems.append(f"{len(seen.late)} first deliveries out of order: {'; '.join(seen.late[:EXAMPLES_MAX])}")
    return problems


def new_server(kind: str, folder: Path, *, ranges: bool) -> StandaloneProcess:
    """The server; `ranges`: with ranges in halves instead of consistent hashing."""
    settings = {"subscriptionKeySharedUseConsistentHashing": "false"} if ranges else {}
    if kind == "apache":
        return ApacheStandalone(folder / "data", settings=settings)
    return MagnetarStandalone(folder / "data", settings=settings)


def main() -> int:
    """Run it once and print what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["magnetar", "apache"], default="magnetar")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which messages are sent (30)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--ranges", action="store_true", help="ranges in halves instead of consistent hashing")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    processes.leave_nothing_behind()
    folder = Path(tempfile.mkdtemp(prefix="magnetar-churn-"))
    server = new_server(arguments.server, folder, ranges=arguments.ranges)
    server.start()
    try:
        seen, sent = churn(server.service_url, arguments.seconds, seed)
    finally:
        server.stop()
    problems = verdict(seen, sent)
    logger.info("%d messages, %d deliveries, seed %d", sent, seen.deliveries, seed)
    for problem in problems:
        logger.info("FAIL %s", problem)
    logger.info("%s", "FAIL" if problems else "OK")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
