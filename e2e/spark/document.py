"""Examples in a page of documentation: what is run of it, and what the page says comes out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RUN = ("python", "sh")
"""Languages of blocks that are run; a `text` block right behind one is what it prints."""

ANYTHING = "…"
"""In what is printed: anything at all, also several lines."""

_FENCE = re.compile(r"^```(\w*)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A block of a page."""

    language: str
    text: str
    line: int
    """Of its first line in the page, from 1 on."""
    printed: str | None
    """As the page has it; None: the page does not say."""


def examples(page: Path, heading: str) -> list[Example]:
    """Those of one section, in order."""
    found: list[Example] = []
    inside = False
    language, first, lines = "", 0, list[str]()
    follows = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if language:
            if line.startswith("```"):
                _take(found, language, "\n".join(lines), first, follows=follows)
                follows, language = language in RUN, ""
            else:
                lines.append(line)
        elif fence and inside:
            language, first, lines = fence[1] or "text", number + 1, []
        elif line.startswith("## "):
            inside = line == f"## {heading}"
        elif line.strip():
            follows = False
    return found


def _take(found: list[Example], language: str, text: str, line: int, *, follows: bool) -> None:
    if language in RUN:
        found.append(Example(language=language, text=text, line=line, printed=None))
    elif language == "text" and follows:
        before = found.pop()
        found.append(Example(language=before.language, text=before.text, line=before.line, printed=text))


def is_as_printed(wanted: str, printed: str) -> bool:
    """Whether that came out, but for blanks at the ends of lines, and for whatever stands in the place of `…`."""
    pattern = ".*".join(re.escape(part) for part in _plain(wanted).split(ANYTHING))
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
