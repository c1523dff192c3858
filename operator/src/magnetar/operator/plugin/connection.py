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
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException
from magnetar.core.errors import SettingError, Unavailable
from magnetar.operator.kubernetes.login import KUBECONFIG, SERVICE_ACCOUNT, Login, from_kubeconfig, in_cluster
from magnetar.operator.plugin.http import HttpKubernetes

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
    """The cluster and namespace that the options mean."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


@contextlib.asynccontextmanager
async def open_kubernetes(target: Target) -> AsyncIterator[HttpKubernetes]:
    """The API server that the options mean. `SettingError`, `Unavailable`."""
    async with contextlib.AsyncExitStack() as stack:
        login = await direct_login(target, os.environ)
        if login is None:
            login = await stack.enter_async_context(_by_kubectl(target))
        # Each forwarded connection is one of its own: their number is the client's.
        login.configuration.connection_pool_maxsize = 0
        kubernetes = HttpKubernetes(login, target.namespace)
        stack.push_async_callback(kubernetes.close)
        yield kubernetes


async def direct_login(target: Target, environment: Mapping[str, str]) -> Login | None:
    """How to reach the API server by ourselves; None: only kubectl can. `SettingError`."""
    files = _kubeconfigs(target, environment)
    if not files:
        return _service_account()
    context = await asyncio.to_thread(_direct_context, files, target.context)
    return await from_kubeconfig(str(files[0]), context) if context else None


def _kubeconfigs(target: Target, environment: Mapping[str, str]) -> Sequence[Path]:
    named = target.kubeconfig or environment.get("KUBECONFIG", "")
    if named:
        return [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    default = KUBECONFIG.expanduser()
    return [default] if default.is_file() else []


def _direct_context(files: Sequence[Path], wanted: str | None) -> str:
    """The context to take; empty: only kubectl can."""
    if len(files) > 1:
        return ""
    try:
        written = yaml.safe_load(files[0].read_text())
        assert isinstance(written, dict)
        context: str = wanted or written.get("current-context") or ""
        contexts = _named(written, "contexts")
        if context in contexts:
            return context if _is_direct(written, contexts[context]) else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the kubeconfig cannot be read: {error}") from None
    except (AssertionError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SettingError(f"{files[0]} is no kubeconfig: {error}") from None
    known = ", ".join(sorted(contexts)) or "none"
    missing = f"has no context {context}" if context else "names no current context"
    raise SettingError(f"{files[0]} {missing}; contexts: {known}")


def _service_account() -> Login:
    """In a pod."""
    try:
        return in_cluster()
    except (ConfigException, OSError):
        raise SettingError(
            f"there is no kubeconfig: neither --kubeconfig nor KUBECONFIG nor ~/.kube/config, nor {SERVICE_ACCOUNT}"
        ) from None


def _named(written: Mapping[str, Any], group: str) -> dict[str, dict[str, Any]]:
    return {item["name"]: item[group.removesuffix("s")] or {} for item in written.get(group) or []}


def _is_direct(written: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
    """Whether all that the context needs is what we can do."""
    user = _named(written, "users").get(context.get("user", ""), {})
    cluster = _named(written, "clusters").get(context.get("cluster", ""), {})
    return bool(user) and user.keys() <= _DIRECT_USER and cluster.keys() <= _DIRECT_CLUSTER


@contextlib.asynccontextmanager
async def _by_kubectl(target: Target) -> AsyncIterator[Login]:
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
            await _until_ready(process, program)
            async with aiohttp.UnixConnector(str(socket), limit=0) as connector:
                through = {"connector": connector, "trust_env": False}
                configuration = Configuration(host="http://localhost", client_session_kwargs=through)
                yield Login(configuration=configuration, namespace=namespace)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _until_ready(process: asyncio.subprocess.Process, program: str) -> None:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_PROXY_SECONDS_MAX):
            if not await process.stdout.readline():
                raise Unavailable(f"`{program} proxy` ended at once")
    except TimeoutError:
        raise Unavailable(f"`{program} proxy` does not get ready") from None


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
