"""What an archive is, beside its Parquet files: how rows are laid out in folders, and what is written down about it.

OUTPUT/publish_date=2026-03-01/part-….parquet        (source_topic=…/publish_date=…/ with several topics)
OUTPUT/_spark_metadata/                              which files are part of it: Spark's file sink
OUTPUT/_magnetar/archive.json                        this module's: how it was made, and the topics' schemas
OUTPUT/_magnetar/checkpoint/                         how far topics are archived
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.spark.errors import BadOption
from magnetar.spark.values.api import SchemaDefinition

DATE_COLUMN: Final = "publish_date"
TOPIC_FOLDER_COLUMN: Final = "source_topic"
FORMAT_VERSION: Final = 1
DESCRIPTION: Final = ("_magnetar", "archive.json")
CHECKPOINT: Final = ("_magnetar", "checkpoint")
SINK_LOG: Final = "_spark_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDescription:
    """How an archive was made."""

    raw: bool
    """Values are bytes as they were sent; else columns decoded by the topic's schema."""
    by_topic: bool
    """There is a folder for each topic above those for dates."""
    schemas: Mapping[str, Sequence[SchemaDefinition]] = field(default_factory=dict)
    """By topic (complete name, without its partition) all versions that were there, the newest last."""

    def joined(self, newer: ArchiveDescription) -> ArchiveDescription:
        """This description as a later run leaves it behind. `BadOption` where that run would write otherwise."""
        if self.raw != newer.raw:
            was, wanted = ("with", "without") if self.raw else ("without", "with")
            raise BadOption(f"the archive was begun {was} --raw, and goes on so, not {wanted} it: or name another one")
        if self.by_topic != newer.by_topic:
            which = "a folder for each topic" if self.by_topic else "no folders for topics"
            option = "--by-topic" if self.by_topic else "--no-by-topic"
            raise BadOption(f"the archive was begun with {which}, and goes on so: say {option}, or name another one")
        return replace(newer, schemas={**self.schemas, **newer.schemas})

    def to_json(self) -> str:
        """The text of the file `_magnetar/archive.json`."""
        topics = {topic: [_schema_document(one) for one in versions] for topic, versions in self.schemas.items()}
        document = {"format": FORMAT_VERSION, "raw": self.raw, "byTopic": self.by_topic, "schemas": topics}
        return json.dumps(document, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> ArchiveDescription:
        """The inverse. `BadOption` for what is none, or a newer one than is known here."""
        try:
            document: dict[str, Any] = json.loads(text)
            version = int(document["format"])
            if version > FORMAT_VERSION:
                raise BadOption(f"the archive has format {version}, and {FORMAT_VERSION} is the newest known here")
            schemas = {
                str(topic): tuple(_schema_of(one) for one in versions)
                for topic, versions in document["schemas"].items()
            }
            return ArchiveDescription(raw=bool(document["raw"]), by_topic=bool(document["byTopic"]), schemas=schemas)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadOption(f"{'/'.join(DESCRIPTION)} is no description of an archive: {error!r}") from None


def partition_columns(*, by_topic: bool) -> list[str]:
    """The folders, outermost first."""
    return [TOPIC_FOLDER_COLUMN, DATE_COLUMN] if by_topic else [DATE_COLUMN]


def check_columns(columns: Collection[str], added: Collection[str]) -> None:
    """Check that the topic's own columns leave room for those of folders. `BadOption`."""
    taken = sorted({name.lower() for name in columns} & set(added))
    if taken:
        raise BadOption(
            f"the topic has a column {', '.join(taken)} itself, which the archive's folders are named by: "
            "archive it with --raw"
        )


def check_beginnings(*, planned: bool, committed: bool, files: bool, checkpoint: str, output: str) -> None:
    """That checkpoint and archive are of each other, as far as can be seen: whether micro-batches were planned and
    committed by the checkpoint, and whether the archive has files. `BadOption`.

    Spark counts micro-batches in the checkpoint, and its file sink leaves out those whose number it has already."""
    if files and not planned:
        raise BadOption(
            f"{output} has an archive, and there is no checkpoint of it at {checkpoint}: a new one would count from "
            "nought, and what it reads would be taken for repetitions and not be stored. Name the checkpoint that it "
            "was made with by --checkpoint, or archive to another place, with --starting-offsets"
        )
    if committed and not files:
        raise BadOption(
            f"the checkpoint {checkpoint} is of an archive that is not at {output} (any more): what it says is "
            "archived would be missing. Name another one by --checkpoint, or remove it to begin anew"
        )


def _schema_document(definition: SchemaDefinition) -> dict[str, Any]:
    return {
        "type": definition.type,
        "typeName": definition.type_name,
        "name": definition.name,
        "data": base64.b64encode(definition.data).decode(),
        "properties": dict(definition.properties),
        "version": definition.version.hex(),
    }


def _schema_of(document: Mapping[str, Any]) -> SchemaDefinition:
    return SchemaDefinition(
        type=int(document["type"]),
        name=str(document["name"]),
        data=base64.b64decode(document["data"]),
        properties={str(key): str(value) for key, value in document["properties"].items()},
        version=bytes.fromhex(document["version"]),
    )
