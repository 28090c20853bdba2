"""`train_step`: a loss and its gradients in the arguments' types, which is a training step without the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax

from shtypes.autodiff.grad import positions, value_and_grad
from shtypes.context.function import Function
from shtypes.context.signature_errors import as_numbers, check_function
from shtypes.core.array import Array
from shtypes.core.local import is_zeros, zeros_of
from shtypes.core.reshard import reshard_cotangent
from shtypes.errors import ShardingTypeError
from shtypes.resharding.transport import transport_in_force
from shtypes.types.target import target_text

P = ParamSpec("P")
T = TypeVar("T")


def train_step(
    fun: Callable[P, T],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Function[P, tuple[T, Any]]:
    """Converts a loss to a function that returns it and its gradients, each resharded to its argument's type.

    `value_and_grad` returns gradients in cotangent types: that of a replicated weight is unreduced, with the sum over
    devices pending. An optimizer needs the sum, sharded as the weight is. So analyze a training step, not the loss or
    its gradient, with `ledger`, `memory`, `compute` and `compare`.

    Args:
        fun: A loss, as for `grad`.
        argnums: Which positional arguments to differentiate with respect to.
        has_aux: Whether ``fun`` returns ``(loss, aux)``.

    Returns:
        A function with the arguments of ``fun`` that returns ``(loss, gradients)``, or ``((loss, aux), gradients)``.
        The type of the loss does not change.

    Raises:
        ShardingTypeError: (when called) as for `grad`; or a scope such as `no_comm` forbids to finish a gradient.

    Communicates: as ``fun`` and its backward pass do, and the reshard of each gradient from the cotangent type of its
    argument to the argument's type: an all-reduce for a replicated argument, nothing for one sharded over these axes.

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
    differentiated = value_and_grad(fun, argnums, has_aux)

    @functools.wraps(fun)
    def step(*args: P.args, **kwargs: P.kwargs) -> tuple[T, Any]:
        indices = positions(chosen, len(args), name)
        value, gradients = differentiated(*args, **kwargs)
        arguments = args[indices[0]] if isinstance(argnums, int) else tuple(args[i] for i in indices)
        with jax.named_scope("transpose()"):  # the sums end the backward pass
            return value, jax.tree.map(functools.partial(_in_type_of, name), arguments, gradients)

    return cast("Function[P, tuple[T, Any]]", step)


def _in_type_of(name: str, argument: Any, gradient: Any) -> Any:
    """The gradient of an argument of the function ``name``, in the argument's type if that is typed."""
    if not isinstance(argument, Array) or (t := jax.typeof(argument)) is jax.typeof(gradient):
        return gradient
    if is_zeros(gradient):
        return zeros_of(t)
    try:
        return reshard_cotangent(gradient, t, inserted=False, transport=transport_in_force())
    except ShardingTypeError as error:  # of a scope: `value_and_grad` sends nothing that `fun` does not
        later = f'sh.reshard(gradient, "{target_text(t)}") after the scope'
        loss = name if name.isidentifier() else "f"
        error.hints = error.hints or (f"sh.value_and_grad({loss}) in the scope, and {later}",)
        raise
