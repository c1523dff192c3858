"""The checkers see what they must see: a history with one fault each, and one without."""

from e2e import checkers, corpus, workload
from e2e.checkers import Expectation
from e2e.history import Acknowledged, Event, Receipt, Received
from e2e.workload import SubscriptionType

LINES = corpus.lines(50)


def acked(number: int) -> Acknowledged:
    return Acknowledged("p0", number, f"1:{number}:-1:-1", 1000 + number)


def got(number: int, entry: int | None = None, **changes: object) -> Received:
    fields: dict[str, object] = {
        "consumer": 0,
        "producer": "p0",
        "number": number,
        "id": f"1:{number if entry is None else entry}:-1:-1",
        "key": corpus.key(LINES[number]),
        "digest": corpus.digest(LINES[number]),
        "redelivery": 0,
        "time_ms": 2000 + number,
    }
    return Received(**{**fields, **changes})  # type: ignore[arg-type]  # fields by name


def verdict(
    received: list[Event],
    kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
    deaths_ms: tuple[int, ...] = (),
    count: int = 10,
) -> list[str]:
    sent: list[Event] = [acked(number) for number in range(count)]
    return checkers.check(sent, received, Expectation(LINES, kind, keyed=True, deaths_ms=deaths_ms))


def every() -> list[Event]:
    return [got(number) for number in range(10)]


def test_a_clean_history_has_no_problems() -> None:
    for kind in SubscriptionType:
        assert verdict(every(), kind) == []


def test_a_missing_message_is_lost() -> None:
    assert "acknowledged but lost" in verdict(every()[:-1])[0]


def test_a_changed_payload_and_key_are_seen() -> None:
    assert "payload differs" in verdict([*every()[:-1], got(9, digest="0")])[0]
    assert "key differs" in verdict([*every()[:-1], got(9, key="other")])[0]


def test_a_swap_is_out_of_order_only_where_order_is_promised() -> None:
    swapped = [got(1), got(0), *every()[2:]]
    assert any("out of order" in problem for problem in verdict(swapped))
    assert any("position steps back" in problem for problem in verdict(swapped))
    assert verdict(swapped, SubscriptionType.SHARED) == []


def test_key_shared_keeps_the_order_of_a_key_only() -> None:
    keys = [corpus.key(line) for line in LINES]
    commonest = max(keys, key=keys.count)
    same = [number for number in range(50) if keys[number] == commonest]
    other = next(number for number in range(50) if number not in same)
    swapped: list[Event] = [got(number) for number in range(50)]
    swapped[same[0]], swapped[other] = swapped[other], swapped[same[0]]
    assert verdict(swapped, SubscriptionType.KEY_SHARED, count=50) == []
    swapped = [got(number) for number in range(50)]
    swapped[same[0]], swapped[same[1]] = swapped[same[1]], swapped[same[0]]
    assert any("out of order" in problem for problem in verdict(swapped, SubscriptionType.KEY_SHARED, count=50))


def test_a_repeat_needs_a_death() -> None:
    repeat = [*every(), got(4, redelivery=1, time_ms=9000)]
    assert any("given twice" in problem for problem in verdict(repeat))
    assert verdict(repeat, deaths_ms=(5000,)) == []
    resent = [*every(), got(9, entry=10)]
    assert any("stored twice" in problem for problem in verdict(resent))
    assert verdict(resent, deaths_ms=(1005,)) == []
    assert any("stored twice" in problem for problem in verdict(resent, deaths_ms=(5000,)))


def test_a_settled_acknowledgement_holds_over_a_death() -> None:
    again = got(4, redelivery=1, time_ms=9000)
    settled = [*every(), Receipt(again.id, 2100), again]
    assert any("given again" in problem for problem in verdict(settled, deaths_ms=(8000,)))
    assert verdict([*every(), Receipt(again.id, 7900), again], deaths_ms=(8000,)) == []


def test_what_was_acknowledged_while_a_fault_lasted_may_come_back() -> None:
    """When, between its beginning and its end, a fault cost a broker its topics is not known."""
    again = got(4, redelivery=1, time_ms=9000)
    during: list[Event] = [*every(), Receipt(again.id, 2100), again]
    sent: list[Event] = [acked(number) for number in range(10)]
    for beginning_ms, problems in ((2000, 0), (5200, 1)):
        expected = Expectation(
            LINES,
            SubscriptionType.EXCLUSIVE,
            keyed=True,
            deaths_ms=(beginning_ms, 8000),
            beginnings_ms=(beginning_ms,),
        )
        assert len(checkers.check(sent, during, expected)) == problems


def test_a_batch_is_acknowledged_when_all_of_it_is() -> None:
    first, second = got(0, id="1:0:-1:0"), got(1, id="1:0:-1:1")
    again = got(0, id="1:0:-1:0", redelivery=1, time_ms=9000)
    half: list[Event] = [first, second, Receipt(first.id, 2100), again]
    assert verdict(half, deaths_ms=(8000,), count=2) == []
    whole: list[Event] = [first, second, Receipt(first.id, 2100), Receipt(second.id, 2100), again]
    assert any("given again" in problem for problem in verdict(whole, deaths_ms=(8000,), count=2))


def test_the_matrix_meets_every_pair_of_client_and_subscription() -> None:
    chosen = workload.matrix(count=10)
    met = {(each.client, each.subscription_type) for each in chosen}
    assert len(met) == len(workload.CLIENTS) * len(SubscriptionType)
    assert len({each.name for each in chosen}) == len(chosen) <= 30


def test_the_corpus_repeats_itself_exactly() -> None:
    assert corpus.lines(2000) == corpus.lines(2000)
    assert len({corpus.key(line) for line in corpus.lines(2000)}) > 100
