"""Jacobians and Hessians of typed functions: `jacfwd`, `jacrev`, `hessian`, as in JAX."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, cast

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.autodiff.grad import check_argument, of_one_step, positions, with_aux
from shtypes.context.function import Function
from shtypes.context.scope import mapped_axes
from shtypes.context.signature_errors import as_numbers, check_function
from shtypes.context.user_line import wrap_jax_errors
from shtypes.control.vmap import vmap
from shtypes.core.local import zeros_of
from shtypes.dispatch.apply import is_typed, located
from shtypes.errors import ShardingTypeError
from shtypes.ops.create import by_index
from shtypes.ops.functions import moveaxis, reshape
from shtypes.types import Dim, ShType, State

P = ParamSpec("P")
Argnums = int | Sequence[int]


def jacfwd(
    fun: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function[P, Any]:
    """The Jacobian of a function, column by column in forward mode, as `jax.jacfwd`.

    Args:
        fun: A function of pytrees of typed values and plain arrays.
        argnums: Which positional arguments to differentiate with respect to.
        has_aux: Whether ``fun`` returns ``(result, aux)``.
        holomorphic: A promise that ``fun`` is holomorphic.

    Returns:
        A function with the arguments of ``fun`` that returns, for each leaf of the result, a pytree like the argument,
        or ``(Jacobian, aux)``. A Jacobian has the dims of the result, sharded as the result is, and then those of the
        argument, unsharded.

    Raises:
        ShardingTypeError: (when called) an argument or a result is no float, or varies from device to device.

    Communicates: as the forward derivative of ``fun`` does, once for all columns: the bytes times the number of
    elements of the argument.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     w = sh.array([1.0, 2.0], "f32[2@x]")
        ...     sh.jacfwd(lambda w: w * w)(w)
        Array(f32[2@x,2], [[2. 0.]
               [0. 4.]])
    """
    return _jacobian("jacfwd", _forward, fun, argnums, has_aux, holomorphic)


def jacrev(
    fun: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function[P, Any]:
    """The Jacobian of a function, row by row in reverse mode, as `jax.jacrev`; arguments as for `jacfwd`.

    Returns:
        As `jacfwd`, but each Jacobian has the type of a gradient of its argument: the dims of the result are unsharded,
        and those of the argument are sharded as the argument is. For a reduced argument it is unreduced.

    Communicates: as the backward pass of ``fun`` does, once for all rows: the bytes times the number of elements of the
    result.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     w = sh.array([1.0, 2.0], "f32[2@x]")
        ...     sh.jacrev(lambda w: w * w)(w)
        Array(f32[2,2@x], [[2. 0.]
               [0. 4.]])
    """
    return _jacobian("jacrev", _reverse, fun, argnums, has_aux, holomorphic)


def hessian(
    fun: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function[P, Any]:
    """The Hessian of a function, as `jax.hessian`: `jacfwd` of `jacrev`.

    Returns:
        As `jacfwd`; each Hessian has the dims of the result, then twice those of the arguments. It has the type of a
        gradient of the first argument, and the dims of the second are unsharded.

    Communicates: as both derivatives of ``fun`` do; see `jacfwd` and `jacrev`.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     w = sh.array([1.0, 2.0], "f32[2@x]")
        ...     sh.all_reduce(sh.hessian(lambda w: sh.sum(w**3))(w))
        Array(f32[2@x,2], [[ 6.  0.]
               [ 0. 12.]])
    """
    check_function("hessian", fun)
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


def _jacobian(
    name: str,
    derive: Callable[[Callable[..., Any], Sequence[Any]], tuple[Any, list[list[Any]], Any]],
    fun: Callable[P, Any],
    argnums: Argnums,
    has_aux: bool,
    holomorphic: bool,
) -> Function[P, Any]:
    """The function that returns the Jacobians of ``fun``; ``derive`` is `_forward` or `_reverse`."""
    check_function(name, fun)
    numbers = as_numbers(name, "argnums", argnums)
    called = getattr(fun, "__name__", "the function")

    @functools.wraps(fun)
    def jacobian_of_fun(*args: Any, **kwargs: Any) -> Any:
        indices = positions(numbers, len(args), called)
        for i in indices:
            check_argument(args[i], i, holomorphic=holomorphic)
        chosen = of_one_step(tuple(args[i] for i in indices))
        _refuse_varying(chosen, f"{name}({called})")
        leaves, tree = jax.tree.flatten(chosen if not isinstance(argnums, int) else chosen[0])

        def of_leaves(*values: Any) -> tuple[Any, Any]:
            values_in = jax.tree.unflatten(tree, values)
            merged = list(args)
            for i, value in zip(indices, values_in if not isinstance(argnums, int) else (values_in,), strict=True):
                merged[i] = value
            out, aux = with_aux(fun(*merged, **kwargs), has_aux, called, "result")
            _check_results(out, called, holomorphic)
            if derive is _reverse:  # in forward mode each device has the derivative of its value
                _refuse_varying(out, f"{name}({called})")
            return out, aux

        with wrap_jax_errors(called, "has no Jacobian"):
            results, rows, aux = derive(of_leaves, leaves)
        jacobians = jax.tree.unflatten(results, [jax.tree.unflatten(tree, row) for row in rows])
        return (jacobians, aux) if has_aux else jacobians

    return cast("Function[P, Any]", jacobian_of_fun)


def _refuse_varying(tree: Any, call: str) -> None:
    """Refuses varying values outside `vmap`, which have no global elements."""
    for leaf in filter(is_typed, jax.tree.leaves(tree)):
        t = jax.typeof(leaf)
        for axis in t.axes(State.VARYING):
            if axis not in mapped_axes():
                error = ShardingTypeError(
                    f"{t} has no Jacobian: it varies over mesh axis `{axis}`",
                    why="each device holds a value of its own",
                    hints=[f'sh.reinterpret(x, {axis}="U") if they are terms of a sum'],
                )
                raise located(error, call, [t])


def _check_results(results: Any, called: str, holomorphic: bool) -> None:
    """Refuses results that are no arrays of floats."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(results)[0]:
        what = f"the result{jax.tree_util.keystr(path)} of `{called}`"
        if not hasattr(leaf, "dtype"):
            raise ShardingTypeError(f"{what} is no array: {type(leaf).__name__} has no Jacobian")
        if not jnp.issubdtype(leaf.dtype, (jnp.complexfloating if holomorphic else jnp.floating)):
            numbers = "complex numbers" if holomorphic else "real numbers"
            raise ShardingTypeError(f"a Jacobian needs results that are {numbers}; {what} is {jax.typeof(leaf)}")


