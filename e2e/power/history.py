"""What clients asked for and were told, by the numbers of a recording: what a disk must have, may have, must not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

DIGEST_BYTES: Final = 32
NEVER: Final = 1 << 62


@dataclass(slots=True)
class Span:
    """Something that was asked for when the recording stood at `began`, and known to be done at `confirmed`."""

    began: int
    confirmed: int = NEVER

    def must(self, cut: int) -> bool:
        """Whether it has to be there after a cut."""
        return self.confirmed <= cut

    def may(self, cut: int) -> bool:
        """Whether it can be there after a cut."""
        return self.began < cut

    def settled(self, cut: int) -> Span:
        """The same as of the next recording, which begins with what the cut has left."""
        return Span(-1 if self.may(cut) else NEVER, -1 if self.must(cut) else NEVER)


def payload(name: str, number: int, size_bytes: int) -> bytes:
    """Says whose message or entry it is, and fills up with bytes that follow from that: any wrong bit shows."""
    head = f"{name}|{number}|{size_bytes}|".encode()
    digest = hashlib.sha256(head).digest()
    return (head + digest * (size_bytes // DIGEST_BYTES + 1))[: max(size_bytes, len(head))]


def number_of(name: str, data: bytes) -> int | None:
    """The number of a payload; None if it is not whole, or another's."""
    try:
        whose, number, size_bytes, _ = data.split(b"|", 3)
        whole = whose.decode() == name and data == payload(name, int(number), int(size_bytes))
    except ValueError:
        return None
    return int(number) if whole else None


@dataclass(slots=True)
class TopicHistory:
    """One topic with one producer and two subscriptions: `keep` acknowledges nothing, `acks` some."""

    name: str
    created: Span
    deleted: Span = field(default_factory=lambda: Span(NEVER))
    messages: dict[int, Span] = field(default_factory=dict)
    """By number; sent in this order."""
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    """(ledger id, entry id) of a confirmed message to its number."""
    acknowledged: dict[int, Span] = field(default_factory=dict)
    """On `acks`, each with a receipt."""

    def settled(self, cut: int) -> TopicHistory:
        """See `Span.settled`."""
        return TopicHistory(
            self.name,
            self.created.settled(cut),
            self.deleted.settled(cut),
            {number: span.settled(cut) for number, span in self.messages.items() if span.may(cut)},
            self.places,
            {number: span.settled(cut) for number, span in self.acknowledged.items() if span.may(cut)},
        )


@dataclass(slots=True)
class Value:
    """A setting that grows, one write at a time."""

    number: int
    span: Span


@dataclass(slots=True)
class ClusterHistory:
    """Everything that was done to a standalone cluster."""

    topics: dict[str, TopicHistory] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)

    def settled(self, cut: int) -> ClusterHistory:
        """See `Span.settled`."""
        topics = {name: topic.settled(cut) for name, topic in self.topics.items() if topic.created.may(cut)}
        values = [Value(value.number, value.span.settled(cut)) for value in self.values if value.span.may(cut)]
        return ClusterHistory(topics, values)


@dataclass(slots=True)
class LedgerHistory:
    """One ledger on one bookie."""

    ledger_id: int
    entries: dict[int, Span] = field(default_factory=dict)
    fenced: Span = field(default_factory=lambda: Span(NEVER))

    @property
    def name(self) -> str:
        """In its entries."""
        return f"ledger-{self.ledger_id}"

    def settled(self, cut: int) -> LedgerHistory:
        """See `Span.settled`."""
        entries = {entry_id: span.settled(cut) for entry_id, span in self.entries.items() if span.may(cut)}
        return LedgerHistory(self.ledger_id, entries, self.fenced.settled(cut))


@dataclass(slots=True)
class LedgersHistory:
    """Everything that was done to a bookie."""

    ledgers: dict[int, LedgerHistory] = field(default_factory=dict)

    def settled(self, cut: int) -> LedgersHistory:
        """See `Span.settled`."""
        return LedgersHistory({ledger_id: ledger.settled(cut) for ledger_id, ledger in self.ledgers.items()})


def judge_entries(ledger: LedgerHistory, cut: int, found: dict[int, int | None]) -> list[str]:
    """What is wrong with the entries of a ledger: the number in each that was found, None for wrong content."""
    problems = [f"{ledger.name}: entry {at} holds something else" for at, number in found.items() if number != at]
    lost = [entry_id for entry_id, span in ledger.entries.items() if span.must(cut) and entry_id not in found]
    if lost:
        problems.append(f"{ledger.name}: {len(lost)} confirmed entries are lost, the first is {min(lost)}")
    unsent = [at for at in found if at not in ledger.entries or not ledger.entries[at].may(cut)]
    if unsent:
        problems.append(f"{ledger.name}: {len(unsent)} entries that were not added by then")
    return problems


def judge_messages(topic: TopicHistory, cut: int, found: list[int | None]) -> list[str]:
    """What is wrong with the messages of a topic, as they were read in order; None for one with wrong content."""
    problems = [f"{topic.name}: message {at} holds something else" for at, number in enumerate(found) if number is None]
    numbers = [number for number in found if number is not None]
    sent = [number for number, span in topic.messages.items() if span.may(cut)]
    if numbers != sent[: len(numbers)]:
        at = next((at for at, pair in enumerate(zip(numbers, sent, strict=False)) if pair[0] != pair[1]), len(sent))
        problems.append(f"{topic.name}: not the beginning of what was sent: {numbers[at]} at {at} of {len(numbers)}")
    there = set(numbers)
    lost = [number for number, span in topic.messages.items() if span.must(cut) and number not in there]
    if lost:
        problems.append(f"{topic.name}: {len(lost)} confirmed messages are lost, the first is {min(lost)}")
    return problems


def judge_acknowledged(topic: TopicHistory, cut: int, delivered: set[int]) -> list[str]:
    """What is wrong with what `acks` was delivered after the cut."""
    problems = []
    again = [number for number in delivered if (span := topic.acknowledged.get(number)) and span.must(cut)]
    if again:
        problems.append(f"{topic.name}: {len(again)} acknowledged messages came again, the first is {min(again)}")
    held = [
        number
        for number, span in topic.messages.items()
        if span.must(cut)
        and number not in delivered
        and not ((acknowledged := topic.acknowledged.get(number)) and acknowledged.may(cut))
    ]
    if held:
        problems.append(f"{topic.name}: {len(held)} messages nobody acknowledged do not come, the first is {min(held)}")
    return problems
