"""Options as users write them, offsets as users and checkpoints have them."""

from __future__ import annotations

import base64
import json
import pickle
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.spark.errors import BadOption
from magnetar.spark.options.offsets import (
    LATEST,
    AtTime,
    Earliest,
    Explicit,
    Latest,
    advance,
    decode_offset,
    encode_offset,
    parse_offsets,
    place_of,
)
from magnetar.spark.options.parsing import SPARKS_OWN, Option, OptionValues, check_known, parse_time_ms
from magnetar.spark.options.pushdown import MessageFilters
from magnetar.spark.options.reading import (
    OPTIONS,
    SourceOptions,
    batch_bounds,
    parse_source_options,
    stream_start,
)
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageIdData

URL = {"service.url": "pulsar://localhost:6650"}
T = "persistent://public/default/t"


def parsed(**options: str) -> SourceOptions:
    """`__` stands for a dot. Names come from Spark in lower case."""
    given_options = {name.replace("__", ".").lower(): value for name, value in options.items()}
    return parse_source_options({**URL, "topic": "t", **given_options})


def refusal(**options: str) -> str:
    with pytest.raises(BadOption) as error:
        parsed(**options)
    return str(error.value)


def test_little_is_needed_and_defaults_are_as_documented() -> None:
    options = parsed()
    assert options == SourceOptions(connection=options.connection, selection=options.selection)
    assert options.selection.names == (T,)
    assert options.connection.service_url == "pulsar://localhost:6650"
    assert options.connection.operation_timeout_seconds == 30.0
    assert batch_bounds(options) == (Earliest(), Latest())
    assert stream_start(options) == Latest()
    assert pickle.loads(pickle.dumps(options)) == options
    defaults = {option.name: option.default for option in OPTIONS if option.default and option.name != "endingOffsets"}
    assert parsed(**defaults) == options


