"""Clients' regular expressions over topic names: by Python's engine where that is quick, by RE2 where it may not be.

Apache's brokers match by RE2/J, and by Java's engine what RE2/J does not know (`topicsPatternRegexImplementation`).
Java's takes as long as Python's for unlucky names, so what RE2 does not know is left to the clients here.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

REPEATING: Final = ("*", "+", "{")

REPEATS_MAX: Final = 2
"""In a pattern that Python's engine gets: with three, a name of some hundred characters may take the event loop for
tens of milliseconds."""

RE2_BYTES_MAX: Final = 1 << 20
"""Of one pattern's program and states: RE2 keeps 128 patterns. What clients use needs some ten kilobytes."""

NAMES_AT_ONCE: Final = 500
"""Matched in one turn of the loop: some milliseconds."""


class Expression(Protocol):
    """What both engines compile to."""

    def fullmatch(self, text: str, /) -> Any:
        """None unless all of the text matches."""


class TopicPattern:
    """A client's regular expression over topic names; domain and partition suffix do not count."""

    def __init__(self, pattern: str) -> None:
        """Raises `PulsarError`, when it is none and when brokers do not match it (`brokers_match`)."""
        text = without_domain(pattern)
        self._expression = _by_re2(text) if may_take_long(text) else _by_python(text)

    def matches(self, topic: str) -> bool:
        """Whether a full topic name is meant."""
        name = TopicName.parse(topic)
        return self._expression.fullmatch(without_domain(str(name.partitioned_name()))) is not None

    async def filter(self, topics: list[str]) -> list[str]:
        """Those that are meant, in the same order. Of long lists a part in each turn of the loop."""
        found: list[str] = []
        for first in range(0, len(topics), NAMES_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            found += [topic for topic in topics[first : first + NAMES_AT_ONCE] if self.matches(topic)]
        return found


def brokers_match(pattern: str) -> bool:
    """Whether a pattern is matched here; else it is left to the client. True for those that are none, too: whoever asks
    with them is told so."""
    text = without_domain(pattern)
    if not may_take_long(text):
        return True
    try:
        _by_re2(text)
    except PulsarError:
        return False
    return True


def may_take_long(pattern: str) -> bool:
    """Whether there are names for which Python's engine tries more ways than the square of their length, as it does for
    `(a+)+b`: repeats of what repeats or has a choice, and many repeats.

    Looks at the text alone, and rather finds too many."""
    repeats = index = 0
    ambiguous = [False]
    """Of each group that is open: whether it has repeats or a choice."""
    while index < len(pattern):
        character = pattern[index]
        index += 1
        if character == "\\":
            index += 1
        elif character == "[":
            index = _end_of_set(pattern, index)
        elif character == "(":
            ambiguous.append(False)
        elif character == ")" and len(ambiguous) > 1:
            inner = ambiguous.pop()
            if inner and pattern[index : index + 1] in REPEATING:
                return True
            ambiguous[-1] |= inner
        elif character == "|":
            ambiguous[-1] = True
        elif character in REPEATING:
            ambiguous[-1] = True
            repeats += 1
            # Lazy or possessive.
            index += pattern[index : index + 1] in ("?", "+")
    return repeats > REPEATS_MAX


def without_domain(name: str) -> str:
    """The name without `persistent://` or `non-persistent://`."""
    return name.partition("://")[2] or name


def _end_of_set(pattern: str, index: int) -> int:
    """Behind the set `[…]` whose bracket is before the index; a bracket that comes first is a member."""
    index += pattern[index : index + 1] == "^"
    index += pattern[index : index + 1] == "]"
    while index < len(pattern) and pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index + 1


def _by_python(text: str) -> Expression:
    try:
        # As in RE2, digits and letters are those of ASCII.
        return re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        try:
            return _by_re2(text)  # Some of what only RE2 and Java know, as `\z`.
        except PulsarError:
            raise _not_allowed(error) from None


def _by_re2(text: str) -> Expression:
    re2 = _re2()
    if re2 is None:
        raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "Such topics patterns need RE2, which this broker lacks")
    options = re2.Options()
    options.max_mem = RE2_BYTES_MAX
    options.log_errors = False
    try:
        expression: Expression = re2.compile(text, options)
    except re2.error as error:
        raise _not_allowed(error.args[0].decode(errors="replace")) from None
    return expression


def _not_allowed(reason: object) -> PulsarError:
    return PulsarError(ServerError.NOT_ALLOWED_ERROR, f"The topics pattern is not a regular expression: {reason}")


@functools.cache
def _re2() -> ModuleType | None:
    """The engine, which takes 5 MB and is loaded for the first pattern that needs it; None where it is not installed,
    since there are platforms without it, and clients can do its work."""
    try:
        import re2  # type: ignore[import-untyped]  # It has no types.
    except ImportError as error:
        logger.warning(
            "google-re2 cannot be loaded, so topic patterns with many repeats are left to the clients: %s", error
        )
        return None
    module: ModuleType = re2
    return module
