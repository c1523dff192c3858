"""Which brokers clients may name."""

from __future__ import annotations

import pytest
from magnetar.core.errors import SettingError
from magnetar.proxy.settings import TargetSettings
from magnetar.proxy.targets import TargetDenied, Targets, split_host_and_port


def test_the_default_lets_pulsars_ports_through() -> None:
    targets = Targets(TargetSettings())
    assert targets.check_name("broker-1.example:6650") == ("broker-1.example", 6650)
    assert targets.allowed("broker-1.example:6650", ["10.0.0.1", "::1"]) == ["10.0.0.1", "::1"]
    with pytest.raises(TargetDenied, match="Given port in 'broker-1:22' isn't allowed"):
        targets.check_name("broker-1:22")


def test_ports_are_listed_or_in_ranges() -> None:
    targets = Targets(TargetSettings(ports=("6650", "7000-7002", "8000 - 8000")))
    allowed = [port for port in (6650, 6651, 6999, 7000, 7002, 7003, 8000) if _is_allowed(targets, port)]
    assert allowed == [6650, 7000, 7002, 8000]
    assert Targets(TargetSettings(ports=("6650", "*"))).check_name("b:22") == ("b", 22)


def _is_allowed(targets: Targets, port: int) -> bool:
    try:
        return targets.check_name(f"b:{port}") == ("b", port)
    except TargetDenied:
        return False


def test_host_names_have_stars_and_no_case() -> None:
    targets = Targets(TargetSettings(host_names=("*.Brokers.example", "b[1]?"), ports=("*",)))
    assert targets.check_name("A.brokers.EXAMPLE:1")[0] == "A.brokers.EXAMPLE"
    assert targets.check_name("b[1]?:1")[0] == "b[1]?"
    for name in ("brokers.example:1", "a.brokers.example.evil:1", "b1x:1"):
        with pytest.raises(TargetDenied, match="Given host"):
            targets.check_name(name)


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("10.0.0.1", ["10.0.0.1"], ["10.0.0.2", "::1"]),
        ("10.0.0.0/8", ["10.255.0.1"], ["11.0.0.1", "::ffff:10.0.0.1"]),
        ("10.1.2.3/16", ["10.1.0.0"], ["10.2.0.0"]),
        ("10.0.1-3.*", ["10.0.1.0", "10.0.3.255"], ["10.0.4.0", "10.0.0.1", "fd00::10.0.1.0"]),
        ("fd00::/8", ["fd00::1"], ["fe80::1", "10.0.0.1"]),
    ],
)
def test_addresses_are_networks_and_ranges(rule: str, inside: list[str], outside: list[str]) -> None:
    targets = Targets(TargetSettings(addresses=(rule,)))
    assert targets.allowed("b:1", [*outside, *inside]) == inside
    with pytest.raises(TargetDenied, match="The IP address of the given host and port 'b:1' isn't allowed"):
        targets.allowed("b:1", outside)


def test_an_address_that_is_written_as_a_host() -> None:
    assert split_host_and_port("[::1]:6650") == ("::1", 6650)
    for text in ("broker", ":6650", "broker:", "broker:0", "broker:65536", "broker:-1", "broker:٣"):
        with pytest.raises(TargetDenied):
            split_host_and_port(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"ports": ("http",)},
        {"ports": ("65536",)},
        {"ports": ("6660-6650",)},
        {"ports": ("6650-",)},
        {"addresses": ("everywhere",)},
        {"addresses": ("10.0.0.a-b",)},
        {"addresses": ("10.0.0.0/33",)},
    ],
)
def test_rules_that_are_none(settings: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(SettingError, match="brokerProxyAllowed"):
        Targets(TargetSettings(**settings))  # type: ignore[arg-type]  # Not the flag, which is a bool.
