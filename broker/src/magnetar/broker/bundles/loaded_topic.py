"""What bundles know of the topics in them, of whichever kind those are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from magnetar.broker.bundles.close_notices import CloseNotices
from magnetar.core.topic_name import TopicName


class MeasuredProducer(Protocol):
    """A producer's rates per second."""

    @property
    def message_rate_in(self) -> float: ...
    @property
    def byte_rate_in(self) -> float: ...


class MeasuredProducers(Protocol):
    """The producers of a topic."""

    @property
    def by_name(self) -> Mapping[str, MeasuredProducer]: ...


class MeasuredRate(Protocol):
    """How fast a counter grows."""

    @property
    def per_second(self) -> float: ...


class MeasuredConsumerRates(Protocol):
    """What a consumer is sent per second."""

    @property
    def messages_out(self) -> MeasuredRate: ...
    @property
    def bytes_out(self) -> MeasuredRate: ...


class MeasuredConsumer(Protocol):
    """A consumer, as far as load management knows it."""

    @property
    def rates(self) -> MeasuredConsumerRates: ...


class MeasuredSubscription(Protocol):
    """A subscription, as far as load management knows it."""

    @property
    def consumers(self) -> Sequence[MeasuredConsumer]: ...


class MeasuredTopic(Protocol):
    """A topic, as far as load management knows it."""

    @property
    def producers(self) -> MeasuredProducers: ...
    @property
    def subscriptions(self) -> Mapping[str, MeasuredSubscription]: ...


class LoadedTopic(MeasuredTopic, Protocol):
    """A topic, as far as the moves of its bundle know it."""

    close_notices: CloseNotices | None

    @property
    def name(self) -> TopicName: ...
    @property
    def closing(self) -> bool: ...
    async def close(self) -> None: ...
    async def abandon(self) -> None: ...
