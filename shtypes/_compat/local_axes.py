"""The mesh axes for the collectives of one device's plain program, bound while it is traced.

As in the body of a `jax.shard_map`, JAX then tracks the axes over which each value varies, so that its derivatives are
correct. It refuses what `check_vma=False` is for, such as a carry that starts as zeros and becomes varying; then the
program is traced without tracking, as by `jax.shard_map` with that argument.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax

from shtypes._compat import private
from shtypes._compat.jaxprs import inner_jaxprs, jaxpr_of
from shtypes._compat.program_mesh import ProgramMesh, on_mesh, program_mesh, program_mesh_in_context
from shtypes.context.scope import local_axes
from shtypes.context.settings import current_settings
from shtypes.context.user_line import line_of
from shtypes.errors import ShardingTypeError, quoted
from shtypes.types import ShType, State

_extend_axis_env: Any = private("jax._src.core", "extend_axis_env_nd")
_check_vma: Any = private("jax._src.config", "_check_vma")

#: The sizes and names of a mesh's axes.
Axes = tuple[tuple[int, ...], tuple[str, ...]]

_UNBOUND: Final = re.compile(r"unbound axis name: (.*?)(?:\. |$)")


def local_mesh() -> ProgramMesh | None:
    """The mesh of plain programs in local mode; None outside of it."""
    local = current_settings().local
    if not local:
        return None
    names, sizes, mapped = zip(*local, strict=True)
    return program_mesh(sizes, names, tuple([a for a, is_mapped in zip(names, mapped, strict=True) if is_mapped]))


def struct(
    shape: Sequence[int], dtype: Any, t: ShType | None = None, *, weak_type: bool = False, like: Any = None
) -> Any:
    """The `ShapeDtypeStruct` of a value in the trace of a plain program.

    In local mode it has the axes over which the value varies: by its type ``t``, or as in ``like``.
    """
    mesh = local_mesh()
    if mesh is None:
        return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)
    varies = _tracked(mesh, [t]) if like is None else like.mat
    return jax.ShapeDtypeStruct(
        shape, dtype, weak_type=weak_type, sharding=_on(mesh, len(shape)), manual_axis_type=varies
    )


def plain_aval(shape: Sequence[int], dtype: Any, mesh: Any, of: Sequence[Any]) -> Any:
    """The type of a plain array on a program's mesh, computed from values of types ``of``, ours or JAX's."""
    aval = on_mesh(jax.core.ShapedArray(shape, dtype), mesh)
    return aval if mesh is None or not mesh.manual_axes else aval.update(manual_axis_type=_tracked(mesh, of))


def traced_type(x: Any) -> Any:
    """JAX's type of a value in the program being traced, without its sharding."""
    return x.aval if isinstance(x, jax.core.Tracer) else jax.typeof(x)


def _on(mesh: ProgramMesh, ndim: int) -> Any:
    return jax.NamedSharding(mesh.inner, jax.P(*[None] * ndim))


def _tracked(mesh: Any, types: Sequence[Any]) -> Any:
    """JAX's manual axis type of an array in local mode: the axes over which it varies or is a pending sum."""
    manual, varying, unreduced = set(mesh.manual_axes), set[str](), set[str]()
    for t in types:
        if isinstance(t, ShType):
            varying |= manual.intersection(t.axes(State.VARYING, State.SHARDED))
            unreduced |= manual.intersection(t.axes(State.UNREDUCED))
        elif t is not None:
            varying |= t.mat.varying
            unreduced |= t.mat.unreduced
    return jax.sharding.ManualAxisType(varying=frozenset(varying), unreduced=frozenset(unreduced - varying))


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """Context manager in which JAX does not track varying values, for code without a mesh."""
    with _check_vma(False):
        yield


def axes_bound(axes: Sequence[tuple[str, int]]) -> contextlib.AbstractContextManager[Any]:
    """Context manager that binds axes, with sizes, for collectives of plain programs."""
    bound: contextlib.AbstractContextManager[Any] = _extend_axis_env(list(axes))
    return bound


