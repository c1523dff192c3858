"""The operator as Helm installs it."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.kube.kubectl import Namespace, is_ready, name_of, wait_for

logger: Final = logging.getLogger(__name__)

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "magnetar-operator"
RELEASE: Final = "magnetar-operator"
SELECTOR: Final = "app.kubernetes.io/name=magnetar-operator"


@dataclass(slots=True)
class OperatorRelease:
    """One release in its namespace."""

    namespace: Namespace
    repository: str
    version: str
    values: dict[str, Any] = field(default_factory=dict)

    def install(self, **values: Any) -> None:
        """`helm upgrade --install`, as people do it; returns when its pods are ready."""
        self.values |= values
        given = {"image": {"repository": f"{self.repository}/operator", "tag": self.version}, **self.values}
        file = Path("/dev/stdin")
        self.namespace.kubernetes.run(
            self.namespace.kubernetes.helm,
            *("upgrade", "--install", RELEASE, str(CHART), "--namespace", self.namespace.name, "--create-namespace"),
            # The CRDs may be there already: by hand, or from a release of another name.
            *("--values", str(file), "--wait", "--timeout", "120s", "--take-ownership"),
            given=json.dumps(given),
        )

    def restart(self) -> None:
        """New pods, for an image of the same name may be another one by now."""
        self.namespace("rollout", "restart", f"deployment/{RELEASE}")
        self.namespace("rollout", "status", f"deployment/{RELEASE}", "--timeout=90s")

    def uninstall(self) -> None:
        """The CRDs and what they describe stay."""
        self.namespace.helm("uninstall", RELEASE, "--wait", "--ignore-not-found")

    def pods(self) -> list[str]:
        """Ready ones."""
        return [name_of(pod) for pod in self.namespace.all("pods", SELECTOR) if is_ready(pod)]

    def leader(self) -> str:
        """The pod that holds the lease."""
        [lease] = self.namespace.all("leases.coordination.k8s.io")
        return str(lease["spec"]["holderIdentity"])

    def kill(self) -> None:
        """Without any grace, as a node's failure would; another starts by itself."""
        self.namespace("delete", "pods", "-l", SELECTOR, "--grace-period=0", "--force", "--wait=false")

    def wait_ready(self, seconds_max: float = 60.0) -> float:
        """How long it took."""
        began = time.monotonic()
        wait_for("the operator is ready", self.pods, seconds_max)
        return time.monotonic() - began
