"""Each check of the house rules sees what it is there for. `make lint` runs them over the tree itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import tidy
from tools.class_names import check_class_names
from tools.compile import HOT_LINE, HOT_MODULES
from tools.documents import check_documents
from tools.source_tree import Tree, Violation

GOOD = '"""A good module."""\n'
MARK = "TO" + "DO"
HOME = "home"
IGNORE = "# type" + ": ignore"
LONG = "".join(f"    x = {number}\n" for number in range(tidy.FUNCTION_LINES_MAX))
COMPILED = HOT_MODULES[0]
TYPES = "if TYPE_CHECKING:\n"
PRODUCT = "lib/src/magnetar/core/a.py"
PURE = "[importlinter:contract:pure]\nsource_modules =\n    tools.**\n"

CASES = [
    (tidy.check_sizes, {"tools/a.py": GOOD + "x = 1\n" * tidy.MODULE_LINES_MAX}, "tools/a.py:500"),
    (tidy.check_sizes, {"tools/a.py": f"{GOOD}def f() -> None:\n{LONG}"}, "tools/a.py:2"),
    (tidy.check_folders, {f"tools/m{number}.py": GOOD for number in range(26)}, "tools:1"),
    (tidy.check_cycles, {"e2e/a.py": "import e2e.b\n", "e2e/b.py": "\nimport e2e.a\n"}, "e2e/b.py:2"),
    (
        tidy.check_cycles,
        {"tools/a.py": f"{TYPES}    from tools import b\n", "tools/b.py": "import tools.a\n"},
        "tools/b.py:1",
    ),
    (
        tidy.check_cycles,
        {"bench/a.py": "def f():\n    import bench.b\n", "bench/b.py": "import bench.a\n"},
        "bench/b.py:1",
    ),
    (
        tidy.check_cycles,
        {"e2e/a.py": "import images.b\n", "images/c.py": "import e2e.d\n", "e2e/d.py": "", "images/b.py": ""},
        "images/c.py:1",
    ),
    (
        tidy.check_cycles,
        {
            "lib/src/magnetar/one/a.py": "from magnetar.two.b import B\n",
            "lib/src/magnetar/two/b.py": "B = 1\n",
            "lib/src/magnetar/two/c.py": "from magnetar.three import d\n",
            "broker/src/magnetar/three/d.py": "import magnetar.one.e\n",
            "lib/src/magnetar/one/e.py": "",
        },
        "broker/src/magnetar/three/d.py:1",
    ),
    (tidy.check_docstrings, {"tools/a.py": "x = 1\n"}, "tools/a.py:1"),
    (tidy.check_docstrings, {"tools/a.py": f"{GOOD}class A:\n    pass\n"}, "tools/a.py:2"),
    (tidy.check_docstrings, {"tools/a.py": f"{GOOD}async def f() -> None:\n    pass\n"}, "tools/a.py:2"),
    *[
        (tidy.check_pointers, {PRODUCT: f'{GOOD}x = 1\n"""{text}"""\n'}, f"{PRODUCT}:3")
        for text in (
            "See `Store.put`.",
            "See RocksDB's CompactRange.",
            "As `find`, for bundles. `NotFound`.",
            "As it came in.",
            "Like `find`.",
            "The same.",
            "The same for a tenant.",
            "The same,\nof 64 bits.",
            "Exclusive.",
            "`nettyMaxFrameSizeBytes`.",
        )
    ],
    (tidy.check_pointers, {PRODUCT: f'{GOOD}class A:\n    def f(self):\n        """See `B.f`."""\n'}, f"{PRODUCT}:4"),
    (tidy.check_namespace, {"lib/src/magnetar/__init__.py": GOOD}, "lib/src/magnetar/__init__.py:1"),
    (tidy.check_namespace, {"operator/__init__.py": GOOD}, "operator/__init__.py:1"),
    (tidy.check_text, {"docs/a.md": f"Good.\n{MARK}: better\n"}, "docs/a.md:2"),
    (tidy.check_text, {"Makefile": "a: ## b\n\tcat " + f"/{HOME}/me/b\n"}, "Makefile:2"),
    (tidy.check_text, {"tools/a.py": f"{GOOD}x = 1  {IGNORE}\n"}, "tools/a.py:2"),
    (tidy.check_silence, {"tools/a.py": "try:\n    x = 1\nexcept:\n    pass\n"}, "tools/a.py:3"),
    (tidy.check_silence, {"tools/a.py": "with contextlib.suppress(Exception):\n    pass\n"}, "tools/a.py:1"),
    (tidy.check_mocks, {"lib/tests/test_a.py": "from unittest import mock\n"}, "lib/tests/test_a.py:1"),
    (tidy.check_dead_modules, {"broker/src/magnetar/broker/a.py": GOOD}, "broker/src/magnetar/broker/a.py:1"),
    (tidy.check_makefile, {"Makefile": "VALUE := 1\nall: one\n"}, "Makefile:2"),
    (tidy.check_makefile, {"Makefile": "TARGETS := one \\\n  two\none: ## A\nthree: ## B\n"}, "Makefile:4"),
    (tidy.check_decisions, {"docs/adr/0001-a.md": "# A\n"}, "docs/adr/0001-a.md:1"),
    (tidy.check_order, {".importlinter": PURE, "tools/a.py": "for x in {1, 2}:\n    print(x)\n"}, "tools/a.py:1"),
    (tidy.check_compiled, {COMPILED: f"{GOOD}async def f() -> None:\n    pass\n"}, f"{COMPILED}:2"),
    (tidy.check_compiled, {COMPILED: f"{GOOD}x = sum(n for n in (1, 2))\n"}, f"{COMPILED}:2"),
    (tidy.check_foreign_frames, {"tools/a.py": f"{GOOD}import sys\nx = sys._current_frames()\n"}, "tools/a.py:3"),
    (tidy.check_section_comments, {"tools/a.py": f"{GOOD}\n# Reads.\n\nx = 1\n"}, "tools/a.py:3"),
    (tidy.check_section_comments, {"tools/a.py": f"{GOOD}\n# -----\n\nx = 1\n"}, "tools/a.py:3"),
    (tidy.check_hot_lines, {COMPILED: GOOD}, f"{COMPILED}:1"),
    (tidy.check_hot_lines, {"tools/a.py": f'"""Good.\n\n{HOT_LINE}\n"""\n'}, "tools/a.py:1"),
    (tidy.check_loggers, {"tools/a.py": "log = logging.getLogger(__name__)\n"}, "tools/a.py:1"),
    (tidy.check_loggers, {"tools/a.py": "logger = logging.getLogger(__name__)\n"}, "tools/a.py:1"),
    (tidy.check_loggers, {"tools/a.py": "\nLOG: Final = logging.getLogger('tools')\n"}, "tools/a.py:2"),
    (tidy.check_loggers, {"tools/a.py": "_own: Final = getLogger(__name__)\n"}, "tools/a.py:1"),
    (
        check_class_names,
        {PRODUCT: "class Gate: ...\n", "proxy/src/magnetar/proxy/b.py": "x = 1\nclass Gate: ...\n"},
        "proxy/src/magnetar/proxy/b.py:2",
    ),
    (
        check_class_names,
        {PRODUCT: "class _Own: ...\n", "lib/src/magnetar/core/b.py": "def make():\n    class _Own: ...\n"},
        "lib/src/magnetar/core/b.py:2",
    ),
    (
        check_documents,
        {"ARCHITECTURE.md": "# A\n\n`tools/a.py`, `tools/b.py`\n", "tools/a.py": GOOD},
        "ARCHITECTURE.md:3",
    ),
    (check_documents, {"tools/README.md": "`a.py`, `gone`\n", "tools/a.py": GOOD}, "tools/README.md:1"),
    (tidy.check_test_names, {"a/test_x.py": "", "b/test_x.py": ""}, "b/test_x.py:1"),
]


@pytest.mark.parametrize(("check", "files", "want"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_each_check_sees_its_fault(
    check: Callable[[Tree], Iterator[Violation]], files: dict[str, str], want: str, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert [str(violation).rpartition(": ")[0].partition(": ")[0] for violation in check(Tree.read(tmp_path))] == [want]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_tidy_tree_has_no_violations(tmp_path: Path) -> None:
    use = "from magnetar.lib import once, thing\n\n\ndef main() -> None:\n    '''Use it.'''\n    thing()\n"
    write(
        tmp_path,
        {
            "lib/src/magnetar/lib/__init__.py": GOOD,
            "lib/src/magnetar/lib/once.py": f"{GOOD}class Once:\n    '''Of the product.'''\n",
            "lib/src/magnetar/lib/thing.py": f"{GOOD}x: set[int] = {{1}}\ny = sorted(x)\nz = sum(a for a in x)\n",
            "lib/src/magnetar/lib/__main__.py": GOOD + use,
            "lib/tests/test_thing.py": "class Once: ...\n\n\ndef test_it() -> None:\n    pass\n",
            "lib/README.md": "`thing.py`, `thing.z`\n",
            "docs/adr/0001-a.md": "# A\n\nStatus: Accepted\n",
            "Makefile": "VALUE := 1\nTARGETS := all\nall: ## Everything\n",
            ".importlinter": PURE.replace("tools", "magnetar.lib"),
        },
    )
    tree = Tree.read(tmp_path)
    assert [violation for check in tidy.CHECKS for violation in check(tree)] == []
