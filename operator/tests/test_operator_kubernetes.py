"""Logging in, and what the client makes of kinds and credentials."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from magnetar.core.errors import SettingError
from magnetar.net.testing import Certificate, TestAuthority
from magnetar.operator.handlers import ConnectionsOfWatches
from magnetar.operator.kubernetes.client import KubernetesClient
from magnetar.operator.kubernetes.errors import Answer, NotPermitted, Refused, ServerUnavailable, failure, users_failure
from magnetar.operator.kubernetes.kinds import KINDS, path
from magnetar.operator.kubernetes.login import environment_proxy, find_login, from_kubeconfig, in_cluster
from magnetar.operator.kubernetes.pods import LogOptions
from magnetar.operator.kubernetes.streams import log_lines, port_forward
from operator_fakes.wire import serving

OLD, NEW = {"message": "Unauthorized"}, {"metadata": {"name": "p"}}


def test_paths() -> None:
    assert path("Pod", "messaging", "a") == "/api/v1/namespaces/messaging/pods/a"
    assert path("PulsarCluster", None) == "/apis/pulsar.magnetar.dev/v1alpha1/pulsarclusters"
    assert path("NetworkPolicy", "x") == "/apis/networking.k8s.io/v1/namespaces/x/networkpolicies"
    assert path("StorageClass", "", "x") == "/apis/storage.k8s.io/v1/storageclasses/x"
    assert path("Node", "ignored", "n") == "/api/v1/nodes/n"


def test_plurals_are_kubernetes_own() -> None:
    """Made by rule, as custom resource definitions make them; the table says what the rule gives."""
    for kind, its in KINDS.items():
        word = kind.lower()
        by_rule = f"{word}es" if word.endswith("s") else f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
        assert its.plural == by_rule


@pytest.mark.parametrize(
    ("status", "theirs", "ours"), [(401, NotPermitted, ServerUnavailable), (403, NotPermitted, NotPermitted)]
)
def test_credentials_of_a_person_get_no_better(status: int, theirs: type[Exception], ours: type[Exception]) -> None:
    answer = Answer(status, b'{"message": "Unauthorized"}')
    assert isinstance(users_failure("get Pod", answer), theirs)
    assert isinstance(failure("get Pod", answer), ours)
    assert str(users_failure("get Pod", answer)) == f"get Pod: Unauthorized ({status})"


@pytest.mark.parametrize("status", [403, 422])
@pytest.mark.parametrize("details", ["forbidden", {"causes": "many"}, {"causes": ["one", None]}, [1]])
def test_an_error_of_somebody_between(status: int, details: object) -> None:
    """A proxy's JSON has members of the same names, and others in them."""
    error = failure("get Pod", Answer(status, json.dumps({"message": "no", "details": details}).encode()))
    assert (type(error), str(error)) == (NotPermitted if status == 403 else Refused, f"get Pod: no ({status})")


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a pod has it."""
    for name, text in (("token", "old"), ("ca.crt", "-"), ("namespace", "system\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


async def test_a_pods_token_is_read_again(account: Path) -> None:
    """Before the minute is over for which the package goes by the one that it has."""
    login = in_cluster(account)
    assert (login.configuration.host, login.namespace) == ("https://[::1]:443", "system")
    assert await login.configuration.get_api_key_with_prefix("BearerToken") == "bearer old"
    (account / "token").write_text("new")
    await login.renew()
    assert await login.configuration.get_api_key_with_prefix("BearerToken") == "bearer new"


async def test_a_token_that_cannot_be_read_is_no_mistake_of_ours(account: Path) -> None:
    login = in_cluster(account)

    async def renew() -> None:
        (account / "token").unlink()
        await login.renew()

    async with serving() as wire:
        wire.fails(401)
        client = KubernetesClient(replace(wire.login(), renew=renew))
        with pytest.raises(ServerUnavailable, match=r"does not answer \(get Pod\): Service token file does not exist"):
            await client.get("Pod", "here", "p")
        await client.close()


def kubeconfig(folder: Path, server: str, user: dict[str, Any], context: str = "here") -> str:
    """A file with one context."""
    cluster_name, user_name = f"cluster of {context}", f"user of {context}"
    found = {
        "current-context": context,
        "contexts": [
            {"name": context, "context": {"cluster": cluster_name, "user": user_name, "namespace": "messaging"}}
        ],
        "clusters": [{"name": cluster_name, "cluster": {"server": server}}],
        "users": [{"name": user_name, "user": user}],
    }
    file = folder / context
    file.write_text(yaml.safe_dump(found))
    return str(file)


def program(folder: Path, text: str) -> str:
    """One that gives credentials: each run of it another token."""
    file = folder / "login"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(stat.S_IRWXU)
    return str(file)


def by_program(command: str) -> dict[str, Any]:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}


async def test_a_program_that_gives_tokens_is_run_again(tmp_path: Path) -> None:
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "RUN"}}
    count = f"echo x >> {tmp_path}/runs; n=$(wc -l < {tmp_path}/runs)"
    command = program(tmp_path, f"{count}; echo '{json.dumps(credential)}' | sed s/RUN/run$n/")
    async with serving() as wire:
        login = await from_kubeconfig(kubeconfig(tmp_path, f"http://127.0.0.1:{wire.port}", by_program(command)))
        client = KubernetesClient(login)
        wire.says(OLD, 401)
        del wire.answers[1:]
        wire.says(NEW)
        assert await client.get("Pod", "here", "p") == NEW
        assert [asked.headers["Authorization"] for asked in wire.requests] == ["Bearer run1", "Bearer run2"]
        await client.close()


@contextlib.asynccontextmanager
async def taking_one_certificate(authority: TestAuthority) -> AsyncIterator[tuple[int, list[str]]]:
    """An API server that takes the certificate called `taken[0]`, and answers others by 401, as Kubernetes does."""
    taken = ["first"]

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        shown = request.transport.get_extra_info("peercert")["subject"][0][0][1]
        if shown == "second":
            renewed.set()
        return web.json_response(NEW) if shown == taken[0] else web.json_response(OLD, status=401)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate_file))
    own = authority.issue("server", "IP:127.0.0.1")
    context.load_cert_chain(own.certificate_file, own.key_file)
    context.verify_mode = ssl.CERT_REQUIRED

    async def log(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"before\n")
        await renewed.wait()
        await response.write(b"after\n")
        return response

    renewed = asyncio.Event()
    application = web.Application()
    application.router.add_get(path("Pod", "here", "p"), answer)
    application.router.add_get(path("Pod", "here", "p") + "/log", log)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1], taken
    finally:
        await runner.cleanup()


def client_of(folder: Path, port: int, authority: TestAuthority, user: dict[str, Any]) -> str:
    """A kubeconfig for that server."""
    file = Path(kubeconfig(folder, f"https://127.0.0.1:{port}", user))
    content = yaml.safe_load(file.read_text())
    content["clusters"][0]["cluster"]["certificate-authority"] = str(authority.certificate_file)
    file.write_text(yaml.safe_dump(content))
    return str(file)


def shown_by_program(folder: Path, certificate: Certificate) -> None:
    """From now on the program gives this certificate."""
    status = {
        "clientCertificateData": certificate.certificate_file.read_text(),
        "clientKeyData": certificate.key_file.read_text(),
    }
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    (folder / "credential").write_text(json.dumps(credential))


async def test_a_certificate_that_a_program_gives_is_renewed(tmp_path: Path) -> None:
    """A pool of connections goes on with the certificate that it was made with, and so did the operator, for ever."""
    authority = TestAuthority(tmp_path / "authority")
    shown_by_program(tmp_path, authority.issue("first"))
    async with taking_one_certificate(authority) as (port, taken):
        user = by_program(program(tmp_path, f"echo x >> {tmp_path}/runs; cat {tmp_path}/credential"))
        client = KubernetesClient(await from_kubeconfig(client_of(tmp_path, port, authority, user)))
        assert await client.get("Pod", "here", "p") == NEW
        taken[0] = "second"
        shown_by_program(tmp_path, authority.issue("second"))
        # All that are refused together have the program run once.
        assert await asyncio.gather(*(client.get("Pod", "here", "p") for _ in range(3))) == [NEW] * 3
        assert (tmp_path / "runs").read_text() == "x\n" * 2
        program(tmp_path, "exit 3")
        taken[0] = "third"
        with pytest.raises(ServerUnavailable, match="the program that its user names gives no credentials"):
            await client.get("Pod", "here", "p")
        await client.close()


async def test_a_certificate_that_is_replaced_in_its_file_is_shown(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "authority")
    first, second = authority.issue("first"), authority.issue("second")
    async with taking_one_certificate(authority) as (port, taken):
        user = {"client-certificate": str(first.certificate_file), "client-key": str(first.key_file)}
        client = KubernetesClient(await from_kubeconfig(client_of(tmp_path, port, authority, user)))
        assert await client.get("Pod", "here", "p") == NEW
        taken[0] = "second"
        first.certificate_file.write_bytes(second.certificate_file.read_bytes())
        first.key_file.write_bytes(second.key_file.read_bytes())
        assert await client.get("Pod", "here", "p") == NEW
        await client.close()


async def test_a_renewed_certificate_leaves_what_is_being_read_alone(tmp_path: Path) -> None:
    """A log that somebody follows ends when its server ends it."""
    authority = TestAuthority(tmp_path / "authority")
    shown_by_program(tmp_path, authority.issue("first"))
    async with taking_one_certificate(authority) as (port, taken):
        user = by_program(program(tmp_path, f"cat {tmp_path}/credential"))
        client = KubernetesClient(await from_kubeconfig(client_of(tmp_path, port, authority, user)))
        lines = log_lines(client, LogOptions(namespace="here", pod="p", container="c", follow=True))
        assert await anext(lines) == b"before"
        taken[0] = "second"
        shown_by_program(tmp_path, authority.issue("second"))
        assert await client.get("Pod", "here", "p") == NEW
        assert [line async for line in lines] == [b"after"]
        await client.close()


async def test_a_program_that_fails_is_said(tmp_path: Path) -> None:
    """The package only logs it, and goes on as nobody."""
    file = kubeconfig(tmp_path, "http://127.0.0.1:1", by_program(program(tmp_path, "exit 3")))
    with pytest.raises(SettingError, match="gives no credentials"):
        await from_kubeconfig(file)


async def test_a_token_file_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc")
    login = await from_kubeconfig(kubeconfig(tmp_path, "https://10.0.0.1:6443", {"tokenFile": "secret"}))
    assert login.configuration.api_key == {"BearerToken": "Bearer abc"}
    (tmp_path / "secret").write_text("def")
    await login.renew()
    assert login.configuration.api_key == {"BearerToken": "Bearer def"}


async def test_a_token_in_a_file_ends_with_its_line(tmp_path: Path) -> None:
    """No header may have a newline: each call would fail by a mistake of ours."""
    (tmp_path / "secret").write_text("abc\n")
    async with serving() as wire:
        file = kubeconfig(tmp_path, f"http://127.0.0.1:{wire.port}", {"tokenFile": "secret"})
        client = KubernetesClient(await from_kubeconfig(file))
        wire.says(NEW)
        assert await client.get("Pod", "here", "p") == NEW
        assert wire.last.headers["Authorization"] == "Bearer abc"
        await client.close()
    (tmp_path / "secret").write_text("abc\ndef")
    with pytest.raises(SettingError, match="its user's token is more than one line"):
        await from_kubeconfig(file)


@pytest.mark.parametrize(("user", "shown"), [({"token": "abc"}, "Bearer abc"), ({"username": "nobody"}, None)])
async def test_other_programs_passwords_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any], shown: str | None
) -> None:
    """aiohttp would take those of ~/.netrc, in place of a token or without one."""
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with serving() as wire:
        client = KubernetesClient(await from_kubeconfig(kubeconfig(tmp_path, f"http://127.0.0.1:{wire.port}", user)))
        wire.says(NEW)
        assert await client.get("Pod", "here", "p") == NEW
        assert wire.last.headers.get("Authorization") == shown
        await client.close()


async def test_of_several_files_the_first_says_which_context(tmp_path: Path) -> None:
    """As kubectl has it: else the operator would work in another cluster than the one that kubectl shows."""
    files = [kubeconfig(tmp_path, f"https://{name}:6443", {"token": name}, name) for name in ("first", "second")]
    (tmp_path / "empty").write_text("")
    named = f"{tmp_path / 'empty'}:{tmp_path / 'none'}:{files[0]}:{files[1]}"
    login = await from_kubeconfig(named)
    assert (login.configuration.host, login.configuration.api_key) == (
        "https://first:6443",
        {"BearerToken": "Bearer first"},
    )
    assert (await from_kubeconfig(named, "second")).configuration.host == "https://second:6443"


PROXIES = {"HTTPS_PROXY": "proxy:3128", "HTTP_PROXY": "http://plain:3128", "NO_PROXY": ".local, 10.96.0.0/12,fd00::/8"}


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://api.example:6443", "http://proxy:3128"),
        ("http://api.example", "http://plain:3128"),
        ("https://10.1.2.3", "http://proxy:3128"),
        ("https://10.96.0.1:443", None),
        ("https://[fd00::1]:443", None),
        ("https://api.local:6443", None),
        ("https://127.0.0.1:6443", None),
        ("https://localhost:6443", None),
    ],
)
def test_proxies_are_as_for_kubectl(monkeypatch: pytest.MonkeyPatch, server: str, proxy: str | None) -> None:
    for name, value in PROXIES.items():
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, value)
    assert environment_proxy(server) == proxy


async def test_connections_to_ports_go_by_the_proxy_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment aiohttp sends requests by it, and websockets past it."""
    async with serving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        client = KubernetesClient(await from_kubeconfig(kubeconfig(tmp_path, "http://api.invalid", {"token": "abc"})))
        proxy.says(NEW)
        assert await client.get("Pod", "here", "p") == NEW
        proxy.fails(500)
        with pytest.raises(ServerUnavailable, match=r"connect to p: .*\(500\)"):
            async with port_forward(client, "here", "p", 8080):
                pass
        assert [asked.headers["Host"] for asked in proxy.requests] == ["api.invalid", "api.invalid"]
        await client.close()


