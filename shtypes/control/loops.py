"""Loops over typed values: JAX's, with free joins inserted and typed predicates.

`jax.lax.scan`, `while_loop` and `fori_loop` take typed values as they are. These versions also infer the length, cast a
carry to a type that all steps can have for free, and report which types differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.context.signature_errors import check_function
from shtypes.context.user_line import public
from shtypes.control.joins import TypesDiffer, joined_loop, leaf_types, local_value, varying_type
from shtypes.control.vmap import map_sharded
from shtypes.core.conversion import to_jax
from shtypes.core.jax_context import suggest_when_read
from shtypes.dispatch.apply import cast_once, finish_once, is_typed, located
from shtypes.errors import ShardingTypeError, quoted
from shtypes.ops.functions import index_in_dim, stack
from shtypes.rules import Typing
from shtypes.scopes.comm import no_comm
from shtypes.scopes.scope_rules import NoComm, allows_implicit
from shtypes.types import ShType, State

Carry = TypeVar("Carry")
T = TypeVar("T")


@public
def scan(
    f: Callable[[Carry, Any], tuple[Carry, T]],
    init: Carry,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Carry, T]:
    """Loops over the leading dim of ``xs`` with a carry, as `jax.lax.scan`.

    A carry that changes its type is cast, before the loop or at the end of each step, where that is free in both
    directions: an accumulator may start as zeros of any replicated type and become unreduced. An initial constant,
    which has no gradient, starts in whatever type the carry ends in.

    Args:
        f: ``(carry, x) -> (carry, y)``.
        init: The first carry: a pytree of typed values and plain arrays.
        xs (length, ...): The values to loop over; the leading dim of typed ones must not be sharded, unless there is no
            carry: then each device loops over its shard, as in `shtypes.map`.
        length: The number of steps, if ``xs`` is None.
        reverse: Whether to run from the end.
        unroll: Steps per iteration of the compiled loop.

    Returns:
        The last carry, and the stacked ``y``.

    Raises:
        ShardingTypeError: a leading dim is sharded or of another size; the carry changes to a type that it cannot be
            cast to for free.

    Communicates: what ``f`` does, at each step. Backward, a captured value that ``f`` casts is reduced at each step:
    cast it before the loop.
    """
    check_function("scan", f)
    last, ys = _scanned("scan", f, init, xs, length, reverse=reverse, unroll=unroll)
    return last, ys


def _scanned(name: str, f: Callable[..., Any], init: Any, xs: Any, length: int | None, **options: Any) -> Any:
    """`scan`, with another function's name in messages; without a carry, each device loops over its shard."""
    if has_carry := bool(jax.tree.leaves(init)):
        xs = _gathered(name, xs)
    steps = _length(name, xs, length, may_be_sharded=not has_carry)
    if not has_carry:
        try:
            results = map_sharded(
                name,
                lambda x: f(init, x),
                xs,
                lambda each, shard: _scanned(name, lambda _, x: each(x), init, shard, None, **options),
            )
        except ShardingTypeError:
            if not allows_implicit():
                raise
            results, xs = None, _gathered(name, xs)
        if results is not None:
            return results

    def run(body: Callable[..., Any], start: Any) -> Any:
        if steps != 1 and not getattr(jax.config, "jax_disable_jit", False):
            return lax.scan(body, start, xs, steps, **options)
        if steps:
            return _step_by_step(body, start, xs, steps, reverse=options.get("reverse", False))
        with jax.disable_jit(False):  # with no steps, JAX cannot infer the results otherwise
            return lax.scan(body, start, xs, steps, **options)

    return joined_loop(name, f, init, run)


def _gathered(name: str, xs: Any) -> Any:
    """The values that a loop runs over; where communication is allowed, their leading dims are gathered."""
    if not allows_implicit():
        return xs
    return jax.tree.map(lambda x: cast_once(name, _leading_unsharded, x) if is_typed(x) else x, xs)


