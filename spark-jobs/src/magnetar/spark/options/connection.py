"""How a cluster is reached: what drivers and executors need alike, and the options that say it for reading and for
writing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.client.addresses import TLS, parse_service_url
from magnetar.core.errors import SettingError
from magnetar.spark.errors import BadOption
from magnetar.spark.options.parsing import Option, OptionValues

CONNECTION_OPTIONS: Final = (
    Option(
        name="service.url",
        default="",
        what="The brokers or proxies: pulsar://host:6650, or pulsar+ssl://host:6651. It has to be set.",
        aliases=("serviceUrl", "pulsar.client.serviceUrl"),
    ),
    Option(
        name="admin.url",
        default="",
        what="The brokers' admin API, http://host:8080 or https://host:8443: asked for what the binary "
        "protocol does not tell.",
        aliases=("adminUrl",),
    ),
    Option(
        name="metadata.url",
        default="",
        what="The metadata store, zk:host:2181 or etcd:http://host:2379, for reading from bookies; without it the "
        "brokers' admin API is asked.",
        aliases=("metadataUrl",),
    ),
    Option(name="token", default="", what="A JSON Web Token for brokers and the admin API.", secret=True),
    Option(
        name="authPluginClassName",
        default="",
        what="Another way to authenticate, by the name of the Java client's plug-in, with authParams.",
        aliases=("pulsar.client.authPluginClassName", "pulsar.admin.authPluginClassName"),
    ),
    Option(
        name="authParams",
        default="",
        what="Parameters of authPluginClassName.",
        aliases=("pulsar.client.authParams", "pulsar.admin.authParams"),
        secret=True,
    ),
    Option(
        name="tlsTrustCertsFilePath",
        default="",
        what="A PEM file with the authorities that may have signed the servers' certificates, at the same place on the "
        "driver and each executor; without it those of the system.",
        aliases=("pulsar.client.tlsTrustCertsFilePath", "pulsar.admin.tlsTrustCertsFilePath"),
    ),
    Option(
        name="tlsAllowInsecureConnection",
        default="false",
        what="Whether servers' certificates go unchecked.",
        aliases=("pulsar.client.tlsAllowInsecureConnection", "pulsar.admin.tlsAllowInsecureConnection"),
    ),
    Option(
        name="tlsHostnameVerificationEnable",
        default="true",
        what="Whether servers' certificates have to be for the host that is connected to.",
        aliases=(
            "pulsar.client.tlsHostnameVerificationEnable",
            "pulsar.client.tlsHostnameVerification",
            "pulsar.admin.tlsHostnameVerificationEnable",
        ),
    ),
    Option(
        name="useTls",
        default="",
        what="Said by service.url: pulsar+ssl:// is with TLS, pulsar:// without.",
        aliases=("pulsar.client.useTls",),
    ),
    Option(
        name="operationTimeout",
        default="30s",
        what="How long an answer of a broker, a bookie or the metadata store is waited for, in all tries.",
    ),
    Option(
        name="pollTimeoutMs",
        default="",
        what="operationTimeout in milliseconds, as the JVM connector has it.",
        aliases=("pulsar.client.operationTimeoutMs",),
    ),
)

_TOKEN_PLUGINS: Final = ("org.apache.pulsar.client.impl.auth.AuthenticationToken", "token")
_NO_PLUGINS: Final = ("org.apache.pulsar.client.impl.auth.AuthenticationDisabled", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Pickled with every task and used as the key of what a process keeps open, so plain and hashable."""

    service_url: str
    """pulsar://host:port or pulsar+ssl://…, brokers or proxies [service.url]."""
    admin_url: str = ""
    """http(s)://host:port [admin.url]; empty: the admin API is not used."""
    metadata_url: str = ""
    """zk:… or etcd:… [metadata.url]; empty: the brokers are asked for it (by the admin API)."""
    token: str = ""
    """A JSON Web Token for brokers and the admin API."""
    auth_plugin: str = ""
    auth_params: str = ""
    tls_trust_certificates_file: str = ""
    tls_allow_insecure: bool = False
    tls_hostname_verification: bool = True
    operation_timeout_seconds: float = 30.0

    def __repr__(self) -> str:
        """Without the credentials: this is printed in errors and logs."""
        return f"ConnectionOptions({self.service_url!r}, admin {self.admin_url!r}, metadata {self.metadata_url!r})"