async def test_watches_go_by_the_same_login(tmp_path: Path) -> None:
    """kopf's own knows no programs and no files of tokens, and takes files' paths from where the process runs."""
    (tmp_path / "ca.pem").write_text("-")
    (tmp_path / "secret").write_text("abc\n")
    file = Path(kubeconfig(tmp_path, "https://10.0.0.1:6443", {"tokenFile": "secret"}))
    file.write_text(file.read_text().replace("server:", "certificate-authority: ca.pem\n    server:"))
    connections = ConnectionsOfWatches(await from_kubeconfig(str(file)))
    first = await connections.next()
    assert (first.server, first.ca_path, first.insecure) == ("https://10.0.0.1:6443", str(tmp_path / "ca.pem"), False)
    assert (first.default_namespace, first.as_http_headers()) == ("messaging", {"Authorization": "Bearer abc"})
    (tmp_path / "secret").write_text("def\n")
    assert (await connections.next()).as_http_headers() == {"Authorization": "Bearer def"}


@pytest.mark.parametrize("text", ["- nothing", "", "contexts: 3", "current-context: none"])
async def test_what_is_no_kubeconfig_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingError, match=f"kubeconfig {file} cannot be used"):
        await find_login()


async def test_neither_a_pod_nor_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingError, match=r"no pod's account \(.*\), and no kubeconfig at .*/none"):
        await find_login()


