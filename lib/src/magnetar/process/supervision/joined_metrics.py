"""The metrics of several processes as one text, in which each sample says its process by a label. Pure.

The text is Prometheus's, https://prometheus.io/docs/instrumenting/exposition_formats/: all lines of a metric stand
together there, with one TYPE and one HELP before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LABEL: Final = "process"


def joined(texts: Mapping[str, str]) -> str:
    """One text of those of several processes, by the label's value. Each metric keeps its first HELP and TYPE."""
    families: dict[str, _Family] = {}
    for process, text in texts.items():
        family: _Family | None = None
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                _, kind, name, *_ = line.split(" ", 3)
                family = families.setdefault(name, _Family(name))
                family.comments.setdefault(kind, line)
            elif line and not line.startswith("#"):
                name = _name(line)
                if family is None or not name.startswith(family.name):
                    family = families.setdefault(name, _Family(name))
                family.samples.append(_labelled(line, name, process))
    lines = [line for family in families.values() for line in (*family.comments.values(), *family.samples)]
    return "".join(f"{line}\n" for line in lines)


class _Family:
    """A metric's lines. A histogram's samples have its name with an ending."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.comments: dict[str, str] = {}
        self.samples: list[str] = []


def _name(line: str) -> str:
    return line.partition(" ")[0].partition("{")[0]


def _labelled(line: str, name: str, process: str) -> str:
    rest = line[len(name) :]
    if not rest.startswith("{"):
        return f'{name}{{{LABEL}="{process}"}}{rest}'
    separator = "" if rest.startswith("{}") else ","
    return f'{name}{{{LABEL}="{process}"{separator}{rest[1:]}'
