"""The architecture: imports point down, and the pure half needs neither JAX nor numpy."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "shtypes").rglob("*.py"))
}

#: The pure half, lower layers first; a name stands for the module and all in it.
PURE_LAYERS = (
    "shtypes.caches",
    "shtypes.errors",
    "shtypes.calls",
    "shtypes.whose",
    "shtypes.where",
    "shtypes.scope",
    "shtypes.ambient",
    "shtypes.mesh",
    "shtypes.dtypes",
    "shtypes.types",
    "shtypes.policy",
    "shtypes.notation",
    "shtypes.reshard",
    "shtypes.autodiff.cotangent",
    "shtypes.ops.rules",
    "shtypes.alternatives",
    "shtypes.advice",
    "shtypes.implicit",
    "shtypes.signatures.pattern",
    "shtypes.signatures.matching",
    "shtypes.analysis.costs",
    "shtypes.analysis.picture.holdings",
    "shtypes.analysis.picture.svg",
)
#: Rooms whose `__init__` the pure half loads on the way to its own modules.
ROOMS = (
    "shtypes",
    "shtypes.ops",
    "shtypes.autodiff",
    "shtypes.signatures",
    "shtypes.analysis",
    "shtypes.analysis.picture",
)


def layer(module: str) -> int | None:
    """The layer of a pure module."""
    return next((i for i, name in enumerate(PURE_LAYERS) if module == name or module.startswith(f"{name}.")), None)


PURE = [m for m in FILES if layer(m) is not None or m in ROOMS]


def imports(node: ast.AST, *, lazy: bool) -> Iterator[str]:
    """The modules that code imports; those inside functions only if ``lazy``, those for type checkers never."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield full if full in FILES else str(child.module)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from (m for part in child.orelse for m in imports(part, lazy=lazy))
        elif lazy or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(child, lazy=lazy)


@functools.cache
def imported(module: str, lazy: bool = False) -> tuple[str, ...]:
    """What a module of this package imports."""
    return tuple(imports(ast.parse(FILES[module].read_text()), lazy=lazy))


def test_the_walk_sees_imports_where_they_are() -> None:
    code = "import a\nif TYPE_CHECKING:\n    import b\ndef f():\n    import c\nclass D:\n    from d import e"
    tree = ast.parse(code)
    assert [*imports(tree, lazy=False)] == ["a", "d"]
    assert [*imports(tree, lazy=True)] == ["a", "c", "d"]
    assert layer("shtypes.notation.syntax") == layer("shtypes.notation") != layer("shtypes.types")
    assert layer("shtypes.primitives") is None


@pytest.mark.parametrize("module", [m for m in PURE if m not in ROOMS])
def test_imports_of_the_pure_half_point_down(module: str) -> None:
    for other in imported(module):
        if other.startswith("shtypes"):
            height = layer(other)
            assert height is not None, f"{module} imports {other}, which is not pure"
            assert height <= (layer(module) or 0), f"{module} imports {other}, which lies above it"


def test_no_module_imports_itself_by_a_detour() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in imported(module):
                # A room names what is in it; its modules may still import one another through it.
                if other in FILES and other != "shtypes" and not module.startswith(f"{other}."):
                    visit(other, (*path, module))
            done.add(module)

    for module in FILES:
        visit(module, ())
    assert done >= set(PURE)


@pytest.mark.parametrize("module", FILES)
def test_only_one_file_knows_the_private_parts_and_the_versions_of_jax(module: str) -> None:
    if module == "shtypes._compat":
        return
    private = [m for m in imported(module, lazy=True) if m.startswith(("jax._src", "jaxlib"))]
    assert not private
    tree = ast.parse(FILES[module].read_text())
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not {a for a in attributes if a.startswith(("jax._src", "jax.__version", "jax.version"))}


#: Where the pure half loads numpy or JAX on demand, and for what.
ON_DEMAND = {"shtypes.dtypes": {"jax", "numpy", "ml_dtypes"}}


@pytest.mark.parametrize("module", PURE)
def test_the_pure_half_names_jax_and_numpy_only_where_it_must(module: str) -> None:
    def heavy(lazy: bool) -> set[str]:
        tops = {m.split(".")[0] for m in imported(module, lazy)}
        return tops & {"jax", "jaxlib", "numpy", "ml_dtypes", "rich", "click"}

    assert not heavy(lazy=False)
    assert heavy(lazy=True) <= ON_DEMAND.get(module, set())


def test_the_pure_half_loads_and_reads_types_without_jax_and_numpy() -> None:
    code = f"""if True:
        import importlib, json, sys
        for module in {PURE!r}:
            importlib.import_module(module)
        from shtypes.mesh import Mesh
        from shtypes.types import ShType
        mesh = Mesh({{"x": 2, "y": 2}})
        t = ShType.parse("f32[8@x, 4]{{U:y}}", mesh)
        print(json.dumps([str(t.cotangent()), sorted({{m.split(".")[0] for m in sys.modules}})]))
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    text, loaded = json.loads(ran.stdout)
    assert text == "f32[8@x,4]"
    assert not {"jax", "jaxlib", "numpy", "ml_dtypes", "rich", "click"} & set(loaded)


def test_a_public_function_keeps_its_name_when_its_submodule_is_loaded() -> None:
    code = (
        "import pkgutil, types, shtypes as sh\n"
        "import shtypes.analysis.ledger, shtypes.reshard, shtypes.jit, shtypes.where, shtypes.array\n"
        "modules = {n for n, v in vars(sh).items() if isinstance(v, types.ModuleType)}\n"
        "public = set(dir(sh)) - sh.NAMESPACES\n"
        "assert {'array', 'reshard'} <= {m.name for m in pkgutil.iter_modules(sh.__path__)} & public\n"
        "assert not modules & public, modules & public\n"
        "from shtypes.array import Array\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
