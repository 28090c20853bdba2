"""Public functions in plain programs: a call of `reshard`, `einsum`, ... on plain arrays where no mesh is set.

On one device it is the same op without communication. While `lift` traces a plain program, it is recorded as one
equation, which is evaluated as the op on typed values. So one model, with its reshards, runs in both ways.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.interpreters import ad, batching, mlir

from shtypes._compat import Zero, instantiate_zeros, is_undefined_primal
from shtypes._compat.local_axes import plain_aval
from shtypes._compat.plain_programs import PlainPrimitive, closed_over
from shtypes._compat.program_mesh import how_it_lies, program_mesh_in_context
from shtypes.context.eqn_source import is_tracing_plain
from shtypes.context.user_line import connect_one_device
from shtypes.core.conversion import array, convert
from shtypes.core.meshes import use_mesh
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.branch_types import aval_of
from shtypes.evaluation.frames import current
from shtypes.evaluation.static import Static
from shtypes.evaluation.table import PLAIN_FORMS, body_row
from shtypes.evaluation.value_info import is_constant, is_inexact, typed_constant
from shtypes.lifting.public_ops import op
from shtypes.lifting.typed_calls import Derived, TypedCall, check_closure, made_by, results, shapes
from shtypes.ops.table import OPS
from shtypes.types.mesh import context, current_mesh

# the primitive

typed_call_p: Final = PlainPrimitive("typed_call")
typed_call_p.multiple_results = True


def _plainly(*xs: Any, call: Any) -> list[Any]:
    return results(call, xs, typed=False)


def _abstract(*avals: Any, call: Any) -> Any:
    mesh = next((a.sharding.mesh for a in avals if not a.sharding.mesh.empty), None)
    return [plain_aval(y.shape, y.dtype, mesh, avals) for y in shapes(call, avals)], set()


typed_call_p.def_effectful_abstract_eval(_abstract)
typed_call_p.def_impl(_plainly)
mlir.register_lowering(typed_call_p, mlir.lower_fun(_plainly, multiple_results=True))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Any) -> Any:
    outs = typed_call_p.bind(*primals, call=call)
    live = tuple(not isinstance(t, Zero) and is_inexact(x) for x, t in zip(primals, tangents, strict=True))
    given = [t for t, is_live in zip(tangents, live, strict=True) if is_live]
    made = iter(typed_call_p.bind(*primals, *given, call=Derived(call, "tangents", live)))
    zero = [Zero(jax.typeof(y).to_tangent_aval()) for y in outs]
    return outs, [next(made) if is_inexact(y) else z for y, z in zip(outs, zero, strict=True)]


def _transpose(cts: Sequence[Any], *operands: Any, call: Any) -> list[Any]:
    """Of the tangents of a call: its cotangents. Of a call that is linear in what it is given itself, likewise."""
    if isinstance(call, TypedCall):
        linear = tuple(map(is_undefined_primal, operands))
        if call.is_the_value:
            return [cts[0] if each else None for each in linear]
        pairs = zip(operands, linear, strict=True)
        at = [jax.numpy.zeros(x.aval.shape, x.aval.dtype) if each else x for x, each in pairs]
        pulled = iter(typed_call_p.bind(*at, *map(instantiate_zeros, cts), call=Derived(call, "cotangents", linear)))
        return [next(pulled) if each else None for each in linear]
    n = len(call.live)
    given = [instantiate_zeros(ct) for ct in cts]
    found = typed_call_p.bind(*operands[:n], *given, call=Derived(call.call, "cotangents", call.live))
    rest = [ct if is_undefined_primal(t) else None for t, ct in zip(operands[n:], found, strict=True)]
    return [None] * n + rest


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, call: Any) -> Any:
    mapped = tuple(None if d is None else int(d) for d in dims)
    outs = typed_call_p.bind(*operands, call=Derived(call, "mapped", dims=mapped))
    return outs, [0] * len(outs)


ad.primitive_jvps[typed_call_p] = _jvp
ad.primitive_transposes[typed_call_p] = _transpose
batching.primitive_batchers[typed_call_p] = _batch


@body_row("typed_call")
def _typed_call(eqn: Any, operands: list[Any]) -> list[Any]:
    step = current()
    mesh = next((x.type.mesh for x in operands if is_typed(x)), None) or (step.body.mesh if step is not None else None)
    mesh = mesh or current_mesh()
    call = eqn.params["call"]
    known = [isinstance(x, jax.core.Tracer) and not is_typed(x) and is_constant(x) for x in operands]
    given = [typed_constant(x, mesh) if k else x for x, k in zip(operands, known, strict=True)]
    with contextlib.nullcontext() if context() is mesh else use_mesh(mesh):
        outs = results(call, given, typed=True)
    for var, y in zip(eqn.outvars, outs, strict=True):
        if tuple(var.aval.shape) != tuple(y.shape):
            raise ShardingTypeError(
                f"`{call}` gives {list(y.shape)} of its typed operands, and {list(var.aval.shape)} on one device",
                why="a lifted program is traced with the shapes of one device, before its types are known",
                hints=["sh.shard_map(..., in_specs=...), which says how the operands lie"],
            )
    return outs


@body_row("closed_over")
def _closed_over(eqn: Any, operands: list[Any]) -> list[Any]:
    return operands


# calls where no mesh is set


def without_mesh(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, needs_mesh: bool) -> Any:
    """A public function of plain arrays where no mesh is set; None where it is nothing that typed values are given to.

    Args:
        fn: The function.
        args: Its arguments.
        kwargs: Those by name.
        needs_mesh: Whether it was found to need a mesh.
    """
    name, traced = _names().get(fn), is_tracing_plain()
    if traced and fn in PLAIN_FORMS:
        return PLAIN_FORMS[fn](*args, **kwargs)
    if name is not None:
        return _called(name, args, kwargs)
    if needs_mesh and traced:  # what makes typed values, or runs functions of shards
        return recorded(_MADE_TYPED.get(fn.__name__, fn), args, kwargs, name=fn.__name__)
    return None


def recorded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    name: str = "",
    plain: Callable[..., Any] | None = None,
) -> Any:
    """A call of any function of typed values in a plain program that is traced, as one equation.

    Args:
        fn: The function; it may close over nothing of the program.
        args: Its arguments.
        kwargs: Those by name.
        name: What messages call it.
        plain: What it is of plain arrays on one device; by default ``fn`` on a mesh of one device.
    """
    name = name or getattr(fn, "__name__", "f")
    if plain is None:
        check_closure(name, fn)
    return _called(name, args, kwargs, fn, plain)


def _called(
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fn: Callable[..., Any] | None = None,
    plain: Callable[..., Any] | None = None,
) -> Any:
    """A call, run on one device or recorded; None where typed values are given to it, or no arrays are."""
    traced, seen = is_tracing_plain(), program_mesh_in_context()
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: x is None)
    leaves = [closed_over(x) if traced else x for x in leaves]
    arrays = [isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in leaves]
    if any(map(is_typed, leaves)) or not (traced or any(isinstance(x, jax.Array) for x in leaves)):
        return None
    static = tuple(None if a else Static(x) for x, a in zip(leaves, arrays, strict=True))
    axes = () if seen is None else tuple(zip(seen.axis_names, seen.axis_sizes, strict=True))
    xs = [x for x, a in zip(leaves, arrays, strict=True) if a]
    types = tuple([how_it_lies(x) for x in xs]) if fn is not None and traced else ()
    call = TypedCall(name, tree, static, fn, axes, plain, types)
    if not traced:
        return call.on_one_device(*xs)
    if call.is_the_value:
        return typed_call_p.bind(*xs, call=call)[0]
    form = jax.tree.structure(made_by(call, tuple(aval_of(x) for x in xs)))
    return jax.tree.unflatten(form, typed_call_p.bind(*xs, call=call))


def _in_type(x: Any, type: Any = None, **options: Any) -> Any:
    """What a program makes a typed value of, in a type: it may be one where the program is evaluated."""
    if is_typed(x):
        return x if type is None else op("reshard")(x, type)
    return array(np.asarray(x), type, **options) if not isinstance(x, jax.core.Tracer) else convert(x, type, **options)


#: Functions that make typed values of plain arrays, and what they do with those of a program.
_MADE_TYPED: Final[dict[str, Callable[..., Any]]] = {"array": _in_type, "from_jax": _in_type}


@functools.cache
def _names() -> dict[Any, str]:
    """The public ops, and what they are called; not those that make functions."""
    makers = {f"init.{name}" for name in ("constant", *_INITIALIZERS)}
    return {op(name): name for name in OPS if name not in makers}


#: Functions of `init` that make initializers.
_INITIALIZERS: Final = (
    *("uniform", "normal", "truncated_normal", "variance_scaling", "glorot_uniform", "glorot_normal"),
    *("xavier_uniform", "xavier_normal", "lecun_uniform", "lecun_normal", "he_uniform", "he_normal"),
    *("kaiming_uniform", "kaiming_normal", "orthogonal", "delta_orthogonal"),
)

connect_one_device(without_mesh)
