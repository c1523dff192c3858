"""Decides from histories whether a server kept its word. Pure: events in, sentences about what is wrong out.

What is promised, and so checked:

* a message whose producer got a receipt reaches the subscription, with its payload and key untouched;
* Exclusive and Failover give a producer's messages of one partition in the order sent, Key_Shared those of one key;
  what is given again after a server's death may step back, a message seen for the first time may not;
* without a death every message arrives once. A death may repeat a message that was unacknowledged at that moment,
  and may store one twice whose receipt was outstanding (a producer sends it again);
* an acknowledgement that was confirmed longer than the settling time before the death holds: the message stays away.
  The settling time is how far persisting acknowledgements may lag behind confirming them (Apache's brokers persist at
  most one cursor update a second by default, `managedLedgerDefaultMarkDeleteRateLimit`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from e2e import corpus
from e2e.history import Acknowledged, Event, Failed, Receipt, Received
from e2e.workload import SubscriptionType

# A few examples show what kind of thing went wrong; a hundred thousand would hide it.
EXAMPLES_MAX = 5
# How long after a death connections may still break: the server's start and the clients' longest backoff.
RECONNECTING_MS = 30_000


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a run was: the corpus it sent, its subscription type and when (ms since the epoch) the server was killed."""

    lines: list[bytes]
    subscription_type: SubscriptionType
    keyed: bool
    deaths_ms: tuple[int, ...] = ()
    beginnings_ms: tuple[int, ...] = ()
    """When faults began that lasted; none: each was over at once, and `deaths_ms` has all."""
    ack_settling_ms: int = 3000


def check(sent: list[Event], got: list[Event], expected: Expectation) -> list[str]:
    """Every violation as a sentence; an empty list means the promises held."""
    acknowledged = [event for event in sent if isinstance(event, Acknowledged)]
    failed = [event for event in sent if isinstance(event, Failed)]
    received = [event for event in got if isinstance(event, Received)]
    receipts = [event for event in got if isinstance(event, Receipt)]
    problems = [f"{len(failed)} sends failed, the first: {failed[0]}"] if failed else []
    problems += lost(acknowledged, received)
    problems += damaged(received, expected)
    if expected.subscription_type.ordered:
        problems += out_of_order(received, lambda event: (event.producer, event.position.partition))
        problems += positions_step_back(received)
    elif expected.subscription_type is SubscriptionType.KEY_SHARED:
        problems += out_of_order(received, lambda event: (event.producer, event.key))
    problems += repeated(acknowledged, received, expected.deaths_ms)
    problems += came_back(received, receipts, expected)
    return problems


def lost(acknowledged: Iterable[Acknowledged], received: Iterable[Received]) -> list[str]:
    """Messages with a receipt that nobody got."""
    seen = {(event.producer, event.number) for event in received}
    return _report("acknowledged but lost", [e for e in acknowledged if (e.producer, e.number) not in seen])


def damaged(received: Iterable[Received], expected: Expectation) -> list[str]:
    """Messages whose payload or key is not what was sent under their number."""
    digests = [corpus.digest(line) for line in expected.lines]
    wrong = [event for event in received if event.digest != digests[event.number % len(digests)]]
    problems = _report("payload differs", wrong)
    if expected.keyed:
        keys = [corpus.key(line) for line in expected.lines]
        problems += _report("key differs", [e for e in received if e.key != keys[e.number % len(keys)]])
    return problems


def out_of_order(received: Iterable[Received], group: Callable[[Received], object]) -> list[str]:
    """First sights whose number is below an earlier first sight of the same group."""
    highest: dict[object, int] = {}
    seen: set[tuple[str, int]] = set()
    wrong = []
    for event in received:
        if (event.producer, event.number) in seen:
            continue
        seen.add((event.producer, event.number))
        name = group(event)
        if event.number < highest.get(name, -1):
            wrong.append(event)
        else:
            highest[name] = event.number
    return _report("out of order", wrong)


def positions_step_back(received: Iterable[Received]) -> list[str]:
    """Ids seen for the first time that lie before an id of the same partition seen earlier."""
    highest: dict[int, tuple[int, int, int]] = {}
    seen: set[str] = set()
    wrong = []
    for event in received:
        if event.id in seen:
            continue
        seen.add(event.id)
        position = event.position
        if position.order < highest.get(position.partition, (-1, -1, -1)):
            wrong.append(event)
        else:
            highest[position.partition] = position.order
    return _report("position steps back", wrong)


def repeated(
    acknowledged: Iterable[Acknowledged], received: Iterable[Received], deaths_ms: tuple[int, ...]
) -> list[str]:
    """Messages stored or given more often than the deaths of the server explain.

    How often is not bounded by the number of deaths: a client may lose its connection several times while one server
    starts. What counts is whether the message could have been under way at all.
    """
    receipt_ms: dict[tuple[str, int], int] = {}
    for receipt in acknowledged:
        receipt_ms.setdefault((receipt.producer, receipt.number), receipt.time_ms)
    ids: dict[tuple[str, int], set[str]] = defaultdict(set)
    given_ms: dict[str, int] = {}
    again = []
    for event in received:
        ids[event.producer, event.number].add(event.id)
        before_ms = given_ms.get(event.id)
        given_ms[event.id] = event.time_ms
        if before_ms is not None and not any(
            death <= event.time_ms and before_ms <= death + RECONNECTING_MS for death in deaths_ms
        ):
            again.append(event)
    stored = [
        (name, sorted(places))
        for name, places in ids.items()
        if len(places) > 1 and not any(death <= receipt_ms.get(name, 1 << 62) for death in deaths_ms)
    ]
    return _report("stored twice", stored) + _report("given twice", again)


def came_back(received: Iterable[Received], receipts: Iterable[Receipt], expected: Expectation) -> list[str]:
    """Messages given again after a death although their acknowledgement had been confirmed and had settled.

    Acknowledgements count by entry: a broker that does not track indexes inside a batch (Apache's default) redelivers
    the whole batch until all of it is acknowledged.
    """
    confirmed_ms = {event.id: event.time_ms for event in receipts}
    entries: dict[tuple[int, ...], int] = {}
    for name in {event.id for event in received}:
        entry = tuple(int(part) for part in name.split(":"))[:3]
        entries[entry] = max(entries.get(entry, 0), confirmed_ms.get(name, 1 << 62))
    wrong = []
    for event in received:
        settled_ms = entries[tuple(event.position)[:3]] + expected.ack_settling_ms
        if any(settled_ms < death < event.time_ms for death in expected.beginnings_ms or expected.deaths_ms):
            wrong.append(event)
    return _report("acknowledged, confirmed, and given again", wrong)


def _report(what: str, wrong: Sequence[object]) -> list[str]:
    if not wrong:
        return []
    return [f"{len(wrong)} {what}, such as {', '.join(str(example) for example in wrong[:EXAMPLES_MAX])}"]