def _step_by_step(body: Callable[..., Any], carry: Any, xs: Any, steps: int, *, reverse: bool) -> Any:
    """Runs the loop in Python: for one step, or under `jax.disable_jit`."""
    ys = []
    for i in range(steps)[:: -1 if reverse else 1]:
        x = jax.tree.map(lambda x, i=i: index_in_dim(x, i, keepdims=False) if is_typed(x) else x[i], xs)
        carry, y = body(carry, x)
        ys.append(y)

    def stacked(*parts: Any) -> Any:
        return stack(parts) if any(map(is_typed, parts)) else jnp.stack(parts)

    return carry, jax.tree.map(stacked, *ys[:: -1 if reverse else 1])


@public
def map_(f: Callable[[Any], T], xs: Any, *, batch_size: int | None = None) -> T:
    """Applies a function to each element of the leading dim in turn, as `jax.lax.map`.

    The leading dim may be sharded, under the rules of `vmap`: each device then loops over its shard, and inside these
    axes vary. Otherwise it is a `scan`.

    Args:
        f: A function of one element.
        xs (length, ...): A pytree of values.
        batch_size: Not supported.

    Returns:
        The stacked results; their leading dim is sharded as that of ``xs``.

    Raises:
        ShardingTypeError: leading dims are sharded differently, or one is sharded beside a plain array or an unreduced
            value.

    Communicates: what ``f`` does, at each step.
    """
    check_function("map", f)
    if batch_size is not None:
        raise ShardingTypeError("`map` takes one element at a time", hints=["sh.vmap inside of it"])

    mapped: T = _scanned("map", lambda _, x: ((), f(x)), (), xs, None)[1]
    return mapped


map_.__name__ = map_.__wrapped__.__name__ = "map"  # type: ignore[attr-defined]  # of what messages name too


@public
def while_loop(cond_fun: Callable[[Carry], Any], body_fun: Callable[[Carry], Carry], init_val: Carry) -> Carry:
    """Loops while a predicate holds, as `jax.lax.while_loop`; the predicate may be typed.

    Where the predicate varies, each device loops as often as its own predicate holds. Then the loop does not
    communicate, and all of its carry varies.

    Args:
        cond_fun: ``carry -> bool``; reduced, invariant or varying, or plain.
        body_fun: ``carry -> carry``.
        init_val: The first carry; joins as in `scan`.

    Raises:
        ShardingTypeError: the predicate is unreduced, or varies and the loop communicates; the carry changes its type.
    """
    check_function("while_loop", cond_fun, "the predicate")
    check_function("while_loop", body_fun, "the body")

    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        return body_fun(carry), None

    def looped(*, by_device: bool) -> Carry:
        def predicate(carry: Any) -> Any:
            pred = cond_fun(carry)
            axes = jax.typeof(pred).axes(State.VARYING) if is_typed(pred) else ()
            if axes and not by_device:
                raise _PredicateVaries(axes)
            pred = scalar_of(pred, "the predicate of `while_loop`", "bool", varying=bool(axes))
            if not axes:
                return pred
            varying_types = [varying_type(x, jax.typeof(pred)) for x in jax.tree.leaves(carry)]
            if varying_types != leaf_types(carry):
                raise TypesDiffer(list(varying_types))
            return local_value(pred)

        def run(step: Callable[..., Any], start: Any) -> Any:
            return lax.while_loop(predicate, lambda carry: step(carry, None)[0], start)

        carry: Carry = joined_loop("while_loop", body, init_val, run)
        return carry

    try:
        return looped(by_device=False)
    except _PredicateVaries as varies:
        axes = varies.axes
    try:
        with no_comm("forward"):
            return looped(by_device=True)
    except ShardingTypeError as error:
        if not isinstance(error.scope, NoComm):
            raise
        call = f'jax.lax.pmax(pred, "{axes[0]}")' if len(axes) == 1 else "jax.lax.pmax(pred, axes)"
        raise ShardingTypeError(
            f"the predicate of `while_loop` varies over {quoted(axes)}, and the loop communicates",
            why="each device would go round as often as its own predicate holds, and those that communicate would wait "
            f"for each other; here {error.what.partition(': ')[2]}",
            hints=[f"{call} makes one predicate for all devices"],
        ) from None


class _PredicateVaries(Exception):  # noqa: N818  # a signal, not an error
    """Ends the trace of a predicate that varies."""

    def __init__(self, axes: tuple[str, ...]) -> None:
        self.axes = axes


