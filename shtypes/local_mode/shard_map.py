"""`shard_map`: local mode by reinterpreting the types of arguments and results.

Inside, values vary over the mapped mesh axes and dims have the size of a shard; ops, transformations and both lowerings
work as outside.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from types import CellType
from typing import Any, Final, ParamSpec, TypeVar, overload

import jax

from shtypes._compat import no_trace_is_running
from shtypes.caches import PROGRAMS, Bounded
from shtypes.context.frames import Owner, owner_of_frame
from shtypes.context.function import Decorator, Function
from shtypes.context.scope import in_local_mode
from shtypes.context.signature_errors import check_function
from shtypes.context.user_line import frames_through
from shtypes.core.collective import reinterpreted
from shtypes.core.meshes import to_mesh
from shtypes.core.reshard import move
from shtypes.dispatch.apply import as_operands, located
from shtypes.errors import ShardingTypeError
from shtypes.rules.specs import entering, leaving
from shtypes.scopes.check_comm import casts_are_written, check_comm
from shtypes.scopes.scope_rules import rules_in_force, speculative_tracing
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.target import Spec

P = ParamSpec("P")
T = TypeVar("T")


@overload
def shard_map(
    f: Callable[P, T],
    /,
    *,
    out_specs: Any,
    in_specs: Any = None,
    mesh: Any = None,
    axis_names: str | Collection[str] = (),
    explicit: bool = False,
) -> Function[P, T]: ...
@overload
def shard_map(
    f: None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = None,
    mesh: Any = None,
    axis_names: str | Collection[str] = (),
    explicit: bool = False,
) -> Decorator: ...
def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = None,
    mesh: Any = None,
    axis_names: str | Collection[str] = (),
    explicit: bool = False,
) -> Any:
    """Converts a function of shards to a function of global values; `jax.shard_map` for typed values.

    Inside ``f`` an argument varies over the mapped axes that shard it, and the dim has the size of a shard. Replicated
    values stay replicated, and are cast to varying where they are combined with varying ones. Only the functions of
    `shtypes.lax` communicate.

    Args:
        f: The function, of positional arguments: pytrees of typed values and plain arrays. Without it, a decorator is
            returned.
        out_specs: The types of the results, as a pytree prefix: strings such as ``"[_@x, ...]"``, types, or `jax.P`. A
            mapped axis becomes the major axis of the dim that names it; with ``{U:x}`` the devices' values are the
            terms of a pending sum. Over an omitted axis the result must be reduced or invariant by type.
        in_specs: The types of the arguments, as a prefix of their tuple; by default as they are. Over an omitted axis
            an argument stays reduced, invariant or unreduced. Replicated arguments are sliced if the spec shards them.
        mesh: The mesh; by default that of the arguments, or of the context.
        axis_names: The mesh axes to map over; by default all over which no argument varies already. The states of other
            axes are the same inside and outside.
        explicit: Whether each cast along the mapped axes must be written (`shtypes.lax.pvary`).

    Returns:
        The function of global values.

    Raises:
        ShardingTypeError: (when called) a spec does not fit; a result varies over an axis that its spec omits.

    Communicates: as ``f`` does. Entering and leaving send nothing; if a spec slices an invariant argument, its gradient
    is gathered.
    """
    if f is None:
        return functools.partial(
            shard_map, out_specs=out_specs, in_specs=in_specs, mesh=mesh, axis_names=axis_names, explicit=explicit
        )
    check_function("shard_map", f)
    body = Body(f)
    chosen = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)

    @functools.wraps(f)
    def mapped(*args: Any) -> Any:
        over = _mesh(mesh, jax.tree.leaves(args))
        args = jax.tree.map(lambda x: as_operands([x])[0][0], args)
        names = _mapped_axes(chosen, over, jax.tree.leaves(args))
        return mapped_over(names, over, body, args, in_specs, out_specs, explicit=explicit)

    mapped.in_specs = in_specs  # type: ignore[attr-defined]  # for `lift`, whose trace has no types
    return mapped


def mapped_over(
    axes: Sequence[str],
    mesh: Mesh,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    in_specs: Any,
    out_specs: Any,
    *,
    explicit: bool = False,
) -> Any:
    """Calls a function of shards, mapped over some axes of a mesh, with typed arguments."""
    inside = _reinterpret("argument", args, _specs(in_specs, args, "in_specs", optional=True), entering, axes)
    with in_local_mode(axes, mesh.shape), casts_are_written(axes if explicit else ()):
        results = body(*inside)
        return _reinterpret("result", results, _specs(out_specs, results, "out_specs", optional=False), leaving, axes)


def specs_of(in_specs: Any, args: tuple[Any, ...]) -> list[Any]:
    """The spec of each leaf of the arguments."""
    return _specs(in_specs, args, "in_specs", optional=True)


def _mesh(mesh: Any, leaves: Sequence[Any]) -> Mesh:
    typed = [x.type.mesh for x in leaves if isinstance(getattr(x, "type", None), ShType)]
    argument_mesh = typed[0] if typed else current_mesh()
    if mesh is not None and to_mesh(mesh) is not argument_mesh:
        raise located(
            ShardingTypeError(
                f"`shard_map` is over the mesh {to_mesh(mesh)}, and its arguments are over {argument_mesh}"
            ),
            "shard_map",
            [],
        )
    return argument_mesh


def _mapped_axes(axes: tuple[str, ...], mesh: Mesh, values: Sequence[Any]) -> tuple[str, ...]:
    for axis in axes:
        mesh.index(axis)
    if axes:
        return axes
    varying = {a for x in values for a in jax.typeof(x).axes(State.VARYING)}
    return tuple(a for a in mesh.axis_names if a not in varying)


def _specs(specs: Any, tree: Any, name: str, *, optional: bool) -> list[Any]:
    """Broadcasts a prefix of specs to the leaves of a pytree."""
    prefix: Any
    entries, prefix = jax.tree.flatten(specs, is_leaf=_is_spec)
    try:
        parts = prefix.flatten_up_to(tree)
    except ValueError:
        why = f"it is {jax.tree.map(str, specs, is_leaf=_is_spec)}, and the values are {jax.tree.map(jax.typeof, tree)}"
        wrong = ShardingTypeError(f"`{name}` is no prefix of what it describes", why=why)
        raise located(wrong, "shard_map", []) from None
    per_leaf = [spec for spec, part in zip(entries, parts, strict=True) for _ in jax.tree.leaves(part)]
    if None in per_leaf and not optional:
        wrong = ShardingTypeError(f"`{name}` needs a spec for each value", hints=['"[...]" for one that is replicated'])
        raise located(wrong, "shard_map", [])
    return per_leaf


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, (str, ShType, Spec))


def _reinterpret(
    what: str,
    tree: Any,
    specs: Sequence[Any],
    types: Callable[[ShType, Any, Sequence[str]], tuple[ShType, ShType]],
    mapped: Sequence[str],
) -> Any:
    """Casts and reinterprets values; ``types`` maps a type, spec and mapped axes to the cast type and the new type."""

    def one(path: Any, x: Any, spec: Any) -> Any:
        ((x,), _) = as_operands([x])
        t = jax.typeof(x)
        try:
            cast, other = types(t, spec, mapped)
            check_comm("shard_map", t, cast, inserted=True)
            return reinterpreted(move(x, cast, inserted=True), other)
        except ShardingTypeError as error:
            where = f"shard_map, {what} {jax.tree_util.keystr(path)}"
            raise located(error, where, [t]).with_traceback(None) from None

    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return jax.tree.unflatten(structure, [one(path, x, spec) for (path, x), spec in zip(leaves, specs, strict=True)])


#: By `_code_of`, whether functions called before are plain programs.
_plain: Final[Bounded[bool]] = Bounded(PROGRAMS)
#: `lifting.lift.lift`, set on its import, since that package imports this one.
_lift: Final[list[Callable[[Any], Callable[..., Any]]]] = []


def connect_lift(lift: Callable[[Any], Callable[..., Any]]) -> None:
    """Sets the function that lifts a plain function."""
    _lift[:] = [lift]


class Body:
    """A function of shards, which is lifted if JAX's functions in it refuse typed values."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self._code = _code_of(f)

    def __call__(self, *args: Any) -> Any:
        """Calls the function with typed values, or lifted."""
        plain = _plain.get(self._code)
        if plain is None and (rules_in_force() or not no_trace_is_running()):
            # In a separate trace: a failed attempt must leave no equations behind, and no scope must count it.
            jax_error = self._trial_error(args)
            plain = jax_error is not None
        else:
            jax_error = None
        if not plain:
            try:
                results = self.f(*args)
            except Exception as error:
                if not _is_jax_error(error):
                    raise
                jax_error = error
            else:
                _plain.put(self._code, False)
                return results
        results = self._lifted_call(args, jax_error)
        _plain.put(self._code, True)
        return results

    def _trial_error(self, args: tuple[Any, ...]) -> Exception | None:
        """JAX's error when the function is traced with typed values; None if JAX raises none."""
        leaves, tree = jax.tree.flatten(args)

        def flat(*leaves: Any) -> tuple[()]:
            self.f(*jax.tree.unflatten(tree, leaves))
            return ()

        try:
            with speculative_tracing():
                jax.make_jaxpr(flat)(*leaves)
        except Exception as error:
            return error if _is_jax_error(error) else None  # other errors are raised when it is called
        return None

    @functools.cached_property
    def _lifted(self) -> Callable[..., Any]:
        return _lift[0](self.f)

    def _lifted_call(self, args: tuple[Any, ...], jax_error: Exception | None) -> Any:
        try:
            return self._lifted(*args)
        except (AttributeError, jax.errors.JAXTypeError) as error:
            if jax_error is None or (isinstance(error, ShardingTypeError) and error.__cause__ is None):
                raise
            raise jax_error from None  # it is typed code, and the call that JAX refused is its mistake


def _is_jax_error(error: Exception) -> bool:
    """Whether JAX raised an error because it does not take typed values, or does not know a mesh axis."""
    if isinstance(error, ShardingTypeError):
        return error.of_plain
    if isinstance(error, NameError):
        return "unbound axis name" in str(error)
    if not isinstance(error, (AttributeError, TypeError, ValueError, NotImplementedError)):
        return False
    hidden = any("JAX has removed its internal frames" in note for note in getattr(error, "__notes__", ()))
    return hidden or owner_of_frame(frames_through(error)[-1].tb_frame) is Owner.MACHINERY


def _code_of(f: Any) -> Any:
    """A key for a function: its code, and that of the functions in its closure."""
    if isinstance(f, functools.partial):
        return _code_of(f.func)
    f = getattr(f, "__func__", f)
    code = getattr(f, "__code__", None)
    if code is None:
        return type(f)
    cells = [cell.cell_contents for cell in f.__closure__ or () if cell != _EMPTY]
    return (code, *[_code_of(c) for c in cells if inspect.isfunction(c) and c is not f])


_EMPTY: Final = CellType()
