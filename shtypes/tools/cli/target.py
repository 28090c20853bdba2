"""Loads a target such as ``module:function``: a function and its abstract arguments.

Wrong use is a `click.UsageError` (exit code 2). JAX is imported only when a target is loaded.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

import shtypes as sh
from shtypes.errors import ShardingTypeError, short
from shtypes.tools.cli.config import TargetConfig, config
from shtypes.tools.cli.output import WrongUse, clipped, for_the_shell, loading, tracing
from shtypes.types.mesh import Mesh
from shtypes.types.notation import dim_names
from shtypes.types.policy import current_policy, policy

if TYPE_CHECKING:
    from shtypes.analysis.target import Target


@dataclasses.dataclass(frozen=True)
class LoadedTarget:
    """A function with the types of its arguments, on a mesh, under a policy."""

    name: str  # the target as the user wrote it
    function: Callable[..., Any]
    args: tuple[Any, ...]  # its abstract arguments
    mesh: Mesh
    policy: str
    dims: Mapping[str, int]  # the sizes of dim names
    grad: bool = False  # whether the backward pass is included

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Sets the mesh, the policy and the dim names; imports JAX."""
        with sh.use_mesh(self.mesh), policy(self.policy), dim_names.dims(**self.dims):
            yield

    @property
    def target(self) -> Target:
        """The call, for reports; checks the function's annotations."""
        return _target(self.function, self.args)


def _target(f: Callable[..., Any], args: tuple[Any, ...] = ()) -> Target:
    from shtypes.analysis.target import target_of  # imports JAX

    return target_of(f, args, {})


def load_target(
    target: str,
    types: Sequence[str],
    *,
    mesh: Mesh | None,
    policy_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    grad: bool = False,
    lift: bool = False,
    root: Path | None = None,
    maker: str | None = None,
) -> LoadedTarget:
    """Loads a target, and makes its arguments from types, or else from its annotations.

    Other settings come from ``[tool.shtypes]`` in ``pyproject.toml``, for this target or for all. ``root`` is the
    folder of files and modules, by default the current one; ``maker`` a function in the target's module that returns
    the arguments, instead of types; ``lift``: whether it is a plain JAX function.
    """
    if types and maker:
        raise click.UsageError("give types or --arguments, not both")
    settings = config(root)
    configured = settings.named(target) or TargetConfig(
        target, target, mesh=settings.mesh, policy=settings.policy, dims=settings.dims
    )
    mesh = mesh or configured.mesh
    if mesh is None:
        raise click.UsageError("no mesh is given: say --mesh dp=2,tp=4, or `mesh` in [tool.shtypes] of pyproject.toml")
    name, sizes = policy_name or configured.policy or current_policy(), {**configured.dims, **(dims or {})}
    folder = root or (settings.root if configured.name != configured.target else None)
    f = load(configured.target, devices=mesh.size, root=folder)
    if lift or configured.lift:
        f = sh.lift(f)
    maker = maker or (configured.arguments if not types else None)
    make = maker and load(f"{configured.target.rpartition(':')[0]}:{maker}", devices=mesh.size, root=folder)
    loaded = LoadedTarget(target, f, (), mesh, name, sizes, grad or configured.grad)
    with loaded.scope():
        args = _arguments_of(make, maker) if make and maker else arguments(f, types or configured.types)
    return dataclasses.replace(loaded, args=args)


# arguments


