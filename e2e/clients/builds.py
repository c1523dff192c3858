"""How each stock client's program is built and started."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
GO_BINARY = HERE / "go" / "build" / "client"
PULSARCTL = "github.com/streamnative/pulsarctl"
PULSARCTL_BINARY = HERE / "pulsarctl" / "build" / "pulsarctl"
JAVA_TARGET = HERE / "java" / "target"
# Enough for the workloads here; a client must not crowd out the server it is run against. The second
# compiler would take longer for its work than a client of some seconds gains by it.
JAVA_OPTIONS = [
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
]


def missing(client: str) -> str | None:
    """What this machine lacks to build the client, or None."""
    needed = {"python": (), "go": ("go",), "pulsarctl": ("go",), "java": ("java", "mvn")}[client]
    absent = [program for program in needed if shutil.which(program) is None]
    return f"{client} client: no {', '.join(absent)}" if absent else None


def workload_command(client: str) -> list[str]:
    """The program that takes `produce|consume OPTIONS.json`, built when its sources are newer than it."""
    if client == "python":
        return [sys.executable, str(HERE / "python" / "client.py")]
    if client == "go":
        return [str(build_go())]
    return java_command("dev.magnetar.e2e.Client")


def feature_command(client: str) -> list[str]:
    """The program that takes `SERVICE_URL ADMIN_URL [CHECK…]` and prints one OK or FAIL line a check."""
    if client == "python":
        return [sys.executable, str(HERE / "python" / "features.py")]
    if client == "go":
        return [str(build_go()), "features"]
    return java_command("dev.magnetar.e2e.FeatureCheck")


def transaction_command(client: str) -> list[str]:
    """The program that takes `work|flood OPTIONS.json`: the Java or the Go client's transactions."""
    if client == "go":
        return [str(build_go()), "transactions"]
    return java_command("dev.magnetar.e2e.Transactions")


@functools.cache
def build_go() -> Path:
    """Raises subprocess.CalledProcessError when it does not compile."""
    with _one_at_a_time("go"):
        subprocess.run(["go", "build", "-o", str(GO_BINARY), "."], cwd=HERE / "go", check=True)
    return GO_BINARY


@functools.cache
def build_pulsarctl() -> Path:
    """Raises subprocess.CalledProcessError when its module cannot be had or does not compile."""
    with _one_at_a_time("go"):
        subprocess.run(["go", "build", "-o", str(PULSARCTL_BINARY), PULSARCTL], cwd=HERE / "pulsarctl", check=True)
    return PULSARCTL_BINARY


@functools.cache
def build_java() -> Path:
    """The folder of jars. Raises subprocess.CalledProcessError when it does not compile."""
    jar = JAVA_TARGET / "e2e-java-client-1.jar"
    sources = [HERE / "java" / "pom.xml", *(HERE / "java" / "src").rglob("*.java")]
    with _one_at_a_time("maven"):
        if not jar.exists() or any(source.stat().st_mtime > jar.stat().st_mtime for source in sources):
            subprocess.run(["mvn", "-q", "-B", "package"], cwd=HERE / "java", check=True)
    return jar


@contextmanager
def _one_at_a_time(builder: str) -> Iterator[None]:
    """Of all builds of this user. Maven's folder of artifacts breaks when two fill it at once. Go's does not, but each
    worker of a test run would compile the same hundreds of packages beside the others, on a machine that has none."""
    with (Path(tempfile.gettempdir()) / f"magnetar-{builder}-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def java_command(main_class: str) -> list[str]:
    jar = build_java()
    return ["java", *JAVA_OPTIONS, "-cp", f"{jar}:{JAVA_TARGET / 'lib'}/*", main_class]
