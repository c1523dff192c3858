"""Runs a page's examples, one after the other, as a notebook would: names that one has made are there for the next.

Called with two paths: {"page": name, "examples": [{"language", "text", "line"}, …]}, and where the list of what they
printed goes. An error ends it, and its traceback has the page's lines. Files are in a folder beside the arguments."""

import contextlib
import io
import json
import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SH_SECONDS_MAX = 400


def run_python(page: str, example: dict[str, Any], names: dict[str, Any]) -> str:
    text = "\n" * (example["line"] - 1) + example["text"]
    linecache.cache[page] = (len(text), None, text.splitlines(keepends=True), page)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, page, "exec"), names)
    return printed.getvalue()


def run_sh(example: dict[str, Any]) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example["text"]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=None,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SH_SECONDS_MAX,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"line {example['line']}: ended with {ended.returncode}, and printed\n{ended.stdout}")
    return ended.stdout


def main(told: Path, answer: Path) -> None:
    arguments = json.loads(told.read_text())
    os.environ["MPLBACKEND"] = "agg"
    folder = told.parent / "files"
    folder.mkdir()
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for example in arguments["examples"]:
        is_python = example["language"] == "python"
        printed.append(run_python(arguments["page"], example, names) if is_python else run_sh(example))
    answer.write_text(json.dumps(printed))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
