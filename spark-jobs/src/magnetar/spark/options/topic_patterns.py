"""What option `topicsPattern` means: topics of one namespace, by a regular expression."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from magnetar.core.topic_name import InvalidTopicName, NamespaceName, TopicName
from magnetar.spark.errors import BadOption

_FORM: Final = re.compile(r"(?:persistent://)?([^/]+)/([^/]+)/(.+)", re.DOTALL)
_OWN_PREFIXES: Final = ("__change_events", "__transaction_")
_OWN_SUFFIX: Final = "__transaction_pending_ack"
"""Topics of the brokers' own, which no pattern means (Pulsar `SystemTopicNames`)."""


class TopicPatternOption(NamedTuple):
    """Made by `parse_pattern`."""

    namespace: NamespaceName
    expression: re.Pattern[str]
    """Matches a whole local name without `-partition-N`."""

    def means(self, topic: TopicName) -> bool:
        """Whether a topic of this namespace, or the one that it is a partition of, is selected."""
        local_name = whole_local_name(topic)
        if local_name.startswith(_OWN_PREFIXES) or local_name.endswith(_OWN_SUFFIX):
            return False
        return self.expression.fullmatch(local_name) is not None


def whole_local_name(topic: TopicName) -> str:
    """The local name without its partition."""
    return topic.local_name if topic.partition_index < 0 else topic.local_name.rpartition("-partition-")[0]


def parse_pattern(text: str) -> TopicPatternOption:
    """Parse `persistent://tenant/namespace/expression`; tenant and namespace stand as they are. Raises `BadOption`."""
    parts = _FORM.fullmatch(text)
    if parts is None:
        raise BadOption(f"option topicsPattern: {text!r} is not persistent://tenant/namespace/regular expression")
    try:
        return TopicPatternOption(NamespaceName(parts[1], parts[2]), re.compile(parts[3]))
    except (InvalidTopicName, re.error) as error:
        raise BadOption(f"option topicsPattern: {text!r}: {error}") from None
