"""Transactors: they take entries of several topics and publish to several topics, each time in one transaction.

What one takes it acknowledges in the transaction in which it publishes what it makes of it. So each message must be
taken by exactly one transaction that counts, whatever has become of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from magnetar.broker.transactions.names import coordinator_topic
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import frame_of

from e2e.broker_simulation.clients import Client, entry_of
from e2e.broker_simulation.consumers import Goal
from e2e.broker_simulation.drawn.transactions import SUBSCRIPTION, TransactionParameters
from e2e.broker_simulation.history import Content, Taken, TransactionHistory
from e2e.broker_simulation.producers import Sequence
from e2e.broker_simulation.protocol import Link, NoAnswer, PulsarError
from e2e.broker_simulation.transactions.ends import (
    Input,
    InputConsumer,
    OutputProducer,
    bits_of,
)

NAME: Final = "transactor"
"""How the names of all their producers begin."""
LOOK_SECONDS: Final = 0.2
QUIET_SECONDS: Final = 0.5
"""After so long without an entry a transactor asks whether anything is left."""
LONG_SECONDS: Final = 30.0
LONG_QUIET_SECONDS: Final = 10.0
"""And when nothing has come for long, as often: something is held until its transaction is asked about."""
PAUSE_SECONDS: Final = 0.1
"""After something that failed, about."""
PATIENT_MS: Final = 8_000
"""Of transactions without tricks."""
DRAINED_AT_ONCE: Final = 20
"""Entries that a transaction takes when everything is to come to an end."""
END_ATTEMPTS_MAX: Final = 12
GIVES_UP_SHARE: Final = 0.2
"""Ends without an answer that are not asked for again."""
ENDED: Final = frozenset({ServerError.TRANSACTION_NOT_FOUND, ServerError.INVALID_TXN_STATUS})


class Written:
    """What a transactor's next life must know of this one."""

    def __init__(self, topics: list[str]) -> None:
        self.begun = 0
        self.sequences = {topic: Sequence() for topic in topics}


