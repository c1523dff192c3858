"""Traffic on a standalone cluster for some seconds, and what its clients were told."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import pulsar
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandSubscribe

from e2e.cluster import admin
from e2e.faults.raw_client import RawClient
from e2e.power.history import ClusterHistory, Span, TopicHistory, Value, payload
from e2e.power.recording import Recording
from e2e.server import MagnetarStandalone

NAMESPACE: Final = "public/default"
FOLDER: Final = f"persistent/{NAMESPACE}"
KEEP, ACKS = "keep", "acks"
TOPICS: Final = 2
SIZES_BYTES: Final = (60, 500, 2_000, 9_000)
BURST_MAX: Final = 25
ACKNOWLEDGED_MAX: Final = 8
PAUSE_SECONDS_MAX: Final = 0.05
WAIT_SECONDS: Final = 0.002
SHORT_LIVED_MESSAGES: Final = 90
VALUE_BASE: Final = 1_000_000
"""Of the namespace's messageTTL, in seconds: nothing may expire."""
SEND_TIMEOUT_MS: Final = 60_000
STUCK_SECONDS: Final = 60.0
FIRST_REQUEST: Final = 10
"""Behind those of `RawClient` itself."""


class ClusterLoad:
    """Publishers, acknowledgers, topics that come and go, settings that change; each in a thread."""

    def __init__(self, server: MagnetarStandalone, recording: Recording, seed: int, seconds: float) -> None:
        self.history = ClusterHistory()
        self._server = server
        self._recording = recording
        self._seed = seed
        self._until = time.monotonic() + seconds

    def run(self) -> ClusterHistory:
        """Until the time is over and everything was answered."""
        client = pulsar.Client(self._server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            names = [f"long-{number}" for number in range(TOPICS)]
            for name in names:
                self._create(name)
            jobs: list[Callable[[], None]] = [partial(self._publish, client, name) for name in names]
            jobs += [partial(self._acknowledge, name) for name in names]
            jobs += [partial(self._come_and_go, client), self._set_values]
            with ThreadPoolExecutor(len(jobs)) as threads:
                for done in [threads.submit(job) for job in jobs]:
                    done.result()
        finally:
            client.close()
        return self.history

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self._until

    def _create(self, name: str) -> TopicHistory:
        topic = TopicHistory(name, Span(self._recording.now()))
        self.history.topics[name] = topic
        url = f"{self._server.admin_url}/admin/v2/{FOLDER}/{name}"
        admin.call("PUT", url)
        for subscription in (KEEP, ACKS):
            admin.call("PUT", f"{url}/subscription/{subscription}")
        topic.created.confirmed = self._recording.now()
        return topic

    def _publish(self, client: pulsar.Client, name: str) -> None:
        rng = random.Random(f"{self._seed}:{name}")
        producer = client.create_producer(name, send_timeout_millis=SEND_TIMEOUT_MS)
        while not self._over:
            self._burst(producer, self.history.topics[name], rng, rng.randint(1, BURST_MAX))
            time.sleep(rng.uniform(0.0, PAUSE_SECONDS_MAX))
        producer.close()

    def _burst(self, producer: Any, topic: TopicHistory, rng: random.Random, count: int) -> None:
        for _ in range(count):
            number = len(topic.messages)
            span = topic.messages[number] = Span(self._recording.now())
            content = payload(topic.name, number, rng.choice(SIZES_BYTES))
            producer.send_async(content, lambda *told, n=number, s=span: self._told(topic, n, s, *told))
        producer.flush()

    def _told(self, topic: TopicHistory, number: int, span: Span, result: Any, message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            topic.places[message_id.ledger_id(), message_id.entry_id()] = number
            span.confirmed = self._recording.now()

    def _acknowledge(self, name: str) -> None:
        """Some one by one, each group with a receipt."""
        topic, rng = self.history.topics[name], random.Random(f"{self._seed}:{name}:acks")
        with RawClient(self._server.service_url) as client:
            client.subscribe(f"persistent://{NAMESPACE}/{name}", ACKS, CommandSubscribe.Shared)
            request = received = 0
            while not self._over:
                count = min(rng.randint(1, ACKNOWLEDGED_MAX), len(topic.places) - received)
                if not count:
                    time.sleep(WAIT_SECONDS)
                    continue
                client.flow(count)
                ids = [client.receive_until(BaseCommand.MESSAGE).message.message_id for _ in range(count)]
                received += count
                chosen = [(one.ledgerId, one.entryId) for one in ids if rng.random() < 0.8]
                spans = [self._acknowledging(topic, place) for place in chosen]
                if not chosen:
                    continue
                request += 1
                client.acknowledge(chosen, request_id=FIRST_REQUEST + request)
                answer = client.receive_until(BaseCommand.ACK_RESPONSE).ackResponse
                assert answer.request_id == FIRST_REQUEST + request
                assert not answer.message, answer.message
                for span in spans:
                    span.confirmed = self._recording.now()

    def _acknowledging(self, topic: TopicHistory, place: tuple[int, int]) -> Span:
        # The producer's receipt may come after the message itself.
        deadline = time.monotonic() + STUCK_SECONDS
        while place not in topic.places:
            assert time.monotonic() < deadline, f"no receipt for {place}, which was delivered"
            time.sleep(WAIT_SECONDS)
        span = topic.acknowledged[topic.places[place]] = Span(self._recording.now())
        return span

    def _come_and_go(self, client: pulsar.Client) -> None:
        """Topics that are filled and deleted: garbage."""
        rng, number = random.Random(f"{self._seed}:short"), 0
        while not self._over:
            topic = self._create(f"short-{number}")
            producer = client.create_producer(topic.name, send_timeout_millis=SEND_TIMEOUT_MS)
            self._burst(producer, topic, rng, SHORT_LIVED_MESSAGES)
            producer.close()
            if number % 3:
                topic.deleted = Span(self._recording.now())
                admin.call("DELETE", f"{self._server.admin_url}/admin/v2/{FOLDER}/{topic.name}?force=true")
                topic.deleted.confirmed = self._recording.now()
            number += 1

    def _set_values(self) -> None:
        """A setting of the namespace: nothing but metadata."""
        while not self._over:
            value = Value(VALUE_BASE + len(self.history.values), Span(self._recording.now()))
            self.history.values.append(value)
            admin.call("POST", f"{self._server.admin_url}/admin/v2/namespaces/{NAMESPACE}/messageTTL", value.number)
            value.span.confirmed = self._recording.now()
            time.sleep(PAUSE_SECONDS_MAX)
