"""What a dead-letter report says, once Spark has grouped the messages: on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from magnetar.spark.jobs.job import document_of
from magnetar.spark.jobs.running import short_topic, whole
from rich.console import Console
from rich.markup import escape
from rich.table import Table

NO_REASON: Final = "(no reason given)"
UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One dead letter."""

    message_id: str
    """The message's id in the dead-letter topic."""
    origin_message_id: str | None
    published: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonGroup:
    """Messages of one topic and subscription that died of the same."""

    reason: str
    messages: int
    reconsumed_max: int | None
    """How often they were tried at the most, where clients say so."""
    oldest: Sample
    newest: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where messages came from."""

    topic: str
    """`UNKNOWN` where they do not say."""
    subscription: str
    dead_letter_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginGroup:
    """All dead letters of one topic and subscription."""

    origin: Origin
    messages: int
    reasons_found: int
    """There may be more than `reasons` has."""
    first: datetime
    last: datetime
    reasons: Sequence[ReasonGroup]
    """The most frequent ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The report on dead letters."""

    topics: Sequence[str]
    """Dead-letter topics that were read, with those that are empty."""
    groups: Sequence[OriginGroup]
    """The dead letters by where they came from, the largest group first."""

    @property
    def messages(self) -> int:
        """The number of dead letters in all groups."""
        return sum(group.messages for group in self.groups)


def document(report: DeadLetters) -> dict[str, Any]:
    """The report as the object of the JSON file."""
    groups = [{**group.pop("origin"), **group} for group in document_of(list(report.groups))]
    return {"messages": report.messages, "deadLetterTopics": list(report.topics), "groups": groups}


def show(report: DeadLetters, console: Console, reasons_shown: int) -> None:
    """Show the report on a terminal."""
    if not report.groups:
        console.print(f"[bold]no dead letters[/bold] in {len(report.topics)} dead-letter topics")
        return
    console.print(
        f"[bold]{report.messages:,} dead letters[/bold] of {len(report.groups)} topics and subscriptions, in "
        f"{len(report.topics)} dead-letter topics",
        highlight=False,
    )
    table = Table(
        whole("topic"),
        whole("subscription"),
        "dead letters",
        "reasons",
        "first",
        "last",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for group in report.groups:
        table.add_row(
            escape(short_topic(group.origin.topic)),
            escape(group.origin.subscription),
            f"{group.messages:,}",
            f"{group.reasons_found:,}",
            f"{group.first:%Y-%m-%d %H:%M:%S}",
            f"{group.last:%Y-%m-%d %H:%M:%S}",
        )
    console.print(table)
    for group in report.groups:
        origin = group.origin
        title = f"{short_topic(origin.topic)}, {origin.subscription}: {short_topic(origin.dead_letter_topic)}"
        console.print(f"\n[bold]{escape(title)}[/bold]", highlight=False)
        reasons = Table(whole("reason"), "messages", "tried", "oldest (origin)", "newest (origin)")
        for one in group.reasons[:reasons_shown]:
            reasons.add_row(
                escape(one.reason),
                f"{one.messages:,}",
                "" if one.reconsumed_max is None else f"{one.reconsumed_max:,} times",
                _sample_text(one.oldest),
                _sample_text(one.newest),
            )
        console.print(reasons)
        if group.reasons_found > reasons_shown:
            console.print(f"and {group.reasons_found - reasons_shown} more reasons")


def _sample_text(sample: Sample) -> str:
    origin = f" ({escape(sample.origin_message_id)})" if sample.origin_message_id else ""
    return f"{sample.message_id}{origin}"
