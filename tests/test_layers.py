"""The architecture: imports point down, and the pure half needs neither JAX nor numpy."""

from __future__ import annotations

import ast
import functools
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fresh import printed

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "shtypes").rglob("*.py"))
}

#: The rooms, bottom to top; a name stands for the module and all in it. What is loose has a place among them.
ROOMS = (
    *("caches", "errors", "context", "types", "resharding", "rules", "scopes", "_compat", "core"),
    *("traced", "programs", "dispatch", "evaluation", "ops", "control", "autodiff"),
    *(
        "local_mode",
        "numerics",
        "lifting",
        "training",
        "signatures",
        "analysis",
        "solver",
        "suggestions",
        "api",
        "",
        "editor",
    ),
    *("mypy_plugin", "tools", "__main__"),
)
#: The pure rooms, and what is pure besides.
PURE_ROOMS = (*ROOMS[: ROOMS.index("_compat")], "editor", "mypy_plugin")
PURE_PARTS = (
    *("shtypes", "shtypes.api", "shtypes.ops", "shtypes.ops.of_arrays", "shtypes.ops.rows", "shtypes.ops.table"),
    *("shtypes.signatures", "shtypes.signatures.matching", "shtypes.analysis"),
    *("shtypes.analysis.device_slices", "shtypes.analysis.svg", "shtypes.analysis.explain_reshard"),
    *("shtypes.analysis.describe_plan", "shtypes.solver", "shtypes.solver.axis_states", "shtypes.suggestions"),
)


def room(module: str) -> str:
    """The room that a module is in."""
    return (*module.split("."), "")[1]


PURE = [m for m in FILES if room(m) in PURE_ROOMS or m in PURE_PARTS]


