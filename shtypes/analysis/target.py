"""The function and arguments of a report; arguments may be values, types, types as strings, or pytrees of these."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from shtypes.context.signature_errors import name_of
from shtypes.core.array import Array
from shtypes.core.conversion import abstract, abstract_array
from shtypes.core.meshes import AnyMesh, to_mesh, use_mesh
from shtypes.errors import ShardingTypeError
from shtypes.signatures.annotations import Annotations, annotations_of
from shtypes.signatures.matching import Bindings, named
from shtypes.signatures.pytree_spec import Checking, ExampleSettings
from shtypes.signatures.typed import is_typed_function, typed
from shtypes.traced.program import is_merged, leaves_by_path, program_of
from shtypes.types.mesh import Mesh, context, current_mesh
from shtypes.types.notation import dim_names
from shtypes.types.notation.dim_names import current_dims
from shtypes.types.policy import policy, replicated


class Target(NamedTuple):
    """A function and a call of it with abstract values."""

    function: Callable[..., Any]  # with its annotations checked, if they have types
    args: tuple[Any, ...]  # types and strings are converted to abstract values
    kwargs: dict[str, Any]
    merges: bool = False  # whether `sh.jit` compiles it; else `jax.jit` does

    @property
    def name(self) -> str:
        """The function's name."""
        return name_of(inspect.unwrap(self.function)) or "f"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, or by position if the names are unavailable."""
        try:
            bound = inspect.signature(self.function).bind(*self.args, **self.kwargs)
        except (TypeError, ValueError):
            return {**{f"argument {i}": x for i, x in enumerate(self.args)}, **self.kwargs}
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                named |= {f"{name}[{i}]": x for i, x in enumerate(value)}
            elif kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            else:
                named[name] = value
        return named

    def leaf_names(self) -> list[str]:
        """The names of the arguments' leaves: parameters with paths."""
        structure: Any = jax.tree.structure((self.args, self.kwargs))
        args, kwargs = jax.tree.unflatten(structure, range(structure.num_leaves))
        trees = self._replace(args=args, kwargs=kwargs).arguments
        names = {i: name + path for name, tree in trees.items() for path, i in leaves_by_path(tree)}
        return [names[i].replace(" ", "_") for i in range(structure.num_leaves)]

    @property
    def mesh_text(self) -> str:
        """The mesh of the arguments, or the one in context, as text."""
        used = mesh_of((self.args, self.kwargs)) or context()
        return "no mesh" if used is None else str(used)

    def traced(self) -> tuple[Any, Any]:
        """The typed program as compiled, and its results as a pytree of types; see `program_of`."""
        return program_of(self.function, self.args, self.kwargs, merges=self.merges)


def target_of(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Target:
    """A function with abstract arguments; by default those of its annotations, which must determine them."""
    if not callable(f):
        raise ShardingTypeError(f"a function is asked about, not {f!r:.60}")
    function = f
    try:
        annotations = annotations_of(f)
    except (NameError, TypeError, ValueError):
        annotations = None
    if annotations is not None and annotations.any_checks and not is_typed_function(f):
        function = typed(f)
    if not args and not kwargs and annotations is not None:
        args = _from_annotations(f, annotations.signature, annotations.nodes)
    inputs = jax.tree.map(abstract, (args, dict(kwargs)))
    args, kwargs = inputs if annotations is None else _named(annotations, inputs)
    return Target(function, args, kwargs, is_merged(f))


def _named(
    annotations: Annotations, inputs: tuple[tuple[Any, ...], dict[str, Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with the signature's dim names for abstract values."""
    into = Checking(Bindings(current_dims()), replicated())
    with contextlib.suppress(ShardingTypeError):  # raised when the function is called
        annotations.check(into, inputs[0], inputs[1])

    def one(x: Any) -> Any:
        if type(x) is not Array or x.data is not None or id(x) not in into.texts:
            return x
        return abstract_array(named(into.texts[id(x)], x.type))

    return jax.tree.map(one, inputs)  # type: ignore[no-any-return]


def _from_annotations(f: Any, signature: inspect.Signature, nodes: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments that a signature's types determine, up to the first with a default."""
    sizes = dict(current_dims())
    settings: ExampleSettings | None = None
    args = []
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY) or p.default is not p.empty:
            continue
        if p.name not in nodes:
            raise ShardingTypeError(
                f"argument `{p.name}` of `{getattr(f, '__name__', 'f')}` has no type",
                why="it is neither given nor written in the signature",
                hints=[f'{p.name}: Annotated[sh.Array, "f32[8@dp, 16]"]', 'sh.check(f, "f32[8@dp, 16]")'],
            )
        settings = settings or ExampleSettings(current_mesh(), replicated(), sizes, abstract_array)
        try:
            args.append(nodes[p.name].example(settings))
        except ShardingTypeError as error:
            error.what = f"argument `{p.name}`: {error.what}"
            raise
    return tuple(args)


def mesh_of(args: Any) -> Mesh | None:
    """The mesh of the first typed value in a pytree."""
    return next((x.type.mesh for x in jax.tree.leaves(args) if isinstance(x, Array)), None)


@contextlib.contextmanager
def scopes(mesh: AnyMesh | None, name: str | None, dims: Mapping[str, int] | None) -> Iterator[None]:
    """Sets a mesh, a policy and dim names, except those that are None."""
    with contextlib.ExitStack() as stack:
        if mesh is not None:
            stack.enter_context(use_mesh(to_mesh(mesh)))
        if name is not None:
            stack.enter_context(policy(name))
        if dims:
            stack.enter_context(dim_names.dims(**dims))
        yield


@contextlib.contextmanager
def target_in_scope(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mesh: AnyMesh | None,
    name: str | None,
    dims: Mapping[str, int] | None,
) -> Iterator[Target]:
    """The target, in scopes like `scopes`; without a mesh in context, sets that of its arguments."""
    with scopes(mesh, name, dims):
        target = target_of(f, args, kwargs)
        with scopes(mesh_of((target.args, target.kwargs)) if context() is None else None, None, None):
            yield target