def _forward(fun: Callable[..., Any], leaves: Sequence[Any]) -> tuple[Any, list[list[Any]], Any]:
    """The results' structure, for each result its Jacobians in the leaves, and the auxiliary output."""
    columns, structures, aux = [], [], None
    for k, leaf in enumerate(leaves):

        def push(tangent: Any, k: int = k, leaf: Any = leaf) -> Any:
            def of_leaf(value: Any) -> Any:
                return fun(*leaves[:k], value, *leaves[k + 1 :])

            _, moved, aux = jax.jvp(of_leaf, (leaf,), (tangent,), has_aux=True)
            structures.append(jax.tree.structure(moved))
            return jax.tree.leaves(moved), aux

        t: Any = jax.typeof(leaf)
        moved, aux = vmap(push, out_axes=(0, None))(_basis(t.tangent() if isinstance(t, ShType) else t))
        columns.append([_last(x, np.shape(leaf)) for x in moved])
    return structures[0], [list(row) for row in zip(*columns, strict=True)], aux


def _reverse(fun: Callable[..., Any], leaves: Sequence[Any]) -> tuple[Any, list[list[Any]], Any]:
    """`_forward` in reverse mode."""
    results, pull, aux = jax.vjp(fun, *leaves, has_aux=True)
    outs, structure = jax.tree.flatten(results)
    cotangents = [t.cotangent() if isinstance(t, ShType) else t for t in map(jax.typeof, outs)]
    zeros = [zeros_of(t) if isinstance(t, ShType) else jnp.zeros(t.shape, t.dtype) for t in cotangents]
    rows = []
    for k, out in enumerate(outs):

        def pulled(ct: Any, k: int = k) -> Any:
            cts = [ct if i == k else zero for i, zero in enumerate(zeros)]
            return list(pull(jax.tree.unflatten(structure, cts)))

        rows.append([_reshaped(x, (*np.shape(out), *x.shape[1:])) for x in vmap(pulled)(_basis(cotangents[k]))])
    return structure, rows, aux


def _basis(t: Any) -> Any:
    """The one-hot values of a type, stacked along a new first dim."""
    if not isinstance(t, ShType):
        return jnp.eye(math.prod(t.shape), dtype=t.dtype).reshape(-1, *t.shape)
    return by_index("basis", _one_hot, t.replace(dims=(Dim(t.size), *t.dims)), shape=t.shape)


def _one_hot(row: Any, *index: Any, shape: tuple[int, ...]) -> Any:
    """The mask of a basis: whether the flattened index is the row."""
    place = functools.reduce(lambda at, i: at * i[1] + i[0], zip(index, shape, strict=True), 0)
    return place == row


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    return reshape(x, shape) if is_typed(x) else jnp.reshape(x, shape)


def _last(x: Any, shape: tuple[int, ...]) -> Any:
    """Moves the first dim to the end, and reshapes it to ``shape``."""
    moved = moveaxis(x, 0, -1) if is_typed(x) else jnp.moveaxis(x, 0, -1)
    return _reshaped(moved, (*moved.shape[:-1], *shape))
