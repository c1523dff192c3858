"""Clients' regular expressions over topic names (`magnetar.core.expressions`).

Apache's brokers match by RE2/J, and by Java's engine what RE2/J does not know (`topicsPatternRegexImplementation`).
Java's may take for ever, so what RE2 does not know is left to the clients here.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.slices import TimeSlice
from magnetar.core.expressions import Expression, ExpressionRefused, compile_expression, is_expression
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

PARTITION_MARK: Final = "-partition-"


class TopicPattern:
    """A client's regular expression over topic names; domain and partition suffix do not count."""

    def __init__(self, pattern: str) -> None:
        """Raises `PulsarError`, when it is none and when brokers do not match it (`brokers_match`)."""
        self.text = without_domain(pattern)
        self._expression = _compile(self.text)

    def matches(self, topic: str) -> bool:
        """Whether a full topic name is meant."""
        if PARTITION_MARK in topic:
            topic = str(TopicName.parse(topic).partitioned_name())
        return self._expression.fullmatch(without_domain(topic)) is not None

    async def filter(self, topics: list[str], turn: TimeSlice | None = None) -> list[str]:
        """Those that are meant, in the same order. Of long lists a part in each turn of the loop; `turn` is the one
        that others have begun."""
        turn = turn if turn is not None else TimeSlice()
        found: list[str] = []
        for topic in topics:
            if turn.over:
                await turn.pause()
            if self.matches(topic):
                found.append(topic)
        return found


def brokers_match(pattern: str) -> bool:
    """Whether a pattern is matched here; else it is left to the client. True for those that are none, too: whoever asks
    with them is told so."""
    text = without_domain(pattern)
    try:
        _compile(text)
    except PulsarError:
        return not is_expression(text)
    return True


def without_domain(name: str) -> str:
    """The name without `persistent://` or `non-persistent://`."""
    return name.partition("://")[2] or name


def _compile(text: str) -> Expression:
    try:
        return compile_expression(text)
    except ExpressionRefused as refused:
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR,
            f"The topics pattern is not a regular expression that brokers match: {refused}",
        ) from None
