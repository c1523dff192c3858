"""Starting, stopping and not being able to, as a shell sees it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from magnetar.bookie.cookie import InvalidCookie
from magnetar.bookie.loss import WHAT_TO_DO
from magnetar.bookie.process.bookie import bookie_hint
from magnetar.core.errors import MagnetarError
from magnetar.process.console import show_error
from magnetar.standalone.data_folder import LOCK_FILE
from magnetar.standalone.run import explain_error, explain_os_error, process_age_seconds
from magnetar.standalone.settings import StandaloneSettings

pytestmark = pytest.mark.slow

SETTINGS = StandaloneSettings(data_directory=Path("/data"), broker_service_port=6650, web_service_port=8080)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_it_is_told_to_stop(start_standalone: Any, number: signal.Signals) -> None:
    standalone = start_standalone().wait_until_ready()
    with urllib.request.urlopen(f"{standalone.admin_url}/admin/v2/clusters") as answer:
        assert answer.read() == b'["standalone"]'
    # On a slow machine a turn of the event loop may be long, and that is told.
    told = [line for line in standalone.output.splitlines() if "turn_watch" not in line]
    assert told == [], "what is ready is told on standard output"
    assert standalone.stop(number) == 0
    assert "Stopped. Everything is on disk." in standalone.output
    assert "Stopped" not in standalone.ready_lines
    assert "\x1b" not in standalone.ready_lines
    assert "Traceback" not in standalone.output
    assert "\x1b" not in standalone.output


@pytest.mark.parametrize("redirection", [">&-", "| true"])
def test_serves_without_anybody_who_reads(tmp_path: Path, redirection: str) -> None:
    command = f"{sys.executable} -m magnetar.cli standalone --data {tmp_path / 'data'} -l info"
    command += " --port 0 --http-port 0"
    # The process is waited for, whatever the pipe's reader does; the reader is gone before anything is written.
    script = f"{{ sleep 0.2; {command} & echo $! > {tmp_path}/pid; wait $!; echo $? > {tmp_path}/code; }} {redirection}"
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        shell = subprocess.Popen(["bash", "-c", script], stderr=file)
    deadline = time.monotonic() + 60
    while " serves pulsar://" not in errors.read_text():
        assert time.monotonic() < deadline, errors.read_text()
        time.sleep(0.01)
    process_id = int((tmp_path / "pid").read_text())
    while "|" in redirection and os.readlink(f"/proc/{process_id}/fd/1") != os.devnull:
        assert time.monotonic() < deadline, "it has not noticed that nobody reads"
        time.sleep(0.01)
    os.kill(process_id, signal.SIGTERM)
    assert shell.wait(60) == 0
    assert (tmp_path / "code").read_text() == "0\n", errors.read_text()
    assert "Traceback" not in errors.read_text()


@pytest.mark.parametrize("seconds", [0, 0.03])
def test_a_signal_while_it_starts_leaves_no_traceback(start_standalone: Any, seconds: float) -> None:
    standalone = start_standalone()
    while not (standalone.data / LOCK_FILE).exists():
        time.sleep(0.001)
    time.sleep(seconds)
    assert standalone.stop(signal.SIGINT) in (0, -signal.SIGINT)
    assert "Traceback" not in standalone.output


def test_a_second_signal_ends_it_at_once() -> None:
    script = """
import asyncio, pathlib
from magnetar.standalone import run
from magnetar.standalone.settings import StandaloneSettings

class NeverCloses:
    service_url = admin_url = "none"
    async def close(self):
        await asyncio.sleep(3600)

async def start_cluster(settings):
    return NeverCloses()

run.start_cluster = start_cluster
run.run_standalone(StandaloneSettings(data_directory=pathlib.Path(".")), fresh=False, log_level="info")
"""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/tmp", text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "Ctrl-C stops it" in line:
            process.send_signal(signal.SIGINT)
        if "Stopping" in line:
            process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    process.stdout.close()


def test_a_folder_has_one_cluster_at_a_time(start_standalone: Any) -> None:
    first = start_standalone().wait_until_ready()
    for arguments in ((), ("--fresh", "--port", "0", "--http-port", "0")):
        second = start_standalone(*arguments)
        assert second.wait() == 1
        assert f"in use by another Magnetar, process {first.process.pid}" in second.output
        assert "--data" in second.output
    assert first.stop() == 0


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_taken_port_is_named(start_standalone: Any, option: str) -> None:
    other = "--http-port" if option == "--port" else "--port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        standalone = start_standalone(option, str(port), other, "0")
        assert standalone.wait() == 1
    assert f"Port {port} of 127.0.0.1 is taken." in standalone.output
    assert "Traceback" not in standalone.output


def test_an_address_of_another_machine(start_standalone: Any) -> None:
    standalone = start_standalone("--address", "192.0.2.1")
    assert standalone.wait() == 1
    assert "192.0.2.1 is not an address of this machine." in standalone.output


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "[::1]"])
def test_an_address_that_is_none(start_standalone: Any, host: str) -> None:
    standalone = start_standalone("--address", host)
    assert standalone.wait() == 1
    assert f"{host} is no address, nor a host that is known here." in standalone.output
    assert "--address" in standalone.output
    assert "Traceback" not in standalone.output


def test_an_empty_address(start_standalone: Any) -> None:
    """Clients would be told `pulsar://:6650`."""
    standalone = start_standalone("--address", "")
    assert standalone.wait() == 2
    assert "an address or the name of a host is wanted" in standalone.output


def test_an_empty_name_of_the_folder(start_standalone: Any) -> None:
    """It would be the current folder."""
    standalone = start_standalone("--data", "")
    assert standalone.wait() == 2
    assert "the name of a folder is wanted" in standalone.output


def test_a_file_in_the_place_of_the_folder(start_standalone: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        standalone = start_standalone(data=data)
        assert standalone.wait() == 1
        assert f"{data} is not a folder." in standalone.output


def test_a_folder_that_cannot_be_made(start_standalone: Any) -> None:
    standalone = start_standalone(data=Path("/proc/nosuch"))
    assert standalone.wait() == 1
    assert "The folder /proc/nosuch cannot be made." in standalone.output
    assert "Choose another one with --data." in standalone.output


def test_fresh_refuses_a_folder_of_somebody_else(start_standalone: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    standalone = start_standalone("--fresh", data=tmp_path)
    assert standalone.wait() == 1
    assert "thesis.tex" in standalone.output
    assert (tmp_path / "thesis.tex").exists()


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
os.execv(sys.executable, [sys.executable, "-m", "magnetar.cli", *sys.argv[1:]])
"""


