"""Several bookies on one machine, one for each core, under a supervisor that has no part in what they store.

The first is the bookie that the settings describe, which may have run alone before. The others differ from it in their
ids, ports and directories. All tell one machine, so that copies of one entry are never on two of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from magnetar.bookie.node import BookieHttpSettings
from magnetar.bookie.process.bookie import BookieProcessSettings, bookie_process_settings
from magnetar.bookie.process.own_directories import own_directory, refuse_fewer
from magnetar.bookie.setting_names import ignored_names, known_names, missing_features
from magnetar.bookie.settings import BookieSettings
from magnetar.core.settings_file import GivenSettings
from magnetar.net.free_ports import free_port
from magnetar.process.control_settings import ANY_HOST
from magnetar.process.group_service import group_service
from magnetar.process.service import Service
from magnetar.process.serving import STOP_SECONDS_MAX
from magnetar.process.supervision.child import ProcessPlan, ProcessStart
from magnetar.process.supervision.ports import own_control, own_port, reached
from magnetar.process.supervision.supervisor import GroupPlan, Supervisor

if TYPE_CHECKING:
    from magnetar.control.client import ControlChannel
    from magnetar.control.server import ControlService


def bookie_group(count: int, process: ProcessStart) -> Service[GroupPlan, Supervisor]:
    """The service that runs so many bookies, each started like this and with further settings."""

    def plan(given: GivenSettings) -> GroupPlan:
        settings = bookie_process_settings(given)
        refuse_fewer(settings.node, count)
        return bookie_group_plan(settings, count, process, free_port)

    return group_service("bookie", known_names, ignored_names, missing_features, plan)


def bookie_group_plan(
    settings: BookieProcessSettings, count: int, process: ProcessStart, free: Callable[[], int]
) -> GroupPlan:
    """What the supervisor starts. `free` gives a free port, for each that is 0. `SettingError`."""
    node, bookie = settings.node, settings.bookie
    http = node.http
    processes = []
    for number in range(1, count + 1):
        changed = own_bookie(bookie, number, free)
        control_port, told = own_control(None if node.control is None else node.control.port, number, free)
        metrics_url = ""
        if http is not None:
            http_port = own_port(http.port, number, free)
            changed |= {http_port_name(http): str(http_port)}
            metrics_url = f"http://{reached(http.host)}:{http_port}/metrics"
        processes.append(
            ProcessPlan(
                number=number,
                start=process.with_settings(changed | told),
                control_port=control_port,
                metrics_url=metrics_url,
            )
        )
    return GroupPlan(
        processes=processes,
        host=ANY_HOST if http is None else http.host,
        shared_ports=(),
        metrics_port=None if http is None else http.port,
        control=node.control,
        stop_seconds_max=STOP_SECONDS_MAX,
        where=bookie.registered_id,
        services=_services,
        all_must_start=False,
    )


def _services(channels: Sequence[ControlChannel], stopping: asyncio.Event) -> Sequence[ControlService]:
    from magnetar.bookie.process.group_drain import drain_services  # Loads gRPC, 30 MB.

    return drain_services(channels, stopping)


def http_port_name(http: BookieHttpSettings) -> str:
    """The setting that the port of HTTP comes from."""
    return "prometheusStatsHttpPort" if http.metrics_only else "httpServerPort"


def own_bookie(bookie: BookieSettings, number: int, free: Callable[[], int]) -> dict[str, str]:
    """The settings of the storage in which one process differs, by their names; process 1 in its machine alone."""
    found = {"magnetarMachine": bookie.machine or bookie.advertised_host}
    if number == 1:
        return found
    found["bookiePort"] = str(own_port(bookie.port, number - 1, free))
    if bookie.bookie_id:
        found["bookieId"] = f"{bookie.bookie_id}-{number}"
    for name, directories in (
        ("journalDirectories", bookie.journal_directories),
        ("ledgerDirectories", bookie.ledger_directories),
        ("indexDirectories", bookie.index_directories),
    ):
        if directories:
            found[name] = ",".join(str(own_directory(directory, number)) for directory in directories)
    return found
