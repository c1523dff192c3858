"""Holds the tree to the house rules that no linter knows: sizes, docstrings, cycles, leftovers, dead modules.

`python -m tools.tidy` prints every violation as `path:line: what is wrong: what to do` and fails if there is one;
`make lint` does so. What ruff, mypy and import-linter can say is left to them. A check has a test that plants what it
is there for; the tree itself is looked at here alone, because to read its syntax takes longer than a thousand tests.
"""

from __future__ import annotations

import ast
import configparser
import fnmatch
import gc
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tools.class_names import check_class_names
from tools.compile import HOT_LINE, HOT_MODULES
from tools.documents import check_documents
from tools.import_cycles import cycles
from tools.set_iteration import iterations_over_sets
from tools.source_tree import ROOT, Module, Tree, Violation

MODULE_LINES_MAX: Final = 500
TEST_MODULE_LINES_MAX: Final = 900
FUNCTION_LINES_MAX: Final = 60
FOLDER_MODULES_MAX: Final = 25

_TEXT_SUFFIXES: Final = frozenset(
    [".cfg", ".go", ".java", ".md", ".proto", ".py", ".sh", ".toml", ".xml", ".yaml", ".yml"]
)
_TEXT_NAMES: Final = frozenset({"Makefile", "Dockerfile", ".importlinter", "run"})
# The brackets keep this file from finding itself.
_LEFTOVER: Final = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b")
_MACHINE_PATH: Final = re.compile(r"(?<![\w.])/(work|root|home)/")
_BARE_IGNORE: Final = re.compile(r"#\s*type:\s*ignore(?!\[)")
_LOGGER: Final = re.compile(r"(?P<target>[\w.]+)(?P<type>: [\w.]+)? = (logging\.)?getLogger\((?P<named>[^()]*)\)")
_OTHER_SECTION: Final = re.compile(r"\s*#(?! --- [^-=]| (ruff|mypy|type|isort): |!)")
_MODULE_NAME: Final = re.compile(r"magnetar(\.\w+)+")
_TARGETS: Final = re.compile(r"^TARGETS := ((?:.*\\\n)*.*)", re.MULTILINE)
_TARGET: Final = re.compile(r"^([a-z][a-z0-9_-]*):(?!=)")
_POINTER: Final = re.compile(
    # As another one is.
    r"(See|As|As for|Like|Same as|The same as) `|(See|As|Like|Same as)\b[^,;:`]*$"
    r"|The same( (as|for|of|while|with)\b|[^ ])"
    # A single word or name.
    r"|[`\w./…-]+[.:]?$"
)
_BROAD: Final = frozenset({"Exception", "BaseException"})


def check_sizes(tree: Tree) -> Iterator[Violation]:
    """Modules and functions that a reader can hold in mind."""
    for module in tree.written_modules():
        limit = TEST_MODULE_LINES_MAX if module.is_test else MODULE_LINES_MAX
        lines = module.text.count("\n")
        if lines > limit:
            yield Violation(module.path, limit, f"module of {lines} lines (at most {limit})", "split it by idea")
        if module.is_test:
            continue
        for node in module.nodes.of(ast.FunctionDef, ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                what = f"{node.name} has {length} lines (at most {FUNCTION_LINES_MAX})"
                yield Violation(module.path, node.lineno, what, "name its steps and move them out")


def check_folders(tree: Tree) -> Iterator[Violation]:
    """Folders that a reader can take in at a glance. A test is found by its name, so tests may be many."""
    folders: defaultdict[Path, int] = defaultdict(int)
    for module in tree.written_modules():
        if not module.is_test and module.path.name != "__init__.py":
            folders[module.path.parent] += 1
    for folder, count in folders.items():
        if count > FOLDER_MODULES_MAX:
            what = f"folder of {count} modules (at most {FOLDER_MODULES_MAX})"
            yield Violation(folder, 1, what, "make rooms of what belongs together")


def check_cycles(tree: Tree) -> Iterator[Violation]:
    """Nobody is needed by what it needs itself: not modules, and not the packages that stand side by side."""
    modules = {module.name: module for module in tree.modules}
    for cycle in cycles({name: module.nodes for name, module in modules.items()}):
        way = " → ".join([*cycle.members, cycle.members[0]])
        remedy = "move down what both need, or have the lower one ask for a protocol"
        yield Violation(modules[cycle.last.importer].path, cycle.last.line, f"imports in a circle: {way}", remedy)


def check_docstrings(tree: Tree) -> Iterator[Violation]:
    """Modules, public classes and public functions say what they promise."""
    for module in tree.written_modules():
        if module.is_test:
            continue
        if not ast.get_docstring(module.tree):
            yield Violation(module.path, 1, "no module docstring", "say what this file decides and what it leaves")
        # The functions of e2e are scenarios: their names are what they promise.
        kinds = ast.ClassDef if module.path.parts[0] == "e2e" else ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        for node in module.tree.body:
            if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node):
                yield Violation(module.path, node.lineno, f"{node.name} has no docstring", "say what it promises")


