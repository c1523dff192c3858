"""Java's properties format, in which Apache's settings files are written (Java: util/Properties.load)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_SPACE: Final = " \t\f"
_SEPARATORS: Final = "=:"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")


class Property(NamedTuple):
    """One name and its value; `line` counts from 1 and is where the name stands."""

    name: str
    value: str
    line: int


class BadProperties(ValueError):
    """The text is not in this format; the message names the line."""


def parse_properties(text: str) -> list[Property]:
    """All properties in the order of the text; a name may come more than once. `BadProperties`."""
    return [_property(content, line) for content, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """(content, number of its first line): comments and blank lines left out, continued lines joined."""
    natural = iter(enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1))
    for number, line in natural:
        content = line.lstrip(_SPACE)
        if not content or content[0] in "#!":
            continue
        while _is_continued(content):
            content = content[:-1]
            _, following = next(natural, (0, None))
            if following is None:
                break
            content += following.lstrip(_SPACE)
        yield content, number


def _is_continued(content: str) -> bool:
    # A backslash that is itself escaped continues nothing.
    return (len(content) - len(content.rstrip("\\"))) % 2 == 1


def _property(content: str, line: int) -> Property:
    end = 0
    while end < len(content) and content[end] not in _SPACE + _SEPARATORS:
        end += 2 if content[end] == "\\" else 1
    rest = content[end:].lstrip(_SPACE)
    if rest[:1] and rest[0] in _SEPARATORS:
        rest = rest[1:].lstrip(_SPACE)
    return Property(_unescaped(content[:end], line), _unescaped(rest, line), line)


def _unescaped(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            parts.append(text[at])
            at += 1
        elif text[at + 1] != "u":
            parts.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
        else:
            digits = text[at + 2 : at + 6]
            if len(digits) != 4 or not _HEX_DIGITS.issuperset(digits):
                raise BadProperties(f"line {line}: \\u needs four hexadecimal digits")
            parts.append(chr(int(digits, 16)))
            at += 6
    # Java writes characters beyond 16 bits as two surrogates.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
