"""Copies what Python needs to run out of the file system of the base image, for an image that has nothing else.

    interpreter.py TREE

Taken are the interpreter, its standard library (with bytecode, without what only developers use), the shared libraries
that either of them or a wheel may ask for, CA certificates and the few files of /etc that the C library reads.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

USER_ID: Final = 10_000

DROPPED: Final = (
    "__phello__", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sitecustomize.py", "test", "tkinter",
    "turtle.py", "turtledemo", "site-packages", "dist-packages",
)  # fmt: skip
"""Of the standard library; also what somebody installed into it."""

WHEELS_NEED: Final = ("libstdc++.so.6", "libgcc_s.so.1", "librt.so.1", "libpthread.so.0", "libdl.so.2", "libutil.so.1")
"""What wheels may take for granted (manylinux) besides what Python itself has."""

FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/openssl.cnf", "/etc/protocols", "/etc/services")

MERGED: Final = ("bin", "sbin", "lib", "lib64")
"""Names of folders in / that are links into /usr."""


def shared_libraries(binaries: Iterable[Path]) -> set[Path]:
    """Everything that the dynamic linker would load for these, itself included."""
    found: set[Path] = set()
    for binary in binaries:
        listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
        found |= {Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+)", listed, re.MULTILINE)}
    return found


def linker_cache() -> dict[str, Path]:
    """Libraries by name, as the dynamic linker finds them."""
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return {name: Path(path) for name, path in re.findall(r"^\s+(\S+) .* => (\S+)$", listed, re.MULTILINE)}


def copy(path: Path, tree: Path) -> None:
    """Copy a file, under the name it is asked for by."""
    source = path.parent.resolve() / path.name
    target = tree / source.relative_to("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=True)


def copy_interpreter(tree: Path) -> None:
    """The interpreter under its own name and as python3, which virtual environments link to."""
    executable = Path(sys.executable)
    copy(executable.resolve(), tree)
    if executable != executable.resolve():
        link = tree / executable.relative_to("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(executable.resolve())


def copy_standard_library(tree: Path) -> Path:
    """The standard library with its bytecode."""
    source = Path(sysconfig.get_path("stdlib"))
    target = tree / source.relative_to("/")
    ignored = shutil.ignore_patterns("__pycache__", "config-*", "*.a", "*.exe")

    def skip(folder: str, names: list[str]) -> set[str]:
        top = set(DROPPED) if Path(folder) == source else {"test", "tests"} & set(names)
        return {*ignored(folder, names), *(top & set(names))}

    shutil.copytree(source, target, ignore=skip)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(target, quiet=1, invalidation_mode=mode, stripdir=str(tree), prependdir="/")
    return target


def write_etc(tree: Path) -> None:
    """Names of users, and where to look for names of hosts."""
    etc = tree / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    (etc / "passwd").write_text(
        f"root:x:0:0:root:/:/nonexistent\nmagnetar:x:{USER_ID}:{USER_ID}:magnetar:/tmp:/nonexistent\n"
    )
    (etc / "group").write_text(f"root:x:0:\nmagnetar:x:{USER_ID}:\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def main() -> None:
    """Run the command line."""
    tree = Path(sys.argv[1])
    for name in MERGED:
        folder = Path("/") / name
        if folder.is_symlink():
            tree.joinpath(folder.readlink()).mkdir(parents=True, exist_ok=True)
            (tree / name).symlink_to(folder.readlink())
    copy_interpreter(tree)
    library = copy_standard_library(tree)
    known = linker_cache()
    more = [known[name] for name in WHEELS_NEED if name in known]
    binaries = [Path(sys.executable).resolve(), *library.rglob("*.so"), *more]
    for path in sorted({*shared_libraries(binaries), *more}):
        copy(path, tree)
    for name in FILES:
        if Path(name).exists():
            copy(Path(name), tree)
    if (ssl := Path("/usr/lib/ssl")).is_dir():  # Links into /etc/ssl: where OpenSSL looks first.
        shutil.copytree(ssl, tree / "usr/lib/ssl", symlinks=True, ignore=shutil.ignore_patterns("misc", "private"))
    write_etc(tree)
    subprocess.run(["ldconfig", "-r", str(tree)], check=True)
    (tree / "tmp").mkdir(mode=0o1777)
    (tree / "tmp").chmod(0o1777)
    for name in ("proc", "sys", "dev", "conf"):
        (tree / name).mkdir()


if __name__ == "__main__":
    main()
