"""Who may publish to a topic and who may subscribe, decided without a broker: access modes, names, limits, quotas; and
the order in which a producer is answered."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.policies.model import BacklogQuota, EffectivePolicies, InactiveTopics, Rate
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.settings.policies import BacklogQuotaPolicy, InactiveTopicDeleteMode, PolicySettings
from magnetar.broker.states import ProducerState
from magnetar.broker.topics.backlog import check_quotas
from magnetar.broker.topics.inactivity import is_idle
from magnetar.broker.topics.limits import SubscribeLimiter, check_consumer, check_producer
from magnetar.broker.topics.producer import Producer, ProducerIdentity, PublishBatch
from magnetar.broker.topics.producers import Producers
from magnetar.core.topic_name import TopicName
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, ProducerAccessMode

from broker.tests.subscription_stage import StagedConnection, Timers

TOPIC = TopicName.parse("persistent://public/default/topic")
POLICIES = EffectivePolicies(ledger=ManagedLedgerSettings(), dispatch=DispatchSettings())


class Client:
    """A connection of a producer, which keeps its answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.finished_bytes = 0

    def write(self, data: bytes) -> None:
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            self.answers.append(BaseCommand.FromString(data[8:end]))
            data = data[end:]

    def publish_finished(self, size_bytes: int) -> None:
        self.finished_bytes += size_bytes


def producer(
    name: str,
    mode: Any = ProducerAccessMode.Shared,
    *,
    epoch: int = 0,
    topic_epoch: int | None = None,
    connection: Client | None = None,
    address: str = "/10.0.0.1:1",
) -> Producer:
    identity = ProducerIdentity(1, name)
    identity.access_mode = mode
    identity.epoch = epoch
    identity.topic_epoch = topic_epoch
    identity.address = address
    made: Any = connection if connection is not None else Client()
    return Producer(identity, made, 0)


def refused(producers: Producers, newcomer: Producer) -> ServerError:
    with pytest.raises(PulsarError) as refusal:
        producers.admit(newcomer)
    return refusal.value.code


# --- access modes


def test_nobody_overtakes_who_waits_for_exclusive_access() -> None:
    producers = Producers(None)
    producers.admit(producer("shared"))
    assert producers.admit(producer("waits", ProducerAccessMode.WaitForExclusive)).waits
    assert refused(producers, producer("late")) == ServerError.PRODUCER_BUSY
    assert refused(producers, producer("late", ProducerAccessMode.Exclusive)) == ServerError.PRODUCER_FENCED
    assert list(producers.by_name) == ["shared"]


def test_who_waits_comes_in_when_the_last_of_the_others_has_left() -> None:
    producers = Producers(None)
    first, second = producer("first"), producer("second")
    producers.admit(first)
    producers.admit(second)
    waiting = producer("waits", ProducerAccessMode.WaitForExclusive)
    producers.admit(waiting)
    producers.remove(first)
    producers.remove(producer("unknown"))
    assert (list(producers.by_name), producers.exclusive) == (["second"], None)
    assert producers.remove(second) == ([waiting], [])
    assert producers.exclusive is waiting


def test_an_exclusive_producer_that_comes_back_on_its_connection_takes_its_own_place() -> None:
    producers = Producers(None)
    connection = Client()
    first = producer("p", ProducerAccessMode.Exclusive, connection=connection)
    producers.admit(first)
    again = producer("p", ProducerAccessMode.Exclusive, epoch=1, connection=connection)
    producers.admit(again)
    assert first.closed
    assert (producers.exclusive, producers.by_name) == (again, {"p": again})


def test_a_fencing_producer_whose_epoch_is_over_throws_nobody_out() -> None:
    producers = Producers(5)
    present = producer("present")
    producers.admit(present)
    waiting = producer("waits", ProducerAccessMode.WaitForExclusive)
    producers.admit(waiting)
    late = producer("late", ProducerAccessMode.ExclusiveWithFencing, topic_epoch=4)
    assert refused(producers, late) == ServerError.PRODUCER_FENCED
    assert (producers.by_name, producers.waiting, producers.topic_epoch) == ({"present": present}, {waiting: None}, 5)
    fencing = producer("fencing", ProducerAccessMode.ExclusiveWithFencing, topic_epoch=6)
    assert producers.admit(fencing).fenced_out == [present, waiting]
    assert producers.topic_epoch == 6


# --- answers in order


def batch(of: Producer, sequence_id: int, highest: int = 0) -> PublishBatch:
    made = PublishBatch(of)
    made.add(b"12345", sequence_id, highest, 1)
    of.batches_pending += 1
    return made


def test_a_refusal_waits_for_the_receipts_of_all_that_was_sent_before_it() -> None:
    client = Client()
    publishing = producer("p", connection=client)
    publishing.become(ProducerState.OPEN)
    for sequence_id in range(3):
        publishing.stored(batch(publishing, sequence_id), 7, sequence_id)
    third, fourth = batch(publishing, 3), batch(publishing, 4)
    publishing.answer_in_order(batch(publishing, 5), ServerError.NOT_ALLOWED_ERROR, "too large")
    last = batch(publishing, 6)
    publishing.stored(third, 7, 3)
    assert client.answers[-1].send_receipt.sequence_id == 3
    publishing.stored(fourth, 7, 4)
    assert [one.type for one in client.answers[-2:]] == [BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR]
    assert client.answers[-1].send_error.sequence_id == 5
    publishing.stored(last, 7, 5)
    assert client.answers[-1].send_receipt.sequence_id == 6
    assert (publishing.batches_pending, client.finished_bytes) == (0, 35)


