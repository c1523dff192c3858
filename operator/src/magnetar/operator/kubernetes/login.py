"""Where the API server is, and who we are: by a pod's service account or a kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from magnetar.core.errors import SettingError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG: Final = Path("~/.kube/config")
DEFAULT_NAMESPACE: Final = "default"

LOGIN_ERRORS: Final = (ConfigException, OSError)
"""What renewing raises: the token is not to be read just now, or the program that gives it fails."""

AUTHORIZATION: Final = "BearerToken"
"""The package's name for the header Authorization."""

_UNREADABLE: Final = (*LOGIN_ERRORS, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError)
"""What the package raises for files that are no kubeconfigs."""


async def _keep() -> None:
    """There is nothing to renew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One way to one API server."""

    configuration: Configuration
    namespace: str = DEFAULT_NAMESPACE
    """The pod's or the context's."""
    proxy: str | None = None
    """By which the API server is reached."""
    renew: Callable[[], Awaitable[None]] = _keep
    """Read the credentials again into `configuration`, or run the program that gives them. `LOGIN_ERRORS`."""


async def find_login() -> Login:
    """Inside a pod with its account, else by KUBECONFIG or ~/.kube/config. `SettingError` if there is neither."""
    try:
        return in_cluster()
    except (ConfigException, OSError) as outside:
        named = os.environ.get("KUBECONFIG") or str(KUBECONFIG)
        if not _is_there(named):
            why = f"no pod's account ({outside}), and no kubeconfig at {named}"
            raise SettingError(f"no Kubernetes to connect to: {why}") from None
    return await from_kubeconfig(named)


def _is_there(files: str) -> bool:
    return any(Path(part).expanduser().is_file() for part in files.split(os.pathsep) if part)


def in_cluster(account: Path = SERVICE_ACCOUNT) -> Login:
    """With a pod's service account. Its token is read again every minute. `ConfigException`, OSError."""
    configuration = Configuration()

    def load() -> None:
        InClusterConfigLoader(str(account / "token"), str(account / "ca.crt")).load_and_set(configuration)

    async def renew() -> None:
        load()

    load()
    namespace = (account / "namespace").read_text().strip()
    return Login(configuration=configuration, namespace=namespace, proxy=_set_proxy(configuration), renew=renew)


async def from_kubeconfig(files: str, context: str | None = None) -> Login:
    """With one context of kubeconfigs, which are separated as in KUBECONFIG; None: the current one. `SettingError`."""
    configuration = Configuration()
    try:
        namespace = await _load(configuration, files, context)
        proxy = _set_proxy(configuration)
    except _UNREADABLE as error:
        raise SettingError(f"the kubeconfig {files} cannot be used: {error}") from None

    async def renew() -> None:
        try:
            await _load(configuration, files, context)
        except _UNREADABLE as error:
            raise ConfigException(str(error)) from None

    return Login(configuration=configuration, namespace=namespace, proxy=proxy, renew=renew)


async def _load(configuration: Configuration, files: str, context: str | None) -> str:
    written, current_context = _written(files)
    loader = await load_kube_config(
        config_file=os.pathsep.join(written),
        # The package's own choice is the last file's, which may mean another cluster than kubectl's.
        context=context or current_context,
        client_configuration=configuration,
        persist_config=False,
    )
    # The package only logs that a program which is to give credentials has failed.
    wants_program = "exec" in (loader._user or ())  # noqa: SLF001
    if wants_program and not (hasattr(loader, "token") or getattr(loader, "cert_file", None)):
        raise ConfigException("the program that its user names gives no credentials")
    if token := configuration.api_key.get(AUTHORIZATION):
        # Files end with a newline, which no header may have.
        configuration.api_key[AUTHORIZATION] = token.strip()
        if not configuration.api_key[AUTHORIZATION].isprintable():
            raise ConfigException("its user's token is more than one line")
    namespace: str = loader.current_context["context"].get("namespace") or DEFAULT_NAMESPACE
    return namespace


def _written(files: str) -> tuple[Sequence[str], str | None]:
    """Those of the files in which something stands, and their current context: the first file's that has one, as for
    kubectl. `_UNREADABLE`."""
    written, current_context = [], None
    for part in files.split(os.pathsep):
        file = Path(part).expanduser()
        if not part or not file.exists():
            continue
        content = yaml.safe_load(file.read_text())
        if content is None:
            continue
        if not isinstance(content, dict):
            raise ConfigException(f"{file} is no kubeconfig")
        written.append(str(file))
        current_context = current_context or content.get("current-context")
    if not written:
        raise ConfigException("nothing stands in it")
    return written, current_context


def _set_proxy(configuration: Configuration) -> str | None:
    """The kubeconfig's, else the environment's. aiohttp would look there for requests alone and not for websockets, and
    in ~/.netrc, too, whose passwords are not for the API server."""
    proxy = configuration.proxy or environment_proxy(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False, "proxy": proxy}
    return proxy


def environment_proxy(server: str) -> str | None:
    """What HTTPS_PROXY (or HTTP_PROXY) and NO_PROXY say of a server, as kubectl reads them: no proxy for this machine,
    and NO_PROXY may name networks."""
    where = urlsplit(server)
    found = getproxies_environment()
    proxy, host = found.get(where.scheme), where.hostname or ""
    if not proxy or host == "localhost" or proxy_bypass(host):
        return None
    with suppress(ValueError):
        address = ip_address(host)
        if address.is_loopback or any(_is_within(address, part) for part in found.get("no", "").split(",")):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_within(address: IPv4Address | IPv6Address, network: str) -> bool:
    try:
        return address in ip_network(network.strip(), strict=False)
    except ValueError:
        return False
