"""The Kubernetes cluster that tests run on, the operator in it, namespaces, and the table of what was tried."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.kube.clusters import DeployedCluster, small
from e2e.kube.kubectl import Kubernetes, Namespace
from e2e.kube.release import OperatorRelease

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = os.environ.get("MAGNETAR_E2E_REPOSITORY", "localhost/magnetar")
VERSION = os.environ.get("MAGNETAR_E2E_VERSION", "dev")
OPERATOR_NAMESPACE = "magnetar-system"

logging.getLogger("e2e").setLevel(logging.INFO)


@pytest.fixture(scope="session")
def kubernetes() -> Kubernetes:
    """The one that KUBECONFIG names, with the CRDs of this tree."""
    kubeconfig = os.environ.get("KUBECONFIG")
    assert kubeconfig, "KUBECONFIG names no cluster: run these by `make e2e-kubernetes`, which chooses or starts one"
    kubectl, helm = shutil.which("kubectl"), shutil.which("helm")
    assert kubectl, "kubectl is not on the PATH"
    assert helm, "helm is not on the PATH"
    found = Kubernetes(kubeconfig, kubectl, helm)
    found("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    return found


@pytest.fixture
def scratch(kubernetes: Kubernetes) -> Iterator[Namespace]:
    """An empty namespace, which goes afterwards."""
    yield from _namespace(kubernetes)


@pytest.fixture(scope="module")
def shared_namespace(kubernetes: Kubernetes) -> Iterator[Namespace]:
    """One for all tests of a module."""
    yield from _namespace(kubernetes)


def _namespace(kubernetes: Kubernetes) -> Iterator[Namespace]:
    name = f"e2e-{secrets.token_hex(4)}"
    kubernetes("create", "namespace", name)
    # What pods have to meet in a cluster that is looked after.
    kubernetes("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield kubernetes.in_namespace(name)
    kubernetes("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def operator(kubernetes: Kubernetes) -> OperatorRelease:
    """The operator, installed once for all; it stays for the next run."""
    release = OperatorRelease(kubernetes.in_namespace(OPERATOR_NAMESPACE), REPOSITORY, VERSION)
    release.install()
    release.restart()
    return release


@pytest.fixture
def new_cluster(operator: OperatorRelease, scratch: Namespace) -> Iterator[Callable[..., DeployedCluster]]:
    """Makes clusters in a namespace of the test's own, and takes them down again."""
    made: list[DeployedCluster] = []

    def make(name: str = "blue", *, wait: bool = True, **spec: object) -> DeployedCluster:
        cluster = DeployedCluster(scratch, name, small() if not spec else small(**spec))  # type: ignore[arg-type]
        made.append(cluster)
        cluster.apply()
        if wait:
            cluster.wait_ready()
        return cluster

    yield make
    for cluster in made:
        cluster.delete()


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says something that stands in the table of what was tried."""
    return lambda text: record_property("note", text)


TRIED: list[tuple[str, str, str, float, str]] = []
"""Module, what was tried, how it ended, seconds, what it noted."""
_BEGAN: dict[str, float] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
    """When each began."""
    _BEGAN[nodeid] = time.monotonic()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keeps how each test ended, in words."""
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        module, _, name = report.nodeid.rpartition("::")
        words = name.removeprefix("test_").replace("_", " ")
        seconds = time.monotonic() - _BEGAN.get(report.nodeid, time.monotonic())
        notes = "; ".join(str(value) for name, value in report.user_properties if name == "note")
        TRIED.append((Path(module).stem.removeprefix("test_"), words, report.outcome, seconds, notes))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of what was tried."""
    if not TRIED:
        return
    terminalreporter.section("what was tried")
    for module, words, outcome, seconds, notes in TRIED:
        good = outcome == "passed"
        line = f"{module:<12} {outcome:<8} {seconds:7.1f} s  {words}" + (f" ({notes})" if notes else "")
        terminalreporter.write_line(line, green=good, red=not good)
