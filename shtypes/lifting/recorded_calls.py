"""Calls of public functions (`reshard`, `einsum`, ...) on plain arrays where no mesh is set.

Such a call runs on one device, without communication. While `lift` traces a plain program, it is recorded as one
equation, which is evaluated as the op on typed values. So a model with reshards runs lifted and unlifted.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from shtypes._compat import Zero, instantiate_zeros, is_undefined_primal
from shtypes._compat.local_axes import plain_aval
from shtypes._compat.plain_programs import PlainPrimitive, closed_over
from shtypes._compat.program_mesh import argument_type, program_mesh_in_context
from shtypes.caches import Static
from shtypes.context.eqn_source import is_tracing_plain
from shtypes.context.user_line import connect_one_device
from shtypes.core.collective import part_of_device
from shtypes.core.conversion import abstract_array, array, from_jax
from shtypes.core.meshes import use_mesh
from shtypes.core.shard_fn import is_inexact
from shtypes.dispatch.apply import is_array, is_typed
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.frames import mesh_here
from shtypes.evaluation.table import body_row
from shtypes.evaluation.value_info import aval_of, is_constant, typed_constant
from shtypes.lifting.typed_calls import Derived, InsertedCast, TypedCall, check_closure, eval_shape_of, results, shapes
from shtypes.local_mode import lax
from shtypes.local_mode.lax.arguments import axes_of, replicated_state, state_of
from shtypes.ops.table import OPS
from shtypes.types import ShType, State
from shtypes.types.mesh import context, current_mesh
from shtypes.types.policy import replicated

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
    live_tangents = [t for t, is_live in zip(tangents, live, strict=True) if is_live]
    dots = iter(typed_call_p.bind(*primals, *live_tangents, call=Derived(call, "tangents", live)))
    zero = [Zero(jax.typeof(y).to_tangent_aval()) for y in outs]
    return outs, [next(dots) if is_inexact(y) else z for y, z in zip(outs, zero, strict=True)]


def _transpose(cts: Sequence[Any], *operands: Any, call: Any) -> list[Any]:
    """The transpose of a call's jvp, or of a call that is linear in its operands."""
    if isinstance(call, TypedCall):
        linear = tuple(map(is_undefined_primal, operands))
        if call.is_identity:
            return [cts[0] if each else None for each in linear]
        pairs = zip(operands, linear, strict=True)
        at = [jax.numpy.zeros(x.aval.shape, x.aval.dtype) if each else x for x, each in pairs]
        pulled = iter(typed_call_p.bind(*at, *map(instantiate_zeros, cts), call=Derived(call, "cotangents", linear)))
        return [next(pulled) if each else None for each in linear]
    n = len(call.live)
    cts_out = [instantiate_zeros(ct) for ct in cts]
    cts_in = typed_call_p.bind(*operands[:n], *cts_out, call=Derived(call.call, "cotangents", call.live))
    rest = [ct if is_undefined_primal(t) else None for t, ct in zip(operands[n:], cts_in, strict=True)]
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
    mesh, call = mesh_here(operands) or current_mesh(), eqn.params["call"]
    constants = [isinstance(x, jax.core.Tracer) and not is_typed(x) and is_constant(x) for x in operands]
    args = [typed_constant(x, mesh) if k else x for x, k in zip(operands, constants, strict=True)]
    with contextlib.nullcontext() if context() is mesh else use_mesh(mesh):
        outs = results(call, args, typed=True)
    for var, y in zip(eqn.outvars, outs, strict=True):
        if tuple(var.aval.shape) != tuple(y.shape):
            raise ShardingTypeError(
                f"`{call}` gives {list(y.shape)} of its typed operands, and {list(var.aval.shape)} on one device",
                why="a lifted program is traced with the shapes of one device, before its types are known",
                hints=["sh.shard_map(..., in_specs=...), which says how the operands lie"],
            )
    return outs


body_row("closed_over")(lambda eqn, operands: operands)


# the functions of `sh.lax` on plain arrays in programs traced for local mode: those of `jax.lax`

#: The values of `to=` of `jax.lax.pcast`.
_PCAST_TO: Final = {State.VARYING: "varying", State.REDUCED: "reduced", State.UNREDUCED: "unreduced"}


def _unsupported_state(name: str, state: State) -> ShardingTypeError:
    return ShardingTypeError(
        f"`{name}` of a plain array cannot end in `{state.name.lower()}`",
        why="in a plain program it is the collective of jax.lax, which ends in the replicated state of the policy",
        hints=[
            "typed ops alone in the function given to sh.shard_map",
            f"sh.lift of its parts, and sh.lax.{name} between",
        ],
    )


