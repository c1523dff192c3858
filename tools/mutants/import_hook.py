"""Has one module imported from a source in memory, and all others from their sources, compiled or not.

Files are never touched, so that a run that is broken off leaves nothing behind.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from tools.compile import HOT_MODULES
from tools.mutants.model import ROOT, Mutant, dotted_name


class _MutatedLoader(importlib.machinery.SourceFileLoader):
    """Gives the mutated source for the file's own. Bytecode is neither read nor written."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source: Final = source

    def get_data(self, path: str) -> bytes:
        """See `importlib.abc.FileLoader`."""
        return self._source.encode()

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """See `importlib.abc.InspectLoader`; the original would take bytecode from the cache."""
        return self.source_to_code(self.get_data(self.path), self.path)


class MutantFinder(importlib.abc.MetaPathFinder):
    """Stands before all other finders; knows the mutated module, and hot modules, whose compiled form would win."""

    def __init__(self, mutant: Mutant | None, root: Path = ROOT) -> None:
        self._sources: Final = {dotted_name(module): root / module for module in HOT_MODULES}
        self._mutated: Final = "" if mutant is None else dotted_name(mutant.module)
        self._text = ""
        if mutant is not None:
            path = root / mutant.module
            self._sources[self._mutated] = path
            self._text = mutant.apply(path.read_text())

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        source = self._sources.get(fullname)
        if source is None:
            return None
        if fullname == self._mutated:
            loader: importlib.abc.Loader = _MutatedLoader(fullname, str(source), self._text)
        else:
            loader = importlib.machinery.SourceFileLoader(fullname, str(source))
        return importlib.util.spec_from_file_location(fullname, source, loader=loader)


def install(mutant: Mutant | None) -> None:
    """Use it in this process from now on. None of the project's modules may be loaded yet."""
    loaded = sorted(name for name in sys.modules if name.startswith("magnetar."))
    assert not loaded, f"{loaded[0]} is loaded already"
    sys.meta_path.insert(0, MutantFinder(mutant))
