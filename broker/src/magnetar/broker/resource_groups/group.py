"""One resource group as one broker has it: its limits, what passes here, and what the other brokers tell of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from magnetar.broker.resource_groups.group_limiter import GroupLimiter
from magnetar.broker.resource_groups.shares import Use, share_of

if TYPE_CHECKING:
    from magnetar.core.clock import CallLater, Clock

NUMBER_MAX: Final = 2**63 - 1

SMOOTHING: Final = 0.4
"""Weight of the last second in what is told of a rate: a batch that comes now and then must not look like a change."""

WAITING_SECONDS: Final = 5.0
"""How long a part counts as used up after somebody has waited: senders near their part would else come and go."""

TOLD_PART: Final = 0.02
"""A change by so much of the limit is told at once, before it eats up the promised 5 %."""


class GroupLimits(NamedTuple):
    """The limits of a group per second, over all brokers; 0 is no limit (Pulsar: `ResourceGroup`)."""

    publish_messages: int = 0
    publish_bytes: int = 0
    dispatch_messages: int = 0
    dispatch_bytes: int = 0


NO_LIMITS: Final = GroupLimits()


class Rates(NamedTuple):
    """Rates of one direction at one broker per second, and whether somebody waits there."""

    messages: float = 0.0
    size_bytes: float = 0.0
    messages_wait: bool = False
    """Somebody waits there, as no more messages may pass."""
    bytes_wait: bool = False


NO_RATES: Final = Rates()


class GroupReport(NamedTuple):
    """The report of one broker about one group; a direction that is None has not changed."""

    group: str
    publish: Rates | None
    dispatch: Rates | None
    tells_waits: bool
    """Whether it says who waits: brokers of Magnetar do, Apache's do not."""


class Heard(NamedTuple):
    """The last that another broker told."""

    publish: Rates
    dispatch: Rates
    tells_waits: bool
    at_seconds: float


def limits_of(document: Mapping[str, Any]) -> GroupLimits:
    """The limits in a stored group. What is no positive number of 64 bits is none: others write these documents."""
    names = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")
    values = [document.get(name) for name in names]
    return GroupLimits(*[value if type(value) is int and 0 < value <= NUMBER_MAX else 0 for value in values])


class GroupSide:
    """One direction of a group: what comes in, or what goes out."""

    __slots__ = ("_passed", "_waited_seconds", "limiter", "limits", "parts", "told", "used")

    def __init__(self, limiter: GroupLimiter) -> None:
        self.limiter = limiter
        self.limits = (0, 0)
        """Messages and bytes per second of all brokers together; 0 is no limit."""
        self.parts = (0.0, 0.0)
        """This broker's part of them."""
        self.used = [0.0, 0.0]
        """Messages and bytes per second that passed here of late."""
        self.told: Rates | None = None
        """The rates that were last reported to the others."""
        self._passed = (0, 0)
        self._waited_seconds = [float("-inf"), float("-inf")]

    def measure(self, seconds: float, now_seconds: float) -> None:
        """So much time is over since this was called last."""
        passed = (self.limiter.messages_total, self.limiter.bytes_total)
        for index, lacks in enumerate(self.limiter.lacked()):
            rate = (passed[index] - self._passed[index]) / seconds
            self.used[index] += SMOOTHING * (rate - self.used[index])
            if lacks:
                self._waited_seconds[index] = now_seconds
        self._passed = passed

    def rates(self, now_seconds: float) -> Rates:
        """The rates to report now."""
        since = now_seconds - WAITING_SECONDS
        messages, size_bytes = self._waited_seconds
        return Rates(self.used[0], self.used[1], messages > since, size_bytes > since)

    def changed(self, now_seconds: float) -> bool:
        """Whether the others should hear of it at once."""
        told, now = self.told, self.rates(now_seconds)
        if told is None or told[2:] != now[2:]:
            return True
        return any(
            limit and abs(now[index] - told[index]) > limit * TOLD_PART for index, limit in enumerate(self.limits)
        )

    def share(self, others: Sequence[tuple[Rates, bool]]) -> None:
        """Use what is this broker's part beside the others, each with whether it tells who waits."""
        own = self.told if self.told is not None else NO_RATES
        messages, size_bytes = (
            share_of(
                limit,
                Use(own[index], bool(own[index + 2])),
                [Use(rates[index], bool(rates[index + 2]), not tells_waits) for rates, tells_waits in others],
            )
            if limit
            else 0.0
            for index, limit in enumerate(self.limits)
        )
        self.use_parts(messages, size_bytes)

    def use_parts(self, messages: float, size_bytes: float) -> None:
        """Hold to these, per second; 0 is no limit."""
        if self.parts != (messages, size_bytes):
            self.parts = (messages, size_bytes)
            self.limiter.hold_to(messages, size_bytes)

    def use_limits(self, limits: tuple[int, int], brokers: int) -> None:
        """Hold to other limits: to the part of before, or to an even one where there was no limit."""
        messages, size_bytes = (
            limit * (part / former if former else 1 / brokers)
            for limit, part, former in zip(limits, self.parts, self.limits, strict=True)
        )
        self.limits = limits
        self.use_parts(messages, size_bytes)