def test_all_at_once() -> None:
    options = parsed(
        startingOffsets='{"t": "12:340", "a/b/c": [3, 4, 5]}',
        endingOffsets='{"t": "15:2", "a/b/c": "15:2:3"}',
        failOnDataLoss="FALSE",
        maxRowsPerTrigger="1000",
        maxBytesPerTrigger="64m",
        splitBytes="1G",
        predefinedSubscription="archive",
        columns="value, __key",
        publishTimeFrom="2026-03-01T12:00:00Z",
        publishTimeTo="2026-03-01T13:00:00+00:00",
        eventTimeFrom="1772362800000",
        keys='["a,b", "c"]',
        partitions="0,2,5-7",
        mode="permissive",
        columnNameOfCorruptRecord="bad",
        readMode="Bookies",
        pollInterval="1s",
        topicDiscoveryInterval="2min",
        waitingForNonExistedTopic="true",
        admin__url="http://localhost:8080/",
        metadata__url="zk:localhost:2181/chroot",
        pollTimeoutMs="5000",
    )
    c = "persistent://a/b/c"
    assert options.starting == Explicit({T: MessagePosition(12, 340), c: MessagePosition(3, 4, 5)})
    assert options.ending == Explicit({T: MessagePosition(15, 3), c: MessagePosition(15, 2, 4)})
    assert options.filters == MessageFilters(
        publish_time_ms_min=1_772_366_400_000,
        publish_time_ms_max=1_772_369_999_999,
        event_time_ms_min=1_772_362_800_000,
        keys=frozenset([b"a,b", b"c"]),
        partitions=frozenset([0, 2, 5, 6, 7]),
    )
    assert not options.fail_on_data_loss
    assert (options.max_rows_per_trigger, options.max_bytes_per_trigger) == (1000, 64 << 20)
    assert (options.split_bytes, options.poll_seconds, options.topic_discovery_seconds) == (1 << 30, 1.0, 120.0)
    assert (options.mode, options.read_mode, options.corrupt_record_column) == ("PERMISSIVE", "bookies", "bad")
    assert options.columns == ("value", "__key")
    assert options.wait_for_topics
    assert options.connection.admin_url == "http://localhost:8080"
    assert options.connection.metadata_url == "zk:localhost:2181/chroot"
    assert options.connection.operation_timeout_seconds == 5.0
    assert batch_bounds(options) == (options.starting, options.ending)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingofsets": "x"}, "did you mean startingOffsets?"),
        ({"maxrowpertrigger": "1"}, "did you mean maxRowsPerTrigger"),
        ({"option__topic": "t", "owner": "x", "provider": "pulsar"}, "CREATE TEMPORARY VIEW"),
        ({"frobnicate": "1"}, "those there are: admin.url, allowDifferentTopicSchemas"),
        ({"pulsar__client__numIoThreads": "8"}, "no counterpart here; leave it out"),
        ({"pulsar__client__authParam": "8"}, "did you mean pulsar.client.authParams?"),
        ({"pulsar__reader__receiverQueueSize": "8"}, "Java client's Reader mean nothing here"),
        ({"subscriptionPrefix": "x"}, "predefinedSubscription"),
        ({"failOnDataLoss": "maybe"}, "'maybe' is not understood; true or false is accepted"),
        ({"readMode": "bookie"}, "auto or bookies or brokers is accepted (did you mean bookies?)"),
        ({"mode": "strict"}, "FAILFAST or PERMISSIVE or DROPMALFORMED"),
        ({"maxRowsPerTrigger": "0"}, "a whole number from 1 on"),
        ({"maxRowsPerTrigger": "1e6"}, "a whole number from 1 on"),
        ({"maxBytesPerTrigger": "64x"}, "64m"),
        ({"splitBytes": "10"}, "from 1048576 bytes on"),
        ({"pollInterval": "200"}, "with its unit"),
        ({"pollInterval": "5 fortnights"}, "200ms"),
        ({"pollInterval": "9" * 400 + "s"}, "200ms"),
        ({"maxBytesPerTrigger": "9" * 5000}, "64m"),
        ({"publishTimeFrom": "9" * 5000}, "ISO time"),
        ({"startingOffsets": ""}, "is empty"),
        ({"keys": "[1]"}, "JSON list"),
        ({"keys": "[1"}, "JSON list"),
        ({"columns": ","}, "names with commas"),
        ({"partitions": "3-1"}, "0,2,5-7"),
        ({"partitions": "-1"}, "0,2,5-7"),
        ({"publishTimeFrom": "yesterday"}, "ISO time"),
        ({"publishTimeFrom": "2026-03-02", "publishTimeTo": "2026-03-02"}, "no message fits"),
        ({"startingTime": "1772362800000000"}, "milliseconds since 1970"),
        ({"startingTime": "2026"}, "milliseconds since 1970"),
        ({"startingTime": '{"t": true}'}, "is no time"),
        ({"startingTime": "{}"}, "names no topic"),
        ({"startingOffsets": "earliest", "startingTime": "0"}, "startingOffsets and startingTime contradict"),
        ({"endingOffsets": "latest", "endingTime": "0"}, "endingOffsets and endingTime contradict"),
        ({"endingOffsets": "earliest"}, "nothing before earliest"),
        ({"endingOffsets": '{"t": "earliest"}'}, "nothing before earliest"),
        ({"topics": "a,b"}, "topic and topics contradict"),
        ({"topic": "a,b"}, "named by the option topics"),
        ({"topic": "non-persistent://public/default/t"}, "messages are never stored"),
        ({"topic": "a/b"}, "tenant/namespace/my-topic"),
        ({"service__url": "http://h:8080"}, "pulsar://host:6650"),
        ({"service__url": "pulsar://h:port"}, "pulsar://host:6650"),
        ({"admin__url": "h:8080"}, "http://host:8080"),
        ({"metadata__url": "h:2181"}, "zk:host:2181"),
        ({"metadata__url": "rocksdb:///data"}, "no other process can open that store"),
        ({"useTls": "true"}, "pulsar+ssl://"),
        ({"token": "x", "authPluginClassName": "a.B"}, "token and authPluginClassName contradict"),
        ({"authParams": "x:y"}, "without authPluginClassName"),
        ({"pulsar__client__authParams": "x", "authParams": "y"}, "are the same and have different values"),
        ({"operationTimeout": "1s", "pollTimeoutMs": "1000"}, "set one of them"),
        ({"topic__schema__class": "x"}, "registry"),
    ],
)
def test_what_is_refused_says_what_is_accepted(options: dict[str, str], text: str) -> None:
    assert text in refusal(**options)


def test_secrets_are_not_printed() -> None:
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    assert "hidden" not in refusal(authPluginClassName=plugin, authParams="file:///hidden")
    assert "hidden" not in repr(parsed(token="hidden"))


@pytest.mark.parametrize("parameters", ["token:abc", "abc", '{"token": "abc"}'])
def test_tokens_as_the_java_client_has_them(parameters: str) -> None:
    options = parsed(
        pulsar__client__authPluginClassName="org.apache.pulsar.client.impl.auth.AuthenticationToken",
        pulsar__client__authParams=parameters,
        pulsar__admin__authParams=parameters,
    )
    assert (options.connection.token, options.connection.auth_plugin) == ("abc", "")


