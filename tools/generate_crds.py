"""Writes `crds/` out of the operator's types; `--check` only compares.

The chart has copies of its own, for Helm packs nothing from outside a chart's folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import yaml
from magnetar.operator.resources.crd import DEFINITIONS, custom_resource_definition

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("crds", "charts/magnetar-operator/files/crds")

SIZE_BYTES_MAX: Final = 200_000
"""`kubectl apply` keeps a copy in an annotation, which may have 262 144 bytes."""


class _Plain(yaml.SafeDumper):
    """Without anchors: what stands in several places is written out in each."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def rendered() -> dict[str, str]:
    """Each file's content by its name."""
    found = {}
    for definition in DEFINITIONS:
        content = yaml.dump(
            custom_resource_definition(definition), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True
        )
        assert len(content.encode()) <= SIZE_BYTES_MAX, f"{definition.name} is too large to be applied"
        found[f"{definition.name}.yaml"] = content
    return found


def out_of_date(root: Path = ROOT) -> list[Path]:
    """Files that are not what the types say, and files that should not be there."""
    wanted = rendered()
    found = []
    for folder in FOLDERS:
        files = {path.name: path for path in (root / folder).glob("*.yaml")}
        found += [path for name, path in files.items() if name not in wanted]
        found += [
            root / folder / name
            for name, content in wanted.items()
            if name not in files or files[name].read_text() != content
        ]
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say what is out of date, write nothing")
    if parser.parse_args().check:
        stale = out_of_date()
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run `make generate`", file=sys.stderr)
        return 1 if stale else 0
    wanted = rendered()
    for path in out_of_date():
        if path.name not in wanted:
            path.unlink()
    for folder in FOLDERS:
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
        for name, content in wanted.items():
            (ROOT / folder / name).write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
