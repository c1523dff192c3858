import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.bundle import BundleName, BundleRange, NamespaceBundles
from magnetar.core.topic_name import FULL_RANGE, InvalidTopicName, NamespaceName, TopicName, equal_bundle_boundaries

NAMESPACE = NamespaceName("public", "default")


def test_a_topic_falls_where_apache_puts_it() -> None:
    bundles = NamespaceBundles(NAMESPACE, equal_bundle_boundaries(4))
    topic = TopicName.parse("persistent://public/default/test")
    assert str(bundles.bundle_of(topic)) == "public/default/0x80000000_0xc0000000"
    assert topic in bundles.bundle_of(topic)


@given(st.integers(0, FULL_RANGE), st.integers(1, 300))
def test_each_hash_is_in_exactly_one_bundle(position: int, count: int) -> None:
    bundles = NamespaceBundles(NAMESPACE, equal_bundle_boundaries(count))
    holders = [bundle for bundle in bundles.bundles if position in bundle.range]
    assert holders == [bundles.bundle_at(position)]


def test_names_come_back() -> None:
    name = "public/default/0xc0000000_0xffffffff"
    bundle = BundleName.parse(name)
    assert str(bundle) == name
    assert FULL_RANGE in bundle.range
    assert bundle in NamespaceBundles(NAMESPACE, equal_bundle_boundaries(4))
    assert bundle not in NamespaceBundles(NAMESPACE, equal_bundle_boundaries(8))


@pytest.mark.parametrize("text", ["0x00000000", "0x80000000_0x40000000", "0x0_0x1", "", "0x00000000_0x00000000"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        BundleRange.parse(text)
