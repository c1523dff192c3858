"""Patterns of topic names: which engine gets them, and that no name takes long."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics.patterns import TopicPattern, brokers_match
from magnetar.core import expressions
from magnetar.core.expressions import quick_in_python
from magnetar.wire.pulsar.errors import PulsarError

PREFIX = "persistent://public/default/"

PATTERN_CHARACTERS = 50
"""`subscriptionPatternMaxLength`."""


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
        ".*.*b",
        ".?" * 7,
        "(a|b|c|d|e|f|g|h|i)(a|b|c|d|e|f|g|h)",
        "(a)?",
        "a{1,50}",
        "a{3}",
        "a++b",
        "(.+?)*",
        "(?=a)b",
        "(?P<n>a)",
        "(a)\\1",
        "\\((a*)*",
        "[]](a*)*",
        "[^]](a*)*",
        "a*|b*",
    ],
)
def test_patterns_that_may_take_long_in_python(pattern: str) -> None:
    assert not quick_in_python(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "persistent://public/default/.*",
        "public/default/(orders|invoices)-.*",
        "public/default/orders-[0-9]+-v[0-9]",
        "public/default/(?:a|b)(c|d)-\\d+?",
        "public/default/orders?-.*$",
        "[(*+{]+x",
        "\\(\\*\\+\\{a*",
        ".*?x",
        ")",
        "[",
        "",
    ],
)
def test_patterns_that_take_no_long_in_python(pattern: str) -> None:
    assert quick_in_python(pattern)


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


@pytest.mark.parametrize(
    "pattern",
    ["public/default/(?!test-).*", "(?=(a+)+b).*", "(a+)+\\1", "a++b", "((a{1000}){1000}){1000}", "(.?){500}b"],
)
def test_patterns_that_clients_have_to_match_themselves(pattern: str) -> None:
    """What may take long and RE2 does not know."""
    assert not brokers_match(pattern)
    with pytest.raises(PulsarError, match="regular expression"):
        TopicPattern(pattern)


async def test_long_lists_are_matched_in_order() -> None:
    topics = [f"{PREFIX}{index}" for index in range(10_000)]
    assert await TopicPattern(".*").filter(topics) == topics


@pytest.fixture
def without_re2(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    expressions._re2.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    yield
    expressions._re2.cache_clear()


@pytest.mark.usefixtures("without_re2")
def test_without_re2_clients_match_what_needs_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not brokers_match(".*.*.*b")
        assert not brokers_match(".*.*.*c")
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["google-re2"], "said once"
    assert brokers_match(".*b")
    assert TopicPattern(".*b").matches(PREFIX + "b-partition-3")
    with pytest.raises(PulsarError, match="RE2"):
        TopicPattern(".*.*.*b")


REPEATS = st.sampled_from(["", "", "*", "+", "?", "*?", "{9}", "{1,30}", "{,9}", "{500}", "{0,999}"])
PIECES = st.sampled_from(["a", ".", "[ab]", "[^b]", "\\w", "\\pL", "a|", "|", "(?=a)", "(?!b)", "\\1", "(?i)", "b"])
HOSTILE = st.recursive(
    st.builds(str.__add__, PIECES, REPEATS),
    lambda inner: st.one_of(
        st.builds("({}){}".format, inner, REPEATS),
        st.builds("(?:{}){}".format, inner, REPEATS),
        st.builds("({}|{}){}".format, inner, inner, REPEATS),
        st.builds(str.__add__, inner, inner),
        st.builds(str.__mul__, inner, st.integers(2, 22)),
    ),
    max_leaves=8,
).map(lambda pattern: pattern[:PATTERN_CHARACTERS])
"""Repeats of repeats, of choices, of what may be left out; in any number."""


def seconds_of_200_topics(pattern: str) -> float:
    """What a list of 200 topics with unlucky names costs, by the processor's time, as other programs have a share of
    the clock's. What is refused costs no more."""
    names = [PREFIX + "a" * 60 + f"{index}!" for index in range(200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the engine, about sets that may mean something else one day.
        start = time.thread_time()
        if brokers_match(pattern):
            try:
                topics = TopicPattern(pattern)
            except PulsarError:
                return time.thread_time() - start
            for name in names:
                topics.matches(name)
        return time.thread_time() - start


@given(st.one_of(st.text(alphabet="a(|)*+?{}[]^.\\2,", max_size=PATTERN_CHARACTERS), HOSTILE))
@example(".?" * 22 + "b")
@example("(?:(?:.?a?){100}x?){2}b")
@settings(max_examples=300, deadline=None)
def test_what_brokers_match_they_match_at_once(pattern: str) -> None:
    """However unlucky the names: half a millisecond each is the worst known."""
    assert min(seconds_of_200_topics(pattern) for _ in range(2)) < 0.5


@pytest.mark.usefixtures("without_re2")
@given(st.one_of(st.text(alphabet="a(|)*+?[]^.\\d", max_size=PATTERN_CHARACTERS), HOSTILE))
@example(".?" * 22 + "b")
@example(".?" * 6 + ".*b")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_brokers_match_without_re2_they_match_at_once(pattern: str) -> None:
    assert min(seconds_of_200_topics(pattern) for _ in range(2)) < 0.5


@pytest.mark.parametrize("pattern", [".?" * 22 + "b", "(a?){25}b", "(a|a?)+b", "((.{0,9})*)*b"])
def test_a_pattern_that_stopped_a_broker_takes_milliseconds(pattern: str) -> None:
    assert min(seconds_of_200_topics(pattern) for _ in range(5)) < 0.05


class ShortTurn(TimeSlice):
    """Over after each name."""

    pauses = 0

    @property
    def over(self) -> bool:
        return True

    async def pause(self) -> None:
        self.pauses += 1


async def test_a_long_list_is_matched_in_turns() -> None:
    turn = ShortTurn()
    topics = [f"persistent://public/default/t-{number}" for number in range(10)]
    assert await TopicPattern("public/default/t-.*").filter(topics, turn) == topics
    assert turn.pauses == 10
