"""What the commands share: a target such as ``module:function``, a mesh, a policy, and the types of the arguments.

Wrong use is a `click.UsageError` (exit code 2). Nothing here loads JAX before a target is loaded.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

import shtypes.notation as notation
from shtypes.errors import ShardingTypeError
from shtypes.mesh import Mesh
from shtypes.policy import REPLICATED_STATE, current_policy, policy

F = TypeVar("F", bound=Callable[..., Any])

#: The most CPU devices that a target may make a mesh of while it loads.
MOST_DEVICES = 64


# options


def read_sizes(text: str) -> dict[str, int]:
    """Names and sizes: ``dp=2,tp=4``."""
    found: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, _, size = part.partition("=")
        if not name or not size.isdigit():
            raise click.BadParameter(f"`{part}` is not like `dp=2`")
        if name in found:
            raise click.BadParameter(f"`{name}` is given twice")
        found[name] = int(size)
    return found


def read_mesh(text: str) -> Mesh:
    """A mesh, major to minor: ``dp=2,tp=4``."""
    try:
        return Mesh(read_sizes(text))
    except ShardingTypeError as error:
        raise click.BadParameter(str(error)) from None


mesh_option = click.option(
    "--mesh",
    callback=lambda ctx, param, given: given and read_mesh(given),
    metavar="AXIS=SIZE,...",
    help="The mesh, major to minor: dp=2,tp=4. Needs no devices.",
)
policy_option = click.option(
    "--policy", "policy_name", type=click.Choice(list(REPLICATED_STATE)), help="What an unmentioned axis means."
)
dims_option = click.option(
    "--dims",
    callback=lambda ctx, param, given: read_sizes(given),
    default="",
    metavar="DIM=SIZE,...",
    help="Sizes of dim names: seq=4,batch=8.",
)
grad_option = click.option("--grad", is_flag=True, help="Also the backward pass, to every argument with a gradient.")


def target_options(f: F) -> F:
    """The arguments TARGET and TYPES, and the options ``--mesh``, ``--policy``, ``--dims`` and ``--grad``."""
    for decorate in (
        grad_option,
        dims_option,
        policy_option,
        mesh_option,
        click.argument("types", nargs=-1, metavar="[TYPE]..."),
        click.argument("target", metavar="TARGET"),
    ):
        f = decorate(f)
    return f


# what a target is


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


def program(
    target: str,
    types: Sequence[str],
    *,
    mesh: Mesh | None,
    policy_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    grad: bool = False,
) -> Program:
    """Loads a target, and makes its arguments from the types given, else from its annotations.

    Raises:
        click.UsageError: there is no such function, its arguments have no types, or a type cannot be read.
    """
    if mesh is None:
        raise click.UsageError("no mesh is given: say --mesh dp=2,tp=4")
    name, sizes = policy_name or current_policy(), dict(dims or {})
    f = load(target, devices=mesh.size)
    with in_scope(mesh, name, sizes):
        args = arguments(f, types)
    return Program(target, f, args, mesh, name, sizes, grad)


@contextlib.contextmanager
def in_scope(mesh: Mesh, policy_name: str, dims: Mapping[str, int]) -> Iterator[None]:
    """A mesh, a policy and dim names in force; loads JAX."""
    from shtypes.meshes import use_mesh

    with use_mesh(mesh), policy(policy_name), notation.dims(**dims):
        yield


def load(target: str, *, devices: int = 1) -> Callable[..., Any]:
    """The function that ``module:function`` or ``path/to/file.py:function`` names.

    Args:
        target: The target; the function may be an attribute, ``module:Class.method``.
        devices: How many CPU devices a mesh that the module makes may have.

    Raises:
        click.UsageError: there is no such file, module or function; close ones are named.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(f"`{target}` is no target: write module:function or path/to/file.py:function")
    # What a module runs while it loads runs on the CPU: nothing here needs an accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(devices, MOST_DEVICES)))
    found: Any = _file(place) if place.endswith(".py") else _module(place)
    for i, part in enumerate(name.split(".")):
        if not hasattr(found, part):
            shown = place if i == 0 else f"{place}:{'.'.join(name.split('.')[:i])}"
            raise click.UsageError(f"`{shown}` has no function `{part}`{_close(part, _functions(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise click.UsageError(f"`{target}` is no function but {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def _file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        near = path.parent.glob("*.py") if path.parent.is_dir() else ()
        raise click.UsageError(f"there is no file `{place}`{_close(place, [str(p) for p in near])}")
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


def _module(place: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with _loading(place):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise click.UsageError(_failed(place, error)) from None
        near = [p.with_suffix("").as_posix().replace("/", ".") for p in Path().glob(f"{'*/' * place.count('.')}*.py")]
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


def arguments(f: Callable[..., Any], types: Sequence[str]) -> tuple[Any, ...]:
    """Values that have only types, from their texts; by default from the annotations ``Annotated[Array, "f32[...]"]``.

    Raises:
        click.UsageError: a type is missing or cannot be read.
    """
    texts = list(types) or annotated(f)
    return tuple(_abstract(text, f"type {i}") for i, text in enumerate(texts))


def annotated(f: Callable[..., Any]) -> list[str]:
    """The texts in the annotations of the positional arguments without defaults.

    Raises:
        click.UsageError: one has none.
    """
    name = getattr(f, "__name__", "the function")
    try:
        parameters = inspect.signature(f).parameters.values()
        hints = typing.get_type_hints(inspect.unwrap(f), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise click.UsageError(f"the signature of `{name}` cannot be read: {error}") from None
    texts = []
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY) or p.default is not p.empty:
            continue
        text = next((m for m in getattr(hints.get(p.name), "__metadata__", ()) if isinstance(m, str)), None)
        if text is None:
            raise click.UsageError(
                f"argument `{p.name}` of `{name}` has no type: give one for each argument after the target, "
                'like "f32[8@dp,16]"'
            )
        texts.append(text)
    return texts


def _abstract(text: str, what: str) -> Any:
    from shtypes.array import abstract_array

    try:
        return abstract_array(text)
    except ShardingTypeError as error:
        error.where = error.where.partition("\n")[2] if error.placed else error.where
        raise click.UsageError(f"{what}: {error}") from None
