"""Compiles the hot modules in place with mypyc, so that they run several times faster.

The `.so` files stand beside the `.py` files and win over them at import. `make compile` rebuilds what is older than
its source; `make decompile` removes them all, and everything runs as plain Python again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("lib/src", "broker/src", "bookie/src", "standalone/src")

HOT_MODULES = (
    "lib/src/magnetar/core/ids.py",
    "lib/src/magnetar/wire/pulsar/varint.py",
    "lib/src/magnetar/wire/pulsar/command.py",
    "lib/src/magnetar/wire/pulsar/metadata.py",
    "lib/src/magnetar/wire/pulsar/frame.py",
    "lib/src/magnetar/wire/bookkeeper/entry.py",
    "lib/src/magnetar/wire/bookkeeper/frame.py",
    "lib/src/magnetar/ledger/striping.py",
    "lib/src/magnetar/ledger/appender.py",
    "lib/src/magnetar/ledger/append_pipeline.py",
    "lib/src/magnetar/managed/entry.py",
    "lib/src/magnetar/managed/entry_bitmap.py",
    "lib/src/magnetar/managed/entry_cache.py",
    "lib/src/magnetar/managed/ack_state.py",
    "lib/src/magnetar/managed/ledger_list.py",
    "lib/src/magnetar/managed/append_path.py",
    "lib/src/magnetar/managed/cursor.py",
    "bookie/src/magnetar/bookie/write_cache.py",
    "bookie/src/magnetar/bookie/bookie.py",
    "bookie/src/magnetar/bookie/local.py",
    "broker/src/magnetar/broker/producer.py",
    "broker/src/magnetar/broker/consumer.py",
    "broker/src/magnetar/broker/pending_acknowledgements.py",
    "broker/src/magnetar/broker/acknowledgement.py",
    "broker/src/magnetar/broker/redelivery.py",
    "broker/src/magnetar/broker/screening.py",
    "broker/src/magnetar/broker/pump.py",
    "broker/src/magnetar/broker/entry_reader.py",
    "broker/src/magnetar/broker/session_produce.py",
    "broker/src/magnetar/broker/subscription.py",
    "broker/src/magnetar/broker/dispatch/entry_batch.py",
    "broker/src/magnetar/broker/dispatch/exclusive.py",
    "broker/src/magnetar/broker/dispatch/failover.py",
    "broker/src/magnetar/broker/dispatch/shared.py",
    "broker/src/magnetar/broker/dispatch/single_active.py",
    "broker/src/magnetar/broker/dispatch/key_shared.py",
)
"""What runs per message, chosen by profile. One group: calls between them are direct."""


def compiled_files() -> list[Path]:
    """Every extension module below the sources."""
    return sorted(path for source in SOURCES for path in (ROOT / source).rglob("*.so"))


def stale() -> bool:
    """Whether a source is newer than what was compiled from it, or was never compiled."""
    built = {path.name.split(".")[0]: path.stat().st_mtime for path in compiled_files()}
    return any(built.get(Path(module).stem, 0) < (ROOT / module).stat().st_mtime for module in HOT_MODULES)


def compile_modules() -> None:
    """Build all hot modules as one group."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    os.environ["MYPYPATH"] = os.pathsep.join(str(ROOT / source) for source in SOURCES)
    with tempfile.TemporaryDirectory() as build:
        extensions = mypycify(
            ["--namespace-packages", "--explicit-package-bases", "--follow-imports=silent", *(str(ROOT / module) for module in HOT_MODULES)],
            opt_level="3",
            debug_level="0",
            target_dir=build,
            group_name="magnetar_hot",
        )
        distribution = Distribution({"name": "magnetar", "ext_modules": extensions})
        command = build_ext(distribution)
        command.build_lib = build
        command.build_temp = build
        command.ensure_finalized()
        command.run()
        for built in Path(build).rglob("*.so"):
            place(built, Path(build))


def place(built: Path, build: Path) -> None:
    """Move one extension module beside its source; the group's shared one goes to the library's root."""
    relative = built.relative_to(build)
    for source in SOURCES:
        folder = ROOT / source / relative.parent
        if (ROOT / source / relative.parent / f"{relative.name.split('.')[0]}.py").exists() or len(relative.parts) == 1:
            target = folder / relative.name
            target.unlink(missing_ok=True)
            target.write_bytes(built.read_bytes())
            print(f"compiled {target.relative_to(ROOT)}")
            return
    raise SystemExit(f"no place for {relative}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remove", action="store_true", help="remove the compiled modules")
    parser.add_argument("--force", action="store_true", help="compile even when nothing changed")
    arguments = parser.parse_args()
    if arguments.remove:
        for path in compiled_files():
            path.unlink()
        return 0
    if arguments.force or stale():
        compile_modules()
    return 0


if __name__ == "__main__":
    sys.exit(main())
