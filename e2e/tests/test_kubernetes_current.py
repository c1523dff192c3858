"""Which Kubernetes is chosen, and what it is asked: with programs that only note how they are called."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from e2e.kube.__main__ import end_in_order
from e2e.kubernetes import current as module
from e2e.kubernetes.current import current
from e2e.kubernetes.node import Node
from e2e.kubernetes.processes import NodeTrouble
from images.build import NoBuilder

NOTES = """#!/bin/sh
echo "${0##*/} $*" >> "$CALLS"
case "${0##*/} $*" in
  "kind get clusters") /bin/cat "$CLUSTERS" ;;
  "kind create cluster "*) echo magnetar-e2e > "$CLUSTERS" ;;
  "kind get kubeconfig "*) echo "of kind" ;;
  "kubectl "*) [ -n "$ANSWERS" ] && [ "$KUBECONFIG" = "$ANSWERS" ] ;;
  "docker buildx version") [ -z "$NO_BUILDX" ] ;;
esac
"""


class Programs:
    """What is on the PATH, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._calls = folder / "calls"
        (folder / "clusters").touch()
        (folder / "bin").mkdir()
        monkeypatch.setenv("PATH", str(folder / "bin"))
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("KUBERNETES_ROOT", str(folder / "node"))
        monkeypatch.setenv("CALLS", str(self._calls))
        monkeypatch.setenv("CLUSTERS", str(folder / "clusters"))
        for name in ("KUBECONFIG", "BUILDKIT_HOST", "XDG_CACHE_HOME", "ANSWERS", "NO_BUILDX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(module, "Node", NoNode)

    def have(self, *names: str) -> None:
        for name in names:
            path = self.folder / "bin" / name
            path.write_text(NOTES)
            path.chmod(0o755)

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []


class NoNode(Node):
    """A machine that cannot be a node."""

    @staticmethod
    def check_rights() -> None:
        raise NodeTrouble("not root")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


@pytest.mark.slow
def test_kind_has_a_kubeconfig_of_its_own_and_is_found_again(programs: Programs) -> None:
    programs.have("kind", "docker", "kubectl", "helm")
    for _ in range(2):
        found = current(lambda _: None)
        assert found.kind == "kind"
        kubeconfig = Path(found.environment["KUBECONFIG"])
        assert kubeconfig.read_text() == "of kind\n"
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
    created = [call for call in programs.calls() if call.startswith("kind create")]
    # Without its own file kind would make itself the current context of the user's.
    assert created == [f"kind create cluster --name magnetar-e2e --wait 120s --kubeconfig {kubeconfig}"]


@pytest.mark.slow
def test_images_are_built_by_docker_for_kind_and_loaded(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.have("kind", "docker", "kubectl", "helm", "buildctl")
    chosen = current(lambda _: None)
    chosen.build_images(["broker"], repository="localhost/x", version="7")
    calls = programs.calls()[-3:]
    assert calls[0].startswith("docker buildx build --progress plain --file ")
    assert " --target broker --tag localhost/x/broker:7 " in calls[0]
    assert " --load " in calls[0]
    assert calls[1].startswith("docker save --output ")
    assert calls[1].endswith("/image.tar localhost/x/broker:7")
    assert calls[2].startswith("kind load image-archive ")
    assert calls[2].endswith("/image.tar --name magnetar-e2e")
    # Another builder's images are not where Docker could save them from.
    monkeypatch.setenv("NO_BUILDX", "yes")
    monkeypatch.setenv("BUILDKIT_HOST", "tcp://elsewhere")
    with pytest.raises(NoBuilder):
        chosen.build_images(["broker"])


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["kind", "docker", "kubectl", "helm"])
def test_kind_is_passed_over_where_a_program_is_missing(programs: Programs, missing: str) -> None:
    programs.have(*({"kind", "docker", "kubectl", "helm"} - {missing}))
    with pytest.raises(NodeTrouble, match="not root"):
        current(lambda _: None)


@pytest.mark.slow
def test_a_kubeconfig_of_several_files_is_kubectls_to_read(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.have("kubectl")
    several = os.pathsep.join(["/a", "/b"])
    monkeypatch.setenv("KUBECONFIG", several)
    with pytest.raises(NodeTrouble, match="does not answer"):
        current(lambda _: None)
    monkeypatch.setenv("ANSWERS", several)
    found = current(lambda _: None)
    assert (found.kind, found.environment["KUBECONFIG"]) == ("given", several)
    with pytest.raises(NodeTrouble, match="MAGNETAR_E2E_REPOSITORY"):
        found.build_images(["broker"])


def test_a_run_that_is_to_end_takes_its_node_down_first() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        end_in_order()
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, before)
