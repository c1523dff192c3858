"""Ports that one process is to listen at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from magnetar.core.settings_file import GivenSettings
from magnetar.process.supervision.ports import EVERY_ADDRESS


class NamedPort(NamedTuple):
    """The setting of a port, and where it is."""

    name: str
    host: str
    port: int | None
    """0: any free one; None: it is closed."""


def refuse_equal_ports(given: GivenSettings, ports: Sequence[NamedPort]) -> None:
    """A problem for each two that would meet. The system does not always refuse the second one: then the process would
    say that it is ready, and who connects would reach one of the two."""
    for one, other in combinations(ports, 2):
        if one.port and one.port == other.port and _meet(one.host, other.host):
            given.problem(f"{one.name} and {other.name} are both {one.port}: each needs a port of its own")


def _meet(one: str, other: str) -> bool:
    return one == other or one in EVERY_ADDRESS or other in EVERY_ADDRESS
