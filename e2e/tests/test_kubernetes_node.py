"""What our own Kubernetes node writes and starts, as far as it needs no root."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.kubernetes import components, node
from e2e.kubernetes.__main__ import main
from e2e.kubernetes.archive import Image, write_archive
from e2e.kubernetes.certificates import make_certificates
from e2e.kubernetes.install import Program, is_built, sources_digest
from e2e.kubernetes.network import pod_network, without_ours
from e2e.kubernetes.node import Forgotten, Node
from e2e.kubernetes.objects import objects
from e2e.kubernetes.places import DNS_ADDRESS, NODE, NODE_ADDRESS, PODS, Places, places
from e2e.kubernetes.processes import NodeTrouble, Processes, began, past_proxies, run, succeeds


@pytest.fixture
def node_places(tmp_path: Path) -> Places:
    found = Places(tmp_path)
    for folder in (found.state, found.logs, found.keys):
        folder.mkdir()
    return found


def test_everything_lies_below_the_root_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBERNETES_ROOT", str(tmp_path))
    found = places()
    every = (found.programs, found.state, found.keys, found.kubeconfig, found.runtime_socket, found.base_archive)
    assert all(path.is_relative_to(tmp_path) for path in every)


def test_certificates_are_signed_by_the_authority_and_name_who_they_are(node_places: Places) -> None:
    make_certificates(node_places)
    authority = x509.load_pem_x509_certificate((node_places.keys / "ca.crt").read_bytes())
    kubelet = x509.load_pem_x509_certificate((node_places.keys / "kubelet.crt").read_bytes())
    kubelet.verify_directly_issued_by(authority)
    assert kubelet.subject.rfc4514_string() == f"CN=system:node:{NODE},O=system:nodes"
    server = x509.load_pem_x509_certificate((node_places.keys / "apiserver.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    assert NODE_ADDRESS in [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)


def test_keys_and_kubeconfigs_are_their_owners_alone_and_made_once(node_places: Places) -> None:
    make_certificates(node_places)
    secret = [*node_places.keys.glob("*.key"), *node_places.keys.glob("*.conf"), node_places.kubeconfig]
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    before = node_places.kubeconfig.read_text()
    make_certificates(node_places)
    assert node_places.kubeconfig.read_text() == before


def test_a_half_made_set_of_keys_is_made_again(node_places: Places) -> None:
    make_certificates(node_places)
    (node_places.keys / "done").unlink()
    before = (node_places.keys / "ca.crt").read_bytes()
    make_certificates(node_places)
    assert (node_places.keys / "ca.crt").read_bytes() != before


@pytest.mark.parametrize(
    "name",
    [
        "containerd",
        "etcd",
        "apiserver",
        "controller_manager",
        "scheduler",
        "kubelet",
        "proxy",
        "coredns",
        "provisioner",
    ],
)
def test_each_component_has_a_command_of_plain_words(node_places: Places, name: str) -> None:
    command = getattr(components, name)(node_places)
    assert shlex.split(shlex.join(map(str, command))) == [str(word) for word in command]


def test_the_kubelet_asks_our_dns_and_keeps_images_that_no_registry_has(node_places: Places) -> None:
    components.kubelet(node_places)
    configuration = json.loads((node_places.state / "kubelet.yaml").read_text())
    assert configuration["clusterDNS"] == [DNS_ADDRESS]
    assert configuration["imageGCHighThresholdPercent"] == 100


def test_objects_can_be_applied(node_places: Places) -> None:
    items = json.loads(objects())["items"]
    assert all(item["apiVersion"] and item["kind"] and item["metadata"]["name"] for item in items)
    assert any(item["kind"] == "StorageClass" for item in items)


def test_pods_get_addresses_of_the_one_range(node_places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.kubernetes.network.run", lambda *_: "default via 192.0.2.1 dev nothing0")
    assert PODS in json.dumps(pod_network(node_places))


RULES = r"""*nat
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-aaaa - [0:0]
:CNI-bbbb - [0:0]
:CNI-DN-aaaa - [0:0]
:CNI-DN-bbbb - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.244.0.5/32 -m comment --comment "name: \"kube\" id: \"1\"" -j CNI-aaaa
-A POSTROUTING -s 10.4.0.5/32 -m comment --comment "name: \"bridge\" id: \"2\"" -j CNI-bbbb
-A CNI-aaaa -d 10.244.0.0/24 -m comment --comment "name: \"kube\" id: \"1\"" -j ACCEPT
-A CNI-bbbb -d 10.4.0.0/24 -m comment --comment "name: \"bridge\" id: \"2\"" -j ACCEPT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"kube\" id: \"1\"" --dport 80 -j CNI-DN-aaaa
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"bridge\" id: \"2\"" --dport 81 -j CNI-DN-bbbb
-A CNI-DN-aaaa -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.0.5:80
-A CNI-DN-bbbb -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.4.0.5:81
-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE
COMMIT
"""


def test_rules_of_other_networks_stay() -> None:
    kept = without_ours(RULES)
    assert [line for line in RULES.splitlines() if line not in kept.splitlines()] == [
        line for line in RULES.splitlines() if any(word in line for word in ("aaaa", "KUBE-", "10.244"))
    ]
    assert "CNI-HOSTPORT-DNAT" in kept
    alone = "".join(f"{line}\n" for line in RULES.splitlines() if "bridge" not in line and "bbbb" not in line)
    assert without_ours(alone).splitlines() == [
        "*nat",
        ":POSTROUTING ACCEPT [0:0]",
        "-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE",
        "COMMIT",
    ]


def test_an_archive_holds_layers_in_order_and_says_where_they_are(tmp_path: Path) -> None:
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as archive:
        archive.addfile(tarfile.TarInfo("etc"), io.BytesIO())
    program = tmp_path / "program"
    program.write_bytes(b"run me")
    path = tmp_path / "image.tar"
    write_archive(Image(name="localhost/x:1", root=root, files={"/x": program}, entrypoint=["/x"]), path)
    with tarfile.open(path) as archive:
        content = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    manifest = json.loads(content["manifest.json"])[0]
    assert manifest["RepoTags"] == ["localhost/x:1"]
    assert content[manifest["Layers"][0]] == root.read_bytes()
    configuration = json.loads(content[manifest["Config"]])
    assert configuration["config"]["Entrypoint"] == ["/x"]
    assert len(configuration["rootfs"]["diff_ids"]) == 2


@pytest.mark.slow
def test_processes_run_on_until_they_are_stopped_and_zombies_do_not_count(node_places: Places) -> None:
    processes = Processes(node_places.state, node_places.logs)
    processes.start("sleeper", ["sleep", "60"])
    pid = processes.pid("sleeper")
    assert pid is not None
    processes.start("sleeper", ["sleep", "61"])
    assert processes.pid("sleeper") == pid
    processes.stop("sleeper", signal.SIGKILL)
    assert processes.running() == {}
    os.waitpid(pid, 0)


@pytest.mark.parametrize("content", ["{pid}", "{pid} 1@another", "", "nobody", "{pid} {began} more"])
def test_nobody_elses_process_is_taken_for_ours(node_places: Places, content: str) -> None:
    """Numbers begin anew with the machine, and files stay."""
    processes = Processes(node_places.state, node_places.logs)
    file = node_places.state / "etcd.pid"
    file.write_text(f"{os.getpid()} {began(os.getpid())}\n")
    assert processes.pid("etcd") == os.getpid()
    file.write_text(content.format(pid=os.getpid(), began=began(os.getpid())))
    assert processes.pid("etcd") is None
    processes.stop("etcd")
    assert not file.exists()


def test_programs_are_built_anew_of_other_sources(tmp_path: Path) -> None:
    module, folder = tmp_path / "module", tmp_path / "bin"
    module.mkdir()
    folder.mkdir()
    (module / "go.mod").write_text("module x")
    program = Program("x", module, ".")
    assert not is_built(program, folder)
    (folder / "x").touch()
    assert not is_built(program, folder)
    (folder / "x.sha256").write_text(sources_digest(program))
    assert is_built(program, folder)
    assert not is_built(Program("x", module, ".", ("-X a=b",)), folder)
    (module / "main.go").write_text("package main")
    assert not is_built(program, folder)


def test_no_proxy_stands_before_the_node() -> None:
    assert past_proxies({"NO_PROXY": "corp"}) == {}
    found = past_proxies({"https_proxy": "http://proxy:3128", "no_proxy": "corp,localhost"})
    assert found["NO_PROXY"] == found["no_proxy"]
    assert found["NO_PROXY"].split(",")[:3] == ["corp", "localhost", NODE_ADDRESS]


@pytest.mark.parametrize(("another", "removed"), [(False, ["network", "groups"]), (True, [])])
def test_what_another_node_uses_is_not_taken_away(
    another: bool, removed: list[str], node_places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(node, "_serves", lambda: another)
    monkeypatch.setattr(node, "remove_network", lambda _: found.append("network"))
    monkeypatch.setattr(node, "_remove_control_groups", lambda: found.append("groups"))
    (node_places.state / "etcd").mkdir()
    Node(node_places).down("state")
    assert found == removed
    assert not (node_places.state / "etcd").exists()


class HalfNode(Node):
    """It gets as far as etcd."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self.downs = 0

    def _check_machine(self) -> None:
        """As root on a machine that has everything."""

    def _start(self, tell: Callable[[str], None]) -> None:
        (self.places.state / "etcd.pid").write_text(f"{os.getpid()} {began(os.getpid())}\n")
        raise NodeTrouble("the disk is full")

    def down(self, forget: Forgotten = "nothing") -> None:
        self.downs += 1


