"""The import table of ARCHITECTURE.md, enforced on the source.

Every `import` in `lazybatch/` is read from the syntax tree, also those inside functions and TYPE_CHECKING blocks. An
offending line is reported as file:line. A module that no rule covers fails too: new modules are placed on purpose.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PURE_STDLIB = frozenset(
    {"__future__", "abc", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "heapq"}
    | {"itertools", "math", "operator", "typing"}
)
"""What the core may use of the standard library: nothing with a clock, a thread, randomness, files or logging."""

SHELL = (
    "errors",
    "files",
    "words",
    "config",
    "core",
    "program",
    "partition",
    "executors",
    "loading",
    "workload",
    "metrics",
    "profiles",
    "lengths",
    "table_loops",
    "trips",
    "policies",
    "explanation",
    "trace",
)


@dataclass(frozen=True)
class Rule:
    """What one part may import: itself, names within lazybatch, third parties, a part of the standard library."""

    inside: tuple[str, ...]
    third: frozenset[str] = frozenset()
    stdlib: frozenset[str] | None = None


def _third(names: str = "") -> frozenset[str]:
    return frozenset(names.split())


EXECUTORS = ("errors", "words", "config", "core", "program", "partition", "executors")

RULES: dict[str, Rule] = {
    # layer 0
    "errors": Rule((), stdlib=PURE_STDLIB),
    "words": Rule((), stdlib=PURE_STDLIB),
    "files": Rule(("errors",)),
    "config": Rule(("errors", "core")),
    # layer 1
    "core": Rule(("errors", "config", "core"), stdlib=PURE_STDLIB),
    # layer 2
    "program": Rule(("errors", "files", "core"), _third("numpy")),
    "partition": Rule(
        ("errors", "config", "core", "partition", "executors.ort.session"),
        _third("numpy networkx onnx onnxruntime torch"),
    ),
    "executors": Rule(EXECUTORS, _third("numpy")),
    "executors.ort": Rule(EXECUTORS, _third("numpy onnxruntime")),
    "executors.torch": Rule(EXECUTORS, _third("numpy torch")),
    "workload": Rule(("errors", "files", "config", "core"), _third("numpy")),
    "bounds": Rule(("errors", "config", "core"), _third("numpy")),
    "solver": Rule(("errors", "config", "core"), _third("numpy")),
    "loop_solver": Rule(("errors", "config", "core", "solver"), _third("numpy")),
    "kept_arrays": Rule((), _third("numpy")),
    "controls": Rule(
        ("errors", "config", "core", "solver", "loop_solver", "kept_arrays", "partition.cache"), _third("numpy")
    ),
    "policies": Rule(("errors", "config", "core", "controls")),
    "explanation": Rule(("errors", "words", "config", "core")),
    "metrics": Rule(("errors", "config", "core"), _third("numpy")),
    "profiles": Rule(("errors", "config", "core")),
    "lengths": Rule(("errors", "files", "core", "profiles")),
    "table_loops": Rule(("errors", "core")),
    "trips": Rule(("errors", "core", "lengths", "table_loops")),
    "trace": Rule(("errors", "config", "core", "metrics")),
    # layer 3
    "loading": Rule(
        ("errors", "config", "core", "program", "program_loading", "partition", "executors"), _third("numpy")
    ),
    "program_loading": Rule(("errors", "program", "executors")),
    "engine": Rule(
        ("errors", "words", "config", "core", "executors.base", "executors.callable", "metrics", "engine"),
        _third("numpy"),
    ),
    "simulator": Rule(
        (
            *("errors", "config", "core", "workload", "metrics", "trace"),
            *("executors.base", "executors.simulated", "executors.simulated_loops"),
        ),
        _third("numpy"),
    ),
    "profiler": Rule((*SHELL, "executors", "engine"), _third("numpy rich")),
    # layer 4
    "api": Rule((*SHELL, "engine", "profiler"), _third("numpy")),
    "checking": Rule(
        ("errors", "words", "core", "program", "partition", "executors", "engine", "api"), _third("numpy")
    ),
    "": Rule((*SHELL, "checking", "engine", "profiler", "simulator", "api")),
    # layer 5
    "cli": Rule(
        (*SHELL, "checking", "engine", "profiler", "simulator", "api", "cli", "demo", ""),
        _third("numpy typer click rich matplotlib"),
    ),
    "__main__": Rule(("cli",)),
    "demo": Rule(
        (*SHELL, "engine", "profiler", "simulator", "api", "demo", ""), _third("numpy rich matplotlib PIL onnxruntime")
    ),
}


def _covers(prefix: str, module: str) -> bool:
    """Whether ``module`` (without "lazybatch.") is ``prefix`` or lies under it; "" is the package itself only."""
    return module == prefix or (prefix != "" and module.startswith(prefix + "."))


def _rule(module: str) -> Rule | None:
    """The most specific rule that covers a module."""
    matches = [prefix for prefix in RULES if _covers(prefix, module)]
    return RULES[max(matches, key=len)] if matches else None


def _imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import; `from a import b` gives a.b, which may be a module or a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def offences(module: str, source: str, *, is_package: bool = False, known: frozenset[str] = frozenset()) -> list[str]:
    """Every import of one module that its rule forbids, as "line: reason".

    module: dotted name without "lazybatch." ("" is the package itself). known: all module names, to tell
    `from lazybatch import api` (a module) from `from lazybatch import load` (a name of the package).
    """
    rule = _rule(module)
    if rule is None:
        return [f"1: no layer is given for lazybatch.{module}; add it to RULES"]
    full = f"lazybatch.{module}" if module else "lazybatch"
    package = full if is_package else full.rpartition(".")[0]
    found = []
    for line, name in _imports(ast.parse(source), package):
        top = name.split(".")[0]
        if top == "lazybatch":
            target = name.removeprefix("lazybatch").removeprefix(".")
            while target and known and target not in known:
                target = target.rpartition(".")[0]
            own = module.split(".")[0]
            if target != own and not any(_covers(prefix, target) for prefix in (own, *rule.inside)):
                found.append(
                    f"{line}: lazybatch.{module or '__init__'} must not import lazybatch.{target or '__init__'}"
                )
        elif top in sys.stdlib_module_names:
            if rule.stdlib is not None and top not in rule.stdlib:
                found.append(f"{line}: lazybatch.{module} is pure and must not import {top}")
        elif top not in rule.third:
            found.append(f"{line}: lazybatch.{module or '__init__'} must not import {top}")
    return found


def _modules() -> dict[str, Path]:
    """Every module of the package: dotted name without "lazybatch." -> file."""
    files = sorted((ROOT / "lazybatch").rglob("*.py"))
    return {
        ".".join(f.relative_to(ROOT / "lazybatch").with_suffix("").parts).removesuffix("__init__").rstrip("."): f
        for f in files
    }


def test_imports_point_down_only() -> None:
    """Every import of every module is one its layer allows; the failure names file, line and reason."""
    modules = _modules()
    known = frozenset(modules)
    found = [
        f"{path.relative_to(ROOT)}:{offence}"
        for module, path in modules.items()
        for offence in offences(module, path.read_text(), is_package=path.name == "__init__.py", known=known)
    ]
    assert not found, "\n" + "\n".join(found)


def test_folders_of_executors_know_only_what_they_share() -> None:
    """A folder of `executors` imports itself and the modules at the top, which import no folder."""
    top = "lazybatch.executors"
    folders = {f"{top}.{f.parent.name}" for f in (ROOT / "lazybatch" / "executors").glob("*/__init__.py")}
    assert folders
    for module, path in _modules().items():
        if not _covers("executors", module):
            continue
        package = f"lazybatch.{module}" if path.name == "__init__.py" else f"lazybatch.{module}".rpartition(".")[0]
        for line, name in _imports(ast.parse(path.read_text()), package):
            met = ".".join(name.split(".")[:3])
            assert met not in folders - {package}, f"{path.relative_to(ROOT)}:{line}: must not import {met}"


def test_no_file_mixes_frameworks() -> None:
    """One module knows one framework: torch and ONNX never meet in a file."""
    for path in _modules().values():
        tops = {name.split(".")[0] for _, name in _imports(ast.parse(path.read_text()), "lazybatch")}
        assert not ("torch" in tops and tops & {"onnx", "onnxruntime"}), f"{path} imports both torch and ONNX"


@pytest.mark.parametrize(
    ("module", "source", "culprit"),
    [
        ("core.scheduler", "import time", "1: lazybatch.core.scheduler is pure and must not import time"),
        ("core.slack", "def f():\n    import numpy", "2: lazybatch.core.slack must not import numpy"),
        ("core.infq", "from ..engine import loop", "1: lazybatch.core.infq must not import lazybatch.engine"),
        ("simulator", "from lazybatch import engine", "1: lazybatch.simulator must not import lazybatch.engine"),
        ("engine", "\nfrom lazybatch.simulator import run", "2: lazybatch.engine must not import lazybatch.simulator"),
        (
            "engine",
            "from lazybatch.executors.ort.executor import X",
            "1: lazybatch.engine must not import lazybatch.executors.ort.executor",
        ),
        ("nowhere", "", "1: no layer is given for lazybatch.nowhere; add it to RULES"),
    ],
)
def test_the_check_itself_finds_offences(module: str, source: str, culprit: str) -> None:
    """The checker names line, module and culprit for each kind of offence (so a pass means something)."""
    known = frozenset({"", "engine", "simulator", "executors", "executors.ort.executor", "core", module})
    assert offences(module, source, known=known) == [culprit]


def test_allowed_imports_pass() -> None:
    """Ordinary imports down the layers are not offences."""
    known = frozenset({"", "errors", "core", "core.graph", "executors", "executors.base"})
    source = "from lazybatch.errors import InvalidInput\nfrom lazybatch.executors.base import Row\nimport threading"
    assert offences("engine", source, known=known) == []
    assert offences("core.request", "from .graph import Node\nfrom enum import Enum", known=known) == []


def test_import_needs_numpy_only() -> None:
    """`import lazybatch` works where of all third-party packages only NumPy is installed."""
    script = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.split('.')[0]\n"
        "        if top not in sys.stdlib_module_names and top not in ('numpy', 'lazybatch'):\n"
        "            raise ModuleNotFoundError(f'{name} is not installed', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import lazybatch\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