def _arguments_of(make: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """The abstract arguments that a user's function returns: a tuple of them, or the only one.

    It is traced, since arrays that it makes by JAX may need more devices than there are.
    """
    import jax

    from shtypes.core.conversion import without_data

    args: tuple[Any, ...] = ()

    def without_data_of(x: Any) -> Any:
        if not isinstance(x, jax.core.Tracer):
            return x
        t = jax.typeof(x)
        return sh.abstract_array(t) if isinstance(t, sh.ShType) else jax.ShapeDtypeStruct(t.shape, t.dtype)

    def traced() -> None:
        nonlocal args
        result = make()
        args = jax.tree.map(without_data_of, _target(make, result if isinstance(result, tuple) else (result,)).args)

    with tracing(name), without_data():
        jax.eval_shape(traced)
    return args


def arguments(f: Callable[..., Any], types: Sequence[str]) -> tuple[Any, ...]:
    """Abstract values from types, by default those of the annotations ``Annotated[Array, "f32[...]"]``.

    A number, ``True``, ``False`` or ``None`` among the types is passed as it is.
    """
    values = tuple(_argument(i, text) for i, text in enumerate(types))
    name = str(getattr(f, "__name__", "f"))
    with loading(name):  # annotations and signatures may run user code
        if not types:
            return _annotated(f)
        try:
            parameters = inspect.signature(f)
        except ValueError:  # it has no signature
            return values
        try:
            parameters.bind(*values)
        except TypeError as error:
            call = short(f"{name}({', '.join(parameters.parameters)})")
            raise WrongUse(f"`{call}` does not take these types: {error}") from None
    return values


def _annotated(f: Callable[..., Any]) -> tuple[Any, ...]:
    try:
        return _target(f).args
    except ShardingTypeError as error:
        hints = for_the_shell(error).hints
        sizes = () if any(hint.startswith("--dims") for hint in hints) else ("--dims batch=8 gives names sizes",)
        error.hints = (*hints, 'the types after the target: "f32[8@dp, 16]" ...', *sizes)
        raise WrongUse.of(_unplaced(error)) from None


def _argument(position: int, text: str) -> Any:
    """An abstract value, or a number, from its string."""
    if _NUMBER.fullmatch(text):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            raise WrongUse(f"`{short(text)}` is neither a type nor a number") from None

    try:
        return sh.abstract_array(text)
    except ShardingTypeError as error:
        error.what = f"type {position}: {error.what}"
        raise WrongUse.of(_unplaced(for_the_shell(error))) from None


#: Matches a number or flag among the types, for an argument that is not an array.
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?|True|False|None")


def _unplaced(error: ShardingTypeError) -> ShardingTypeError:
    """Removes the first line of ``where``, which is not the user's, in place."""
    where = error.where.split("\n")
    error.where = "\n".join(where[1:] if error.placed else where)
    return error


#: Tests for functions that return before their body runs.
_RETURNS_AT_ONCE: Final = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_MISSING: Final = object()
#: The most CPU devices for a mesh that a target makes while it loads.
MOST_DEVICES: Final = 64


def load(target: str, *, devices: int = 1, root: Path | None = None) -> Callable[..., Any]:
    """Loads ``module:function``, ``module:Class.method`` or ``path/to/file.py:function``.

    ``devices`` is the number of CPU devices, for a mesh that the module makes.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise WrongUse(f"`{clipped(target)}` is no target: write module:function or path/to/file.py:function")
    # a module runs on the CPU while it loads: nothing here needs an accelerator
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(devices, MOST_DEVICES)))
    folder = root or Path.cwd()
    is_path = place.endswith(".py") or "/" in place or os.sep in place
    value: Any = _file(place, name, folder) if is_path else _module(place, name, folder)
    for i, part in enumerate(name.split(".")):
        with loading(place):  # a module may define `__getattr__`
            inner = getattr(value, part, _MISSING)
        if inner is _MISSING:
            owner = place if i == 0 else f"{place}:{'.'.join(name.split('.')[:i])}"
            raise WrongUse(
                f"`{clipped(owner)}` has no function `{clipped(part)}`{_did_you_mean(part, _functions(value))}"
            )
        value = inner
    if not callable(value):
        raise WrongUse(f"`{clipped(target)}` is no function but {type(value).__name__}")
    if any(test(value) for test in _RETURNS_AT_ONCE):
        why = "a generator or an async function returns before its body runs, so there is nothing to trace"
        raise WrongUse(f"`{clipped(target)}` does not compute when it is called", why=why)
    function: Callable[..., Any] = value
    return function


def functions_of(path: Path) -> list[str]:
    """The functions of a file, which is parsed and not run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]


