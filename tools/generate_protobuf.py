"""Generates the Python modules of every folder `lib/src/magnetar/wire/*/proto` into `generated` beside it.

Run `python tools/generate_protobuf.py` after changing a `.proto` file and commit what it wrote; `--check` only says
whether the committed modules are what the definitions give. A definition is known to protobuf (and imported by another
one) as `magnetar/wire/<name>/generated/<file>.proto`, so that file names never clash with another program's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "lib" / "src"
# The stubs say `Mapping` without arguments, and let the enum value `Schema.KeyValue` hide the message of that name.
STUB_HEADER = '# mypy: disable-error-code="type-arg, valid-type"\n'
PACKAGE_TEXT = '"""Generated from the definitions in `proto` by `tools/generate_protobuf.py`; not edited by hand."""\n'


def generate(proto_folders: list[Path], target: Path) -> None:
    """Write the modules of all definitions below `target`, in the folders they have below `lib/src`."""
    arguments = ["protoc", f"--python_out={target}", f"--pyi_out={target}"]
    names: list[str] = []
    for folder in proto_folders:
        package = (folder.parent / "generated").relative_to(SOURCES)
        (target / package).mkdir(parents=True, exist_ok=True)
        (target / package / "__init__.py").write_text(PACKAGE_TEXT)
        arguments.append(f"--proto_path={package.as_posix()}={folder}")
        names += [f"{package.as_posix()}/{definition.name}" for definition in sorted(folder.glob("*.proto"))]
    if protoc.main(arguments + names) != 0:
        raise SystemExit("protoc failed")
    for name in names:
        stub = target / name.replace(".proto", "_pb2.pyi")
        stub.write_text(STUB_HEADER + stub.read_text())


def differences(target: Path, proto_folders: list[Path]) -> list[str]:
    """The committed files that are not what was generated into `target`, stale ones included."""
    found: list[str] = []
    for folder in proto_folders:
        committed = folder.parent / "generated"
        fresh = target / committed.relative_to(SOURCES)
        paths = {path.name for place in (committed, fresh) for path in place.glob("*.py*") if path.is_file()}
        for name in sorted(paths):
            old, new = committed / name, fresh / name
            if not old.exists() or not new.exists() or old.read_bytes() != new.read_bytes():
                found.append(str(old.relative_to(ROOT)))
    return found


def main(arguments: list[str]) -> int:
    """Generate, or with `--check` compare."""
    proto_folders = sorted(SOURCES.glob("magnetar/wire/*/proto"))
    if "--check" not in arguments:
        generate(proto_folders, SOURCES)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        generate(proto_folders, Path(scratch))
        stale = differences(Path(scratch), proto_folders)
    for name in stale:
        print(f"not what its definition gives: {name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