def test_a_batch_that_is_refused_is_named_by_its_highest_sequence_id() -> None:
    """As clients look for it (Apache: `Producer.sendError` is given the highest)."""
    client = Client()
    publishing = producer("p", connection=client)
    publishing.answer_in_order(batch(publishing, 3, highest=9), ServerError.PERSISTENCE_ERROR, "full")
    assert client.answers[-1].send_error.sequence_id == 9


# --- limits


def test_who_comes_back_does_not_count_beside_itself() -> None:
    policies = replace(POLICIES, producers_max=2)
    settings = PolicySettings(same_address_producers_max=2)
    present = [producer("a"), producer("b", address="/10.0.0.2:5")]
    check_producer(TOPIC, policies, settings, producer("a"), present)
    with pytest.raises(PulsarError, match="reached max producers limit"):
        check_producer(TOPIC, policies, settings, producer("c"), present)
    with pytest.raises(PulsarError, match="reached max same address producers limit"):
        check_producer(TOPIC, POLICIES, settings, producer("c"), [producer("a"), producer("b")])


def subscriber(address: str) -> Consumer:
    identity = ConsumerIdentity(1, "same", SubscriptionType.SHARED)
    identity.address = address
    return Consumer(identity, StagedConnection())


@pytest.mark.parametrize(
    ("policies", "settings"),
    [
        (replace(POLICIES, consumers_max=2), PolicySettings()),
        (replace(POLICIES, consumers_per_subscription_max=2), PolicySettings()),
        (POLICIES, PolicySettings(same_address_consumers_max=2)),
    ],
)
def test_consumers_whose_connection_has_ended_count_for_no_limit(
    policies: EffectivePolicies, settings: PolicySettings
) -> None:
    present = [subscriber("/10.0.0.1:1000"), subscriber("/10.0.0.1:1000")]
    subscription: Any = SimpleNamespace(consumers=present)
    new = subscriber("/10.0.0.1:1001")
    with pytest.raises(PulsarError, match="reached max"):
        check_consumer(policies, settings, new, [subscription], subscription)
    connection: Any = present[0].connection
    connection.ended = True
    check_consumer(policies, settings, new, [subscription], subscription)


def test_a_consumer_that_reconnects_is_the_same_to_the_subscribe_rate() -> None:
    limiter = SubscribeLimiter(Rate(2, 0, 10.0), Timers())
    limiter.check(subscriber("/10.0.0.1:1000"))
    limiter.check(subscriber("/10.0.0.1:1001"))
    with pytest.raises(PulsarError, match="Subscribe limited"):
        limiter.check(subscriber("/10.0.0.1:1002"))
    limiter.check(subscriber("/10.0.0.2:1000"))


# --- backlogs and idleness


def backlogged(policies: EffectivePolicies, *, precise: bool = False, entries: int = 5) -> Any:
    """A topic of one ledger that was closed an hour ago, of which nothing, or all, is acknowledged."""
    timers = Timers()
    timers.time_ms = 10_000_000.0
    ledgers = LedgerList([LedgerRecord(7, 5, 500, timers.now_ms() - 3_600_000), LedgerRecord(8)])
    cursor = SimpleNamespace(name="s", mark_delete=(7, 4 - entries), backlog_entries=entries)

    async def read_entry(position: tuple[int, int]) -> Any:
        assert ledgers.contains(position), f"there is no entry {position}"
        return SimpleNamespace(metadata=lambda: SimpleNamespace(publish_time_ms=0))

    return SimpleNamespace(
        policies=policies,
        clock=timers,
        limits=SimpleNamespace(settings=PolicySettings(backlog_quota_age_precise=precise)),
        ledger=SimpleNamespace(ledgers=ledgers, cursors={"s": cursor}, read_entry=read_entry),
    )


@pytest.mark.parametrize("precise", [False, True])
async def test_each_quota_refuses_with_the_code_of_its_own_policy(*, precise: bool) -> None:
    hold, refuse = BacklogQuotaPolicy.HOLD, BacklogQuotaPolicy.REFUSE
    too_old = replace(POLICIES, size_quota=BacklogQuota(-1, -1, hold), age_quota=BacklogQuota(-1, 60, refuse))
    with pytest.raises(PulsarError) as refusal:
        await check_quotas(backlogged(too_old, precise=precise))
    assert refusal.value.code == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
    too_large = replace(POLICIES, size_quota=BacklogQuota(100, -1, hold), age_quota=BacklogQuota(-1, 60, refuse))
    with pytest.raises(PulsarError) as refusal:
        await check_quotas(backlogged(too_large, precise=precise))
    assert refusal.value.code == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR
    await check_quotas(backlogged(too_old, precise=precise, entries=0))


@pytest.mark.parametrize(("minutes", "deleted"), [(0, True), (10, True), (20, False), (-1, False)])
def test_an_idle_topic_stays_as_long_as_its_retention(minutes: int, *, deleted: bool) -> None:
    policies = replace(
        POLICIES,
        retention_minutes=minutes,
        inactive_topics=InactiveTopics(True, InactiveTopicDeleteMode.NO_SUBSCRIPTIONS, 60),
    )
    topic: Any = SimpleNamespace(
        policies=policies,
        of_broker=False,
        closing=False,
        producers=Producers(None),
        replicators=None,
        shadow_replicators=None,
        subscriptions={},
        number_of_entries=5,
        last_active_seconds=0.0,
    )
    assert is_idle(topic, 15 * 60.0) is deleted
    topic.number_of_entries = 0
    assert is_idle(topic, 15 * 60.0)
    topic.producers.waiting[producer("waits")] = None
    assert not is_idle(topic, 15 * 60.0)
