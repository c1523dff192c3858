"""`kubectl` and `helm` as the tests use them: objects as JSON, waits that say what they waited for."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

Manifest = dict[str, Any]

COMMAND_SECONDS_MAX: Final = 180.0
POLL_SECONDS: Final = 0.25


class CommandFailed(AssertionError):
    """A command that ended with an error; its message is what it said."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        super().__init__(f"{' '.join(command)}: {output.strip()}")
        self.output = output.strip()


class TookTooLong(AssertionError):
    """What was waited for did not come."""


def wait_for(what: str, found: Callable[[], T | None], seconds_max: float, poll_seconds: float = POLL_SECONDS) -> T:
    """Until `found` returns something true, which is returned. A command that fails counts as not yet."""
    began = time.monotonic()
    last = ""
    while True:
        try:
            if result := found():
                logger.info("%s: after %.1f s", what, time.monotonic() - began)
                return result
        except CommandFailed as error:
            last = str(error)
        if time.monotonic() - began > seconds_max:
            raise TookTooLong(f"{what}: not within {seconds_max:.0f} s. {last}")
        time.sleep(poll_seconds)


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """One Kubernetes cluster, as the tools of people see it."""

    kubeconfig: str
    kubectl: str = "kubectl"
    helm: str = "helm"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def run(self, *command: str, given: str | None = None, seconds_max: float = COMMAND_SECONDS_MAX) -> str:
        """A command's output; `CommandFailed` for any other end than 0."""
        done = subprocess.run(
            command,
            input=given,
            text=True,
            capture_output=True,
            timeout=seconds_max,
            check=False,
            env={**self.environment, "KUBECONFIG": self.kubeconfig},
        )
        if done.returncode:
            raise CommandFailed(command[1:], done.stderr or done.stdout)
        return done.stdout

    def __call__(self, *arguments: str, given: str | None = None, seconds_max: float = COMMAND_SECONDS_MAX) -> str:
        """`kubectl` with these arguments."""
        return self.run(self.kubectl, *arguments, given=given, seconds_max=seconds_max)

    def in_namespace(self, namespace: str) -> Namespace:
        """The same, in one namespace."""
        return Namespace(self, namespace)


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace of a cluster."""

    kubernetes: Kubernetes
    name: str

    def __call__(self, *arguments: str, given: str | None = None, seconds_max: float = COMMAND_SECONDS_MAX) -> str:
        """`kubectl` in this namespace."""
        return self.kubernetes("--namespace", self.name, *arguments, given=given, seconds_max=seconds_max)

    def helm(self, *arguments: str, seconds_max: float = 300.0) -> str:
        """`helm` in this namespace."""
        return self.kubernetes.run(self.kubernetes.helm, "--namespace", self.name, *arguments, seconds_max=seconds_max)

    def apply(self, manifest: Manifest, *options: str) -> None:
        """`kubectl apply`, as people do it."""
        self("apply", *options, "-f", "-", given=json.dumps(manifest))

    def get(self, kind: str, name: str) -> Manifest:
        """One object; `CommandFailed` if there is none."""
        found: Manifest = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def find(self, kind: str, name: str) -> Manifest | None:
        """One object, or None."""
        text = self("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def all(self, kind: str, selector: str = "") -> list[Manifest]:
        """All objects of a kind, or those with these labels."""
        found: list[Manifest] = json.loads(self("get", kind, "-l", selector, "-o", "json"))["items"]
        return found

    def pods(self, component: str, instance: str = "") -> list[Manifest]:
        """A component's pods that are not on their way out, by name."""
        labels = f"app.kubernetes.io/component={component}"
        found = self.all("pods", f"{labels},app.kubernetes.io/instance={instance}" if instance else labels)
        return sorted((pod for pod in found if "deletionTimestamp" not in pod["metadata"]), key=name_of)

    def patch(self, kind: str, name: str, patch: Manifest) -> None:
        """A merge patch."""
        self("patch", kind, name, "--type=merge", "-p", json.dumps(patch))


def name_of(manifest: Manifest) -> str:
    """An object's name."""
    return str(manifest["metadata"]["name"])


def is_ready(pod: Manifest) -> bool:
    """Whether a pod is ready."""
    return condition(pod, "Ready").get("status") == "True"


def condition(manifest: Manifest, type_: str) -> Manifest:
    """One of an object's conditions; empty if it has none of that type."""
    found = manifest.get("status", {}).get("conditions", ())
    return next((each for each in found if each["type"] == type_), {})
