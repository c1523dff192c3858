"""How etcd's servers are reached, as the URL and Pulsar's file say it; no server is asked."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest
from magnetar.metadata.etcd_access import EtcdAccess, parse_config, parse_endpoints, read_access


def test_a_file_with_tls_counts_for_every_server(tmp_path: Path) -> None:
    """Pulsar's client goes by the file alone, whatever the scheme of an address; each file keeps its role."""
    files = {name: tmp_path / name for name in ("trust", "key", "certificate")}
    for name, file in files.items():
        file.write_text(name)
    config = tmp_path / "etcd.yaml"
    config.write_text(
        f"useTls: TRUE\ntlsTrustCertsFilePath: {files['trust']}\ntlsKeyFilePath: {files['key']}\n"
        f"tlsCertificateFilePath: {files['certificate']}\n"
    )
    access = read_access(f"etcd:http://a:1,https://b:2?config={config}")
    assert access.credentials == (True, True)
    assert (access.trust, access.key, access.certificate) == (b"trust", b"key", b"certificate")


def test_a_file_that_says_nothing_of_tls_means_none(tmp_path: Path) -> None:
    config = tmp_path / "etcd.yaml"
    config.write_text("authority: x\n")
    assert read_access(f"etcd:http://a:1?config={config}").credentials == (False,)


def test_servers_without_a_port_have_etcds_own() -> None:
    assert parse_endpoints("etcd:https://a,b,http://c:1/") == [("a:2379", True), ("b:2379", False), ("c:1", False)]


@pytest.mark.parametrize("nothing", ["", "~", "null", "''"])
def test_a_name_without_a_value_is_left_out(nothing: str) -> None:
    assert parse_config(f"authority: {nothing}\nuseTls: true", "f") == {"useTls": "true"}


def test_each_server_gets_its_own_kind_of_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests name the authority with its port; a certificate knows no ports."""
    made: list[tuple[str, str, dict[str, object]]] = []

    def secure(address: str, credentials: grpc.ChannelCredentials, options: list[tuple[str, object]]) -> None:
        assert credentials is not None
        made.append(("tls", address, dict(options)))

    def insecure(address: str, options: list[tuple[str, object]]) -> None:
        made.append(("plain", address, dict(options)))

    monkeypatch.setattr(grpc.aio, "secure_channel", secure)
    monkeypatch.setattr(grpc.aio, "insecure_channel", insecure)
    access = EtcdAccess(addresses=("a:1", "b:2"), credentials=(False, True), authority="etcd.example:2379")
    access.channels([("grpc.keepalive_time_ms", 7)])
    named = {
        "grpc.keepalive_time_ms": 7,
        "grpc.default_authority": "etcd.example:2379",
        "grpc.ssl_target_name_override": "etcd.example",
    }
    assert made == [("plain", "a:1", named), ("tls", "b:2", named)]
    made.clear()
    EtcdAccess(addresses=("a:1",), credentials=(True,), authority="etcd.example").channels([])
    assert made[0][2]["grpc.ssl_target_name_override"] == "etcd.example"
