"""From a kubeconfig to the API server: by ourselves where that is simple, else through `kubectl proxy`.

`kubectl` can log in in more ways than any library: programs that are asked for a token and may ask the user in turn,
several files, other identities, proxies. What is not written in one file as a certificate, a token or a password is
therefore left to it: it listens at a socket in a directory that only the user may open, and everything goes through.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError
from magnetar.core.errors import SettingError, Unavailable
from magnetar.operator.plugin.http import HttpKubernetes

_TIMEOUT: Final = httpx2.Timeout(10, read=30)
_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
"""Each forwarded connection is one of its own: their number is the client's."""
_PROXY_SECONDS_MAX: Final = 60.0
"""To log in, which may mean that a person does."""

_DIRECT_USER: Final = frozenset(
    {
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "username",
        "password",
    }
)
_DIRECT_CLUSTER: Final = frozenset(
    {"server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "extensions"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the options say."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


@contextlib.asynccontextmanager
async def open_kubernetes(target: Target) -> AsyncIterator[HttpKubernetes]:
    """The API server that the options mean. `SettingError`, `Unavailable`."""
    config = await asyncio.to_thread(direct_config, target, os.environ)
    if config is None:
        async with _by_kubectl(target) as found:
            yield found
        return
    try:
        parameters = ConnectionParams(timeout=_TIMEOUT).httpx_params(config)
    except (ConfigError, OSError, ValueError) as error:
        raise SettingError(f"the kubeconfig cannot be used: {error}") from None
    async with httpx2.AsyncClient(**parameters, limits=_LIMITS) as client:
        namespace = target.namespace or config.namespace
        yield HttpKubernetes(client, namespace, given=target.namespace is not None)


def direct_config(target: Target, environment: Mapping[str, str]) -> SingleConfig | None:
    """How to reach the API server by ourselves; None: only kubectl can. `SettingError`."""
    named = target.kubeconfig or environment.get("KUBECONFIG", "")
    files = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    if target.kubeconfig is None and not files:
        files = [Path("~/.kube/config").expanduser()]
        if not files[0].is_file():
            return _service_account()
    if len(files) > 1:
        return None
    try:
        written = yaml.safe_load(files[0].read_text())
        assert isinstance(written, dict)
        context = target.context or written.get("current-context")
        if context and not _is_direct(written, context):
            return None
        return KubeConfig.from_dict(written, fname=files[0]).get(context or None)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the kubeconfig cannot be read: {error}") from None
    except ConfigError as error:
        known = ", ".join(sorted(_named(written, "contexts"))) or "none"
        raise SettingError(f"{error} in {files[0]}; contexts: {known}") from None
    except (AssertionError, yaml.YAMLError, ValueError, LookupError, TypeError) as error:
        raise SettingError(f"{files[0]} is no kubeconfig: {error}") from None


def _service_account() -> SingleConfig:
    """In a pod."""
    try:
        found = KubeConfig.from_service_account().get()
    except (ConfigError, KeyError):
        raise SettingError(
            f"there is no kubeconfig: neither --kubeconfig nor KUBECONFIG nor ~/.kube/config, nor {SERVICE_ACCOUNT}"
        ) from None
    assert found is not None
    return found


def _named(written: Mapping[str, Any], group: str) -> dict[str, dict[str, Any]]:
    return {item["name"]: item[group.removesuffix("s")] or {} for item in written.get(group) or []}


def _is_direct(written: Mapping[str, Any], name: str) -> bool:
    """Whether all that the context needs is what we can do. An unknown context is for others to complain about."""
    context = _named(written, "contexts").get(name)
    if context is None:
        return True
    user = _named(written, "users").get(context.get("user", ""), {})
    cluster = _named(written, "clusters").get(context.get("cluster", ""), {})
    return user.keys() <= _DIRECT_USER and cluster.keys() <= _DIRECT_CLUSTER


@contextlib.asynccontextmanager
async def _by_kubectl(target: Target) -> AsyncIterator[HttpKubernetes]:
    program = kubectl_program()
    options = [
        *(["--context", target.context] if target.context else []),
        *(["--kubeconfig", target.kubeconfig] if target.kubeconfig else []),
    ]
    namespace = target.namespace or await _context_namespace(program, options)
    with tempfile.TemporaryDirectory(prefix="kubectl-pulsar-") as directory:
        socket = Path(directory, "api")
        process = await asyncio.create_subprocess_exec(
            *(program, *options, "proxy", f"--unix-socket={socket}"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(_PROXY_SECONDS_MAX):
                if not await process.stdout.readline():
                    raise Unavailable(f"`{program} proxy` ended at once")
            transport = httpx2.AsyncHTTPTransport(uds=str(socket), limits=_LIMITS)
            async with httpx2.AsyncClient(
                base_url="http://localhost", transport=transport, timeout=_TIMEOUT, trust_env=False
            ) as client:
                yield HttpKubernetes(client, namespace, given=target.namespace is not None)
        except TimeoutError:
            raise Unavailable(f"`{program} proxy` does not get ready") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _context_namespace(program: str, options: list[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *(program, *options, "config", "view", "--minify", "-o", "jsonpath={..namespace}"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SettingError("kubectl cannot use the kubeconfig: its own words stand above")
    return output.decode().strip() or "default"


def kubectl_program() -> str:
    """`$KUBECTL`, else kubectl on the path. `SettingError`."""
    named = os.environ.get("KUBECTL") or "kubectl"
    found = shutil.which(named)
    if found is None:
        raise SettingError(f"{named} is not found: this kubeconfig needs it to log in; set KUBECTL to where it is")
    return found
