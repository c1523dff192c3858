"""What an interrupted run has found, so that it goes on there when it is started again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import Results

FOLDER = Path(__file__).parent / "build"


class Kept:
    """Results by the name of a table, as long as the run is the same."""

    def __init__(self, run: Mapping[str, object], path: Path = FOLDER / "unfinished.json") -> None:
        """`run` says what makes two runs the same."""
        self._run = dict(run)
        self._path = path
        self._found: dict[str, Any] = {}
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["run"] == self._run:
                self._found = stored["found"]

    def get(self, name: str) -> tuple[Results, dict[str, object]] | None:
        """Results and circumstances; None: they are not known yet."""
        found = self._found.get(name)
        return None if found is None else (found["results"], found["circumstances"])

    def put(self, name: str, results: Results, circumstances: Mapping[str, object]) -> None:
        """Keep them."""
        self._found[name] = {"results": results, "circumstances": dict(circumstances)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"run": self._run, "found": self._found}))

    def forget(self) -> None:
        """The run is complete, or is to begin anew."""
        self._found = {}
        self._path.unlink(missing_ok=True)
