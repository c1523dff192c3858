"""Regular expressions of others: by RE2, whose time grows with the text's length alone.

Java's engine, which Apache's parts use for them, may take for ever, as Python's may. Where RE2 is not installed,
Python's engine gets the few expressions of which the text shows that it is quick with every text.
"""

from __future__ import annotations

import functools
import logging
import re
import string
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.core.errors import PeerError

if TYPE_CHECKING:
    from types import ModuleType

logger: Final = logging.getLogger(__name__)

REPEATING: Final = ("*", "+", "?", "{")

WAYS_MAX: Final = 64
"""For Python's engine: in how many ways its choices may be made, each of which is tried at each character at most."""

RE2_BYTES_MAX: Final = 1 << 16
"""Bytes of one expression's program and states: RE2 keeps 128. What clients use needs some ten kilobytes. A larger
program costs each text more: half a millisecond for 200 characters is the most that was found with this one."""

_BAD_EXPRESSION: Final = (re.error, OverflowError, RecursionError, ValueError)

_PLAIN_ESCAPES: Final = frozenset("dDwWsS" + string.punctuation)


class ExpressionRefused(PeerError):
    """It is no regular expression, or one that is not matched here."""


class Expression(Protocol):
    """What both engines compile to."""

    def fullmatch(self, text: str, /) -> Any:
        """None unless all of the text matches."""


def compile_expression(text: str) -> Expression:
    """The expression, whose digits and letters are those of ASCII. `ExpressionRefused`, saying why."""
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
        raise ExpressionRefused(error.args[0].decode(errors="replace")) from None
    except UnicodeError as error:
        raise ExpressionRefused(str(error)) from None
    return expression


def is_expression(text: str) -> bool:
    """Whether Java or Python know it, be it one that RE2 does not know. Nothing is matched by it."""
    try:
        re.compile(text, re.ASCII)
    except _BAD_EXPRESSION:
        return False
    return True


def _by_python(text: str) -> Expression:
    if not quick_in_python(text):
        raise ExpressionRefused("it is none that can be matched without RE2, which is not installed")
    try:
        return re.compile(text, re.ASCII)
    except _BAD_EXPRESSION as error:
        raise ExpressionRefused(str(error)) from None


def quick_in_python(pattern: str) -> bool:
    """Whether Python's engine needs a time that grows no faster than a name's length, whatever the name: at most one
    character is repeated without end, in one place, and the choices beside it are few.

    Looks at the text alone, and rather says no: True also for some texts that are no expressions."""
    return _Choices().few_in(pattern)


class _Choices:
    """Counts in how many ways a pattern may be gone through."""

    def __init__(self) -> None:
        self._alternatives = [1]
        """For each group that is open, the alternatives seen so far; the first is the whole pattern."""
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


@functools.cache
def _re2() -> ModuleType | None:
    """The engine, which takes 5 MB and is loaded for the first expression; None where it is not installed, since there
    are platforms without it, and clients can do most of its work."""
    try:
        import re2  # type: ignore[import-untyped]  # It has no types.
    except ImportError as error:
        logger.warning(
            "google-re2 cannot be loaded, so most regular expressions of clients and policies are refused: %s", error
        )
        return None
    module: ModuleType = re2
    return module
