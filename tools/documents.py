"""Finds names in documents that are not in the tree: files, folders, links, modules, classes, functions, settings.

What stands in backticks is looked at when it looks like a path or like an identifier. Commands, options and values do
not; words of others that look like our identifiers are listed in `FOREIGN`.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from tools.source_tree import Nodes, Tree, Violation

PACKAGES: Final = (
    *("lib", "bookie", "broker", "proxy", "operator", "spark-jobs", "standalone", "cli"),
    *("bench", "tools"),
)
MAPS: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md", *(f"{package}/README.md" for package in PACKAGES))
"""Documents that tell where things are: all of their names must be in the tree."""

FOREIGN: Final = frozenset(
    # Words of make, pytest and mypy.
    ["ARGS", "COUNT", "ROUNDS", "SEED", "skip", "slow"]
    # Words of Kubernetes, Pulsar and BookKeeper.
    + ["PulsarCluster", "pulsarctl", "spec", "__change_events"]
)

BUILT: Final = ("bench/results", "build/", "data/")
"""How paths begin that only a run makes."""

_PYTHON: Final = frozenset([*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names])
_SPAN: Final = re.compile(r"`([^`\n]+)`")
_LINK: Final = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_IDENTIFIER: Final = re.compile(r"_*[A-Za-z]\w*(\.\w+)*")
_PATH: Final = re.compile(r"\.?[\w*…-][\w*….-]*(/[\w*….-]+)*/?")
_FILE: Final = re.compile(r"\w\.(go|java|md|proto|py|rs|sh|toml|txt|yaml|yml)|\.importlinter|Makefile|/")


@dataclass(slots=True)
class Names:
    """What a tree has: paths, and names by the classes and modules that define them."""

    paths: frozenset[str]
    modules: dict[str, Nodes] = field(default_factory=dict)
    anywhere: set[str] = field(default_factory=set)
    classes: defaultdict[str, list[ast.ClassDef]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, tree: Tree) -> Names:
        """Read all names of a tree."""
        files = [path.as_posix() for path in tree.files]
        folders = {parent.as_posix() for path in tree.files for parent in path.parents}
        names = cls(frozenset([*files, *(folders - {"."})]))
        names.anywhere.update(folder.rpartition("/")[2] for folder in folders)
        for module in tree.modules:
            names.modules[module.name] = module.nodes
            names.anywhere.update(module.name.split("."))
            names.anywhere.update(_defined(module.nodes))
            for node in module.nodes.of(ast.ClassDef):
                names.classes[node.name].append(node)
        return names

    def has_path(self, text: str, near: str = "") -> bool:
        """Whether a file or folder is meant by `text`: from the root, from the folder `near`, or by its last parts.

        `…` stands for any folders. A name without a folder must stand below `near`."""
        wanted = text.rstrip("/")
        pattern = re.escape(wanted).replace("…", ".+").replace(r"\*", "[^/]*")
        found = [path for path in self.paths if re.search(rf"(^|/){pattern}$", path)]
        if "/" in wanted or not near:
            return bool(found)
        return any(path == wanted or path.startswith(f"{near}/") for path in found)

    def has_name(self, text: str) -> bool:
        """Whether an identifier, perhaps with the class or module that defines it, is in the tree or in Python."""
        first, *rest = text.split(".")
        if not rest:
            return first in self.anywhere or first in _PYTHON
        if first in self.classes:
            return len(rest) == 1 and rest[0] in self._all_members(first, set())
        for name, module in self.modules.items():
            if self._within(name, module, text):
                return True
        return first in sys.stdlib_module_names or (first in self.anywhere and first not in self._packages())

    def _all_members(self, name: str, seen: set[str]) -> set[str]:
        """Of all classes of that name, and of those that they inherit from."""
        seen.add(name)
        own = [_defined(Nodes(each)) for each in self.classes.get(name, ())]
        bases = {
            ast.unparse(base).split("[")[0].split(".")[-1] for each in self.classes.get(name, ()) for base in each.bases
        }
        inherited = [self._all_members(base, seen) for base in sorted(bases - seen) if base in self.classes]
        return set().union(*own, *inherited)

    def _within(self, module: str, nodes: Nodes, text: str) -> bool:
        """Whether the text ends a module's name, or is that and a name at its top, or a member of a class there."""
        parts = text.split(".")
        for length in range(1, len(parts) + 1):
            if f".{module}".endswith("." + ".".join(parts[:length])):
                left = parts[length:]
                if not left or (len(left) == 1 and left[0] in _defined(nodes)):
                    return True
                if len(left) == 2 and left[1] in self._all_members(left[0], set()):
                    return True
        return False

    def _packages(self) -> set[str]:
        return {part for name in self.modules for part in name.split(".")}


def _defined(scope: Nodes) -> set[str]:
    """Names of classes, functions, variables, fields and parameters, and what is imported, within a scope."""
    found = {node.name for node in scope.of(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)}
    found.update(node.id for node in scope.of(ast.Name) if isinstance(node.ctx, ast.Store))
    found.update(node.attr for node in scope.of(ast.Attribute) if isinstance(node.ctx, ast.Store))
    found.update(node.arg for node in scope.of(ast.arg))
    for alias in scope.of(ast.alias):
        found.update((alias.asname or alias.name).split("."))
    return found


def check_documents(tree: Tree) -> Iterator[Violation]:
    """What documents say of the tree is there: files, folders, links, names."""
    documents = [path for path in tree.files if path.as_posix() in (*MAPS, "README.md")]
    if not documents:
        return
    names = Names.of(tree)
    for path in documents:
        text = (tree.root / path).read_text(encoding="utf-8")
        folder = path.parent.as_posix()
        for name in unknown_names(text, names, "" if folder == "." else folder):
            line = text.count("\n", 0, text.index(name)) + 1
            yield Violation(path, line, f"{name} is not in the tree", "name what is there, or list it in FOREIGN")


def unknown_names(text: str, names: Names, near: str = "") -> Iterator[str]:
    """What a document names and the tree lacks. `near`: the folder of the package that the document is about."""
    prose = _FENCE.sub("", text)
    for span in dict.fromkeys(_SPAN.findall(prose)):
        if _PATH.fullmatch(span) and _FILE.search(span):
            if not span.startswith(BUILT) and not names.has_path(span, near):
                yield span
        elif _IDENTIFIER.fullmatch(span) and span not in FOREIGN and not names.has_name(span):
            yield span
    for target, _ in dict.fromkeys(_LINK.findall(prose)):
        if "://" not in target and _resolved(near, target) not in names.paths:
            yield target


def _resolved(folder: str, target: str) -> str:
    """The path that a link means, from the root."""
    parts: list[str] = []
    for part in PurePosixPath(folder, target).parts:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/".join(parts)