class ResourceGroup:
    """A group that topics of this broker are in. They refer to it; without them it is forgotten."""

    __slots__ = (
        "__weakref__",
        "asked",
        "dispatch",
        "heard",
        "limits",
        "name",
        "publish",
        "told_seconds",
        "understood_seconds",
    )

    def __init__(self, name: str, clock: Clock, call_later: CallLater) -> None:
        self.name = name
        self.limits = NO_LIMITS
        self.publish = GroupSide(GroupLimiter(clock, call_later, f"publish rate of resource group {name}"))
        self.dispatch = GroupSide(GroupLimiter(clock, call_later, f"dispatch rate of resource group {name}"))
        self.heard: dict[str, Heard] = {}
        """By broker; only brokers of the cluster are let in."""
        self.asked = True
        """Somebody is to be told, whatever has changed."""
        self.told_seconds = float("-inf")
        self.understood_seconds: float | None = None
        """When this broker first read what itself had told of the group: then the others have heard it, too."""

    def use_limits(self, limits: GroupLimits, brokers: int) -> None:
        """Hold to other limits. Of a new one this broker uses an even part of so many, until it knows who uses what."""
        if limits != self.limits:
            self.limits = limits
            self.publish.use_limits((limits.publish_messages, limits.publish_bytes), brokers)
            self.dispatch.use_limits((limits.dispatch_messages, limits.dispatch_bytes), brokers)
            self.asked = True

    def take(self, broker: str, report: GroupReport, now_seconds: float) -> None:
        """Another broker tells of itself. One that was not known is answered."""
        before = self.heard.get(broker)
        if before is None:
            self.asked = True
            before = Heard(NO_RATES, NO_RATES, report.tells_waits, now_seconds)
        self.heard[broker] = Heard(
            before.publish if report.publish is None else report.publish,
            before.dispatch if report.dispatch is None else report.dispatch,
            report.tells_waits,
            now_seconds,
        )

    def forget(self, known: Collection[str], before_seconds: float) -> None:
        """Drop what was told by brokers that are gone, or silent since then."""
        for broker, heard in list(self.heard.items()):
            if broker not in known or heard.at_seconds < before_seconds:
                del self.heard[broker]

    def measure(self, seconds: float, now_seconds: float) -> None:
        """So much time is over since this was called last."""
        self.publish.measure(seconds, now_seconds)
        self.dispatch.measure(seconds, now_seconds)

    def due(self, now_seconds: float, interval_seconds: float) -> bool:
        """Whether the others are to be told now."""
        if self.asked or now_seconds - self.told_seconds >= interval_seconds:
            return True
        return self.publish.changed(now_seconds) or self.dispatch.changed(now_seconds)

    def report(self, now_seconds: float) -> GroupReport:
        """The report of the group as of now, which is remembered as told."""
        self.asked = False
        self.told_seconds = now_seconds
        self.publish.told = self.publish.rates(now_seconds)
        self.dispatch.told = self.dispatch.rates(now_seconds)
        return GroupReport(self.name, self.publish.told, self.dispatch.told, True)

    def share(self) -> None:
        """Use this broker's part, by what all have told."""
        heard = self.heard.values()
        self.publish.share([(one.publish, one.tells_waits) for one in heard])
        self.dispatch.share([(one.dispatch, one.tells_waits) for one in heard])

    def use_even_parts(self, brokers: int) -> None:
        """Use what is left to each of so many brokers if all want as much as they can get."""
        for side in (self.publish, self.dispatch):
            messages, size_bytes = side.limits
            side.use_parts(messages / brokers, size_bytes / brokers)
