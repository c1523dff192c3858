from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import SettingError
from magnetar.ledger.api import NotEnoughBookies
from magnetar.ledger.placement import Adherence, EnsemblePlacer, PlacementSettings, isolated_candidates, isolation_of
from magnetar.ledger.topology import BookieTopology

CANDIDATES = ["a", "b", "c", "d"]
FLAT = PlacementSettings(rack_aware=False)
RACKS = PlacementSettings()
ENFORCED = PlacementSettings(enforce_racks=True)


def placer(
    seed: int, places: BookieTopology | None = None, settings: PlacementSettings = RACKS, write_quorum: int = 2
) -> EnsemblePlacer:
    return EnsemblePlacer(settings, places or BookieTopology(), write_quorum, random.Random(seed))


def racks(**bookies: str) -> BookieTopology:
    return BookieTopology({"default": bookies})


def test_chosen_are_different_candidates_in_every_order() -> None:
    orders = {tuple(placer(seed).fill([None, None], ["a", "b", "c"])) for seed in range(100)}
    assert orders == {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")}


def test_avoided_ones_come_last() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        chooser = EnsemblePlacer(RACKS, BookieTopology(), 2, rng, avoided={"a", "b"})
        assert set(chooser.fill([None] * 2, CANDIDATES)) == {"c", "d"}
        assert set(chooser.fill([None] * 3, CANDIDATES)) > {"c", "d"}


def test_an_enforced_rule_is_kept_with_an_avoided_bookie_if_it_must() -> None:
    places = racks(a="/1", b="/1", c="/2", d="/2")
    for seed in range(20):
        for avoided, expected in (({"c"}, {"d"}), ({"c", "d"}, {"c", "d"})):
            chooser = EnsemblePlacer(ENFORCED, places, 2, random.Random(seed), avoided)
            chosen = set(chooser.fill([None] * 2, CANDIDATES))
            assert len(chosen & {"a", "b"}) == 1
            assert chosen & {"c", "d"} <= expected
            assert chooser.fill(["a", None], CANDIDATES)[1] in expected


def test_too_few() -> None:
    with pytest.raises(NotEnoughBookies, match="3 bookies are needed, 2 of 2"):
        placer(0).fill([None] * 3, ["a", "b"])
    with pytest.raises(NotEnoughBookies):
        placer(0).fill(["a", None], ["a", "a"])


def test_the_same_seed_chooses_the_same() -> None:
    assert placer(3).fill([None] * 4, CANDIDATES) == placer(3).fill([None] * 4, list(reversed(CANDIDATES)))


@given(st.integers(0, 1 << 30), st.integers(1, 5), st.data())
def test_replicas_are_in_as_many_racks_as_there_are(seed: int, write_quorum: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(write_quorum, 6))
    places = racks(**{f"{rack}{number}": f"/rack-{rack}" for rack in "abcdef" for number in range(2)})
    chosen = placer(seed, places, write_quorum=write_quorum).fill(
        [None] * size, [f"{rack}{number}" for rack in "abcdef" for number in range(2)]
    )
    for begin in range(size):
        replicas = [chosen[(begin + offset) % size] for offset in range(write_quorum)]
        assert len({places.rack_of(bookie) for bookie in replicas}) == write_quorum


def test_a_replacement_goes_to_a_rack_of_its_own() -> None:
    places = racks(a="/1", b="/2", c="/3", d="/1", e="/3")
    for seed in range(20):
        assert placer(seed, places, write_quorum=3).fill(["a", "b", None], ["d", "e"]) == ["a", "b", "e"]


def test_regions_count_before_racks() -> None:
    places = racks(a="/east/1", b="/east/2", c="/west/1", d="/west/1")
    settings = PlacementSettings(region_aware=True)
    for seed in range(20):
        chosen = placer(seed, places, settings, write_quorum=2).fill([None] * 4, CANDIDATES)
        assert [places.region_of(bookie) for bookie in chosen[:2]] in (["east", "west"], ["west", "east"])
        assert placer(0, places, settings).adherence(chosen) is Adherence.STRICT


def test_adherence() -> None:
    places = racks(a="/1", b="/1", c="/2")
    assert placer(0, places).adherence(["a", "c"]) is Adherence.STRICT
    assert placer(0, places).adherence(["a", "b", "c"]) is Adherence.FAILED
    assert placer(0, places, FLAT).adherence(["a", "b"]) is Adherence.STRICT
    assert placer(0, places, write_quorum=1).adherence(["a", "b"]) is Adherence.STRICT
    regions = PlacementSettings(region_aware=True)
    assert placer(0, racks(a="/e/1", b="/e/2"), regions).adherence(["a", "b"]) is Adherence.FAILED


def test_enforced_racks_refuse_rather_than_clash() -> None:
    enforced = PlacementSettings(enforce_racks=True)
    places = racks(a="/1", b="/1", c="/2")
    with pytest.raises(NotEnoughBookies, match="EnforceMinNumRacks"):
        placer(0, places, enforced).fill([None, None], ["a", "b"])
    with pytest.raises(NotEnoughBookies, match="given a rack"):
        placer(0, places, enforced).fill([None, None], ["a", "unknown"])
    for seed in range(20):
        assert "c" in placer(seed, places, enforced).fill([None, None], ["a", "b", "c"])


def test_load_is_even_over_equal_racks() -> None:
    places = racks(a="/1", b="/2", c="/3", d="/4")
    taken = Counter(bookie for seed in range(2_000) for bookie in placer(seed, places).fill([None] * 2, CANDIDATES))
    assert min(taken.values()) > 0.9 * max(taken.values())


def machines(**bookies: str) -> BookieTopology:
    return BookieTopology({}, bookies)


@given(st.integers(0, 1 << 30), st.integers(1, 4), st.sampled_from([FLAT, RACKS]), st.data())
def test_copies_of_an_entry_are_never_on_one_machine(
    seed: int, write_quorum: int, settings: PlacementSettings, data: st.DataObject
) -> None:
    processes = data.draw(st.integers(1, 4))
    names = [f"{machine}{number}" for machine in "abcd" for number in range(processes)]
    places = machines(**{name: name[0] for name in names})
    # Whole rounds over all machines, or few enough places that each has a machine of its own.
    size = data.draw(st.sampled_from([*range(write_quorum, 5), *(4 * rounds for rounds in range(1, processes + 1))]))
    chosen = placer(seed, places, settings, write_quorum).fill([None] * size, names)
    width = min(write_quorum, size)
    for begin in range(size):
        assert len({chosen[(begin + offset) % size][0] for offset in range(width)}) == width
    assert placer(seed, places, FLAT, write_quorum).adherence(chosen) is Adherence.STRICT


def test_bookies_of_one_machine_alone_hold_no_copies_and_hold_what_has_one() -> None:
    places = machines(a="here", b="here", c="here")
    for settings in (FLAT, RACKS):
        with pytest.raises(NotEnoughBookies, match=r"no 2 of the 3 bookies .* keep the copies of each entry on 2 mach"):
            placer(0, places, settings).fill([None] * 2, ["a", "b", "c"])
        assert placer(0, places, settings).adherence(["a", "b"]) is Adherence.FAILED
        assert len(placer(0, places, settings, write_quorum=1).fill([None] * 3, ["a", "b", "c"])) == 3


def test_a_replacement_is_on_none_of_the_machines_that_share_its_entries() -> None:
    places = machines(a="1", b="2", c="1", d="2", e="3")
    for seed in range(20):
        assert placer(seed, places).fill(["a", None], ["c", "d", "e"])[1] in ("d", "e")
        assert placer(seed, places, write_quorum=3).fill(["a", "b", None], ["c", "d", "e"]) == ["a", "b", "e"]
        with pytest.raises(NotEnoughBookies, match="on 3 machines"):
            placer(seed, places, write_quorum=3).fill(["a", "b", None], ["c", "d"])


def test_a_replacement_is_found_beside_copies_that_were_put_onto_one_machine_before() -> None:
    places = machines(a="1", b="1", c="2")
    assert placer(0, places, write_quorum=3).fill(["a", "b", None], ["c"]) == ["a", "b", "c"]


def test_bookies_that_name_no_machine_stand_alone() -> None:
    places = machines(a="1", b="1")
    for seed in range(20):
        assert {"c", "d"} & set(placer(seed, places).fill([None] * 2, CANDIDATES))


def test_machines_are_kept_apart_with_a_bookie_that_failed_lately_if_it_must() -> None:
    places = machines(a="1", b="1", c="2")
    for seed in range(20):
        chosen = EnsemblePlacer(RACKS, places, 2, random.Random(seed), {"c"}).fill([None] * 2, ["a", "b", "c"])
        assert "c" in chosen


GROUPS = BookieTopology({"gold": {"a": "", "b": ""}, "tin": {"b": "", "c": ""}, "lead": {"d": ""}})


@pytest.mark.parametrize(
    ("first", "secondary", "size", "expected"),
    [
        ((), (), 2, ["a", "b", "c", "d", "free"]),
        (("gold",), (), 2, ["a", "b"]),
        (("gold",), (), 3, ["a", "b", "free"]),
        (("gold",), ("lead",), 2, ["a", "b"]),
        (("gold",), ("lead",), 3, ["a", "b", "d"]),
        (("gold",), ("lead",), 4, ["a", "b", "d", "free"]),
        (("gold", "lead"), (), 3, ["a", "b", "d"]),
        (("nobody",), (), 1, ["free"]),
        (("*",), (), 1, ["a", "b", "c", "d", "free"]),
    ],
)
def test_isolation_groups(first: tuple[str, ...], secondary: tuple[str, ...], size: int, expected: list[str]) -> None:
    """As Pulsar 4.0.8 does it; older ones used bookies of no group for every ledger."""
    assert isolated_candidates([*CANDIDATES, "free"], GROUPS, first, secondary, size) == expected
    assert isolated_candidates(["y", "x"], BookieTopology(), first, secondary, size) == ["x", "y"]


def test_a_ledger_may_carry_groups_of_its_own() -> None:
    settings = PlacementSettings(isolation_groups=("x",))
    value = (
        b'{"policyClass": "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",'
        b' "properties": {"isolationBookieGroups": "gold, tin", "secondaryIsolationBookieGroups": ""}}'
    )
    assert isolation_of(value, settings) == (("gold", "tin"), ())
    assert isolation_of(None, settings) == (("x",), ())
    assert isolation_of(b"no JSON", settings) == (("x",), ())


def test_bounds_of_settings() -> None:
    with pytest.raises(SettingError, match="MinNumRacks"):
        PlacementSettings(racks_per_write_quorum_min=0)
