"""Compiles the hot modules in place with mypyc, so that they run several times faster.

The `.so` files stand beside the `.py` files and win over them at import. `make compile` rebuilds what is older than
its source; `make decompile` removes them all, and everything runs as plain Python again. `make test` removes what is
out of date first: otherwise an edited source would not be what runs.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("lib/src", "broker/src", "bookie/src", "proxy/src", "standalone/src", "cli/src", "spark-jobs/src")
STAMP: Final = Path("build") / "hot_modules.sha256"
"""In each tree: what its compiled modules were made from."""

HOT_LINE: Final = "Hot: compiled by mypyc (see CONTRIBUTING)."
"""The last line of each hot module's docstring, so that whoever opens it knows. `tools/tidy.py` compares the two."""

HOT_MODULES: Final = (
    "lib/src/magnetar/core/ids.py",
    "lib/src/magnetar/core/topic_name.py",
    "lib/src/magnetar/core/bundle.py",
    "lib/src/magnetar/core/histogram.py",
    "lib/src/magnetar/wire/framing.py",
    "lib/src/magnetar/wire/pulsar/enums.py",
    "lib/src/magnetar/wire/pulsar/varint.py",
    "lib/src/magnetar/wire/pulsar/command.py",
    "lib/src/magnetar/wire/pulsar/send_receipts.py",
    "lib/src/magnetar/wire/pulsar/topic_requests.py",
    "lib/src/magnetar/wire/pulsar/metadata.py",
    "lib/src/magnetar/wire/pulsar/batch_positions.py",
    "lib/src/magnetar/wire/bookkeeper/entry.py",
    "lib/src/magnetar/wire/bookkeeper/v2.py",
    "lib/src/magnetar/net/connection.py",
    "lib/src/magnetar/net/handlers.py",
    "lib/src/magnetar/net/outboxes.py",
    "lib/src/magnetar/ledger/striping.py",
    "lib/src/magnetar/ledger/appender.py",
    "lib/src/magnetar/ledger/append_pipeline.py",
    "lib/src/magnetar/managed/entry.py",
    "lib/src/magnetar/managed/entry_bitmap.py",
    "lib/src/magnetar/managed/entry_cache.py",
    "lib/src/magnetar/managed/redelivery_counts.py",
    "lib/src/magnetar/managed/ack_state.py",
    "lib/src/magnetar/managed/ledger_list.py",
    "lib/src/magnetar/managed/period.py",
    "lib/src/magnetar/managed/rollover.py",
    "lib/src/magnetar/managed/append_path.py",
    "lib/src/magnetar/managed/cursors/cursor.py",
    "bookie/src/magnetar/bookie/storage/write_cache.py",
    "bookie/src/magnetar/bookie/journal/format.py",
    "bookie/src/magnetar/bookie/journal/journal.py",
    "bookie/src/magnetar/bookie/server/session.py",
    "bookie/src/magnetar/bookie/storage/entry_log_format.py",
    "bookie/src/magnetar/bookie/storage/entry_log_writer.py",
    "bookie/src/magnetar/bookie/outcomes.py",
    "bookie/src/magnetar/bookie/adds.py",
    "bookie/src/magnetar/bookie/local_adds.py",
    "lib/src/magnetar/client/unanswered.py",
    "broker/src/magnetar/broker/replication/outgoing.py",
    "broker/src/magnetar/broker/replicated_message.py",
    "broker/src/magnetar/broker/topics/producer.py",
    "broker/src/magnetar/broker/dispatch/consumer.py",
    "broker/src/magnetar/broker/dispatch/pending_acknowledgements.py",
    "broker/src/magnetar/broker/subscriptions/acknowledgement.py",
    "broker/src/magnetar/broker/dispatch/redelivery.py",
    "broker/src/magnetar/broker/subscriptions/position_set.py",
    "broker/src/magnetar/broker/subscriptions/sorted_keys.py",
    "broker/src/magnetar/broker/subscriptions/delay_bucket.py",
    "broker/src/magnetar/broker/subscriptions/delayed_index.py",
    "broker/src/magnetar/broker/subscriptions/delayed.py",
    "broker/src/magnetar/broker/subscriptions/filtering.py",
    "broker/src/magnetar/broker/subscriptions/hidden.py",
    "broker/src/magnetar/broker/subscriptions/dispatch_turns.py",
    "broker/src/magnetar/broker/subscriptions/disconnections.py",
    "broker/src/magnetar/broker/subscriptions/letting_go.py",
    "broker/src/magnetar/broker/subscriptions/pump.py",
    "broker/src/magnetar/broker/policies/publish_buffer.py",
    "broker/src/magnetar/broker/policies/send_turns.py",
    "broker/src/magnetar/broker/session/publish.py",
    "broker/src/magnetar/broker/session/acknowledge.py",
    "broker/src/magnetar/broker/session/frames.py",
    "broker/src/magnetar/broker/session/lookup.py",
    "broker/src/magnetar/broker/bundles/lookup_answers.py",
    "broker/src/magnetar/broker/bundles/known_owners.py",
    "broker/src/magnetar/broker/bundles/owned_bundles.py",
    "broker/src/magnetar/broker/dispatch/rates.py",
    "broker/src/magnetar/broker/subscriptions/totals.py",
    "broker/src/magnetar/broker/subscriptions/subscription.py",
    "broker/src/magnetar/broker/dispatch/entry_batch.py",
    "broker/src/magnetar/broker/dispatch/exclusive.py",
    "broker/src/magnetar/broker/dispatch/failover.py",
    "broker/src/magnetar/broker/dispatch/shared.py",
    "broker/src/magnetar/broker/dispatch/single_active.py",
    "broker/src/magnetar/broker/dispatch/key_shared.py",
    "spark-jobs/src/magnetar/spark/entries.py",
    "spark-jobs/src/magnetar/spark/assembly/plain_entries.py",
    "spark-jobs/src/magnetar/spark/decode/rows.py",
)
"""What runs per message, chosen by profile. One group: calls between them are direct."""


