"""`shard_map`: local mode as a change of types. It maps nothing: it reinterprets arguments and results.

Inside, the mapped mesh axes vary and dims are those of one device; types carry everything else, so every op, every
transformation and both lowerings work inside as they do outside.
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
from shtypes.scopes.comm import rules_in_force, trying
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
    """A function of shards, as a function of global values; `jax.shard_map` on types.

    Inside ``f`` the mapped axes that shard a dim of an argument are varying, and the dim is that of one device. Values
    that are replicated stay so, and are cast to varying where they meet varying ones. Devices send each other something
    only by `shtypes.lax`.

    Args:
        f: The function, of positional arguments: trees of typed values and plain arrays. Without it, a decorator is
            returned.
        out_specs: Where the results' axes go, as a tree that is a prefix of the results': texts such as
            ``"[_@x, ...]"``, types, or a `jax.P`. A mapped axis comes back at the dim that names it, as the first that
            shards it; ``{U:x}`` makes the devices' values the terms of a pending sum. An axis that is left out promises
            one value: the result must be reduced or invariant by type.
        in_specs: Where the arguments' axes are, as a prefix of the tuple of arguments. By default as their types say.
            An axis that is left out stays reduced, invariant or unreduced. Replicated arguments are sliced where a
            spec says so.
        mesh: The mesh; by default that of the arguments, or the one in context.
        axis_names: The mesh axes to map over; by default all over which no argument varies already. The others stay as
            they are, inside and outside.
        explicit: Whether each cast along the mapped axes must be written (`shtypes.lax.pvary`).

    Returns:
        The function of global values.

    Raises:
        ShardingTypeError: (when called) a spec does not fit; a result varies over an axis that its spec leaves out.

    Communicates: what ``f`` does. Entering and leaving send nothing; where a spec slices an invariant argument, its
    gradient is gathered.
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
        names = _mapped(chosen, over, jax.tree.leaves(args))
        return mapped_over(names, over, body, args, in_specs, out_specs, explicit=explicit)

    mapped.in_specs = in_specs  # type: ignore[attr-defined]  # what a lifted program asks, which sees no types
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
    """The results of a function of shards, mapped over some axes of a mesh, for typed arguments."""
    inside = _crossed("argument", args, _specs(in_specs, args, "in_specs", optional=True), entering, axes)
    with in_local_mode(axes, mesh.shape), casts_are_written(axes if explicit else ()):
        results = body(*inside)
        specs = _specs(out_specs, results, "out_specs", optional=False)
        return _crossed("result", results, specs, leaving, axes)


def specs_of(in_specs: Any, args: tuple[Any, ...]) -> list[Any]:
    """The spec of each leaf of the arguments."""
    return _specs(in_specs, args, "in_specs", optional=True)


def _mesh(mesh: Any, leaves: Sequence[Any]) -> Mesh:
    typed = [x.type.mesh for x in leaves if isinstance(getattr(x, "type", None), ShType)]
    here = typed[0] if typed else current_mesh()
    if mesh is not None and to_mesh(mesh) is not here:
        raise located(
            ShardingTypeError(f"`shard_map` is over the mesh {to_mesh(mesh)}, and its arguments are over {here}"),
            "shard_map",
            [],
        )
    return here


def _mapped(axes: tuple[str, ...], mesh: Mesh, values: Sequence[Any]) -> tuple[str, ...]:
    for axis in axes:
        mesh.index(axis)
    if axes:
        return axes
    varying = {a for x in values for a in jax.typeof(x).axes(State.VARYING)}
    return tuple(a for a in mesh.axis_names if a not in varying)


def _specs(specs: Any, tree: Any, name: str, *, optional: bool) -> list[Any]:
    """A spec for each leaf."""
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


def _crossed(
    what: str,
    tree: Any,
    specs: Sequence[Any],
    types: Callable[[ShType, Any, Sequence[str]], tuple[ShType, ShType]],
    mapped: Sequence[str],
) -> Any:
    """Values with the types that they have on the other side; ``types`` says what each is cast to before, and its."""

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


#: Whether functions with some code are plain programs, as far as they were applied before.
_plain: Final[Bounded[bool]] = Bounded(PROGRAMS)
#: `lifting.lift.lift`, which is above this room and so comes here itself.
_lift: Final[list[Callable[[Any], Callable[..., Any]]]] = []


def connect_lift(lift: Callable[[Any], Callable[..., Any]]) -> None:
    """Sets the function that lifts a plain function."""
    _lift[:] = [lift]


class Body:
    """A function of one device's values.

    It is called with typed values first. Where a function of JAX refuses them, the body is a plain program, and from
    then on it is lifted.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self._code = _code_of(f)

    def __call__(self, *args: Any) -> Any:
        """The results for typed values."""
        plain = _plain.get(self._code)
        if plain is None and (rules_in_force() or not no_trace_is_running()):
            # Of what is only tried nothing is to be left in the program around it, or counted by a scope.
            refused = self._tried(args)
            plain = refused is not None
        else:
            refused = None
        if not plain:
            try:
                results = self.f(*args)
            except Exception as error:
                if not _is_jaxs(error):
                    raise
                refused = error
            else:
                _plain.put(self._code, False)
                return results
        results = self._lifted_call(args, refused)
        _plain.put(self._code, True)
        return results

    def _tried(self, args: tuple[Any, ...]) -> Exception | None:
        """JAX's error when the function is traced with typed values; None if JAX raises none."""
        leaves, tree = jax.tree.flatten(args)

        def flat(*leaves: Any) -> tuple[()]:
            self.f(*jax.tree.unflatten(tree, leaves))
            return ()

        try:
            with trying():
                jax.make_jaxpr(flat)(*leaves)
        except Exception as error:
            return error if _is_jaxs(error) else None  # what else is wrong is said when it is applied
        return None

    @functools.cached_property
    def _lifted(self) -> Callable[..., Any]:
        return _lift[0](self.f)

    def _lifted_call(self, args: tuple[Any, ...], refused: Exception | None) -> Any:
        try:
            return self._lifted(*args)
        except (AttributeError, jax.errors.JAXTypeError) as error:
            if refused is None or (isinstance(error, ShardingTypeError) and error.__cause__ is None):
                raise
            raise refused from None  # it asks for what only typed values have: the call that JAX refused is the mistake


def _is_jaxs(error: Exception) -> bool:
    """Whether an error says that something of JAX's does not take typed values, or does not know the mesh's axes."""
    if isinstance(error, ShardingTypeError):
        return error.of_plain
    if isinstance(error, NameError):
        return "unbound axis name" in str(error)
    if not isinstance(error, (AttributeError, TypeError, ValueError, NotImplementedError)):
        return False
    hidden = any("JAX has removed its internal frames" in note for note in getattr(error, "__notes__", ()))
    return hidden or owner_of_frame(frames_through(error)[-1].tb_frame) is Owner.MACHINERY


def _code_of(f: Any) -> Any:
    """A key of a function's text: its code, and that of the functions in its closure."""
    if isinstance(f, functools.partial):
        return _code_of(f.func)
    f = getattr(f, "__func__", f)
    code = getattr(f, "__code__", None)
    if code is None:
        return type(f)
    cells = [cell.cell_contents for cell in f.__closure__ or () if cell != _EMPTY]
    return (code, *[_code_of(c) for c in cells if inspect.isfunction(c) and c is not f])


#: A cell that is empty yet.
_EMPTY: Final = CellType()
