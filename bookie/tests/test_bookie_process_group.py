"""Several bookies on one machine: which settings each gets, and that none is forgotten."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from magnetar.bookie.process.bookie import bookie_process_settings, bookie_service
from magnetar.bookie.process.group import bookie_group, bookie_group_plan
from magnetar.bookie.setting_names import known_names
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.process.supervision.child import ProcessStart
from magnetar.process.supervision.supervisor import GroupPlan

PROCESS = ProcessStart(command=("magnetar", "bookie", "run"), settings=("gcWaitTime=60000",))


def given(*told: str, **settings: str) -> GivenSettings:
    found = GivenSettings(known_names())
    for name, value in {"advertisedAddress": "10.0.0.5", **settings}.items():
        found.add(name, value, "test")
    for each in told:
        name, _, value = each.partition("=")
        found.add(name, value, "test")
    return found


def plan(count: int, **settings: str) -> GroupPlan:
    free = itertools.count(20_000).__next__
    return bookie_group_plan(bookie_process_settings(given(**settings)), count, PROCESS, free)


def told(plan: GroupPlan, number: int) -> dict[str, str]:
    start = plan.processes[number - 1].start
    assert start.command == PROCESS.command
    assert start.settings[:1] == PROCESS.settings
    return dict(each.split("=", 1) for each in start.settings[1:])


CONTROL = {
    "controlHost": "127.0.0.1",
    "controlTlsCertificateFile": "",
    "controlTlsKeyFile": "",
    "controlTlsClientAuthorityFile": "",
}


def test_the_first_process_is_the_bookie_that_is_set_and_the_others_differ_from_it() -> None:
    found = plan(2, journalDirectories="/j", ledgerDirectories="/a,/b", indexDirectories="/i,/k")
    assert told(found, 1) == {
        "magnetarMachine": "10.0.0.5",
        "controlPort": "3282",
        "prometheusStatsHttpPort": "8100",
        **CONTROL,
    }
    assert told(found, 2) == {
        "magnetarMachine": "10.0.0.5",
        "bookiePort": "3281",
        "journalDirectories": "/j/process-2",
        "ledgerDirectories": "/a/process-2,/b/process-2",
        "indexDirectories": "/i/process-2,/k/process-2",
        "controlPort": "3382",
        "prometheusStatsHttpPort": "8200",
        **CONTROL,
    }
    assert [each.metrics_url for each in found.processes] == [
        "http://127.0.0.1:8100/metrics",
        "http://127.0.0.1:8200/metrics",
    ]
    assert (found.metrics_port, found.shared_ports, found.where) == (8000, (), "10.0.0.5:3181")
    assert not found.all_must_start


def test_each_process_is_a_bookie_of_its_own_on_one_machine() -> None:
    found = plan(3, bookieId="here", journalDirectories="/j", ledgerDirectories="/l")
    bookies = [
        bookie_process_settings(given(*found.processes[number].start.settings, bookieId="here")).bookie
        for number in range(3)
    ]
    assert [each.registered_id for each in bookies] == ["here", "here-2", "here-3"]
    assert {each.machine for each in bookies} == {"10.0.0.5"}
    assert [each.port for each in bookies] == [3181, 3281, 3381]
    directories = [
        directory for each in bookies[1:] for directory in each.ledger_directories + each.journal_directories
    ]
    assert len(set(directories)) == 4


def test_a_machine_that_is_set_is_kept_and_growing_changes_nobody_who_is_there() -> None:
    assert told(plan(2, magnetarMachine="rack-7/left"), 2)["magnetarMachine"] == "rack-7/left"
    assert [told(plan(4), number) for number in (1, 2)] == [told(plan(2), number) for number in (1, 2)]


def test_ports_that_may_be_any_are_free_ones_and_what_is_off_has_none() -> None:
    found = plan(2, bookieId="x", bookiePort="0", httpServerEnabled="true", httpServerPort="0", controlPort="0")
    ports = [told(found, 2)[name] for name in ("bookiePort", "httpServerPort", "controlPort")]
    assert ports == ["20002", "20004", "20003"]
    off = plan(2, prometheusStatsHttpEnable="false", controlEnabled="false")
    assert (off.metrics_port, off.control) == (None, None)
    assert {each.metrics_url for each in off.processes} == {""}
    assert "controlPort" not in told(off, 2)


def test_fewer_processes_than_have_data_are_refused(tmp_path: Path) -> None:
    directories = {"journalDirectories": f"{tmp_path}/j", "ledgerDirectories": f"{tmp_path}/l"}
    for path in ("l/current/VERSION", "l/process-2/current/VERSION", "l/process-x/current/VERSION", "j/process-4/old"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    (tmp_path / "l/process-3/current").mkdir(parents=True)
    for service in (bookie_service(), bookie_group(1, PROCESS)):
        with pytest.raises(
            SettingError, match="/l/process-2 has the data of process 2, and only 1 would run"
        ) as refused:
            service.settings(given(**directories))
        assert "--processes 2, drain it by `magnetar bookie drain 127.0.0.1:3382`, stop, and remove" in str(
            refused.value
        )
    # Process 3 never stored anything; a process of a supervisor, and one whose loss is accepted, do not ask.
    bookie_group(2, PROCESS).settings(given(**directories))
    bookie_service(alone=False).settings(given(**directories))
