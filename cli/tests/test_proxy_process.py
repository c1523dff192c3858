"""What a proxy.conf says, and `magnetar proxy run` as a process."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from magnetar.auth.settings import TOKEN_PROVIDER
from magnetar.auth.testing import SECRET
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.net.free_ports import free_port
from magnetar.net.testing import TestAuthority
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.process import ProxyProcessSettings, proxy_process_settings
from magnetar.proxy.setting_names import SETTINGS, known_names

TOKENS = {
    "authenticationEnabled": "true",
    "authenticationProviders": TOKEN_PROVIDER,
    "tokenSecretKey": f"data:;base64,{SECRET}",
}


def settings_of(**given: str) -> ProxyProcessSettings:
    settings = GivenSettings(known_names())
    for name, value in {"brokerServiceURL": "pulsar://b:1", **given}.items():
        settings.add(name, value, "test")
    return proxy_process_settings(settings)


def test_every_setting_with_an_effect_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "COMPATIBILITY.md").read_text()
    listed = page.partition("`magnetar proxy run` reads a `proxy.conf`. With an effect: ")[2].partition(" Refused:")[0]
    assert {name for name in SETTINGS.with_effect if not name.startswith("control")} == set(
        re.findall(r"`(\w+)`", listed)
    )
    ours = set(re.findall(r"`(\w+)`", listed.partition("ours alone are")[2]))
    assert {row.name for row in SETTINGS.rows if row.ours} == ours


def test_what_holds_when_nothing_is_said() -> None:
    plain = settings_of()
    proxy = plain.proxy
    ports = (proxy.service_port, proxy.service_port_tls, proxy.web_service_port, proxy.web_service_port_tls)
    assert ports == (6650, None, 8080, None)
    assert plain.metadata is None
    assert plain.control is not None
    assert plain.control.port == 3184
    assert proxy.targets.ports == ("6650", "6651")
    assert plain.stop_seconds_max > proxy.drain_seconds


def test_ports_tls_and_limits_by_pulsars_names() -> None:
    read = settings_of(
        servicePort="",
        servicePortTls="6651",
        webServicePort="",
        tlsCertificateFilePath="/c.pem",
        tlsKeyFilePath="/k.pem",
        tlsTrustCertsFilePath="/ca.pem",
        tlsRequireTrustedClientCertOnConnect="true",
        tlsCertRefreshCheckDurationSec="60",
        tlsProtocols="TLSv1.3",
        tlsEnabledWithBroker="true",
        brokerClientTrustCertsFilePath="/brokers.pem",
        tlsHostnameVerificationEnabled="true",
        brokerProxyAllowedHostNames="*.example, b",
        brokerProxyReadTimeoutMs="1000",
        haProxyProtocolEnabled="true",
        metadataStoreUrl="zk:a:2181,b:2181/chroot",
        controlEnabled="false",
        drainTimeoutSeconds="90",
    )
    proxy = read.proxy
    assert (proxy.service_port, proxy.service_port_tls, proxy.web_service_port) == (None, 6651, None)
    assert (proxy.tls.certificate_file, proxy.tls.require_client_certificate) == (Path("/c.pem"), True)
    assert (proxy.tls.refresh_seconds, proxy.tls.protocols) == (60, ("TLSv1.3",))
    client = proxy.broker_client
    assert (client.tls_enabled, client.tls.trust_certificates_file) == (True, Path("/brokers.pem"))
    assert (client.tls.verify_host_name, client.tls.certificate_file, client.read_timeout_ms) == (True, None, 1000)
    assert proxy.targets.host_names == ("*.example", "b")
    assert proxy.proxy_protocol
    assert read.metadata is not None
    assert read.metadata.url == "zk:a:2181,b:2181/chroot"
    assert (read.control, read.stop_seconds_max) == (None, 100)


def test_the_ready_line_names_each_address_that_is_served(tmp_path: Path) -> None:
    own = TestAuthority(tmp_path).own
    pair = {"tlsCertificateFilePath": str(own.certificate_file), "tlsKeyFilePath": str(own.key_file)}
    with_tls = {"servicePortTls": "6651", "webServicePortTls": "8443", **pair}
    plain: dict[str, str] = {}
    for given, expected in (
        (plain, "pulsar://10.0.0.7:6650 http://10.0.0.7:8080"),
        (with_tls, "pulsar://10.0.0.7:6650 http://10.0.0.7:8080 pulsar+ssl://10.0.0.7:6651 https://10.0.0.7:8443"),
        ({**with_tls, "servicePort": "", "webServicePort": ""}, "pulsar+ssl://10.0.0.7:6651 https://10.0.0.7:8443"),
    ):
        settings = settings_of(advertisedAddress="10.0.0.7", **given).proxy
        assert RunningProxy(settings, SystemClock(), None).served_urls == expected


def test_who_may_connect_by_pulsars_names() -> None:
    read = settings_of(
        **TOKENS,
        anonymousUserRole="anybody",
        authorizationEnabled="true",
        superUserRoles="admin, root",
        authenticateMetricsEndpoint="false",
        forwardAuthorizationCredentials="true",
        brokerClientAuthenticationPlugin="org.apache.pulsar.client.impl.auth.AuthenticationBasic",
        brokerClientAuthenticationParameters='{"userId":"proxy","password":"x"}',
        brokerProxyAllowedTargetPorts="6650-6659, 7000",
    ).proxy
    authentication = read.access.authentication
    assert (authentication.enabled, authentication.providers) == (True, (TOKEN_PROVIDER,))
    assert (authentication.anonymous_role, authentication.refresh_check_seconds) == ("anybody", 60)
    assert (read.access.super_user_roles, read.access.metrics_authenticated) == (("admin", "root"), False)
    assert read.broker_client.forward_credentials
    assert read.targets.ports == ("6650-6659", "7000")
    assert settings_of().proxy.access.metrics_authenticated


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"authenticationEnabled": "true"}, "authenticationEnabled needs authenticationProviders"),
        ({"authorizationEnabled": "true"}, "authorizationEnabled needs authenticationEnabled"),
        ({"authenticationProviders": "com.example.Mine"}, "com.example.Mine"),
        ({**TOKENS, "tokenSecretKey": "data:;base64,c2hvcnQ="}, "too short"),
        ({"tokenSettingPrefix": "x"}, "tokenSettingPrefix"),
        ({"tlsEnabledWithKeyStore": "true"}, "tlsEnabledWithKeyStore"),
        ({"brokerClientAuthenticationPlugin": "com.example.Mine"}, "com.example.Mine"),
        ({"brokerProxyAllowedTargetPorts": "6650-http"}, "6650-http"),
        ({"servicePort": ""}, "nobody could connect"),
        ({"webServicePort": "6650"}, "servicePort and webServicePort are both 6650"),
        ({"controlPort": "8080"}, "webServicePort and controlPort are both 8080"),
        ({"servicePort": "65536"}, "65536"),
        ({"tlsCertificateFilePath": "/c.pem"}, "tlsKeyFilePath"),
        ({"tlsProtocols": "SSLv3"}, "SSLv3"),
        ({"drainTimeoutSeconds": "-1"}, "drainTimeoutSeconds"),
        ({"magnetarHaProxyProtocolVersion": "3"}, "magnetarHaProxyProtocolVersion"),
    ],
)
def test_what_cannot_be(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        settings_of(**given)


@pytest.mark.slow
@pytest.mark.clients
def test_a_proxy_as_a_process(
    start_standalone: Callable[..., Any], start_service: Callable[..., Any], tmp_path: Path
) -> None:
    standalone = start_standalone().wait_until_ready()
    conf = tmp_path / "proxy.conf"
    conf.write_text(
        f"brokerServiceURL={standalone.service_url}\nbrokerWebServiceURL={standalone.admin_url}\n"
        "servicePort=0\nwebServicePort=0\nbindAddress=127.0.0.1\nadvertisedAddress=127.0.0.1\ncontrolPort=0\n"
        "brokerProxyAllowedTargetPorts=*\nproxyLogLevel=0\ndrainTimeoutSeconds=1\n"
    )
    proxy = start_service("proxy", "run", "--conf", conf).wait_until_ready()
    service_url, web_url = proxy.output.split()[2:4]
    assert ", control port " in proxy.output
    assert "settings without effect here: proxyLogLevel" in proxy.errors
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("through", "all")
    client.create_producer("through").send(b"the proxy")
    assert consumer.receive(30_000).data() == b"the proxy"
    with urllib.request.urlopen(web_url.rstrip(",") + "/admin/v2/clusters") as answer:
        assert answer.read() == b'["standalone"]'
    # The client stays, so the drain takes its time.
    assert proxy.stop() == 0
    assert "closing the" in proxy.errors
    client.close()


def test_the_command_checks_settings(start_service: Callable[..., Any], tmp_path: Path) -> None:
    checking = start_service("proxy", "run", "--check", "--broker", "pulsar://b:1", "--port", 0)
    assert checking.wait() == 0
    assert checking.output == "proxy: the settings are valid\n"
    wrong = start_service("proxy", "run", "--set", "servicePrt=1")
    assert wrong.wait() == 2
    assert "did you mean 'servicePort'" in wrong.errors


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_without_standard_streams_stops_cleanly(tmp_path: Path, closed: str) -> None:
    """The event loop got the number of one of them, and ended the process at its own end."""
    port = free_port()
    settings = {"brokerServiceURL": "pulsar://127.0.0.1:1", "brokerWebServiceURL": "http://127.0.0.1:1"}
    settings |= {"servicePort": str(port), "webServicePort": "", "controlEnabled": "false"}
    options = [f"--set {name}={value}" for name, value in settings.items()]
    command = " ".join([sys.executable, "-m magnetar.cli proxy run", *options, closed])
    shell = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not _answers(port):
        assert shell.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shell.send_signal(signal.SIGTERM)
    assert shell.wait(60) == 0


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
