"""Names in isolation policies: which of Java's regular expressions are matched, and that none takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.balance.isolation import IsolationPolicy, refusal


def governs(pattern: str, namespace: str) -> bool:
    return IsolationPolicy(name="p", namespaces=(pattern,), primary=("a",)).governs(namespace)


@pytest.mark.parametrize(
    ("pattern", "meant", "not_meant"),
    [
        ("public/.*", "public/default", "publican/default"),
        ("public/default", "public/default", "public/default2"),
        ("tenant-[0-9]+/(orders|invoices)", "tenant-12/orders", "tenant-x/orders"),
        ("t/a{2,3}?", "t/aaa", "t/aaaa"),
        ("(?i)PUBLIC/.*", "public/default", "private/default"),
        ("(?<tenant>a|b)/ns", "b/ns", "c/ns"),
        ("\\Qa.b\\E/n[s\\]]", "a.b/ns", "axb/ns"),
        ("\\pL+/\\w+\\z", "t/ns", "1/ns"),
        ("^public/default$", "public/default", "public/default/x"),
        ("[\\[a-c&]+/ns", "ab&/ns", "d/ns"),
    ],
)
def test_what_java_and_re2_know_alike(pattern: str, meant: str, not_meant: str) -> None:
    assert refusal(pattern) is None
    assert governs(pattern, meant)
    assert not governs(pattern, not_meant)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("public/(", "missing"),
        ("public/(?!test).*", "invalid perl operator"),
        ("(?<=a)b/.*", "invalid perl operator|invalid named capture"),
        ("(a)/\\1", "invalid escape"),
        ("a++/ns", "bad repetition"),
        ("a{2000}/ns", "repetition"),
        ("((a{1000}){1000}){1000}/ns", "repetition|too large"),
        ("[a-z&&[^b]]/ns", "sets"),
        ("[a[bc]]/ns", "sets"),
        ("[\\Qab\\E]/ns", "invalid escape"),
        ("\\p{Alpha}/ns", "invalid character class"),
        ("\ud800/ns", "surrogates"),
    ],
)
def test_what_is_refused_says_why_and_stands_for_itself(pattern: str, reason: str) -> None:
    found = refusal(pattern)
    assert found is not None
    assert any(word in found for word in reason.split("|")), found
    assert governs(pattern, pattern)
    assert not governs(pattern, "public/default")


@pytest.mark.parametrize("pattern", ["(a+)+b/ns", ".?" * 22 + "b/ns", "(a|a)*b/ns", "(.*)*x/ns"])
def test_an_expression_takes_no_longer_than_a_name_is_long(pattern: str) -> None:
    """Python's engine would still be at it tomorrow."""
    start = time.thread_time()
    for index in range(100):
        assert not governs(pattern, "a" * 60 + f"{index}!")
    assert time.thread_time() - start < 0.5


@given(st.text(alphabet="ab[]^&.*", max_size=30))
def test_a_set_in_a_set_is_never_taken_for_something_else(pattern: str) -> None:
    """A bracket within a set that is not escaped is one of Java's sets in sets."""
    inside = False
    first = False
    nested = False
    for index, character in enumerate(pattern):
        if not inside:
            inside, first = character == "[", True
        elif first and character in "^]":
            first = character == "^" and pattern[index - 1] == "["
        else:
            first = False
            nested |= character == "[" or pattern[index : index + 2] == "&&"
            inside = character != "]"
    if nested:
        assert refusal(pattern) is not None