def test_a_node_that_cannot_start_leaves_nothing_behind(node_places: Places) -> None:
    half = HalfNode(node_places)
    with pytest.raises(NodeTrouble, match="the disk is full"):
        half.up(lambda _: None)
    assert half.downs == 1
    # One that ran before, and lacks a part, is left as it is.
    with pytest.raises(NodeTrouble, match="the disk is full"):
        half.up(lambda _: None)
    assert half.downs == 1


@pytest.mark.parametrize("command", ["up", "down", "status", "restart-kubelet"])
def test_who_may_not_is_told_before_anything_is_done(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("KUBERNETES_ROOT", str(tmp_path / "node"))
    monkeypatch.setattr(sys, "argv", ["e2e.kubernetes", command])
    assert main() == 1
    assert "needs root" in capsys.readouterr().err
    assert not (tmp_path / "node").exists()


@pytest.mark.slow
def test_a_process_that_dies_is_told_with_its_last_words(node_places: Places) -> None:
    processes = Processes(node_places.state, node_places.logs)
    processes.start("loser", ["sh", "-c", "echo the disk is gone; exit 1"])
    pid = int((node_places.state / "loser.pid").read_text().split()[0])
    os.waitpid(pid, 0)
    with pytest.raises(NodeTrouble, match="the disk is gone"):
        processes.wait_until("loser", lambda: False)


@pytest.mark.slow
def test_commands_say_what_they_said_when_they_fail() -> None:
    with pytest.raises(NodeTrouble, match="no such thing"):
        run("sh", "-c", "echo no such thing >&2; exit 3")
    with pytest.raises(NodeTrouble, match="is not on this machine"):
        run("a-program-that-nobody-has")
    assert not succeeds("a-program-that-nobody-has")