def check_pointers(tree: Tree) -> Iterator[Violation]:
    """A docstring of the product says itself what the thing is, so that a search for the field's word finds it."""
    for module in tree.written_modules():
        if "src" not in module.path.parts or module.is_test:
            continue
        for node in module.nodes.of(ast.Expr):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))) if _POINTER.match(text := " ".join(text.split())):
                    what = f'"{text}" says nothing by itself'
                    yield Violation(module.path, node.lineno, what, "say what the thing is, in a sentence")
                case _:
                    pass


def check_namespace(tree: Tree) -> Iterator[Violation]:
    """`magnetar` is shared by several distributions, and `operator` is a module of the standard library."""
    for path in tree.files:
        if path.name == "__init__.py" and (path.parent.name == "magnetar" or path.parent == Path("operator")):
            yield Violation(path, 1, f"{path.parent.name}/ must not be a package of its own", "remove this file")


def check_text(tree: Tree) -> Iterator[Violation]:
    """No leftovers and no paths of somebody's machine, in any text."""
    for path in tree.files:
        if path.suffix not in _TEXT_SUFFIXES and path.name not in _TEXT_NAMES:
            continue
        for number, line in enumerate((tree.root / path).read_text(errors="replace").splitlines(), 1):
            if leftover := _LEFTOVER.search(line):
                yield Violation(path, number, f"a {leftover[0]}", "do it, or write an issue")
            if place := _MACHINE_PATH.search(line):
                yield Violation(path, number, f"the machine's path {place[0]}", "take it from a setting or a fixture")
            if path.suffix == ".py" and _BARE_IGNORE.search(line):
                yield Violation(path, number, "an ignore without its code", "name the code and the reason")


def check_silence(tree: Tree) -> Iterator[Violation]:
    """Nobody swallows whatever comes."""
    for module in tree.written_modules():
        for handler in module.nodes.of(ast.ExceptHandler):
            broad = handler.type is None or _names(handler.type) & _BROAD
            if broad and all(isinstance(statement, ast.Pass) for statement in handler.body):
                yield Violation(module.path, handler.lineno, "an error is swallowed", "catch what can happen, and act")
        for call in module.nodes.of(ast.Call):
            if "suppress" in _names(call.func) and any(_names(argument) & _BROAD for argument in call.args):
                yield Violation(module.path, call.lineno, "every error is suppressed", "name those that can happen")


def _names(node: ast.expr) -> set[str]:
    """The last names in an expression of names, attributes and tuples of them."""
    if isinstance(node, ast.Tuple):
        return {name for element in node.elts for name in _names(element)}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    return {node.id} if isinstance(node, ast.Name) else set()


def check_mocks(tree: Tree) -> Iterator[Violation]:
    """The library is tested with real parts and proven fakes."""
    for module in tree.written_modules():
        if module.path.parts[0] != "lib":
            continue
        for name, line in _imports(module):
            if name.startswith("unittest.mock") or name == "mock":
                yield Violation(module.path, line, "a mock", "use the fake that passes the seam's contract suite")


