"""What the rows of a table are made of: value columns by the topics' schema, and those about each message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
from magnetar.core.topic_name import TopicName
from magnetar.spark.bounded_gather import bounded_gather
from magnetar.spark.brokers.catalog import definition_of_version, schema_definitions
from magnetar.spark.cluster import ClusterConnections
from magnetar.spark.decode.metadata_columns import METADATA_NAMES, metadata_types
from magnetar.spark.errors import BadOption
from magnetar.spark.message_keys import KEY_IS_BYTES
from magnetar.spark.options.reading import ALL_COLUMNS, SourceOptions
from magnetar.spark.values.api import SchemaDefinition, SchemaVersions, ValueDecoder
from magnetar.spark.values.registry import decoder_for

VERSIONS_SENT_MAX: Final = 16
"""Newest versions of a schema that each task is given; others it asks for. Schemas can be large, and tasks many."""

TOPICS_COMPARED_MAX: Final = 1_000
"""Topics whose schemas are compared before reading; values of further ones that do not fit are bad records."""

ASKED_AT_ONCE_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Pickled with readers and tasks."""

    definition: SchemaDefinition | None
    """The schema that values are decoded to; None: they are bytes."""
    versions: dict[str, SchemaVersions] = field(default_factory=dict)
    """By the topic's name without its partition."""

    def of(self, topic: str) -> Table:
        """The table with the schema versions of one topic alone, or of one partition's topic."""
        name = str(TopicName.parse(topic).partitioned_name())
        return replace(self, versions={name: self.versions[name]} if name in self.versions else {})

    def decoder(self, topic: str, cluster: ClusterConnections) -> ValueDecoder:
        """For messages of one topic, or of one partition. Versions that did not come along are asked for."""
        name = TopicName.parse(topic).partitioned_name()
        versions = self.versions.get(str(name), SchemaVersions())
        versions.fetch = lambda version: definition_of_version(cluster.client, name, version, cluster.options)
        return decoder_for(self.definition, versions)

    def columns(self, options: SourceOptions) -> list[tuple[str, pa.DataType]]:
        """Those that the options ask for, in order. Raises `BadOption` for ones that are not there.

        A field of the schema that is named as one of our columns gives way to it."""
        fields = decoder_for(self.definition).fields()
        found = [one for one in fields if one[0] not in METADATA_NAMES]
        found += metadata_types(options.key_type).items()
        if options.columns is None:
            return found
        by_name = {**dict(found), KEY_IS_BYTES: pa.bool_()}
        if options.mode == "PERMISSIVE":
            by_name.setdefault(options.corrupt_record_column, pa.binary())
        unknown = [name for name in options.columns if name not in by_name and name != ALL_COLUMNS]
        if unknown:
            raise BadOption(f"option columns: there is no {', '.join(unknown)}; there are {', '.join(by_name)}")
        names = dict.fromkeys(
            name for one in options.columns for name in ([each for each, _ in found] if one == ALL_COLUMNS else [one])
        )
        return [(name, by_name[name]) for name in names]


async def find_table(cluster: ClusterConnections, options: SourceOptions, topics: Sequence[str]) -> Table:
    """The table that these topics make: all have one schema, or bytes are asked for.

    Raises `BadOption` where schemas differ, `ClusterUnreachable`."""
    if options.raw_values:
        return Table(definition=None)
    names = list(dict.fromkeys(TopicName.parse(topic).partitioned_name() for topic in topics))[:TOPICS_COMPARED_MAX]
    ask = partial(schema_definitions, cluster.client, options=cluster.options, versions_max=VERSIONS_SENT_MAX)
    definitions = await bounded_gather(asyncio.Semaphore(ASKED_AT_ONCE_MAX), names, ask)
    found = dict(zip(map(str, names), definitions, strict=True))
    kinds = {name: (versions[-1].type, versions[-1].data) if versions else None for name, versions in found.items()}
    if len(set(kinds.values())) > 1:
        if options.allow_different_schemas:
            return Table(definition=None)
        first = next(iter(kinds))
        other = next(name for name, kind in kinds.items() if kind != kinds[first])
        raise BadOption(
            f"{first} and {other} have different schemas, so they make no table: read them one by one, or set "
            "allowDifferentTopicSchemas=true, and their values are bytes"
        )
    definition = next((versions[-1] for versions in found.values() if versions), None)
    sent = {name: SchemaVersions(versions) for name, versions in found.items()}
    return Table(definition=definition, versions=sent)