@pytest.mark.parametrize("bytes_max", [0, 1 << 20])
def test_a_disk_that_takes_no_more(tmp_path: Path, bytes_max: int) -> None:
    finished = subprocess.run(
        # Not by a `preexec_fn`: what runs between fork and exec in a process with threads may abort.
        [sys.executable, "-c", LIMITED.format(bytes_max), "standalone", "--data", tmp_path / "data", "--port", "0"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert finished.returncode == 1
    assert "full" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "Not allowed"),
        (errno.EROFS, "Not allowed"),
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "disk is full"),
        (errno.EADDRINUSE, "Port 6650 or 8080 of 127.0.0.1 is taken"),
        (errno.EIO, "Input/output"),
    ],
)
def test_errors_of_the_system_in_words(number: int, said: str) -> None:
    message, hint = explain_os_error(OSError(number, os.strerror(number)), SETTINGS)
    assert said in message
    assert hint


def test_errors_of_ours_in_words() -> None:
    assert "disk is full" in explain_error(MagnetarError("IO error: No space left on device: x"), SETTINGS)[0]
    assert "/data" in explain_error(MagnetarError("a damaged cookie"), SETTINGS)[1]


def test_damage_is_told_with_what_helps_a_standalone_cluster() -> None:
    damage = MagnetarError(f"x.txn is missing. {WHAT_TO_DO}")
    message, hint = explain_error(damage, SETTINGS)
    assert message == "x.txn is missing."
    assert "Put a copy back" in hint
    assert "--accept-loss" in hint
    assert "dataIntegrityChecking" not in message + hint
    accepting = replace(SETTINGS, accept_loss=True)
    assert "no effect on cookies" in explain_error(InvalidCookie("no cookie"), accepting)[1]
    assert "--accept-loss" not in explain_error(InvalidCookie("no cookie"), SETTINGS)[1]


def test_a_bookies_damage_has_no_hint_that_does_not_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert bookie_hint(MagnetarError(f"x.txn is missing. {WHAT_TO_DO}"), accept_loss=False) == ""
    assert bookie_hint(InvalidCookie("no cookie"), accept_loss=False) == ""
    assert "no effect on cookies" in bookie_hint(InvalidCookie("no cookie"), accept_loss=True)
    assert "--log-level debug" in bookie_hint(MagnetarError("something else"), accept_loss=True)
    show_error("damaged", bookie_hint(InvalidCookie("no cookie"), accept_loss=False))
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_the_age_of_a_process() -> None:
    assert 0 < process_age_seconds() < 24 * 3600


def test_two_ports_that_are_the_same_are_refused_before_anything_is_emptied(tmp_path: Path) -> None:
    kept = tmp_path / "data" / "bookie" / "kept"
    kept.parent.mkdir(parents=True)
    kept.touch()
    command = [sys.executable, "-m", "magnetar.cli", "standalone", "--data", str(tmp_path / "data"), "--fresh"]
    refused = subprocess.run([*command, "--port", "8080"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--port and --http-port are both 8080: each needs a port of its own" in refused.stderr
    assert kept.exists()


def test_who_listens_everywhere_gives_clients_what_they_can_use(start_standalone: Any) -> None:
    ports = ("--port", "0", "--http-port", "0")
    standalone = start_standalone("--address", "0.0.0.0", *ports).wait_until_ready()
    assert standalone.service_url.startswith("pulsar://127.0.0.1:")
    standalone.stop()
    named = start_standalone("--address", "0.0.0.0", "--set", "advertisedAddress=here.example", *ports)
    assert named.wait_until_ready().service_url.startswith("pulsar://here.example:")


def test_settings_are_checked_and_all_that_is_wrong_is_told(tmp_path: Path) -> None:
    conf = tmp_path / "standalone.conf"
    conf.write_text("maxTenants=5\nclientLibraryVersionCheckAllowUnversioned=true\n")
    command = [sys.executable, "-m", "magnetar.cli", "standalone", "--check", "--conf", str(conf)]
    valid = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (valid.returncode, valid.stdout) == (0, "standalone: the settings are valid\n")
    assert "clientLibraryVersionCheckAllowUnversioned is passed over" in valid.stderr
    assert list(tmp_path.iterdir()) == [conf], "nothing was started"
    wrong = ["--set", "managedLedgerCacheSizeMB=-1", "--set", "maxTenant=1", "--set", "=1", "--http-port", "6650"]
    refused = subprocess.run([*command, *wrong], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "managedLedgerCacheSizeMB is '-1', and not a number from 0 to 2147483647 of MIB" in refused.stderr
    assert "there is no setting 'maxTenant'; did you mean 'maxTenants'?" in refused.stderr
    assert "--set =1: it must be NAME=VALUE" in refused.stderr
    assert "brokerServicePort and webServicePort are both 6650" in refused.stderr
    assert "Correct these 4 settings" in refused.stderr