def _imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every module name that may be meant by an import, with its line: `from a import b` gives `a` and `a.b`."""
    for node in module.nodes.of(ast.Import):
        yield from ((alias.name, node.lineno) for alias in node.names)
    for source in module.nodes.of(ast.ImportFrom):
        if source.module:
            yield source.module, source.lineno
            yield from ((f"{source.module}.{alias.name}", source.lineno) for alias in source.names)
    for constant in module.nodes.of(ast.Constant):
        if isinstance(constant.value, str) and _MODULE_NAME.fullmatch(constant.value):
            # Named to be imported later, when it is needed.
            yield constant.value, constant.lineno


def check_dead_modules(tree: Tree) -> Iterator[Violation]:
    """Each module is imported by another one that is no test; what the library offers, and fakes, at least by one."""
    for_production: set[str] = set(_entry_points(tree))
    for_tests: set[str] = set()
    for module in tree.modules:
        names = {name for name, _ in _imports(module) if name != module.name}
        (for_tests if module.is_test else for_production).update(names)
    for module in tree.written_modules():
        if "src" not in module.path.parts or module.path.name in ("__init__.py", "__main__.py"):
            continue
        fake = module.path.stem.endswith(("testing", "contract")) or module.path.parent.name == "testing"
        offered = module.path.parts[0] == "lib" or fake
        if module.name not in for_production and not (offered and module.name in for_tests):
            yield Violation(module.path, 1, "nothing imports this module", "use it or remove it")


def _entry_points(tree: Tree) -> Iterator[str]:
    """Modules that installed distributions name: commands and plugins."""
    for path in tree.files:
        if path.name == "pyproject.toml":
            project = tomllib.loads((tree.root / path).read_text()).get("project", {})
            groups = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
            yield from (target.partition(":")[0] for group in groups for target in group.values())


def check_makefile(tree: Tree) -> Iterator[Violation]:
    """`make` alone explains every target, and any may be the first one on a machine without uv."""
    path = Path("Makefile")
    if path not in tree.files:
        return
    text = (tree.root / path).read_text()
    listed = _TARGETS.search(text)
    targets = listed[1].replace("\\", " ").split() if listed else []
    for number, line in enumerate(text.splitlines(), 1):
        if (target := _TARGET.match(line)) and "##" not in line:
            yield Violation(path, number, f"target {target[1]} is not explained", "end its line with ## and a sentence")
        elif target and target[1] not in targets:
            yield Violation(path, number, f"target {target[1]} may run without uv", "name it in TARGETS")


def check_decisions(tree: Tree) -> Iterator[Violation]:
    """Every recorded decision says whether it holds."""
    for path in tree.files:
        recorded = path.parent == Path("docs/adr") and path.suffix == ".md" and path.name != "README.md"
        if recorded and not re.search(r"^Status: \w+", (tree.root / path).read_text(), re.MULTILINE):
            yield Violation(path, 1, "no status", "add a line `Status: Accepted`, `Proposed` or `Superseded by …`")


def check_order(tree: Tree) -> Iterator[Violation]:
    """Pure modules do not depend on the order of a set, which differs from process to process."""
    patterns = pure_modules(tree)
    for module in tree.written_modules():
        if any(fnmatch.fnmatchcase(module.name, pattern) for pattern in patterns):
            for line, what in iterations_over_sets(module.tree):
                yield Violation(module.path, line, f"iterates over the set {what}", "sort it, or keep a list or a dict")


def pure_modules(tree: Tree) -> list[str]:
    """The modules that the import contracts hold to be pure, as patterns of `fnmatch`."""
    path = tree.root / ".importlinter"
    if not path.exists():
        return []
    contracts = configparser.ConfigParser()
    contracts.read(path)
    return [
        name.replace("**", "*")
        for section in contracts.sections()
        if section.startswith("importlinter:contract:pure")
        for name in contracts[section]["source_modules"].split()
    ]


def check_test_names(tree: Tree) -> Iterator[Violation]:
    """A failing test is found by its file's name alone, and importlib mode needs no packages for that."""
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for path in tree.files:
        if path.name.startswith("test_") and path.suffix == ".py":
            places[path.name].append(path)
    for paths in places.values():
        for path in paths[1:]:
            yield Violation(path, 1, f"has the name of {paths[0]}", "put the module's package into the name")


