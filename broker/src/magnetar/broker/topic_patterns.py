"""Clients' regular expressions over topic names: by RE2, whose time grows with the name's length alone.

Apache's brokers match by RE2/J, and by Java's engine what RE2/J does not know (`topicsPatternRegexImplementation`).
Java's may take for ever, as Python's may, so what RE2 does not know is left to the clients here. Where RE2 is not
installed, Python's engine gets the few patterns of which the text shows that it is quick with every name.
"""

from __future__ import annotations

import functools
import logging
import re
import string
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.slices import Turn
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

REPEATING: Final = ("*", "+", "?", "{")

WAYS_MAX: Final = 64
"""For Python's engine: in how many ways its choices may be made, each of which is tried at each character at most."""

RE2_BYTES_MAX: Final = 1 << 16
"""Of one pattern's program and states: RE2 keeps 128 patterns. What clients use needs some ten kilobytes. A larger
program costs each name more: half a millisecond for 200 characters is the most that was found with this one."""

PARTITION_MARK: Final = "-partition-"

_BAD_EXPRESSION: Final = (re.error, OverflowError, RecursionError, ValueError)

_PLAIN_ESCAPES: Final = frozenset("dDwWsS" + string.punctuation)


class Expression(Protocol):
    """What both engines compile to."""

    def fullmatch(self, text: str, /) -> Any:
        """None unless all of the text matches."""


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

    async def filter(self, topics: list[str], turn: Turn | None = None) -> list[str]:
        """Those that are meant, in the same order. Of long lists a part in each turn of the loop; `turn` is the one
        that others have begun."""
        turn = turn if turn is not None else Turn()
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
        return not _is_expression(text)
    return True


def without_domain(name: str) -> str:
    """The name without `persistent://` or `non-persistent://`."""
    return name.partition("://")[2] or name


def _compile(text: str) -> Expression:
    re2 = _re2()
    if re2 is None:
        return _by_python(text)
    options = re2.Options()
    options.max_mem = RE2_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        expression: Expression = re2.compile(text, options)
    except re2.error as error:
        raise _not_allowed(error.args[0].decode(errors="replace")) from None
    return expression


def _by_python(text: str) -> Expression:
    if not quick_in_python(text):
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR,
            "The topics pattern is not a regular expression that a broker without RE2 can match",
        )
    try:
        # As in RE2, digits and letters are those of ASCII.
        return re.compile(text, re.ASCII)
    except _BAD_EXPRESSION as error:
        raise _not_allowed(error) from None


def _is_expression(text: str) -> bool:
    """Whether it is one of those that Java and Python know and RE2 does not. Nothing is matched by it."""
    try:
        re.compile(text, re.ASCII)
    except _BAD_EXPRESSION:
        return False
    return True


def quick_in_python(pattern: str) -> bool:
    """Whether Python's engine needs a time that grows no faster than a name's length, whatever the name: at most one
    character is repeated without end, in one place, and the choices beside it are few.

    Looks at the text alone, and rather says no: True also for some texts that are no expressions."""
    return _Choices().few_in(pattern)


class _Choices:
    """Counts in how many ways a pattern may be gone through."""

    def __init__(self) -> None:
        self._alternatives = [1]
        """Of each group that is open, those seen so far; the first is the whole pattern."""
        self._ways = 1
        self._repeats = 0

    def few_in(self, pattern: str) -> bool:
        index = 0
        single = False
        """Whether what stands before is one character: all that may be repeated here."""
        while index < len(pattern):
            character = pattern[index]
            index += 1
            if character in REPEATING:
                if not single or not self._repeat(character):
                    return False
                # Lazy ones only differ in their order. Possessive ones are not known to every Python.
                index += pattern[index : index + 1] == "?"
                single = False
            elif character == "(":
                if pattern[index : index + 1] == "?" and pattern[index + 1 : index + 2] != ":":
                    return False
                index += 2 * (pattern[index : index + 1] == "?")
                self._alternatives.append(1)
                single = False
            elif character == ")":
                if len(self._alternatives) > 1:
                    self._ways *= self._alternatives.pop()
                single = False
            elif character == "|":
                self._alternatives[-1] += 1
                single = False
            else:
                end = _end_of_character(pattern, index - 1)
                if end < 0:
                    return False
                index, single = end, character not in "^$"
        for count in self._alternatives:
            self._ways *= count
        return self._ways <= WAYS_MAX and self._repeats <= 1

    def _repeat(self, character: str) -> bool:
        if character == "?":
            self._ways *= 2
        elif character == "{":
            return False
        else:
            self._repeats += 1
        return True


def _end_of_character(pattern: str, index: int) -> int:
    """Behind the character, escape or set that begins there; -1 for an escape that is more, as a back reference."""
    if pattern[index] == "\\":
        return index + 2 if pattern[index + 1 : index + 2] in _PLAIN_ESCAPES else -1
    return _end_of_set(pattern, index + 1) if pattern[index] == "[" else index + 1


def _end_of_set(pattern: str, index: int) -> int:
    """Behind the set `[…]` whose bracket is before the index; a bracket that comes first is a member."""
    index += pattern[index : index + 1] == "^"
    index += pattern[index : index + 1] == "]"
    while index < len(pattern) and pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index + 1


def _not_allowed(reason: object) -> PulsarError:
    return PulsarError(ServerError.NOT_ALLOWED_ERROR, f"The topics pattern is not a regular expression: {reason}")


@functools.cache
def _re2() -> ModuleType | None:
    """The engine, which takes 5 MB and is loaded for the first pattern; None where it is not installed, since there are
    platforms without it, and clients can do its work."""
    try:
        import re2  # type: ignore[import-untyped]  # It has no types.
    except ImportError as error:
        logger.warning("google-re2 cannot be loaded, so most topic patterns are left to the clients: %s", error)
        return None
    module: ModuleType = re2
    return module
