"""Derivatives of typed functions: `grad`, `value_and_grad`, `vjp` and `jvp`, as in JAX."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast, overload

import jax
import jax.numpy as jnp
from jax import lax

from shtypes._compat import trace_ctx
from shtypes._compat.typed import Behaviour
from shtypes.autodiff.checkpoint import for_typed
from shtypes.context.eqn_source import end_typed_trace
from shtypes.context.function import Function
from shtypes.context.scope import mapped_axes
from shtypes.context.signature_errors import as_numbers, check_function, name_of, of_class
from shtypes.context.user_line import public, wrap_jax_errors
from shtypes.control.branches import selected
from shtypes.control.joins import can_reshard
from shtypes.core.array import Array, wrap
from shtypes.core.collective import vary
from shtypes.core.device_put import raise_p
from shtypes.core.elementwise_fns import STOP_GRADIENT, Add, NamedFn
from shtypes.core.jax_type import HiShType
from shtypes.core.local import local, repeated, zeros_of
from shtypes.core.physical import fix_empty_shards
from shtypes.core.reshard import move
from shtypes.core.shard_fn import Linear
from shtypes.dispatch.apply import is_array, is_number, is_typed, located
from shtypes.errors import ShardingTypeError
from shtypes.ops.create import full
from shtypes.rules.cotangent import cast_hints, check_cotangent, check_tangent, seed_type
from shtypes.scopes.check_comm import check_comm
from shtypes.scopes.comm import optimized_jointly
from shtypes.scopes.scope_rules import allows_implicit
from shtypes.types import REPLICATED, ShType

P = ParamSpec("P")
T = TypeVar("T")
#: The hints of an argument of integers.
_INTEGERS: Final = ("leave it out of argnums", "allow_int=True, for a gradient of dtype float0")


def grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function[P, Any]:
    """The gradient of a function with a typed or plain scalar result, as `jax.grad`.

    Args:
        fun: A function of pytrees of typed values and plain arrays. Its result is a scalar, on each mesh axis
            reduced, invariant, or unreduced: local losses, whose sum is the loss.
        argnums: Which positional arguments to differentiate with respect to.
        has_aux: Whether ``fun`` returns ``(loss, aux)``.
        holomorphic: A promise that ``fun`` is holomorphic.
        allow_int: Whether integer arguments are allowed; their gradients have dtype ``float0``.

    Returns:
        A function with the arguments of ``fun`` that returns the gradient, each leaf in the cotangent type of its
        argument, or ``(gradient, aux)``.

    Raises:
        ShardingTypeError: (when called) the loss is not a scalar, not a float, or varying.

    Communicates: as the backward pass of ``fun`` does; the seed communicates nothing.

    Inside `shtypes.vmap` over a sharded dim devices differentiate different steps: over its axes the loss may vary, and
    so do the gradients, also those of replicated values.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     w = sh.array([1.0, 2.0], "f32[2@x]")
        ...     sh.grad(lambda w: sh.sum(w * w))(w)
        Array(f32[2@x], [2. 4.])
    """
    check_function("grad", fun)
    with_value = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    @functools.wraps(fun)
    def grad_of_fun(*args: P.args, **kwargs: P.kwargs) -> Any:
        value: Any
        value, grads = with_value(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return cast("Function[P, Any]", grad_of_fun)


def value_and_grad(
    fun: Callable[P, T],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function[P, tuple[T, Any]]:
    """The value and the gradient of a function with a scalar result, as `jax.value_and_grad`; see `grad`.

    Returns:
        A function that returns ``(loss, gradient)``, or ``((loss, aux), gradient)``. The loss keeps its type.
    """
    check_function("value_and_grad", fun)
    chosen = as_numbers("grad", "argnums", argnums)
    name = getattr(fun, "__name__", "the function")

    @functools.wraps(fun)
    def value_and_grad_of_fun(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        end_typed_trace(trace_ctx.trace)
        indices = positions(chosen, len(args), name)
        for i in indices:
            check_argument(args[i], i, _INTEGERS, holomorphic=holomorphic, allow_int=allow_int)

        def of_chosen(*values: Any) -> Any:
            merged = list(args)
            for i, value in zip(indices, values, strict=True):
                merged[i] = value
            loss, aux = with_aux(optimized_jointly(fun)(*merged, **kwargs), has_aux, name, "loss")
            if not (is_array(loss) or is_number(loss)):
                raise ShardingTypeError(f"a gradient needs a scalar loss; `{name}` returned {type(loss).__name__}")
            return loss, aux

        loss, pull, aux = jax.vjp(of_chosen, *[of_one_step(args[i]) for i in indices], has_aux=True)
        with wrap_jax_errors(name, "has no gradient"):
            grads = pull(_seed(loss, name, holomorphic=holomorphic))
        return (loss, aux) if has_aux else loss, grads[0] if isinstance(argnums, int) else grads

    return cast("Function[P, tuple[T, Any]]", value_and_grad_of_fun)


def with_aux(result: Any, has_aux: bool, name: str, what: str) -> tuple[Any, Any]:
    """Splits a function's output into its result and its auxiliary output, or None."""
    if has_aux and (not isinstance(result, tuple) or len(result) != 2):
        raise ShardingTypeError(f"with has_aux=True, `{name}` must return ({what}, aux)")
    return result if has_aux else (result, None)


