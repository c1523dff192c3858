"""Where brokers are: service URLs taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import SettingError

PLAIN: Final = "pulsar"
TLS: Final = "pulsar+ssl"
DEFAULT_PORTS: Final = {PLAIN: 6650, TLS: 6651}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker, and where to connect for it: another place when a proxy stands between."""

    host: str
    port: int
    tls: bool = False
    proxy: BrokerAddress | None = None

    @property
    def connect_to(self) -> BrokerAddress:
        """Where the TCP connection goes."""
        return self if self.proxy is None else self.proxy

    @property
    def host_and_port(self) -> str:
        """`host:port`, the name that a proxy is given of a broker."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def through(self, proxy: BrokerAddress) -> BrokerAddress:
        """This broker, reached over a proxy; itself when that is no other place."""
        if (proxy.host, proxy.port) == (self.host, self.port):
            return self
        return BrokerAddress(self.host, self.port, self.tls, proxy)


def parse_service_url(url: str) -> list[BrokerAddress]:
    """The brokers (or proxies) of `pulsar://host:port,host:port` or `pulsar+ssl://…`. Raises `SettingError`."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        raise SettingError(f"service URL {url!r}: it must begin with pulsar:// or pulsar+ssl://")
    names = rest.partition("/")[0].split(",")
    return [_parse_host(name.strip(), scheme, url) for name in names]


def _parse_host(text: str, scheme: str, url: str) -> BrokerAddress:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(DEFAULT_PORTS[scheme])
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise SettingError(f"service URL {url!r}: {text!r} is no host and port")
    return BrokerAddress(host, int(port), scheme == TLS)
