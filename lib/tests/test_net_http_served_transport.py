"""Two may stop the reading of an HTTP connection: the server's protocol, and whoever gives it what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from magnetar.net.http.served_transport import ServedTransport


class Below(asyncio.Transport):
    """A loop's transport; resuming one that reads, or pausing one that does not, is an error as with uvloop."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peercert": "a certificate"}.get(name, default)


def test_reading_goes_on_when_nobody_stops_it() -> None:
    below, told = Below(), list[str]()
    transport = ServedTransport(below, lambda: told.append("goes on"), lambda: told.append("wrote"))
    seen = []
    steps: list[Callable[[], None]] = [
        transport.resume_reading,
        transport.pause_reading,
        transport.pause_reading,
        lambda: transport.wait(True),
        lambda: transport.wait(False),
        lambda: transport.wait(True),
        transport.resume_reading,
        lambda: transport.wait(False),
    ]
    for step in steps:
        step()
        seen.append((below.reads, len(told)))
    stopped = (False, 0)
    assert seen == [(True, 0), stopped, stopped, stopped, stopped, stopped, (False, 1), (True, 1)]
    below.closing = True
    transport.pause_reading()
    assert below.reads
    assert told == ["goes on"]
    assert transport.get_extra_info("peercert") == "a certificate"