def imports(node: ast.AST, *, lazy: bool) -> Iterator[str]:
    """The modules that code imports; those inside functions and for type checkers only if ``lazy``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield full if full in FILES else str(child.module)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            parts = (*child.body * lazy, *child.orelse)
            yield from imports(ast.Module([*parts], []), lazy=lazy)
        elif isinstance(child, ast.expr):
            continue  # most of the nodes, and no import is in one
        elif lazy or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(child, lazy=lazy)


@functools.cache
def text_of(module: str) -> str:
    return FILES[module].read_text(encoding="utf-8")


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(text_of(module))


@functools.cache
def imported(module: str, lazy: bool = False) -> tuple[str, ...]:
    """What a module of this package imports."""
    return tuple(imports(tree_of(module), lazy=lazy))


def test_at_most_six_files_are_loose() -> None:
    assert len([*(ROOT / "shtypes").glob("*.py")]) <= 6


def test_the_walk_sees_imports_where_they_are() -> None:
    code = "import a\nif TYPE_CHECKING:\n    import b\ndef f():\n    import c\nclass D:\n    from d import e"
    tree = ast.parse(code)
    assert [*imports(tree, lazy=False)] == ["a", "d"]
    assert [*imports(tree, lazy=True)] == ["a", "b", "c", "d"]
    assert room("shtypes.types.notation.syntax") == "types" == room("shtypes.types")
    assert room("shtypes") == ""


def test_every_module_is_in_a_room() -> None:
    assert {room(m) for m in FILES} == set(ROOMS)
    assert len([p for p in (ROOT / "shtypes").iterdir() if p.suffix == ".py"]) <= 7


def test_imports_point_down() -> None:
    pairs = [(m, other) for m in FILES for other in imported(m, lazy=True) if other.startswith("shtypes")]
    assert len(pairs) > len(FILES)
    assert [(m, other) for m, other in pairs if ROOMS.index(room(other)) > ROOMS.index(room(m))] == []


def test_the_pure_half_imports_only_itself() -> None:
    outside = [(m, o) for m in PURE for o in imported(m) if o.startswith("shtypes") and o not in PURE]
    assert outside == []


def test_no_module_imports_itself_by_a_detour() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in imported(module, lazy=True):
                if other in FILES:
                    visit(other, (*path, module))
            done.add(module)

    for module in FILES:
        visit(module, ())
    assert done == set(FILES)


def test_few_imports_are_inside_functions() -> None:
    """Tools start without JAX, dtypes are named without numpy; what prints and draws is loaded late."""
    inside: dict[str, int] = {}
    for m in FILES:
        indented = re.search(r"^ +(import|from) ", text_of(m), re.MULTILINE)
        functions = [f for f in ast.walk(tree_of(m)) if isinstance(f, ast.FunctionDef)] if indented else []
        inside[m] = len({n for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)})
    assert {m for m, count in inside.items() if count} <= {
        *(m for m in FILES if room(m) == "tools"),
        *("shtypes.types.dtypes", "shtypes.types.tables", "shtypes.analysis.explain.page"),
    }
    assert sum(inside.values()) <= 30, inside


def test_only_one_file_knows_the_private_parts_and_the_versions_of_jax() -> None:
    others = [m for m in FILES if room(m) != "_compat"]
    assert [(m, o) for m in others for o in imported(m, lazy=True) if o.startswith(("jax._src", "jaxlib"))] == []
    private = {"_src", "__version__", "__version_info__", "version"}
    texts = [m for m in others if re.search(r"\bjax\s*\.", text_of(m)) and any(p in text_of(m) for p in private)]
    nodes = [(m, node) for m in texts for node in ast.walk(tree_of(m)) if isinstance(node, ast.Attribute)]
    assert [m for m, n in nodes if n.attr in private and isinstance(n.value, ast.Name) and n.value.id == "jax"] == []


#: Where the pure half loads numpy, JAX or `rich` on demand, and for what.
ON_DEMAND = {"shtypes.types.dtypes": {"jax", "numpy", "ml_dtypes"}, "shtypes.types.tables": {"rich"}}


def test_the_pure_half_names_jax_and_numpy_only_where_it_must() -> None:
    def heavy(module: str, lazy: bool) -> set[str]:
        tops = {m.split(".")[0] for m in imported(module, lazy)}
        return tops & {"jax", "jaxlib", "numpy", "ml_dtypes", "rich", "click"}

    assert [m for m in PURE if heavy(m, lazy=False)] == []
    assert [m for m in PURE if not heavy(m, lazy=True) <= ON_DEMAND.get(m, set())] == []


def test_the_pure_half_loads_and_reads_types_without_jax_and_numpy() -> None:
    code = f"""if True:
        import importlib, json, sys
        for module in {PURE!r}:
            importlib.import_module(module)
        from shtypes.types.mesh import Mesh
        from shtypes.types import ShType
        mesh = Mesh({{"x": 2, "y": 2}})
        t = ShType.parse("f32[8@x, 4]{{U:y}}", mesh)
        print(json.dumps([str(t.cotangent()), sorted({{m.split(".")[0] for m in sys.modules}})]))
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    text, loaded = json.loads(ran.stdout)
    assert text == "f32[8@x,4]"
    assert not {"jax", "jaxlib", "numpy", "ml_dtypes", "rich", "click"} & set(loaded)


def test_what_only_prints_and_other_frameworks_are_loaded_by_who_uses_them() -> None:
    code = """if True:
        import sys, numpy as np, shtypes as sh
        sh.einsum, sh.tree.bytes({"a": np.ones(3)})
        print([m for m in ("rich", "click", "matplotlib", "flax", "orbax") if m in sys.modules])
    """
    assert printed(code).strip() == "[]"


def test_no_public_name_is_that_of_a_room() -> None:
    import shtypes as sh

    assert not {m.name for m in pkgutil.iter_modules(sh.__path__)} & set(dir(sh))


#: How often a call of `sh.einsum` may go from file to file; `python -m tests.file_changes` says where it does.
#: What JAX asks while it traces, such as the sharding of an argument of its `jit`, are two files each time.
FILE_CHANGES = {"eager": 106, "traced": 27}


def test_an_einsum_crosses_few_files() -> None:
    found = json.loads(printed("from tests.file_changes import main; main()", "--json"))
    assert found.keys() == FILE_CHANGES.keys()
    assert all(found[kind] <= most for kind, most in FILE_CHANGES.items()), found
