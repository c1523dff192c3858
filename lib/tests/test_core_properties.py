"""Java's properties format, read as Java reads it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.properties import BadProperties, Property, parse_properties


def pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value, _ in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# a comment\n! another\n   # indented\n\n  \t\n", []),
        ("a=b", [("a", "b")]),
        ("a = b ", [("a", "b ")]),
        ("a: b", [("a", "b")]),
        ("a b c", [("a", "b c")]),
        ("a =: b", [("a", ": b")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("=b", [("", "b")]),
        ("a=b=c", [("a", "b=c")]),
        ("uri=zk+null://h:2181;i:2181/ledgers", [("uri", "zk+null://h:2181;i:2181/ledgers")]),
        ("a=one,\\\n    two,\\\n\tthree\nb=1", [("a", "one,two,three"), ("b", "1")]),
        ("a=ends\\\\\nb=1", [("a", "ends\\"), ("b", "1")]),
        ("a=cut\\", [("a", "cut")]),
        ("a=x\\\n", [("a", "x")]),
        ("# comment\\\na=1", [("a", "1")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        (r"a\ b\:c\=d=x", [("a b:c=d", "x")]),
        (r"a=\t\n\\\q\#", [("a", "\t\n\\q#")]),
        (r"a=\u00e9\uD83D\uDE00", [("a", "é😀")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_reads_as_java_does(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_lines_count_from_one_and_name_where_a_property_begins() -> None:
    assert parse_properties("# one\na=\\\n b\nc=d") == [Property("a", "b", 2), Property("c", "d", 4)]


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\u12g4", "a=1\nb=\\u"])
def test_a_broken_escape_names_its_line(text: str) -> None:
    with pytest.raises(BadProperties, match=f"line {text.count(chr(10)) + 1}"):
        parse_properties(text)


def written(text: str, *, name: bool) -> str:
    """As Java's `store` escapes."""
    special = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    parts: list[str] = []
    for index, letter in enumerate(text):
        if letter in special:
            parts.append(special[letter])
        elif letter in "=:#!" or (letter == " " and (name or index == 0)):
            parts.append("\\" + letter)
        elif ord(letter) < 32 or ord(letter) > 126:
            parts.append("".join(f"\\u{unit:04x}" for unit in memoryview(letter.encode("utf-16-le")).cast("H")))
        else:
            parts.append(letter)
    return "".join(parts)


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(words, words), max_size=6))
def test_what_java_writes_is_read_back(properties: list[tuple[str, str]]) -> None:
    text = "".join(f"{written(name, name=True)}={written(value, name=False)}\n" for name, value in properties)
    assert pairs(text) == properties


@given(st.text(alphabet="ab=: \\\n\t#!u0", max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(BadProperties):
        assert all(1 <= line <= text.count("\n") + 1 for _, _, line in parse_properties(text))