def check_compiled(tree: Tree) -> Iterator[Violation]:
    """What mypyc compiles holds nothing that is suspended: it loses the exception that a suspended frame handles, and
    corrupts memory (docs/adr/0022)."""
    compiled = {Path(module) for module in HOT_MODULES}
    suspended = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
    for module in tree.modules:
        if module.path in compiled:
            for node in ast.walk(module.tree):
                if isinstance(node, (*suspended, ast.GeneratorExp)):
                    kind = type(node).__name__
                    yield Violation(module.path, node.lineno, f"{kind} in a compiled module", "wait in a plain module")


def check_foreign_frames(tree: Tree) -> Iterator[Violation]:
    """Nobody takes the frames of another thread: it goes on while they are looked at, and a broker crashed by that."""
    for module in tree.written_modules():
        for call in module.nodes.of(ast.Call):
            if _names(call.func) & {"_current_frames"}:
                yield Violation(module.path, call.lineno, "frames of another thread", "magnetar.process.thread_stack")


def check_hot_lines(tree: Tree) -> Iterator[Violation]:
    """A module that mypyc compiles says so at the end of its docstring, and no other one does."""
    compiled = {Path(module) for module in HOT_MODULES}
    for module in tree.modules:
        says_so = (ast.get_docstring(module.tree) or "").endswith(HOT_LINE)
        if says_so and module.path not in compiled:
            yield Violation(module.path, 1, "says that it is compiled, and is not", "name it in tools/compile.py")
        elif module.path in compiled and not says_so:
            yield Violation(module.path, 1, "is compiled, and does not say so", f"end its docstring with {HOT_LINE!r}")


def check_section_comments(tree: Tree) -> Iterator[Violation]:
    """A comment that stands alone between empty lines names a section, and all of them look the same."""
    for module in tree.written_modules():
        lines = ["", *module.text.splitlines(), ""]
        for number in range(1, len(lines) - 1):
            alone = not lines[number - 1].strip() and not lines[number + 1].strip()
            if alone and _OTHER_SECTION.match(lines[number]):
                yield Violation(module.path, number, "a section that looks different", "write # --- what it is about")


def check_loggers(tree: Tree) -> Iterator[Violation]:
    """A module's logger looks the same everywhere. Another name than the module's own is for who has a reason: what is
    run by itself is called `__main__`."""
    for module in tree.written_modules():
        # To write syntax as text again is slow, and few modules have a logger.
        assigned = module.nodes.of(ast.Assign, ast.AnnAssign) if "getLogger" in module.text else ()
        for node in assigned:
            if given := _LOGGER.fullmatch(ast.unparse(node)):
                of_module = given["named"] == "__name__" or given["target"].strip("_").lower() in ("log", "logger")
                if of_module and given["target"] + (given["type"] or "") != "logger: Final":
                    what = f"the module's logger is spelled `{ast.unparse(node)}`"
                    yield Violation(module.path, node.lineno, what, "logger: Final = logging.getLogger(__name__)")


CHECKS: Final[tuple[Callable[[Tree], Iterator[Violation]], ...]] = (
    check_sizes,
    check_folders,
    check_cycles,
    check_docstrings,
    check_pointers,
    check_namespace,
    check_text,
    check_silence,
    check_mocks,
    check_dead_modules,
    check_makefile,
    check_decisions,
    check_order,
    check_test_names,
    check_compiled,
    check_foreign_frames,
    check_hot_lines,
    check_section_comments,
    check_loggers,
    check_class_names,
    check_documents,
)


def main() -> int:
    """Run the command line."""
    gc.disable()  # Millions of nodes that stay to the end: each collection would look at all of them.
    tree = Tree.read(ROOT)
    found = [violation for check in CHECKS for violation in check(tree)]
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