@contextlib.contextmanager
def _bound(mesh: ProgramMesh, *, tracked: bool) -> Iterator[None]:
    """Context manager that binds the axes of local mode, with or without tracking of varying values."""
    sees = mesh if tracked else program_mesh(mesh.axis_sizes, mesh.axis_names)
    with axes_bound(list(local_axes())), jax.sharding.use_abstract_mesh(sees), _check_vma(tracked):
        yield


@contextlib.contextmanager
def as_in_program() -> Iterator[None]:
    """Context manager around the trace of an equation's rule, on the mesh in context, as its program was traced."""
    mesh, seen = local_mesh(), program_mesh_in_context()
    bound = contextlib.nullcontext() if mesh is None or seen is None else _bound(mesh, tracked=bool(seen.manual_axes))
    with _convert_errors(), bound:
        yield


def trace(f: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """Traces a plain function, within `tracing_plain`, for arguments from `struct`."""
    mesh = local_mesh()
    with _convert_errors():
        return _traced(f, avals) if mesh is None else _traced_in(mesh, f, avals)


@contextlib.contextmanager
def _convert_errors() -> Iterator[None]:
    """Context manager around the trace of a plain program; converts JAX's errors about missing axes."""
    try:
        yield
    except NameError as error:
        axis = _UNBOUND.search(str(error))
        if axis is None:
            raise
        refusal = _unbound(axis[1])
        refusal.where = line_of(error.__traceback__)
        refusal.placed = bool(refusal.where)
        raise refusal from None


def _unbound(axis: str) -> ShardingTypeError:
    mapped = quoted(name for name, _ in local_axes())
    return ShardingTypeError(
        f"a collective of JAX's own goes along `{axis}`, over which nothing is mapped",
        why=f"`shard_map` maps over {mapped} here" if mapped else "it is not in a function given to `shard_map`",
        hints=[
            f'sh.shard_map(f, axis_names="{axis}", ...)' if mapped else "sh.shard_map(f, in_specs=..., out_specs=...)"
        ],
    )


def _traced(f: Callable[..., Any], avals: Sequence[Any], *, reshard: bool = False) -> Any:
    """Traces a function for arguments on the mesh in context; ``reshard``: also those that have a sharding."""
    mesh = program_mesh_in_context()
    if mesh is not None:
        avals = [a if not reshard and a.sharding is not None else _placed(a, mesh) for a in avals]
    return jax.jit(f).trace(*avals)


def _placed(aval: Any, mesh: ProgramMesh) -> Any:
    """An argument of a program with a mesh."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=_on(mesh, len(aval.shape)))


def _traced_in(mesh: ProgramMesh, f: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """Traces a program of local mode, with tracking if JAX can."""
    try:
        with _bound(mesh, tracked=True):
            return _traced(f, avals)
    except NameError:
        raise
    except Exception as error:  # also ours, which may stand for JAX's
        refused = error
    try:
        with _bound(mesh, tracked=False):
            traced = _traced(f, avals, reshard=True)
    except NameError:
        raise
    except Exception:
        raise refused from None
    if _sums_cotangents(traced.jaxpr):
        raise _untracked_gradient(refused)
    return traced


def _sums_cotangents(program: Any, backward: bool = False) -> bool:
    """Whether a JAX backward pass has the transpose of a sum, which without tracking is a sum again."""
    for eqn in jaxpr_of(program).eqns:
        in_backward = backward or "transpose(" in str(eqn.source_info.name_stack)
        if (in_backward and eqn.primitive.name == "psum") or any(
            _sums_cotangents(b, in_backward) for b, _ in inner_jaxprs(eqn)
        ):
            return True
    return False


def _untracked_gradient(refused: Exception) -> ShardingTypeError:
    return ShardingTypeError(
        "the function given to `shard_map` takes a gradient through a sum over devices, and JAX does not track there "
        "which values vary",
        why="JAX refuses to, and without it the transpose of a sum is a sum again: each gradient would be counted once "
        f"for each device. It says: {str(refused).strip().splitlines()[0]}",
        hints=[
            'jax.lax.pcast(init, axis, to="varying") where a loop starts with what does not vary',
            "sh.grad around sh.shard_map, whose gradients need no tracking",
        ],
    )
