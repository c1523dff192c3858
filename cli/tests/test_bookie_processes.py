"""`magnetar bookie run --processes`: real processes over a real ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]

Start = Callable[..., Any]
SECONDS_MAX = 90.0
ROOMY = ("--set", "diskUsageThreshold=0.99", "--set", "prometheusStatsHttpPort=0", "--set", "controlPort=0")
"""The disk that tests run on may be fuller than a bookie likes, and its ports may be taken."""
SECRET = "nobody-should-see-this"


def bookie_arguments(metadata_url: str, folder: Path, name: str, processes: int = 1) -> tuple[object, ...]:
    return (
        *("bookie", "run", "-m", metadata_url, "--advertised-address", "127.0.0.1", "--bookie-id", name, "--port", 0),
        *("--journal", folder / "journal", "--ledgers", folder / "ledgers", "--processes", processes, *ROOMY),
        *("--set", f"controlToken={SECRET}"),
    )


def magnetar(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def metrics_of(group: Any) -> str:
    port = re.search(r"metrics at port (\d+)", group.output)
    assert port is not None, group.output
    with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def wait_for_metric(group: Any, line: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while f"{line}\n" not in metrics_of(group):
        assert time.monotonic() < deadline, (line, group.errors)
        time.sleep(0.2)


def wrote(metadata_url: str, copies: int) -> subprocess.CompletedProcess[str]:
    """A ledger over two bookies, so many copies of each entry, written and read back."""
    quorum = ("--write-quorum", copies, "--ack-quorum", copies)
    return magnetar("bookie", "simple-test", "-m", metadata_url, "-e", 2, *quorum, "--entries", 20, "--json")


def test_bookies_of_one_machine_hold_no_two_copies_and_one_that_is_killed_comes_back(
    start_service: Start, metadata_url: str, tmp_path: Path
) -> None:
    group = start_service(*bookie_arguments(metadata_url, tmp_path / "group", "here", 2)).wait_until_ready()
    other = start_service(*bookie_arguments(metadata_url, tmp_path / "other", "there")).wait_until_ready()
    assert group.output.startswith("bookie ready: here by 2 processes")
    listed = json.loads(magnetar("bookie", "list-bookies", "-m", metadata_url, "--no-usage", "--json").stdout)
    machines = {row["bookie_id"]: row["machine"] for row in listed}
    assert machines == {"here": "127.0.0.1", "here-2": "127.0.0.1", "there": ""}
    for _ in range(3):
        spread = json.loads(wrote(metadata_url, copies=2).stdout)["bookies"]
        assert "there" in spread, spread

    processes = children(group.process.pid)
    for pid in processes:
        assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert SECRET.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    assert len(re.findall(r'^bookie_SERVER_STATUS\{process="[12]"\} 1', metrics_of(group), re.MULTILINE)) == 2
    os.kill(processes[1], signal.SIGKILL)
    wait_for_metric(group, 'magnetar_process_restarts_total{process="2"} 1')
    wait_for_metric(group, 'magnetar_process_up{process="2"} 1')

    assert other.stop() == 0
    refused = wrote(metadata_url, copies=2)
    assert refused.returncode == 1
    assert "keep the copies of each entry on 2 machines" in refused.stderr
    assert sorted(json.loads(wrote(metadata_url, copies=1).stdout)["bookies"]) == ["here", "here-2"]

    left = children(group.process.pid)
    assert group.stop() == 0
    assert not any(map(alive, left))
    assert "Traceback" not in group.errors


def test_a_machine_drains_as_one(start_service: Start, metadata_url: str, tmp_path: Path) -> None:
    group = start_service(*bookie_arguments(metadata_url, tmp_path / "group", "here", 2)).wait_until_ready()
    port = re.search(r"control port (\d+)", group.output)
    assert port is not None
    start_service(*bookie_arguments(metadata_url, tmp_path / "other", "there")).wait_until_ready()
    drained = magnetar("bookie", "drain", f"127.0.0.1:{port[1]}", "--token", SECRET)
    assert drained.returncode == 0, f"{drained.stderr}\n{group.errors}"
    assert "here, here-2: DONE" in drained.stdout
    left = json.loads(magnetar("bookie", "list-bookies", "-m", metadata_url, "--no-usage", "--json").stdout)
    assert {row["bookie_id"]: row["mode"] for row in left}["there"] == "writable"
    assert magnetar("bookie", "cookie", "get", "here-2", "-m", metadata_url).returncode == 1
    assert group.stop() == 0


def test_fewer_bookies_are_refused_and_one_that_cannot_start_leaves_the_others(
    start_service: Start, metadata_url: str, tmp_path: Path
) -> None:
    # A bookie that ran alone stays what it is when others join it.
    assert start_service(*bookie_arguments(metadata_url, tmp_path, "here")).wait_until_ready().stop() == 0
    assert start_service(*bookie_arguments(metadata_url, tmp_path, "here", 2)).wait_until_ready().stop() == 0
    fewer = start_service(*bookie_arguments(metadata_url, tmp_path, "here"))
    assert fewer.wait() == 2
    assert "process-2 has the data of process 2, and only 1 would run" in fewer.errors

    (tmp_path / "ledgers/process-2/current/VERSION").write_text("4\nno cookie")
    group = start_service(*bookie_arguments(metadata_url, tmp_path, "here", 2)).wait_until_ready()
    assert "process 2 ended with 4 after" in group.errors
    assert 'magnetar_process_up{process="1"} 1' in metrics_of(group)
    assert 'magnetar_process_up{process="2"} 0' in metrics_of(group)
    assert group.stop() == 0

    (tmp_path / "ledgers/current/VERSION").write_text("4\nno cookie")
    assert start_service(*bookie_arguments(metadata_url, tmp_path, "here", 2)).wait() == 4
