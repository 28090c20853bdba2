"""The mesh that a plain program sees while `lift` traces it, and the one that its equations are bound under.

JAX resolves an annotation (``out_sharding=P("dp")``, `jax.reshard`, jit's shardings) by the mesh in context. On a mesh
of explicit axes its typing rules would refuse the program; on one of auto axes it refuses annotations. So a program
sees a mesh whose axes accept annotations like explicit ones, and are auto otherwise. Primitives are bound under another
mesh, in which JAX's rules compute the shardings of results: a sharding on that one is JAX's, and ignored.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from shtypes._compat import private
from shtypes._compat.jaxprs import captured
from shtypes._compat.symbolic_specs import ByAxis, by_jax, spec_like
from shtypes.caches import NotesOn
from shtypes.context.eqn_source import plain_trace
from shtypes.context.scope import attribute_set
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError

#: JAX's functions that compare a program's mesh with the mesh in context.
_COMPARING: Final = frozenset(
    inspect.unwrap(private(module, name)).__code__
    for module, name in (
        ("jax._src.sharding_impls", "canonicalize_sharding"),
        ("jax._src.pjit", "_get_new_mesh"),
        ("jax._src.shard_map", "_shmap_checks"),
    )
)

_INFER: Final[Any] = private("jax._src.shard_map", "Infer")


class ProgramMesh(AbstractMesh):
    """An abstract mesh of a plain program, equal only to itself, so that JAX's caches separate its programs."""

    inner: ProgramMesh  # the mesh that primitives are bound under; itself for that one
    auto: ProgramMesh  # the mesh in `jax.sharding.auto_axes`; itself for that one
    of_shard_map: Any = None  # the mesh argument of `jax.shard_map` that it stands for
    is_of_program = True

    def __new__(cls, sizes: tuple[int, ...], names: tuple[str, ...], manual: tuple[str, ...] = ()) -> ProgramMesh:
        """A mesh of these axes."""
        mesh: ProgramMesh = object.__new__(cls)
        size = functools.reduce(lambda a, b: a * b, sizes, 1)
        types = tuple(AxisType.Manual if name in manual else AxisType.Auto for name in names)
        fields = {"axis_sizes": sizes, "axis_names": names, "axis_types": types, "abstract_device": None, "size": size}
        for name, value in fields.items():
            object.__setattr__(mesh, name, value)
        return mesh

    @property
    def is_inner(self) -> bool:
        """Whether primitives are bound under it."""
        return self.inner is self

    @property
    def is_jaxs(self) -> bool:
        """Whether a sharding on it is JAX's, and not the user's."""
        return self is self.inner or self is self.auto

    @property
    def shape(self) -> Any:
        """The sizes of the axes by name."""
        return ByAxis(self.axis_names, self.axis_sizes, 1)

    # looked up by axis, the axes are explicit

    @property
    def _name_to_type(self) -> dict[str, AxisType]:
        if self.manual_axes:
            return ByAxis(self.axis_names, self.axis_types, self.axis_types[0])
        caller = sys._getframe(1)
        auto = self.is_inner or (_is_shard_map(caller) and not _infers_specs(caller, anywhere=True))
        kind = AxisType.Auto if auto else AxisType.Explicit
        return ByAxis(self.axis_names, (kind,) * len(self.axis_names), kind)

    @functools.cached_property
    def explicit_axes(self) -> tuple[str, ...]:
        return () if self.is_inner else self.axis_names

    @functools.cached_property
    def auto_axes(self) -> tuple[str, ...]:
        return tuple([a for a in self.axis_names if a not in self.manual_axes]) if self.is_inner else ()

    def update_axis_types(self, name_to_type: dict[str, AxisType]) -> AbstractMesh:
        """The mesh of a region of the program: `auto` for auto axes, another for manual ones."""
        if AxisType.Manual not in name_to_type.values():
            return self.auto if AxisType.Auto in name_to_type.values() else self
        manual = [a for a in self.axis_names if name_to_type.get(a) is AxisType.Manual or a in self.manual_axes]
        return program_mesh(self.axis_sizes, self.axis_names, tuple(manual))

    # a program may pass an equal mesh

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, AbstractMesh) or sys._getframe(1).f_code not in _COMPARING:
            return self is other
        return (self.axis_names, self.axis_sizes) == (other.axis_names, other.axis_sizes)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"AbstractMesh({', '.join(f'{n!r}: {s}' for n, s in self.shape_tuple)})"


