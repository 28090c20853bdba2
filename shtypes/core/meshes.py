"""JAX's meshes, with and without devices, and the `Mesh` of types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import jax
from jax.sharding import AbstractMesh, AxisType

from shtypes._compat import no_trace_is_running
from shtypes._compat.program_mesh import ProgramMesh, program_mesh_in_context
from shtypes.caches import Bounded
from shtypes.context.scope import Scope, simple
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError, quoted
from shtypes.types.mesh import Mesh

AnyMesh = Mesh | jax.sharding.Mesh | AbstractMesh

#: The number of cached meshes.
_MESHES: Final = 256
# the last JAX mesh used for each `Mesh`, for values without a mesh in context
_abstract: Bounded[AbstractMesh] = Bounded(_MESHES)
_concrete: Bounded[jax.sharding.Mesh] = Bounded(_MESHES)


def to_mesh(mesh: AnyMesh) -> Mesh:
    """The `Mesh` of a JAX mesh, which is remembered for the devices of its values."""
    if isinstance(mesh, Mesh):
        return mesh
    if not isinstance(mesh, (jax.sharding.Mesh, AbstractMesh)):
        raise placed(
            ShardingTypeError(f"`{mesh!r:.60}` is no mesh", hints=["sh.make_mesh({...})", "sh.abstract_mesh({...})"]),
            "mesh",
        )
    typed_mesh = Mesh(tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)))
    if isinstance(mesh, AbstractMesh):
        _abstract.get_or_create(typed_mesh, lambda: mesh)
    elif _concrete.get(typed_mesh) is not mesh:
        _concrete.put(typed_mesh, mesh)
        _abstract.put(typed_mesh, mesh.abstract_mesh)
    return typed_mesh


def context_mesh() -> AbstractMesh | None:
    """JAX's mesh in context, or None; also None for the mesh of a plain program being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or type(mesh) is ProgramMesh else mesh


def jax_mesh(mesh: Mesh) -> AbstractMesh:
    """The JAX mesh for traces and lowering: that in context, which must fit, or else `without_devices`."""
    context = context_mesh()
    if context is not None:
        if to_mesh(context) is not mesh:
            raise ShardingTypeError(
                f"a value on the mesh ({mesh}) is used under the mesh ({to_mesh(context)})",
                why="one program runs on one mesh",
                hints=["with sh.use_mesh(mesh): ... around the code that uses the value"],
            )
        return context
    return without_devices(mesh)


def without_devices(mesh: Mesh) -> AbstractMesh:
    """The last JAX mesh that stood for ``mesh``, without its devices; else a new one."""
    return _abstract.get_or_create(mesh, lambda: _new_abstract_mesh(mesh))


def _new_abstract_mesh(mesh: Mesh) -> AbstractMesh:
    """A new JAX mesh without devices."""
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=(AxisType.Explicit,) * len(mesh.axis_names))


def concrete_mesh(mesh: Mesh) -> jax.sharding.Mesh:
    """The devices for a mesh: those in context, else the last ones used; an error if there are none."""
    with contextlib.suppress(ValueError):  # raised under jit, where the mesh in context is abstract
        context = jax.sharding.get_mesh()
        if not context.empty and to_mesh(context) is mesh:
            return context
    last_seen = _concrete.get(mesh)
    if last_seen is not None:
        return last_seen
    raise ShardingTypeError(
        f"the mesh ({mesh}) has no devices here",
        why="data needs devices; types alone do not",
        hints=[
            f"sh.set_mesh(sh.make_mesh({dict(mesh.shape)!r}))",
            "sh.eval_shape(f, ...) for the types of what f makes",
        ],
    )


def make_mesh(
    axes: Mapping[str, int] | Sequence[int],
    axis_names: Sequence[str] | None = None,
    *,
    devices: Sequence[Any] | None = None,
) -> jax.sharding.Mesh:
    """A mesh of devices.

    Args:
        axes: Axis names and sizes, major to minor; or the sizes alone, as `jax.make_mesh` takes them.
        axis_names: The names where ``axes`` are sizes.
        devices: The devices to use; by default the first ones that JAX lists.

    Returns:
        A `jax.sharding.Mesh` whose axes are all of JAX's explicit type.
    """
    typed_mesh = abstract_mesh(axes, axis_names)
    available = len(jax.devices() if devices is None else devices)
    if typed_mesh.size > available:
        raise ShardingTypeError(
            f"the mesh ({typed_mesh}) needs {typed_mesh.size} devices, and there are {available}",
            hints=[
                f'jax.config.update("jax_num_cpu_devices", {typed_mesh.size}) first, to try it on a CPU',
                "sh.abstract_mesh(...) where types are enough",
            ],
        )
    kinds = (AxisType.Explicit,) * len(typed_mesh.axis_names)
    mesh = jax.make_mesh(typed_mesh.axis_sizes, typed_mesh.axis_names, axis_types=kinds, devices=devices)
    to_mesh(mesh)
    return mesh


