"""The judge of replication sees each promise that is broken by hand, and has nothing against what is right."""

from __future__ import annotations

from typing import Final

import pytest
from magnetar.core.ids import Position

from e2e.broker_simulation.history import Content, Entry, Receipt, TopicHistory
from e2e.broker_simulation.parameters import draw_parameters
from e2e.broker_simulation.regions.arrivals import Arrival, Origin
from e2e.broker_simulation.regions.clusters import parameters_of_regions
from e2e.broker_simulation.regions.rules import RegionTopic, check_direction

TOPIC: Final = "topic"
HERE: Final = Origin("", None)


def content(number: int, producer: str = "east-p") -> Content:
    return Content(producer, number, 1)


def sent(place: Position, number: int) -> Arrival:
    """By a producer of the east, and stored there."""
    return Arrival(Entry(place, content(number), ""), HERE)


def arrived(place: Position, number: int, source: Position | None, producer: str = "east-p") -> Arrival:
    """In the west, from the east."""
    return Arrival(Entry(place, content(number, producer), ""), Origin("east", source))


EAST: Final = [sent((1, 0), 0), sent((1, 1), 1), sent((4, 0), 2)]
FIRST, SECOND, THIRD = (
    arrived((2, 0), 0, (1, 0)),
    arrived((2, 1), 1, (1, 1)),
    arrived((2, 3), 2, (4, 0)),
)
WEST: Final = [FIRST, SECOND, Arrival(Entry((2, 2), content(0, "west-p"), ""), HERE), THIRD]


def wrong(
    west: list[Arrival], east: list[Arrival] = EAST, *, deduplication: bool = False, sends: bool = True
) -> list[str]:
    """What the judge says of the way from east to west, without saying which way that is."""
    histories = [TopicHistory(TOPIC, deduplication) for _ in range(2)]
    for arrival in EAST:
        histories[0].sent[arrival.entry.content] = ""
        position = arrival.entry.position
        histories[0].receipts.append(Receipt(arrival.entry.content, position, "east-broker0", 1, 1.0, 2.0))
    source, target = RegionTopic("east", histories[0], [east]), RegionTopic("west", histories[1], [west])
    found = check_direction(source, target, sends=sends)
    return [what.removeprefix(f"{TOPIC} from east to west: ") for what in found]


@pytest.mark.parametrize("deduplication", [False, True])
def test_what_arrives_once_and_in_order_is_right(deduplication: bool) -> None:
    assert wrong(WEST, deduplication=deduplication) == []


def test_what_does_not_arrive_is_missed_and_so_is_its_receipt() -> None:
    assert wrong([FIRST, THIRD]) == [
        "east-p:1 of (1, 1) does not arrive",
        "east-p:1 was confirmed at (1, 1), and does not arrive",
    ]


def test_copies_are_right_without_deduplication_only() -> None:
    again = arrived((2, 2), 0, (1, 0))
    assert wrong([FIRST, SECOND, again, THIRD]) == []
    assert wrong([FIRST, SECOND, again, THIRD], deduplication=True) == [
        "east-p:0 of (1, 0) arrives again at (2, 2) in spite of deduplication"
    ]


def test_first_copies_come_in_order() -> None:
    assert wrong([SECOND, FIRST, THIRD]) == [
        "east-p:0 of (1, 0) arrives at (2, 0), behind what stood at (1, 1)",
        "east-p:0 arrives at (2, 0), behind 1 of that producer",
    ]


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (arrived((2, 4), 0, None), "east-p:0 at (2, 4) does not say where it comes from"),
        (arrived((2, 4), 0, (9, 9)), "east-p:0 at (2, 4) says that it comes from (9, 9); None is there"),
        (arrived((2, 4), 7, (1, 0)), f"east-p:7 at (2, 4) says that it comes from (1, 0); {EAST[0].entry} is there"),
    ],
)
def test_what_arrives_stands_where_it_says(odd: Arrival, said: str) -> None:
    assert said in wrong([*WEST, odd])


@pytest.mark.parametrize("origin", ["east", "west"])
def test_nothing_comes_back(origin: str) -> None:
    back = Arrival(Entry((4, 1), content(0), ""), Origin(origin, (2, 0)))
    assert wrong(WEST, [*EAST, back]) == ["east-p:0 has come back to east, at (4, 1)"]


def test_one_way_is_one_way() -> None:
    assert wrong([], sends=False) == []
    assert wrong([FIRST], sends=False) == ["east-p:0 arrives at (2, 0), and the topic is not replicated there"]


def test_an_eighth_of_the_seeds_has_two_clusters_with_nothing_else_in_them() -> None:
    drawn = [parameters for seed in range(1_000) if (parameters := draw_parameters(seed)).regions is not None]
    assert 100 < len(drawn) < 150
    for parameters in drawn:
        for region in parameters_of_regions(parameters):
            assert (region.transactions, region.compaction, region.read_only, region.proxies) == (None, None, None, 0)
            assert not [kind for kind in region.storage.fault_kinds if "proxy" in kind or "reading" in kind]
            assert region.topics == parameters.topics