def _all_reduction(name: str) -> Callable[..., Any]:
    def call(x: Any, axis_name: Any, *, axis_index_groups: Any = None, to: Any = None) -> Any:
        state, axes = replicated_state(to, name), axes_of(axis_name)
        y = getattr(jax.lax, name)(x, axes, axis_index_groups=axis_index_groups)
        if state is replicated():
            return y
        if state is State.INVARIANT:
            raise _unsupported_state(name, state)
        return jax.lax.pcast(y, axes, to=_PCAST_TO[state])

    return call


def _all_gather(x: Any, axis_name: Any, *, to: Any = "varying", **options: Any) -> Any:
    state = state_of(to, (State.VARYING, State.REDUCED, State.INVARIANT), "all_gather")
    return jax.lax.all_gather(x, axes_of(axis_name), to=_PCAST_TO.get(state, "invarying"), **options)


def _pcast(x: Any, axis_name: Any, *, to: Any) -> Any:
    state = state_of(to, (*_PCAST_TO, State.INVARIANT), "pcast")
    if state is State.INVARIANT:
        raise _unsupported_state("pcast", state)
    return jax.lax.pcast(x, axes_of(axis_name), to=_PCAST_TO[state])


def _pbroadcast(x: Any, axis_name: Any, source: int | None = None) -> Any:
    if source is None:
        return _pcast(x, axis_name, to="varying")
    masked = jax.tree.map(lambda leaf: jnp.where(jax.lax.axis_index(axes_of(axis_name)) == source, leaf, 0), x)
    return jax.lax.psum(masked, axes_of(axis_name))


def _pscatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    axes = axes_of(axis_name)
    return jax.tree.map(lambda leaf: part_of_device(leaf, axes, scatter_dimension, tiled=tiled), x)


def _ragged_all_to_all(*operands: Any, disjoint: bool = False, axis_name: Any, **options: Any) -> Any:
    return jax.lax.ragged_all_to_all(*operands, axis_name=axes_of(axis_name), **options)


def _same_as_jax(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(jax.lax, name)(*args, **kwargs)

    return call


_PLAIN_FORMS: Final[dict[str, Callable[..., Any]]] = {
    **{name: _all_reduction(name) for name in ("pmax", "pmean", "pmin", "psum")},
    **{
        name: _same_as_jax(name)
        for name in ("axis_index", "axis_size", "all_to_all", "ppermute", "pshuffle", "psum_scatter")
    },
    "all_gather": _all_gather,
    "all_gather_invariant": lambda x, axis_name, **options: _all_gather(x, axis_name, to="invariant", **options),
    "pbroadcast": _pbroadcast,
    "pcast": _pcast,
    "pscatter": _pscatter,
    "pswapaxes": _same_as_jax("pswapaxes"),
    "pvary": lambda x, axis_name: _pcast(x, axis_name, to="varying"),
    "ragged_all_to_all": _ragged_all_to_all,
}
#: For each function of `shtypes.lax`, the one on plain arrays.
PLAIN_FORMS: Final = {getattr(lax, name): _PLAIN_FORMS[name] for name in lax.__all__}


# calls where no mesh is set


def without_mesh(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, needs_mesh: bool) -> Any:
    """Calls or records a public function of plain arrays where no mesh is set; None if it needs typed values."""
    name, traced = _names().get(fn), is_tracing_plain()
    if traced and fn in PLAIN_FORMS:
        return PLAIN_FORMS[fn](*args, **kwargs)
    if name is not None:
        return _call_or_record(name, args, kwargs)
    if needs_mesh and traced:  # a function that creates typed values or runs in local mode
        return recorded(_CONVERSIONS.get(fn.__name__, fn), args, kwargs, name=fn.__name__)
    return None


def recorded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    name: str = "",
    plain: Callable[..., Any] | None = None,
) -> Any:
    """Records a call of any function of typed values in the plain program being traced, as one equation."""
    name = name or getattr(fn, "__name__", "f")
    if plain is None:
        check_closure(name, fn)
    return _call_or_record(name, args, kwargs, fn, plain)


def recorded_op(name: str, *args: Any) -> Any:
    """Records a call of an op in the plain program being traced, as one equation."""
    return _call_or_record(name, args, {})


def inserted_cast(x: Any, to: ShType, *, constant: bool = False) -> Any:
    """Records an inserted reshard in the plain program being traced; ``constant`` is that of `move`."""
    tree = jax.tree.structure(((x,), {}))
    return typed_call_p.bind(x, call=InsertedCast("reshard", tree, (None,), to=to, constant=constant))[0]