def set_mesh(mesh: AnyMesh) -> None:
    """Sets the mesh for all following code, as (and by) `jax.set_mesh`.

    Args:
        mesh: A mesh of devices (see `use_mesh` for one without).
    """
    if not isinstance(mesh, jax.sharding.Mesh):
        raise ShardingTypeError(
            f"only a mesh of devices can be set for all that follows, not `{mesh!r:.60}`",
            hints=["with sh.use_mesh(mesh): ... for a mesh without devices", "jax.set_mesh(None) to have none"],
        )
    to_mesh(mesh)
    if not _is_lifted_programs_mesh(mesh) and not _is_traced_under(mesh):
        jax.set_mesh(mesh)


def _is_traced_under(mesh: jax.sharding.Mesh) -> bool:
    """Whether JAX is tracing a program under this mesh; an error if it is under another."""
    if no_trace_is_running():
        return False
    context = context_mesh()
    if context == mesh.abstract_mesh:
        return True
    under = "no mesh" if context is None else f"the mesh ({to_mesh(context)})"
    error = ShardingTypeError(
        f"a mesh is set, ({to_mesh(mesh)}), where a program is traced under {under}",
        why="one program runs on one mesh",
        hints=["with sh.use_mesh(mesh): ... around the call of the transformed function"],
    )
    raise placed(error, "mesh")


def _is_lifted_programs_mesh(mesh: AnyMesh) -> bool:
    """Whether a mesh is that of the plain program which `sh.lift` is tracing: then it is in context already."""
    seen = program_mesh_in_context()
    return seen is not None and (seen.axis_names, seen.axis_sizes) == (mesh.axis_names, mesh.axis_sizes)


def use_mesh(mesh: AnyMesh) -> Scope:
    """A scope with a mesh, with or without devices; like `jax.set_mesh` as a context manager, or a decorator.

    Args:
        mesh: A result of `make_mesh` or `abstract_mesh`, or any JAX mesh. Under one without devices JAX runs no
            op of its own, such as `jax.numpy.ones`, outside of traced functions.
    """
    to_mesh(mesh)
    return simple(lambda: _using(mesh))


@contextlib.contextmanager
def _using(mesh: AnyMesh) -> Iterator[None]:
    to_mesh(mesh)
    with contextlib.ExitStack() as scopes:
        if _is_lifted_programs_mesh(mesh):
            pass
        elif isinstance(mesh, jax.sharding.Mesh):
            if not _is_traced_under(mesh):
                scopes.enter_context(jax.set_mesh(mesh))
        else:
            outer = context_mesh()
            if outer is not None and outer.size != mesh.size:  # JAX changes the size only via no mesh
                scopes.enter_context(jax.set_mesh(None))
            scopes.enter_context(
                jax.sharding.use_abstract_mesh(_new_abstract_mesh(mesh) if isinstance(mesh, Mesh) else mesh)
            )
        yield


def manual_mesh(mesh: Any) -> tuple[Any, dict[str, Any]]:
    """The mesh for a `shard_map` over a type's mesh, and its ``axis_names`` if some axes are manual already."""
    over = jax_mesh(mesh)
    manual = {a for a, kind in zip(over.axis_names, over.axis_types, strict=True) if kind == AxisType.Manual}
    return over, {"axis_names": set(over.axis_names) - manual} if manual else {}


def inside_a_device() -> contextlib.AbstractContextManager[Any]:
    """Context manager in which JAX sees the mesh in context as within a `shard_map`, and places no arrays."""
    mesh = context_mesh()
    if mesh is None:
        return contextlib.nullcontext()
    manual = mesh.update(axis_types=(AxisType.Manual,) * len(mesh.axis_names))
    scope: contextlib.AbstractContextManager[Any] = jax.sharding.use_abstract_mesh(manual)
    return scope


def abstract_mesh(axes: Mapping[str, int] | Sequence[int], axis_names: Sequence[str] | None = None) -> Mesh:
    """A mesh without devices, of any size, for types, checks and reports.

    Args:
        axes: Axis names and sizes, major to minor; or the sizes alone, as `jax.make_mesh` takes them.
        axis_names: The names where ``axes`` are sizes.
    """
    named: Any = axes
    if axis_names is not None:
        if isinstance(named, Mapping) or not isinstance(named, Sequence) or len(named) != len(axis_names):
            raise ShardingTypeError(
                f"the axes {quoted(axis_names)} need one size each, not {axes!r:.60}", hints=['{"x": 2, "y": 4}']
            )
        named = zip(axis_names, named, strict=True)
    return Mesh(named)
