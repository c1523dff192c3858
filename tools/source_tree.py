"""The tree that is checked: its files, its Python modules with their syntax, and what is found wrong in them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, overload

ROOT: Final = Path(__file__).resolve().parent.parent

Kind = TypeVar("Kind", bound=ast.AST)
Second = TypeVar("Second", bound=ast.AST)
Third = TypeVar("Third", bound=ast.AST)

_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "build", "data", "dist", "node_modules", "target"})


class Violation(NamedTuple):
    """One place that breaks one rule."""

    path: Path
    line: int
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: {self.remedy}"


class Nodes:
    """All nodes below one, by their type: a walk takes longer than the parser, and each check wants few of them."""

    def __init__(self, root: ast.AST) -> None:
        self._by_type: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        waiting = [root]
        while waiting:
            node = waiting.pop()
            self._by_type[type(node)].append(node)
            children: list[ast.AST] = []
            for value in vars(node).values():
                if isinstance(value, ast.AST):
                    # Load, Store and Del are one object each for all names, and have nothing below them.
                    if not isinstance(value, ast.expr_context):
                        children.append(value)
                elif isinstance(value, list):
                    children.extend(each for each in value if isinstance(each, ast.AST))
            waiting.extend(reversed(children))

    @overload
    def of(self, kind: type[Kind], /) -> Iterator[Kind]: ...
    @overload
    def of(self, kind: type[Kind], second: type[Second], /) -> Iterator[Kind | Second]: ...
    @overload
    def of(self, kind: type[Kind], second: type[Second], third: type[Third], /) -> Iterator[Kind | Second | Third]: ...
    def of(self, *kinds: type[Any]) -> Iterator[Any]:
        """Those of some types, each in the order of the source."""
        for kind in kinds:
            yield from self._by_type.get(kind, ())


@dataclass(frozen=True)
class Module:
    """A Python file; `path` is relative to the tree's root."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax. `SyntaxError`."""
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def nodes(self) -> Nodes:
        """All that its syntax is made of."""
        return Nodes(self.tree)

    @property
    def is_test(self) -> bool:
        """Whether it stands in a folder of tests, or carries them (a contract suite, a fixture file)."""
        return "tests" in self.path.parts or self.path.name == "conftest.py"

    @property
    def is_generated(self) -> bool:
        """Whether a tool wrote it."""
        return self.path.stem.endswith(("_pb2", "_pb2_grpc"))

    @property
    def name(self) -> str:
        """Its dotted name: below `src` for members, else from the root."""
        parts = self.path.with_suffix("").parts
        if "src" in parts:
            parts = parts[parts.index("src") + 1 :]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(slots=True)
class Tree:
    """What is checked: all files below a root, the Python ones parsed when a check asks for their syntax."""

    root: Path
    files: list[Path] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path) -> Tree:
        """Read everything that belongs to the project; folders that are hidden or built are skipped."""
        tree = cls(root)
        for path in sorted(_walk(root)):
            relative = path.relative_to(root)
            tree.files.append(relative)
            if path.suffix == ".py":
                tree.modules.append(Module(relative, path.read_text()))
        return tree

    def written_modules(self) -> list[Module]:
        """Those that people write."""
        return [module for module in self.modules if not module.is_generated]


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():
            if path.name not in _SKIPPED_FOLDERS and (not path.name.startswith(".") or path.name == ".ci"):
                yield from _walk(path)
        else:
            yield path