def test_tls_and_other_plugins() -> None:
    options = parsed(
        service__url="pulsar+ssl://h:6651",
        pulsar__client__useTls="true",
        pulsar__client__tlsTrustCertsFilePath="/ca.pem",
        pulsar__client__tlsAllowInsecureConnection="true",
        pulsar__client__tlsHostnameVerificationEnable="false",
        authPluginClassName="org.apache.pulsar.client.impl.auth.AuthenticationBasic",
        authParams="user:x",
    ).connection
    assert (options.auth_plugin, options.auth_params) == (
        "org.apache.pulsar.client.impl.auth.AuthenticationBasic",
        "user:x",
    )
    assert options.tls_trust_certificates_file == "/ca.pem"
    assert options.tls_allow_insecure
    assert not options.tls_hostname_verification


def test_a_source_needs_a_cluster_and_a_topic() -> None:
    with pytest.raises(BadOption, match=r"service\.url is not set"):
        parse_source_options({"topic": "t"})
    with pytest.raises(BadOption, match="no topic is named"):
        parse_source_options(URL)


def test_several_topics_and_patterns() -> None:
    several = parse_source_options({**URL, "topics": "a, x/y/b,a"}).selection
    assert several.names == ("persistent://public/default/a", "persistent://x/y/b")
    for text, pattern in [
        ("orders-.*", "persistent://public/default/orders-.*"),
        ("x/y/[a-c]+", "persistent://x/y/[a-c]+"),
        ("persistent://x/y/.*", "persistent://x/y/.*"),
    ]:
        assert parse_source_options({**URL, "topicsPattern": text}).selection.pattern == pattern
    for text in ["(", ".*/y/z", "x/y", "x/y/", "persistent://x/y", "non-persistent://x/y/z", "kafka://x/y/z"]:
        with pytest.raises(BadOption, match=r"accepted|never stored"):
            parse_source_options({**URL, "topicsPattern": text})


def test_an_option_that_is_set_to_none_is_not_set() -> None:
    nothing = cast("dict[str, str]", {"token": None, "maxRowsPerTrigger": None})
    assert parse_source_options({**URL, "topic": "t", **nothing}) == parsed()


def test_what_spark_adds_is_let_pass() -> None:
    assert parsed(**dict.fromkeys(SPARKS_OWN, "x")) == parsed()


def test_what_makes_no_batch_and_no_stream() -> None:
    with pytest.raises(BadOption, match="from latest on has no messages"):
        batch_bounds(parsed(startingOffsets="latest"))
    with pytest.raises(BadOption, match="end before startingOffsets begin"):
        batch_bounds(parsed(startingOffsets='{"t": "5:7"}', endingOffsets='{"t": "5:5"}'))
    with pytest.raises(BadOption, match="is before startingTime"):
        batch_bounds(parsed(startingTime="2026-03-02", endingTime="2026-03-01"))
    with pytest.raises(BadOption, match="a stream has no end"):
        stream_start(parsed(endingOffsets="latest"))
    with pytest.raises(BadOption, match="readCompacted"):
        stream_start(parsed(readCompacted="true"))


def test_times_of_each_topic() -> None:
    options = parsed(startingTime='{"t": 1772362800000, "u": "2026-03-01"}')
    assert isinstance(options.starting, AtTime)
    assert place_of(options.starting, T) == 1_772_362_800_000
    assert place_of(options.starting, "persistent://public/default/u-partition-7") == 1_772_323_200_000
    with pytest.raises(BadOption, match="does not say where in"):
        place_of(options.starting, "persistent://public/default/v")
    assert parse_time_ms("1969-01-01") is None
    assert parse_time_ms("0") == 0


def test_places_of_topics() -> None:
    assert place_of(Earliest(), T) == BEGINNING
    assert place_of(Latest(), T) == LATEST
    assert place_of(AtTime(5), T) == 5
    point = Explicit({T: MessagePosition(1, 2)})
    assert place_of(point, T) == MessagePosition(1, 2)
    with pytest.raises(BadOption, match="each partition by itself"):
        place_of(point, f"{T}-partition-0")


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(-1, 500), st.booleans())
def test_message_ids_of_the_java_client(ledger_id: int, entry_id: int, batch_index: int, ending: bool) -> None:
    data = MessageIdData(ledgerId=ledger_id, entryId=entry_id, partition=3)
    if batch_index >= 0:
        data.batch_index = batch_index
    raw = data.SerializeToString()
    signed = [byte - 256 if byte > 127 else byte for byte in raw]
    if not ending:
        expected = MessagePosition(ledger_id, entry_id, max(batch_index, 0))
    elif batch_index < 0:
        expected = MessagePosition(ledger_id, entry_id + 1)
    else:
        expected = MessagePosition(ledger_id, entry_id, batch_index + 1)
    for form in (signed, list(raw), base64.b64encode(raw).decode()):
        point = parse_offsets("startingOffsets", json.dumps({"t": form}), exclusive_end=ending)
        assert point == Explicit({T: expected})


