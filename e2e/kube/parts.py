"""Which tests every change runs; the rest take too long for that and are run by hand, and before a release."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent

_QUICK: Final = (
    "test_admission.py",
    "test_api_server.py",
    "test_helm_charts.py",
    "test_install.py",
    "test_status.py",
    "test_bookies.py::test_three_to_five_to_three_with_every_byte_read_back_and_the_operator_killed_at_each_step",
    "test_bookies.py::test_a_bookie_whose_pod_and_volumes_are_lost_is_made_whole",
    "test_brokers.py::test_one_to_three_to_one_under_load_without_a_failed_publish",
    "test_kube_read_only_brokers.py::test_consumers_get_all_that_is_published_and_keep_their_place",
    "test_upgrade.py::test_a_rolling_upgrade_under_load",
    "test_faults.py::test_zookeepers_pod_is_killed_under_load",
)

QUICK: Final = tuple(str(_HERE / test) for test in _QUICK)
"""As pytest takes them."""
