"""Writes the stubs that type checkers read: ``python generate/stubs.py``; with ``--check`` says which are out of date.

- `shtypes/ops/elementwise.pyi`, `functions.pyi`: the functions that `OPS` makes.
- `shtypes/__init__.pyi`: the public names. A plain function is imported from its file; of one that another function
  makes, the signature is written out.
- `shtypes/namespaces/`: the same of `sh.linalg`, `sh.nn` and the others.
- `shtypes/core/array_methods.pyi`: the operators, methods and properties of `Array`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import Parameter
from typing import Any, Final, get_overloads

import jax

import shtypes as sh
from shtypes import api
from shtypes.core import array
from shtypes.core.interop_errors import OF_ARRAYS, OF_PHYSICAL
from shtypes.ops.of_arrays import BINARY, COMPARISONS
from shtypes.ops.row_functions import native_of, with_out
from shtypes.ops.table import OPS

ROOT: Final = pathlib.Path(sh.__file__).parent
#: Where the names in signatures come from.
_IMPORTS: Final = {
    "Any": "from typing import Any",
    "Array": "from shtypes.core.array import Array as Array",
    "ArrayLike": "from shtypes.core.array import ArrayLike",
    "Axis": "from shtypes.ops.along_dims import Axis",
    "Callable": "from collections.abc import Callable",
    "Dims": "from shtypes.numerics.init import Dims",
    "EigResult": "from shtypes.numerics.results import EigResult",
    "EighResult": "from shtypes.numerics.results import EighResult",
    "IndexUpdate": "from shtypes.ops.indexing import IndexUpdate",
    "Initializer": "from shtypes.numerics.init import Initializer",
    "Iterator": "from collections.abc import Iterator",
    "QRResult": "from shtypes.numerics.results import QRResult",
    "SVDResult": "from shtypes.numerics.results import SVDResult",
    "Sequence": "from collections.abc import Sequence",
    "SlogdetResult": "from shtypes.numerics.results import SlogdetResult",
    "UniqueAllResult": "from shtypes.numerics.results import UniqueAllResult",
    "UniqueCountsResult": "from shtypes.numerics.results import UniqueCountsResult",
    "UniqueInverseResult": "from shtypes.numerics.results import UniqueInverseResult",
    "ClassVar": "from typing import ClassVar",
    "jax": "import jax",
    "Literal": "from typing import Literal",
    "overload": "from typing import overload",
}
_ONLY: Final = Parameter.POSITIONAL_ONLY
#: What `Array` has in its own text, and what is JAX's.
_OWN: Final = {
    *(n.name for n in ast.walk(ast.parse(inspect.getsource(array))) if isinstance(n, ast.FunctionDef)),
    *("aval", "val", "type", "data", "__jax_array__", "__array_ufunc__", "__setitem__"),
}
_NOT_LOWER: Final = "  # noqa: N802  # as numpy has it"


def stubs() -> dict[pathlib.Path, str]:
    """Each stub and its text, formatted."""
    pages = {
        ROOT / "ops" / "elementwise.pyi": _page("The elementwise functions that `OPS` makes.", _elementwise()),
        ROOT / "ops" / "functions.pyi": _page("The functions of JAX that `OPS` makes.", _of_jax()),
        ROOT / "__init__.pyi": _page("The public names, as type checkers see them.", _public()),
        ROOT / "core" / "array_methods.pyi": _page("What typed values have, as type checkers see it.", _methods()),
        ROOT / "namespaces" / "__init__.pyi": _page("The namespaces, as type checkers see them.", ()),
    }
    for name in api.NAMESPACES:
        page = _page(f"The names of `sh.{name}`, as type checkers see them.", _namespace(name))
        pages[ROOT / "namespaces" / f"{name}.pyi"] = page
    return {path: _formatted(path, text) for path, text in pages.items()}


def _page(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(lines)
    names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    heads = [line for name, line in _IMPORTS.items() if name in names]
    return "\n".join([f'"""{title} Written by `python generate/stubs.py`."""', "", *heads, "", body, ""])


def _formatted(path: pathlib.Path, text: str) -> str:
    for command in (["check", "--fix-only", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        ruff = [str(pathlib.Path(sys.executable).parent / "ruff"), *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


# signatures


class _Text(str):
    """What a signature shows as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def definition(name: str, found: inspect.Signature) -> str:
    """A function as a stub has it."""
    returns = _text(found.return_annotation)
    shown = found.replace(parameters=[_shown(p) for p in found.parameters.values()], return_annotation=returns)
    return f"def {name}{shown}: ..."


