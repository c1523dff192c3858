"""Apache's offloaders: `java/OffloadDriver.java`, compiled against the distribution and the offloaders from Maven."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

from e2e.interchange.parts import LEAN_COLLECTOR, LEAN_JVM
from e2e.peers import distribution

SOURCE = Path(__file__).parent / "java" / "OffloadDriver.java"
SECONDS_MAX = 300.0
"""For one operation; the library of Apache's driver repeats a request for a long time."""
ARTIFACTS = ("tiered-storage-jcloud", "tiered-storage-file-system")
BUCKET = "bucket"


def run_offloader(driver: str, where: str, *words: str) -> dict[str, str]:
    """One operation; its lines by their first word. Raises subprocess.CalledProcessError."""
    command = ["java", *LEAN_JVM.split(), *LEAN_COLLECTOR.split(), "-cp", f"{compiled()}:{jars()}", "OffloadDriver"]
    done = subprocess.run(
        [*command, driver, where, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_MAX,
        env={**os.environ, "ACCESS_KEY_ID": "id", "ACCESS_KEY_SECRET": "secret"},
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("stored ", "digest ")))


@functools.cache
def compiled() -> Path:
    """The folder of classes. Raises subprocess.CalledProcessError when it does not compile."""
    folder = Path(tempfile.gettempdir()) / f"magnetar-offload-driver-{distribution.PULSAR_VERSION}"
    result = folder / "OffloadDriver.class"
    if not result.exists() or result.stat().st_mtime < SOURCE.stat().st_mtime:
        subprocess.run(["javac", "-nowarn", "-d", str(folder), "-cp", jars(), str(SOURCE)], check=True)
    return folder


@functools.cache
def jars() -> str:
    """What the driver needs, the offloaders first. They are fetched by Maven the first time, some 60 MB."""
    folder = distribution.root() / f"offloaders-{distribution.PULSAR_VERSION}"
    if not (folder / "fetched").exists():
        folder.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(
            f"<dependency><groupId>org.apache.pulsar</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{distribution.PULSAR_VERSION}</version></dependency>"
            for artifact in ARTIFACTS
        )
        (folder / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>peer</groupId><artifactId>offloaders</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        subprocess.run(["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"], cwd=folder, check=True)
        (folder / "fetched").touch()
    return f"{folder}/lib/*:{distribution.home()}/lib/*"
