"""Names of topics and namespaces, their places in paths and hash space (Pulsar `TopicName`, `NamespaceName`).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from magnetar.core.errors import PeerError
from magnetar.core.hashing import bundle_hash

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"
DOMAINS: Final = (PERSISTENT, NON_PERSISTENT)

PARSED_NAMES_MAX: Final = 100_000
"""Names kept parsed; about 40 MB when full, and every command of a topic asks for its name."""

NAMESPACES_KEPT_MAX: Final = 10_000
"""Namespaces that the topics in them share, as many as policies are kept of; some 300 bytes each."""

KEPT_NAME_CHARACTERS_MAX: Final = 1_000
"""Longer names are parsed each time: a client may ask for any text that fits into a frame."""

NAME_CHARACTERS_MAX: Final = 64 * 1024
"""Characters of the full name of a topic or a namespace: no path in a metadata store may be longer, and taking a name
apart takes its time for each letter."""

FULL_RANGE: Final = 0xFFFF_FFFF

_NO_NAMES: Final = (".", "..")
"""No node of a metadata store is called so: in paths they are steps."""
_NAME_PART: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_UNRESERVED: Final = re.compile(r"[-.*\w]*", re.ASCII)
_PARTITION: Final = re.compile(r"(.*)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_PARTITION_INDEX_MAX: Final = 0x7FFF_FFFF
"""A greater number is a part of the name, as it is to Java's parser of int."""


class InvalidTopicName(PeerError):
    """The text is no name of a topic or namespace."""


def is_valid_name_part(text: str) -> bool:
    """Whether a tenant or a namespace may be called so (Pulsar `NamedEntity`, without names that fail later there)."""
    return _NAME_PART.fullmatch(text) is not None and text not in _NO_NAMES


def java_url_encode(text: str) -> str:
    """Encode a name as `java.net.URLEncoder` does in UTF-8: a space is `+`; letters, digits and `.-*_` stay."""
    # Nearly all names are as they are, and every question about a topic asks.
    return text if _UNRESERVED.fullmatch(text) else quote_plus(text, safe="*").replace("~", "%7E")


def java_url_decode(text: str) -> str:
    """The inverse of `java_url_encode`."""
    # Most names are as they are, and lists have a hundred thousand.
    return unquote_plus(text) if "%" in text or "+" in text else text


def _check_length(text: str, what: str) -> None:
    if len(text) > NAME_CHARACTERS_MAX:
        raise InvalidTopicName(
            f"Invalid {what} name {text[:80]}…: it has {len(text)} characters; at most {NAME_CHARACTERS_MAX} are taken"
        )


