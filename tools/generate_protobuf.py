"""Generates the Python modules of every folder `proto` below `lib/src/magnetar` into `generated` beside it; of
`control/proto` also gRPC's stubs and servicers.

Run `python tools/generate_protobuf.py` after changing a `.proto` file and commit what it wrote; `--check` only says
whether the committed modules are what the definitions give. A definition is known to protobuf (and imported by another
one) as `magnetar/<package>/generated/<file>.proto`, so that file names never clash with another program's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "lib" / "src"
FOLDERS = ("magnetar/wire/*/proto", "magnetar/control/proto", "magnetar/metadata/proto")
SERVICE_FOLDER = SOURCES / "magnetar" / "control" / "proto"
# The stubs say `Mapping` without arguments, and let the enum value `Schema.KeyValue` hide the message of that name.
STUB_HEADER = '# mypy: disable-error-code="type-arg, valid-type"\n'
# What the generators of others do and our lint would not let pass.
SERVICE_HEADER = "# ruff: noqa: D103, E501, F401, I001, N802\n# fmt: off\n"
SERVICE_STUB_HEADER = "# ruff: noqa: E501, N802\n# fmt: off\n"
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
    generate_services(target)


def generate_services(target: Path) -> None:
    """Write gRPC's module of each definition with services, and a stub that gives it types."""
    package = (SERVICE_FOLDER.parent / "generated").relative_to(SOURCES).as_posix()
    names = [f"{package}/{definition.name}" for definition in sorted(SERVICE_FOLDER.glob("*.proto"))]
    with tempfile.TemporaryDirectory() as scratch:
        described = Path(scratch) / "described"
        arguments = [f"--proto_path={package}={SERVICE_FOLDER}", f"--descriptor_set_out={described}"]
        if protoc.main(["protoc", *arguments, f"--grpc_python_out={target}", *names]) != 0:
            raise SystemExit("protoc failed")
        files = FileDescriptorSet.FromString(described.read_bytes()).file
    for file in files:
        module = target / file.name.replace(".proto", "_pb2_grpc.py")
        if not file.service:
            module.unlink()
            continue
        module.write_text(SERVICE_HEADER + module.read_text())
        module.with_suffix(".pyi").write_text(service_stub(file))


def service_stub(file: FileDescriptorProto) -> str:
    """The types of one `_pb2_grpc` module, for asyncio."""
    folder, _, name = file.name.removesuffix(".proto").rpartition("/")
    messages = f"{name}_pb2"
    lines = [
        "from collections.abc import AsyncIterator",
        "",
        "import grpc.aio",
        f"from {folder.replace('/', '.')} import {messages}",
    ]
    for service in file.service:
        lines += ["", f"class {service.name}Stub:", "    def __init__(self, channel: grpc.aio.Channel) -> None: ..."]
        for method in service.method:
            arity = "UnaryStreamMultiCallable" if method.server_streaming else "UnaryUnaryMultiCallable"
            asked, answered = method_types(file, method, messages)
            lines.append(f"    {method.name}: grpc.aio.{arity}[{asked}, {answered}]")
        lines += ["", f"class {service.name}Servicer:"]
        for method in service.method:
            asked, answered = method_types(file, method, messages)
            context = f"grpc.aio.ServicerContext[{asked}, {answered}]"
            head = f"def {method.name}(self, request: {asked}, context: {context})"
            if method.server_streaming:
                lines.append(f"    {head} -> AsyncIterator[{answered}]: ...")
            else:
                lines.append(f"    async {head} -> {answered}: ...")
        lines += [
            "",
            f"def add_{service.name}Servicer_to_server(",
            f"    servicer: {service.name}Servicer, server: grpc.aio.Server",
            ") -> None: ...",
        ]
    return SERVICE_STUB_HEADER + "\n".join(lines) + "\n"


def method_types(file: FileDescriptorProto, method: MethodDescriptorProto, messages: str) -> tuple[str, str]:
    """Request and response of a method as Python names. Only messages of the same file, only single requests."""
    prefix = f".{file.package}."
    if method.client_streaming or not all(name.startswith(prefix) for name in (method.input_type, method.output_type)):
        raise SystemExit(f"{file.name}: {method.name} is of a kind that this tool does not know yet")
    return (
        f"{messages}.{method.input_type.removeprefix(prefix)}",
        f"{messages}.{method.output_type.removeprefix(prefix)}",
    )


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
    proto_folders = sorted(folder for pattern in FOLDERS for folder in SOURCES.glob(pattern))
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
