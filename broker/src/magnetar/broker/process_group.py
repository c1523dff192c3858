"""Several brokers on one machine, one for each core, which clients find at one address.

Each is a broker of its own: bundles balance over them as over any brokers. A supervisor, which has no part in what they
do for clients, keeps them running. Own ports are those that are set and 100 more for each process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from magnetar.broker.process import BrokerProcessSettings, broker_process_settings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.names import ignored_names, known_names, missing_features
from magnetar.core.settings_file import GivenSettings
from magnetar.net.free_ports import free_port
from magnetar.process.group_service import group_service
from magnetar.process.service import Service
from magnetar.process.supervision.child import ProcessPlan, ProcessStart
from magnetar.process.supervision.ports import own_control, own_port, reached
from magnetar.process.supervision.supervisor import GroupPlan, Supervisor

NO_LISTENERS: Final = (
    "advertisedListeners is set: its addresses would be those of all processes; with --processes each tells its own "
    "ports at advertisedAddress"
)


def broker_group(count: int, process: ProcessStart, metrics_port: int) -> Service[GroupPlan, Supervisor]:
    """The service that runs so many brokers, each started like this and with further settings."""

    def plan(given: GivenSettings) -> GroupPlan:
        broker = broker_process_settings(given)
        if broker.broker.advertised_listeners:
            given.problem(NO_LISTENERS)
        return group_plan(broker, count, process, metrics_port, free_port)

    return group_service("broker", known_names, ignored_names, missing_features, plan)


def group_plan(
    settings: BrokerProcessSettings, count: int, process: ProcessStart, metrics_port: int, free: Callable[[], int]
) -> GroupPlan:
    """What the supervisor starts. `free` gives a free port, for each that is 0. `SettingError`."""
    shared = _with_ports(settings.broker, free)
    control_port = None if settings.control is None else settings.control.port
    processes = []
    for number in range(1, count + 1):
        changed = _own_settings(shared, settings.broker, number, free)
        own_control_port, told = own_control(control_port, number, free)
        processes.append(
            ProcessPlan(
                number=number,
                start=process.with_settings(changed | told),
                control_port=own_control_port,
                metrics_url=f"http://{reached(shared.bind_address)}:{changed['webServicePort']}/metrics/",
            )
        )
    ports = (
        shared.broker_service_port,
        shared.web_service_port,
        shared.broker_service_port_tls,
        shared.web_service_port_tls,
    )
    return GroupPlan(
        processes=processes,
        host=shared.bind_address,
        shared_ports=[port for port in ports if port is not None],
        metrics_port=metrics_port,
        control=settings.control,
        stop_seconds_max=settings.stop_seconds_max,
        where=shared.served_urls,
    )


def _with_ports(broker: BrokerSettings, free: Callable[[], int]) -> BrokerSettings:
    """The ports that all share; one that is 0 becomes a free one."""
    tls, web_tls = broker.broker_service_port_tls, broker.web_service_port_tls
    return replace(
        broker,
        broker_service_port=broker.broker_service_port or free(),
        web_service_port=broker.web_service_port or free(),
        broker_service_port_tls=None if tls is None else tls or free(),
        web_service_port_tls=None if web_tls is None else web_tls or free(),
    )


def _own_settings(
    shared: BrokerSettings, given: BrokerSettings, number: int, free: Callable[[], int]
) -> dict[str, str]:
    """The settings in which one process differs, by their names."""
    found: dict[str, str] = {}
    for name, port, set_port in (
        ("BrokerServicePort", shared.broker_service_port, given.broker_service_port),
        ("WebServicePort", shared.web_service_port, given.web_service_port),
        ("BrokerServicePortTls", shared.broker_service_port_tls, given.broker_service_port_tls),
        ("WebServicePortTls", shared.web_service_port_tls, given.web_service_port_tls),
    ):
        if port is not None and set_port is not None:
            found[f"shared{name}"] = str(port)
            found[name[0].lower() + name[1:]] = str(own_port(set_port, number, free))
    return found