def _shown(p: Parameter) -> Parameter:
    loose = p.name == "ord"  # JAX's annotation lacks the floats that it takes
    p = p if p.name == "self" else p.replace(annotation=_Text("Any") if loose else _text(p.annotation))
    told = p.default is Parameter.empty or isinstance(p.default, (bool, int, float, str, type(None)))
    return p if told else p.replace(default=_Text("..."))


#: What annotations of JAX name that ours name too, beside `_IMPORTS`; one that names anything else may be anything.
_KNOWN: Final = {
    *(
        "int",
        "float",
        "complex",
        "bool",
        "str",
        "None",
        "list",
        "tuple",
        "dict",
        "type",
        "object",
        "lax",
        "True",
        "False",
    )
}


def _text(annotation: Any) -> _Text:
    """An annotation: those of the package and of JAX are text; what is not annotated may be anything."""
    if annotation is jax.Array:
        return _Text("Array")
    if isinstance(annotation, type) and annotation is not Parameter.empty:
        return _Text(re.sub(r"^Callable$", "Callable[..., Any]", annotation.__name__))
    if not isinstance(annotation, str):
        return _Text("Any")
    text = re.sub(r"\bAxis\b", "int | Sequence[int] | None", annotation).replace("_Unique", "Unique")
    names = re.findall(r"[A-Za-z_][\w.]*", re.sub(r"(['\"]).*?\1", "", text))
    if {name.partition(".")[0] for name in names} <= _KNOWN | {*_IMPORTS}:
        text = re.sub(r"\bCallable\b(?!\[)", "Callable[..., Any]", text)
        return _Text(re.sub(r"\blax\.", "jax.lax.", text))
    return _Text("Any")


# the stubs


def _elementwise() -> Iterator[str]:
    for name, op in sorted(OPS.items()):
        if op.operands:
            yield definition(name, op.signature)


def _of_jax() -> Iterator[str]:
    functions = importlib.import_module("shtypes.ops.functions")
    for op in sorted(OPS.values()):
        if op.module == functions.__name__:
            module, _, name = op.jax.rpartition(".")
            native = inspect.unwrap(native_of(op) or getattr(functions, op.attr))
            overloads = [*map(inspect.signature, get_overloads(native))] or _stubbed(module).get(name, [])
            for found in overloads if len(overloads) > 1 else ():
                yield f"@overload\n{_of_arrays(op.attr, with_out(found))}"
            if len(overloads) < 2:
                yield _of_arrays(op.attr, inspect.signature(getattr(functions, op.attr)))


#: Functions of pytrees, which give what they are given.
_OF_TREES: Final = ("optimization_barrier",)


def _of_arrays(name: str, found: inspect.Signature) -> str:
    """A function of JAX as a stub has it: one that does not say what it returns gives an array."""
    unsaid = _text(found.return_annotation) == "Any" and name not in _OF_TREES
    return definition(name, found.replace(return_annotation="Array") if unsaid else found)


@functools.cache
def _stubbed(module: str) -> dict[str, list[inspect.Signature]]:
    """The signatures of functions that JAX's own stub of a module has, if there is one."""
    path = pathlib.Path(importlib.import_module(module).__file__ or "").with_suffix(".pyi")
    found: dict[str, list[inspect.Signature]] = {}
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            scope: dict[str, Any] = {}
            exec("from __future__ import annotations\n" + ast.unparse(node), scope)
            found.setdefault(node.name, []).append(inspect.signature(scope[node.name]))
    return found


