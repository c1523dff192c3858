"""Patterns of topic names: which engine gets them, and that no name takes long."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker import topic_patterns
from magnetar.broker.topic_patterns import NAMES_AT_ONCE, TopicPattern, brokers_match, may_take_long
from magnetar.wire.pulsar.errors import PulsarError

PREFIX = "persistent://public/default/"


@pytest.mark.parametrize("pattern", ["(", "*", "[", "(?u)a", "(" * 5000])
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(PulsarError, match="regular expression"):
        TopicPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "public/default/(a+)+b",
        "(a|a)*b",
        "((a*)x)+",
        "(?:a|ab)+",
        "(?P<n>a+){9}",
        ".*.*.*b",
        "(.+?)*",
        "[)](a*)*",
        "\\((a*)*",
        "[]](a*)*",
        "[^]](a*)*",
        "a{1,50}b{1,50}c{1,50}",
    ],
)
def test_patterns_that_may_take_long(pattern: str) -> None:
    assert may_take_long(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "persistent://public/default/.*",
        "public/default/(orders|invoices)-.*",
        "public/default/orders-[0-9]+-v[0-9]+",
        "public/default/(a)+(b|c)",
        "public/default/(a+)?b",
        "[(*+{]+x",
        "\\(\\*\\+\\{a*",
        ".*?x",
        "a++b",
        ")",
        "[",
        "\\",
        "",
    ],
)
def test_patterns_that_take_no_long(pattern: str) -> None:
    assert not may_take_long(pattern)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("persistent://public/default/.*-.*-.*-eu", "a-b-c-eu"),
        ("public/default/(a+)+b", "aab"),
        ("public/default/(?:v[0-9]+[.]?)+", "v1.v2"),
        ("public/default/.*[äö].*.*ß.", "größe"),
    ],
)
def test_patterns_with_many_repeats_are_matched_here(pattern: str, name: str) -> None:
    assert brokers_match(pattern)
    assert TopicPattern(pattern).matches(PREFIX + name)
    assert not TopicPattern(pattern).matches(PREFIX + name[:-1])


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("public/default/(?<x>a)", "a"), ("public/default/\\Qa.b\\E", "a.b"), ("public/default/\\pL\\z", "ä")],
)
def test_what_only_java_and_re2_know_is_matched_here(pattern: str, name: str) -> None:
    assert brokers_match(pattern)
    assert TopicPattern(pattern).matches(PREFIX + name)


@pytest.mark.parametrize("pattern", ["(?=(a+)+b).*", "(a+)+\\1", "(.*.*.*", "((a{1000}){1000}){1000}"])
def test_patterns_that_clients_have_to_match_themselves(pattern: str) -> None:
    """What may take long and RE2 does not know."""
    assert not brokers_match(pattern)
    with pytest.raises(PulsarError, match="regular expression"):
        TopicPattern(pattern)


def test_look_around_that_takes_no_long_is_matched_here() -> None:
    """By Apache's, too: it falls back to Java's engine."""
    assert brokers_match("public/default/(?!test-).*")
    assert not TopicPattern("public/default/(?!test-).*").matches(PREFIX + "test-1")


async def test_long_lists_are_matched_in_order() -> None:
    topics = [f"{PREFIX}{index}" for index in range(2 * NAMES_AT_ONCE + 1)]
    assert await TopicPattern(".*").filter(topics) == topics


@pytest.fixture
def without_re2(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    topic_patterns._re2.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    yield
    topic_patterns._re2.cache_clear()


@pytest.mark.usefixtures("without_re2")
def test_without_re2_clients_match_what_needs_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not brokers_match(".*.*.*b")
        assert not brokers_match(".*.*.*c")
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["google-re2"], "said once"
    assert brokers_match(".*b")
    assert TopicPattern(".*b").matches(PREFIX + "b")
    with pytest.raises(PulsarError, match="RE2"):
        TopicPattern(".*.*.*b")


@given(st.text(alphabet="a(|)*+?{}[]^.\\2,", max_size=12))
@settings(max_examples=300, deadline=None)
def test_what_brokers_match_they_match_at_once(pattern: str) -> None:
    """However unlucky the name."""
    if not brokers_match(pattern):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the engine, about sets that may mean something else one day.
        try:
            topics = TopicPattern(pattern)
        except PulsarError:
            return
    # The processor's time, as other programs have a share of the clock's.
    start = time.thread_time()
    topics.matches(PREFIX + "a" * 60 + "!")
    assert time.thread_time() - start < 0.5
