"""What users may set on the data source when they write."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from magnetar.spark.options.connection import CONNECTION_OPTIONS, ConnectionOptions, connection_options
from magnetar.spark.options.parsing import Option, OptionValues, check_known, complete_topic
from magnetar.spark.sink.rows import HashingScheme
from magnetar.spark.values.definitions import DefinitionKind
from magnetar.wire.pulsar.compression_type import Compression

BATCH_BYTES_MAX: Final = 4 << 20
"""Brokers take 5 MiB with everything around it."""

PENDING_BYTES_MIN: Final = 1 << 20

SINK_ONLY_OPTIONS: Final = (
    Option(name="topic", default="", what="The topic of all rows; without it each row's column __topic names its own."),
    Option(
        name="deliveryGuarantee",
        default="exactly-once",
        what="exactly-once: each row is stored once, however often Spark tries; the topic needs deduplication, and "
        "what failed half-way has to go on before brokers forget it, after "
        "brokerDeduplicationProducerInactivityTimeoutMinutes (6 hours unless set otherwise). "
        "at-least-once: rows of a task that is tried again may be stored twice.",
    ),
    Option(
        name="writeId",
        default="",
        what="For batch writes: a name of this write. Who writes the same rows again under the same one (a job that "
        "failed half-way) has each stored once. Without it each write is its own.",
    ),
    Option(
        name="schemaType",
        default="auto",
        what="How values are encoded: bytes, string, json, avro, or auto: by the topic's schema, if it has one; else "
        "one column `value` as it is and several columns as avro.",
    ),
    Option(
        name="rawValues",
        default="",
        what="Whether values are payloads that the topic's schema has encoded already, as reading with rawValues gives "
        "them. Unless it is said: one column `value` of bytes is that, where the schema has no such bytes itself.",
    ),
    Option(
        name="compressionType",
        default="NONE",
        what="How batches are compressed: NONE, LZ4, ZLIB, ZSTD, SNAPPY.",
        aliases=("compression", "pulsar.producer.compressionType"),
    ),
    Option(
        name="batchingEnabled",
        default="true",
        what="Whether several messages are stored as one entry.",
        aliases=("pulsar.producer.batchingEnabled",),
    ),
    Option(
        name="batchingMaxMessages",
        default="1000",
        what="Messages of one entry at the most.",
        aliases=("pulsar.producer.batchingMaxMessages",),
    ),
    Option(
        name="batchingMaxBytes",
        default="128k",
        what="Bytes of one entry at the most, before compression, unless one message alone has more.",
        aliases=("pulsar.producer.batchingMaxBytes",),
    ),
    Option(
        name="hashingScheme",
        default="JavaStringHash",
        what="How a key chooses its partition: JavaStringHash or Murmur3_32Hash, as the topic's other producers do.",
        aliases=("pulsar.producer.hashingScheme",),
    ),
    Option(name="sendTimeout", default="30s", what="How long a message may go without the broker's receipt."),
    Option(
        name="attemptTimeout",
        default="2min",
        what="How long a task that is tried again waits for the former attempt to be gone from the brokers.",
    ),
    Option(
        name="maxPendingBytes",
        default="32m",
        what="Bytes of one task that are on their way to brokers at a time.",
    ),
)

SINK_OPTIONS: Final = (*CONNECTION_OPTIONS, *SINK_ONLY_OPTIONS)
"""All that can be set when writing, as documented."""

_REFUSED: Final = {
    "pulsar.producer.producerName": "producers are named after query and partition: that is how brokers tell "
    "repetitions; for batch writes see writeId. Leave it out",
    "pulsar.producer.topicName": "the option is called topic",
    "pulsar.producer.sendTimeoutMs": "the option is called sendTimeout and has its unit with it: 30s",
    "pulsar.producer.messageRoutingMode": "rows with a key go to the key's partition, others to that of their Spark "
    "partition; a column __partition says otherwise. Leave it out",
}


class DeliveryGuarantee(enum.Enum):
    """What happens to rows that Spark writes several times."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Everything about writing, checked; pickled with writers. Each field is the option whose name is in brackets."""

    connection: ConnectionOptions
    topic: str = ""
    """[topic] Complete name; empty: rows name theirs."""
    guarantee: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE
    """Whether rows that Spark writes several times are stored once. [deliveryGuarantee]"""
    write_id: str = ""
    """The name of a batch write, by which a repetition is known; empty: not given. [writeId]"""
    schema_choice: DefinitionKind = "auto"
    """How values are encoded: by a kind of schema, or by that of the topic. [schemaType]"""
    raw_values: bool | None = None
    """Whether values are payloads that are encoded already; None: not given. [rawValues]"""
    compression: Compression = Compression.NONE
    """How batches are compressed. [compressionType]"""
    batch_messages_max: int = 1000
    """[batchingEnabled, batchingMaxMessages] 1: no batching."""
    batch_bytes_max: int = 128 << 10
    """Bytes of one entry at the most, before compression. [batchingMaxBytes]"""
    hashing_scheme: HashingScheme = HashingScheme.JAVA_STRING
    """How a message's key chooses its partition. [hashingScheme]"""
    send_timeout_seconds: float = 30.0
    """Seconds that a message may go without the broker's receipt. [sendTimeout]"""
    attempt_timeout_seconds: float = 120.0
    """Seconds that a repeated task waits for the producer of the former attempt to be gone. [attemptTimeout]"""
    pending_bytes_max: int = 32 << 20
    """Bytes of one task that are on their way to brokers at a time. [maxPendingBytes]"""

    @property
    def exactly_once(self) -> bool:
        """Whether brokers have to tell repetitions."""
        return self.guarantee is DeliveryGuarantee.EXACTLY_ONCE


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """From what Spark hands over; the case of names does not matter. Raises `BadOption`."""
    check_known(options, SINK_OPTIONS, _REFUSED)
    values = OptionValues(options, SINK_OPTIONS)
    batching = values.boolean("batchingEnabled")
    batch_bytes_max = values.size_bytes("batchingMaxBytes", 1) or 1
    if batch_bytes_max > BATCH_BYTES_MAX:
        raise values.bad(
            "batchingMaxBytes", f"up to {BATCH_BYTES_MAX >> 20}m is accepted: brokers take no larger entries"
        )
    compressions = {one.name: one for one in Compression}
    guarantees = {one.value: one for one in DeliveryGuarantee}
    schemas: dict[str, DefinitionKind] = {one: one for one in get_args(DefinitionKind)}
    hashes = {one.value: one for one in HashingScheme}
    return SinkOptions(
        connection=connection_options(options),
        topic=_topic(values),
        guarantee=guarantees[values.choice("deliveryGuarantee", tuple(guarantees))],
        write_id=values.text("writeId"),
        schema_choice=schemas[values.choice("schemaType", tuple(schemas))],
        raw_values=values.boolean("rawValues") if values.given("rawValues") else None,
        compression=compressions[values.choice("compressionType", tuple(compressions))],
        batch_messages_max=(values.integer("batchingMaxMessages", 1) or 1) if batching else 1,
        batch_bytes_max=batch_bytes_max,
        hashing_scheme=hashes[values.choice("hashingScheme", tuple(hashes))],
        send_timeout_seconds=values.seconds("sendTimeout", 0.1),
        attempt_timeout_seconds=values.seconds("attemptTimeout", 0),
        pending_bytes_max=values.size_bytes("maxPendingBytes", PENDING_BYTES_MIN) or PENDING_BYTES_MIN,
    )


def _topic(values: OptionValues) -> str:
    text = values.text("topic")
    return complete_topic("topic", text) if text else ""