def connection_options(options: Mapping[str, str]) -> ConnectionOptions:
    """The part of the options that is about connections; all others are passed over. Raises `BadOption`."""
    values = OptionValues(options, CONNECTION_OPTIONS)
    for name in ("service.url", "admin.url", "metadata.url"):
        if "@" in values.text_or_blank(name):
            raise BadOption(
                f"option {name} has credentials in it, and is shown in errors and logs: set token, or "
                "authPluginClassName and authParams"
            )
    service_url = values.text("service.url")
    if not service_url:
        hint = " (the path given to load or save is not used)" if "path" in {name.lower() for name in options} else ""
        raise BadOption(f"option service.url is not set: pulsar://host:6650 or pulsar+ssl://host:6651 is needed{hint}")
    try:
        addresses = parse_service_url(service_url)
    except SettingError as error:
        raise values.bad("service.url", f"pulsar://host:6650 or pulsar+ssl://host:6651 is accepted ({error})") from None
    if values.given("useTls") and values.boolean("useTls") != addresses[0].tls:
        raise BadOption(
            f"options useTls and service.url contradict each other: leave useTls out and write {TLS}:// in service.url "
            "to use TLS, pulsar:// to use none"
        )
    token, plugin, parameters = _credentials(values)
    return ConnectionOptions(
        service_url=service_url,
        admin_url=_url(values, "admin.url", ("http://", "https://"), "http://host:8080 or https://host:8443"),
        metadata_url=_metadata_url(values),
        token=token,
        auth_plugin=plugin,
        auth_params=parameters,
        tls_trust_certificates_file=values.text_or_blank("tlsTrustCertsFilePath"),
        tls_allow_insecure=values.boolean("tlsAllowInsecureConnection"),
        tls_hostname_verification=values.boolean("tlsHostnameVerificationEnable"),
        operation_timeout_seconds=_timeout_seconds(values),
    )


def _url(values: OptionValues, name: str, beginnings: tuple[str, ...], accepted: str) -> str:
    url = values.text_or_blank(name).rstrip("/")
    if url and not any(url.lower().startswith(one) and len(url) > len(one) for one in beginnings):
        raise values.bad(name, f"{accepted} is accepted")
    return url


def _metadata_url(values: OptionValues) -> str:
    url = values.text_or_blank("metadata.url")
    if url.startswith(("rocksdb:", "memory:")):
        raise values.bad(
            "metadata.url",
            "no other process can open that store: leave the option out, and brokers are read from. A cluster's "
            "zk:host:2181 or etcd:http://host:2379 is accepted",
        )
    return _url(values, "metadata.url", ("zk:", "etcd:"), "zk:host:2181 or etcd:http://host:2379")


def _timeout_seconds(values: OptionValues) -> float:
    if not values.given("pollTimeoutMs"):
        return values.seconds("operationTimeout", 0.1)
    if values.given("operationTimeout"):
        raise BadOption("options operationTimeout and pollTimeoutMs say the same: set one of them")
    return (values.integer("pollTimeoutMs", 100) or 0) / 1000


def _credentials(values: OptionValues) -> tuple[str, str, str]:
    """Token, plug-in, parameters: a token, or a plug-in, or nothing."""
    token, plugin = values.text_or_blank("token"), values.text_or_blank("authPluginClassName")
    parameters = values.text_or_blank("authParams")
    if plugin in _NO_PLUGINS:
        plugin = parameters = ""
    if parameters and not plugin:
        raise BadOption("option authParams is set without authPluginClassName: set both, or token alone")
    if token and plugin:
        raise BadOption("options token and authPluginClassName contradict each other: set one of them")
    if plugin in _TOKEN_PLUGINS:
        text = _token_of(parameters)
        if not text:
            raise values.bad("authParams", "token:… is accepted by this plug-in; so is the option token alone")
        return text, "", ""
    return token, plugin, parameters


def _token_of(parameters: str) -> str:
    """Out of `token:…`, `{"token": "…"}` or the token alone; files are not read: executors would need them too."""
    if parameters.startswith("{"):
        try:
            found = json.loads(parameters).get("token", "")
        except ValueError:
            return ""
        return found if isinstance(found, str) else ""
    if parameters.startswith("file:"):
        return ""
    return parameters.removeprefix("token:")
