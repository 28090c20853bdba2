"""`train_step`: a loss with its gradients in the arguments' types, the part of a training step that is the model's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax

from shtypes.autodiff.grad import positions, value_and_grad
from shtypes.context.function import Function
from shtypes.context.signature_errors import as_numbers, check_function
from shtypes.core.array import Array
from shtypes.dispatch.reshard import reshard
from shtypes.types import State

P = ParamSpec("P")
T = TypeVar("T")


def train_step(
    fun: Callable[P, T],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Function[P, tuple[T, Any]]:
    """A function that returns the loss and its gradients, each gradient resharded to its argument's type.

    `value_and_grad` returns gradients in cotangent types: of a replicated weight it is unreduced, the sum over devices
    still to come. What an optimizer needs is that sum, laid out as the weight is. A step of training sends it, so that
    this, and not the loss or its gradient, is what `ledger`, `memory`, `compute` and `compare` should be asked about.

    Args:
        fun: A loss, as for `grad`.
        argnums: Which positional arguments to differentiate with respect to.
        has_aux: Whether ``fun`` returns ``(loss, aux)``.

    Returns:
        A function with the arguments of ``fun`` that returns ``(loss, gradients)``, or ``((loss, aux), gradients)``.
        The loss keeps its type.

    Raises:
        ShardingTypeError: (when called) as for `grad`; or a scope such as `no_comm` forbids to finish a gradient.

    Communicates: what ``fun`` and its backward pass do, and the reshard of each gradient from the cotangent type of its
    argument to the argument's type: of a replicated argument an all-reduce, of one sharded over the same axes nothing.

    Examples:
        >>> import shtypes as sh
        >>> mesh = sh.abstract_mesh({"dp": 4})
        >>> def loss(w, x):
        ...     return sh.sum(sh.square(x @ w))
        >>> types = "f32[16, 4]", "f32[8@dp, 16]"
        >>> sh.check(sh.value_and_grad(loss), *types, mesh=mesh).results[1]
        f32[16,4]{U:dp}
        >>> sh.check(sh.train_step(loss), *types, mesh=mesh).results[1]
        f32[16,4]
    """
    check_function("train_step", fun)
    chosen = as_numbers("train_step", "argnums", argnums)
    name = getattr(fun, "__name__", "the function")

    @functools.wraps(fun)
    def step(*args: P.args, **kwargs: P.kwargs) -> tuple[T, Any]:
        indices = positions(chosen, len(args), name)
        types = {i: jax.tree.map(lambda x: jax.typeof(x) if isinstance(x, Array) else x, args[i]) for i in indices}
        summed = [jax.tree.map(_invariant, x) if i in types else x for i, x in enumerate(args)]

        def of_summed(*summed: Any, **kwargs: Any) -> T:
            return fun(*(jax.tree.map(_in, x, types[i]) if i in types else x for i, x in enumerate(summed)), **kwargs)

        value, gradients = value_and_grad(functools.wraps(fun)(of_summed), argnums, has_aux)(*summed, **kwargs)
        targets = types[indices[0]] if isinstance(argnums, int) else tuple(types[i] for i in indices)
        return value, jax.tree.map(_in, gradients, targets)

    return cast("Function[P, tuple[T, Any]]", step)


def _invariant(x: Any) -> Any:
    """An argument, invariant where it is reduced: then its gradient is summed in the backward pass."""
    if not isinstance(x, Array):
        return x
    t = jax.typeof(x)
    for axis in t.axes(State.REDUCED):
        t = t.with_axis(axis, State.INVARIANT)
    return _in(x, t)


def _in(x: Any, t: Any) -> Any:
    """A typed value in another type; a plain one as it is."""
    return reshard(x, t) if isinstance(x, Array) else x
