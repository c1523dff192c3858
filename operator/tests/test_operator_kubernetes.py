"""Logging in, and what the client makes of kinds and credentials."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from magnetar.core.errors import SettingError
from magnetar.operator.kubernetes.client import KubernetesClient
from magnetar.operator.kubernetes.errors import Answer, NotPermitted, ServerUnavailable, failure, users_failure
from magnetar.operator.kubernetes.kinds import KINDS, path
from magnetar.operator.kubernetes.login import find_login, from_kubeconfig, in_cluster
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


def kubeconfig(folder: Path, server: str, user: dict[str, Any]) -> str:
    """A file with one context."""
    found = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "messaging"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / "config"
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


@pytest.mark.slow
def test_models_of_kinds_are_not_loaded() -> None:
    """They would be half of the operator."""
    loaded = "import sys, magnetar.operator.kubernetes.streams; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    models = [name for name in found if name.startswith("kubernetes.") and ".models." in name]
    assert models == []
