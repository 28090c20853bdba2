"""What a target such as ``module:function`` is: a function, and arguments that have only types.

Wrong use is a `click.UsageError` (exit code 2). Nothing here loads JAX before a target is loaded.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import shtypes as sh
from shtypes.errors import ShardingTypeError, short
from shtypes.tools.cli.config import TargetConfig, config
from shtypes.tools.cli.guard import WrongUse, for_the_shell, loading, tracing
from shtypes.tools.cli.loading import load
from shtypes.types.mesh import Mesh
from shtypes.types.notation import dim_sizes
from shtypes.types.policy import current_policy, policy

if TYPE_CHECKING:
    from shtypes.analysis.target import Target


@dataclass(frozen=True)
class LoadedTarget:
    """A function with the types of its arguments, on a mesh, under a policy."""

    name: str  # the target as the user wrote it
    function: Callable[..., Any]
    args: tuple[Any, ...]  # its arguments: values that have only types
    mesh: Mesh
    policy: str
    dims: Mapping[str, int]  # sizes of dim names
    grad: bool = False  # whether the backward pass is asked for too

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """The mesh, the policy and the dim names in force."""
        return in_scope(self.mesh, self.policy, self.dims)

    @property
    def target(self) -> Target:
        """The call, for reports; the annotations of the function are checked in it."""
        return _target(self.function, self.args)


def _target(f: Callable[..., Any], args: tuple[Any, ...] = ()) -> Target:
    from shtypes.analysis.target import target_of  # JAX is loaded by now

    return target_of(f, args, {})


def program(
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
    """Loads a target, and makes its arguments from the texts of types, else from its annotations.

    What is not given is taken from ``[tool.shtypes]`` in ``pyproject.toml``, for this target or for all. ``root`` is
    the folder that files and modules are looked for in, by default the current one; ``maker`` a function beside the
    target that returns the arguments, in the place of types; ``lift`` says that it is a plain JAX function.

    Raises:
        click.UsageError: there is no such function, its arguments have no types, or a type cannot be read.
    """
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
    if lift or said.lift:
        f = _lifted(f)
    maker = maker or (said.arguments if not types else None)
    make = maker and load(f"{said.target.rpartition(':')[0]}:{maker}", devices=mesh.size, root=folder)
    with in_scope(mesh, name, sizes):
        args = _made(make, maker) if make and maker else arguments(f, types or said.types)
    return LoadedTarget(target, f, args, mesh, name, sizes, grad or said.grad)


def _lifted(f: Callable[..., Any]) -> Callable[..., Any]:
    from shtypes import lift

    return lift(f)


@contextlib.contextmanager
def in_scope(mesh: Mesh, policy_name: str, dims: Mapping[str, int]) -> Iterator[None]:
    """A mesh, a policy and dim names in force; loads JAX."""
    with sh.use_mesh(mesh), policy(policy_name), dim_sizes.dims(**dims):
        yield


# the arguments


def _made(make: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """The arguments that a function of the user's returns: a tuple of them, or the only one; their data is not kept.

    It is traced, since there need be no devices for what it makes by JAX.
    """
    import jax

    from shtypes.core.conversion import without_data

    args: tuple[Any, ...] = ()

    def kept(x: Any) -> Any:
        if not isinstance(x, jax.core.Tracer):
            return x
        t = jax.typeof(x)
        return sh.abstract_array(t) if isinstance(t, sh.ShType) else jax.ShapeDtypeStruct(t.shape, t.dtype)

    def traced() -> None:
        nonlocal args
        found = make()
        args = jax.tree.map(kept, _target(make, found if isinstance(found, tuple) else (found,)).args)

    with tracing(name), without_data():
        jax.eval_shape(traced)
    return args


def arguments(f: Callable[..., Any], types: Sequence[str]) -> tuple[Any, ...]:
    """Values that have only types, from their texts; by default from the annotations ``Annotated[Array, "f32[...]"]``.

    A number, ``True``, ``False`` or ``None`` among the texts is as it is.

    Raises:
        click.UsageError: a type is missing or cannot be read, or the function takes other arguments.
    """
    found = tuple(_argument(i, text) for i, text in enumerate(types))
    name = str(getattr(f, "__name__", "f"))
    with loading(name):  # annotations and what tells the parameters are the user's code
        if not types:
            return _annotated(f)
        try:
            parameters = inspect.signature(f)
        except ValueError:  # it does not tell them
            return found
        try:
            parameters.bind(*found)
        except TypeError as error:
            shown = short(f"{name}({', '.join(parameters.parameters)})")
            raise WrongUse(f"`{shown}` does not take these types: {error}") from None
    return found


def _annotated(f: Callable[..., Any]) -> tuple[Any, ...]:
    try:
        return _target(f).args
    except ShardingTypeError as error:
        hints = for_the_shell(error).hints
        sizes = () if any(hint.startswith("--dims") for hint in hints) else ("--dims batch=8 gives names sizes",)
        error.hints = (*hints, 'the types after the target: "f32[8@dp, 16]" ...', *sizes)
        raise WrongUse.of(_unplaced(error)) from None


def _argument(position: int, text: str) -> Any:
    """A value that has only a type, or a number, from its text."""
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


#: A number or a flag among the types, for an argument that is no array.
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?|True|False|None")


def _unplaced(error: ShardingTypeError) -> ShardingTypeError:
    """The error without its first line, which is one of ours here and not the user's."""
    where = error.where.split("\n")
    error.where = "\n".join(where[1:] if error.placed else where)
    return error
