"""What clients were told of transactions held against what every consumer was given. Pure.

The promises:

- A transaction shows in all of its topics, once in each, or in none. One whose commit was confirmed shows.
- One that nobody asked to commit never shows, to no consumer at any time. So one whose commit was refused for good.
- An error of a commit that does show is one that says that the outcome is unknown.
- Each input message is acknowledged by exactly one transaction that shows.
- What every subscriber was given is what the topic holds at the end, and no client's call hung for ever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

EXAMPLES_MAX: Final = 5

DEFINITE: Final = ("InvalidTxnStatus", "NotAllowed")
"""Parts of errors of a commit that say that nothing was committed; after any other one the outcome is unknown."""


TOO_MANY: Final = ("TooManyRequests", "maxActiveTransactionsPerCoordinator")
"""What the Go client tells of the answer, and what the Java client tells."""


class Began(msgspec.Struct, frozen=True, tag_field="event", tag="began"):
    """A client has taken an input message, and begins."""

    number: int
    input: int
    time_ms: int


class Ended(msgspec.Struct, frozen=True, tag_field="event", tag="ended", kw_only=True):
    """What came of it: `asked` is `commit`, `abort` or `nothing`, `error` the first one, empty where all went well."""

    number: int
    input: int
    asked: str
    error: str = ""
    id: str = ""
    time_ms: int

    @property
    def committed(self) -> bool:
        """The commit was confirmed."""
        return self.asked == "commit" and not self.error

    @property
    def unknown(self) -> bool:
        """A commit was asked for, and its answer does not say what came of it."""
        return self.asked == "commit" and bool(self.error) and not any(part in self.error for part in DEFINITE)


class Flood(msgspec.Struct, frozen=True, tag_field="event", tag="flood"):
    """How many transactions could be open, what the next one was told, and after how long."""

    opened: int
    error: str
    took_ms: int
    time_ms: int


class Note(msgspec.Struct, frozen=True, tag_field="event", tag="note"):
    """Progress of the program."""

    text: str
    time_ms: int


Event = Began | Ended | Flood | Note


def read(path: Path) -> list[Event]:
    """All whole lines of a history."""
    content = path.read_bytes()
    return msgspec.json.Decoder(Event).decode_lines(content[: content.rfind(b"\n") + 1])


class Given(msgspec.Struct, frozen=True):
    """What consumers were given, per output topic: transactions' numbers, in order."""

    at_the_end: Mapping[str, Sequence[int]]
    """By readers that begin at the first message once all is over."""
    all_along: Mapping[str, Sequence[int]]
    """By subscribers, while brokers were killed: a message may come again."""


def check(events: Iterable[Event], given: Given, inputs: Iterable[int]) -> list[str]:
    """Every broken promise as a sentence. `inputs`: the numbers of input messages whose publishing was confirmed."""
    began: dict[int, Began] = {}
    ended: dict[int, Ended] = {}
    for event in events:
        if isinstance(event, Began):
            began[event.number] = event
        elif isinstance(event, Ended):
            ended[event.number] = event
    shown = {topic: Counter(numbers) for topic, numbers in given.at_the_end.items()}
    everywhere = set.union(*(set(counts) for counts in shown.values()))
    problems = _told(f"clients' calls never ended, of transactions {{}} of {len(began)}", set(began) - set(ended))
    for topic, counts in shown.items():
        problems += _told(f"{topic} has {{}} of transactions that others have", everywhere - set(counts), "not")
        problems += _told(f"{topic} has {{}}", {number for number, count in counts.items() if count > 1}, "twice")
        along = set(given.all_along[topic])
        problems += _told(f"a subscriber of {topic} was given {{}}", along - set(counts), "that are not there")
        problems += _told(f"a subscriber of {topic} was not given {{}}", set(counts) - along)
    problems += _by_outcome(ended, everywhere)
    problems += _inputs(began, everywhere, set(inputs))
    return problems


def _by_outcome(ended: Mapping[int, Ended], shown: set[int]) -> list[str]:
    confirmed = {number for number, one in ended.items() if one.committed}
    never_asked = {number for number, one in ended.items() if one.asked != "commit"}
    refused = {number for number, one in ended.items() if one.asked == "commit" and one.error and not one.unknown}
    return [
        *_told("committed and never shown: {}", confirmed - shown),
        *_told("never committed and shown: {}", never_asked & shown),
        *_told("commit refused for good, and shown: {}", refused & shown),
    ]


def _inputs(began: Mapping[int, Began], shown: set[int], inputs: set[int]) -> list[str]:
    takers: dict[int, list[int]] = defaultdict(list)
    for number in sorted(shown & set(began)):
        takers[began[number].input].append(number)
    return [
        *_told("of no transaction that anybody began, and shown: {}", shown - set(began)),
        *_told(
            "input messages acknowledged by two commits: {}", {one for one, found in takers.items() if len(found) > 1}
        ),
        *_told("input messages gone without a commit: {}", inputs - set(takers)),
    ]


def _told(sentence: str, numbers: Iterable[int], end: str = "") -> list[str]:
    found = sorted(numbers)
    if not found:
        return []
    named = ", ".join(map(str, found[:EXAMPLES_MAX])) + (f", … ({len(found)})" if len(found) > EXAMPLES_MAX else "")
    return [" ".join(filter(None, [sentence.format(named), end]))]


def check_flood(flood: Flood, open_max: int, answer_ms_max: int) -> list[str]:
    """Whether one transaction more than `open_max` is refused in words, soon."""
    problems = []
    if not flood.error:
        problems.append(f"{flood.opened} transactions are open, though there may be {open_max}")
    elif flood.took_ms > answer_ms_max:
        problems.append(f"one transaction too many was answered after {flood.took_ms} ms: {flood.error}")
    elif not any(reason in flood.error for reason in TOO_MANY):
        problems.append(f"one transaction too many was told what does not help: {flood.error}")
    return problems