@public
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Carry], Carry],
    init_val: Carry,
    *,
    unroll: int | bool | None = None,
) -> Carry:
    """Loops over a count, as `jax.lax.fori_loop`; the bounds may be typed.

    Args:
        lower: The first count.
        upper: The end, exclusive.
        body_fun: ``(i, carry) -> carry``; ``i`` is plain.
        init_val: The first carry; joins as in `scan`.
        unroll: As in `jax.lax.fori_loop`.

    Raises:
        ShardingTypeError: a bound is unreduced or varies; the carry changes its type.
    """
    check_function("fori_loop", body_fun, "the body")
    start, end = (scalar_of(bound, "a bound of `fori_loop`", "integer") for bound in (lower, upper))

    def body(carry: Any, i: Any) -> tuple[Any, Any]:
        return body_fun(i, carry), None

    def run(step: Callable[..., Any], first: Any) -> Any:
        return lax.fori_loop(start, end, lambda i, carry: step(carry, i)[0], first, unroll=unroll)

    carry: Carry = joined_loop("fori_loop", body, init_val, run)
    return carry


# predicates, indices and bounds


def scalar_of(x: Any, what: str, kind: str = "", *, varying: bool = False) -> Any:
    """Checks a predicate, index or bound, and returns it as a plain scalar, or as a typed one if it may vary."""
    if not is_typed(x):
        return x
    t = jax.typeof(x)
    if t.ndim:
        raise ShardingTypeError(f"{what} is a scalar, not {t}")
    if t.axes(State.UNREDUCED) and allows_implicit():
        x = finish_once(what, x)
        t = jax.typeof(x)
    for axis, state in zip(t.mesh.axis_names, t.states, strict=True):
        if state is State.UNREDUCED or (state is State.VARYING and not varying):
            hints = [f'sh.all_reduce(x, "{axis}") first'] if state is State.UNREDUCED else []
            raise ShardingTypeError(
                f"{what} has type {t}, which is not one value on all devices of mesh axis `{axis}`",
                why="each device would go its own way, and those that communicate would wait for each other",
                hints=hints,
            )
    if kind and not ("integer" if t.dtype_name[0] in "iu" else t.dtype_name).startswith(kind):
        raise ShardingTypeError(f"{what} is {_A[kind]}, not {t}", hints=[f'x.astype("{_DTYPE[kind]}")'])
    return x if varying else to_jax(x)


_A: Final = {"bool": "a bool", "integer": "an integer"}
_DTYPE: Final = {"bool": "bool", "integer": "i32"}


def _leading_unsharded(types: tuple[ShType, ...]) -> Typing:
    """The typing rule of a loop's operand: its leading dim is not sharded."""
    for t in types:
        if t.dims and t.dims[0].axes:
            raise ShardingTypeError("the leading dim is sharded", axes=t.dims[0].axes)
    return Typing(types, types)


def _length(name: str, xs: Any, length: int | None, *, may_be_sharded: bool) -> int | None:
    """The number of steps, from the leading dims of typed leaves; JAX infers it without those."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(xs)[0]:
        if not is_typed(leaf):
            continue
        t, what = jax.typeof(leaf), f"`{name}` cannot run over xs{jax.tree_util.keystr(path)}"
        if not t.ndim:
            raise ShardingTypeError(f"{what}: {t} has no leading dim")
        if t.dims[0].axes and not may_be_sharded:
            error = ShardingTypeError(
                f"{what}: the leading dim of {t} is sharded over {quoted(t.dims[0].axes)}",
                why="each step would live on some of the devices only",
                hints=["sh.map and sh.vmap, where the steps do not need one another"],
            )
            error.subjects, error.names = (t,), (f"xs{jax.tree_util.keystr(path)}",)
            suggest_when_read(error, _leading_unsharded, (t,), error.names)
            raise located(error, name, [t])
        if length is not None and t.shape[0] != length:
            raise ShardingTypeError(f"{what} in {length} steps: the leading dim of {t} has size {t.shape[0]}")
        length = t.shape[0]
    return length