# files


def _file(place: str, name: str, folder: Path) -> ModuleType:
    path = folder / place
    try:
        if path.is_dir():
            raise _a_folder(place, name, path)
        if not path.is_file():
            similar = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise WrongUse(f"there is no file `{clipped(place)}`{_did_you_mean(path.name, similar)}")
        if path.suffix != ".py":
            raise WrongUse(f"`{clipped(place)}` is no Python file: its name does not end in `.py`")
        stat = path.stat()
        reason = _no_text(path.read_bytes())
    except OSError as error:
        raise WrongUse(f"`{clipped(place)}` cannot be read: {error.strerror}") from None
    if reason:
        raise WrongUse(f"`{clipped(place)}` is a binary file, not Python source", why=reason)
    return _run_file(place, path.resolve(), (stat.st_mtime_ns, stat.st_size))


def _a_folder(place: str, name: str, path: Path) -> WrongUse:
    """The error for a folder as a target; names the files in it that have the function."""
    similar = [f"{place.rstrip('/')}/{p.name}:{name}" for p in sorted(path.glob("*.py")) if name in functions_of(p)]
    hints = similar[:3] or ["module:function or path/to/file.py:function"]
    return WrongUse(f"`{clipped(place)}` is a folder; a target is a function of a file or a module", hints=hints)


def _no_text(source: bytes) -> str:
    """Why a file is not Python source; empty if it may be."""
    if b"\0" in source:
        return f"it has a zero byte at position {source.index(0)}"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    except SyntaxError:  # an unknown encoding, which Python reports, or undecodable first lines
        encoding = "utf-8"
    try:
        source.decode(encoding)
    except UnicodeDecodeError as error:
        return f"its byte at position {error.start} is no text in {error.encoding}"
    return ""


@functools.lru_cache(maxsize=32)
def _run_file(place: str, path: Path, version: tuple[int, int]) -> ModuleType:
    """The module of a file, run once per version of it, so that its classes stay identical."""
    name = path.stem if path.stem.isidentifier() else "target"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    outer = sys.modules.get(name)
    sys.path.insert(0, str(path.parent))  # as for a script, for imports of its siblings
    try:
        sys.modules[name] = module  # dataclasses and annotations look up their module
        with loading(place):
            spec.loader.exec_module(module)
    finally:
        with contextlib.suppress(ValueError):  # the module may have removed it
            sys.path.remove(str(path.parent))
        if outer is not None:
            sys.modules[name] = outer
    return module


# modules


def _module(place: str, name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    path = folder / place
    named = all(part.isidentifier() for part in place.split("."))
    if os.path.exists(path) and (not named or ("." in place and path.is_file())):  # False for too long names
        return _file(place, name, folder)
    with loading(place):
        module = _import(place) if named else None
    if module is None:
        similar = [
            p.relative_to(folder).with_suffix("").as_posix().replace("/", ".")
            for p in folder.glob(f"{'*/' * place.count('.')}*.py")
        ]
        raise WrongUse(f"there is no module `{clipped(place)}`{_did_you_mean(place, similar)}")
    if getattr(module, "__file__", None) is None and path.is_dir():  # a namespace package
        raise _a_folder(place, name, path)
    return module


def _import(place: str) -> ModuleType | None:
    """Imports a module; None if it does not exist, as opposed to a failing import inside it."""
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            return None
        raise


def _functions(namespace: Any) -> list[str]:
    members = getattr(namespace, "__dict__", {}).items()
    return [name for name, value in members if callable(value) and not name.startswith("_")]


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.6) if len(name) < 200 else []
    return f"; did you mean {' or '.join(f'`{n}`' for n in similar)}?" if similar else ""