async def test_certificates_that_are_none_are_said(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    login = await from_kubeconfig(kubeconfig(tmp_path, "https://10.0.0.1:6443", {"token": "abc"}))
    login.configuration.ssl_ca_cert = str(tmp_path / "ca")
    with pytest.raises(SettingError, match="certificates for the Kubernetes API server cannot be used"):
        KubernetesClient(login)


@pytest.mark.parametrize(("verb", "code"), [("create", 302), ("patch", 303), ("delete", 303)])
async def test_a_change_that_is_only_sent_elsewhere_is_none(verb: str, code: int) -> None:
    """What is asked there is a question, whose answer would be told as the change."""
    async with serving() as wire:
        client = KubernetesClient(wire.login())
        wire.replies(code, b"", {"Location": "/login"})
        wire.says(NEW)
        with pytest.raises(Refused, match=rf"{verb} Pod: the API server's address only leads to http://127\.0\.0\.1"):
            await client.ask(verb, "Pod", path("Pod", "here", "p"), body={"a": 1})
        assert [asked.method for asked in wire.requests][1:] == ["GET"]
        await client.close()


@pytest.mark.slow
def test_models_of_kinds_are_not_loaded() -> None:
    """They would be half of the operator."""
    loaded = "import sys, magnetar.operator.kubernetes.streams; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    models = [name for name in found if name.startswith("kubernetes.") and ".models." in name]
    assert models == []