def test_javas_earliest_and_latest() -> None:
    earliest = [8, *[-1] * 9, 1, 16, *[-1] * 9, 1]
    latest = [8, *[-1] * 8, 127, 16, *[-1] * 8, 127]
    for early, late in [(earliest, latest), ("earliest", "latest")]:
        text = json.dumps({"t": early, "u": late})
        point = parse_offsets("startingOffsets", text)
        assert isinstance(point, Explicit)
        assert list(point.positions.values()) == [BEGINNING, LATEST]
        assert parse_offsets("endingOffsets", json.dumps({"t": late}), exclusive_end=True) == Explicit({T: LATEST})


@pytest.mark.parametrize(
    "value",
    [
        "12",
        "12:-1",
        "a:b",
        "1:2:3:4",
        [1],
        [1, -2],
        [1.5, 2],
        [True, 2],
        {},
        None,
        7,
        "AAAA",
        "é",
        [1, 2, 3, 400],
    ],
)
def test_what_is_no_place(value: object) -> None:
    with pytest.raises(BadOption, match=r'is no place; a JSON object .* "ledger:entry"'):
        parse_offsets("startingOffsets", json.dumps({"t": value}))


@pytest.mark.parametrize(
    "text", ["newest", "{", "[]", "{}", '{"t": "1:2", "t": "3:4"}', '{"t":"1:2","public/default/t":"1:2"}']
)
def test_what_is_no_offsets(text: str) -> None:
    with pytest.raises(BadOption, match="option startingOffsets"):
        parse_offsets("startingOffsets", text)


positions = st.builds(MessagePosition, st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1000))
offsets = st.dictionaries(
    st.integers(0, 99).map("persistent://public/default/t-partition-{}".format),
    positions | st.just(BEGINNING),
    max_size=5,
)


@given(offsets)
def test_offsets_of_streams_survive_the_checkpoint(offset: dict[str, MessagePosition]) -> None:
    encoded = encode_offset(offset)
    assert decode_offset(json.loads(json.dumps(encoded))) == offset
    assert list(encoded) == sorted(encoded)


def test_the_checkpoints_form_stays() -> None:
    assert encode_offset({T: MessagePosition(12, 340, 2), "persistent://a/b/c": MessagePosition(1, 0)}) == {
        "persistent://a/b/c": "1:0",
        T: "12:340:2",
    }


@pytest.mark.parametrize(
    "offset", [{T: 5}, {T: "12"}, {T: "12:3:4:5"}, {T: {"ledger": 1}}, {"version": "1:2"}, {T: "-2:1"}]
)
def test_checkpoints_of_others_are_refused(offset: dict[str, object]) -> None:
    with pytest.raises(BadOption, match="new checkpointLocation"):
        decode_offset(offset)


def test_offsets_advance() -> None:
    begin = {"a": MessagePosition(5, 0), "b": MessagePosition(5, 0)}
    reached = {"a": MessagePosition(4, 0), "b": MessagePosition(6, 0), "c": MessagePosition(1, 0)}
    assert advance(begin, reached) == {"a": (5, 0, 0), "b": (6, 0, 0), "c": (1, 0, 0)}
    assert advance(begin, reached, ["b"]) == {"a": (5, 0, 0), "c": (1, 0, 0)}
    assert advance(begin, reached, restarted=["a"])["a"] == (4, 0, 0)


def test_known_options_are_each_of_one_name() -> None:
    names = [name.lower() for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(set(names)) == len(names)
    assert all(option.what.endswith(".") for option in OPTIONS)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64m", 64 << 20), ("1g", 1 << 30), ("512KiB", 512 << 10), ("2 kb", 2048)]
)
def test_sizes(text: str, size: int) -> None:
    option = Option(name="size", default="", what="A size.")
    assert OptionValues({"SIZE": text}, [option]).size_bytes("size", 0) == size
    check_known(["SIZE"], [option])


@pytest.mark.parametrize("option", ["service.url", "admin.url", "metadata.url"])
def test_credentials_in_addresses_are_refused_and_not_shown(option: str) -> None:
    """Addresses stand in errors and logs."""
    for scheme in ("pulsar", "https", "zk"):
        text = refusal(**{option: f"{scheme}://me:hunter2@host:1"})
        assert f"option {option} has credentials in it" in text
        assert "hunter2" not in text
