"""Consumers of every type: they take, acknowledge in every way, ask again, seek, leave and come back."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, cast

from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.broker_simulation.clients import (
    Attached,
    Client,
    command,
    content_of,
    indexes_of,
    position_of,
    wire_id,
)
from e2e.broker_simulation.history import (
    Acknowledged,
    Activated,
    AskedAgain,
    Began,
    Delivered,
    Ended,
    Entry,
    Granted,
    Session,
    Sought,
    SubscriptionHistory,
    Told,
)
from e2e.broker_simulation.parameters import SubscriptionParameters
from e2e.broker_simulation.protocol import Link, NoAnswer, PulsarError

LOOK_SECONDS: Final = 0.2
"""How often a consumer without messages looks whether it is to end."""
QUIET_SECONDS: Final = 0.5
"""After so long without a message a late consumer asks whether anything is left."""
ORDERED: Final = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
"""One consumer gets everything, in order."""


class Goal:
    """What consumers are to do now."""

    def __init__(self) -> None:
        self.drain = False
        """Acknowledge everything, with receipts."""
        self.leave = False
        """Come to an end."""


@dataclass(slots=True)
class Held:
    """What a consumer has and has not acknowledged."""

    entry: Entry
    left: frozenset[int]
    """Of its messages."""
    busy: bool = False
    """An acknowledgement of it has no receipt yet."""


class Consumer(Attached):
    """One consumer of one subscription."""

    def __init__(self, client: Client, topic: str, name: str, parameters: SubscriptionParameters, goal: Goal) -> None:
        super().__init__(client, topic)
        self.name = name
        self.parameters = parameters
        self.goal = goal
        self.unsubscribe_share = 0.0
        """Messages after which it deletes the subscription."""
        self.leave_share = 0.0
        """Messages after which it closes and subscribes again, beside what the parameters say."""
        self.session: Session | None = None
        self._history: SubscriptionHistory = client.history.subscriptions[(topic, parameters.name)]
        self._inbox: deque[Held] = deque()
        self._held: dict[Position, Held] = {}
        self._owed = 0

    @property
    def idle(self) -> bool:
        """Whether it has nothing that it could acknowledge."""
        return not self._inbox and not self._held

    async def attach(self, link: Link, end_id: int) -> None:
        """See `Attached.attach`."""
        self._inbox.clear()
        self._held.clear()
        self._owed = 0
        history, parameters = self._history, self.parameters
        request = requests.SubscribeRequest(
            topic=self.topic,
            subscription=parameters.name,
            kind=cast(pb.CommandSubscribe.SubType, int(parameters.kind)),
            consumer_name=self.name,
            from_earliest=True,
        )
        asked_at = self.client.now()
        session = Session(len(history.sessions), self.name, parameters.kind, link.number, link.broker, asked_at)
        await link.ask(lambda request_id: requests.subscribe(request_id, end_id, request))
        history.sessions.append(session)
        session.number = len(history.sessions)
        session.began_at = self.client.now()
        history.events.append(Began(session))
        self.session = session
        self.client.note(f"session {session.number} of {parameters.name} at {link.broker}")

    async def work(self, link: Link) -> None:
        """See `Attached.work`."""
        self._grant(link, self.parameters.permits)
        while self.link is link:
            if self.goal.leave:
                self.finished = True
                await self.leave()
            elif self._inbox:
                await asyncio.sleep(self.chance.expovariate(1 / 0.005))
                if self.link is link and self._inbox:
                    await self._treat(link, self._inbox.popleft())
            elif self.goal.drain and not all(held.busy for held in self._held.values()):
                self._acknowledge_all(link)
            else:
                await self.wait(LOOK_SECONDS * (0.5 + self.chance.random()))
                self._let_some_go(link)

    def forget(self) -> None:
        """See `Attached.forget`: what it holds goes with its session."""

    def close_request(self, request_id: int, end_id: int) -> bytes:
        """See `Attached.close_request`."""
        return requests.close_consumer(request_id, end_id)

    def leaves(self) -> None:
        """See `Attached.leaves`: from now on the broker may give to others what it has."""
        assert self.session is not None
        self._history.events.append(Ended(self.session))
        self.client.history.on_moment()

    def detached(self, *, closed: bool) -> None:
        """See `Attached.detached`."""
        session, self.session = self.session, None
        if session is not None:
            session.ended_at = self.client.now()
            session.closed = closed
            if not closed:
                self._history.events.append(Ended(session))
            self.client.note(f"session {session.number} {'is closed' if closed else 'is over'}")

    def take(self, command: pb.BaseCommand, rest: bytes) -> None:
        """See `End.take`."""
        if command.type == pb.BaseCommand.MESSAGE:
            self._delivered(command.message, rest)
        elif command.type == pb.BaseCommand.CLOSE_CONSUMER:
            self.told_to_leave(command.close_consumer.assignedBrokerServiceUrl)
        elif command.type == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE and self.session is not None:
            self._history.events.append(Activated(self.session, command.active_consumer_change.is_active))

    # --- what comes

    def _delivered(self, message: pb.CommandMessage, rest: bytes) -> None:
        content, key = content_of(rest)
        entry = Entry(position_of(message.message_id), content, key)
        every = frozenset(range(content.messages))
        indexes = indexes_of(list(message.ack_set), content.messages) if message.ack_set else None
        left = every if indexes is None else indexes
        session = self.session
        self.client.note(f"gets {content} at {entry.position}, {message.redelivery_count} times before, {sorted(left)}")
        if session is None:
            self.client.history.wrong.append(f"{self.name} gets {entry.position} before it is subscribed")
            return
        self._history.events.append(Delivered(session, self.client.now(), entry, indexes, message.redelivery_count))
        held = Held(entry, left)
        self._held.pop(entry.position, None)
        self._inbox.append(held)
        self._owe(len(left))
        self.news.set()

    def _owe(self, messages: int) -> None:
        self._owed += messages
        if 2 * self._owed >= self.parameters.permits and self.link is not None:
            self._grant(self.link, self._owed)
            self._owed = 0

    def _grant(self, link: Link, messages: int) -> None:
        assert self.session is not None
        self._history.events.append(Granted(self.session, messages))
        link.write(requests.flow(self.id, messages))

    # --- what is done about it

    async def _treat(self, link: Link, held: Held) -> None:
        parameters, chance = self.parameters, self.chance
        self._held[held.entry.position] = held
        if self.goal.drain:
            return
        if chance.random() < parameters.seek_share:
            await self._seek(link, held.entry.position)
        elif chance.random() < parameters.restart_share or (self.leave_share and chance.random() < self.leave_share):
            await self.leave()
        elif self.unsubscribe_share and chance.random() < self.unsubscribe_share:
            await self._unsubscribe(link)
        elif chance.random() < parameters.negative_share:
            self._ask_again(link, held)
        elif chance.random() >= parameters.held_share:
            if parameters.kind in ORDERED and chance.random() < parameters.cumulative_share:
                self._acknowledge_up_to(link, held)
            else:
                self._acknowledge(link, held)
        if chance.random() < 0.3:
            self._let_some_go(link)

    def _let_some_go(self, link: Link) -> None:
        free = [held for held in self._held.values() if not held.busy]
        if free and self.link is link:
            self._acknowledge(link, self.chance.choice(free))

    def _acknowledge_all(self, link: Link) -> None:
        for held in list(self._held.values()):
            if not held.busy:
                self._acknowledge(link, held)

    def _acknowledge(self, link: Link, held: Held) -> None:
        parameters, chance = self.parameters, self.chance
        position, messages = held.entry.position, held.entry.content.messages
        remaining: frozenset[int] | None = None
        if not self.goal.drain and len(held.left) > 1 and chance.random() < parameters.partial_share:
            remaining = frozenset(chance.sample(sorted(held.left), chance.randint(1, len(held.left) - 1)))
            if chance.random() < 0.5:
                # As clients that know nothing of what they have acknowledged before.
                remaining |= frozenset(range(messages)) - held.left
        if remaining is None:
            self._send(link, [held], wire_id(position), cumulative=False)
        else:
            self._send(link, [held], wire_id(position, messages, remaining), cumulative=False, remaining=remaining)

    def _acknowledge_up_to(self, link: Link, held: Held) -> None:
        position = held.entry.position
        covered = [other for other in self._held.values() if other.entry.position <= position]
        messages, remaining = held.entry.content.messages, None
        if messages > 1 and self.chance.random() < self.parameters.partial_share:
            remaining = frozenset(range(self.chance.randint(1, messages - 1), messages))
        self._send(link, covered, wire_id(position, messages, remaining), cumulative=True, remaining=remaining)

    def _send(
        self,
        link: Link,
        covered: list[Held],
        message_id: pb.MessageIdData,
        *,
        cumulative: bool,
        remaining: frozenset[int] | None = None,
    ) -> None:
        session = self.session
        assert session is not None
        position = position_of(message_id)
        asked = Acknowledged(session, self.client.now(), (position,), cumulative, remaining)
        self._history.events.append(asked)
        self.client.history.on_moment()
        what = "" if remaining is None else f" but {sorted(remaining)}"
        self.client.note(f"acknowledges {'up to ' if cumulative else ''}{position}{what}")
        if not self.goal.drain and self.chance.random() >= self.parameters.receipt_share:
            link.write(requests.ack(self.id, [message_id], cumulative=cumulative))
            self._done(covered, position, remaining)
            return
        for held in covered:
            held.busy = True
        end_id = self.id
        try:
            _, answer = link.begin(
                lambda request_id: requests.ack(end_id, [message_id], cumulative=cumulative, request_id=request_id)
            )
        except NoAnswer:
            return
        answer.add_done_callback(lambda done: self._answered(done, asked, covered))

    def _answered(self, answer: asyncio.Future[Any], asked: Acknowledged, covered: list[Held]) -> None:
        for held in covered:
            held.busy = False
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or error is not None:
            self.client.note(f"has no receipt of {asked.positions}: {type(error).__name__}")
        else:
            asked.told_at = self.client.now()
            self.client.note(f"has the receipt of {asked.positions}")
            self._history.events.append(Told(asked))
            self.client.witness.acknowledgement_told(self._history, asked)
            if asked.session is self.session:
                self._done(covered, asked.positions[0], asked.remaining)
        self.news.set()

    def _done(self, covered: list[Held], position: Position, remaining: frozenset[int] | None) -> None:
        """These are acknowledged; of a batch at `position` some messages perhaps not."""
        for held in covered:
            its = held.entry.position
            held.left = held.left & remaining if its == position and remaining is not None else frozenset()
            if not held.left and self._held.get(its) is held:
                del self._held[its]

    def _ask_again(self, link: Link, held: Held) -> None:
        session = self.session
        assert session is not None
        body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.id)
        positions: tuple[Position, ...] | None = None
        if self.parameters.kind in ORDERED or self.chance.random() < 0.2:
            # All that it has: it forgets what it has, as clients do.
            self._held.clear()
            self._inbox.clear()
        else:
            positions = (held.entry.position,)
            body.message_ids.append(wire_id(held.entry.position))
            del self._held[held.entry.position]
        self._history.events.append(AskedAgain(session, self.client.now(), positions))
        self.client.note(f"asks again for {positions or 'everything'}")
        link.write(command(pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=body))

    async def _seek(self, link: Link, here: Position) -> None:
        session = self.session
        assert session is not None
        target = self.chance.choice((here, here, EARLIEST, LATEST))
        sought = Sought(session, self.client.now(), target)
        self._history.events.append(sought)
        self.client.note(f"seeks {target}")
        self.client.history.on_moment()
        end_id = self.id
        try:
            await link.ask(
                lambda request_id: command(
                    pb.BaseCommand.SEEK,
                    seek=pb.CommandSeek(consumer_id=end_id, request_id=request_id, message_id=wire_id(target)),
                )
            )
        except PulsarError as error:
            self.client.note(f"may not seek: {error}")
            return
        sought.done_at = self.client.now()
        self.client.note("has sought")

    async def _unsubscribe(self, link: Link) -> None:
        """Whoever subscribes next begins with the first entry: as after a seek."""
        session = self.session
        assert session is not None
        sought = Sought(session, self.client.now(), EARLIEST)
        self._history.events.append(sought)
        session.unsubscribed_at = sought.at
        self.client.note("unsubscribes")
        self.client.history.on_moment()
        end_id = self.id
        try:
            await link.ask(lambda request_id: requests.unsubscribe(request_id, end_id))
        except PulsarError as error:
            session.unsubscribed_at = float("inf")
            self.client.note(f"may not unsubscribe: {error}")
            return
        sought.done_at = self.client.now()
        if self.link is link and self.id == end_id:
            self._history.events.append(Ended(session))
            self._forget(link, end_id)
            self._detach(closed=True)


class LateConsumer(Consumer):
    """Takes what is left, and ends when nothing comes any more and no backlog is left."""

    def __init__(self, client: Client, topic: str, name: str, parameters: SubscriptionParameters) -> None:
        super().__init__(client, topic, name, parameters, Goal())
        self.goal.drain = True

    async def wait(self, seconds: float) -> None:
        """See `Attached.wait`."""
        del seconds
        before = self.client.now()
        await super().wait(QUIET_SECONDS)
        link, end_id = self.link, self.id
        if link is None or not self.idle or self.client.now() - before < QUIET_SECONDS:
            return
        answer = await link.ask(
            lambda request_id: command(
                pb.BaseCommand.CONSUMER_STATS,
                consumerStats=pb.CommandConsumerStats(request_id=request_id, consumer_id=end_id),
            )
        )
        self.client.note(f"hears of a backlog of {answer.msgBacklog}")
        self.goal.leave = not answer.msgBacklog
