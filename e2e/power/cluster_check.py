"""What a standalone cluster has after a power cut, compared with what its clients were told before."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from typing import Final

import pulsar

from e2e.cluster import admin
from e2e.power.cluster_load import ACKS, FOLDER, KEEP, NAMESPACE, SEND_TIMEOUT_MS
from e2e.power.history import (
    ClusterHistory,
    Span,
    TopicHistory,
    judge_acknowledged,
    judge_messages,
    number_of,
    payload,
)
from e2e.power.recording import Recording
from e2e.server import MagnetarStandalone

MORE_MESSAGES: Final = 3
"""Published after the cut; the last of them is where a reader may stop."""
MORE_BYTES: Final = 500
RECEIVE_MS: Final = 30_000
OPERATION_SECONDS: Final = 30
NOT_FOUND: Final = 404


class ClusterCheck:
    """Looks at a cluster that was started on what a cut has left. `history` is told of what it publishes itself."""

    def __init__(self, server: MagnetarStandalone, recording: Recording, history: ClusterHistory, cut: int) -> None:
        self._server = server
        self._recording = recording
        self._history = history
        self._cut = cut
        self._client = pulsar.Client(
            server.service_url,
            operation_timeout_seconds=OPERATION_SECONDS,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def problems(self) -> list[str]:
        """Everything that is wrong."""
        try:
            there = {name.rpartition("/")[2] for name in admin.get_json(f"{self._server.admin_url}/admin/v2/{FOLDER}")}
            found = self._values()
            for topic in self._history.topics.values():
                try:
                    found += self._topic(topic, topic.name in there)
                except pulsar.PulsarException as error:
                    # Whatever is wrong may be so with all of them, half a minute each.
                    return [*found, f"{topic.name}: {error!r}"]
        except (urllib.error.URLError, pulsar.PulsarException, TimeoutError) as error:
            return [f"the cluster does not serve: {error!r}"]
        finally:
            self._client.close()
        return found

    def _values(self) -> list[str]:
        written = self._history.values
        if not written:
            return []
        content = admin.call("GET", f"{self._server.admin_url}/admin/v2/namespaces/{NAMESPACE}/messageTTL").decode()
        number = int(content) if content.isdigit() else None
        least = max((value.number for value in written if value.span.must(self._cut)), default=None)
        if least is not None and (number is None or number < least):
            return [f"messageTTL is {number}, and {least} was confirmed"]
        if number is not None and not any(value.number == number and value.span.may(self._cut) for value in written):
            return [f"messageTTL is {number}, which nobody had set"]
        # What is read has to stay.
        for value in written:
            if value.number == number:
                value.span = Span(-1, -1)
        return []

    def _topic(self, topic: TopicHistory, there: bool) -> list[str]:
        cut = self._cut
        if topic.deleted.must(cut):
            return [f"{topic.name} was deleted and is back"] if there else []
        if topic.deleted.may(cut) or not topic.created.must(cut):
            return self._finish_deletion(topic)
        if not there:
            return [f"{topic.name} was created and is not there"]
        return self._content(topic)

    def _finish_deletion(self, topic: TopicHistory) -> list[str]:
        """One that may be half made or half deleted can be deleted."""
        span = Span(self._recording.now())
        try:
            admin.call("DELETE", f"{self._server.admin_url}/admin/v2/{FOLDER}/{topic.name}?force=true")
        except urllib.error.HTTPError as error:
            if error.code != NOT_FOUND:
                return [f"{topic.name} cannot be deleted: {error.code} {error.read()!r}"]
        span.confirmed = self._recording.now()
        topic.created, topic.deleted = Span(-1), span
        return []

    def _content(self, topic: TopicHistory) -> list[str]:
        keep = self._client.subscribe(topic.name, KEEP, receiver_queue_size=1_000)
        acks = self._client.subscribe(
            topic.name, ACKS, consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1_000
        )
        mine = self._publish_more(topic)
        found: list[int | None] = []
        for message in _until(keep, topic.name, max(mine)):
            number = number_of(topic.name, message.data())
            found.append(number)
            if number is not None:
                topic.places[message.message_id().ledger_id(), message.message_id().entry_id()] = number
        delivered = {number_of(topic.name, message.data()) for message in _until(acks, topic.name, max(mine))}
        keep.close()
        acks.close()
        before, after = found[: -len(mine)], found[-len(mine) :]
        problems = [] if after == list(mine) else [f"{topic.name}: ends with {after} instead of {list(mine)}"]
        problems += judge_messages(topic, self._cut, before)
        numbers = {number for number in delivered if number is not None}
        problems += judge_acknowledged(topic, self._cut, numbers - mine.keys())
        if not mine.keys() <= numbers:
            problems.append(f"{topic.name}: {ACKS} does not get what is new")
        # What was read has to stay.
        topic.messages = {number: Span(-1, -1) for number in before if number is not None} | mine
        return problems

    def _publish_more(self, topic: TopicHistory) -> dict[int, Span]:
        """The numbers of some messages behind all others."""
        producer = self._client.create_producer(topic.name, send_timeout_millis=SEND_TIMEOUT_MS)
        mine: dict[int, Span] = {}
        first = max(topic.messages, default=-1) + 1
        for number in range(first, first + MORE_MESSAGES):
            mine[number] = Span(self._recording.now())
            producer.send(payload(topic.name, number, MORE_BYTES))
            mine[number].confirmed = self._recording.now()
        producer.close()
        return mine


def _until(consumer: pulsar.Consumer, name: str, last: int) -> Iterator[pulsar.Message]:
    """Messages up to the one with a number. Raises pulsar.Timeout when nothing comes any more."""
    while True:
        message = consumer.receive(timeout_millis=RECEIVE_MS)
        yield message
        if number_of(name, message.data()) == last:
            return
