"""Runs tests against the compiled form of the hot modules, in a copy of the tree: both forms must behave the same.

`python -m tools.run_compiled_tests [pytest's arguments]`. The copy in `build/compiled` is kept, so that only a change
of a hot module costs a compilation; the developer's tree stays plain.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.compile import HOT_MODULES, ROOT, SOURCES, compile_modules, stale

COPY: Final = ROOT / "build" / "compiled"
COPIED: Final = (
    *("pyproject.toml", "conftest.py"),
    *("lib", "bookie", "broker", "proxy", "standalone", "cli", "spark-jobs", "docs", "e2e", "images", "tools"),
    "operator",  # Its tests are named on the page of compatibility, which a test reads.
)
TESTS: Final = (
    *("lib/tests", "bookie/tests", "broker/tests", "proxy/tests", "standalone/tests", "cli/tests"),
    *("spark-jobs/tests", "e2e/tests", "e2e/faults"),
)
ASKS: Final = frozenset(["-h", "--help", "--version", "-V"])
"""What pytest answers without running tests: nothing has to be compiled for it."""
OPTIMIZATION: Final = "1"
"""Enough to find what differs, at a third of the compilation time."""


def update_copy() -> None:
    """Make the copy what the tree is. Times are kept, for they say what has to be compiled again."""
    wanted: set[Path] = set()
    for name in COPIED:
        place = ROOT / name
        for path in place.rglob("*") if place.is_dir() else [place]:
            if path.is_file() and path.suffix not in (".so", ".pyc"):
                wanted.add(path.relative_to(ROOT))
    for path in COPY.rglob("*"):
        if path.is_file() and path.suffix == ".py" and path.relative_to(COPY) not in wanted:
            path.unlink()
    for relative in wanted:
        source, target = ROOT / relative, COPY / relative
        if not target.exists() or source.stat().st_mtime != target.stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def environment() -> dict[str, str]:
    """One in which the copy's modules are found before the installed ones, and misuse of memory is noticed."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(COPY / source) for source in SOURCES),
        "PYTHONMALLOC": "debug",
        "PYTHONFAULTHANDLER": "1",
        "MAGNETAR_COLLECT_AFTER_TESTS": "1",
    }


def check_what_is_imported() -> None:
    """Every hot module is imported from the copy, in its compiled form."""
    names = [".".join(Path(module.partition("/src/")[2]).with_suffix("").parts) for module in HOT_MODULES]
    script = "import importlib, sys; [print(importlib.import_module(name).__file__) for name in sys.argv[1:]]"
    command = [sys.executable, "-c", script, *names]
    files = subprocess.run(command, env=environment(), cwd=COPY, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name, file in zip(names, files.split(), strict=True):
        if not (file.startswith(str(COPY)) and file.endswith(".so")):
            raise SystemExit(f"{name} is imported from {file}: not the compiled form")
    print(f"{len(names)} compiled modules are tested", flush=True)


def main() -> int:
    """Run the command line."""
    arguments = sys.argv[1:]
    if not ASKS.isdisjoint(arguments):
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode
    update_copy()
    if stale(COPY):
        compile_modules(COPY, OPTIMIZATION)
    check_what_is_imported()
    if not any((COPY / argument.partition("::")[0]).exists() for argument in arguments):
        arguments += TESTS
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], env=environment(), cwd=COPY, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
