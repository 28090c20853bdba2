"""What a target such as ``module:function`` is: a function, and arguments that have only types.

Wrong use is a `click.UsageError` (exit code 2). Nothing here loads JAX before a target is loaded.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

import shtypes.notation as notation
from shtypes.errors import ShardingTypeError
from shtypes.mesh import Mesh
from shtypes.policy import current_policy, policy

if TYPE_CHECKING:
    from shtypes.analysis.subject import Subject

#: The most CPU devices that a target may make a mesh of while it loads.
MOST_DEVICES = 64


@dataclass(frozen=True)
class Program:
    """A function with the types of its arguments, on a mesh, under a policy.

    Attributes:
        name: The target as the user wrote it.
        function: The function.
        args: Its arguments: values that have only types.
        mesh: The mesh.
        policy: The policy.
        dims: Sizes of dim names.
        grad: Whether the backward pass is asked for too.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: Mesh
    policy: str
    dims: Mapping[str, int]
    grad: bool = False

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The mesh, the policy and the dim names in force."""
        with in_scope(self.mesh, self.policy, self.dims):
            yield

    @property
    def subject(self) -> Subject:
        """The call, for reports; the annotations of the function are checked in it."""
        from shtypes.analysis.subject import subject

        return subject(self.function, self.args, {})


def program(
    target: str,
    types: Sequence[str],
    *,
    mesh: Mesh | None,
    policy_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    grad: bool = False,
    root: Path | None = None,
    maker: str | None = None,
) -> Program:
    """Loads a target, and makes its arguments from the types given, else from its annotations.

    What is not given is taken from ``[tool.shtypes]`` in ``pyproject.toml``, for this target or for all.

    Args:
        target: The target.
        types: The texts of the types of its arguments.
        mesh: The mesh.
        policy_name: The policy.
        dims: Sizes of dim names.
        grad: Whether the backward pass is asked for too.
        root: The folder that files and modules are looked for in; by default the current one.
        maker: A function beside the target that returns the arguments, in the place of types.

    Raises:
        click.UsageError: there is no such function, its arguments have no types, or a type cannot be read.
    """
    from shtypes.cli.config import TargetConfig, config

    if types and maker:
        raise click.UsageError("give types or --arguments, not both")
    settings = config(root)
    said = settings.named(target) or TargetConfig(
        target, target, mesh=settings.mesh, policy=settings.policy, dims=settings.dims
    )
    mesh = mesh or said.mesh
    if mesh is None:
        raise click.UsageError("no mesh is given: say --mesh dp=2,tp=4, or `mesh` in [tool.shtypes] of pyproject.toml")
    name, sizes = policy_name or said.policy or current_policy(), {**said.dims, **(dims or {})}
    folder = root or (settings.root if said.name != said.target else None)
    f = load(said.target, devices=mesh.size, root=folder)
    maker = maker or (said.arguments if not types else None)
    make = maker and load(f"{said.target.rpartition(':')[0]}:{maker}", devices=mesh.size, root=folder)
    with in_scope(mesh, name, sizes):
        args = _made(make, maker) if make and maker else arguments(f, types or said.types)
    return Program(target, f, args, mesh, name, sizes, grad or said.grad)


@contextlib.contextmanager
def in_scope(mesh: Mesh, policy_name: str, dims: Mapping[str, int]) -> Iterator[None]:
    """A mesh, a policy and dim names in force; loads JAX."""
    from shtypes.meshes import use_mesh

    with use_mesh(mesh), policy(policy_name), notation.dims(**dims):
        yield


def load(target: str, *, devices: int = 1, root: Path | None = None) -> Callable[..., Any]:
    """The function that ``module:function`` or ``path/to/file.py:function`` names.

    Args:
        target: The target; the function may be an attribute, ``module:Class.method``.
        devices: How many CPU devices a mesh that the module makes may have.
        root: The folder that files and modules are looked for in; by default the current one.

    Raises:
        click.UsageError: there is no such file, module or function; close ones are named.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(f"`{target}` is no target: write module:function or path/to/file.py:function")
    # What a module runs while it loads runs on the CPU: nothing here needs an accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(devices, MOST_DEVICES)))
    folder = root or Path.cwd()
    found: Any = _file(place, folder) if place.endswith(".py") else _module(place, folder)
    for i, part in enumerate(name.split(".")):
        if not hasattr(found, part):
            shown = place if i == 0 else f"{place}:{'.'.join(name.split('.')[:i])}"
            raise click.UsageError(f"`{shown}` has no function `{part}`{_close(part, _functions(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise click.UsageError(f"`{target}` is no function but {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def _file(place: str, folder: Path) -> ModuleType:
    path = folder / place
    if not path.is_file():
        near = path.parent.glob("*.py") if path.parent.is_dir() else ()
        raise click.UsageError(f"there is no file `{place}`{_close(path.name, [p.name for p in near])}")
    stat = path.stat()
    return _executed(place, path.resolve(), (stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=32)
def _executed(place: str, path: Path, version: tuple[int, int]) -> ModuleType:
    """The module of a file, run once for each version of it: its classes are the same for all that is asked of it."""
    name = path.stem if path.stem.isidentifier() else "target"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise click.UsageError(f"`{place}` cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    outer = sys.modules.get(name)
    sys.path.insert(0, str(path.resolve().parent))  # as for a script: its neighbours can be imported
    try:
        sys.modules[name] = module  # dataclasses and annotations look their module up
        with _loading(place):
            spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
        if outer is not None:
            sys.modules[name] = outer
    return module


def _module(place: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with _loading(place):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise click.UsageError(_failed(place, error)) from None
        near = [
            p.relative_to(folder).with_suffix("").as_posix().replace("/", ".")
            for p in folder.glob(f"{'*/' * place.count('.')}*.py")
        ]
        raise click.UsageError(f"there is no module `{place}`{_close(place, near)}") from None


@contextlib.contextmanager
def _loading(place: str) -> Iterator[None]:
    """Says in one message what went wrong while the user's module ran."""
    try:
        yield
    except (click.ClickException, ModuleNotFoundError):
        raise
    except (Exception, SystemExit) as error:
        raise click.UsageError(_failed(place, error)) from None


def _failed(place: str, error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    at = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError):
        at = f" at {os.path.basename(error.filename or place)}:{error.lineno}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"`{place}` cannot be loaded: {type(error).__name__}{at}: {text}"


def _functions(namespace: Any) -> list[str]:
    return [name for name, value in vars(namespace).items() if callable(value) and not name.startswith("_")]


def _close(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""


# the arguments


def _made(make: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """The arguments that a function of the user's returns: a tuple of them, or the only one; their data is not kept."""
    from shtypes.analysis.subject import subject
    from shtypes.array import without_data
    from shtypes.cli.output import tracing

    with tracing(name), without_data():
        found = make()
        return subject(make, found if isinstance(found, tuple) else (found,), {}).args


def arguments(f: Callable[..., Any], types: Sequence[str]) -> tuple[Any, ...]:
    """Values that have only types, from their texts; by default from the annotations ``Annotated[Array, "f32[...]"]``.

    A number, ``True``, ``False`` or ``None`` among the texts is as it is.

    Raises:
        click.UsageError: a type is missing or cannot be read, or the function takes other arguments.
    """
    from shtypes.analysis.subject import subject
    from shtypes.array import abstract_array

    texts = list(enumerate(types))
    what = "the types"
    try:
        if not texts:
            return subject(f, (), {}).args
        found = []
        for i, text in texts:
            what = f"type {i}"
            found.append(_number(text) if _NUMBER.fullmatch(text) else abstract_array(text))
    except ShardingTypeError as error:
        where = error.where.split("\n")  # the line is one of ours here, not the user's
        error.where = "\n".join(where[1:] if error.placed else where)
        if not texts:
            hints = [hint for hint in error.hints if not hint.startswith("sh.check")]
            error.hints = (
                *hints,
                'the types after the target: "f32[8@dp, 16]" ...',
                "--dims batch=8 gives names sizes",
            )
        raise click.UsageError(f"{what}: {error}" if texts else str(error)) from None
    try:
        inspect.signature(f).bind(*found)
    except TypeError as error:
        shown = f"{getattr(f, '__name__', 'f')}({', '.join(inspect.signature(f).parameters)})"
        raise click.UsageError(f"`{shown}` does not take these types: {error}") from None
    except ValueError:  # it does not tell its parameters
        pass
    return tuple(found)


#: A number or a flag among the types, for an argument that is no array.
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?|True|False|None")


def _number(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise click.UsageError(f"`{text}` is neither a type nor a number") from None
