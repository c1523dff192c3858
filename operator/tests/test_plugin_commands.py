"""The commands of `kubectl pulsar`, from their words to what they print and change."""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from magnetar.operator.children.naming import REPLACE_ANNOTATION
from magnetar.operator.plugin import connection
from magnetar.operator.plugin.command_line import application
from magnetar.operator.plugin.commands import drain
from magnetar.operator.plugin.commands.unload import parse
from magnetar.operator.plugin.completion import NAME, completions
from magnetar.operator.plugin.restarts import RESTARTED_ANNOTATION
from magnetar.operator.plugin.target import Target
from operator_fakes.plugin_fakes import (
    NAMESPACE,
    FakeKubernetes,
    cluster_manifest,
    condition,
    crashing,
    pod_manifest,
    pool_manifest,
)
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

PLAIN = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1", "TERM": "dumb"}
"""The same width as in every other test: the library reads it once, when it is imported."""


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    """What the commands of the test find."""
    status = {"conditions": [condition("Ready", "True", "AllReady")], "observedGeneration": 3, "phase": "Ready"}
    found = FakeKubernetes(
        cluster_manifest(status=status),
        pool_manifest(status={"members": [{"name": "demo-bookie-0", "state": "Writable", "diskUsagePercent": 50}]}),
        pod_manifest("demo-bookie-0", "bookie", pool="demo"),
        pod_manifest("demo-broker-a", "broker"),
    )

    @contextlib.asynccontextmanager
    async def opened(target: Target) -> AsyncIterator[FakeKubernetes]:
        found.namespace = target.namespace or NAMESPACE
        yield found

    monkeypatch.setattr(connection, "open_kubernetes", opened)
    return found


def call(*arguments: str) -> Result:
    return CliRunner().invoke(application, list(arguments), env=PLAIN, prog_name=NAME)


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    root = typer.main.get_command(application)
    context = root.make_context(NAME, ["--help"], resilient_parsing=True)

    def walk(group: TyperGroup, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, TyperGroup):
                yield from walk(command, (*words, name))
            else:
                yield (*words, name)

    assert isinstance(root, TyperGroup)
    yield from walk(root, ())


ALL = list(commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    shown = call(*words, "--help")
    assert shown.exit_code == 0
    assert f"Usage: kubectl pulsar {' '.join(words)}" in shown.output
    for number, line in enumerate(shown.output.splitlines()):
        assert len(line) <= 80, f"line {number}"
    examples = re.findall(r"^ +kubectl pulsar ([a-z-]+(?: [a-z-]+)*)", shown.output, re.MULTILINE)
    assert examples
    for example in examples:
        named = tuple(example.split())
        assert any(named[: len(known)] == known for known in ALL)


# --- status


def test_status_of_the_only_cluster(kubernetes: FakeKubernetes) -> None:
    shown = call("status")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("● demo  Ready · namespace messaging")
    found = json.loads(call("status", "-o", "json").stdout)
    assert (found["name"], found["status"]["phase"], found["pools"][0]["name"]) == ("demo", "Ready", "demo")
    assert kubernetes.patches == []


def test_status_of_several(kubernetes: FakeKubernetes) -> None:
    kubernetes.put(cluster_manifest("other"))
    assert len(call("status").stdout.splitlines()) == 3
    assert [one["name"] for one in json.loads(call("status", "-A", "-o", "json").stdout)] == ["demo", "other"]
    assert call("status", "other").stdout.startswith("◐ other  not looked at yet")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("status", "none"), 2, "there is no cluster none in namespace messaging; there are: demo (-n messaging)"),
        (("status", "-n", "empty"), 2, "there is no cluster in namespace empty; there are: demo (-n messaging)"),
        (("top", "brokers", "--sort", "size"), 2, "there is no column 'size' to sort by"),
        (("drain", "bookie", "none"), 2, "there is no pod none in namespace messaging; there are: demo-bookie-0"),
        (("drain", "bookie", "demo-broker-a"), 2, "demo-broker-a is no bookie's pod"),
        (("drain", "bookie", "demo-bookie-0"), 2, "Nobody can be asked here: give --yes"),
        (("hibernate",), 2, "Nobody can be asked here: give --yes"),
        (("logs", "--since", "soon"), 2, "such as 10m"),
        (("logs", "--pod", "none"), 2, "no pod none of cluster demo; there are: demo-bookie-0, demo-broker-a"),
        (("unload", "a/b/0x1"), 2, "neither a topic nor a bundle"),
        (("restart", "bookie", "--pool", "cold", "-y"), 2, "demo has no pool cold; there are: demo"),
        (("restart", "broker", "--pool", "demo", "-y"), 2, "--pool goes with bookies only"),
    ],
)
def test_mistakes_are_explained(kubernetes: FakeKubernetes, arguments: tuple[str, ...], code: int, words: str) -> None:
    shown = call(*arguments)
    assert shown.exit_code == code
    assert words in shown.stderr
    assert shown.stdout == ""
    assert kubernetes.patches == []


