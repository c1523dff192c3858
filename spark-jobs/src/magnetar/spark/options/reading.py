"""What users may set on the data source when they read, and what it means. Names are those that people know from the
JVM connector wherever it has the same thing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from magnetar.core.topic_name import NON_PERSISTENT, PERSISTENT, InvalidTopicName, NamespaceName
from magnetar.spark.errors import BadOption
from magnetar.spark.message_keys import KeyType
from magnetar.spark.options.connection import CONNECTION_OPTIONS, ConnectionOptions, connection_options
from magnetar.spark.options.offsets import (
    AtTime,
    Earliest,
    EndingPoint,
    Explicit,
    Latest,
    StartingPoint,
    parse_offsets,
    parse_times,
)
from magnetar.spark.options.parsing import Option, OptionValues, check_known, complete_topic
from magnetar.spark.options.pushdown import EVERYTHING, MessageFilters
from magnetar.spark.positions import BEGINNING
from magnetar.spark.topics import TopicSelection

ReadMode: TypeAlias = Literal["auto", "bookies", "brokers"]
BadRecordMode: TypeAlias = Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]

ALL_COLUMNS: Final = "*"
"""In the option `columns`: those that there are without it."""

SPLIT_BYTES_MIN: Final = 1 << 20
"""Smaller tasks cost more than what they read."""

SELECTION_OPTIONS: Final = (
    Option(name="topic", default="", what="One topic; with partitions: all of them."),
    Option(name="topics", default="", what="Several topics: a,b or a JSON list."),
    Option(
        name="topicsPattern",
        default="",
        what="A regular expression that complete topic names match as a whole; tenant and namespace stand in it as "
        "they are: persistent://public/default/orders-.*, or orders-.* for that namespace.",
    ),
    Option(
        name="waitingForNonExistedTopic",
        default="false",
        what="Whether a stream waits for topics that are not there yet instead of failing.",
    ),
    Option(
        name="allowDifferentTopicSchemas",
        default="false",
        what="Whether topics with different schemas may be read together; their values are then bytes.",
    ),
)

RANGE_OPTIONS: Final = (
    Option(
        name="startingOffsets",
        default="",
        what="Where a batch, or a stream without a checkpoint, begins: earliest (a batch's default), latest (a "
        'stream\'s default) or {"topic": "ledger:entry", …}, the first message that is read.',
    ),
    Option(
        name="endingOffsets",
        default="latest",
        what='Where a batch ends: latest or {"topic": "ledger:entry", …}, the last message that is read.',
    ),
    Option(
        name="startingTime",
        default="",
        what="Instead of startingOffsets: the first message that was published then or later; one time, or JSON by "
        "topic.",
    ),
    Option(
        name="endingTime",
        default="",
        what="Instead of endingOffsets: the first message that was published then or later is not read any more; one "
        "time, or JSON by topic.",
    ),
    Option(
        name="failOnDataLoss",
        default="true",
        what="Whether the query fails when messages are gone that it should have read; else it logs them and goes on.",
    ),
    Option(
        name="predefinedSubscription",
        default="",
        what="A durable subscription that follows a stream by acknowledging what is processed: it shows the backlog "
        "and keeps retention from taking what was not read. Use one for each query.",
    ),
)

FILTER_OPTIONS: Final = (
    Option(name="publishTimeFrom", default="", what="Only messages published at this time or later."),
    Option(name="publishTimeTo", default="", what="Only messages published before this time."),
    Option(name="eventTimeFrom", default="", what="Only messages with an event time from this one on."),
    Option(name="eventTimeTo", default="", what="Only messages with an event time before this one."),
    Option(name="keys", default="", what="Only messages with one of these keys: a,b or a JSON list."),
    Option(
        name="partitions",
        default="",
        what="Only these partitions of each topic: 0,2,5-7. A topic without partitions counts as partition 0.",
    ),
    Option(
        name="columns",
        default="",
        what="The columns there are, in this order: a,b or a JSON list; * stands for those that are there by default. "
        "Spark asks sources for all columns, so this spares decoding those that nobody looks at.",
    ),
)

READING_OPTIONS: Final = (
    Option(
        name="readMode",
        default="auto",
        what="Who is read from: bookies (no broker has a part in it), brokers, or auto, which takes bookies where they "
        "and the metadata store can be reached.",
    ),
    Option(
        name="maxRowsPerTrigger",
        default="",
        what="About how many messages a micro-batch of a stream has at the most.",
    ),
    Option(
        name="maxBytesPerTrigger",
        default="",
        what="About how many stored bytes a micro-batch of a stream reads at the most: 64m, 1g.",
    ),
    Option(name="splitBytes", default="128m", what="About how many stored bytes one task reads."),
    Option(
        name="pushFilters",
        default="false",
        what="Whether filters of the query itself are applied while reading, where Spark hands them down (from 4.1 on, "
        "with spark.sql.python.filterPushdown.enabled=true). For data frames that one query uses once: Spark keeps "
        "what is left by its filters for all that the frame is used for later.",
    ),
    Option(
        name="readCompacted",
        default="false",
        what="Whether only the newest message of each key is read where the topic is compacted.",
    ),
    Option(
        name="rawValues",
        default="false",
        what="Whether values are left as bytes, instead of decoded by the topic's schema.",
    ),
    Option(
        name="keyType",
        default="text",
        what="What __key is: text, where a key given as bytes is the text that these are, and in base64 if they are "
        "none; or binary, the bytes of every key.",
    ),
    Option(
        name="mode",
        default="FAILFAST",
        what="What a message does that its schema cannot decode: FAILFAST fails the query, PERMISSIVE gives a row "
        "without values, DROPMALFORMED leaves it out.",
    ),
    Option(
        name="columnNameOfCorruptRecord",
        default="_corrupt_record",
        what="The column with the bytes of undecodable messages in PERMISSIVE mode, if there is one of this name.",
    ),
    Option(
        name="topicDiscoveryInterval",
        default="1min",
        what="How often a stream looks for new topics and partitions.",
    ),
    Option(
        name="pollInterval",
        default="200ms",
        what="How often a stream asks at most where its topics end. Above 5s, processAllAvailable() may return before "
        "the newest messages are read.",
    ),
)

SOURCE_OPTIONS: Final = (*SELECTION_OPTIONS, *RANGE_OPTIONS, *FILTER_OPTIONS, *READING_OPTIONS)
OPTIONS: Final = (*CONNECTION_OPTIONS, *SOURCE_OPTIONS)
"""All that can be set when reading, as documented."""

_REFUSED: Final = {
    "subscriptionPrefix": "subscriptions of random names pile up and hold messages for ever. A stream needs none; to "
    "see its backlog, name one with predefinedSubscription",
    "topic.schema.class": "schemas come from the registry of the cluster; leave it out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Everything about reading, checked; pickled with readers and tasks. Each field is the option whose name is in
    brackets."""

    connection: ConnectionOptions
    selection: TopicSelection
    """The topics that are read. [topic, topics, topicsPattern]"""
    wait_for_topics: bool = False
    """Whether a stream waits for topics that are not there yet. [waitingForNonExistedTopic]"""
    allow_different_schemas: bool = False
    """Whether topics with different schemas are read together, with values as bytes. [allowDifferentTopicSchemas]"""
    read_mode: ReadMode = "auto"
    """Who is read from: bookies, brokers, or bookies where they can be reached. [readMode]"""
    starting: StartingPoint | None = None
    """[startingOffsets, startingTime] None: it is not said; see `batch_bounds` and `stream_start`."""
    ending: EndingPoint | None = None
    """[endingOffsets, endingTime] Exclusive. None: it is not said."""
    fail_on_data_loss: bool = True
    """Whether a query fails when messages are gone that it should have read. [failOnDataLoss]"""
    max_rows_per_trigger: int | None = None
    """About how many messages a micro-batch has at the most; None: any number. [maxRowsPerTrigger]"""
    max_bytes_per_trigger: int | None = None
    """About how many stored bytes a micro-batch reads at the most; None: any number. [maxBytesPerTrigger]"""
    predefined_subscription: str = ""
    """The durable subscription that follows a stream; empty: none. [predefinedSubscription]"""
    columns: tuple[str, ...] | None = None
    """The columns of the table, in this order; None: those that there are by default. [columns]"""
    filters: MessageFilters = EVERYTHING
    """[publishTimeFrom, publishTimeTo, eventTimeFrom, eventTimeTo, keys, partitions]"""
    split_bytes: int = 128 << 20
    """About how many stored bytes one task reads. [splitBytes]"""
    push_filters: bool = False
    """Whether filters of the query itself are applied while reading. [pushFilters]"""
    mode: BadRecordMode = "FAILFAST"
    """What a message does that its schema cannot decode: fail the query, give an empty row, or be left out. [mode]"""
    corrupt_record_column: str = "_corrupt_record"
    """The column with the bytes of messages that cannot be decoded. [columnNameOfCorruptRecord]"""
    raw_values: bool = False
    """Whether values are left as bytes instead of decoded by the topic's schema. [rawValues]"""
    key_type: KeyType = "text"
    """Whether the column `__key` is text or bytes. [keyType]"""
    read_compacted: bool = False
    """Whether only the newest message of each key is read where a topic is compacted. [readCompacted]"""
    topic_discovery_seconds: float = 60.0
    """Seconds between two looks of a stream for new topics and partitions. [topicDiscoveryInterval]"""
    poll_seconds: float = 0.2
    """Seconds between two questions of a stream where its topics end, at least. [pollInterval]"""


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """From what Spark hands over; the case of names does not matter. Raises `BadOption`."""
    check_known(options, OPTIONS, _REFUSED)
    values = OptionValues(options, OPTIONS)
    return SourceOptions(
        connection=connection_options(options),
        selection=_selection(values),
        wait_for_topics=values.boolean("waitingForNonExistedTopic"),
        allow_different_schemas=values.boolean("allowDifferentTopicSchemas"),
        read_mode=cast("ReadMode", values.choice("readMode", ("auto", "bookies", "brokers"))),
        starting=_starting(values),
        ending=_ending(values),
        fail_on_data_loss=values.boolean("failOnDataLoss"),
        max_rows_per_trigger=values.integer("maxRowsPerTrigger", 1),
        max_bytes_per_trigger=values.size_bytes("maxBytesPerTrigger", 1),
        predefined_subscription=values.text_or_blank("predefinedSubscription"),
        columns=values.names("columns"),
        filters=_filters(values),
        split_bytes=values.size_bytes("splitBytes", SPLIT_BYTES_MIN) or SPLIT_BYTES_MIN,
        push_filters=values.boolean("pushFilters"),
        mode=cast("BadRecordMode", values.choice("mode", ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"))),
        corrupt_record_column=values.text("columnNameOfCorruptRecord"),
        raw_values=values.boolean("rawValues"),
        key_type=cast("KeyType", values.choice("keyType", ("text", "binary"))),
        read_compacted=values.boolean("readCompacted"),
        topic_discovery_seconds=values.seconds("topicDiscoveryInterval", 1),
        poll_seconds=values.seconds("pollInterval", 0.01),
    )


def batch_bounds(options: SourceOptions) -> tuple[StartingPoint, EndingPoint]:
    """Where a batch begins and ends. Raises `BadOption` for what makes no batch."""
    starting = options.starting or Earliest()
    ending = options.ending or Latest()
    if isinstance(starting, Latest):
        raise BadOption("option startingOffsets: a batch from latest on has no messages; earliest or JSON is accepted")
    if isinstance(starting, Explicit) and isinstance(ending, Explicit):
        for topic in sorted(starting.positions.keys() & ending.positions.keys()):
            first, end = starting.positions[topic], ending.positions[topic]
            if end < first:
                raise BadOption(
                    f"endingOffsets end before startingOffsets begin in {topic}: {first} up to before {end}"
                )
    if isinstance(starting, AtTime) and isinstance(ending, AtTime):
        first_ms, end_ms = starting.time_ms, ending.time_ms
        if isinstance(first_ms, int) and isinstance(end_ms, int) and end_ms < first_ms:
            raise BadOption(f"endingTime {end_ms} is before startingTime {first_ms}")
    return starting, ending


def stream_start(options: SourceOptions) -> StartingPoint:
    """Where a stream without a checkpoint begins. Raises `BadOption` for what makes no stream."""
    if options.ending is not None:
        raise BadOption("endingOffsets and endingTime are for batches: a stream has no end. Leave them out")
    if options.read_compacted:
        raise BadOption("option readCompacted is for batches: a stream sees all messages. Leave it out")
    return options.starting or Latest()


def _selection(values: OptionValues) -> TopicSelection:
    given = [name for name in ("topic", "topics", "topicsPattern") if values.given(name)]
    if not given:
        raise BadOption("no topic is named: set one of the options topic, topics and topicsPattern")
    if len(given) > 1:
        raise BadOption(f"options {' and '.join(given)} contradict each other: set one of them")
    if given == ["topicsPattern"]:
        return TopicSelection(pattern=_complete_pattern(values.text("topicsPattern")))
    if given == ["topics"]:
        names = values.names("topics") or ()
        return TopicSelection(names=tuple(dict.fromkeys(complete_topic("topics", name) for name in names)))
    name = values.text("topic")
    if "," in name:
        raise BadOption(f"option topic: {name!r} has a comma; several topics are named by the option topics")
    return TopicSelection(names=(complete_topic("topic", name),))


def _complete_pattern(text: str) -> str:
    domain, separator, rest = text.rpartition("://")
    domain = domain if separator else PERSISTENT
    if not separator and "/" not in rest:
        rest = f"public/default/{rest}"
    tenant, _, behind = rest.partition("/")
    namespace, slash, local = behind.partition("/")
    if domain == NON_PERSISTENT:
        raise BadOption(
            f"option topicsPattern: {text!r} is of non-persistent topics: their messages are never stored. "
            "Persistent topics are accepted"
        )
    try:
        NamespaceName(tenant, namespace)
        compiled = re.compile(local)
    except (InvalidTopicName, re.error) as error:
        compiled, reason = None, str(error)
    else:
        reason = "there is nothing behind the namespace"
    if domain != PERSISTENT or compiled is None or not slash or not local:
        raise BadOption(
            f"option topicsPattern: {text!r} is not understood ({reason}); a regular expression of one namespace's "
            "topics is accepted, with tenant and namespace as they are: orders-.*, "
            "persistent://public/default/orders-.*"
        )
    return f"{domain}://{tenant}/{namespace}/{local}"


def _starting(values: OptionValues) -> StartingPoint | None:
    if values.given("startingOffsets") and values.given("startingTime"):
        raise BadOption("options startingOffsets and startingTime contradict each other: set one of them")
    if values.given("startingTime"):
        return parse_times("startingTime", values.text("startingTime"))
    if values.given("startingOffsets"):
        return parse_offsets("startingOffsets", values.text("startingOffsets"))
    return None


def _ending(values: OptionValues) -> EndingPoint | None:
    if values.given("endingOffsets") and values.given("endingTime"):
        raise BadOption("options endingOffsets and endingTime contradict each other: set one of them")
    if values.given("endingTime"):
        return parse_times("endingTime", values.text("endingTime"))
    if not values.given("endingOffsets"):
        return None
    ending = parse_offsets("endingOffsets", values.text("endingOffsets"), exclusive_end=True)
    if isinstance(ending, Earliest) or (isinstance(ending, Explicit) and BEGINNING in ending.positions.values()):
        raise BadOption("option endingOffsets: there is nothing before earliest; latest or JSON is accepted")
    return ending


def _filters(values: OptionValues) -> MessageFilters:
    keys, partitions = values.names("keys"), values.names("partitions")
    publish_min, publish_end = values.time_ms("publishTimeFrom"), values.time_ms("publishTimeTo")
    event_min, event_end = values.time_ms("eventTimeFrom"), values.time_ms("eventTimeTo")
    filters = MessageFilters(
        publish_time_ms_min=publish_min,
        publish_time_ms_max=None if publish_end is None else publish_end - 1,
        event_time_ms_min=event_min,
        event_time_ms_max=None if event_end is None else event_end - 1,
        keys=None if keys is None else frozenset(key.encode() for key in keys),
        partitions=None if partitions is None else _partitions(values, partitions),
    )
    if filters.nothing:
        raise BadOption(
            "no message fits the options publishTimeFrom, publishTimeTo, eventTimeFrom and eventTimeTo: a beginning is "
            "not before its end"
        )
    return filters


def _partitions(values: OptionValues, parts: tuple[str, ...]) -> frozenset[int]:
    numbers: set[int] = set()
    for part in parts:
        match = re.fullmatch(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise values.bad("partitions", "numbers and ranges of them are accepted: 0,2,5-7")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(numbers)