class Transactor:
    """One program. A `Program` of its host."""

    def __init__(
        self,
        client: Client,
        name: str,
        topics: list[str],
        parameters: TransactionParameters,
        goal: Goal,
        taken: list[str] | None = None,
    ) -> None:
        """It publishes to these topics, and takes from them, or from those of `taken`."""
        self.name = name
        self._client = client
        self._parameters = parameters
        self._goal = goal
        self._written = Written(topics)
        self._coordinators: dict[int, Link] = {}
        self._producers = {
            topic: OutputProducer(client, topic, f"{name}-{number}", self._written.sequences[topic])
            for number, topic in enumerate(topics)
        }
        self._arrived = asyncio.Event()
        """Set when an entry has come."""
        self._had_some_at = client.now()
        """The last look at which there was an entry, or more was to come."""
        self._consumers = {
            topic: InputConsumer(client, topic, name, parameters, self._arrived.set) for topic in taken or topics
        }

    def reborn(self) -> None:
        """The program was killed, and begins anew on its host."""
        self._coordinators.clear()
        for end in (*self._producers.values(), *self._consumers.values()):
            end.reborn()

    async def run(self) -> None:
        """Until nothing is left, once it is to end."""
        ends = [*self._producers.values(), *self._consumers.values()]
        running = [asyncio.ensure_future(end.run()) for end in ends]
        await self._work()
        for end in ends:
            end.finished = True
            end.news.set()
        await asyncio.gather(*running)

    async def _work(self) -> None:
        chance = self._client.chance
        while True:
            try:
                inputs = await self._inputs()
                if inputs or (not self._patient and chance.random() < 0.3):
                    await self._transact(inputs)
                elif self._goal.drain and await self._nothing_is_left():
                    return
                await asyncio.sleep(0.0 if self._goal.drain else self._parameters.pause_seconds * chance.random())
            except (NoAnswer, PulsarError) as error:
                self._client.world.loop.trace.remark(self.name, f"{type(error).__name__}: {error}")
                await asyncio.sleep(PAUSE_SECONDS * (0.5 + chance.random()))

    @property
    def _patient(self) -> bool:
        """Whether it plays no tricks any more."""
        return self._goal.drain or self._written.begun >= self._parameters.transactions

    # --- what it takes

    async def _inputs(self) -> list[Input]:
        """Some entries that are there, perhaps after a while. What transactors have made is done with at once."""
        some = any(consumer.inbox for consumer in self._consumers.values())
        if some or not self._goal.drain:
            self._had_some_at = self._client.now()
        if not some:
            await self._news(self._quiet_seconds if self._goal.drain else LOOK_SECONDS)
        for one in [one for one in self._there() if one.entry.content.producer.startswith(NAME)]:
            self._consumers[one.topic].inbox.pop(one.entry.position, None)
            self._client.history.plain.update((one.topic, one.entry.position, index) for index in one.left)
            await self._consumers[one.topic].acknowledge(one, one.left, None)
        # Some may have come once more meanwhile.
        chosen = [one for one in self._there() if not one.entry.content.producer.startswith(NAME)]
        inputs_max = DRAINED_AT_ONCE if self._goal.drain else self._parameters.inputs_max
        chosen = chosen[: self._client.chance.randint(1, inputs_max)]
        for one in chosen:
            self._consumers[one.topic].inbox.pop(one.entry.position, None)
        return chosen

    @property
    def _quiet_seconds(self) -> float:
        """Between two looks whether everything is taken."""
        return LONG_QUIET_SECONDS if self._client.now() - self._had_some_at > LONG_SECONDS else QUIET_SECONDS

    def _there(self) -> list[Input]:
        return [one for consumer in self._consumers.values() for one in consumer.inbox.values()]

    async def _news(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        self._arrived.clear()

    async def _nothing_is_left(self) -> bool:
        # Whoever connects has a coordinator run, which ends what nobody else does.
        for number in range(self._parameters.coordinators):
            self._lost(number)
            await self._coordinator(number)
        backlogs = [await consumer.backlog() for consumer in self._consumers.values()]
        self._client.note(f"hears of backlogs of {backlogs}")
        return not any(backlogs) and not any(consumer.inbox for consumer in self._consumers.values())

    def _give_back(self, inputs: list[Input]) -> None:
        for topic, consumer in self._consumers.items():
            consumer.ask_again(one for one in inputs if one.topic == topic)

    # --- one transaction

    async def _transact(self, inputs: list[Input]) -> None:
        chance, parameters, patient = self._client.chance, self._parameters, self._patient
        try:
            record = await self._begin(PATIENT_MS if patient else parameters.timeout_ms)
        except (NoAnswer, PulsarError):
            self._give_back(inputs)
            raise
        commit = patient or chance.random() >= parameters.abort_share
        try:
            await self._take_steps(record, inputs)
        except (NoAnswer, PulsarError) as error:
            self._note(record, f"goes wrong: {type(error).__name__} {error}")
            commit = False
        if not patient and chance.random() < parameters.forgotten_share:
            self._note(record, "is forgotten")
        else:
            await self._end(record, commit=commit, patient=patient)
        record.left = True
        if not (record.commit and record.answered):
            self._give_back(inputs)

    def _note(self, record: TransactionHistory, what: str) -> None:
        self._client.note(f"transaction {record.id} {what}")

    async def _coordinator(self, number: int) -> Link:
        """A connection to the broker that runs it; `_lost` forgets it."""
        known = self._coordinators.get(number)
        if known is not None and not known.ended:
            return known
        link = await self._client.links.to_owner(str(coordinator_topic(number)))
        await link.ask(lambda request_id: requests.tc_client_connect(request_id, number))
        self._coordinators[number] = link
        return link

    def _lost(self, number: int) -> None:
        """It is looked up again."""
        self._coordinators.pop(number, None)

    async def _begin(self, timeout_ms: int) -> TransactionHistory:
        number = self._client.chance.randrange(self._parameters.coordinators)
        self._written.begun += 1
        link = await self._coordinator(number)
        try:
            answer: Any = await link.ask(
                lambda request_id: frame_of(
                    pb.CommandNewTxn(request_id=request_id, txn_ttl_seconds=timeout_ms, tc_id=number)
                )
            )
        except (NoAnswer, PulsarError):
            self._lost(number)
            raise
        record = TransactionHistory((answer.txnid_most_bits, answer.txnid_least_bits), self.name)
        self._client.history.transactions.append(record)
        self._note(record, f"begins, for {timeout_ms} ms")
        return record

    async def _take_steps(self, record: TransactionHistory, inputs: list[Input]) -> None:
        chance, parameters = self._client.chance, self._parameters
        topics = sorted(self._producers)
        outputs = chance.sample(topics, min(len(topics), chance.randint(1, parameters.outputs_max)))
        steps: list[Coroutine[Any, Any, None]] = [self._publish(record, topic) for topic in outputs]
        steps += [self._acknowledge(record, one) for one in inputs]
        chance.shuffle(steps)
        if chance.random() < parameters.at_once_share:
            failures = [one for one in await asyncio.gather(*steps, return_exceptions=True) if one is not None]
            if failures:
                raise failures[0]
            return
        left = list(steps)
        try:
            while left:
                await left.pop(0)
        finally:
            for step in left:
                step.close()

    async def _ask_coordinator(self, record: TransactionHistory, body: Any) -> None:
        link = await self._coordinator(record.id[0])

        def build(request_id: int) -> bytes:
            body.request_id = request_id
            return frame_of(body)

        self._client.history.on_transaction_step()
        try:
            await link.ask(build)
        except (NoAnswer, PulsarError):
            self._lost(record.id[0])
            raise

    async def _publish(self, record: TransactionHistory, topic: str) -> None:
        await self._ask_coordinator(record, pb.CommandAddPartitionToTxn(partitions=[topic], **bits_of(record.id)))
        for _ in range(self._client.chance.randint(1, 2)):
            await self._send(record, topic)

    async def _send(self, record: TransactionHistory, topic: str) -> None:
        client, producer = self._client, self._producers[topic]
        messages = client.chance.randint(1, self._parameters.messages_max)
        content = Content(producer.name, producer.sequence.next_id, messages)
        producer.sequence.next_id += messages
        topics = client.history.topics[topic]
        topics.sent[content] = ""
        topics.attempts[content] = 1
        record.sent.append((topic, content))
        client.history.on_transaction_step()
        self._note(record, f"sends {content} to {topic}")
        await producer.send(content, entry_of(content, "", client.world.clock.now_ms(), record.id), record.id)

    async def _acknowledge(self, record: TransactionHistory, one: Input) -> None:
        chance, indexes = self._client.chance, one.left
        if len(indexes) > 1 and chance.random() < self._parameters.partial_share:
            indexes = frozenset(chance.sample(sorted(indexes), chance.randint(1, len(indexes) - 1)))
        await self._ask_coordinator(
            record,
            pb.CommandAddSubscriptionToTxn(
                subscription=[pb.Subscription(topic=one.topic, subscription=SUBSCRIPTION)], **bits_of(record.id)
            ),
        )
        record.taken.append(Taken(one.topic, one.entry.position, indexes))
        self._client.history.on_transaction_step()
        self._note(record, f"takes {sorted(indexes)} of {one.entry.position} of {one.topic}")
        consumer = self._consumers[one.topic]
        await consumer.acknowledge(one, indexes, record.id)
        if one.left - indexes:
            # The rest is asked for again, as if it was not here.
            consumer.ask_again([one])

    async def _end(self, record: TransactionHistory, *, commit: bool, patient: bool) -> None:
        record.commit = commit
        action = pb.COMMIT if commit else pb.ABORT
        body = pb.CommandEndTxn(txn_action=action, **bits_of(record.id))
        chance = self._client.chance
        for attempt in range(END_ATTEMPTS_MAX):
            self._note(record, f"is to be {'committed' if commit else 'aborted'}")
            try:
                await self._ask_coordinator(record, body)
                record.answered = True
                self._note(record, f"is {'committed' if commit else 'aborted'}")
                return
            except PulsarError as error:
                self._note(record, f"is not ended: {error}")
                if error.code in ENDED:
                    record.refused = attempt == 0
                    return
            except NoAnswer as error:
                self._note(record, f"has no answer: {error}")
            if not patient and chance.random() < GIVES_UP_SHARE:
                return
            await asyncio.sleep(PAUSE_SECONDS * (0.5 + chance.random()))