def test_two_clusters_must_be_told_apart(kubernetes: FakeKubernetes) -> None:
    kubernetes.put(cluster_manifest("other"))
    shown = call("pause")
    assert (shown.exit_code, shown.stderr.splitlines()[0]) == (
        2,
        "● there are 2 clusters in namespace messaging, name one: demo, other",
    )


def test_missing_rights_and_a_missing_operator(kubernetes: FakeKubernetes) -> None:
    kubernetes.forbidden.add("PulsarCluster")
    shown = call("status")
    assert shown.exit_code == 1
    assert "Ask for the right" in shown.stderr
    kubernetes.forbidden = {"Event"}
    assert call("status").exit_code == 0
    kubernetes.missing_kinds.add("PulsarCluster")
    assert "Install the operator first" in call("status").stderr


# --- switches


@pytest.mark.parametrize(
    ("command", "spec", "patch"),
    [
        ("pause", {}, {"paused": True}),
        ("resume", {"paused": True}, {"paused": False}),
        ("hibernate", {}, {"hibernated": True}),
        ("wake", {"hibernated": True}, {"hibernated": False}),
    ],
)
def test_switches(kubernetes: FakeKubernetes, command: str, spec: dict[str, Any], patch: dict[str, Any]) -> None:
    kubernetes.put(cluster_manifest(spec=spec))
    yes = ["--yes"] if command == "hibernate" else []
    assert call(command, *yes).exit_code == 0
    assert kubernetes.patches == [("PulsarCluster", "demo", {"metadata": {"uid": "uid-demo"}, "spec": patch})]
    again = call(command, *yes)
    assert (again.exit_code, "nothing was changed" in again.stderr) == (0, True)
    assert len(kubernetes.patches) == 1


def test_bookies_of_all_pools_are_restarted_or_of_one(kubernetes: FakeKubernetes) -> None:
    kubernetes.put(pool_manifest("cold"))
    kubernetes.put(pool_manifest("foreign", cluster="other"))
    assert call("restart", "bookie", "-y").exit_code == 0
    assert [(kind, name) for kind, name, _ in kubernetes.patches] == [("PulsarCluster", "demo"), ("Bookie", "cold")]
    assert RESTARTED_ANNOTATION in str(kubernetes.patches[1][2])
    kubernetes.patches.clear()
    assert call("restart", "bookie", "--pool", "cold", "-y").exit_code == 0
    assert [(kind, name) for kind, name, _ in kubernetes.patches] == [("Bookie", "cold")]


# --- drains of bookies


def test_a_bookie_is_to_be_replaced_and_is_not_any_more(kubernetes: FakeKubernetes) -> None:
    asked = call("drain", "bookie", "demo-bookie-0", "-y", "--no-follow")
    assert asked.exit_code == 0
    assert "the operator drains it" in asked.stderr
    patch = {"metadata": {"uid": "uid-demo-bookie-0", "annotations": {REPLACE_ANNOTATION: "true"}}}
    assert kubernetes.patches == [("Pod", "demo-bookie-0", patch)]
    again = call("replace", "demo-bookie-0", "--no-follow")
    assert "is to be replaced already" in again.stderr
    assert call("replace", "demo-bookie-0", "--cancel").exit_code == 0
    assert kubernetes.patches[-1][2]["metadata"]["annotations"] == {REPLACE_ANNOTATION: None}
    assert "nothing to take back" in call("replace", "demo-bookie-0", "--cancel").stderr
    assert len(kubernetes.patches) == 2


def test_a_replacement_is_taken_back_though_its_pod_is_another_one(kubernetes: FakeKubernetes) -> None:
    remembered = {"podUid": "gone", "claimUids": ["a"]}
    kubernetes.put(pool_manifest(status={"members": [{"name": "demo-bookie-0", "replacement": remembered}]}))
    assert "is to be replaced already" in call("replace", "demo-bookie-0", "--no-follow").stderr
    assert call("replace", "demo-bookie-0", "--cancel").exit_code == 0
    assert kubernetes.patches[-1][2]["metadata"]["annotations"] == {REPLACE_ANNOTATION: "false"}
    assert "nothing to take back" in call("replace", "demo-bookie-0", "--cancel").stderr