def _call_or_record(
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fn: Callable[..., Any] | None = None,
    plain: Callable[..., Any] | None = None,
) -> Any:
    """Runs a call on one device or records it; None if a leaf is typed, or outside a trace none is a `jax.Array`."""
    traced, seen = is_tracing_plain(), program_mesh_in_context()
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: x is None)
    leaves = [closed_over(x) if traced else x for x in leaves]
    arrays = list(map(is_array, leaves))
    if any(map(is_typed, leaves)) or not (traced or any(isinstance(x, jax.Array) for x in leaves)):
        return None
    static = tuple(None if a else Static(x) for x, a in zip(leaves, arrays, strict=True))
    axes = () if seen is None else tuple(zip(seen.axis_names, seen.axis_sizes, strict=True))
    xs = [x for x, a in zip(leaves, arrays, strict=True) if a]
    types = tuple([argument_type(x) for x in xs]) if fn is not None and traced else ()
    call = TypedCall(name, tree, static, fn, axes, plain, types)
    if not traced:
        return call.on_one_device(*xs)
    if call.is_identity:
        return typed_call_p.bind(*xs, call=call)[0]
    form = jax.tree.structure(eval_shape_of(call, tuple(aval_of(x) for x in xs)))
    return jax.tree.unflatten(form, typed_call_p.bind(*xs, call=call))


def _in_type(x: Any, type: Any = None, **options: Any) -> Any:
    """`array` or `from_jax` of a value, or `reshard` if it is typed where the program is evaluated."""
    if is_typed(x):
        return x if type is None else reshard(x, type)
    return array(np.asarray(x), type, **options) if not isinstance(x, jax.core.Tracer) else from_jax(x, type, **options)


#: The recorded forms of functions that convert plain arrays to typed values.
_CONVERSIONS: Final[dict[str, Callable[..., Any]]] = {"array": _in_type, "from_jax": _in_type}


@functools.cache
def _names() -> dict[Any, str]:
    """The names of the public ops, by function; without those of `init` that return functions."""
    initializers = ("init.zeros", "init.ones")
    return {op.function: name for name, op in OPS.items() if not name.startswith("init.") or name in initializers}


connect_one_device(without_mesh)


T = TypeVar("T")

# callbacks that get typed values when the program is evaluated

observed_p: Final = PlainPrimitive("observed")
observed_p.multiple_results = True


def _same(*xs: Any, callback: Any, mapped: Any) -> list[Any]:
    return list(xs)


observed_p.def_impl(_same)
observed_p.def_abstract_eval(_same)
mlir.register_lowering(observed_p, lambda _, *xs, callback, mapped: list(xs))


def _observed_batch(
    xs: Sequence[Any], dims: Sequence[Any], *, callback: Any, mapped: Any
) -> tuple[list[Any], Sequence[Any]]:
    """Adds the dims that `jax.vmap` maps over to ``mapped``, the dims that the callback does not see."""
    all_mapped = [m if d is None else (d, *(k + (k >= d) for k in m)) for m, d in zip(mapped, dims, strict=True)]
    return observed_p.bind(*xs, callback=callback, mapped=tuple(all_mapped)), dims


ad.primitive_jvps[observed_p] = lambda primals, tangents, **params: (
    observed_p.bind(*primals, **params),
    list(tangents),
)
batching.primitive_batchers[observed_p] = _observed_batch


def observed(callback: Callable[[T], object], tree: T) -> T:
    """Records a call of ``callback`` with a pytree, whose values are typed when the program is evaluated."""
    leaves, form = jax.tree.flatten(tree)
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]

    def call_with(values: Sequence[Any]) -> object:
        full = list(leaves)
        for i, x in zip(places, values, strict=True):
            full[i] = x
        return callback(jax.tree.unflatten(form, full))

    if places:
        outs = observed_p.bind(*[leaves[i] for i in places], callback=call_with, mapped=((),) * len(places))
        for i, x in zip(places, outs, strict=True):
            leaves[i] = x
    same: T = jax.tree.unflatten(form, leaves)
    return same


@body_row("observed")
def _observed(eqn: Any, operands: list[Any]) -> list[Any]:
    eqn.params["callback"]([_unmapped(x, dims) for x, dims in zip(operands, eqn.params["mapped"], strict=True)])
    return operands


def _unmapped(x: Any, mapped: Sequence[int]) -> Any:
    """A value without its mapped dims; it varies over the mesh axes that shard these."""
    if not mapped or not is_typed(x):
        return x
    t = x.type
    for dim in sorted(mapped, reverse=True):
        t = t.with_axes(t.dims[dim].axes, State.VARYING).replace(dims=t.dims[:dim] + t.dims[dim + 1 :])
    return abstract_array(t)