class NamespaceName:
    """The name of a namespace, `tenant/namespace`."""

    __slots__ = ("_text", "name", "tenant")

    def __init__(self, tenant: str, name: str) -> None:
        for part in (tenant, name):
            if not is_valid_name_part(part):
                allowed = "is no name" if part in _NO_NAMES else "may hold only [-=:.\\w]"
                raise InvalidTopicName(f"Invalid namespace name {tenant}/{name}: {part!r} {allowed}")
        self.tenant = tenant
        self.name = name
        self._text = f"{tenant}/{name}"

    @staticmethod
    def parse(text: str) -> NamespaceName:
        """From `tenant/namespace`. Raises `InvalidTopicName`."""
        _check_length(text, "namespace")
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidTopicName(f"Invalid namespace name {text!r}: it must be tenant/namespace")
        return NamespaceName(parts[0], parts[1])

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"NamespaceName({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamespaceName) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class TopicName:
    """`domain://tenant/namespace/local name`; immutable, made by `parse`."""

    __slots__ = ("_bundle_hash", "_text", "domain", "local_name", "namespace_name", "partition_index")

    def __init__(self, domain: str, namespace: NamespaceName, local_name: str) -> None:
        self.domain = domain
        self.namespace_name = namespace
        self.local_name = local_name
        match = _PARTITION.fullmatch(local_name)
        index = int(match[2]) if match else -1
        self.partition_index = index if index <= _PARTITION_INDEX_MAX else -1
        self._text = f"{domain}://{namespace}/{local_name}"
        self._bundle_hash = -1

    @staticmethod
    def parse(text: str) -> TopicName:
        """From any form clients use: a full name, `tenant/namespace/topic`, or the local name alone.

        Raises `InvalidTopicName`, also for the four-part names of Pulsar 1."""
        if len(text) <= KEPT_NAME_CHARACTERS_MAX:
            return _parsed(text)
        _check_length(text, "topic")
        return _parse(text)

    @property
    def tenant(self) -> str:
        """The tenant's name."""
        return self.namespace_name.tenant

    @property
    def namespace(self) -> str:
        """The namespace's own name, without the tenant."""
        return self.namespace_name.name

    @property
    def persistence_name(self) -> str:
        """Where it stands below `/managed-ledgers`: `tenant/namespace/domain/encoded local name`."""
        return f"{self.namespace_name}/{self.domain}/{java_url_encode(self.local_name)}"

    @property
    def schema_name(self) -> str:
        """Whose schema it has: that of the partitioned topic, as `tenant/namespace/encoded local name`."""
        return f"{self.namespace_name}/{java_url_encode(self.partitioned_name().local_name)}"

    def partitioned_name(self) -> TopicName:
        """The partitioned topic that this is a partition of, or this topic itself."""
        if self.partition_index < 0:
            return self
        return TopicName.parse(self._text[: self._text.rindex("-partition-")])

    def partition(self, index: int) -> TopicName:
        """One partition of this partitioned topic."""
        if index < 0 or self.partition_index >= 0:
            return self
        return TopicName.parse(f"{self._text}-partition-{index}")

    def bundle_hash(self) -> int:
        """Its place in the namespace's hash space."""
        if self._bundle_hash < 0:
            self._bundle_hash = bundle_hash(self._text)
        return self._bundle_hash

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"TopicName({self._text})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicName) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _parse(text: str) -> TopicName:
    domain, separator, rest = text.partition("://")
    if not separator:
        rest = text
        domain = PERSISTENT
        count = rest.count("/")
        if count == 0:
            rest = f"public/default/{rest}"
        elif count != 2:
            raise InvalidTopicName(
                f"Invalid short topic name '{text}', it should be in the format of "
                "<tenant>/<namespace>/<topic> or <topic>"
            )
    if domain not in DOMAINS:
        raise InvalidTopicName(f"Invalid topic domain: '{domain}'")
    parts = rest.split("/")
    if len(parts) > 3:
        raise InvalidTopicName(
            f"Topic names with a cluster or with more slashes are not supported, only "
            f"'<domain>://<tenant>/<namespace>/<topic>'. Got: {text}"
        )
    if len(parts) != 3:
        raise InvalidTopicName(f"Invalid topic name: {text}")
    make_namespace = _namespace if len(text) <= KEPT_NAME_CHARACTERS_MAX else NamespaceName
    name = TopicName(domain, make_namespace(parts[0], parts[1]), parts[2])
    own_name = name.local_name if name.partition_index < 0 else name.local_name.rpartition("-partition-")[0]
    if not own_name.strip():
        raise InvalidTopicName(f"Invalid topic name: {text}. Topic local name must not be blank.")
    if own_name in _NO_NAMES:
        raise InvalidTopicName(f"Invalid topic name: {text}: {own_name!r} is no name.")
    return name


_namespace: Final = lru_cache(maxsize=NAMESPACES_KEPT_MAX)(NamespaceName)
_parsed: Final = lru_cache(maxsize=PARSED_NAMES_MAX)(_parse)


def equal_bundle_boundaries(count: int) -> list[str]:
    """The boundaries of so many equal ranges: `0x00000000` … `0xffffffff`."""
    step = (FULL_RANGE + 1) // count
    return [f"0x{index * step:08x}" for index in range(count)] + [f"0x{FULL_RANGE:08x}"]


def bundle_of(position: int, boundaries: list[str]) -> str:
    """The range that a hash falls into, as `0x…_0x…`; ranges are closed below and open above, the last one closed."""
    lows = [int(boundary, 16) for boundary in boundaries]
    index = min(bisect_right(lows, position), len(lows) - 1)
    return f"{boundaries[index - 1]}_{boundaries[index]}"
