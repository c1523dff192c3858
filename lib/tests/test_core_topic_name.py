import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.topic_name import (
    KEPT_NAME_CHARACTERS_MAX,
    InvalidTopicName,
    NamespaceName,
    TopicName,
    bundle_of,
    equal_bundle_boundaries,
    java_url_decode,
    java_url_encode,
)

# Printed by Pulsar 4.0.8's TopicName: text, name, partition index, partitioned name, persistence name, schema name.
NAMES = [
    ("topic", "public/default", "topic", -1, "topic"),
    ("t/n/topic", "t/n", "topic", -1, "topic"),
    ("persistent://t/n/topic", "t/n", "topic", -1, "topic"),
    ("x-partition-3", "public/default", "x-partition-3", 3, "x"),
    ("x-partition-0", "public/default", "x-partition-0", 0, "x"),
    ("x-partition-03", "public/default", "x-partition-03", -1, "x-partition-03"),
    ("x-partition-", "public/default", "x-partition-", -1, "x-partition-"),
    ("x-partition--1", "public/default", "x-partition--1", -1, "x-partition--1"),
    ("x-partition-1a", "public/default", "x-partition-1a", -1, "x-partition-1a"),
    ("x-partition-1-partition-2", "public/default", "x-partition-1-partition-2", 2, "x-partition-1"),
    ("x-partition-99999999999", "public/default", "x-partition-99999999999", -1, "x-partition-99999999999"),
    ("x-partition-2147483647", "public/default", "x-partition-2147483647", 2147483647, "x"),
    ("x-partition-2147483648", "public/default", "x-partition-2147483648", -1, "x-partition-2147483648"),
    ("a b", "public/default", "a+b", -1, "a+b"),
    ("topic?x", "public/default", "topic%3Fx", -1, "topic%3Fx"),
    ("t/n/a%2Fb", "t/n", "a%252Fb", -1, "a%252Fb"),
    ("persistent://t/n/ x ", "t/n", "+x+", -1, "+x+"),
    ("x-partition-+1", "public/default", "x-partition-%2B1", -1, "x-partition-%2B1"),
    ("x\ny", "public/default", "x%0Ay", -1, "x%0Ay"),
]


@pytest.mark.parametrize(("text", "namespace", "encoded", "partition", "schema"), NAMES)
def test_names_are_read_as_pulsar_reads_them(
    text: str, namespace: str, encoded: str, partition: int, schema: str
) -> None:
    name = TopicName.parse(text)
    assert str(name.namespace_name) == namespace
    assert f"{name.tenant}/{name.namespace}" == namespace
    assert str(name) == f"persistent://{namespace}/{name.local_name}"
    assert name.persistence_name == f"{namespace}/persistent/{encoded}"
    assert name.partition_index == partition
    assert name.schema_name == f"{namespace}/{schema}"
    assert TopicName.parse(str(name)) == name


REFUSED = [
    ("a/b", "Invalid short topic name 'a/b', it should be in the format of <tenant>/<namespace>/<topic> or <topic>"),
    ("a/b/c/d", "Invalid short topic name 'a/b/c/d', it should be in the format of <tenant>/<namespace>/<topic>"),
    ("persistent://t/n", "Invalid topic name: persistent://t/n"),
    ("persistent://t/n/", "Invalid topic name: persistent://t/n/. Topic local name must not be blank."),
    ("persistent://t/n/  ", "must not be blank"),
    ("persistent://t/n/-partition-1", "must not be blank"),
    ("-partition-5", "must not be blank"),
    ("foo://t/n/x", "Invalid topic domain: 'foo'"),
    ("://a/b/c", "Invalid topic domain: ''"),
    ("persistent://t//x", "Invalid namespace"),
    ("persistent:///n/x", "Invalid namespace"),
    ("persistent://t t/n/x", "Invalid namespace"),
    ("persistent://té/n/x", "Invalid namespace"),
    ("persistent://t/c/n/x", "not supported"),
    ("persistent://t/n//x", "not supported"),
    ("", "must not be blank"),
    ("a//b", "Invalid"),
    ("/a/b", "Invalid"),
    ("a/b/", "Invalid"),
    # Steps in a path: as an error of the metadata store clients would try them again and again.
    ("persistent://t/n/..", "'..' is no name"),
    ("persistent://t/n/.-partition-0", "'.' is no name"),
    ("persistent://../n/x", "'..' is no name"),
    ("t/./x", "'.' is no name"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_names_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InvalidTopicName) as refused:
        TopicName.parse(text)
    assert message in str(refused.value)


@given(st.text(max_size=30) | st.text(alphabet="ab/:-partion0123", max_size=30))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidTopicName:
        return
    assert TopicName.parse(str(name)) == name
    assert name.partitioned_name().partition(name.partition_index) == name


def test_partitions() -> None:
    name = TopicName.parse("non-persistent://t/n/x")
    assert str(name.partition(2)) == "non-persistent://t/n/x-partition-2"
    assert name.partition(2).partitioned_name() == name
    assert name.partitioned_name() == name
    assert name.partition(2).persistence_name == "t/n/non-persistent/x-partition-2"


def test_long_names_are_not_kept() -> None:
    text = "x" * 2_000
    assert TopicName.parse(text) is not TopicName.parse(text)
    assert TopicName.parse("kept") is TopicName.parse("kept")


@pytest.mark.parametrize("text", ["t/n", "t-=:._/n", "..t/..."])
def test_namespaces(text: str) -> None:
    assert str(NamespaceName.parse(text)) == text


@pytest.mark.parametrize("text", ["t", "/n", "t/", "t/n ", "é/n", "", "t/c/n", "../n", "t/."])
def test_namespaces_that_are_none(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        NamespaceName.parse(text)


def test_url_encoding_is_javas() -> None:
    for text, encoded in [
        (" ~*-_.é+/%&", "+%7E*-_.%C3%A9%2B%2F%25%26"),
        ("sub/1", "sub%2F1"),
        ("a:b", "a%3Ab"),
        ("😀", "%F0%9F%98%80"),
    ]:
        assert java_url_encode(text) == encoded
        assert java_url_decode(encoded) == text
    assert java_url_decode("a+b%20c%2Fd") == "a b c/d"


@given(st.text(max_size=20))
def test_url_encoding_round_trip(text: str) -> None:
    assert java_url_decode(java_url_encode(text)) == text


def test_bundles_are_pulsars() -> None:
    assert equal_bundle_boundaries(1) == ["0x00000000", "0xffffffff"]
    assert equal_bundle_boundaries(3) == ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"]
    four = equal_bundle_boundaries(4)
    assert four == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    seven = equal_bundle_boundaries(7)
    assert seven[1:3] == ["0x24924924", "0x49249248"]
    assert seven[6] == "0xdb6db6d8"
    assert bundle_of(TopicName.parse("persistent://public/default/test").bundle_hash(), four) == "0x80000000_0xc0000000"
    assert bundle_of(0, four) == "0x00000000_0x40000000"
    assert bundle_of(0x40000000, four) == "0x40000000_0x80000000"
    assert bundle_of(0xFFFFFFFF, four) == "0xc0000000_0xffffffff"


def test_topics_share_their_namespace() -> None:
    first, second = (TopicName.parse(f"persistent://shared/namespace/{name}") for name in "ab")
    assert first.namespace_name is second.namespace_name
    long = "n" * KEPT_NAME_CHARACTERS_MAX
    first, second = (TopicName.parse(f"persistent://shared/{long}/{name}") for name in "ab")
    assert first.namespace_name == second.namespace_name
    assert first.namespace_name is not second.namespace_name, "what is that long is not kept"
