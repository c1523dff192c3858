"""Ask a running Apache Pulsar standalone the steps of `*.steps` and keep its answers beside them, as `*.json`.

    python broker/tests/admin_recordings/record.py http://127.0.0.1:8080

It has to be fresh: the steps expect what a new standalone has. A line of steps is METHOD PATH [BODY]; paths are below
`/admin/v2/` unless they begin with `/`. A line that begins with `#` says something to the reader; one that begins with
`! STATUS` says that our broker answers the next step in this way instead, and why.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

HERE = Path(__file__).parent
PATIENCE_SECONDS = 30


class Step(NamedTuple):
    """One request, and the status that ours differs by."""

    method: str
    path: str
    body: bytes | None
    ours: int | None

    def __str__(self) -> str:
        return f"{self.method} {self.path} {(self.body or b'').decode()}"


def steps_of(name: str) -> Iterator[Step]:
    """The steps of one file."""
    ours: int | None = None
    for line in (HERE / f"{name}.steps").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            ours = int(line.split()[1])
        elif line and not line.startswith("#"):
            method, _, rest = line.partition(" ")
            path, _, body = rest.partition(" ")
            if not path.startswith("/"):
                path = "/admin/v2/" + path
            yield Step(method, path, body.encode() or None, ours)
            ours = None


def plain(status: int, text: str, port: int) -> Any:
    """What is compared of an answer's body: nothing of errors, lists without their order, no port."""
    if status >= 300:
        return None
    try:
        decoded = json.loads(re.sub(rf"(?<!\d){port}(?!\d)", "PORT", text))
    except ValueError:
        return text
    return _sorted(decoded)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return sorted((_sorted(each) for each in value), key=str)
    return value


def main(address: str) -> None:
    """Record everything."""
    port = urlsplit(address).port
    assert port is not None
    for file in sorted(HERE.glob("*.steps")):
        answers = []
        for step in steps_of(file.stem):
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE_SECONDS)
            path = step.path.replace("{PORT}", str(port))
            connection.request(step.method, path, body=step.body, headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            answers.append([answer.status, plain(answer.status, answer.read().decode(), port)])
            connection.close()
        lines = ",\n".join(json.dumps(answer) for answer in answers)
        file.with_suffix(".json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        sys.stdout.write(f"{file.stem} {len(answers)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
