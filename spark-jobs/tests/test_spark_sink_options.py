"""Options of the sink."""

from __future__ import annotations

import pytest
from magnetar.spark.errors import BadOption
from magnetar.spark.sink.options import (
    SINK_OPTIONS,
    DeliveryGuarantee,
    SinkOptions,
    parse_sink_options,
)
from magnetar.spark.sink.rows import HashingScheme
from magnetar.wire.pulsar.compression_type import Compression

URL = {"service.url": "pulsar://localhost:6650"}


def test_defaults_are_those_of_the_class() -> None:
    parsed = parse_sink_options(URL)
    assert parsed == SinkOptions(connection=parsed.connection)


def test_all_of_them() -> None:
    parsed = parse_sink_options(
        {
            **URL,
            "topic": "orders",
            "deliveryguarantee": "AT-least-once",
            "schematype": "JSON",
            "pulsar.producer.compressionType": "zstd",
            "batchingmaxmessages": "50",
            "batchingmaxbytes": "1m",
            "hashingscheme": "murmur3_32hash",
            "sendtimeout": "5s",
            "attempttimeout": "1min",
            "maxpendingbytes": "64m",
            "writeid": "job-7",
            "checkpointlocation": "/tmp/c",
        }
    )
    assert parsed.topic == "persistent://public/default/orders"
    assert (parsed.guarantee, parsed.exactly_once) == (DeliveryGuarantee.AT_LEAST_ONCE, False)
    assert (parsed.schema_choice, parsed.compression) == ("json", Compression.ZSTD)
    assert (parsed.batch_messages_max, parsed.batch_bytes_max) == (50, 1 << 20)
    assert parsed.hashing_scheme is HashingScheme.MURMUR3
    assert (parsed.send_timeout_seconds, parsed.attempt_timeout_seconds) == (5.0, 60.0)
    assert (parsed.pending_bytes_max, parsed.write_id) == (64 << 20, "job-7")


def test_without_batching_each_message_is_an_entry() -> None:
    assert parse_sink_options({**URL, "batchingEnabled": "false"}).batch_messages_max == 1


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("topics", "a,b", "there is no option topics: did you mean topic"),
        ("deliveryGuarantee", "once", "exactly-once or at-least-once is accepted"),
        ("topic", "non-persistent://public/default/t", "non-persistent: its messages are never stored"),
        ("topic", "a/b", "is no topic"),
        ("batchingMaxBytes", "10m", "up to 4m is accepted"),
        ("batchingMaxMessages", "0", "a whole number from 1 on"),
        ("sendTimeout", "30", "with its unit"),
        ("maxPendingBytes", "1k", "from 1048576 bytes on"),
        ("pulsar.producer.producerName", "me", "producers are named after query and partition"),
        ("pulsar.producer.messageRoutingMode", "SinglePartition", "__partition says otherwise"),
    ],
)
def test_bad_ones_say_what_is_accepted(option: str, value: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        parse_sink_options({**URL, option: value})


def test_each_is_documented() -> None:
    assert all(option.what.endswith(".") for option in SINK_OPTIONS)