@overload
def vjp(fun: Callable[..., T], *primals: Any, has_aux: Literal[False] = False) -> tuple[T, Callable[..., Any]]: ...
@overload
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool) -> tuple[Any, Callable[..., Any], Any]: ...
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function and its vector-Jacobian product, as `jax.vjp`.

    Args:
        fun: A function of any trees of typed values and plain arrays.
        *primals: Its arguments.
        has_aux: Whether ``fun`` returns ``(result, aux)``.

    Returns:
        ``(result, pull)`` or ``(result, pull, aux)``. ``pull`` takes the cotangent of the result, leaf by leaf in its
        cotangent type (a Python number is broadcast to it), and returns those of the arguments. Its ``argument_types``
        are the tuple of that tree of types.

    Raises:
        ShardingTypeError: (by ``pull``) a cotangent has another type.
    """
    check_function("vjp", fun)
    outs: tuple[Any, ...] = jax.vjp(optimized_jointly(fun), *map(of_one_step, primals), has_aux=has_aux)  # type: ignore[call-overload]
    result, native = outs[0], outs[1]
    types = [jax.typeof(leaf) for leaf in jax.tree.leaves(result)]
    tree: Any = jax.tree.structure(result)

    @public
    def pull(ct: Any) -> Any:
        cts = jax.tree.leaves(ct)
        if jax.tree.structure(ct) != tree:
            raise ShardingTypeError(f"a cotangent has the tree of the result, {tree}, not {jax.tree.structure(ct)}")
        with wrap_jax_errors(name_of(fun) or "fun", "cannot be differentiated backward"):
            return native(jax.tree.unflatten(tree, [_cotangent(c, t) for c, t in zip(cts, types, strict=True)]))

    ct_types = [t.cotangent() if isinstance(t, ShType) else t for t in types]
    return (result, _with_types(pull, jax.tree.unflatten(tree, ct_types)), *outs[2:])


def jvp(fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False) -> Any:
    """The value of a function and its derivative along tangents, as `jax.jvp`.

    Args:
        fun: A function of any trees of typed values and plain arrays.
        primals: The sequence of its arguments.
        tangents: The sequence of their tangents, in the types of the arguments.
        has_aux: Whether ``fun`` returns ``(result, aux)``.

    Returns:
        ``(result, tangent)`` or ``(result, tangent, aux)``.

    Raises:
        ShardingTypeError: a tangent has another type.
    """
    check_function("jvp", fun)
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise ShardingTypeError("`jvp` takes a tuple of arguments and one of tangents", hints=["sh.jvp(f, (x,), (t,))"])
    tangents = _check_tangents(tuple(primals), tuple(tangents))
    out: Any = jax.jvp(optimized_jointly(fun), tuple(primals), tuple(tangents), has_aux=has_aux)
    return out


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function and its derivative there, a linear function of tangents, as `jax.linearize`.

    Args:
        fun: A function of any trees of typed values and plain arrays.
        *primals: Its arguments.
        has_aux: Whether ``fun`` returns ``(result, aux)``.

    Returns:
        ``(result, push)`` or ``(result, push, aux)``; ``push`` takes a tangent for each argument, in the argument's
        type, and returns that of the result. Its ``argument_types`` are these types.

    Raises:
        ShardingTypeError: (from ``push``) a tangent has another type.
    """
    check_function("linearize", fun)
    outs: Any = jax.linearize(optimized_jointly(fun), *primals, has_aux=bool(has_aux))  # type: ignore[call-overload]  # of two literals

    @public
    def push(*tangents: Any) -> Any:
        return outs[1](*_check_tangents(primals, tangents))

    return (outs[0], _with_types(push, *jax.tree.map(jax.typeof, primals)), *outs[2:])


def _with_types(function: Any, *types: Any) -> Any:
    """The function of cotangents or tangents with their types, which an editor reads."""
    function.argument_types = types
    return function


def of_one_step(primal: Any) -> Any:
    """Casts an argument to varying over the axes that `vmap` maps over here: its gradient is that of one step."""
    axes = mapped_axes()
    if not axes:
        return primal

    def varying(x: Any) -> Any:
        if not is_typed(x) or not jax.typeof(x).differentiable:
            return x
        return vary(x, [a for a in axes if jax.typeof(x).state(a) in REPLICATED], inserted=True)

    return jax.tree.map(varying, primal)