def _public() -> Iterator[str]:
    for name in sorted(api.NAMESPACES):
        yield f"from shtypes.namespaces import {name} as {name}"
    yield from _names(sh, sorted(api.places()))
    yield "__version__: str"


def _namespace(name: str) -> Iterator[str]:
    module = getattr(sh, name)
    rows = {op.name.rpartition(".")[2]: op for op in OPS.values() if op.space == name}
    spaces = {n: s for n in module.__all__ for s in api.NAMESPACES if getattr(sh, s) is getattr(module, n)}
    for space in sorted({*spaces.values()}):
        yield f"from shtypes.namespaces import {space} as {space}"
    own = [n for n in module.__all__ if n not in spaces]
    yield from _names(
        module, [(n, rows[n].module, rows[n].attr) if n in rows else (n, module.__name__, n) for n in own]
    )
    for n, space in spaces.items():
        if n != space:
            yield f"{n} = {space}"


def _names(owner: Any, places: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Names that a module has: a plain function comes from its file, of another the signature is written out."""
    plain = [place for place in places if place[2] in _static(place[1])]
    for name, module, attr in plain:
        yield f"from {module} import {attr} as {name if name == attr else f'_{name}'}"
    for name, _, attr in plain:
        if name != attr:
            yield f"{name} = _{name}"
    for name, _, _ in sorted({*places} - {*plain}):
        yield definition(name, inspect.signature(getattr(owner, name)))


@functools.cache
def _static(module: str) -> frozenset[str]:
    """The names of a module that its text defines so that a type checker knows what they are."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    made = ("shtypes.ops.elementwise", "shtypes.ops.functions")
    found = {op.attr for op in OPS.values() if op.module == module and module in made}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign) and not _is_made(node.value, found):
            found |= {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)


def _is_made(value: ast.expr, known: set[str]) -> bool:
    """Whether a function of the module makes a value, ``_family("max")``, or several, or it is one's other name."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    made = ast.Call | ast.GeneratorExp
    return any(isinstance(p, made) or (isinstance(p, ast.Name) and p.id not in known) for p in parts)


def _methods() -> Iterator[str]:
    """The class that `Array` has as its base for type checkers."""
    yield "class Methods:"
    yield '    """Signatures only; the functions of `shtypes` with these names say what they do."""'
    yield "    __hash__: ClassVar[None]  # type: ignore[assignment]  # as of a jax.Array: equality by element"
    for name, value in sorted(vars(sh.Array).items()):
        if name in _OWN or name in (*OF_ARRAYS, *OF_PHYSICAL):
            continue
        if isinstance(value, property):
            returns = _returned(value)
            yield f"    @property\n    def {name}(self) -> {returns}: ...{_NOT_LOWER if name != name.lower() else ''}"
        elif callable(value):
            yield f"    {_method(name, value)}"


def _returned(value: property) -> str:
    """What a property is; one that makes an object of a class is that class."""
    getter = inspect.unwrap(value.fget) if value.fget is not None else None
    assert getter is not None
    return getter.__name__ if isinstance(getter, type) else _text(inspect.signature(getter).return_annotation)


def _method(name: str, fn: Callable[..., Any]) -> str:
    plain = name.removeprefix("__").removesuffix("__")
    if plain in ("eq", "ne"):
        return f"def {name}(self, other: object) -> Array: ...  # type: ignore[override]"
    if plain in COMPARISONS or {plain, plain.removeprefix("r")} & {*BINARY}:
        return f"def {name}(self, other: Any) -> {'tuple[Array, Array]' if 'divmod' in name else 'Array'}: ..."
    _, *rest = inspect.signature(fn).parameters.values()
    me = Parameter("self", rest[0].kind if rest and rest[0].kind is _ONLY else Parameter.POSITIONAL_OR_KEYWORD)
    return definition(name, inspect.signature(fn).replace(parameters=[me, *rest]))


def main() -> None:
    """Writes the stubs, or says which are out of date and exits with 1."""
    late = {path: text for path, text in stubs().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(map(str, late))}; run `make generate`" if late else 0)
    for path, text in late.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