def test_a_replacement_is_followed_to_its_end(kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "POLL_SECONDS", 0.001)
    drained = {
        "name": "demo-bookie-0",
        "state": "Draining",
        "drain": {"step": "Replicate", "ledgersTotal": 4, "ledgersLeft": 1},
    }
    # The first is looked at before it is wished.
    statuses: list[dict[str, Any]] = [
        {},
        {"members": [drained]},
        {"members": [{"name": "demo-bookie-0", "state": "Starting"}]},
    ]
    reads = kubernetes.get

    async def get(kind: str, namespace: str, name: str) -> Any:
        if kind == "Bookie" and statuses:
            kubernetes.put(pool_manifest(status=statuses.pop(0)))
        elif kind == "Bookie":
            pod = pod_manifest("demo-bookie-0", "bookie", pool="demo")
            pod["metadata"]["uid"] = "another"
            kubernetes.put(pod)
            kubernetes.put(pool_manifest(status={"members": [{"name": "demo-bookie-0", "state": "Writable"}]}))
        return await reads(kind, namespace, name)

    monkeypatch.setattr(kubernetes, "get", get)
    shown = call("replace", "demo-bookie-0", "-y")
    assert shown.exit_code == 0, shown.stderr
    assert "demo-bookie-0: Replicate, 1 of 4 ledgers left" in shown.stderr
    assert shown.stderr.splitlines()[-1] == "● demo-bookie-0: replaced: it takes writes again"


# --- logs, reports, completion


def test_logs_of_what_hurts(kubernetes: FakeKubernetes) -> None:
    assert "Nothing hurts in demo" in call("logs").stderr
    kubernetes.put(pod_manifest("demo-broker-a", "broker", ready=False, status=crashing()))
    kubernetes.logs = {
        "demo-broker-a": [b"2026-11-21T10:00:01Z ERROR no"],
        "demo-bookie-0": [b"2026-11-21T10:00:00Z well"],
    }
    shown = call("logs")
    assert shown.stdout == "demo-broker-a  ERROR no\n"
    assert shown.stderr == "demo-broker-a: CrashLoopBackOff\n"
    assert call("logs", "--all", "--tail", "-1").stdout == "demo-bookie-0  well\ndemo-broker-a  ERROR no\n"
    assert kubernetes.log_options[-1].tail_lines is None
    found = [
        json.loads(line) for line in call("logs", "-c", "bookie", "-o", "json", "--since", "5m").stdout.splitlines()
    ]
    assert found == [{"time": "2026-11-21T10:00:00.000000000Z", "source": "demo-bookie-0", "text": "well"}]
    assert kubernetes.log_options[-1].since_seconds == 300


def test_a_report_has_all_that_may_be_read(kubernetes: FakeKubernetes, tmp_path: Path) -> None:
    kubernetes.put(
        {"kind": "Secret", "metadata": {"name": "demo-control", "namespace": NAMESPACE}, "data": {"token": "x"}}
    )
    kubernetes.logs = {"demo-broker-a": [b"2026-11-21T10:00:00Z hello"], "demo-bookie-0": []}
    kubernetes.forbidden = {"Node"}
    file = tmp_path / "report.tar.gz"
    shown = call("report", "--file", str(file))
    assert shown.exit_code == 0
    assert "left out: nodes: Node is forbidden" in shown.stderr
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        texts = b"".join(member.read() for name in archive.getnames() if (member := archive.extractfile(name)))
    assert names == {
        *("cluster.yaml", "status.txt", "status.json", "versions.yaml", "pools.yaml", "missing.txt"),
        *("objects/pod.yaml", "logs/demo-broker-a.log"),
    }
    assert b"demo-control" not in texts


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["un"], ["unload"]),
        (["status", ""], ["demo"]),
        (["drain", "bookie", "demo-"], ["demo-bookie-0"]),
        (["restart", "b"], ["bookie", "broker"]),
        (["status", "--nam"], ["--namespace"]),
    ],
)
def test_words_are_completed_as_kubectl_asks(
    kubernetes: FakeKubernetes,
    words: list[str],
    found: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_KUBECTL_PULSAR_COMPLETE", "_TYPER_COMPLETE_FISH_ACTION", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.setenv(name, "")
    completions(words, application)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in lines[:-1]] == found
    assert lines[-1] == ":4"


def test_the_script_of_completion() -> None:
    shown = call("completion")
    assert shown.stdout.startswith("#!/bin/sh\n")
    assert 'kubectl-pulsar completion --words -- "$@"' in shown.stdout


def test_topics_and_bundles_are_told_apart() -> None:
    assert str(parse("orders-1")) == "persistent://public/default/orders-1"
    assert str(parse("a/b/0x00000000_0x80000000")) == "a/b/0x00000000_0x80000000"