@functools.cache  # without a limit, as JAX's caches
def program_mesh(sizes: tuple[int, ...], names: tuple[str, ...], manual: tuple[str, ...] = ()) -> ProgramMesh:
    """The mesh for plain programs that are lifted on a mesh of these axes; ``manual`` ones are those of local mode."""
    seen, auto, inner = (ProgramMesh(sizes, names, manual) for _ in range(3))
    if manual:  # one device's values have the mesh in context
        auto = inner = seen
    for mesh in (seen, auto, inner):
        object.__setattr__(mesh, "auto", auto)
        object.__setattr__(mesh, "inner", inner)
    return seen


def program_mesh_in_context() -> ProgramMesh | None:
    """The mesh of the plain program being traced; None outside of any, and in bodies with other meshes."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if type(mesh) is ProgramMesh else None


def is_of_program(aval: Any) -> bool:
    """Whether a type of JAX's is that of a value in a plain program."""
    return type(getattr(getattr(aval, "sharding", None), "mesh", None)) is ProgramMesh


_ArrayImpl: Final = private("jax._src.array", "ArrayImpl")
#: By a constant that was computed while a plain program was traced, its elements.
_elements: Final[NotesOn[Any]] = NotesOn()


def constants(closed: Any) -> tuple[Any, ...]:
    """The constants of a program. One computed in it, by `jax.ensure_compile_time_eval`, leaves the program's mesh."""
    return tuple(map(_constant, captured(closed)))


def _constant(x: Any) -> Any:
    if type(x) is not _ArrayImpl or not is_of_program(x.aval):
        return x
    known = _elements.get(x)
    return _elements.put(x, np.asarray(x)) if known is None else known


def sees_plain() -> bool:
    """Whether typed values appear as plain ones: in a plain program being traced, on its mesh."""
    if not plain_trace.depth:
        return False
    mesh = jax.sharding.get_abstract_mesh()
    return type(mesh) is ProgramMesh or mesh.empty


# JAX's checks that need a mesh of devices


def in_program(original: Callable[..., Any]) -> Callable[..., Any]:
    """Resolves a `PartitionSpec` passed to jit, in a plain program on the program's mesh."""

    def create_sharding_for_array(mesh: Any, x: Any, name: str, api_name: str) -> Any:
        if mesh.empty and isinstance(x, jax.P):
            mesh = program_mesh_in_context() or mesh
        return original(mesh, x, name, api_name)

    return create_sharding_for_array


