"""Which producers a topic has, and which of them may publish: names and access modes.

Rules: Pulsar `AbstractTopic.internalAddProducer` and `incrementTopicEpochIfNeeded`. Pure: the topic persists the
epoch and answers the clients.
"""

from __future__ import annotations

from magnetar.broker.states import ProducerState
from magnetar.broker.topics.producer import Producer
from magnetar.core.ids import signed64, unsigned64
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import ProducerAccessMode

WAITING_PRODUCERS_MAX = 10_000
"""Producers that may wait for exclusive access to one topic; more is a client gone wrong."""


class Admission:
    """What a producer was told: it may publish, or it waits; who has to leave for it."""

    __slots__ = ("epoch_changed", "fenced_out", "waits")

    def __init__(self, *, waits: bool = False, epoch_changed: bool = False, fenced_out: list[Producer] | None = None):
        self.waits = waits
        self.epoch_changed = epoch_changed
        self.fenced_out: list[Producer] = fenced_out or []


class Producers:
    """The producers of one topic."""

    def __init__(self, topic_epoch: int | None) -> None:
        self.by_name: dict[str, Producer] = {}
        self.topic_epoch = topic_epoch
        """Signed, as Apache's broker counts it and stores it; the wire has it unsigned."""
        self.exclusive: Producer | None = None
        self.waiting: dict[Producer, None] = {}
        """In the order in which they came: thousands of one connection are taken out one by one."""

    def admit(self, producer: Producer) -> Admission:
        """Let a producer in, queue it, or raise the protocol's error."""
        self._replace_same_name(producer)
        mode = producer.identity.access_mode
        if mode == ProducerAccessMode.Shared:
            if self.exclusive is not None or self.waiting:
                raise PulsarError(ServerError.PRODUCER_BUSY, "Topic has an existing exclusive producer")
            self.by_name[producer.name] = producer
            return Admission()
        if mode == ProducerAccessMode.Exclusive:
            if self.exclusive is not None or self.waiting:
                raise PulsarError(ServerError.PRODUCER_FENCED, "Topic has an existing exclusive producer")
            if self.by_name:
                raise PulsarError(ServerError.PRODUCER_FENCED, "Topic has existing shared producers")
            return self._make_exclusive(producer)
        if mode == ProducerAccessMode.ExclusiveWithFencing:
            self._check_epoch(producer)
            leaving = list(self.by_name.values()) + list(self.waiting)
            self.by_name.clear()
            self.waiting.clear()
            self.exclusive = None
            admission = self._make_exclusive(producer)
            admission.fenced_out = leaving
            return admission
        if self.exclusive is None and not self.by_name and not self.waiting:
            return self._make_exclusive(producer)
        self._check_epoch(producer)
        if len(self.waiting) >= WAITING_PRODUCERS_MAX:
            raise PulsarError(ServerError.PRODUCER_BUSY, "Too many producers wait for exclusive access")
        self.waiting[producer] = None
        return Admission(waits=True)

    def remove(self, producer: Producer) -> tuple[list[Producer], list[Producer]]:
        """Take a producer out. Returns who may publish now (none or one) and who waited with an epoch that is over."""
        if producer in self.waiting:
            del self.waiting[producer]
            return [], []
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        if self.exclusive is producer:
            self.exclusive = None
        outdated: list[Producer] = []
        while self.waiting and not self.by_name:
            candidate = next(iter(self.waiting))
            del self.waiting[candidate]
            try:
                self._make_exclusive(candidate)
            except PulsarError:
                outdated.append(candidate)
                continue
            return [candidate], outdated
        return [], outdated

    def _replace_same_name(self, producer: Producer) -> None:
        """A successor of the same client takes its predecessor's place; anybody else may not have the name."""
        present = self.by_name.get(producer.name)
        if present is None:
            return
        same_handle = (
            present.connection is producer.connection and present.producer_id == producer.producer_id
        ) or not producer.identity.user_provided_name
        if same_handle and producer.identity.epoch >= present.identity.epoch:
            present.become(ProducerState.CLOSED)
            del self.by_name[present.name]
            if self.exclusive is present:
                self.exclusive = None
            return
        raise PulsarError(
            ServerError.PRODUCER_BUSY, f"Producer with name '{producer.name}' is already connected to topic"
        )

    def _make_exclusive(self, producer: Producer) -> Admission:
        self._check_epoch(producer)
        wanted = producer.identity.topic_epoch
        following = 0 if self.topic_epoch is None else signed64(unsigned64(self.topic_epoch + 1))
        self.topic_epoch = following if wanted is None else wanted
        producer.identity.topic_epoch = self.topic_epoch
        self.exclusive = producer
        self.by_name[producer.name] = producer
        return Admission(epoch_changed=True)

    def _check_epoch(self, producer: Producer) -> None:
        wanted = producer.identity.topic_epoch
        if wanted is not None and self.topic_epoch is not None and wanted < self.topic_epoch:
            raise PulsarError(
                ServerError.PRODUCER_FENCED,
                f"Topic epoch has already moved. Current epoch: {self.topic_epoch}, Producer epoch: {wanted}",
            )
