"""What one of several processes may have of their container's memory."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from magnetar.core.errors import Misuse
from magnetar.core.limits import MIB
from magnetar.process import serving
from magnetar.process.supervision import group_size
from magnetar.process.supervision.child import Child, ProcessPlan, ProcessStart
from magnetar.process.supervision.group_size import GROUP_SIZE_VARIABLE, memory_share_bytes
from magnetar.process.supervision.supervisor import GroupPlan, Supervisor


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the container."""
    monkeypatch.setattr(group_size, "container_limit_bytes", lambda: 1024 * MIB)
    monkeypatch.delenv(GROUP_SIZE_VARIABLE, raising=False)


@pytest.mark.usefixtures("limit")
def test_a_process_alone_may_have_all_and_one_of_four_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_share_bytes() == 1024 * MIB
    monkeypatch.setenv(GROUP_SIZE_VARIABLE, "4")
    assert memory_share_bytes() == 256 * MIB
    monkeypatch.setattr(group_size, "container_limit_bytes", lambda: 0)
    assert memory_share_bytes() == 0, "there is no limit"


@pytest.mark.parametrize("told", ["", "x", "0", "-1"])
def test_only_a_supervisor_tells_how_many_there_are(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(GROUP_SIZE_VARIABLE, told)
    with pytest.raises(Misuse, match="it is set by a supervisor"):
        memory_share_bytes()


async def test_a_supervisor_tells_its_processes(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = (
        f"import os, time; open({str(told)!r}, 'w').write(os.environ[{GROUP_SIZE_VARIABLE!r}]); "
        "print('broker ready: here', flush=True); time.sleep(60)"
    )
    start = ProcessStart(command=(sys.executable, "-c", program))
    plans = [ProcessPlan(number=number, start=start, control_port=None, metrics_url="") for number in (1, 2, 3)]
    group = GroupPlan(
        processes=plans,
        host="127.0.0.1",
        shared_ports=(),
        metrics_port=None,
        control=None,
        stop_seconds_max=30.0,
        where="",
    )
    child: Child = Supervisor(group).children[0]
    child.start()
    async with asyncio.timeout(60):
        while not told.exists() or not told.read_text():
            await asyncio.sleep(0.01)
    child.tell(signal.SIGTERM)
    await child.ended()
    assert told.read_text() == "3"


@pytest.mark.usefixtures("limit")
def test_a_process_that_serves_heeds_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Seen(Exception):
        """The collection was begun."""

    def collection(_loop: asyncio.AbstractEventLoop, **given: Any) -> None:
        made.append(given)
        raise Seen

    class Served:
        async def close(self) -> None:
            """Nothing is held."""

    async def start() -> Served:
        return Served()

    monkeypatch.setattr(serving, "CycleCollection", collection)
    monkeypatch.setenv(GROUP_SIZE_VARIABLE, "2")
    with pytest.raises(Seen):
        asyncio.run(serving.serve_until_told(start, lambda _served: None, lambda: None))
    assert made == [{"limit_bytes": 512 * MIB}]
