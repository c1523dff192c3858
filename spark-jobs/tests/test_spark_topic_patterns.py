from __future__ import annotations

import pytest
from magnetar.core.topic_name import TopicName
from magnetar.spark.errors import BadOption
from magnetar.spark.options.topic_patterns import parse_pattern


@pytest.mark.parametrize(
    ("expression", "name", "meant"),
    [
        ("x/y-[0-9]+", "x/y-12", True),
        ("x/y-[0-9]+", "x/y-12-partition-3", True),
        ("x/y-[0-9]+", "x/y-12b", False),
        # An alternative is one of whole names, and not of what the namespace is a part of.
        ("x|y", "y", True),
        ("x|y", "x-partition-0", True),
        ("(?i)orders", "ORDERS", True),
        (".*", "s__transaction_pending_ack", False),
        (".*", "__change_events-partition-0", False),
    ],
)
def test_what_is_meant(expression: str, name: str, meant: bool) -> None:
    pattern = parse_pattern(f"persistent://a/b.c/{expression}")
    assert str(pattern.namespace) == "a/b.c"
    assert pattern.means(TopicName("persistent", pattern.namespace, name)) is meant
    assert parse_pattern(f"a/b.c/{expression}") == pattern


@pytest.mark.parametrize("text", ["persistent://a/b/(", "non-persistent://a/b/c", "a/b", "a b/c/d", "log.*"])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(BadOption, match="topicsPattern"):
        parse_pattern(text)