def allowed_in_program(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """JAX's check of the sharding in `with_sharding_constraint`, which in a plain program may use any axes."""

    def check_shardings_are_auto(sharding: Any) -> None:
        if program_mesh_in_context() is None:
            original(sharding)

    return check_shardings_are_auto


def pspec_in_program(original: Callable[..., Any]) -> Callable[..., Any]:
    """Resolves a `PartitionSpec` passed to `jax.device_put`, in a plain program on the program's mesh."""

    def pspec_to_sharding(name: str, val: Any) -> Any:
        mesh = program_mesh_in_context()
        return original(name, val if mesh is None or not isinstance(val, jax.P) else jax.NamedSharding(mesh, val))

    return pspec_to_sharding


#: JAX's function in which `jax.shard_map` infers missing ``in_specs``.
_INFERRING: Final = ("_shard_map.<locals>.wrapped", "_shard_map.<locals>.wrapped.<locals>.<listcomp>")


def _is_shard_map(frame: Any) -> bool:
    return bool(frame.f_globals.get("__name__") == "jax._src.shard_map")


def _infers_specs(frame: Any, *, anywhere: bool = False) -> bool:
    """Whether `jax.shard_map` is inferring ``in_specs``; with ``anywhere``, at any point of the call."""
    if not _is_shard_map(frame) or not (anywhere or frame.f_code.co_qualname in _INFERRING):
        return False
    while frame is not None and "in_specs" not in frame.f_locals:
        frame = frame.f_back
    return frame is not None and frame.f_locals["in_specs"] is _INFER


def _not_inferred(aval: Any) -> ShardingTypeError:
    return placed(
        ShardingTypeError(
            f"`jax.shard_map` has no in_specs, and how its operand {aval.str_short()} lies is not known yet",
            why="how values lie that a lifted program makes is found after it was traced; of its arguments it is known",
            hints=["jax.shard_map(f, in_specs=..., out_specs=...)"],
        ),
        "jax.shard_map",
    )


def shard_map_in_program(original: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's checks of `jax.shard_map`, and its mesh: in a plain program, the program's.

    JAX stores the mesh with the function; a program's mesh stands for the argument there.
    """

    def shmap_checks(mesh: Any, *args: Any) -> Any:
        mesh = mesh.of_shard_map if type(mesh) is ProgramMesh else mesh
        program = program_mesh_in_context()
        if program is None:
            return original(mesh, *args)
        if mesh is not None and dict(mesh.shape) != dict(program.shape):
            error = ShardingTypeError(f"`jax.shard_map` is over {mesh}, and the program is on {program}")
            raise placed(error, "jax.shard_map")
        return original(_standing_for(program, mesh), *args)

    return shmap_checks


@functools.cache
def _standing_for(program: ProgramMesh, mesh_of_call: Any) -> ProgramMesh:
    mesh = ProgramMesh(program.axis_sizes, program.axis_names, program.manual_axes)
    inner, auto = (mesh, mesh) if program.manual_axes else (program.inner, program.auto)
    for name, value in {"inner": inner, "auto": auto, "of_shard_map": mesh_of_call}.items():
        object.__setattr__(mesh, name, value)
    return mesh


# types of a program's values


def on_mesh(aval: Any, mesh: Any) -> Any:
    """The type of an array on a program's mesh; unchanged without a mesh."""
    if mesh is None or not hasattr(aval, "ndim"):
        return aval
    return aval.update(sharding=jax.NamedSharding(mesh, jax.P(*[None] * aval.ndim)))


#: JAX's table of functions from a value to its type, by class.
_TYPES: Final[dict[Any, Any]] = private("jax._src.core", "pytype_aval_mappings")
#: The classes of values in a program, including captured ones.
_SEEN: Final = tuple(
    kind
    for kind in (
        _ArrayImpl,
        private("jax._src.random.prng", "PRNGKeyArray"),
        jax.core.Tracer,
        private("jax._src.interpreters.partial_eval", "DynamicJaxprTracer"),
    )
    if kind in _TYPES
)
_lock: Final = threading.Lock()
_users = 0


@contextlib.contextmanager
def types_on_program_mesh() -> Iterator[None]:
    """Context manager around the trace of a plain program, in which values of other meshes are on the program's.

    JAX's table is changed while any thread is in it; other threads reach JAX's entries through ours.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _TYPES.update({kind: _TypeOf(_TYPES[kind]) for kind in _SEEN})
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _TYPES.update({k: f.original for k in _SEEN if isinstance(f := _TYPES[k], _TypeOf)})


class _TypeOf:
    """Wraps JAX's function for the type of an array; in a plain program, the array is on the program's mesh.

    The program, and libraries that it calls, see the shardings of arguments.
    """

    __slots__ = ("original",)

    def __init__(self, original: Callable[[Any], Any]) -> None:
        self.original = original

    def __call__(self, x: Any) -> Any:
        aval = self.original(x)
        mesh = program_mesh_in_context() if plain_trace.depth else None
        if mesh is None or type(aval) is not jax.core.ShapedArray:
            return aval
        array_mesh = aval.sharding.mesh
        if array_mesh is mesh.inner and not mesh.manual_axes and isinstance(x, jax.core.Tracer):
            infers = _infers_specs(sys._getframe(2))
            if by_jax(sys._getframe(2)) and not infers:
                return aval
            argument = _argument_sharding(x)
            if infers and argument is None:
                raise _not_inferred(aval)
            spec = spec_like(x) if argument is None else argument.spec
            return aval.update(sharding=jax.NamedSharding(mesh, spec))
        return (
            aval
            if array_mesh.empty or array_mesh is mesh.inner or array_mesh._any_axis_manual
            else on_mesh(aval, mesh.inner)
        )


def _undifferentiated(x: Any) -> Any:
    """The tracer inside of derivatives' tracers."""
    while isinstance(primal := getattr(x, "primal", None), jax.core.Tracer):
        x = primal
    return x


class ArgumentSharding(NamedTuple):
    """The sharding of a program's argument: its type, and JAX's spec."""

    type: Any
    spec: Any


class _Arguments(threading.local):
    """The shardings of the arguments of the program being traced, by id of their tracers."""

    shardings: Mapping[int, ArgumentSharding] | None = None


_arguments: Final = _Arguments()


def argument_shardings(shardings: Mapping[int, ArgumentSharding]) -> contextlib.AbstractContextManager[Any]:
    """Context manager that sets the shardings of a traced program's arguments, by id of their tracers."""
    return attribute_set(_arguments, "shardings", shardings)


def _argument_sharding(x: Any) -> ArgumentSharding | None:
    return (_arguments.shardings or {}).get(id(_undifferentiated(x)))


def argument_type(x: Any) -> Any:
    """The type of an argument of the program being traced; None for any other value."""
    sharding = _argument_sharding(x)
    return None if sharding is None else sharding.type