def _check_tangents(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Checks that tangents have the types of their values, or reshards them inside `implicit_comm`; returns them."""
    structure: Any = jax.tree.structure(primals)
    if jax.tree.structure(tangents) != structure:
        raise ShardingTypeError(
            f"tangents have the tree of the values, {structure}, not {jax.tree.structure(tangents)}"
        )
    checked = []
    for primal, tangent in zip(jax.tree.leaves(primals), jax.tree.leaves(tangents), strict=True):
        if is_typed(primal) and jax.typeof(primal).differentiable:
            if is_typed(tangent):
                tangent = _reshard_implicitly(tangent, jax.typeof(primal), "tangent")
            actual: Any = jax.typeof(tangent) if is_typed(tangent) else type(tangent).__name__
            check_tangent(actual, jax.typeof(primal))
        checked.append(tangent)
    out: tuple[Any, ...] = jax.tree.unflatten(structure, checked)
    return out


def _cotangent(ct: Any, primal: Any) -> Any:
    """Checks the cotangent of a result of type ``primal``; broadcasts numbers, and reshards inside `implicit_comm`."""
    if not isinstance(primal, ShType):
        return jnp.full(primal.shape, ct, primal.dtype) if is_number(ct) else ct
    if is_number(ct):
        return full(primal.cotangent(), ct)
    if not is_typed(ct):
        raise ShardingTypeError(
            f"the cotangent of a result of type {primal} is a typed value, not {type(ct).__name__}",
            hints=cast_hints("ct", None, primal.cotangent()),
        )
    ct = _reshard_implicitly(ct, primal.cotangent(), "cotangent")
    check_cotangent(jax.typeof(ct), primal, "the cotangent")
    return ct


def _reshard_implicitly(x: Any, expected: ShType, name: str) -> Any:
    """Reshards a cotangent or tangent to the expected type, inside `implicit_comm`."""
    t: Any = jax.typeof(x)
    if t == expected or not allows_implicit() or not can_reshard(t, expected):
        return x
    check_comm(name, t, expected, name="x", inserted=True)
    return move(x, expected, inserted=True)


def _seed(loss: Any, name: str, *, holomorphic: bool) -> Any:
    """The number 1 in the cotangent type of a typed or plain loss."""
    if is_typed(loss):
        return full(seed_of(jax.typeof(loss), f"grad({name})", holomorphic=holomorphic), 1)
    aval = jax.typeof(loss)
    real = jnp.issubdtype(aval.dtype, jnp.floating) or (holomorphic and jnp.issubdtype(aval.dtype, jnp.complexfloating))
    if aval.shape or not real:
        raise ShardingTypeError(f"a gradient needs a scalar loss of real numbers; `{name}` returned {aval}")
    return jnp.ones_like(loss)


def seed_of(t: ShType, called: str, *, holomorphic: bool) -> ShType:
    """`seed_type` in the current `vmap`s, with errors that name the call."""
    try:
        return seed_type(t, holomorphic=holomorphic, mapped=mapped_axes())
    except ShardingTypeError as error:
        raise located(error, called, [t]) from None


def positions(argnums: tuple[int, ...], count: int, name: str) -> list[int]:
    """``argnums`` as nonnegative indices of the arguments of a call."""
    for i in argnums:
        if not -count <= i < count:
            raise ShardingTypeError(f"`{name}` has no positional argument {i} to differentiate: it was given {count}")
    return [i % count for i in argnums]


def check_argument(
    arg: Any, index: int, hints: Sequence[str] = _INTEGERS[:1], *, holomorphic: bool = False, allow_int: bool = False
) -> None:
    """Refuses integers without ``allow_int``, with some ``hints``, and real arrays with ``holomorphic``."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
        what = f"argument {index}{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "dtype") and not isinstance(leaf, Array) and not is_number(leaf):
            kind, apart = type(leaf).__name__, "a function of the arrays alone, which closes over the rest"
            hint = of_class(kind) if dataclasses.is_dataclass(leaf) else apart
            raise ShardingTypeError(f"{what} is no array: {kind} cannot be differentiated", hints=[hint])
        dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
        is_float, is_complex = jnp.issubdtype(dtype, jnp.floating), jnp.issubdtype(dtype, jnp.complexfloating)
        if not (is_float or is_complex or allow_int):
            raise ShardingTypeError(f"{what} of type {jax.typeof(leaf)} has no gradient", hints=hints)
        if holomorphic and not is_complex:
            raise ShardingTypeError(f"with holomorphic=True, {what} must be complex, not {jax.typeof(leaf)}")


# the methods of the hijax type


def _raise_val(t: HiShType, physical: Any) -> Any:
    """The typed value of a physical array, which may be traced."""
    if isinstance(physical, jax.core.Tracer):
        return raise_p.bind(physical, ty=t)
    return wrap(t, fix_empty_shards(t, physical))


_BARRIER = NamedFn("optimization_barrier", lax.optimization_barrier, linear=Linear.JOINTLY)


def _loss_seed(t: HiShType) -> ShType:
    """The type of a loss's seed; complex ones are allowed, since JAX checks that."""
    return seed_of(t, "jax.grad", holomorphic=True)


HiShType.behaviour = Behaviour(
    raise_val=_raise_val,
    zero=zeros_of,
    add=lambda t, x, y: local(Add(), x, y, out=t),
    broadcast=repeated,
    stop_gradient=lambda x: local(STOP_GRADIENT, x, out=jax.typeof(x)),
    optimization_barrier=lambda x: local(_BARRIER, x, out=jax.typeof(x)),
    checkpoint_policy=for_typed,
    select_n=selected,
    check_loss=_loss_seed,
    seed=lambda t: full(_loss_seed(t), 1),
)
