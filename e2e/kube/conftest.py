"""The Kubernetes cluster that tests run on, namespaces of their own, and the table of what was tried."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.kube.kubectl import Kubernetes, Namespace

ROOT = Path(__file__).resolve().parents[2]


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
    name = f"e2e-{secrets.token_hex(4)}"
    kubernetes("create", "namespace", name)
    yield kubernetes.in_namespace(name)
    kubernetes("delete", "namespace", name, "--wait=false")