ACYCLIC: Final = "mypyc_attr(acyclic=True)"
ACYCLIC_DEALLOC: Final = re.compile(
    r"(\b(\w+_dealloc)\(\w+ \*self\)\n *\{\n) *CPy_TRASHCAN_BEGIN\(self, \2\)\n(.*\n.*\n) *CPy_TRASHCAN_END\(self\)\n"
)
"""The function that frees an instance, when it begins with the trashcan."""


def hot_modules(root: Path) -> list[str]:
    """Those that a tree has: images of servers are made from a part of the sources."""
    return [module for module in HOT_MODULES if (root / module).exists()]


def compiled_files(root: Path) -> list[Path]:
    """Every extension module below a tree's sources."""
    return sorted(path for source in SOURCES for path in (root / source).rglob("*.so"))


def digest(root: Path) -> str:
    """What the compiled form depends on: the hot modules, those that they import (a compiled module holds copies of
    their constants), this program and the interpreter."""
    texts = {module: (root / module).read_text() for module in hot_modules(root)}
    texts[""] = Path(__file__).read_text()
    for text in list(texts.values()):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    for source in SOURCES:
                        path = Path(source, *name.split(".")).with_suffix(".py")
                        if (root / path).exists():
                            texts[str(path)] = (root / path).read_text()
    return hashlib.sha256(repr((sys.version, sorted(texts.items()))).encode()).hexdigest()


def stale(root: Path) -> bool:
    """Whether the compiled modules are not what the sources would give now, or there are none."""
    stamp = root / STAMP
    return not (compiled_files(root) and stamp.exists() and stamp.read_text() == digest(root))


def remove(root: Path) -> None:
    """Remove everything compiled."""
    (root / STAMP).unlink(missing_ok=True)
    for path in compiled_files(root):
        path.unlink()


def acyclic_classes(root: Path) -> list[str]:
    """The classes of hot modules that the collector of cycles does not look at: nothing they refer to leads back."""
    return [
        node.name
        for module in hot_modules(root)
        for node in ast.walk(ast.parse((root / module).read_text()))
        if isinstance(node, ast.ClassDef) and ACYCLIC in map(ast.unparse, node.decorator_list)
    ]


def without_trashcan(text: str) -> tuple[str, int]:
    """The C text of a group of modules, changed where instances of acyclic classes are freed, and how many such classes
    it has.

    mypyc 2.4 has each of its classes use the interpreter's trashcan, which takes what is freed in a deep nest, and
    writes into its head for the collector of cycles. Acyclic ones have none: in Python 3.11 that is a write before the
    object. A class of the others leaves the collector first, by `PyObject_GC_UnTrack`."""
    return ACYCLIC_DEALLOC.subn(r"\1\3", text)


def _rewrite(sources: list[Path], acyclic: list[str]) -> None:
    count = 0
    for source in sources:
        text, changed = without_trashcan(source.read_text())
        if changed:
            source.write_text(text)
        count += changed
    if count != len(acyclic):
        raise SystemExit(f"mypyc writes other code for acyclic classes than this tool knows: {acyclic}, {count} found")


def compile_modules(root: Path, optimization: str) -> None:
    """Build all hot modules of a tree as one group. `optimization` is the C compiler's -O level."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    remove(root)
    compiled_from = digest(root)  # Before the compiler reads them: somebody may be editing.
    os.environ["MYPYPATH"] = os.pathsep.join(str(root / source) for source in SOURCES)
    options = ["--namespace-packages", "--explicit-package-bases", "--follow-imports=silent"]
    with tempfile.TemporaryDirectory() as build:
        extensions = mypycify(
            [*options, *(str(root / module) for module in hot_modules(root))],
            opt_level=optimization,
            debug_level="0",
            target_dir=build,
            group_name="magnetar_hot",
        )
        _rewrite([Path(source) for extension in extensions for source in extension.sources], acyclic_classes(root))
        distribution = Distribution({"name": "magnetar", "ext_modules": extensions})
        command = build_ext(distribution)
        command.build_lib = build
        command.build_temp = build
        command.ensure_finalized()
        command.run()
        for built in Path(build).rglob("*.so"):
            place(built, Path(build), root)
    (root / STAMP).parent.mkdir(exist_ok=True)
    (root / STAMP).write_text(compiled_from)


def place(built: Path, build: Path, root: Path) -> None:
    """Move one extension module beside its source; the group's shared one goes to the library's root."""
    relative = built.relative_to(build)
    for source in SOURCES:
        folder = root / source / relative.parent
        if len(relative.parts) == 1 or (folder / f"{relative.name.split('.')[0]}.py").exists():
            shutil.copyfile(built, folder / relative.name)
            return
    raise SystemExit(f"no place for {relative}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to compile (this one)")
    parser.add_argument("--optimization", default="3", choices=["0", "1", "2", "3"], help="the C compiler's level")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--remove", action="store_true", help="remove the compiled modules")
    choice.add_argument("--remove-stale", action="store_true", help="remove them if one is out of date")
    choice.add_argument("--force", action="store_true", help="compile even when nothing changed")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.remove or (arguments.remove_stale and stale(root)):
        remove(root)
    elif not arguments.remove_stale and (arguments.force or stale(root)):
        compile_modules(root, arguments.optimization)
        print(f"compiled {len(hot_modules(root))} modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
