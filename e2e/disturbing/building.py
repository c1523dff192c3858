"""Shared objects that stand before the C library of a process (LD_PRELOAD), built from a C file of this repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class NoCompiler(Exception):
    """There is no C compiler, so nothing can stand before the C library."""


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc")


def build(source: Path, folder: Path) -> Path:
    """The source as a shared object in the folder. `NoCompiler`."""
    command = compiler()
    if command is None:
        raise NoCompiler(f"{source.name} is built with a C compiler, and there is no cc on the path")
    target = folder / source.with_suffix(".so").name
    arguments = [command, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(source)]
    subprocess.run([*arguments, "-ldl"], check=True, timeout=120)
    return target
