"""What the builder stages of the images do to virtual environments, so that layers are small and start fast.

    layer.py tidy VENV              strip libraries, drop what only compilers and tests read, compile to bytecode
    layer.py subtract VENV BELOW    leave only what a layer below does not have
    layer.py restore TREE CACHE     bring compiled hot modules back that an earlier build has kept
    layer.py keep TREE CACHE        keep them
    layer.py compiled TREE VENV     put a tree's compiled hot modules beside the sources that were installed

It runs before anything is installed: with the standard library alone.
"""

from __future__ import annotations

import compileall
import filecmp
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

COMPONENTS: Final = ("lib", "bookie", "broker", "proxy", "standalone", "cli", "spark-jobs")
STAMP: Final = Path("build") / "hot_modules.sha256"

DROPPED_SUFFIXES: Final = frozenset({".c", ".cc", ".cpp", ".h", ".hpp", ".pxd", ".pyi", ".pyx"})
DROPPED_FOLDERS: Final = (
    "kazoo/tests", "kazoo/testing", "uvloop/_testbase.py",
    "pyarrow/src", "pyarrow/tests", "pyspark/data", "pyspark/examples", "pyspark/jars/connect-repl",
)  # fmt: skip
DROPPED_JARS: Final = ("pyspark/jars/*-osx-*.jar", "pyspark/jars/*-windows-*.jar")
"""Native libraries of other systems."""
DROPPED_MODELS: Final = ("kubernetes/**/client/models/[!_]*.py", "kubernetes/**/client/api/[!_]*.py")
"""73 of 75 MB, which nothing here loads: the operator takes objects as JSON."""


def packages(environment: Path) -> Path:
    """The site-packages of a virtual environment."""
    return next(environment.glob("lib/python3*/site-packages"))


def tidy(environment: Path) -> None:
    """Make an environment small and its bytecode complete. Bytecode is never compared with its source: both lie in a
    read-only image, and their times are not the same in every build."""
    root = packages(environment)
    for path in sorted(root.rglob("*")):
        if path.suffix in DROPPED_SUFFIXES and path.is_file():
            path.unlink()
    for name in DROPPED_FOLDERS:
        if (root / name).is_dir():
            shutil.rmtree(root / name)
        else:
            (root / name).unlink(missing_ok=True)
    for path in [path for pattern in DROPPED_JARS + DROPPED_MODELS for path in root.glob(pattern)]:
        path.unlink()
    # Not what auditwheel has put into folders of its own: strip moves parts that its patches have placed.
    found = (path for path in root.rglob("*.so*") if not path.parent.name.endswith(".libs"))
    libraries = [str(path) for path in found if path.is_file()]
    if libraries:
        subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(root, quiet=1, invalidation_mode=mode, stripdir=str(environment.parent)):
        raise SystemExit(f"cannot compile everything in {root}")


def subtract(environment: Path, below: Path) -> None:
    """Remove the files that `below` has with the same content, and folders without any."""
    for path in sorted(environment.rglob("*"), reverse=True):
        same = below / path.relative_to(environment)
        if path.is_symlink():
            if same.is_symlink() and same.readlink() == path.readlink():
                path.unlink()
        elif path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif same.is_file() and filecmp.cmp(path, same, shallow=False):
            path.unlink()


def compiled(tree: Path) -> list[Path]:
    """Compiled modules below a tree, relative to it."""
    found = (path for component in COMPONENTS for path in (tree / component / "src").rglob("*.so"))
    return sorted(path.relative_to(tree) for path in found)


def transfer(source: Path, target: Path, files: list[Path]) -> None:
    """Copy files from one tree to the same places of another."""
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)


def restore(tree: Path, cache: Path) -> None:
    """Bring back what was kept; `tools/compile.py` sees by the stamp whether it still fits."""
    if (cache / STAMP).exists():
        transfer(cache, tree, [*compiled(cache), STAMP])


def keep(tree: Path, cache: Path) -> None:
    """Keep what is compiled now, instead of what was. The stamp is written last: it says that all is there."""
    if (cache / STAMP).exists() and (cache / STAMP).read_text() == (tree / STAMP).read_text():
        return
    shutil.rmtree(cache, ignore_errors=True)
    transfer(tree, cache, [*compiled(tree), STAMP])


def install_compiled(tree: Path, environment: Path) -> None:
    """Put compiled modules beside the installed sources."""
    root = packages(environment)
    for path in compiled(tree):
        target = root.joinpath(*path.parts[2:])  # Without the component's folder and src.
        assert target.parent.is_dir(), target
        shutil.copyfile(tree / path, target)


def main() -> None:
    """Run the command line."""
    command, *paths = sys.argv[1:]
    folders = [Path(path) for path in paths]
    if command == "tidy":
        tidy(*folders)
    else:
        {"subtract": subtract, "restore": restore, "keep": keep, "compiled": install_compiled}[command](*folders)


if __name__ == "__main__":
    main()
