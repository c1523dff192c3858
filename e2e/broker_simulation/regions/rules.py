"""What must hold of a topic in two clusters. Pure: from what was read in both to what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from magnetar.core.ids import Position

from e2e.broker_simulation.history import Content, Entry, TopicHistory
from e2e.broker_simulation.regions.arrivals import Arrival

VIOLATIONS_MAX: Final = 20
"""Of one rule."""


@dataclass(slots=True)
class RegionTopic:
    """A topic as one cluster has it."""

    region: str
    history: TopicHistory
    """What producers of this cluster have sent, and what was read of that."""
    logs: list[list[Arrival]] = field(default_factory=list)
    """What was read of everything, from the first entry to the last, each time that somebody looked at the end."""


DirectionRule: TypeAlias = Callable[[RegionTopic, RegionTopic, list[Arrival], list[Arrival]], Iterator[str]]
"""Of the source, the target, and what was read in each at about the same time."""


def check_direction(source: RegionTopic, target: RegionTopic, *, sends: bool) -> list[str]:
    """Everything that is wrong with what goes from one cluster to the other; `sends`: something goes that way."""
    violations: list[str] = []
    rules = DIRECTION_RULES if sends else (nothing_comes,)
    label = f"{source.history.name} from {source.region} to {target.region}"
    readings = list(zip(source.logs, target.logs, strict=False))
    found = [rule(source, target, *reading) for reading in readings for rule in (*rules, nothing_comes_back)]
    if sends and readings:
        found.append(all_that_was_confirmed_arrives(source, target, *readings[-1]))
    for each in found:
        violations += [f"{label}: {what}" for what, _ in zip(each, range(VIOLATIONS_MAX), strict=False)]
    return violations


def _arrived(source: RegionTopic, log: list[Arrival]) -> list[Arrival]:
    return [arrival for arrival in log if arrival.origin.cluster == source.region]


def _own(log: list[Arrival]) -> dict[Position, Entry]:
    return {arrival.entry.position: arrival.entry for arrival in log if not arrival.origin.cluster}


def all_arrives(source: RegionTopic, target: RegionTopic, here: list[Arrival], there: list[Arrival]) -> Iterator[str]:
    """What is stored at the source is stored at the target."""
    positions = {arrival.origin.position for arrival in _arrived(source, there)}
    for position, entry in _own(here).items():
        if position not in positions:
            yield f"{entry.content} of {position} does not arrive"


def all_that_was_confirmed_arrives(
    source: RegionTopic, target: RegionTopic, here: list[Arrival], there: list[Arrival]
) -> Iterator[str]:
    """What producers were told to be confirmed, in the end."""
    contents = {arrival.entry.content for arrival in _arrived(source, there)}
    for receipt in source.history.receipts:
        if receipt.content not in contents:
            yield f"{receipt.content} was confirmed at {receipt.position}, and does not arrive"


def nothing_is_made_up(
    source: RegionTopic, target: RegionTopic, here: list[Arrival], there: list[Arrival]
) -> Iterator[str]:
    """What arrives stands at the source, where it says, as it arrives."""
    own = _own(here)
    for entry, origin in _arrived(source, there):
        if origin.position is None:
            yield f"{entry.content} at {entry.position} does not say where it comes from"
            continue
        sent = own.get(origin.position)
        if sent is None or (sent.content, sent.key) != (entry.content, entry.key):
            yield f"{entry.content} at {entry.position} says that it comes from {origin.position}; {sent} is there"


def order_arrives(source: RegionTopic, target: RegionTopic, here: list[Arrival], there: list[Arrival]) -> Iterator[str]:
    """First copies come in the order of the source. With deduplication at the target there are no others."""
    seen: set[Position] = set()
    last: Position = (-1, -1)
    for entry, origin in _arrived(source, there):
        position = origin.position
        if position is None:
            continue
        if position in seen:
            if target.history.deduplication:
                yield f"{entry.content} of {position} arrives again at {entry.position} in spite of deduplication"
            continue
        seen.add(position)
        if position < last:
            yield f"{entry.content} of {position} arrives at {entry.position}, behind what stood at {last}"
        last = max(last, position)


def producers_keep_their_order(
    source: RegionTopic, target: RegionTopic, here: list[Arrival], there: list[Arrival]
) -> Iterator[str]:
    """Of each producer the first copies come in the order in which it has sent them."""
    seen: set[Content] = set()
    last: dict[str, int] = {}
    for entry, _ in _arrived(source, there):
        content = entry.content
        if content in seen:
            continue
        seen.add(content)
        if content.sequence_id < last.get(content.producer, -1):
            yield f"{content} arrives at {entry.position}, behind {last[content.producer]} of that producer"
        last[content.producer] = max(content.sequence_id, last.get(content.producer, -1))


def nothing_comes_back(
    source: RegionTopic, target: RegionTopic, here: list[Arrival], there: list[Arrival]
) -> Iterator[str]:
    """Nothing is at its own cluster as from another one, nor as from itself."""
    for entry, origin in here:
        if origin.cluster == source.region or (origin.cluster and entry.content in source.history.sent):
            yield f"{entry.content} has come back to {source.region}, at {entry.position}"


def nothing_comes(source: RegionTopic, target: RegionTopic, here: list[Arrival], there: list[Arrival]) -> Iterator[str]:
    """Nothing is replicated this way."""
    for entry, _ in _arrived(source, there):
        yield f"{entry.content} arrives at {entry.position}, and the topic is not replicated there"


DIRECTION_RULES: Final[tuple[DirectionRule, ...]] = (
    all_arrives,
    nothing_is_made_up,
    order_arrives,
    producers_keep_their_order,
)
