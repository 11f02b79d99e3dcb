"""The tree is the diagram: import direction, the packages list, and what a module may weigh."""

import ast
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each folder imports only from itself and from those before it.
LAYERS = ("errors", "quant", "models", "runtime", "cli")
TOP = len(LAYERS)  # the root's __init__ and __main__ may see everything

# What the root's lazy __init__ hands on, and the layer it comes from.
PUBLIC_LAYERS = {
    "LLM": "runtime",
    "SamplingParams": "runtime",
    "RequestOutput": "runtime",
    "__version__": "errors",
    "check_cpu": "errors",
}

# Numba takes 0.3 s to import: only what defines kernels and the worker that compiles them may.
NUMBA_HOMES = (
    "quant/cpu/",
    "quant/cuda/",
    "quant/quantizers/",
    "runtime/kernels/cpu/",
    "runtime/kernels/cuda/",
    "quant/jit.py",
    "quant/compiler.py",
)

MAX_LINES = 400
LONG_MODULES = {  # path -> why it is one thing all the same
}

VAGUE_NAMES = {"utils", "util", "helpers", "common", "misc", "manager"}


@lru_cache
def modules() -> dict[str, Path]:
    """Dotted name below the package ("" is its root) -> file, for every module of the tree."""
    found: dict[str, Path] = {}

    def walk(folder: Path, prefix: str) -> None:
        for path in sorted(folder.iterdir()):
            if path.suffix == ".py":
                name = prefix if path.stem == "__init__" else f"{prefix}.{path.stem}".strip(".")
                found[name] = path
            elif path.is_dir() and (path / "__init__.py").exists():
                walk(path, f"{prefix}.{path.name}".strip("."))

    walk(ROOT, "")
    return found


@lru_cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def relative(path: Path) -> str:
    """A path as messages show it."""
    return path.relative_to(ROOT).as_posix()


def layer_of(dotted: str) -> int:
    """The layer of a dotted name below the package."""
    first = PUBLIC_LAYERS.get(dotted, dotted.split(".")[0])
    return LAYERS.index(first) if first in LAYERS else TOP


def targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """Dotted names below the package that an import statement in `package` reaches."""
    if isinstance(node, ast.Import) or not node.level:
        return
    parts = package.split(".") if package else []
    base = parts[: len(parts) - node.level + 1]
    base += node.module.split(".") if node.module else []
    for alias in node.names:
        full = ".".join([*base, alias.name])
        # `from . import q8_0` means the module, `from .q8_0 import FORMAT` the module before it.
        yield full if full in modules() or not base else ".".join(base)


def imports(name: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import inside the package that a module makes, wherever it stands."""
    path = modules()[name]
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in targets(node, package):
                yield node, target


def test_every_folder_imports_only_the_ones_before_it() -> None:
    wrong = [
        f"{relative(path)}:{node.lineno} imports {target}"
        for name, path in modules().items()
        for node, target in imports(name)
        if layer_of(target) > layer_of(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_imports_itself_relatively() -> None:
    """Absolute imports would load a second copy under pytest, and break in a renamed clone."""
    wrong = []
    for path in modules().values():
        for node in ast.walk(tree(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            wrong += [f"{relative(path)}: {n}" for n in names if n.split(".")[0] == "llamba"]
    assert not wrong, "\n".join(wrong)


def module_level(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when a module is loaded (not those of functions or type checkers)."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from module_level(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from module_level(node.body)


def test_no_cycles_between_modules() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        graph[name] = {
            target
            for node in module_level(tree(path).body)
            for target in targets(node, package)
            if target in modules() and target != package
        }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join((*trail, name))
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_packages_in_pyproject_are_the_tree() -> None:
    """A folder left out of the list works from a checkout and is missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = [
        ".".join(filter(None, ("llamba", name)))
        for name, path in modules().items()
        if path.stem == "__init__"
    ]
    assert sorted(listed) == sorted(there)


def test_every_folder_of_modules_is_a_package() -> None:
    for layer in LAYERS[1:]:
        for path in (ROOT / layer).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} lacks an __init__.py"


def test_numba_is_imported_only_where_kernels_are() -> None:
    wrong = []
    for path in modules().values():
        if relative(path).startswith(NUMBA_HOMES):
            continue
        for node in ast.walk(tree(path)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            if any(name.split(".")[0] == "numba" for name in names):
                wrong.append(f"{relative(path)}:{getattr(node, 'lineno', 0)}")
    assert not wrong, f"numba imported in {wrong}"


def test_modules_are_short() -> None:
    files = [*modules().values(), *(ROOT / "benchmarks").rglob("*.py")]
    lines = {relative(p): len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    long = {p: n for p, n in lines.items() if n > MAX_LINES and p not in LONG_MODULES}
    assert not long


def all_files() -> list[Path]:
    """The package's modules, the tests and the benchmarks."""
    more = [p for folder in ("tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    return [*modules().values(), *more]


def test_every_module_has_a_docstring() -> None:
    missing = [relative(path) for path in all_files() if not ast.get_docstring(tree(path))]
    assert not missing


def test_no_module_has_a_vague_name() -> None:
    vague = [
        relative(path)
        for path in modules().values()
        if VAGUE_NAMES & {path.stem, *path.relative_to(ROOT).parts[:-1]}
    ]
    assert not vague, "name a file after the one thing in it"


def test_functions_say_what_they_return() -> None:
    """Everywhere but in the files of kernels, whose types Numba infers."""
    missing = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in modules().values()
        if not relative(path).startswith(NUMBA_HOMES)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is None
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    ("module", "statement", "allowed"),
    [
        ("quant.x", "from ..errors import KernelError", True),
        ("quant.x", "from ..models import gguf", False),
        ("models.x", "from ..quant import FORMATS", True),
        ("cli.x", "from .. import __version__", True),
        ("models.x", "from .. import LLM", False),
        ("runtime.kernels.cpu.x", "from ...runtime.batch import Batch", True),
        ("runtime.kernels.cpu.x", "from ....cli import main", False),
    ],
)
def test_the_direction_test_itself(module: str, statement: str, allowed: bool) -> None:
    """The checker finds what it is for."""
    node = ast.parse(statement).body[0]
    assert isinstance(node, ast.ImportFrom)
    reached = [layer_of(t) for t in targets(node, module.rpartition(".")[0])]
    assert (max(reached) <= layer_of(module)) == allowed


def test_no_code_asks_which_architecture_it_is() -> None:
    """What differs between architectures is a declaration's field, never a comparison of names."""
    asks = [
        f"{name}:{node.lineno}"
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if ast.unparse(side).endswith(("architecture.name", "general.architecture']"))
    ]
    assert not asks
