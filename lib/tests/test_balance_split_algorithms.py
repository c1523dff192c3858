import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.balance.settings import SPLIT_ALGORITHMS, SplitSettings
from magnetar.balance.split_algorithms import BadSplit, SplitRequest, TopicLoad, split_boundaries
from magnetar.core.bundle import BundleRange
from magnetar.core.limits import MIB

TOP = BundleRange.parse("0xc0000000_0xffffffff")
FIRST = BundleRange.parse("0x00000000_0x40000000")
SETTINGS = SplitSettings()


def cuts(
    algorithm: str, bundle: BundleRange, *topics: TopicLoad, positions: tuple[int, ...] = (), rate_max: int = 30_000
) -> tuple[int, ...]:
    request = SplitRequest(bundle=bundle, topics=topics, positions=positions)
    return split_boundaries(algorithm, request, SplitSettings(bundle_msg_rate_max=rate_max))


def at(*positions: int) -> list[TopicLoad]:
    return [TopicLoad(position) for position in positions]


def test_halves_of_the_range_round_down_as_the_last_bundle_is_one_short() -> None:
    assert cuts("range_equally_divide", TOP) == (0xDFFFFFFF,)
    assert cuts("range_equally_divide", FIRST) == (0x20000000,)
    assert cuts("range_equally_divide", BundleRange(7, 8)) == ()


def test_topic_count_cuts_between_the_two_in_the_middle() -> None:
    assert cuts("topic_count_equally_divide", FIRST, *at(400, 100, 200, 300)) == (250,)
    assert cuts("topic_count_equally_divide", FIRST, *at(100, 200, 500)) == (150,)
    assert cuts("topic_count_equally_divide", FIRST, *at(100)) == ()
    assert cuts("topic_count_equally_divide", FIRST) == ()


def test_topics_at_one_place_cannot_be_parted_below_the_bundle() -> None:
    assert cuts("topic_count_equally_divide", FIRST, *at(0, 0)) == ()
    assert cuts("topic_count_equally_divide", FIRST, *at(9, 9)) == (9,)


def test_specified_positions_are_sorted_and_kept_inside_the_bundle() -> None:
    two = at(1, 2)
    assert cuts("specified_positions_divide", FIRST, *two, positions=(0x30000000, 0x10, 0, 0x40000000)) == (
        0x10,
        0x30000000,
    )
    assert cuts("specified_positions_divide", FIRST, *at(1), positions=(0x10,)) == ()
    with pytest.raises(BadSplit, match="SplitBoundaries can't be empty"):
        cuts("specified_positions_divide", FIRST, *two)


def test_load_is_cut_where_the_next_topic_would_pass_the_maximum() -> None:
    topics = [TopicLoad(100 * index, 40.0) for index in range(1, 6)]
    assert cuts("flow_or_qps_equally_divide", FIRST, *topics, rate_max=100) == (251, 451)
    assert cuts("flow_or_qps_equally_divide", FIRST, *topics, rate_max=190) == ()
    assert cuts("flow_or_qps_equally_divide", FIRST, *topics, rate_max=181) == (451,)


def test_load_counts_bytes_as_well_and_leaves_idle_topics_out() -> None:
    busy = [TopicLoad(10, 1.0, 90.0 * MIB), TopicLoad(20, 1.0, 90.0 * MIB)]
    assert cuts("flow_or_qps_equally_divide", FIRST, *busy, TopicLoad(12)) == (16,)
    assert cuts("flow_or_qps_equally_divide", FIRST, busy[0]._replace(msg_throughput=500.0 * MIB), TopicLoad(12)) == ()


def test_topics_with_one_hash_count_together() -> None:
    topics = [TopicLoad(10, 60.0), TopicLoad(10, 60.0), TopicLoad(11, 60.0)]
    assert cuts("flow_or_qps_equally_divide", FIRST, *topics, rate_max=100) == (11,)


def test_names_must_be_known_and_supported() -> None:
    with pytest.raises(BadSplit, match="Unsupported namespace bundle split algorithm"):
        cuts("by_magic", FIRST)
    only = SplitSettings(algorithms=("range_equally_divide",))
    with pytest.raises(BadSplit, match="range_equally_divide"):
        split_boundaries("topic_count_equally_divide", SplitRequest(bundle=FIRST), only)


@given(
    algorithm=st.sampled_from(SPLIT_ALGORITHMS),
    edges=st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF)).filter(lambda pair: pair[0] != pair[1]),
    topics=st.lists(st.tuples(st.integers(0, 0xFFFFFFFF), st.floats(0, 1e6), st.floats(0, 1e9)), max_size=20),
    positions=st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=5),
)
def test_cuts_always_make_bundles(
    algorithm: str,
    edges: tuple[int, int],
    topics: list[tuple[int, float, float]],
    positions: list[int],
) -> None:
    bundle = BundleRange(min(edges), max(edges))
    inside = [TopicLoad(*topic) for topic in topics if topic[0] in bundle]
    found = split_boundaries(algorithm, SplitRequest(bundle=bundle, topics=inside, positions=positions), SETTINGS)
    assert list(found) == sorted(set(found))
    assert all(bundle.low < position < bundle.high for position in found)
