"""Where the API server is, and who we are: by a pod's service account or a kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    return Login(configuration=configuration, namespace=(account / "namespace").read_text().strip(), renew=renew)


async def from_kubeconfig(files: str, context: str | None = None) -> Login:
    """With one context of kubeconfigs, which are separated as in KUBECONFIG; None: the current one. `SettingError`."""
    configuration = Configuration()
    try:
        namespace = await _load(configuration, files, context)
    except _UNREADABLE as error:
        raise SettingError(f"the kubeconfig {files} cannot be used: {error}") from None

    async def renew() -> None:
        try:
            await _load(configuration, files, context)
        except _UNREADABLE as error:
            raise ConfigException(str(error)) from None

    return Login(configuration=configuration, namespace=namespace, renew=renew)


async def _load(configuration: Configuration, files: str, context: str | None) -> str:
    loader = await load_kube_config(
        config_file=files, context=context, client_configuration=configuration, persist_config=False
    )
    # The package only logs that a program which is to give credentials has failed.
    wants_program = "exec" in (loader._user or ())  # noqa: SLF001
    if wants_program and not (hasattr(loader, "token") or configuration.cert_file):
        raise ConfigException("the program that its user names gives no credentials")
    namespace: str = loader.current_context["context"].get("namespace") or DEFAULT_NAMESPACE
    return namespace
