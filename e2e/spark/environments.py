"""Pythons with another PySpark than the repository's: made by uv in the user's cache, once, and used again.

MAGNETAR_E2E_CACHE says where, else it is below XDG_CACHE_HOME or ~/.cache. At most `KEPT_MAX` are kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

KEPT_MAX = 4
"""Each takes 0.3 to 0.8 GB of disk; those that were not used for longest go."""

MAKE_TIMEOUT_S = 900
"""The sources of a PySpark are 0.3 GB, and what is downloaded is packed again before it is installed."""

_READY = "ready"
"""A file in an environment that is complete; its time says when it was used."""


class Unfit(Exception):
    """This machine lacks something. The text says what to install."""


def cache() -> Path:
    """Where everything is kept that Sparks of these tests are made of."""
    named = os.environ.get("MAGNETAR_E2E_CACHE")
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(named) if named else user / "magnetar-e2e") / "spark"


def python_with(pyspark: str, python: str) -> Path:
    """The interpreter of an environment with that PySpark on that version of Python, made if it is not there.

    Raises `Unfit` without uv, and when uv cannot make it."""
    name = f"pyspark-{pyspark}-python-{python}"
    return _made(name, lambda folder: _make(folder, python, [f"pyspark=={pyspark}"]))


def python_beside(*packages: str) -> Path:
    """The interpreter of an environment that has everything this one has, and these packages beside, made if it is not
    there. Nothing that is here already comes in another version. Raises `Unfit` as `python_with`."""
    here = sorted(f"{each.name}=={each.version}" for each in distributions())
    told = "\n".join([sys.prefix, sys.version, *here, *packages])

    def make(folder: Path) -> None:
        _make(folder, sys.executable, list(packages), constraints=here)
        # Its own come first, then those of this one, with all that stands in its own files of this kind.
        site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        (site / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")

    return _made(f"beside-{hashlib.sha256(told.encode()).hexdigest()[:16]}", make)


def _made(name: str, make: Callable[[Path], None]) -> Path:
    environments = cache() / "environments"
    environments.mkdir(parents=True, exist_ok=True)
    folder = environments / name
    with (environments / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _READY).exists():
            make(folder)
        (folder / _READY).touch()
        _forget_oldest(environments)
    return folder / "bin" / "python"


def _make(folder: Path, python: str, packages: list[str], constraints: list[str] | None = None) -> None:
    uv = _uv()
    _run([uv, "venv", "--clear", "--python", python, str(folder)])
    file = folder / "constraints.txt"
    file.write_text("".join(f"{each}\n" for each in constraints or ()))
    python = str(folder / "bin" / "python")
    _run([uv, "pip", "install", "--python", python, "--constraints", str(file), *packages])


def _run(command: list[str]) -> None:
    # uv would rather use the environment that is active than find another Python.
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=MAKE_TIMEOUT_S, check=False
    )
    if ended.returncode:
        raise Unfit(f"{' '.join(command)} said:\n{ended.stderr[-2000:]}")


def _forget_oldest(environments: Path) -> None:
    by_age = sorted(environments.glob(f"*/{_READY}"), key=lambda ready: ready.stat().st_mtime)
    for ready in by_age[:-KEPT_MAX]:
        shutil.rmtree(ready.parent)


def _uv() -> str:
    repository = Path(__file__).parents[2]
    # `uv run` says where it is; the others are where the Makefile looks.
    places = (os.environ.get("UV"), shutil.which("uv"), repository / ".uv/bin/uv", Path.home() / ".local/bin/uv")
    for place in places:
        if place and os.access(place, os.X_OK):
            return str(place)
    raise Unfit("uv is needed, and is not on the path: pip install uv")


def java_home(release: int) -> Path:
    """The folder of a Java of that release: JAVA_HOME's, that on the path, or a Debian package's. Raises `Unfit`."""
    on_path = shutil.which("java")
    named = os.environ.get("JAVA_HOME")
    places = [Path(named)] if named else []
    places += [Path(on_path).resolve().parents[1]] if on_path else []
    places += sorted(Path("/usr/lib/jvm").glob(f"*{release}*"))
    for place in places:
        if _java_release(place / "bin" / "java") == release:
            return place
    raise Unfit(
        f"Java {release} is needed for this Spark: apt-get install openjdk-{release}-jre-headless, or name one with "
        "JAVA_HOME"
    )


def _java_release(java: Path) -> int | None:
    if not os.access(java, os.X_OK):
        return None
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else None
