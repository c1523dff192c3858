"""Several processes under a supervisor: what it decides, and a small program that it keeps running."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from magnetar.core.errors import Misuse, SettingError
from magnetar.net.free_ports import PORTS, free_port
from magnetar.process.supervision import restarts
from magnetar.process.supervision.child import Child, ChildState, ProcessFailed, ProcessPlan, ProcessStart
from magnetar.process.supervision.end_with_supervisor import SUPERVISOR_VARIABLE, end_with_supervisor
from magnetar.process.supervision.joined_metrics import joined
from magnetar.process.supervision.ports import own_port
from magnetar.process.supervision.restarts import CALM_SECONDS, Restarts
from magnetar.process.supervision.supervisor import GroupPlan, Supervisor
from magnetar.process.supervision.told_settings import SETTINGS_VARIABLE, told_settings

SERVES = "import signal, sys; print('broker ready: here', flush=True); signal.sigwait([signal.SIGTERM])"


def plan(program: str, *settings: str) -> ProcessPlan:
    start = ProcessStart(command=(sys.executable, "-c", program), settings=settings)
    return ProcessPlan(number=1, start=start, control_port=None, metrics_url="")


def test_pauses_grow_with_each_end_and_begin_anew_after_a_calm_time() -> None:
    restarts = Restarts()
    assert [restarts.ended(1.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [restarts.ended(CALM_SECONDS), restarts.ended(0.0)] == [1, 2]
    assert restarts.count == 9


def test_ports_of_processes_are_a_hundred_apart_and_none_is_none() -> None:
    assert [own_port(6650, number, lambda: 7) for number in (1, 2)] == [6750, 6850]
    assert own_port(0, 1, lambda: 7) == 7
    with pytest.raises(SettingError, match="process 64 would have port 66400: set a port below 60000"):
        own_port(60_000, 64, lambda: 7)


def test_free_ports_are_given_once_and_no_outgoing_connection_can_take_them() -> None:
    found = {free_port() for _ in range(50)}
    assert len(found) == 50
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port in PORTS and port < first_outgoing for port in found)


def test_metrics_of_all_stand_together_with_one_type_and_the_process_as_a_label() -> None:
    text = '# HELP a Told.\n# TYPE a gauge\na{topic="t"} 1\n# TYPE b counter\nb 2\n'
    more = '# HELP a Told.\n# TYPE a gauge\na{topic="u"} 3\na{} 4\n'
    assert joined({"1": text, "2": more}) == (
        '# HELP a Told.\n# TYPE a gauge\na{process="1",topic="t"} 1\na{process="2",topic="u"} 3\na{process="2"} 4\n'
        '# TYPE b counter\nb{process="1"} 2\n'
    )


def test_samples_of_a_histogram_stay_with_it_and_those_without_a_type_have_their_own_place() -> None:
    text = '# TYPE h histogram\nh_bucket{le="1"} 2\nh_sum 3\nuntyped 4\n'
    assert joined({"1": text, "2": text}) == (
        '# TYPE h histogram\nh_bucket{process="1",le="1"} 2\nh_sum{process="1"} 3\nh_bucket{process="2",le="1"} 2\n'
        'h_sum{process="2"} 3\nuntyped{process="1"} 4\nuntyped{process="2"} 4\n'
    )


def test_a_label_with_a_brace_and_a_time_stay_as_they_are() -> None:
    assert joined({"1": 'a{b="}{ x"} 1 1700000000\n'}) == 'a{process="1",b="}{ x"} 1 1700000000\n'


@pytest.mark.parametrize("told", ["x", "-1", "1.5"])
def test_only_a_supervisor_tells_its_process_id(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(SUPERVISOR_VARIABLE, told)
    with pytest.raises(Misuse, match="it is set by a supervisor"):
        end_with_supervisor()


def test_without_a_supervisor_a_process_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SUPERVISOR_VARIABLE, raising=False)
    end_with_supervisor()


async def test_settings_reach_a_process_and_its_command_line_has_none(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = (
        "from magnetar.process.supervision.told_settings import told_settings; import os; "
        f"open({str(told)!r}, 'w').write(repr((told_settings(), told_settings(), "
        f"{SETTINGS_VARIABLE!r} in os.environ, b'hid' b'den' in open('/proc/self/cmdline', 'rb').read()))); {SERVES}"
    )
    child = Child(plan(program, "password=hidden = yes", "b=2"))
    child.start()
    await child.first_ready
    assert told.read_text() == repr((["password=hidden = yes", "b=2"], [], False, False))
    child.tell(signal.SIGTERM)
    await child.ended()


@pytest.mark.parametrize("told", ["{", "{}", "[1]"])
def test_only_a_supervisor_tells_settings(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(SETTINGS_VARIABLE, told)
    with pytest.raises(Misuse, match="it is set by a supervisor"):
        told_settings()


def test_further_settings_of_a_process_win() -> None:
    start = ProcessStart(command=("x",), settings=("a=1",)).with_settings({"a": "2", "b": "3"})
    assert start.settings == ("a=1", "a=2", "b=3")


async def test_a_process_that_ends_before_it_served_is_not_started_again() -> None:
    child = Child(plan("raise SystemExit(3)"))
    child.start()
    with pytest.raises(ProcessFailed, match="process 1 ended with 3 before it served") as failed:
        await child.first_ready
    assert failed.value.code == 3
    await child.ended()
    assert (child.state, child.restarts.count) == (ChildState.STOPPED, 0)


def group(*programs: str) -> Supervisor:
    processes = [replace(plan(program), number=number) for number, program in enumerate(programs, 1)]
    return Supervisor(
        GroupPlan(
            processes=processes,
            host="127.0.0.1",
            shared_ports=(),
            metrics_port=None,
            control=None,
            stop_seconds_max=60.0,
            where="here",
            all_must_start=False,
        )
    )


async def test_where_not_all_must_start_one_that_serves_is_enough_and_the_others_go_on_trying(tmp_path: Path) -> None:
    mark = tmp_path / "tried"
    second_time = f"import os; os.path.exists({str(mark)!r}) or (open({str(mark)!r}, 'w'), os._exit(4)); {SERVES}"
    supervisor = group(SERVES, second_time)
    await supervisor.start()
    assert supervisor.describe() == "here by 2 processes"
    while supervisor.children[1].state is not ChildState.SERVING:
        await asyncio.sleep(0.005)
    assert [child.restarts.count for child in supervisor.children] == [0, 1]
    await supervisor.close()
    assert {child.state for child in supervisor.children} == {ChildState.STOPPED}


async def test_where_none_can_start_nobody_goes_on() -> None:
    supervisor = group("raise SystemExit(4)", "raise SystemExit(3)")
    with pytest.raises(ProcessFailed, match="process 1 ended with 4"):
        await supervisor.start()
    assert {child.state for child in supervisor.children} == {ChildState.STOPPED}


async def test_a_process_that_is_killed_while_it_starts_failed() -> None:
    child = Child(plan("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    child.start()
    with pytest.raises(ProcessFailed) as failed:
        await child.first_ready
    assert failed.value.code == 1
    await child.ended()


async def test_a_process_that_is_told_to_stop_is_not_started_again() -> None:
    child = Child(plan(SERVES))
    child.start()
    await child.first_ready
    assert child.state is ChildState.SERVING
    child.tell(signal.SIGTERM)
    await child.ended()
    assert (child.state, child.restarts.count) == (ChildState.STOPPED, 0)


async def test_a_process_that_is_told_while_it_waits_to_start_again_stays_down(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    child = Child(plan(f"import os; open({str(told)!r}, 'w').write(str(os.getpid())); {SERVES}"))
    child.start()
    await child.first_ready
    os.kill(int(told.read_text()), signal.SIGKILL)
    while child.restarts.count == 0:
        await asyncio.sleep(0.005)
    assert child.state is ChildState.DOWN
    child.tell(signal.SIGTERM)
    await child.ended()
    assert (child.state, child.restarts.count) == (ChildState.STOPPED, 1)


async def test_a_program_that_cannot_be_started_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.01)
    program, away = tmp_path / "program", tmp_path / "away"
    program.write_text(f"#!{sys.executable}\nimport os; open('{tmp_path}/pid', 'w').write(str(os.getpid())); {SERVES}")
    program.chmod(0o700)
    child = Child(replace(plan(""), start=ProcessStart(command=(str(program),))))
    child.start()
    await child.first_ready
    program.rename(away)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    while child.restarts.count < 2:
        assert child.state is not ChildState.STOPPED
        await asyncio.sleep(0.005)
    away.rename(program)
    while child.state is not ChildState.SERVING:
        await asyncio.sleep(0.005)
    child.tell(signal.SIGTERM)
    await child.ended()


async def test_a_program_that_is_not_there_fails() -> None:
    child = Child(replace(plan(""), start=ProcessStart(command=("/nowhere/program",))))
    child.start()
    with pytest.raises(ProcessFailed):
        await child.first_ready
    await child.ended()
    assert child.state is ChildState.STOPPED


async def test_a_line_that_is_too_long_does_not_keep_a_process_from_being_heard() -> None:
    child = Child(plan(f"print('x' * 300_000, flush=True); {SERVES}"))
    child.start()
    await child.first_ready
    child.tell(signal.SIGTERM)
    await child.ended()
