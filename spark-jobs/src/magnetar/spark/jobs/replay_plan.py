"""What a replay does in which order: rounds of whole ledgers, each written once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.topic_name import InvalidTopicName, NamespaceName, TopicName
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs.archive_layout import ArchiveDescription
from magnetar.spark.options.parsing import complete_topic
from magnetar.spark.values.api import SchemaDefinition
from magnetar.spark.values.key_value import ENCODING_PROPERTY
from magnetar.wire.pulsar.enums import SchemaType

ROUND_ROWS_MAX: Final = 20_000_000
"""Rows of one topic (partition) in a round, which are sorted and written by one task. The sink numbers 67 million."""

TASKS_MAX: Final = 256
"""Tasks of a round; each topic (partition) is in one of them."""


@dataclass(frozen=True, slots=True)
class ArchivedLedger:
    """What an archive has of one ledger of one topic (partition)."""

    topic: str
    ledger_id: int
    rows: int
    first_ms: int
    """When the oldest message was published, and the newest."""
    last_ms: int


@dataclass(frozen=True, slots=True)
class ReplayRound:
    """What is written at a time: by topic (partition) from one ledger to another, both with it."""

    ranges: Mapping[str, tuple[int, int]]
    rows: int

    @property
    def tasks(self) -> int:
        """In a replay whose name says nothing of it (`tasks_in`)."""
        return min(len(self.ranges), TASKS_MAX)


def new_name(unique: str, rounds: Sequence[ReplayRound]) -> str:
    """What a replay goes by, and goes on by with `--resume`. It says in how many tasks the rows are: the archive may
    have got further topics until then, and brokers tell repetitions of one task only."""
    return f"{unique}-{max((one.tasks for one in rounds), default=1)}"


def tasks_in(name: str) -> int | None:
    """How many `new_name` has put into it; None: nothing, as it was before there was such a number."""
    number = name.rpartition("-")[2] if "-" in name else ""
    return int(number) if re.fullmatch(r"[1-9][0-9]{0,2}", number) and int(number) <= TASKS_MAX else None


def rounds_of(ledgers: Iterable[ArchivedLedger], rows_max: int = ROUND_ROWS_MAX) -> list[ReplayRound]:
    """In order: the ledgers of a topic follow each other, topics go side by side."""
    by_topic: dict[str, list[ArchivedLedger]] = {}
    for ledger in sorted(ledgers, key=lambda one: (one.topic, one.ledger_id)):
        by_topic.setdefault(ledger.topic, []).append(ledger)
    parts = {topic: _parts(found, rows_max) for topic, found in by_topic.items()}
    rounds: list[ReplayRound] = []
    for number in range(max(map(len, parts.values()), default=0)):
        now = {topic: found[number] for topic, found in parts.items() if number < len(found)}
        ranges = {topic: (part[0].ledger_id, part[-1].ledger_id) for topic, part in now.items()}
        rounds.append(ReplayRound(ranges, sum(ledger.rows for part in now.values() for ledger in part)))
    return rounds


def _parts(ledgers: Sequence[ArchivedLedger], rows_max: int) -> list[list[ArchivedLedger]]:
    parts: list[list[ArchivedLedger]] = [[]]
    rows = 0
    for ledger in ledgers:
        if parts[-1] and rows + ledger.rows > rows_max:
            parts.append([])
            rows = 0
        parts[-1].append(ledger)
        rows += ledger.rows
    return parts


def targets_of(topics: Iterable[str], topic: str, namespace: str) -> dict[str, str]:
    """Where the messages of each archived topic (partition) go: all to one, or to those of the same names in a
    namespace. `BadOption`."""
    if bool(topic) == bool(namespace):
        raise BadOption("say where messages go by --topic or by --namespace, one of both")
    if topic:
        target = complete_topic("--topic", topic)
        return dict.fromkeys(topics, target)
    try:
        tenant, _, local = namespace.partition("/")
        NamespaceName(tenant, local)
    except InvalidTopicName as error:
        raise BadOption(f"--namespace {namespace!r} is none: tenant/namespace is accepted ({error})") from None
    return {one: f"persistent://{namespace}/{TopicName.parse(one).partitioned_name().local_name}" for one in topics}


def schema_of_target(
    description: ArchiveDescription | None, targets: Mapping[str, str]
) -> dict[str, SchemaDefinition | None]:
    """By target the newest schema of what goes there; None: there was none, or they differ."""
    if description is None:
        return dict.fromkeys(targets.values())
    found: dict[str, list[SchemaDefinition | None]] = {}
    for topic, target in targets.items():
        versions = description.schemas.get(str(TopicName.parse(topic).partitioned_name()), ())
        found.setdefault(target, []).append(versions[-1] if versions else None)
    return {target: _if_all_alike(those) for target, those in found.items()}


def _if_all_alike(those: Sequence[SchemaDefinition | None]) -> SchemaDefinition | None:
    first = those[0]
    kinds = {(one.type, one.data) if one is not None else None for one in those}
    return first if len(kinds) == 1 else None


def topics_with_keys_apart(schemas: Mapping[str, SchemaDefinition | None], targets: Mapping[str, str]) -> set[str]:
    """The archived topics (partitions) whose schema is KEY_VALUE with separated keys, which are bytes. `schemas` are by
    target, `targets` by archived topic."""
    return {topic for topic, target in targets.items() if _has_keys_apart(schemas[target])}


def _has_keys_apart(schema: SchemaDefinition | None) -> bool:
    if schema is None or schema.type != SchemaType.KEY_VALUE:
        return False
    return schema.properties.get(ENCODING_PROPERTY, "").upper() == "SEPARATED"
