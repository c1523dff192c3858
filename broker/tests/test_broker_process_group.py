"""Several brokers on one machine: which settings each gets, and that they listen at one address together."""

from __future__ import annotations

import asyncio
import itertools
import socket
from pathlib import Path

import pytest
from magnetar.broker.admin.server import AdminServer
from magnetar.broker.process import broker_process_settings
from magnetar.broker.process_group import broker_group, group_plan
from magnetar.broker.service_ports import open_service_ports
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.names import known_names
from magnetar.broker.settings.shared_ports import SharedPortSettings
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.net.connection import Connection
from magnetar.net.free_ports import free_port
from magnetar.net.refused_connections import RefusedConnections
from magnetar.net.testing import TestAuthority
from magnetar.process.supervision.child import ProcessStart
from magnetar.process.supervision.supervisor import GroupPlan

PROCESS = ProcessStart(command=("magnetar", "broker", "run"), settings=("brokerClientTlsEnabled=false",))


def given(**settings: str) -> GivenSettings:
    found = GivenSettings(known_names())
    for name, value in {"clusterName": "here", "metadataStoreUrl": "memory:", **settings}.items():
        found.add(name, value, "test")
    return found


def plan(count: int, **settings: str) -> GroupPlan:
    free = itertools.count(20_000).__next__
    return group_plan(broker_process_settings(given(**settings)), count, PROCESS, 8081, free)


def told(plan: GroupPlan, number: int) -> dict[str, str]:
    start = plan.processes[number - 1].start
    assert start.command == PROCESS.command
    assert start.settings[:1] == PROCESS.settings
    return dict(each.split("=", 1) for each in start.settings[1:])


def test_each_process_has_ports_of_its_own_beside_those_that_all_share() -> None:
    found = plan(2, advertisedAddress="10.0.0.7")
    assert told(found, 2) == {
        "sharedBrokerServicePort": "6650",
        "brokerServicePort": "6850",
        "sharedWebServicePort": "8080",
        "webServicePort": "8280",
        "controlPort": "3383",
        "controlHost": "127.0.0.1",
        "controlTlsCertificateFile": "",
        "controlTlsKeyFile": "",
        "controlTlsClientAuthorityFile": "",
    }
    assert found.shared_ports == [6650, 8080]
    assert found.where == "pulsar://10.0.0.7:6650 http://10.0.0.7:8080"
    assert [each.control_port for each in found.processes] == [3283, 3383]
    assert [each.metrics_url for each in found.processes] == [
        "http://127.0.0.1:8180/metrics/",
        "http://127.0.0.1:8280/metrics/",
    ]


def test_the_ready_line_names_the_addresses_with_tls_too(tmp_path: Path) -> None:
    own = TestAuthority(tmp_path).own
    pair = {"tlsCertificateFilePath": str(own.certificate_file), "tlsKeyFilePath": str(own.key_file)}
    tls = {"brokerServicePortTls": "6651", "webServicePortTls": "8443", **pair}
    found = plan(2, advertisedAddress="10.0.0.7", **tls)
    assert found.where == (
        "pulsar://10.0.0.7:6650 http://10.0.0.7:8080 pulsar+ssl://10.0.0.7:6651 https://10.0.0.7:8443"
    )


def test_what_each_process_is_told_is_a_broker_that_advertises_its_own_ports() -> None:
    settings = broker_process_settings(given(**told(plan(2), 1)))
    assert (settings.broker.broker_service_port, settings.broker.web_service_port) == (6750, 8180)
    assert settings.broker.shared_ports == SharedPortSettings(service_port=6650, web_port=8080)
    assert settings.broker.service_url.endswith(":6750")
    assert settings.control is not None
    assert settings.control.tls is None


def test_ports_that_may_be_any_become_free_ones_that_no_two_have() -> None:
    found = plan(2, brokerServicePort="0", webServicePort="0", controlPort="0")
    ports = [
        told(found, number)[name]
        for number in (1, 2)
        for name in ("brokerServicePort", "webServicePort", "controlPort")
    ]
    assert len({*ports, *map(str, found.shared_ports)}) == 8


def test_without_a_control_port_nobody_is_told_of_one() -> None:
    found = plan(1, controlEnabled="false")
    assert found.control is None
    assert found.processes[0].control_port is None
    assert "controlPort" not in told(found, 1)


def test_a_port_beyond_the_last_one_is_refused() -> None:
    with pytest.raises(SettingError, match="process 2 would have port 65600"):
        plan(2, brokerServicePort="65400")


def test_addresses_that_all_would_advertise_are_refused() -> None:
    settings = given(advertisedListeners="a:pulsar://here:6650")
    with pytest.raises(SettingError, match="advertisedListeners is set"):
        broker_group(2, PROCESS, 8081).settings(settings)


class Closes:
    """Ends each connection, so that whoever connects learns that it was accepted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self) -> None:
        self._connection.close()

    def data_received(self, data: bytes) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


async def test_brokers_listen_at_one_port_together_and_each_at_its_own() -> None:
    shared = SharedPortSettings(service_port=free_port())
    opened = [
        await open_service_ports(BrokerSettings(broker_service_port=0, shared_ports=shared), Closes) for _ in range(2)
    ]
    own = {settings.broker_service_port for _, settings in opened}
    assert len(own) == 2
    for ports, _ in opened:
        await ports.serve(RefusedConnections())
    for port in (*own, shared.service_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
    await opened[0][0].close()
    # The other one goes on.
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.service_port)
    assert await reader.read() == b""
    writer.close()
    await opened[1][0].close()


async def test_a_shared_port_that_a_stranger_has_leaves_none_taken() -> None:
    own = free_port()
    with socket.create_server(("127.0.0.1", free_port())) as strange:
        taken = strange.getsockname()[1]
        settings = BrokerSettings(broker_service_port=own, shared_ports=SharedPortSettings(service_port=taken))
        with pytest.raises(OSError, match="in use"):
            await open_service_ports(settings, Closes)
        admin = AdminServer("127.0.0.1", own, shared=SharedPortSettings(web_port=taken))
        with pytest.raises(OSError, match="in use"):
            await admin.listen()
    socket.create_server(("127.0.0.1", own)).close()
