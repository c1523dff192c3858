"""What is computed of several processes, and how they are limited."""

from pathlib import Path

import pytest

from bench.cores import efficiency
from bench.cpu_share import CpuShares, NoControlGroups


def test_efficiency_is_what_n_carry_to_n_times_what_one_carries() -> None:
    assert efficiency({1: 1000.0, 2: 1800.0, 4: 4000.0}) == {1: 1.0, 2: 0.9, 4: 1.0}


@pytest.mark.parametrize(
    ("second", "expected"),
    [(True, {"cpu.max": "4000 20000"}), (False, {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "4000"})],
)
def test_a_process_gets_a_group_with_its_share(tmp_path: Path, second: bool, expected: dict[str, str]) -> None:
    (tmp_path / "cpu").mkdir()
    if second:
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
    CpuShares(0.2, tmp_path).limit(77)
    (group,) = (tmp_path if second else tmp_path / "cpu").glob("magnetar-bench-*")
    assert {file.name: file.read_text() for file in group.iterdir()} == {**expected, "cgroup.procs": "77"}


def test_a_machine_without_control_groups_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoControlGroups, match=r"limited to 0.2 of a core"):
        CpuShares(0.2, tmp_path / "nowhere").limit(77)
