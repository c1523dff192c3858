"""A tool's way to the brokers: the admin API of any of them, or of a proxy."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar.admin_client.client import AdminClient, AdminLimits
from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.core.errors import SettingError
from magnetar.core.properties import BadProperties, parse_properties

DEFAULT_URL: Final = "http://localhost:8080"

LIMITS: Final = AdminLimits(connections_max=64, call_seconds=60.0)
"""Connections and seconds for calls of the admin API, the same as between brokers, which pass on what another is
responsible for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAccess:
    """Where the admin API is, and what is shown there."""

    url: str = DEFAULT_URL
    """Several hosts are divided by commas: the first that answers is asked."""
    plugin: str = ""
    parameters: str = ""
    trust_certificates_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    allow_insecure: bool = False
    verify_host_name: bool = False

    @property
    def urls(self) -> list[str]:
        """One for each host. `SettingError`."""
        scheme, mark, hosts = self.url.strip().partition("://")
        if "@" in hosts:
            raise SettingError("--admin-url has credentials in it, and is shown in errors: give them by --auth-params")
        if not mark or scheme not in ("http", "https") or not hosts.strip("/"):
            raise SettingError(f"--admin-url {self.url!r} is no http://HOST:PORT or https://HOST:PORT")
        return [f"{scheme}://{host.strip().rstrip('/')}" for host in hosts.split(",") if host.strip()]


def access_of_file(path: Path) -> AdminAccess:
    """What a `client.conf` of Apache's tools says. `SettingError`."""
    try:
        found = {name: value.strip() for name, value, _ in parse_properties(path.read_text(encoding="utf-8"))}
    except OSError as error:
        raise SettingError(f"the settings file {path} cannot be read: {error.strerror}") from None
    except (BadProperties, UnicodeDecodeError) as error:
        raise SettingError(f"the settings file {path} is damaged: {error}") from None
    if found.get("useKeyStoreTls", "").lower() == "true":
        raise SettingError(f"{path}: useKeyStoreTls is not supported: name PEM files by tlsTrustCertsFilePath")
    return AdminAccess(
        url=found.get("webServiceUrl") or DEFAULT_URL,
        plugin=found.get("authPlugin", ""),
        parameters=found.get("authParams", ""),
        trust_certificates_file=_file(found.get("tlsTrustCertsFilePath")),
        certificate_file=_file(found.get("tlsCertificateFilePath")),
        key_file=_file(found.get("tlsKeyFilePath")),
        allow_insecure=found.get("tlsAllowInsecureConnection", "").lower() == "true",
        verify_host_name=found.get("tlsEnableHostnameVerification", "").lower() == "true",
    )


def _file(name: str | None) -> Path | None:
    return Path(name) if name else None


class AdminCaller:
    """Requests to one address; redirects are followed to whoever is responsible."""

    def __init__(self, url: str, client: AdminClient) -> None:
        self.url = url
        self._client = client

    async def call(self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> Any:
        """The answer's JSON, None for none. `AdminRefused`, `AdminUnreachable`."""
        answer = await self._client.call(method, self.url + path, query=query, body=body)
        try:
            return answer.json()
        except ValueError:
            raise AdminRefused(answer.status, f"{self.url}{path} is answered by something that is no broker") from None


class ListedBrokers:
    """The brokers that the one who was asked lists: it has the credentials already, and no other host gets them."""

    def __init__(self, api: AdminCaller) -> None:
        self._api = api

    async def serves(self, url: str) -> bool:
        """Whether an address is a broker's. Hosts are compared: a broker is listed with one of its two ports."""
        try:
            listed = await self._api.call("GET", "/admin/v2/brokers")
        except (AdminRefused, AdminUnreachable):
            return False
        hosts = {urlsplit(f"//{broker}").hostname for broker in listed or () if isinstance(broker, str)}
        host = urlsplit(url).hostname
        return host is not None and host in hosts


@contextlib.asynccontextmanager
async def open_admin_api(access: AdminAccess) -> AsyncIterator[AdminCaller]:
    """The admin API of the first address that answers. `SettingError`, `AdminUnreachable`."""
    urls = access.urls
    client = _client(access, urls[0])
    try:
        api = await _first_that_answers([AdminCaller(url, client) for url in urls])
        client.known = ListedBrokers(api)
        yield api
    finally:
        await client.close()


async def _first_that_answers(found: list[AdminCaller]) -> AdminCaller:
    for one in found[:-1]:
        try:
            await one.call("GET", "/admin/v2/brokers/ready")
        except AdminUnreachable:
            continue
        except AdminRefused:
            return one
        return one
    return found[-1]


def _client(access: AdminAccess, url: str) -> AdminClient:
    tls = url.startswith("https:")
    if not access.plugin and not tls:
        return AdminClient(LIMITS)
    from magnetar.broker.settings.access import PeerSettings
    from magnetar.cli.tools.credentials import shown_by
    from magnetar.net.tls import TlsSettings

    settings = TlsSettings(
        trust_certificates_file=access.trust_certificates_file,
        certificate_file=access.certificate_file,
        key_file=access.key_file,
        allow_insecure=access.allow_insecure,
        verify_host_name=access.verify_host_name,
    )
    shown = shown_by(PeerSettings(plugin=access.plugin, parameters=access.parameters, tls_enabled=tls, tls=settings))
    return AdminClient(LIMITS, shown.credentials, shown.tls)


def overlaid(access: AdminAccess, url: str | None, plugin: str | None, parameters: str | None) -> AdminAccess:
    """With what options say."""
    return replace(
        access,
        url=url if url is not None else access.url,
        plugin=plugin if plugin is not None else access.plugin,
        parameters=parameters if parameters is not None else access.parameters,
    )
